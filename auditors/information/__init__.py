"""Mutual information between one client's update and a secure sum.

Elkordy et al. 2023, How Much Privacy Does Federated Learning with Secure Aggregation Guarantee?
(arXiv:2208.02304). Theory and estimates from samples are in `theory`, the samples themselves in
`draws`. The audit of a run is in `mutual_information`, that of all its rounds together in
`over_rounds`, that of critics in `neural`, which needs torch.
"""
