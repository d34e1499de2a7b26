"""Experiments of Andrew et al. (2024): one-shot canaries.

Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar (2024), One-shot Empirical Privacy Estimation for
Federated Learning, arXiv:2302.03098.

- `table1`: Table 1, estimates of the Gaussian mechanism.
- `writers`: Tables 2 and 5, Fig. 1 to 3 and Table 4, canaries in models; and runs with coins.
- `all_models`: Tables 2 and 5, Algorithm 3 as printed and with the server's momentum.
- `accuracy`: Table 3, what canaries cost in accuracy.
- `many_runs`: Fig. 4, one run with many canaries against many runs.
- `records`: Table 6, gradient canaries in DP-SGD.

Shared: `audit` runs this project with canaries and turns scores into estimates and bounds,
`gaussian_sum` simulates a Gaussian sum. How often the bound of section 5 and ours are above the
truth is in `coverage`.
"""
