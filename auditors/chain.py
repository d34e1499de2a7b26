"""Strategies that hold strategies: walk them, and put other methods in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
