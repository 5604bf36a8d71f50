"""The paper's experiments as functions. A study trains, measures and writes results.json; figures.py draws from it."""
