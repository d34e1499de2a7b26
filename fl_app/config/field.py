"""How a setting knows its own help text and allowed values, and the error for any other value.

Also what the settings of every auditor have in common: they check and build their auditor. And how
a user calls this program.
"""

from __future__ import annotations

import math
import sys
import tomllib
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import Field, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from leakmeter.auditors.errors import BadValueError, shown

if TYPE_CHECKING:
    from leakmeter.auditors import Auditor
    from leakmeter.fl_app.build.audit import AuditRun
    from leakmeter.fl_app.config.settings import Settings

# Limits of numbers without their own: sizes must fit in memory, others in single precision.
_MAX_SIZE, _MAX_NUMBER = 10**9, 1e30
_MAX_TEXT = 4096  # characters, which is also the longest path that systems accept
_MAX_FILE = 1_000_000  # bytes
SCRIPT: Final = "python run_sim.py"


def program() -> str:
    """Return how this program was called, for commands that can be copied."""
    return "leakmeter" if Path(sys.argv[0]).stem == "leakmeter" else SCRIPT


def setting(
    default: Any,
    help: str,
    *,
    group: str = "",
    choices: tuple[str, ...] = (),
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    most: float | None = None,
    metavar: str = "",
    was: str = "",
    zero: str = "",
    several: bool = False,
) -> Any:
    """Return a field that knows its own help text and allowed values.

    `was` is an earlier name, as a user types it: command line and files take it, `--help` hides it.
    `most` is far beyond any use: it keeps a typo from filling the memory. An error names it only if
    it is exceeded. `zero` is what 0 stands for where it is no amount, such as "off". `several`
    texts may be given, as a list or with ";" between them.
    """
    help = f"{help}; 0 = {zero}" if zero else help
    if most is None:
        most = _MAX_SIZE if type(default) is int else _MAX_NUMBER
    limits = {"low": low, "high": high, "above": above, "below": below, "most": most}
    words = {"help": help, "group": group, "choices": choices, "metavar": metavar, "was": was}
    return field(default=default, metadata={**words, **limits, "zero": zero, "several": several})


def read_toml(path: Path, name: str = "--config") -> dict[str, Any]:
    """Return a TOML file's top level; raise `ConfigError` if it is missing or broken.

    `name` is the option that named the file.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            # Reading a pipe that nobody writes to would never return.
            raise ConfigError(f"{name} must be a regular file, got {path}: copy it to one")
        with path.open("rb") as file:
            content = file.read(_MAX_FILE + 1)
    except (OSError, ValueError) as error:  # the last one: a path with a zero byte
        if isinstance(error, ConfigError):
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{name} must be a readable file, got {path}: {reason}") from None
    if len(content) > _MAX_FILE:
        raise ConfigError(f"{name} must be a TOML file of at most 1 MB, got {path}")
    try:
        return tomllib.loads(content.decode("utf-8-sig"))  # some editors write a byte order mark
    except RecursionError:
        raise ConfigError(f"{name} must be a TOML file, got {path}: nested too deep") from None
    except ValueError as error:  # not UTF-8, not TOML, or a number of thousands of digits
        raise ConfigError(f"{name} must be a TOML file, got {path}: {error}") from None


def expanded(name: str, path: str | Path) -> Path:
    """Return the absolute path that a user means, "~" for a home folder."""
    if "\0" in str(path):
        raise out_of_range(name, "a path without zero bytes", str(path))
    try:
        return Path(path).expanduser().absolute()
    except (RuntimeError, OSError) as error:  # there is no such user, or no current folder
        raise out_of_range(name, f"a path that can be found ({error})", str(path)) from None


def number_or_text(kind: type, text: str) -> Any:
    """Return the number in a text; other text unchanged, for a check that names its option."""
    try:
        return kind(text)
    except ValueError:
        return text


def kebab(name: str) -> str:
    """Return a Python name as TOML and the command line spell it."""
    return name.replace("_", "-")


def names_of(
    field: str, text: str, known: Collection[str], short: Mapping[str, str] | None = None
) -> list[str]:
    """Return the names in a text, separated by commas; refuse unknown ones and doubles.

    >>> names_of("--log", "wandb, mlflow", ("mlflow", "wandb"))
    ['wandb', 'mlflow']
    """
    names = [name for one in text.replace(";", ",").split(",") if (name := one.strip())]
    for name in names:
        if name not in known:
            raise unknown_name(field, name, known, short)
        if names.count(name) > 1:
            fix = f"Leave out the second {name}"
            raise out_of_range(field, "names that differ", text, fix=fix)
    return names


def option(name: str) -> str:
    """Return a Python name as an option of the command line, the name that errors use.

    >>> option("clip_norm")
    '--clip-norm'
    """
    return f"--{kebab(name)}"


def checked(spec: Field[Any], value: Any) -> Any:
    """Return `value` as the field's type; raise if it is not, or not one of the allowed values."""
    wanted = type(spec.default)
    if spec.metadata["several"] and isinstance(value, list | tuple):
        value = "; ".join(map(str, value))
    if wanted is float and type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            raise out_of_range(option(spec.name), "finite", value) from None
    if type(value) is not wanted:
        kinds = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
        raise out_of_range(option(spec.name), kinds[wanted], value, fix=_valid(spec))
    if isinstance(value, str) and not value.isprintable():
        raise out_of_range(option(spec.name), "printable text", value)
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        raise out_of_range(option(spec.name), f"at most {_MAX_TEXT} characters", value)
    if spec.metadata["choices"] and value not in spec.metadata["choices"]:
        raise unknown_name(option(spec.name), value, spec.metadata["choices"])
    if not isinstance(value, str):
        _check_limits(spec, value)
    return value


