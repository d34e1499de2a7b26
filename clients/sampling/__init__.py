"""Fresh updates in large numbers, for auditors: read `sampler` first.

`source` decides which records a client has in a draw, `chunks` divides the work, and `postprocess`
does to an update what the client does before it sends it.
"""
