"""Experiments of Elkordy et al. (2023): information in a secure sum.

Elkordy, Zhang, Ezzeldin, Psounis, Avestimehr (2023), How Much Privacy Does Federated Learning
with Secure Aggregation Guarantee?, arXiv:2208.02304.

- `users`: Fig. 3 to 5, over the number of users, and over data sets, models and algorithms.
- `sweep`: Fig. 6 to 8 over the batch size, Fig. 11 and 12 over local epochs.
- `rounds`: Fig. 9 and 10, all rounds together, over the rounds and against the model's accuracy.
- `heterogeneity`: Fig. 13, clients with skewed labels.
- `writers`: Fig. 14, clients that are writers.
- `dlg_users`: Fig. 15, gradient inversion from the sum; `dlg_game` plays it.
- `dp`: Fig. 16, noise after the sum.
- `mine_dimension`: Appendix D, the neural estimator where the truth is known.
- `mine_rounds`: section 4.1, the MINE audit after each round of a run.

Fig. 17 is in `zhang2024.span_counterexample`. Shared: `measure` (one round), `accumulated` (all
rounds), `page` (words and lines of the tables).
"""