def checked_all(specs: Iterable[Field[Any]], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their Python names, each checked, of values by kebab-case names."""
    known = {kebab(spec.name): spec for spec in specs}
    return {known[name].name: checked(known[name], value) for name, value in values.items()}


def _check_limits(spec: Field[Any], value: Any) -> None:
    rule = spec.metadata
    inside = rule["low"] <= value <= rule["high"] and rule["above"] < value < rule["below"]
    if not inside:
        words = {"low": "at least", "high": "at most", "above": "above", "below": "below"}
        allowed = [f"{w} {rule[k]}" for k, w in words.items() if math.isfinite(rule[k])]
        finite = [] if isinstance(value, int) or math.isfinite(value) else ["finite"]
        text = " and ".join(finite + allowed)
        raise out_of_range(option(spec.name), text, value, fix=_valid(spec, value))
    if math.isinf(rule["high"]) and value > rule["most"]:
        text = f"at most {rule['most']:.15g}"
        raise out_of_range(option(spec.name), text, value, fix=_valid(spec))


def _valid(spec: Field[Any], value: float = 0) -> str:
    """Return a value to try: the default, or the largest one where the default turns it off."""
    usual = spec.default
    if isinstance(usual, bool) or usual == "":
        return ""
    if usual == 0 and value > spec.metadata["high"]:
        usual = spec.metadata["high"]
    return f"Try {option(spec.name)} {f'{usual:g}' if isinstance(usual, float) else usual}"


audit_setting = partial(setting, group="audit")
EVERY: Final = (
    "1 = every round, N = every N-th, 0 = first only, -1 = rounds 1, 2, 4, 8, ... and the last"
)
EVERY_NTH: Final = (
    "N = every N-th, 0 = round 1 only, -1 = rounds 1, 2, 4, 8, … and the last"  # for 0 as default
)


class AuditorSettings:
    """An auditor by name. Fields are its settings, methods say what it needs and how it is built.

    Settings modules are imported by `--help`, so they import nothing heavy at the top. `Config`
    inherits the fields of all auditors; the methods are called on the auditor's own class and take
    the settings of the whole run.

    Attributes:
        auditor: The name that a user types.
        short_name: What rounds and papers call it; suggested to whoever types it.
        bets: Whether it has bounds that hold after every round (`--bounds anytime`).
        plays: Whether clients play canaries for it, in the seats of `--canary-seats`.
        resamples: Whether it resamples sums of updates, in the game of `--lrt-game`.
        needs_images: Whether it works with image data sets only.
        lacks: Why it cannot run in a deployment; empty if it can.
        asks: Settings that ask for more of it, and so are refused without it.
        every: Its setting of which rounds it audits; empty if it has none.
    """

    auditor: ClassVar[str]
    short_name: ClassVar[str] = ""
    bets: ClassVar[bool] = False
    plays: ClassVar[bool] = False
    resamples: ClassVar[bool] = False
    needs_images: ClassVar[bool] = False
    lacks: ClassVar[str] = "resamples the clients' data, which the server does not have"
    asks: ClassVar[tuple[str, ...]] = ()
    every: ClassVar[str] = ""

    @classmethod
    def check(cls, config: Settings) -> None:
        """Raise if the auditor, which is one of the run, cannot work in it."""

    @classmethod
    def memory(cls, config: Settings, dim: int, features: int) -> tuple[int, str]:
        """Return the bytes that it needs beyond a round's updates, and the settings to lower.

        Args:
            config: The settings of the run.
            dim: Number of parameters of the model.
            features: Numbers in one record.
        """
        return 0, ""

    @classmethod
    @abstractmethod
    def make(cls, run: AuditRun) -> Auditor:
        """Return the auditor. What it needs of the run is found in `run`."""

    @classmethod
    def check_others(cls, config: Settings) -> None:
        """Require a client to attack and another to hide it."""
        if config.sample < 2:
            allowed = f"at least 2 for the auditor {cls.auditor}"
            raise config.refused("sample", allowed, "Try --sample 2")

    @classmethod
    def check_target(cls, config: Settings, name: str, everybody: str) -> None:
        """Require a client that exists; `everybody` says what -1 stands for."""
        if getattr(config, name) >= config.clients:
            fix = f"Try {option(name)} -1 for {everybody}"
            raise config.refused(name, f"below --clients {config.clients}", fix)


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
