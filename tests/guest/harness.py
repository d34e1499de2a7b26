"""Runs a foreign project with and without the audit, and says what the audit has changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from leakmeter.auditors import Audited, Auditor, OneShotCanaries, canary_mod
from tests.guest.clients import Clients, Seen
from tests.guest.frozen import Frozen, frozen_arrays, is_ours
from tests.guest.watch import AUDIT, CANARY, Trace, WatchedGrid, digest_of_draws, watch, watch_seats

NODES = 6
ROUNDS = 3


@dataclass(frozen=True, repr=False)
class Cell:
    """A foreign project.

    Attributes:
        strategy: Makes its strategy.
        clients: Makes its clients.
        mods: The mods of its app, the wire first.
        train_mods: The mods of its train function, inside of the others.
        rounds: How many.
        nodes: How many.
        lost: Rounds and nodes whose replies never come.
        shadow: Whether clients can be compared with what they do by themselves.
    """

    strategy: Callable[[], Strategy]
    clients: Callable[[], Clients] = Clients
    mods: tuple[Any, ...] = (canary_mod,)
    train_mods: tuple[Any, ...] = ()
    rounds: int = ROUNDS
    nodes: int = NODES
    lost: frozenset[tuple[int, int]] = frozenset()
    shadow: bool = True


@dataclass(repr=False)
class Run:
    """A run and all that was seen of it."""

    grid: WatchedGrid
    strategy: Strategy
    result: Result = field(default_factory=Result)
    error: str | None = None
    drawn: str = ""

    @property
    def trace(self) -> Trace:
        """What strategy and clients sent each other."""
        return self.grid.trace

    @property
    def outcome(self) -> dict[str, Any]:
        """What the user has of a run."""
        found: dict[str, Any] = {"arrays": frozen_arrays(self.result.arrays)}
        for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
            found[name] = _metrics(getattr(self.result, name))
        found["evaluate_metrics_serverapp"] = _metrics(self.result.evaluate_metrics_serverapp)
        return found


def _metrics(by_round: dict[int, MetricRecord]) -> dict[int, dict[str, str]]:
    return {r: {k: repr(v) for k, v in record.items()} for r, record in by_round.items()}


def cells(names: Iterable[str], *, fast: Collection[str]) -> list[Any]:
    """Return all cells of a row for `parametrize`; those that are not fast only with -m slow."""
    listed = list(names)
    assert set(fast) <= set(listed)
    return [n if n in fast else pytest.param(n, marks=pytest.mark.slow) for n in listed]


def canaries(**options: Any) -> OneShotCanaries:
    """Return the audit by canaries in two seats, of which most take part and some do not."""
    return OneShotCanaries(**{"seats": 2, "seed": 14, **options})


class Quiet(Auditor):
    """Looks on and says nothing."""

    name = "quiet"


@lru_cache(maxsize=32)  # several tests compare with the same run
def run_plain(cell: Cell) -> Run:
    """Run the project as it is."""
    return _run(cell, lambda strategy, _: strategy, shadow=False)


def run_audited(
    cell: Cell, auditors: Sequence[Auditor] | None = None, **options: Any
) -> tuple[Run, Audited]:
    """Run the project with auditors, by canaries if none are given."""
    panel = [canaries()] if auditors is None else auditors
    made: list[Audited] = []

    def around(strategy: Strategy, trace: Trace) -> Strategy:
        for auditor in panel:
            watch_seats(auditor, trace)
        made.append(Audited(strategy, panel, **options))
        return made[0]

    # A run that must equal the plain one in everything needs no shadows.
    plays = any(not isinstance(one, Quiet) for one in panel)
    run = _run(cell, around, shadow=cell.shadow and plays)
    return run, made[0]


def _run(cell: Cell, around: Callable[[Strategy, Trace], Strategy], *, shadow: bool) -> Run:
    """Start a project; Flower draws nodes and noise from the global generators."""
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    strategy, clients, trace = cell.strategy(), cell.clients(), Trace()
    watch(strategy, trace)
    started = around(strategy, trace)

    def app(left_out: Collection[Any], seen: Seen | None) -> ClientApp:
        outer, inner = (
            [mod for mod in mods if mod not in left_out] for mods in (cell.mods, cell.train_mods)
        )
        return clients.app(outer, inner, seen)

    grid = WatchedGrid(app, cell.nodes, trace, lost=cell.lost, shadow=shadow)
    run = Run(grid, strategy)
    try:
        run.result = started.start(
            grid,
            clients.arrays(),
            num_rounds=cell.rounds,
            train_config=ConfigRecord({"lr": 0.5}),
            evaluate_fn=_evaluate,
        )
    except Exception as error:
        run.error = f"{type(error).__name__}: {error}"
    run.drawn = digest_of_draws()
    return run


def _evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"bytes": sum(len(a.data) for a in arrays.values()), "at": server_round})


def assert_same(cell: Cell, audited: Run) -> None:
    """Fail where a run differs in anything from one without the audit."""
    plain = run_plain(cell)
    pairs: dict[str, tuple[Any, Any]] = {
        "the exception": (plain.error, audited.error),
        "rounds with a model": (plain.trace.released, audited.trace.released),
        "names in the states of clients": (_names(plain), _names(audited)),
        "the result": (plain.outcome, audited.outcome),
        "draws from the global generators": (plain.drawn, audited.drawn),
    }
    if cell.shadow:  # nothing secret is drawn
        pairs |= {
            "messages of the strategy": (plain.trace.configured, audited.trace.configured),
            "messages as delivered": (plain.trace.sent, _theirs(audited.trace.sent)),
            "what the train function got": (
                plain.grid.seen.received,
                _theirs(audited.grid.seen.received),
            ),
            "replies as the strategy gets them": (plain.trace.aggregated, audited.trace.aggregated),
            "states of the clients": (plain.grid.states, audited.grid.states),
        }
    _fail(_unequal(pairs) + audited.trace.harm)


def _theirs(messages: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return messages without the numbers by which an audit asks who can play canaries."""
    return [
        (*about, tuple(r for r in content if r[:2] != (CANARY, "MetricRecord")))
        for *about, content in messages
    ]


