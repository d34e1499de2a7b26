"""What DP-SGD inside clients guarantees to a record, over all rounds, from what it really did.

A client that trains with Opacus states an ε, often that of one round only, and for what it was told
to do. This accountant composes the steps that `canary_mod` has watched, of all rounds of each
client, and names what makes the stated ε wrong. It takes clients at their word.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

from leakmeter.auditors.auditor import Auditor, RoundView
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.finding import Adjacency, Bound, Finding, ThreatModel
from leakmeter.auditors.hook.guest_noise import Engine, Steps
from leakmeter.auditors.values import within
from leakmeter.auditors.verdict.claim import Claim
from leakmeter.auditors.wording import Assumption, counted, number
from leakmeter.strategies.accounting.accountant import Release, amplified, unamplified

Mistake = Literal["unnoised", "batch norm", "not poisson", "more rounds", "little noise"]
_SOURCE: Final = "Opacus"
_MIN_NOISE: Final = 0.01  # ε is in the thousands below, and takes long to compute
_MAX_STEPS: Final = 200_000  # of a client that are priced, in seconds
_MAX_KINDS: Final = 50  # of steps, over all rounds of a client
_TOLERANCE: Final = 1.02  # accountants differ by this in ε
_WORDS: Final[Mapping[Mistake, str]] = {
    "unnoised": "{count} steps of the optimiser had no noise, so nothing is guaranteed",
    "batch norm": (
        "a batch normalisation mixes the records of a batch before gradients are clipped, so "
        "nothing is guaranteed: replace it (opacus.validators.ModuleValidator.fix)"
    ),
    "not poisson": (
        "batches are no Poisson samples, which the stated ε supposes: use poisson_sampling=True, "
        "and the loader that make_private returns. Without them, a record is protected by the "
        "noise of its own batches alone"
    ),
    "more rounds": (
        "the client states the ε of its last training alone, and took part in {count} rounds: keep "
        "the accountant's state between rounds"
    ),
    "little noise": "the noise is smaller than the clip and the stated ε need",
}


@dataclass(frozen=True)
class _Client:
    """What one client has done so far; `last` is its last training alone."""

    rounds: int
    engine: Engine
    last: Engine
    passes: int  # over its data; one that was begun counts

    def priced(self, delta: float, adjacency: Adjacency) -> Bound:
        """Return what all its rounds guarantee to a record; ∞ if nothing."""
        return _priced(self.engine, self.passes, delta, adjacency)


class DpSgdAccountant(Auditor):
    """Composes what clients that train with Opacus guarantee to each of their records.

    It needs `canary_mod` at the clients, in replies without masks. If one client of a round says
    nothing of DP-SGD, nothing is guaranteed.

    Args:
        delta: The delta of the guarantee.
    """

    name = "dp-sgd"
    reads = frozenset({"replies", "answers"})
    wants_mean = False
    wants_answers = True
    _clients: Kept[dict[int, _Client]]
    _silent: Kept[set[int]]
    _is_replayed: Kept[bool]  # whether another auditor has made clients train beside the run

    def __init__(self, *, delta: float = 1e-5) -> None:
        within("delta", delta, above=0.0, below=1.0)
        self.delta = delta
        self._others: Sequence[Auditor] = ()
        self._clients, self._silent, self._is_replayed = {}, set(), False

    def join(self, others: Sequence[Auditor]) -> None:
        """Know who else makes clients train."""
        self._others = others

    def begin(self, dim: int, num_rounds: int) -> None:
        """Forget an earlier run."""
        self._clients, self._silent, self._is_replayed = {}, set(), False

    def observe(self, view: RoundView) -> Sequence[Finding]:
        """Add what the clients of a round say they did."""
        self._is_replayed |= any(other.replays(view.server_round) for other in self._others)
        # A reply that the strategy leaves out has reached the server all the same.
        for client in {*view.replies, *view.answers}:
            answer = view.answers.get(client)
            engine = None if answer is None else answer.engine
            if engine is None:
                self._silent.add(client)
                continue
            before = self._clients.get(client)
            whole = engine if before is None else _together(before.engine, engine)
            rounds, passes = (0, 0) if before is None else (before.rounds, before.passes)
            self._clients[client] = _Client(rounds + 1, whole, engine, passes + _passes(engine))
        return ()

    def report(self) -> Sequence[Finding]:
        """Return the guarantee for a record of the client with the least."""
        if not self._clients or self._silent or self._is_replayed:
            return ()
        rounds = max(one.rounds for one in self._clients.values())
        # With Poisson samples an empty place is a record that was removed, at the same price.
        is_poisson = all(one.engine.is_poisson for one in self._clients.values())
        worlds: tuple[Adjacency, ...] = ("add-remove" if is_poisson else "zero-out", "replace")
        found = [self._worst(adjacency) for adjacency in worlds]
        return [
            Finding.of(
                bound,
                auditor="accountant",
                quantity="epsilon",
                threat_model=ThreatModel(
                    observer="server", sees="updates", knows_cohort=True, participations=rounds
                ),
                adjacency=adjacency,
                unit="record",
                facts={"clients": len(self._clients)},
            )
            for adjacency, bound in found
            if math.isfinite(bound.value)
        ]

    @property
    def claimed(self) -> Sequence[Claim]:
        """What all clients state together: the largest ε and δ, with what the worst delivers.

        Audits of records do not tell clients apart: none is refuted by another one's records.
        """
        stated = [one.engine.stated for one in self._clients.values()]
        if not stated or self._silent or self._is_replayed or None in stated:
            return ()
        epsilon, delta = (max(pair[i] for pair in stated if pair is not None) for i in (0, 1))
        clients = self._clients.values()
        worst = max(clients, key=lambda one: one.priced(delta, "add-remove").value)
        bound = worst.priced(delta, "add-remove")
        said = "; ".join(_said(worst)) or bound.rule
        return [
            Claim(
                epsilon,
                delta,
                against="server",
                unit="record",
                adjacency="add-remove",
                source=_SOURCE,
                delivered=bound.value if math.isfinite(bound.value) else None,
                rule=said,
            )
        ]

    @property
    def noticed(self) -> Sequence[str]:
        """What makes stated guarantees wrong, each once, and who says nothing."""
        found = [words for one in self._clients.values() for words in _said(one)]
        if self._clients and self._silent:
            who = counted(len(self._silent), "client")
            found.append(f"{who} said nothing of DP-SGD: no record of the run has a guarantee")
        if self._clients and self._is_replayed:
            found.append(
                "another audit lets clients train again for the server, which is not accounted "
                "for: no record of the run has a guarantee"
            )
        return list(dict.fromkeys(found))

    def _worst(self, adjacency: Adjacency) -> tuple[Adjacency, Bound]:
        alike = {(one.engine, one.passes): one for one in self._clients.values()}
        bounds = [one.priced(self.delta, adjacency) for one in alike.values()]
        return adjacency, max(bounds, key=lambda bound: bound.value)


def _together(one: Engine, two: Engine) -> Engine:
    """Return what two trainings of a client did."""
    counts: dict[tuple[float, float], int] = {}
    for noise, rate, count in (*one.steps, *two.steps):
        counts[noise, rate] = counts.get((noise, rate), 0) + count
    return Engine(
        tuple(Steps(*kind, count) for kind, count in sorted(counts.items())),
        one.unnoised + two.unnoised,
        max(one.per_pass, two.per_pass),
        one.is_poisson and two.is_poisson,
        one.has_batch_norm or two.has_batch_norm,
        two.stated,
    )


def _passes(engine: Engine) -> int:
    """Return in how many batches of one training a record may be: one of each begun pass."""
    return sum(math.ceil(kind.times * kind.rate - 1e-9) for kind in engine.steps)


@lru_cache(maxsize=1000)
def _priced(engine: Engine, passes: int, delta: float, adjacency: Adjacency) -> Bound:
    """Return what steps guarantee to a record; ∞ if nothing.

    Args:
        engine: The steps.
        passes: Over the data, each begun one counted.
        delta: Of the guarantee.
        adjacency: How the two worlds differ.
    """
    nothing = Bound(math.inf, "guarantee", "nothing is guaranteed", delta)
    is_noised = all(kind.noise >= _MIN_NOISE for kind in engine.steps)
    total = sum(kind.times for kind in engine.steps)
    is_priced = is_noised and 0 < total <= _MAX_STEPS and len(engine.steps) <= _MAX_KINDS
    if engine.unnoised or engine.has_batch_norm or not is_priced:
        return nothing
    assumed = (Assumption.CLIENTS_SAY,)
    if engine.is_poisson:
        releases = {Release(s.noise, 1.0, "poisson", s.rate): s.times for s in engine.steps}
        bound = amplified(releases, delta, adjacency=adjacency)
        least = number(min(kind.noise for kind in engine.steps))
        most = number(max(kind.rate for kind in engine.steps))
        rule = f"DP-SGD, {counted(total, 'step')}, noise {least}, Poisson samples at rate {most}"
        return replace(bound, rule=rule, assumptions=assumed)
    if adjacency == "add-remove":  # one record more moves all records to other batches
        return nothing
    weakest = min(kind.noise for kind in engine.steps)
    # Equal Gaussian mechanisms compose to one whose noise is √passes times smaller.
    together = Release(weakest / math.sqrt(passes), 1.0)
    bound = unamplified([together], delta, participations=1, adjacency=adjacency)
    rule = f"DP-SGD, {passes} passes over the data, noise {number(weakest)}, a batch each"
    return replace(bound, rule=rule, assumptions=(*assumed, Assumption.ONE_BATCH_A_PASS))


def _mistakes(one: _Client) -> Iterator[tuple[Mistake, int]]:
    """Yield what makes the ε that a client states wrong."""
    engine = one.engine
    unnoised = engine.unnoised + sum(kind.times for kind in engine.steps if kind.noise == 0)
    if unnoised:
        yield "unnoised", unnoised
    if engine.has_batch_norm:
        yield "batch norm", 0
    if not engine.is_poisson:
        yield "not poisson", 0
    if engine.stated is None or unnoised or engine.has_batch_norm or not engine.is_poisson:
        return
    epsilon, delta = engine.stated
    if _priced(one.last, 1, delta, "add-remove").value > epsilon * _TOLERANCE:
        yield "little noise", 0
    elif one.priced(delta, "add-remove").value > epsilon * _TOLERANCE:
        yield "more rounds", one.rounds


def _said(one: _Client) -> list[str]:
    return [_WORDS[mistake].format(count=count) for mistake, count in _mistakes(one)]
