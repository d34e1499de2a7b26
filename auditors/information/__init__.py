"""Mutual information between one client's update and a secure sum.

Elkordy et al. 2023, How Much Privacy Does Federated Learning with Secure Aggregation Guarantee?
(arXiv:2208.02304). Estimators from samples are in `logdet`, theory is in `theory`, the audit of a
run in `auditor`, that of critics in `neural`, which needs torch.
"""
