"""Experiments of Elkordy et al. (2023): information in a secure sum.

Elkordy, Zhang, Ezzeldin, Psounis, Avestimehr (2023), How Much Privacy Does Federated Learning
with Secure Aggregation Guarantee?, arXiv:2208.02304.

- `sweep`: one round, over users, models (Fig. 3 to 5), batches (6 to 8), local epochs (11 and 12),
  skewed labels (13), writers (14) and noise (16); `measure` looks at it, `claims` compares.
- `rounds`: Fig. 9 and 10, all rounds together.
- `dlg`: Fig. 15, gradient inversion from the sum.
- `mine`: section 4.1 and Appendix D, the neural estimator.
- `corollaries`: what the paper's theorems say of a round and of a run.

`page` has what they share: an experiment as data, and its table. Fig. 17 is in
`zhang2024.span_counterexample`.
"""
