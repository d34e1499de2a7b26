"""Data sets as plain arrays: `dataset` finds and loads them, `image` and `table` read each format.

Records are assigned to clients in `partition`.
"""
