"""The parts of the embedded story world; stories.py puts them together."""
