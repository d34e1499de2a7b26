"""The fields of a record and what each may hold; a wrong one is a user's mistake, said in a line.

`docs/report.md` describes the same fields in words. Fields that are not known here are left alone:
a later release may write more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields as fields_of
from typing import Any, get_args

from leakmeter.auditors.finding import Adjacency, Finding, Kind, Observer, Unit
from leakmeter.fl_app.config.errors import ConfigError

Check = Callable[[Any], Any]  # returns the value as we use it, or raises ValueError with "allowed"


def number(value: Any) -> float:
    """Return a number; JSON lacks infinities, which are written as strings."""
    if isinstance(value, str) and value in ("inf", "-inf", "nan"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError('a number, or "inf", "-inf", "nan"')
    return float(value)


def whole(lowest: int) -> Check:
    """Return the check of a whole number."""

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            raise ValueError(f"a whole number, at least {lowest}")
        return value

    return check


def text(value: Any) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def flag(value: Any) -> bool:
    """Return a truth value."""
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def one_of(words: Sequence[str]) -> Check:
    """Return the check of a word."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return value

    return check


def maybe(inner: Check) -> Check:
    """Return the check that lets null pass."""

    def check(value: Any) -> Any:
        try:
            return None if value is None else inner(value)
        except ValueError as error:
            raise ValueError(f"{error}, or null") from None

    return check


def mapping(inner: Check | None = None) -> Check:
    """Return the check of an object whose values all pass."""

    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError("an object")
        return {str(k): v if inner is None else inner(v) for k, v in value.items()}

    return check


def several(inner: Check, count: int | None = None) -> Check:
    """Return the check of a list whose items all pass."""

    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or count not in (None, len(value)):
            raise ValueError("a list" + ("" if count is None else f" of {count}"))
        return tuple(inner(item) for item in value)

    return check


def _any(value: Any) -> Any:
    return value


FINDING: dict[str, Check] = {
    "value": number,
    "kind": one_of(get_args(Kind)),
    "rule": text,
    "delta": maybe(number),
    "confidence": maybe(number),
    "sample_sizes": mapping(whole(0)),
    "cap": maybe(number),
    "saturated": flag,
    "assumptions": several(text),
    "auditor": text,
    "quantity": text,
    "threat_model": text,
    "observer": one_of(get_args(Observer)),
    "adjacency": maybe(one_of(get_args(Adjacency))),
    "unit": one_of(get_args(Unit)),
    "server_round": maybe(whole(1)),
    "null_band": maybe(several(number, 2)),
    "seed": maybe(whole(0)),
    "details": mapping(),
}
ROUND: dict[str, Check] = {
    "server_round": whole(1),
    "accuracy": maybe(number),
    "num_clients": whole(0),
    "metrics": mapping(number),
}
REPORT: dict[str, Check] = {
    "config": mapping(),
    "rounds": several(_any),
    "findings": several(_any),
    "failures": several(text),
}

assert set(FINDING) == {spec.name for spec in fields_of(Finding)}


def checked(values: Any, allowed: Mapping[str, Check], where: str) -> dict[str, Any]:
    """Return the known fields of an object; raise with the place of the first that is wrong."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} must be an object, got {_short(values)}")
    found = {}
    for name, check in allowed.items():
        if name not in values:
            raise ConfigError(f"{where} must have a field {name!r}, got {_short(sorted(values))}")
        try:
            found[name] = check(values[name])
        except ValueError as error:
            raise ConfigError(
                f"{where}.{name} must be {error}, got {_short(values[name])}"
            ) from None
    return found


def finding(values: Any, where: str) -> Finding:
    """Return one finding."""
    found = checked(values, FINDING, where)
    if math.isnan(found["value"]):
        raise ConfigError(f"{where}.value must be a number, got nan")
    try:
        return Finding(**found)
    except ValueError as error:  # what no field shows by itself
        raise ConfigError(f"{where}: {error}") from None


def _short(value: Any) -> str:
    words = repr(value)
    return words if len(words) <= 80 else words[:77] + "..."