def assert_unharmed(cell: Cell, audited: Run, *, draws: bool = True) -> None:
    """Fail where canaries have changed a run beyond the updates of their seats.

    Args:
        cell: The project.
        audited: Its run with canaries in it.
        draws: Whether it must draw as often from the global generators as without the audit.
    """
    plain = run_plain(cell)
    mine, theirs = audited.trace, plain.trace
    pairs: dict[str, tuple[Any, Any]] = {
        "the exception": (_kind_of_error(plain), _kind_of_error(audited)),
        "rounds with a model": (theirs.released, mine.released),
        "rounds that were aggregated": (sorted(theirs.aggregated), sorted(mine.aggregated)),
        "who was asked": (_asked(theirs), _asked(mine)),
        "who replied, and with which records": (_answers(theirs), _answers(mine)),
        "names in the states of clients": (_names(plain), _names(audited)),
        "names, types and shapes of the result": (_shapes(plain), _shapes(audited)),
        "names of metrics": (_metric_names(plain), _metric_names(audited)),
    }
    if draws:
        pairs["draws from the global generators"] = (plain.drawn, audited.drawn)
    found = _unequal(pairs)
    if _is_finite(plain) and not _is_finite(audited):
        found.append("the model is no longer finite")
    _fail(found + _bent_messages(audited) + _bent_replies(audited) + mine.harm)


def _unequal(pairs: dict[str, tuple[Any, Any]]) -> list[str]:
    """Return which pairs differ, and where first."""
    return [f"{name}: {_first(*pair)}" for name, pair in pairs.items() if pair[0] != pair[1]]


