"""What to do next about a run, for any project: in words and lines of Python."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from leakmeter.auditors.bounds.gaussian import brent_root, epsilon_gaussian
from leakmeter.auditors.finding import Finding, RunWarning, WarningKind
from leakmeter.auditors.verdict.claim import USER, ClaimResult
from leakmeter.auditors.verdict.labels import delivered, upper
from leakmeter.auditors.verdict.verdict import Row, Severity, Verdict
from leakmeter.auditors.wording import CERTAIN, Spelling, aside, counted, number

LEAKS: tuple[Severity, ...] = ("refuted", "rebuilt", "certain", "shown", "suspected")
MAX_STEPS = 3
TARGET = 8.0  # a guarantee that is often asked for
_CLEARLY = 0.5  # a difference of two ε that is worth an advice
_MANY_CANARIES = 20  # planned; with fair coins half of them take part, and ten give a steady result
_SEEN = ("rounds", "canaries", "trials")
# Warnings that a smaller step of the clients cures.
STEPPED: frozenset[WarningKind] = frozenset(
    {"clipped-coordinates", "non-finite-updates", "blank-updates"}
)
SLOWER = "Lower the clients' learning rate"
_FAILED: Mapping[WarningKind, str] = {
    "rejected-sums": "Find the client that lies: the log says why each secure sum was rejected.",
    "abandoned-rounds": "Find out why rounds were abandoned: the log has the reason of each.",
    "dropouts": "Find the clients that did not answer: the log has their errors.",
    "blank-updates": "Find the clients whose training failed: their own logs say why.",
}


@dataclass(frozen=True)
class Step:
    """One thing to do.

    Attributes:
        text: What, in one line.
        command: What to copy, into a terminal or a script; empty where there is none.
        out: Folder of the run that the command makes; empty if it names none.
    """

    text: str
    command: str = ""
    out: str = ""


def steps(
    verdict: Verdict,
    cohorts: Sequence[int] = (),
    spelling: Spelling = "python",
    *,
    parameters: int | None = None,
) -> list[Step]:
    """Return at most three steps, the most useful first.

    Args:
        verdict: On the run.
        cohorts: How many clients answered in each round, if that is known.
        spelling: How the reader sets something.
        parameters: Of the model, if that is known.
    """
    found = _steps(verdict, cohorts, spelling, parameters)
    return list(dict.fromkeys(found))[:MAX_STEPS]


def _steps(
    verdict: Verdict, cohorts: Sequence[int], spelling: Spelling, parameters: int | None
) -> Iterator[Step]:
    kinds = {warning.kind: warning for warning in verdict.warnings}
    yield from failed_clients(kinds)
    if kinds.keys() & STEPPED:
        yield Step(f"{SLOWER}.")
    if verdict.is_distorted:
        return  # what else it shows is not that of a sound run
    yield from map(corrected, verdict.false_claims[:1])
    few = kinds.get("few-canaries")
    if few is not None:
        yield _more_canaries(few, cohorts, spelling)
    leaks = [row for row in verdict.rows if row.severity in LEAKS]
    for row in leaks:
        yield _against(row, _price(row, verdict.delta, cohorts, parameters))
    yield from fewer_releases(verdict.rows)
    if not leaks and few is None:
        ways = ("rounds", "canary-seats", "lrt-trials")
        more = [f"{what}{aside(name, spelling)}" for what, name in zip(_SEEN, ways, strict=True)]
        yield Step(f"Give the audit more to see: more {more[0]}, {more[1]} or {more[2]}.")
    if all(math.isinf(row.high) for row in verdict.rows):
        yield Step("Bound every such attacker: add noise and account for it (Noised).")


def corrected(result: ClaimResult) -> Step:
    """Return what to do about a claim that is refuted."""
    claim = result.claim
    limit = f"{upper(claim.epsilon)} per {claim.per}"
    if claim.source == USER:
        return Step(f"Find why {limit} does not hold: check clip, noise, weights and accounting.")
    if claim.delivered is None or claim.delivered <= claim.epsilon:
        return Step(f"Do not state {limit} for {claim.source}: it does not hold in this app.")
    return Step(f"Give {claim.source} more noise: it delivers {delivered(claim)}, not {limit}.")


def failed_clients(kinds: Collection[WarningKind]) -> Iterator[Step]:
    """Yield what to do where clients failed: nothing else is worth a run before that."""
    yield from (Step(text) for kind, text in _FAILED.items() if kind in kinds)


def _more_canaries(few: RunWarning, cohorts: Sequence[int], spelling: Spelling) -> Step:
    """Return the advice with what to write, if the number of seats can be told."""
    if not cohorts:
        return Step("Play more canaries, in more seats or rounds.")
    now = math.ceil(few.total / len(cohorts))
    most = max((max(cohorts) - 1) // 2, now)  # the majority stays honest
    seats = min(now * max(2, math.ceil(_MANY_CANARIES / few.total)), most)
    rounds = math.ceil(_MANY_CANARIES / seats)
    longer = f" over num_rounds={rounds}" if rounds > len(cohorts) else ""
    if spelling == "audit":
        return Step(f"Play more canaries{longer}; add to the command:", f"--seats {seats}")
    return Step(f"Play more canaries{longer}:", f"OneShotCanaries(seats={seats})")


def _against(row: Row, price: str) -> Step:
    """Return what helps against one attacker, with what it costs."""
    if row.attacker.sees == "updates":
        return Step("Hide single updates from the server: wrap the strategy in Masked.")
    if row.attacker.observer == "outsider":
        return Step(f"Clip updates and add noise before a model is released (Noised){price}.")
    return Step(f"Let clients clip and add noise before the sum (noise_mod and Noised){price}.")


def _price(row: Row, delta: float | None, cohorts: Sequence[int], parameters: int | None) -> str:
    """Return how large noise for a usual target would be in this run; empty if that is open."""
    played = [clients for clients in cohorts if clients]
    if not (delta and played and parameters):
        return ""
    clients, rounds = sorted(played)[len(played) // 2], len(played)
    is_replaced = row.question.adjacency == "replace"
    ratio = noise_ratio(
        (2 if is_replaced else 1) * math.sqrt(rounds), delta, clients=clients, parameters=parameters
    )
    return (
        f": for ε ≤ {TARGET:g} the noise is at least {number(ratio, 2)} times the mean update of "
        f"{counted(clients, 'client')} ({counted(rounds, 'round')}, {parameters:,} parameters)"
    )


def noise_ratio(sensitivity: float, delta: float, *, clients: int, parameters: int) -> float:
    """Return how many times the mean update its noise is at least, at ε ≤ 8.

    The mean is at most as long as the clip norm. Gaussian noise of z clip norms on the sum has the
    norm z·√d / n of them on the mean, and z is the sensitivity over the separation that ε allows.

    Args:
        sensitivity: Of all rounds together, in clip norms: √T if an update is left out of T rounds,
            twice as much if it is replaced.
        delta: Of the target.
        clients: In a round.
        parameters: Of the model.
    """
    separation = brent_root(lambda mu: epsilon_gaussian(delta, mu) - TARGET, 1e-6, 1e3, 2e-12)
    return sensitivity / separation * math.sqrt(parameters) / clients


def fewer_releases(rows: Sequence[Row]) -> Iterator[Step]:
    """Yield the advice to release the final model alone, if this audit shows clearly less in it."""
    for every in (row for row in rows if row.attacker.sees == "all models"):
        for final in (row for row in rows if row.attacker.sees == "final model"):
            is_same = every.question == final.question and every.shown is not None
            # Beyond certainty a smaller number means nothing; close ones may differ by chance.
            is_less = final.low <= CERTAIN and every.low - final.low > _CLEARLY
            if is_same and is_less and _is_busy(final.shown):
                yield Step("Release only the final model; less is shown in it (no proof of less).")


def _is_busy(bound: Finding | None) -> bool:
    """Whether canaries took part as often as clients do: otherwise the final model has more."""
    rounds = None if bound is None else bound.facts.get("client_rounds")
    if bound is None or not isinstance(rounds, int):
        return False
    return (bound.threat_model.participations or 1) >= rounds
