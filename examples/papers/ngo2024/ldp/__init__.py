"""Local privacy of one client under a secure sum of independent updates; needs scipy only."""

from __future__ import annotations

from leakmeter.auditors.ldp.curve import LdpCurve, ldp_curve

__all__ = ["LdpCurve", "ldp_curve"]
