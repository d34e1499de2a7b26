"""Experiments of Ngo et al. (2024): distinguishing two updates in a secure sum.

Ngo, Östman, Durisi, Graell i Amat (2024), Secure Aggregation is Not Private Against Membership
Inference Attacks, arXiv:2403.17775.

- `ldp_curves`: Fig. 1, optimal LDP curves of a secure sum without noise.
- `transcript`: all rounds in one test, beyond the paper.
- `secure_sum`: Fig. 2 (ADULT), Fig. 3 and 4 (MNIST); `game` plays it.

Equation (8), the bound with the best threshold, is in `coverage`.
"""
