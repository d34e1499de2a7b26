"""What to do next about a run, for any project: in words, without a command line of ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from leakmeter.auditors.judge import terse
from leakmeter.auditors.judge.standing import Severity, Standing
from leakmeter.auditors.wording import is_certain, is_nothing

LEAKS: tuple[Severity, ...] = ("certain", "severe", "clear", "slight", "suspected", "unbounded")
MOST_STEPS = 3
_CLEARLY = 0.5  # a difference of two ε that is worth an advice


@dataclass(frozen=True)
class Step:
    """One thing to do.

    Attributes:
        text: What, in one line.
        command: What to copy into a terminal; empty where there is none.
    """

    text: str
    command: str = ""


def steps(lines: Sequence[Standing]) -> list[Step]:
    """Return at most three steps, the most useful first."""
    return list(dict.fromkeys(_steps(lines)))[:MOST_STEPS]


def _steps(lines: Sequence[Standing]) -> Iterator[Step]:
    leaks = [one for one in lines if one.severity in LEAKS]
    for one in leaks:
        yield _against(one)
    yield from fewer_releases(lines)
    if not leaks:
        yield Step("Give the audit more to see: more rounds, canary seats or trials.")
    if all(one.upper is None for one in lines):
        yield Step("Bound every such attacker: add noise and account for it (Noised).")


def _against(one: Standing) -> Step:
    """Return what helps against one attacker."""
    if one.lead.threat_model.sees == "updates":
        return Step("Hide single updates from the server: wrap the strategy in Masked.")
    if one.lead.observer == "outsider":
        return Step("Clip updates and add noise before a model is released (Noised).")
    return Step("Let clients clip and add noise before the sum (noise_mod and Noised).")


def fewer_releases(lines: Sequence[Standing]) -> Iterator[Step]:
    """Yield the advice to release the final model alone, if this audit shows clearly less in it."""
    for every in (one for one in lines if one.lead.threat_model.sees == "all models"):
        for final in (one for one in lines if one.lead.threat_model.sees == "final model"):
            a, b = every.lead, final.lead
            same = all(
                getattr(a, name) == getattr(b, name)
                for name in ("adjacency", "unit", "kind", "quantity", "delta", "is_conditional")
            )
            # Beyond certainty a smaller number means nothing; close ones may differ by chance.
            if same and not is_certain(b) and a.value - b.value > _CLEARLY:
                shown = "nothing" if is_nothing(b) else terse.amount(b)
                yield Step(
                    f"Release only the final model ({shown} shown in it, {terse.amount(a)} in all)."
                )
