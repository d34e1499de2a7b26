"""Strategies that hold strategies: walk them, and put other methods in their place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flwr.serverapp.strategy import Strategy


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
