"""One-shot canaries: random updates that the auditor searches for in the released models.

Andrew et al. 2024, One-shot Empirical Privacy Estimation for Federated Learning, arXiv:2302.03098.
The audit of a run is in `auditor`, what was seen of each canary in `transcript`, estimates and
lower bounds in `scores`.
"""
