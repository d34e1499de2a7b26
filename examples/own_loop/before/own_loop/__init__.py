"""A strategy with its own loop: it keeps the best model and stops early."""
