"""A run as its folder has it: the fields of report.json, schema 2, and what reads them.

The annotations here and in `auditors.finding` are the one statement of the fields. `docs/report.md`
describes them in words, `docs/report.schema.json` is made from them. A finished run has its report,
one in progress its rounds.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from leakmeter.auditors.assumptions import is_known
from leakmeter.auditors.auditor import Schedule
from leakmeter.auditors.codec import DEFINITIONS, CodecError, codec, short
from leakmeter.auditors.finding import Finding, Limitation, RunWarning
from leakmeter.auditors.run_log import SCHEMA
from leakmeter.fl_app.config.config import CALIBRATED
from leakmeter.fl_app.config.errors import ConfigError

Schema = Literal["leakmeter-report/2"]
_DERIVED: Final = "conditional"
# What the classes themselves check, for the schema: by class, then by field or items of a field.
_SHARE: Final = {"minimum": 0, "maximum": 1}
_COUNT: Final = {"minimum": 0}
_LIMITS: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    "Round": {"server_round": {"minimum": 1}, "num_clients": _COUNT},
    "Finding": {
        "value": {"not": {"const": "nan"}},
        "delta": {"minimum": 0, "exclusiveMaximum": 1},
        "confidence": {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
        "server_round": {"minimum": 1},
    },
    "ThreatModel": {"participations": _COUNT, "colluders": _COUNT},
    "RunWarning": {"value": _SHARE, "count": _COUNT, "total": {"minimum": 1}},
    "ErrorCurve": {
        "deltas": {"minimum": 0, "exclusiveMaximum": 1},
        **dict.fromkeys(("fpr", "fnr", "observed_fpr", "observed_fnr", "balanced_error"), _SHARE),
    },
    "Schedule": {"every": {"minimum": -1}, "num_rounds": _COUNT, "audited": {"minimum": 1}},
    "Histogram": {"included": _COUNT, "excluded": _COUNT, "null": _SHARE},
}
_DEEPEST = 100  # levels of lists and objects
_LEVELS = f"with at most {_DEEPEST} levels of lists and objects in one another"
REPLAY_OF = "replay-of"  # noted with the settings: the folder of the recorded run
# Settings that every run of our own command line notes.
_OURS = {"dataset", "model", "algorithm", "secagg", "auditors", "engine"}


@dataclass(frozen=True)
class Round:
    """One finished round.

    Attributes:
        server_round: Which round, from 1.
        accuracy: Accuracy after it, if anybody measured it.
        num_clients: Clients whose updates arrived.
        metrics: All metrics of training and evaluation.
    """

    server_round: int
    accuracy: float | None
    num_clients: int
    metrics: Mapping[str, float]

    def __post_init__(self) -> None:
        for name, least in (("server_round", 1), ("num_clients", 0)):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")


@dataclass(frozen=True)
class Line(Round):
    """One line of rounds.jsonl: a round and what it showed.

    Attributes:
        schema: Name and number of this schema.
        findings: Those of this round.
    """

    schema: Schema
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Report:
    """What a finished run leaves.

    Attributes:
        schema: Name and number of this schema.
        config: Settings of the run.
        versions: Releases of Python and of packages that numbers may depend on.
        rounds: Finished rounds.
        findings: Those of the rounds in their order, then those of the run.
        failures: Auditors that were left out, when and why.
        limitations: What auditors cannot see or show in this project.
        warnings: Reasons to doubt the run itself.
        glossary: Each assumption of the findings with its sentence.
        name: What the run is called, if somebody named it.
        schedules: Which rounds auditors looked at, of those that may skip some.
    """

    schema: Schema
    config: Mapping[str, Any]
    versions: Mapping[str, str]
    rounds: tuple[Round, ...]
    findings: tuple[Finding, ...]
    failures: tuple[str, ...]
    limitations: tuple[Limitation, ...]
    warnings: tuple[RunWarning, ...]
    glossary: Mapping[str, str]
    name: str | None = None
    schedules: tuple[Schedule, ...] = ()


@dataclass(frozen=True)
class Run:
    """All that a page says of one run.

    Attributes:
        name: Of its folder; differs between the runs of a page.
        folder: Where it was read from.
        config: Settings, as far as the run noted them.
        versions: Package to release.
        rounds: Finished rounds.
        findings: Of the rounds and, once it is finished, of the run.
        failures: Which auditors were left out, and why.
        limitations: What auditors cannot see or show here.
        warnings: Reasons to doubt the run itself.
        schedules: Which rounds auditors looked at, of those that may skip some.
        is_finished: Whether it has its report.
        is_running: Whether a process is still adding to it.
    """

    name: str
    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    rounds: tuple[Round, ...] = ()
    findings: tuple[Finding, ...] = ()
    failures: tuple[str, ...] = ()
    limitations: tuple[Limitation, ...] = ()
    warnings: tuple[RunWarning, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    is_finished: bool = True
    is_running: bool = False

    @property
    def of_the_run(self) -> tuple[Finding, ...]:
        """Findings about the run as a whole."""
        return tuple(f for f in self.findings if f.server_round is None)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of our own command line; none for a project whose words may mean else."""
        return self.config if set(self.config) >= _OURS else {}

    @property
    def accuracy(self) -> float | None:
        """The last that was measured."""
        known = [one.accuracy for one in self.rounds if one.accuracy is not None]
        return known[-1] if known else None


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Return the runs, with names that differ."""
    runs = [read_run(path) for path in paths]
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return runs
    return [replace(run, name=f"{i}: {run.name}") for i, run in enumerate(runs, start=1)]


def read_run(path: Path) -> Run:
    """Return the run in a folder; a file in it names the folder as well."""
    path = path.expanduser().absolute()
    folder = path.parent if path.is_file() else path
    report, rounds = folder / "report.json", folder / "rounds.jsonl"
    if report.is_file():
        return _finished(folder, report)
    if rounds.is_file():
        return _unfinished(folder, rounds)
    raise ConfigError(
        f"RUN must be the folder of a run with report.json or rounds.jsonl, got {path}"
    )


def _finished(folder: Path, path: Path) -> Run:
    values = _parsed(_text(path), str(path))
    schema = values.get("schema") if isinstance(values, dict) else None
    if schema != SCHEMA:
        raise ConfigError(_foreign(path, schema))
    report: Report = _read(Report, values, path)
    known = {f.name: getattr(report, f.name) for f in fields(report)}
    _check_rounds(report.rounds, path)
    known["name"] = report.name or folder.name
    known["findings"] = tuple(_explained(f, report.glossary) for f in report.findings)
    del known["schema"], known["glossary"]
    return Run(folder=folder, **known)


def _unfinished(folder: Path, path: Path) -> Run:
    lines = [line for line in _text(path).splitlines(keepends=True) if line.endswith("\n")]
    values = [_parsed(line, f"{path}, line {i}") for i, line in enumerate(lines, start=1)]
    schemas = [v.get("schema") for v in values if isinstance(v, dict)]
    if other := [schema for schema in schemas if schema != SCHEMA]:
        raise ConfigError(_foreign(path, other[0]))
    rounds: tuple[Line, ...] = _read(tuple[Line, ...], values, path, "rounds")
    _check_rounds(rounds, path)
    return Run(
        name=folder.name,
        folder=folder,
        config=_settings(folder / "config.toml") | _settings(folder / CALIBRATED),
        rounds=rounds,
        findings=tuple(f for line in rounds for f in line.findings),
        is_finished=False,
    )


def _read(cls: Any, values: Any, path: Path, where: str = "") -> Any:
    """Return the values in their form; a wrong one is a user's mistake."""
    try:
        return read(cls, values, where)
    except CodecError as error:
        raise ConfigError(f"{path}: {error}") from None


