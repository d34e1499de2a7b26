"""Fresh updates of a round's clients: replays of their messages, moments, and the round's sum.

`replay` needs Flower; `moments`, `scatter` and `round_sum` do not.
"""
