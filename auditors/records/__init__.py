"""Audits of single records: membership by losses, and which of two records a client held.

The audits of a run are `membership.Membership` and `game.RecordLikelihoodRatio`; what they
compute can be had without a run from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import front_page

if TYPE_CHECKING:
    from leakmeter.auditors.records.game import RecordAudit as RecordAudit
    from leakmeter.auditors.records.game import RecordBudget as RecordBudget
    from leakmeter.auditors.records.game import RecordCase as RecordCase
    from leakmeter.auditors.records.game import audit_records as audit_records
    from leakmeter.auditors.records.membership import Shadows as Shadows
    from leakmeter.auditors.records.membership import logit_confidences as logit_confidences
    from leakmeter.auditors.records.membership import membership_bound as membership_bound
    from leakmeter.auditors.records.membership import separation as separation
    from leakmeter.auditors.records.pair import GradientRows as GradientRows
    from leakmeter.auditors.records.pair import Spectrum as Spectrum
else:
    __all__, __getattr__ = front_page(__spec__)