def _check_rounds(rounds: Sequence[Round], path: Path) -> None:
    """Refuse a round that is listed twice: which of the two happened?"""
    counts = Counter(one.server_round for one in rounds)
    if twice := [n for n, count in counts.items() if count > 1]:
        raise ConfigError(f"{path}: rounds must list each round once, got round {twice[0]} again")


def _explained(finding: Finding, glossary: Mapping[str, str]) -> Finding:
    """Return a finding whose assumptions that are none of ours are the report's own sentences."""

    def words(name: str) -> str:
        text = glossary.get(name, "")
        # A name of ours in place of a sentence would pass for an assumption that we have checked.
        return text if text and not is_known(name) and not is_known(text) else name

    return replace(finding, assumptions=tuple(map(words, finding.assumptions)))


def _foreign(path: Path, schema: Any) -> str:
    """Return why a file is not read, and what to do about it."""
    return (
        f"{path}: schema must be {SCHEMA}, got {short(schema)}. Another release of leakmeter wrote "
        "it: read it with that release, or run it again with this one."
    )


def _settings(path: Path) -> dict[str, Any]:
    """Return the settings next to the log of an unfinished run; a foreign project leaves none."""
    if not path.is_file():
        return {}
    try:
        return dict(_shallow(tomllib.loads(_text(path))))
    except RecursionError:
        raise ConfigError(f"{path} must be a TOML file {_LEVELS}") from None
    except ValueError as error:
        raise ConfigError(f"{path} must be a TOML file: {error}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} must be readable: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} must be UTF-8 text") from None


