"""Finds out which release's meaning the settings in a file have.

A run writes a version into its files. It rises when a value of a setting changes its meaning.
Files without a version are from the first releases, in which `partition = "dirichlet"` meant what
is now "dirichlet-labels".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from leakmeter.fl_app.config.errors import ConfigError, out_of_range

_NAME: Final = "settings-version"
_VERSION: Final = 2
# What files and reports contain in addition to the settings.
STAMP: Final[Mapping[str, int]] = {_NAME: _VERSION}
# A person does not write all of these into a file; a run writes every setting.
_WRITTEN_BY_RUNS: Final = frozenset({"data-dir", "download", "engine", "ray-address", "seed"})


def unstamped(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without their version; raise for one that this release does not know."""
    version = values.get(_NAME, _VERSION)
    if type(version) is not int or not 1 <= version <= _VERSION:
        fix = "A newer release of Leakmeter may read this file"
        raise out_of_range(_NAME, f"from 1 to {_VERSION}", version, fix=fix)
    return {name: value for name, value in values.items() if name != _NAME}


def check_meaning(values: Mapping[str, Any], path: Path) -> None:
    """Raise if a file of an earlier release has a value that means something else today."""
    if _is_old(values) and values.get("partition") == "dirichlet":
        raise ConfigError(
            f'partition = "dirichlet" in {path} is from an earlier release, where it had another '
            "meaning: each label was split by its own draw. Today clients draw their label shares, "
            "so this run can neither be resumed nor repeated under that name. Start it again with "
            f"the same partition: --config {path} --partition dirichlet-labels"
        )


def is_written_by_a_run(values: Mapping[str, Any]) -> bool:
    """Whether a run wrote this file, so that its settings have the meaning of that release."""
    return values.keys() >= _WRITTEN_BY_RUNS


def in_todays_words(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a report, whichever release wrote it, with their names of today."""
    found = unstamped(values)
    if _is_old(values) and found.get("partition") == "dirichlet":
        found["partition"] = "dirichlet-labels"
    return found


def _is_old(values: Mapping[str, Any]) -> bool:
    version = values.get(_NAME, 1)
    return isinstance(version, int) and version < _VERSION
