"""The exception for a user's mistake: the command line prints its text and exits with 2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from leakmeter.auditors.errors import BadValueError, shown


class ConfigError(ValueError):
    """A setting, a file or a folder is not as it must be. The text says which, and what to do."""


class BadSettingError(BadValueError, ConfigError):
    """A setting is not what it must be; `name` is the option as it is typed."""


class RayError(RuntimeError):
    """Ray does not start, or a cluster cannot be joined. The text says why, and what to do."""


def interrupted_code(error: BaseException) -> int:
    """Return the exit code of an interrupted command, 128 and its signal: 2 if none is known.

    It is of Python's own type: for that alone, `subprocess` does not wait for its children.

    >>> interrupted_code(KeyboardInterrupt()), interrupted_code(KeyboardInterrupt(15))
    (130, 143)
    """
    return 128 + int(error.args[0] if error.args else 2)


def unknown_name(
    field: str,
    value: object,
    known: Iterable[str],
    short: Mapping[str, str] | None = None,
    allowed: str = "",
) -> ConfigError:
    """Return the error for a name that is not one of the `known` ones, with the nearest one.

    Args:
        field: The option as it is typed.
        value: What was received.
        known: The names that are allowed.
        short: Other names of some of them, which are suggested but not allowed.
        allowed: The same in words, where a list would be long; they follow "must be".

    >>> print(unknown_name("--model", "mpl", ["linear", "mlp"]))
    --model must be one of linear, mlp, got 'mpl'; did you mean mlp?
    """
    names = tuple(known)
    hint = nearest((short or {}).get(value.lower(), value), names) if isinstance(value, str) else ""
    range_ = allowed or f"one of {', '.join(names)}"
    return BadSettingError(field, range_, value, hint=hint)


def out_of_range(field: str, allowed: str, value: object, *, fix: str = "") -> ConfigError:
    """Return the error for a value outside its range.

    Args:
        field: The option as it is typed, such as "--rounds", or what else has the value.
        allowed: The range in words, which follow "must be".
        value: What was received.
        fix: What to do next, as a sentence without its full stop.

    >>> print(out_of_range("--rounds", "at least 1", 0, fix="Try --rounds 1"))
    --rounds must be at least 1, got 0. Try --rounds 1.
    """
    return BadSettingError(field, allowed, value, fix=fix)


def shown_name(name: object) -> str:
    """Return a name as it was typed, if it is one that a terminal can show in a few words."""
    plain = isinstance(name, str) and name.isprintable() and " " not in name and len(name) <= 40
    return str(name) if plain else shown(name)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean …?" with the known name nearest to a word, or nothing.

    >>> nearest("--round", ["--rounds", "--server"]), nearest("--x", ["--rounds"])
    ('; did you mean --rounds?', '')
    >>> nearest("adult", ["mi-users", "transcript-adult"])
    '; did you mean transcript-adult?'
    """
    from difflib import get_close_matches  # only a mistake needs it

    bare = {name.strip("-"): name for name in known}
    part = word.strip("-")
    found = get_close_matches(part, bare, n=1) or [one for one in bare if part in one and part[2:]]
    return f"; did you mean {bare[found[0]]}?" if found else ""
