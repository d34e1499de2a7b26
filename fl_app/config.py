"""All settings of a run, with the same words on the command line, in TOML and in Flower."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from fl_app.errors import ConfigError, out_of_range, unknown_name
from fl_app.names import (
    ALGORITHMS,
    AUDITORS,
    CLIPPINGS,
    DATASETS,
    ENGINES,
    MODELS,
    NOISES,
    OVER_BUDGET,
    PARTITIONS,
    PATTERNS,
    SERVERS,
    SWITCH,
)


def _setting(
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


@dataclass(frozen=True)
class Config:
    """What a run does. Every field is a string, a number or a truth value, as Flower allows."""

    dataset: str = _setting("digits", "what to learn", group="task", choices=DATASETS)
    data_dir: str = _setting(
        "",
        "folder with the files of adult or mnist (default: the environment's LEAKMETER_DATA)",
        group="task",
        metavar="DIR",
    )
    download: bool = _setting(
        False, "let torchvision download mnist into that folder if it is missing", group="task"
    )
    synthetic_examples: int = _setting(6000, "training records of synthetic", group="task", low=1)
    synthetic_features: int = _setting(20, "features of synthetic", group="task", low=1)
    synthetic_classes: int = _setting(10, "classes of synthetic", group="task", low=2)
    model: str = _setting(
        "mlp", "linear classifier, or two hidden layers of 100", group="task", choices=MODELS
    )
    partition: str = _setting(
        "iid",
        "how records are dealt to clients: evenly, or with skewed labels",
        group="task",
        choices=PARTITIONS,
    )
    dirichlet: float = _setting(
        1.0,
        "concentration of the dirichlet partition; the smaller, the more skewed",
        group="task",
        above=0,
    )
    clients: int = _setting(60, "clients in all", group="federation", low=1)
    sample: int = _setting(30, "honest clients in a round", group="federation", low=1)
    rounds: int = _setting(30, "rounds of training", group="federation", low=1)
    server: str = _setting(
        "fedavg",
        "what the server does with the mean update: take it, or add momentum",
        group="federation",
        choices=SERVERS,
    )
    server_lr: float = _setting(
        1.0, "server step length, fedavgm only", group="federation", above=0
    )
    server_momentum: float = _setting(
        0.9, "server momentum, fedavgm only", group="federation", low=0, below=1
    )
    secagg: str = _setting(
        "on",
        "secure aggregation: the server sees masked updates only",
        group="federation",
        choices=SWITCH,
    )
    algorithm: str = _setting(
        "fedavg",
        "local epochs of SGD, or one gradient step on one batch",
        group="client",
        choices=ALGORITHMS,
    )
    epochs: int = _setting(2, "local passes over the data, fedavg only", group="client", low=1)
    batch_size: int = _setting(
        8, "records in a gradient step; 0 takes all a client has", group="client", low=0
    )
    lr: float = _setting(0.3, "client step length", group="client", above=0)
    participation: str = _setting(
        "fixed",
        "who takes part: a fixed number, each by a coin, each once, or in shuffled epochs",
        group="federation",
        choices=PATTERNS,
    )
    noise: str = _setting(
        "none", "who adds noise for differential privacy", group="privacy", choices=NOISES
    )
    noise_multiplier: float = _setting(
        1.0, "noise on the sum in units of the clip norm", group="privacy", low=0
    )
    clip_norm: float = _setting(
        0.0, "norm that updates are clipped to; noise needs one", group="privacy", low=0
    )
    clipping: str = _setting(
        "fixed", "clip norm fixed, or following a quantile", group="privacy", choices=CLIPPINGS
    )
    clip_quantile: float = _setting(
        0.5, "quantile of update norms for adaptive clipping", group="privacy", above=0, below=1
    )
    ledger: str = _setting(
        "",
        "file that adds up what all runs on a data set have released; made if missing",
        group="privacy",
        metavar="FILE",
    )
    budget: float = _setting(
        0.0,
        "most ε at delta that the ledger may reach; 0 for no limit",
        group="privacy",
        low=0,
    )
    over_budget: str = _setting(
        "refuse", "what happens before a run beyond it", group="privacy", choices=OVER_BUDGET
    )
    auditors: str = _setting(
        "one-shot",
        f"who measures the leak, separated by commas: {', '.join(AUDITORS)}",
        group="audit",
        metavar="NAMES",
    )
    canary_seats: int = _setting(
        10,
        "clients in a round, beside the honest ones, that play canaries for one-shot",
        group="audit",
        low=0,
    )
    canaries: int = _setting(
        0, "canaries in all; 0 takes as many as the seats allow", group="audit", low=0
    )
    canary_repetitions: int = _setting(1, "rounds in which each canary plays", group="audit", low=1)
    delta: float = _setting(1e-5, "δ of every (ε, δ) reported", group="audit", above=0, below=1)
    seed: int = _setting(
        0, "the same seed gives the same report", group="run", low=0, high=2**31 - 1
    )
    engine: str = _setting(
        "inline", "all in one process, or Flower's simulation", group="run", choices=ENGINES
    )
    ray_address: str = _setting(
        "", "Ray cluster to join with the engine ray, or auto", group="run", metavar="HOST:PORT"
    )

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = _typed(spec, getattr(self, spec.name))
            object.__setattr__(self, spec.name, value)  # a whole number where a float is due
            _check(spec, value)
        for name in self.auditor_names:
            if name not in AUDITORS:
                raise unknown_name("auditors", name, AUDITORS)
        if self.cohort > self.clients:
            wanted = f"{self.sample} + {self.seats} = {self.cohort}"
            raise ConfigError(
                f"sample + canary-seats must be at most clients = {self.clients}, got {wanted}"
            )
        if self.secagg == "on" and self.cohort < 3:
            raise out_of_range("sample", "at least 3 clients a round with secagg", self.cohort)
        self._check_noise()
        self._check_participation()
        if self.ray_address and self.engine != "ray":
            raise out_of_range("ray-address", "empty unless engine is ray", self.ray_address)
        if "one-shot" in self.auditor_names:
            self._check_canaries()

    def _check_noise(self) -> None:
        if self.noise != "none" and self.clip_norm == 0:
            raise out_of_range("clip-norm", "above 0 with noise, or nothing bounds it", 0.0)
        if self.noise in ("distributed", "local") and self.noise_multiplier == 0:
            raise out_of_range("noise-multiplier", f"above 0 with noise {self.noise}", 0.0)
        if self.noise == "distributed" and self.secagg == "off":
            raise out_of_range("secagg", "on with noise distributed: single shares are weak", "off")
        if self.clipping == "adaptive" and self.noise == "none":
            raise out_of_range("noise", "central for adaptive clipping", self.noise)
        if self.clipping == "adaptive" and self.noise != "central":
            raise out_of_range("clipping", f"fixed with noise {self.noise}", self.clipping)
        if self.clipping == "adaptive" and self.noise_multiplier >= self.cohort / 10:
            # Noise on the clip bits is cohort / 20, and must be above half the multiplier.
            allowed = f"below {self.cohort / 10:g} with adaptive clipping and {self.cohort} clients"
            raise out_of_range("noise-multiplier", allowed, self.noise_multiplier)
        if self.noise == "none" and self.clip_norm > 0:
            raise out_of_range("clip-norm", "0 without noise: nothing would clip", self.clip_norm)
        if self.noise == "none" and self.ledger:
            raise out_of_range("ledger", "empty without noise, which spends any ε", self.ledger)
        if self.budget and not self.ledger:
            raise out_of_range("budget", "0 without a ledger to add it up", self.budget)

    def _check_participation(self) -> None:
        most = self.clients // self.cohort
        if self.participation == "once" and self.rounds > most:
            allowed = f"at most clients / (sample + canary-seats) = {most} with participation once"
            raise out_of_range("rounds", allowed, self.rounds)

    def _check_canaries(self) -> None:
        slots = self.canary_seats * self.rounds
        if self.canary_seats < 1:
            raise out_of_range("canary-seats", "at least 1 for the auditor one-shot", 0)
        if self.canary_repetitions > self.rounds:
            allowed = f"at most rounds = {self.rounds}"
            raise out_of_range("canary-repetitions", allowed, self.canary_repetitions)
        canaries = self.canaries or slots // self.canary_repetitions
        if canaries < 2 or canaries * self.canary_repetitions > slots:
            allowed = (
                f"from 2 to canary-seats x rounds / canary-repetitions = "
                f"{slots // self.canary_repetitions}"
            )
            raise out_of_range("canaries", allowed, canaries)

    @property
    def auditor_names(self) -> tuple[str, ...]:
        """The auditors' names in order, without blanks."""
        names = (name.strip() for name in self.auditors.split(","))
        return tuple(name for name in names if name and name != "none")

    @property
    def seats(self) -> int:
        """Canary seats that are really there."""
        return self.canary_seats if "one-shot" in self.auditor_names else 0

    @property
    def cohort(self) -> int:
        """Clients in a round: honest ones and canary seats."""
        return self.sample + self.seats

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Return the configuration with the given kebab-case settings, defaults elsewhere."""
        known = {kebab(f.name): f for f in fields(cls)}
        for name in values:
            if name not in known:
                raise ConfigError(
                    f"unknown setting {name!r}; known settings: {', '.join(sorted(known))}"
                )
        return cls(**{known[k].name: v for k, v in values.items()})

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """Return the configuration that a TOML file holds."""
        return cls.from_mapping(read_toml(path))

    def to_mapping(self) -> dict[str, Any]:
        """Return all settings in kebab-case."""
        return {kebab(name): value for name, value in asdict(self).items()}

    def to_toml(self) -> str:
        """Return all settings as TOML, grouped by comments."""
        lines: list[str] = []
        group = ""
        for spec in fields(self):
            if spec.metadata["group"] != group:
                group = spec.metadata["group"]
                lines += ["", f"# {group}"]
            # JSON's printable strings, numbers and truth values are TOML's.
            value = json.dumps(getattr(self, spec.name), ensure_ascii=False)
            lines.append(f"{kebab(spec.name)} = {value}")
        return "\n".join(lines[1:]) + "\n"


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


def _typed(spec: Field[Any], value: Any) -> Any:
    """Return `value` as the field's type, where that loses nothing."""
    wanted = type(spec.default)
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        kinds = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
        raise out_of_range(kebab(spec.name), kinds[wanted], value)
    if isinstance(value, str) and not value.isprintable():
        raise out_of_range(kebab(spec.name), "printable text", value)
    return value


def _check(spec: Field[Any], value: Any) -> None:
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
        finite = [] if math.isfinite(value) else ["finite"]
        raise out_of_range(kebab(spec.name), " and ".join(finite + allowed), value)
