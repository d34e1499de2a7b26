"""All settings of a run, with the same words on the command line, in TOML and in Flower."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from leakmeter.fl_app.config.compatible import check_together, fitting_defaults
from leakmeter.fl_app.config.errors import ConfigError, nearest, shown_name
from leakmeter.fl_app.config.field import check, kebab, read_toml, typed
from leakmeter.fl_app.config.settings import Settings

if TYPE_CHECKING:
    from flwr.app import Context

# Settings of the launch under Flower, which do not change what a run does.
OUT, RESUME = "out", "resume"
# The file of a run with the noise multiplier that was calibrated for its target-epsilon.
CALIBRATED = "calibrated.toml"


@dataclass(frozen=True)
class Config(Settings):
    """All settings of a run, checked one by one and in combination."""

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = typed(spec, getattr(self, spec.name))
            object.__setattr__(self, spec.name, value)  # a whole number may become a float
            check(spec, value)
        check_together(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Return the configuration with the given kebab-case settings, defaults elsewhere."""
        known = {kebab(f.name): f for f in fields(cls)}
        earlier = {f.metadata["was"]: f for f in fields(cls) if f.metadata["was"]}
        for name in values:
            if name not in known and name not in earlier:
                hint = nearest(name, known) or f"; known settings: {', '.join(sorted(known))}"
                raise ConfigError(f"unknown setting {shown_name(name)}{hint}")
            if name in earlier and (now := kebab(earlier[name].name)) in values:
                raise ConfigError(f"{name} is the earlier name of {now}; leave one of them out")
        return cls(**{(earlier | known)[k].name: v for k, v in values.items()})

    @classmethod
    def adapted(cls, values: Mapping[str, Any]) -> tuple[Self, str]:
        """Return the configuration with defaults that fit the given settings, and which changed.

        A default that contradicts what is given gives way; what is given never does. The second
        value is a line that says so, or empty.
        """
        changed = fitting_defaults(values)
        usual = {kebab(f.name): f.default for f in fields(cls)}
        words = [f"--{name} {new} (default {usual[name]})" for name, new in changed.items()]
        config = cls.from_mapping({**values, **changed})
        return config, f"adapted to your settings: {', '.join(words)}" if words else ""

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """Return the configuration that a run has written to a TOML file."""
        return cls.from_mapping(read_toml(path))

    def to_mapping(self) -> dict[str, Any]:
        """Return all settings in kebab-case."""
        return {kebab(name): value for name, value in asdict(self).items()}

    def to_toml(self) -> str:
        """Return all settings as TOML, grouped by comments.

        A multiplier that follows from `target-epsilon` is left out: another seed or number of
        rounds needs another one.
        """
        lines: list[str] = []
        group = ""
        for spec in fields(self):
            if spec.metadata["group"] != group:
                group = spec.metadata["group"]
                lines += ["", f"# {group}"]
            if spec.name == "noise_multiplier" and self.target_epsilon:
                lines.append(f"# noise-multiplier follows from target-epsilon, see {CALIBRATED}")
                continue
            # JSON's printable strings, numbers and truth values are TOML's.
            value = json.dumps(getattr(self, spec.name), ensure_ascii=False)
            lines.append(f"{kebab(spec.name)} = {value}")
        return "\n".join(lines[1:]) + "\n"


def from_context(context: Context) -> Config:
    """Return the configuration in `context.run_config`, with defaults for what it does not set."""
    return _adapted(context)[0]


def adaptation(context: Context) -> str:
    """Return a line about defaults that gave way to settings of the run configuration, or ""."""
    return _adapted(context)[1]


def _adapted(context: Context) -> tuple[Config, str]:
    # As text, because a cache does not distinguish the keys 1, 1.0 and true.
    return _parsed(json.dumps(dict(context.run_config)))


@lru_cache(maxsize=4)
def _parsed(run_config: str) -> tuple[Config, str]:
    usual = Config().to_mapping()
    # Flower fills in every default, so a value that equals its default counts as not given.
    given = {
        name: value
        for name, value in json.loads(run_config).items()
        if name not in (OUT, RESUME) and (name not in usual or value != usual[name])
    }
    # Flower's runtime is the engine of such a run, whatever the default is.
    return Config.adapted({**given, "engine": "ray"})
