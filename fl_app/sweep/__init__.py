"""Sweeps: `plan.py` has the points, `run.py` runs them, `results.py` compares them."""
