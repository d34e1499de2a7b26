"""A Flower app as its folder has it: components, settings, and a digest of its files.

Imports nothing heavy: a wrong path must be an error at once.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Self

from leakmeter.auditors.errors import shown
from leakmeter.fl_app.config.field import (
    ConfigError,
    expanded,
    nearest,
    out_of_range,
    read_toml,
    shown_name,
)

Value = bool | int | float | str
_PYPROJECT: Final = "pyproject.toml"
_OURS: Final = "leakmeter"
# What `flwr run` bundles; data sets and checkpoints next to them may have gigabytes.
_BUNDLED: Final = {".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl"}
# The same grammar as that of `flwr run --run-config`: pairs, separated by blanks.
_PAIR: Final = re.compile(r"""\s*([^\s=]+)\s*=\s*("[^"]*"|'[^']*'|\[[^\]]*\]|\S+)\s*""")
_COMPONENT: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_IMPORT: Final = re.compile(rf"^\s*(from|import)\s+{_OURS}\b", re.MULTILINE)
_ROUNDS: Final = ("num-server-rounds", "num-rounds", "rounds")
_NUMBERS: Final = {"partition-id", "num-partitions"}  # which every client is given
_EXAMPLE: Final = 'serverapp = "my_app.server_app:app"'


@dataclass(frozen=True)
class AppProject:
    """A Flower app in its folder.

    Attributes:
        path: The folder.
        name: Of the project.
        server: Where its ServerApp is, as "module:attribute".
        client: Where its ClientApp is.
        config: Its settings with flat names, as in `context.run_config`.
        claims: What it claims about its privacy, `claims` in [tool.leakmeter].
        node: What each client's `context.node_config` has beyond its number and how many there are.
    """

    path: Path
    name: str
    server: str
    client: str
    config: Mapping[str, Value]
    claims: tuple[str, ...] = ()
    node: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path, run_config: str = "", node_config: str = "") -> Self:
        """Return the app in a folder, with `run_config` over its own settings."""
        folder = expanded("PATH", path)
        if not (folder / _PYPROJECT).is_file():
            raise ConfigError(_no_app(folder))
        table = read_toml(folder / _PYPROJECT, "the app's file")
        app = _table(table, "tool", "flwr", "app")
        server, client = (_component(folder, app, one) for one in ("serverapp", "clientapp"))
        name = str(_table(table, "project").get("name") or folder.name)
        if name == _OURS:
            fix = f"Try {folder / 'examples' / 'logistic_sklearn' / 'before'}"
            raise out_of_range("PATH", "an app's folder, not Leakmeter's", str(folder), fix=fix)
        config = dict(_flat(_table(app, "config")))
        settings = {**config, **_given(run_config, config)}
        node = _typed("--node-config", node_config)
        if given := _NUMBERS & set(node):
            raise out_of_range(
                "--node-config", "settings other than the client's number", min(given)
            )
        return cls(folder, name, server, client, settings, _claims(folder, table), node)

    @property
    def rounds(self) -> int | None:
        """How many rounds its settings plan; None where no setting has a usual name."""
        name = self.rounds_name
        found = None if name is None else int(self.config[name])
        return found if found and found > 0 else None

    @property
    def rounds_name(self) -> str | None:
        """What its settings call the number of rounds; None where none has a usual name."""
        # The outermost last: of two equal names it counts.
        settings = sorted(self.config.items(), key=lambda item: -item[0].count("."))
        named = {
            key.rpartition(".")[2].replace("_", "-"): key
            for key, value in settings
            if type(value) is int
        }
        return next((named[name] for name in _ROUNDS if name in named), None)

    def files(self, *left_out: Path) -> list[Path]:
        """Return the files that Flower would bundle, without folders that are `left_out`."""
        hidden = {one.resolve() for one in left_out}
        found = []
        for folder, inner, names in os.walk(self.path):
            inner[:] = [one for one in inner if _is_own(Path(folder, one), hidden)]
            found += [Path(folder, one) for one in names if Path(one).suffix in _BUNDLED]
        return sorted(found)

    def digest(self, *left_out: Path) -> str:
        """Return the SHA-256 of names and contents of these files, in hexadecimal digits."""
        whole = sha256()
        for file in self.files(*left_out):
            content = sha256(file.read_bytes()).hexdigest()
            whole.update(f"{content}  {file.relative_to(self.path).as_posix()}\n".encode())
        return whole.hexdigest()


