"""Canaries: random updates that auditors search for, in released models or in single updates.

Andrew et al. 2024, One-shot Empirical Privacy Estimation for Federated Learning, arXiv:2302.03098.
Which canary plays when, and what cosines estimate, is in `canary_auditor`. `one_shot` searches in
models, whose changes are in `transcript`; `single_update` in what the server receives.
"""
