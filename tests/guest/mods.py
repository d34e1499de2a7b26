"""Mods of foreign apps: Flower's, and some that projects write themselves."""

from __future__ import annotations

from typing import Any

from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod

from leakmeter.auditors import canary_mod


def clipping_mods(strategy: str) -> tuple[Any, ...]:
    """Return the mods that an app needs for a strategy of Flower's, and ours behind them."""
    if "ClientSideFixed" in strategy:
        return (fixedclipping_mod, canary_mod)
    if "ClientSideAdaptive" in strategy:
        return (adaptiveclipping_mod, canary_mod)
    return (canary_mod,)


def local_dp(epsilon: float = 100.0) -> LocalDpMod:
    """Return Flower's local noise."""
    return LocalDpMod(clipping_norm=3.0, sensitivity=3.0, epsilon=epsilon, delta=1e-5)
