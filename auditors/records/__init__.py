"""Audits of single records: membership by losses, and which of two records a client held.

The audits of a run are `membership.Membership` and `game.RecordLikelihoodRatio`; what they
compute can be had without a run from here.
"""

from __future__ import annotations

from leakmeter.auditors.records.game import RecordAudit, RecordBudget, RecordCase, audit_records
from leakmeter.auditors.records.membership import (
    Shadows,
    logit_confidences,
    membership_bound,
    separation,
)
from leakmeter.auditors.records.pair import GradientRows, Spectrum

__all__ = [
    "GradientRows",
    "RecordAudit",
    "RecordBudget",
    "RecordCase",
    "Shadows",
    "Spectrum",
    "audit_records",
    "logit_confidences",
    "membership_bound",
    "separation",
]
