"""A run as its folder has it: `run.py` reads it, `fields.py` checks every field."""
