"""Secure aggregation on the server.

Read `masked` (the wrapper, and which strategies need more than a mean), then `sum_round` (stages as
messages, from shares to the sum, what was hidden). `topology` has graph and threshold.
"""
