"""Fresh updates of a round's clients, and the moments of their sum.

`replay` needs Flower; `sampler` and `moments` do not.
"""
