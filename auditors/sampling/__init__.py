"""Fresh updates of a round's clients: replays, moments, the round's sum, rows in a file.

`replay` needs Flower; `moments`, `scatter` and `row_store` do not.
"""
