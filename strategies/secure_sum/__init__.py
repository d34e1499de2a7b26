"""Secure aggregation on the server: read `masked` first, then `exchange` (stages as messages).

Without Flower: `topology` (graph and threshold), `unmasking` (from shares to the sum) and `tally`
(what was hidden). `mean_only` lists strategies that need more than a mean.
"""
