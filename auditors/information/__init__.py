"""Mutual information between one client's update and a secure sum.

Elkordy et al. 2023, How Much Privacy Does Federated Learning with Secure Aggregation Guarantee?
(arXiv:2208.02304). Theory and estimates from samples are in `theory`, the audit of a run in
`mutual_information`, that of critics in `neural`, which needs torch.
"""