def _first(before: Any, after: Any) -> str:
    """Return the first difference between two values, in words."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            if key not in before or key not in after:
                return f"{key!r} is {'new' if key in after else 'gone'}"
            if before[key] != after[key]:
                return f"[{key!r}] {_first(before[key], after[key])}"
    if isinstance(before, list | tuple) and isinstance(after, list | tuple):
        for i, (a, b) in enumerate(zip(before, after, strict=False)):
            if a != b:
                return f"[{i}] {_first(a, b)}"
        return f"{len(before)} entries became {len(after)}: {str((*before, *after)[-1])[:80]}"
    if isinstance(before, bytes) and isinstance(after, bytes):
        return "other bytes"
    return f"{str(before)[:160]} became {str(after)[:160]}"


def _fail(problems: list[str]) -> None:
    assert not problems, "\n".join(problems)


def _kind_of_error(run: Run) -> str | None:
    """Return the kind of exception: its text may show numbers."""
    return run.error.split(":")[0] if run.error else None


def _asked(trace: Trace) -> dict[int, list[int]]:
    return {r: sorted(node for node, _ in messages) for r, messages in trace.configured.items()}


def _answers(trace: Trace) -> dict[int, dict[int, Any]]:
    """Return round, node and the names and kinds of the records that the strategy got."""
    return {
        r: {
            node: answer[0] if isinstance(answer[0], int) else [(k, kind) for k, kind, _ in answer]
            for node, answer in replies
        }
        for r, replies in trace.aggregated.items()
    }


def _names(run: Run) -> dict[int, list[str]]:
    return {node: [key for key, *_ in state] for node, state in run.grid.states.items()}


def _shapes(run: Run) -> list[Any]:
    return [(name, a.dtype, tuple(a.shape)) for name, a in run.result.arrays.items()]


def _metric_names(run: Run) -> dict[str, Any]:
    return {
        name: {r: sorted(metrics) for r, metrics in by_round.items()}
        for name, by_round in run.outcome.items()
        if name != "arrays"
    }


def _is_finite(run: Run) -> bool:
    try:
        values = [array.numpy() for array in run.result.arrays.values()]
    except TypeError:  # bytes of the project's own
        return True
    return all(bool(np.isfinite(v).all()) for v in values)


def _bent_messages(run: Run) -> list[str]:
    """Return where messages differ from the strategy's by more than a record of ours."""
    made = [frozen for messages in run.trace.configured.values() for frozen in messages]
    if len(made) != len(run.trace.sent):
        return [f"the strategy made {len(made)} train messages, {len(run.trace.sent)} were sent"]
    bent = []
    for (node, before), (dst, after) in zip(made, run.trace.sent, strict=True):
        known = {key for key, *_ in before}
        added = [record for record in after if record[0] not in known]
        rest: Frozen = tuple(record for record in after if record[0] in known)
        if (node, before) != (dst, rest):
            bent.append(f"the message to node {node} has lost or changed a record")
        bent += [
            f"the message to node {node} has a new {kind} {key!r}"
            for key, kind, _ in added
            if kind == "ConfigRecord" or not is_ours(key)
        ]
    return bent


def _bent_replies(run: Run) -> list[str]:
    """Return where the strategy sees a record of the audit."""
    return [
        f"the strategy gets {key!r} in round {r}"
        for r, replies in run.trace.aggregated.items()
        for _, answer in replies
        if not isinstance(answer[0], int)
        for key, *_ in answer
        if key in AUDIT
    ]


def said(audited: Audited, auditor: str) -> str:
    """Return all that is said of what an auditor cannot do, in one text."""
    limits = [one.text for one in audited.limitations if one.auditor == auditor]
    return "\n".join([*limits, *(one for one in audited.failures if auditor in one)])


@lru_cache
def _routine() -> frozenset[str]:
    """Return what is said of canaries in any small project."""
    strategy = {"min_train_nodes": NODES, "min_available_nodes": NODES}
    _, audited = run_audited(Cell(lambda: FedAvg(**strategy)))  # type: ignore[arg-type]
    return frozenset(said(audited, "one-shot").splitlines())


def explained(audited: Audited, auditor: str = "one-shot") -> str:
    """Return what is said of an auditor beyond what is said of it in any small project."""
    return "\n".join(one for one in said(audited, auditor).splitlines() if one not in _routine())


def has_found(audited: Audited, auditor: str) -> bool:
    """Whether an auditor has measured anything."""
    found = [f for f in audited.findings() if f.auditor == auditor]
    return any(f.kind != "diagnostic" for f in found)


def was_seen(run: Run, audited: Audited, auditor: str = "one-shot") -> bool:
    """Whether canaries took part, were noticed, and led to a number."""
    played = [a.canaries_played for a in audited.auditors if a.name == auditor]
    took_part = any(count is not None and count[0] > 0 for count in played)
    was_sent = bool(run.trace.swapped) or not run.grid.is_shadowed
    return was_sent and took_part and has_found(audited, auditor)
