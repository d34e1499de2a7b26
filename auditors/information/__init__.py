"""Mutual information between one client's update and a secure sum.

Elkordy et al. 2023, How Much Privacy Does Federated Learning with Secure Aggregation Guarantee?
(arXiv:2208.02304). Estimators from samples are in `logdet`, theory is in `theory`, the audit of a
run in `auditor`, that of critics in `neural`, which needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import front_page

if TYPE_CHECKING:
    from leakmeter.auditors.information.directions import Subspace as Subspace
    from leakmeter.auditors.information.directions import principal_subspace as principal_subspace
    from leakmeter.auditors.information.draws import Look as Look
    from leakmeter.auditors.information.logdet import EachInformation as EachInformation
    from leakmeter.auditors.information.logdet import each_information as each_information
    from leakmeter.auditors.information.logdet import joint_information as joint_information
    from leakmeter.auditors.information.logdet import logdet_information as logdet_information
    from leakmeter.auditors.information.theory import IndependentWhitened as IndependentWhitened
    from leakmeter.auditors.information.theory import Information as Information
    from leakmeter.auditors.information.theory import LogConcaveWhitened as LogConcaveWhitened
    from leakmeter.auditors.information.theory import Theory as Theory
    from leakmeter.auditors.information.theory import UpdateEntropy as UpdateEntropy
    from leakmeter.auditors.information.theory import gaussian_information as gaussian_information
    from leakmeter.auditors.information.theory import round_bound as round_bound
    from leakmeter.auditors.information.theory import update_entropy as update_entropy
else:
    __all__, __getattr__ = front_page(__spec__)
