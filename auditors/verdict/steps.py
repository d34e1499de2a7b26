"""What to do next about a run, for any project: in words, without a command line of ours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from leakmeter.auditors.verdict.verdict import Row, Severity, Verdict
from leakmeter.auditors.wording import CERTAIN

LEAKS: tuple[Severity, ...] = ("refuted", "rebuilt", "certain", "shown", "suspected")
MAX_STEPS = 3
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


def steps(verdict: Verdict) -> list[Step]:
    """Return at most three steps, the most useful first."""
    return list(dict.fromkeys(_steps(verdict.rows)))[:MAX_STEPS]


def _steps(rows: Sequence[Row]) -> Iterator[Step]:
    leaks = [row for row in rows if row.severity in LEAKS]
    for row in leaks:
        yield _against(row)
    yield from fewer_releases(rows)
    if not leaks:
        yield Step("Give the audit more to see: more rounds, canary seats or trials.")
    if all(math.isinf(row.high) for row in rows):
        yield Step("Bound every such attacker: add noise and account for it (Noised).")


def _against(row: Row) -> Step:
    """Return what helps against one attacker."""
    if row.attacker.sees == "updates":
        return Step("Hide single updates from the server: wrap the strategy in Masked.")
    if row.attacker.observer == "outsider":
        return Step("Clip updates and add noise before a model is released (Noised).")
    return Step("Let clients clip and add noise before the sum (noise_mod and Noised).")


def fewer_releases(rows: Sequence[Row]) -> Iterator[Step]:
    """Yield the advice to release the final model alone, if this audit shows clearly less in it."""
    for every in (row for row in rows if row.attacker.sees == "all models"):
        for final in (row for row in rows if row.attacker.sees == "final model"):
            is_same = every.question == final.question and every.shown is not None
            # Beyond certainty a smaller number means nothing; close ones may differ by chance.
            is_less = final.low <= CERTAIN and every.low - final.low > _CLEARLY
            if is_same and is_less and final.shown is not None and every.shown is not None:
                yield Step("Release only the final model; less is shown in it (no proof of less).")
