"""Makes findings of which a test states only what it is about."""

from __future__ import annotations

from typing import Any

from leakmeter.auditors import Finding

# Who has found what, and about whom.
CONTEXT: dict[str, Any] = {
    "auditor": "mine",
    "quantity": "epsilon",
    "threat_model": "outsider with the final model",
    "observer": "outsider",
}


def finding(**stated: Any) -> Finding:
    """Return an estimate of epsilon by an auditor named mine, with these fields."""
    plain = {"value": 1.0, "kind": "estimate", "rule": "a rule", **CONTEXT}
    return Finding(**(plain | stated))
