"""Noise as integers: what floating point gives away, and what the ring costs in bits.

Agarwal, Kairouz, Liu (2021), The Skellam Mechanism for Differentially Private Federated Learning,
arXiv:2110.04995; Kairouz, Liu, Steinke (2021), The Distributed Discrete Gaussian Mechanism for
Federated Learning with Secure Aggregation, arXiv:2102.06387.

- `table`: accuracy at equal ε over bits per coordinate, beside Gaussian noise.
- `integer_sum`: the game that a guarantee of integer noise is about, with exact scores.
- `low_bits`: the attack on the low bits of a release, in floating point and on a grid.
"""
