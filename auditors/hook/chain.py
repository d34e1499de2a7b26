"""Strategies that hold strategies: walk them, put other methods in their place, look them over."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from flwr.app import Message
from flwr.serverapp.strategy import Strategy

from leakmeter.auditors.auditor import Project
from leakmeter.auditors.hook import wire

# Flower's own wrappers all have this in their names; their noise is drawn inside them.
_FLOWERS_NOISE = "DifferentialPrivacy"
# The base of Flower's FedAdam, FedYogi and FedAdagrad.
_ADAPTIVE = "FedOpt"


@contextmanager
def replaced(strategy: Strategy, **methods: Callable[..., Any]) -> Iterator[None]:
    """Give this one instance other methods for a while."""
    before = {name: vars(strategy)[name] for name in methods if name in vars(strategy)}
    vars(strategy).update(methods)
    try:
        yield
    finally:
        for name in methods:
            del vars(strategy)[name]
        vars(strategy).update(before)


def chain(strategy: Strategy) -> Iterator[Strategy]:
    """Yield the strategy, the one it holds, and so on inwards."""
    current: object = strategy
    while isinstance(current, Strategy):
        yield current
        current = getattr(current, "strategy", None)


def understood(strategy: Strategy, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a `start` without usual ones that nobody has asked for.

    A strategy with a loop of its own may have left out what it does not use. A wrapper whose
    `start` takes anything hands it on to the strategy that it holds.
    """
    usual = inspect.signature(Strategy.start).parameters
    for held in chain(strategy):
        taken = inspect.signature(held.start).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
            return {k: v for k, v in arguments.items() if k in taken or v != usual[k].default}
    return dict(arguments)


def weight_key(strategy: Strategy) -> str:
    """Return the metric by which the chain weights its clients."""
    for held in chain(strategy):
        if isinstance(key := getattr(held, "weighted_by_key", None), str):
            return key
    return wire.WEIGHT


def survey(strategy: Strategy, dim: int, num_rounds: int) -> Project:
    """Return what the chain of strategies shows before anybody is chosen."""
    held = list(chain(strategy))
    return Project(
        dim=dim,
        num_rounds=num_rounds,
        is_masked=any(getattr(one, "hides_updates", False) for one in held),
        noised_by=tuple(n for one in held if _FLOWERS_NOISE in (n := type(one).__name__)),
        bent_by=tuple(
            type(one).__name__
            for one in held
            if any(base.__name__ == _ADAPTIVE for base in type(one).__mro__)
        ),
    )


def with_round(project: Project, messages: Sequence[Message], seats: int) -> Project:
    """Return the project with what the messages of its first round show."""
    masked = any(wire.MASK in m.content for m in messages)
    return replace(
        project,
        clients=len(messages),
        seats=seats,
        is_masked=project.is_masked or masked,
        has_client_noise=any(wire.share_std(m.content) > 0 for m in messages),
    )
