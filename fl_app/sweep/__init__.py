"""Sweeps: `points` has the points, `sweep` runs them, `results` compares them."""
