"""The points of a sweep: settings with several values each, and every combination of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from itertools import product
from string import ascii_uppercase
from typing import Any, Final

from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import (
    ConfigError,
    checked,
    expanded,
    kebab,
    nearest,
    number_or_text,
    out_of_range,
    shown_name,
    unknown_name,
)
from leakmeter.fl_app.config.settings import AUTO, NOISES
from leakmeter.fl_app.job import settled

EXAMPLE: Final = "--over noise-multiplier=0.5,1,2"
_MAX_POINTS, _MAX_VALUES, _MAX_SEEDS = 500, 50, 100
_DIGITS = 3  # of a value within a range
# What points may differ in: settings of the training. Rehearsals have no auditors.
_GROUPS = ("task", "federation", "client", "privacy")
# Where the data are, and what adds up several runs or ends a process.
_NOT_OVER = ("data_dir", "download", "ledger", "budget", "over_budget")
# Left out of a sweep, with the reason.
REFUSED: Final[Mapping[str, str]] = {
    "ledger": "its points are rehearsals that no ledger counts",
    "budget": "its points are rehearsals that no ledger counts",
    "over-budget": "its points are rehearsals that no ledger counts",
    "fail-above": "use leakmeter gate on the audit of a point",
    "require-guarantee": "use leakmeter gate on the audit of a point",
    "stop-above": "every point runs all of its rounds",
}
_DEFAULTS: Final = {kebab(spec.name): spec.default for spec in fields(Config)}
_AUDITORS: Final = "one-shot"  # proves an ε for whole runs, and costs the least
_WORDS: Final = {"true": True, "on": True, "false": False, "off": False}


@dataclass(frozen=True)
class VariedSetting:
    """A setting, by its kebab-case name, and its values."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Point:
    """One combination.

    Attributes:
        name: A short name: A to Z, then numbers.
        values: Its settings that other points have other values of.
        configs: The run for each seed, checked.
        adapted: Defaults that gave way, in words; "" for none.
    """

    name: str
    values: Mapping[str, Any]
    configs: tuple[Config, ...]
    adapted: str = ""

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"point-{self.name}"

    @property
    def label(self) -> str:
        """What it has and others have not, in words."""
        return label(self.values)


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep is asked for; the same plan makes the same points.

    Attributes:
        settings: What all points have in common, by kebab-case names; defaults elsewhere.
        axes: What they differ in.
        seeds: Runs of each point, with one seed after the other.
        against: The attackers that guarantees are compared for, as `leakmeter gate` names them;
            "" for all against whom any point guarantees something.
        skips_refused: Whether points that cannot run are left out, rather than refused together.
    """

    settings: Mapping[str, Any]
    axes: tuple[VariedSetting, ...]
    seeds: int = 1
    against: str = ""
    skips_refused: bool = False

    def points(self) -> tuple[list[Point], list[str]]:
        """Return the points that can run, and in words why others cannot.

        Raises:
            ConfigError: Some cannot, and none is to be left out; or none can.
        """
        made, refused = [], []
        combined = list(product(*(axis.values for axis in self.axes)))
        for i, values in enumerate(combined):
            own = {axis.name: value for axis, value in zip(self.axes, values, strict=True)}
            try:
                made.append(self._point(_name(i, len(combined)), own))
            except ConfigError as error:
                refused.append(f"{label(own)}: {error}")
        return made, self.accepted(refused, len(made))

    def accepted(self, refused: Sequence[str], left: int) -> list[str]:
        """Return why points cannot run; raise if they may not be left out, or if none is left."""
        if not refused or (self.skips_refused and left):
            return list(refused)
        more = f"; and {len(refused) - 1} more" if len(refused) > 1 else ""
        fix = " Add --skip-refused to run the others." if left else ""
        raise ConfigError(
            f"{len(refused)} of {len(refused) + left} points cannot run, so nothing has run. "
            f"{refused[0].rstrip('.')}{more}.{fix}"
        )

    def _point(self, name: str, own: Mapping[str, Any]) -> Point:
        given = {**self.settings, **own}
        given = {**usual(given), **given}
        first = given.get("seed", Config.seed)
        seeds = range(first, first + self.seeds)
        made = [settled({**given, "seed": seed}, typed=given) for seed in seeds]
        return Point(name, own, tuple(config for config, _ in made), made[0][1])


def usual(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a sweep: noise that also hides clients from the server, one auditor.

    Args:
        given: The settings that are given.
    """
    hides = given.get("secagg", Config.secagg) != "off"
    found = {"noise": "distributed" if hides else "local", "auditors": _AUDITORS}
    kind = NOISES.get(given.get("noise", found["noise"]))
    if kind is not None and kind.unit == "client" and given.get("clipping") != "adaptive":
        found["clip-norm"] = AUTO
    return found