def _is_own(folder: Path, hidden: set[Path]) -> bool:
    is_cache = folder.name.startswith(".") or folder.name == "__pycache__"
    return not is_cache and folder.resolve() not in hidden


def _no_app(folder: Path) -> str:
    """Return what is wrong with a folder without an app, with the nearest one that has it."""
    inside = sorted(folder.glob(f"*/{_PYPROJECT}")) if folder.is_dir() else []
    inside.sort(key=lambda file: _audits_itself(file.parent))  # one that does needs no command
    what = "a folder without one" if folder.is_dir() else "no folder"
    fix = f" Try {inside[0].parent}." if inside else " Try the folder where you call `flwr run .`."
    return f"PATH must be the folder of a Flower app with {_PYPROJECT}, got {what}: {folder}.{fix}"


def _audits_itself(folder: Path) -> bool:
    """Whether any code in a folder imports this package."""
    files = folder.rglob("*.py")
    return any(_IMPORT.search(one.read_text("utf-8", errors="replace")) for one in files)


def _component(folder: Path, app: Mapping[str, Any], name: str) -> str:
    """Return where an app is; raise with the line that is missing or wrong."""
    found = _table(app, "components").get(name)
    if isinstance(found, str) and _COMPONENT.fullmatch(found):
        return found
    got = "none" if found is None else shown(found)
    example = _EXAMPLE.replace("server", name.removesuffix("app"))
    raise ConfigError(
        f"{folder / _PYPROJECT} must name the app's {name} in [tool.flwr.app.components] as "
        f"module:attribute, got {got}. Add {example}; an app that calls start_simulation has no "
        "components and cannot be audited as it is."
    )


def _claims(folder: Path, table: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the project claims about its privacy."""
    found = _table(table, "tool", "leakmeter").get("claims", [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ConfigError(
            f"{folder / _PYPROJECT} must list claims in [tool.leakmeter] as texts, got "
            f'{shown(found)}. Try claims = ["10@1e-5 server round"].'
        )
    return tuple(found)


def _table(table: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return a table inside a table; an empty one where there is none."""
    for name in names:
        inner = table.get(name, {})
        table = inner if isinstance(inner, Mapping) else {}
    return table


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Value]]:
    """Yield the settings with names such as "train.lr", as Flower hands them to an app."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _given(text: str, config: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings of `--run-config`, pairs or a TOML file; all must be the app's own."""
    given = _typed("--run-config", text)
    for name in given:
        if name not in config:
            known = f"; it has {', '.join(sorted(config)) or 'none'}"
            hint = nearest(name, config) or known
            raise ConfigError(
                f"--run-config must name settings in [tool.flwr.app.config] of the app, got "
                f"{shown_name(name)}{hint}"
            )
    return given


def _typed(option: str, text: str) -> dict[str, Value]:
    """Return settings that are typed as pairs, or in a TOML file that is named."""
    if text.endswith(".toml") and "=" not in text:
        return dict(_flat(read_toml(Path(text).expanduser(), option)))
    return dict(_pairs(option, text))


def _pairs(option: str, text: str) -> Iterator[tuple[str, Value]]:
    """Yield the pairs of a text such as "lr=0.1 name='x'"."""
    place = 0
    while text[place:].strip():
        found = _PAIR.match(text, place)
        try:
            if found is None:
                raise ValueError
            value: Value = tomllib.loads(f"value = {found[2]}")["value"]
        except ValueError:
            allowed = "pairs in TOML, separated by blanks"
            fix = f"Try {option} \"num-server-rounds=5 name='x'\""
            raise out_of_range(option, allowed, text, fix=fix) from None
        yield found[1], value
        place = found.end()
