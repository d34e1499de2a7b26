"""The one exception for a user's mistake; the command line prints its text and exits with 2."""

from __future__ import annotations

from collections.abc import Iterable


class ConfigError(ValueError):
    """A setting, a file or a folder is not as it must be. The text says which, and what to do."""


def unknown_name(field: str, value: object, known: Iterable[str]) -> ConfigError:
    """Return the error for a name that is not one of the `known` ones."""
    return ConfigError(f"{field} must be one of {', '.join(known)}, got {value!r}")


def out_of_range(field: str, allowed: str, value: object) -> ConfigError:
    """Return the error for a value outside its range, which `allowed` puts into words."""
    return ConfigError(f"{field} must be {allowed}, got {value!r}")


def two_multipliers(multiplier: float, target: float) -> ConfigError:
    """Return the error for a noise multiplier beside the target that calibrates it."""
    return ConfigError(
        f"noise-multiplier must be left out with target-epsilon, which calibrates it, got "
        f"noise-multiplier {multiplier:g} and target-epsilon {target:g}; leave one of them out"
    )


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean …?" with the known name that is most like a word, or nothing.

    >>> nearest("--round", ["--rounds", "--server"]), nearest("--x", ["--rounds"])
    ('; did you mean --rounds?', '')
    """
    from difflib import get_close_matches  # only a mistake needs it

    bare = {name.strip("-"): name for name in known}
    found = get_close_matches(word.strip("-"), bare, n=1)
    return f"; did you mean {bare[found[0]]}?" if found else ""
