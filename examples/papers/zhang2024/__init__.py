"""Experiments of Zhang and Psounis (2024): sampling noise and water-filling.

Zhang, Psounis (2024), Differentially Private Federated Learning without Noise Addition: When is
it Possible?, arXiv:2405.04551.

- `table1`: Table 1, what a record is guaranteed in one round; `prices` has its rows.
- `noised_gradients`: Fig. 4 and 5, linear model and CNN.
- `span_counterexample`: Fig. 3, and Fig. 17 of Elkordy et al. 2023, a sum that hides nothing.
"""
