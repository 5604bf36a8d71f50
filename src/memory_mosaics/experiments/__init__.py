"""Experiments and commands on trained models, one file each. Each writes results.json, from which figures/ draws."""