def plan_of(
    settings: Mapping[str, Any],
    over: Sequence[str],
    *,
    seeds: Any = 1,
    skips_refused: bool = False,
) -> SweepPlan:
    """Return the plan that was asked for; raise ConfigError for what cannot be meant.

    Args:
        settings: The settings that are given, by kebab-case names. A number may also be a text that
            lists several, such as "1..32".
        over: Settings with their values, such as "sample=30,60".
        seeds: Runs of each point.
        skips_refused: Whether to leave points out that cannot run.
    """
    axes = [_axis(text) for text in over]
    own = {name: value for name, value in settings.items() if not _is_list(name, value)}
    axes += [_listed(name, value) for name, value in settings.items() if name not in own]
    for name, why in REFUSED.items():
        if own.get(name) not in (None, _DEFAULTS[name]):
            raise out_of_range(f"--{name}", f"left out in a sweep: {why}", own[name])
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1 or name in own:
            raise ConfigError(
                f"--over {name} must be the only place that sets {name}, got another one; leave "
                "one of them out"
            )
    # One value makes no points: it is a setting of all.
    own |= {axis.name: axis.values[0] for axis in axes if len(axis.values) == 1}
    axes = [axis for axis in axes if len(axis.values) > 1]
    if not axes:
        raise ConfigError(f"sweep needs a setting with several values, got none. Try {EXAMPLE}.")
    count = math.prod(len(axis.values) for axis in axes)
    if count > _MAX_POINTS:
        raise ConfigError(
            f"--over must give at most {_MAX_POINTS} points together, got {count}. List fewer "
            "values."
        )
    if type(seeds) is not int or not 1 <= seeds <= _MAX_SEEDS:
        raise out_of_range("--seeds", f"from 1 to {_MAX_SEEDS}", seeds, fix="Try --seeds 3")
    if own.get("data-dir"):  # so that the sweep can be resumed from anywhere
        own["data-dir"] = str(expanded("--data-dir", own["data-dir"]))
    against = own.pop("against", "")
    if against:
        _check_against(against)
    return SweepPlan(own, tuple(axes), seeds, against, skips_refused)


def label(values: Mapping[str, Any]) -> str:
    """Return settings in words.

    >>> label({"noise-multiplier": 0.5, "sample": 30})
    'noise-multiplier 0.5, sample 30'
    """
    return ", ".join(f"{name} {typed_value(value)}" for name, value in values.items())


def typed_value(value: Any) -> str:
    """Return a value of a setting as a user types it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _name(index: int, count: int) -> str:
    """Return a short name, as the page that compares runs has it."""
    return ascii_uppercase[index] if count <= len(ascii_uppercase) else str(index + 1)


def setting_name(text: str) -> str:
    """Return the setting of one `--over`."""
    return text.partition("=")[0].strip().removeprefix("--")


def _axis(text: str) -> VariedSetting:
    """Return the setting and values of one `--over`."""
    name, (_, equals, values) = setting_name(text), text.partition("=")
    if not equals or not name:
        raise out_of_range("--over", "NAME=V1,V2", text, fix=f"Try {EXAMPLE}")
    return _listed(name, values)


def _specs() -> dict[str, Field[Any]]:
    """Return the settings that points may differ in, by kebab-case names."""
    return {
        kebab(spec.name): spec
        for spec in fields(Config)
        if spec.metadata["group"] in _GROUPS and spec.name not in _NOT_OVER
    }


def _is_list(name: str, value: Any) -> bool:
    """Whether a number was given as a list or a range."""
    spec = _specs().get(name)
    is_number = spec is not None and type(spec.default) in (int, float)
    return is_number and isinstance(value, str) and ("," in value or ".." in value)


def _listed(name: str, text: str) -> VariedSetting:
    """Return a setting with the values of a text: a list, or a range such as 1..32."""
    specs = _specs()
    if name not in specs:
        if name == "seed":
            raise out_of_range("--over", "a setting other than seed", name, fix="Try --seeds 3")
        hint = nearest(name, specs) or f"; it may be {', '.join(sorted(specs))}"
        raise ConfigError(
            f"--over must name a setting of the training, got {shown_name(name)}{hint}"
        )
    spec, where = specs[name], f"--over {name}"
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        allowed = "values separated by commas, or a range such as 1..32"
        raise out_of_range(where, allowed, text, fix=f"Try {EXAMPLE}")
    values = [value for word in words for value in _values(spec, where, word)]
    for value in values:
        if values.count(value) > 1:
            raise out_of_range(
                where, "values that differ", text, fix=f"List {typed_value(value)} once"
            )
    if len(values) > _MAX_VALUES:
        raise ConfigError(f"{where} must have at most {_MAX_VALUES} values, got {len(values)}")
    return VariedSetting(name, tuple(values))


def _values(spec: Field[Any], where: str, word: str) -> Iterator[Any]:
    """Yield the values that one word of a list stands for."""
    kind = type(spec.default)
    if kind is str or (spec.name == "clip_norm" and word == AUTO):
        yield word if word == AUTO else checked(spec, word)
    elif kind is bool:
        yield checked(spec, _WORDS.get(word, word))
    elif ".." in word:
        yield from (checked(spec, value) for value in _range(kind, where, word))
    else:
        yield checked(spec, number_or_text(kind, word))


def _range(kind: type, where: str, word: str) -> list[Any]:
    """Return values from one end to the other, each about twice the one before.

    >>> _range(float, "--over target-epsilon", "1..32")
    [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    """
    ends = [number_or_text(kind, part) for part in word.split("..")]
    is_range = len(ends) == 2 and all(isinstance(end, int | float) for end in ends)
    if not is_range or not 0 < ends[0] < ends[1] < math.inf:
        allowed = "a range from a number above 0 to a larger one, such as 1..32"
        raise out_of_range(where, allowed, word, fix="Try 1..32")
    low, high = ends
    steps = max(round(math.log2(high / low)), 1)
    if steps >= _MAX_VALUES:
        raise ConfigError(f"{where} must have at most {_MAX_VALUES} values, got {word}")
    inside = (low * (high / low) ** (i / steps) for i in range(1, steps))
    rounded = [round(v) if kind is int else float(f"{v:.{_DIGITS}g}") for v in inside]
    return list(dict.fromkeys([low, *rounded, high]))


def _check_against(name: str) -> None:
    from leakmeter.auditors.verdict.gate import ALLOWED, ATTACKERS  # imports numpy

    if name not in ATTACKERS:
        raise unknown_name("--against", name, ATTACKERS, allowed=ALLOWED)
