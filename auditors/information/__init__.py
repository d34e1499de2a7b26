"""Mutual information between one client's update and a secure sum.

Elkordy et al. 2023, How Much Privacy Does Federated Learning with Secure Aggregation Guarantee?
(arXiv:2208.02304). Estimators from samples are in `logdet`, theory is in `theory`, the audit of a
run in `auditor`, that of critics in `neural`, which needs torch.
"""

from __future__ import annotations

from leakmeter.auditors.information.directions import Subspace, principal_subspace
from leakmeter.auditors.information.draws import Look
from leakmeter.auditors.information.logdet import (
    EachInformation,
    each_information,
    joint_information,
    logdet_information,
)
from leakmeter.auditors.information.theory import (
    IndependentWhitened,
    Information,
    LogConcaveWhitened,
    Theory,
    UpdateEntropy,
    gaussian_information,
    round_bound,
    update_entropy,
)

__all__ = [
    "EachInformation",
    "IndependentWhitened",
    "Information",
    "LogConcaveWhitened",
    "Look",
    "Subspace",
    "Theory",
    "UpdateEntropy",
    "each_information",
    "gaussian_information",
    "joint_information",
    "logdet_information",
    "principal_subspace",
    "round_bound",
    "update_entropy",
]
