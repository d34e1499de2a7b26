"""A strategy with a loop of its own: it keeps the best model and stops early."""