def _parsed(content: str, where: str) -> Any:
    try:
        values = _shallow(json.loads(content, object_pairs_hook=_object))
        json.dumps(values, ensure_ascii=False).encode()
    except RecursionError:
        raise ConfigError(f"{where} must be JSON {_LEVELS}") from None
    except UnicodeEncodeError as error:
        got = error.object[error.start]
        raise ConfigError(f"{where} must be Unicode text, got half a character: {got!r}") from None
    except ValueError as error:
        raise ConfigError(f"{where} must be JSON, as a run writes it: {error}") from None
    return values


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; Python would silently keep the last of several equal names."""
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the name {short(twice)} occurs twice in one object")
    return found


def _shallow(values: Any) -> Any:
    """Return the values.

    Raises:
        RecursionError: They are nested so deeply that whoever walks through them may fail.
    """
    level = [values]
    for _ in range(_DEEPEST):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
    if level:
        raise RecursionError
    return values


def read(hint: Any, values: Any, where: str = "") -> Any:
    """Return values in the form of a type, a report or lines of one.

    Raises:
        CodecError: They have another form. The text names the place.
    """
    found = codec(hint).read(values, where)
    lines = values if isinstance(values, list) else [values]
    for i, line in enumerate(lines):
        inside = f"{where}[{i}]." if isinstance(values, list) else ""
        for j, finding in enumerate(line.get("findings", ())):
            # Follows from the kind and the assumptions, so the value itself is not needed.
            codec(bool).read(finding.get(_DERIVED, False), f"{inside}findings[{j}].{_DERIVED}")
    return found


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of report.json."""
    # Through text, so that nothing in it is shared with another part.
    schema: dict[str, Any] = json.loads(json.dumps(codec(Report).schema))
    _limit(schema)
    # Not a field: it follows from the kind and the assumptions, and is written for other readers.
    schema["properties"]["findings"]["items"]["properties"][_DERIVED] = {
        "type": "boolean",
        "description": "Whether it is a lower bound only if something holds that nobody checked.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": get_args(Schema)[0],
        "$defs": dict(DEFINITIONS),
    }


def _limit(schema: dict[str, Any]) -> None:
    """Put the limits of numbers into the schema of a class and all that it contains."""
    limits = _LIMITS.get(schema.get("title", ""), {})
    for name, one in schema.get("properties", {}).items():
        (one["items"] if one.get("type") == "array" else one).update(limits.get(name, {}))
        _limit(one)
    for inner in (schema.get("items"), *schema.get("anyOf", ())):
        if inner is not None:
            _limit(inner)
