"""Numbers in words are never stronger than they are, and alike wherever they are printed."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.auditors import ThreatModel
from leakmeter.auditors.finding import RunWarning, WarningKind
from leakmeter.auditors.wording import (
    attacker,
    claim,
    number,
    observed_number,
    size,
    sureness,
)
from tests.helpers.findings import finding


@given(st.floats(1e-9, 9e5), st.integers(2, 4))
def test_rounding_never_makes_a_bound_stronger(exact: float, digits: int) -> None:
    low, high = (
        float(number(exact, digits, kind).replace(",", "")) for kind in ("lower_bound", "guarantee")
    )
    assert low <= exact <= high
    assert (low, high) == pytest.approx((exact, exact), rel=10 ** (1 - digits))


BOUND: dict[str, Any] = {"kind": "lower_bound", "confidence": 0.95}
CLAIMED: list[tuple[dict[str, Any], str]] = [
    ({**BOUND, "value": 0.6259}, "ε ≥ 0.625"),
    ({"kind": "guarantee", "value": 12.31}, "ε ≤ 12.4"),
    ({"kind": "estimate", "value": 12.349}, "ε ≈ 12.3"),
    ({"value": 20.0}, "ε ≈ 20"),  # not yet practically certain
    ({**BOUND, "value": 586.0}, "ε ≥ 580 (practically certain)"),
    ({"kind": "guarantee", "value": 344.5}, "ε ≤ 350 (promises practically nothing)"),
    ({"value": 7713.6}, "ε ≈ 7,700 (practically certain if right)"),
    ({**BOUND, "assumptions": ("a holds", "b holds.")}, "if its assumptions hold: ε ≥ 1"),
    ({**BOUND, "assumptions": ("a holds.",)}, "if a holds: ε ≥ 1"),
    ({**BOUND, "assumptions": ("a",), "sees": None}, "if its assumptions hold: ε ≥ 1"),
    (
        {"quantity": "mutual information", "value": 0.5217},
        "mutual information ≈ 0.522 bits (log₂)",
    ),
    (
        {"quantity": "clients", "kind": "guarantee", "value": 12345.0},
        "clients: 12,345, guaranteed",
    ),
    ({"kind": "guarantee", "value": math.inf}, "no finite ε is guaranteed"),
]


@pytest.mark.parametrize(("changed", "words"), CLAIMED)
def test_a_claim_is_as_strong_as_its_kind(changed: dict[str, Any], words: str) -> None:
    assert claim(finding(**changed)).replace("\N{NO-BREAK SPACE}", " ") == words


@given(st.floats(1e-6, 20.0))
def test_how_sure_an_attacker_gets_is_rounded_down(epsilon: float) -> None:
    said = float(sureness(epsilon).removesuffix(" %"))
    assert 50 <= said <= 100 / (1 + math.exp(-epsilon)) < 100
    assert said == pytest.approx(100 / (1 + math.exp(-epsilon)), abs=0.1)


def test_an_attacker_is_one_sentence_with_or_without_the_numbers_of_a_run() -> None:
    model = ThreatModel(observer="server", sees="round sum", participations=3, colluders=2)
    assert attacker(model) == (
        "Server that sees the sum of every round and colludes with 2 clients, without knowing who "
        "takes part. The client takes part in at most 3 rounds."
    )
    assert attacker(model, is_sized=False) == (
        "Server that sees the sum of every round, without knowing who takes part."
    )
    bound = finding(threat_model=model)
    assert size(bound) == "3 rounds per client, 2 colluding clients"
    assert size(finding(threat_model=model, kind="guarantee")) == (
        "at most 3 rounds per client, at most 2 colluding clients"
    )


def test_a_warning_is_right_in_projects_without_our_command_line() -> None:
    few = RunWarning.of("few-canaries", 3, 3).text  # all that were planned
    assert few.startswith("Canaries that took part: 3 (3 planned). Results from so few vary widely")
    assert few.endswith(
        "seats (OneShotCanaries(seats=…)), or more rounds (num_rounds) if each plays once."
    )
    for kind in ("non-finite-updates", "clipped-coordinates", "clipped-updates"):
        assert "the clients' learning rate" in RunWarning.of(kind, 1, 2).text
    assert RunWarning.of("abandoned-rounds", 1, 2).text.endswith("The log has the reason.")


@pytest.mark.parametrize("kind", get_args(WarningKind))
def test_a_warning_names_options_only_to_those_who_have_them(kind: WarningKind) -> None:
    by_flags, by_flower = (
        RunWarning.of(kind, 1, 2).spelled(s).text for s in ("flags", "run-config")
    )
    assert "--" not in RunWarning.of(kind, 1, 2).text + by_flower
    assert by_flags.replace("(--", "(") == by_flower
    assert "{" not in by_flags


def test_a_diagnostic_shows_its_number_and_its_band_or_its_rule() -> None:
    shown = finding(kind="diagnostic", quantity="share outside the span", null_band=(0.1, 0.9))
    assert observed_number(shown) == (
        "share outside the span: 1, observed (without a leak, 90 % of audits say 0.1 to 0.9)"
    )
    other = finding(kind="diagnostic", quantity="interference", rule="too many canaries")
    assert observed_number(other) == "interference: too many canaries"
