"""The fields of a run log and a report, and what each may hold; a wrong one is a user's mistake.

`docs/report.md` describes the same fields in words. Fields that are not known here are left alone:
a later release may write more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from leakmeter.auditors.finding import Adjacency, Finding, Kind, ThreatModel, Unit
from leakmeter.fl_app.config.errors import ConfigError

_Check = Callable[[Any], Any]  # returns the value as we use it, or raises ValueError with "allowed"


def _number(value: Any) -> float:
    """Return a number; JSON lacks infinities, which are written as strings."""
    if isinstance(value, str) and value in ("inf", "-inf", "nan"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError('a number, or "inf", "-inf", "nan"')
    return float(value)


def _whole(lowest: int) -> _Check:
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


def _flag(value: Any) -> bool:
    """Return a truth value."""
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _one_of(words: Sequence[str]) -> _Check:
    """Return the check of a word."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return value

    return check


def _maybe(inner: _Check) -> _Check:
    """Return the check that lets null pass."""

    def check(value: Any) -> Any:
        try:
            return None if value is None else inner(value)
        except ValueError as error:
            raise ValueError(f"{error}, or null") from None

    return check


def mapping(inner: _Check | None = None) -> _Check:
    """Return the check of an object whose values all pass."""

    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError("an object")
        return {str(k): v if inner is None else inner(v) for k, v in value.items()}

    return check


def _several(inner: _Check, count: int | None = None) -> _Check:
    """Return the check of a list whose items all pass."""

    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or count not in (None, len(value)):
            raise ValueError("a list" + ("" if count is None else f" of {count}"))
        return tuple(inner(item) for item in value)

    return check


def _any(value: Any) -> Any:
    return value


FINDING: dict[str, _Check] = {
    "value": _number,
    "kind": _one_of(get_args(Kind)),
    "rule": text,
    "delta": _maybe(_number),
    "confidence": _maybe(_number),
    "sample_sizes": mapping(_whole(0)),
    "cap": _maybe(_number),
    "saturated": _flag,
    "assumptions": _several(text),
    "auditor": text,
    "quantity": text,
    "threat_model": lambda value: ThreatModel(**value),
    "adjacency": _maybe(_one_of(get_args(Adjacency))),
    "unit": _one_of(get_args(Unit)),
    "server_round": _maybe(_whole(1)),
    "null_band": _maybe(_several(_number, 2)),
    "seed": _maybe(_whole(0)),
    "facts": mapping(),
}
ROUND: dict[str, _Check] = {
    "server_round": _whole(1),
    "accuracy": _maybe(_number),
    "num_clients": _whole(0),
    "metrics": mapping(_number),
}
REPORT: dict[str, _Check] = {
    "config": mapping(),
    "rounds": _several(_any),
    "findings": _several(_any),
    "failures": _several(text),
}


def checked(values: Any, allowed: Mapping[str, _Check], where: str) -> dict[str, Any]:
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
