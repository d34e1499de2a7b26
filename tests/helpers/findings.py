"""Makes findings of which a test states only what it is about."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from leakmeter.auditors import Finding, ThreatModel

# Who has found what, and about whom.
CONTEXT: dict[str, Any] = {
    "auditor": "mine",
    "quantity": "epsilon",
    "threat_model": ThreatModel(observer="outsider", sees="final model"),
}
_ATTACKER = {field.name for field in fields(ThreatModel)}


def finding(**stated: Any) -> Finding:
    """Return an estimate of epsilon by an auditor named mine, with these fields.

    Fields of the threat model, such as `observer` and `sees`, may be stated beside the others.
    """
    plain = {"value": 1.0, "kind": "estimate", "rule": "a rule", **CONTEXT, **stated}
    attacker = {name: plain.pop(name) for name in _ATTACKER & set(plain)}
    if attacker:
        plain["threat_model"] = ThreatModel(**(vars(plain["threat_model"]) | attacker))
    return Finding(**plain)
