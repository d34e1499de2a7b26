"""The settings of a run: their table, their checks, and how they are read."""
