"""A run as its folder has it: `run` reads it, `report` states the fields."""
