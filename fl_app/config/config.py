"""All settings of a run, with the same words on the command line, in TOML and in Flower."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from leakmeter.fl_app.config.compatible import check_together
from leakmeter.fl_app.config.errors import ConfigError, nearest, shown_name
from leakmeter.fl_app.config.field import check, kebab, read_toml, typed
from leakmeter.fl_app.config.settings import Settings

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
        for name in values:
            if name not in known:
                hint = nearest(name, known) or f"; known settings: {', '.join(sorted(known))}"
                raise ConfigError(f"unknown setting {shown_name(name)}{hint}")
        return cls(**{known[k].name: v for k, v in values.items()})

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
