"""Fresh updates in large numbers, for auditors: read `sampler` first.

`source` decides which records a client has in a draw.
"""
