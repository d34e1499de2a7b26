"""How a setting knows its own help text and allowed values, and how a value is checked."""

from __future__ import annotations

import math
import tomllib
from dataclasses import Field, field
from pathlib import Path
from typing import Any

from leakmeter.fl_app.config.errors import ConfigError, out_of_range, unknown_name


def setting(
    default: Any,
    help: str,
    *,
    group: str,
    choices: tuple[str, ...] = (),
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    metavar: str = "",
) -> Any:
    """Return a field that knows its own help text and allowed values."""
    limits = {"low": low, "high": high, "above": above, "below": below}
    words = {"help": help, "group": group, "choices": choices, "metavar": metavar}
    return field(default=default, metadata={**words, **limits})


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file's top level; a missing or broken file is a user's mistake."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config must be a readable file, got {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config must be a TOML file, got {path}: {error}") from None


def kebab(name: str) -> str:
    """Return a Python name as TOML and the command line spell it."""
    return name.replace("_", "-")


def typed(spec: Field[Any], value: Any) -> Any:
    """Return `value` as the field's type, where that loses nothing."""
    wanted = type(spec.default)
    if wanted is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise out_of_range(kebab(spec.name), "finite", value) from None
    if type(value) is not wanted:
        kinds = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
        raise out_of_range(kebab(spec.name), kinds[wanted], value)
    if isinstance(value, str) and not value.isprintable():
        raise out_of_range(kebab(spec.name), "printable text", value)
    return value


def check(spec: Field[Any], value: Any) -> None:
    """Raise if `value` is not among the field's choices or within its limits."""
    rule = spec.metadata
    if rule["choices"] and value not in rule["choices"]:
        raise unknown_name(kebab(spec.name), value, rule["choices"])
    if isinstance(value, str):
        return
    inside = rule["low"] <= value <= rule["high"] and rule["above"] < value < rule["below"]
    if not inside:
        words = {"low": "at least", "high": "at most", "above": "above", "below": "below"}
        allowed = [f"{w} {rule[k]}" for k, w in words.items() if math.isfinite(rule[k])]
        finite = [] if isinstance(value, int) or math.isfinite(value) else ["finite"]
        raise out_of_range(kebab(spec.name), " and ".join(finite + allowed), value)
