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
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal

from leakmeter.auditors.auditor import Schedule
from leakmeter.auditors.codec import CodecError, codec, short
from leakmeter.auditors.finding import Finding, Limitation, RunWarning
from leakmeter.auditors.run_log import PROGRESS, REPORT, ROUNDS, SCHEMA
from leakmeter.auditors.values import require
from leakmeter.auditors.verdict.claim import Claim, claims_of
from leakmeter.auditors.wording import Spelling, is_known
from leakmeter.fl_app.config.config import CALIBRATED
from leakmeter.fl_app.config.field import ConfigError

Schema = Literal["leakmeter-report/2"]
DERIVED: Final = "conditional"  # not a field: it follows from the kind and the assumptions
_MAX_LEVELS = 100  # levels of lists and objects
_LEVELS = f"with at most {_MAX_LEVELS} levels of lists and objects in one another"
# Noted with the settings: the folder of the recorded run, and what has started the run if not our
# own command line.
REPLAY_OF, LAUNCH = "replay-of", "launch"
FLOWER, DEPLOYMENT = "flwr run", "deployment"  # both take settings by --run-config
AUDIT_COMMAND = "leakmeter audit"
FILES = (REPORT, ROUNDS, PROGRESS)  # a run has at least one of them
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
        require("at least 1", server_round=self.server_round)
        require("at least 0", num_clients=self.num_clients)


@dataclass(frozen=True)
class Line(Round):
    """One line of rounds.jsonl: a round and what it showed."""

    schema: Schema
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What a setting does to the model: its run without auditors, so without canaries.

    Attributes:
        settings: Where it differs from the run that it rehearses. Cohorts and noise are those of
            that run: canary seats train like other clients.
        seed: Its random seed.
        accuracies: Accuracy on the test set after each round.
        without_noise: Accuracy of the last model of the same rehearsal without noise; None where
            that was not run, as it is for `--clip-norm auto`.
        clip_norm: Norm that updates were clipped to in the last round; None without clipping.
        clipped_share: Share of all updates that were longer than that.
        norm_quantiles: Share to the norm that as many updates, before clipping, are at most as long
            as.
        signal_to_noise: Norm of the mean update over the norm of the noise on it, median over the
            rounds; None without such noise.
        instead: Settings under which the noise would be small beside the mean update, where it is
            not; empty if none were found.
        guarantees: Every ε that is guaranteed, against each attacker and for each adjacency. With
            noise that hides clients they are those of the run, too; noise for records counts on
            the updates that canaries replace.
    """

    settings: Mapping[str, Any]
    seed: int
    accuracies: tuple[float, ...]
    without_noise: float | None = None
    clip_norm: float | None = None
    clipped_share: float | None = None
    norm_quantiles: Mapping[str, float] = field(default_factory=dict)
    signal_to_noise: float | None = None
    instead: Mapping[str, Any] = field(default_factory=dict)
    guarantees: tuple[Finding, ...] = ()

    @property
    def noiseless(self) -> float | None:
        """Accuracy of the last model without noise, whether or not this is of a run with noise."""
        return self.accuracy if self.settings.get("noise") == "none" else self.without_noise

    @property
    def accuracy(self) -> float:
        """Accuracy of the last model."""
        return self.accuracies[-1]

    def norm(self, share: float = 0.5) -> float:
        """Return a quantile of the norms of updates, one of those that are known."""
        return self.norm_quantiles[f"{share:g}"]


@dataclass(frozen=True, kw_only=True)
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
        claims: What was claimed about the privacy of the run.
        verdict: What the findings say together; the page derives it from them again.
    """

    # A file must have them all; the defaults are for a run that has left no report yet.
    schema: Schema = "leakmeter-report/2"
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    rounds: tuple[Round, ...] = ()
    findings: tuple[Finding, ...] = ()
    failures: tuple[str, ...] = ()
    limitations: tuple[Limitation, ...] = ()
    warnings: tuple[RunWarning, ...] = ()
    glossary: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    schedules: tuple[Schedule, ...] = ()
    claims: tuple[Claim, ...] = ()
    verdict: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run(Report):
    """All that a page says of one run: its report, or as much of it as there is."""

    # Differs between the runs of a page. Without `field`, it would take the report's default.
    name: str = field()
    folder: Path  # where it was read from
    _: KW_ONLY
    rehearsals: tuple[Rehearsal, ...] = ()  # what the report calls `rehearsal`
    parameters: int | None = None  # of the model; None in reports of earlier releases
    is_finished: bool = True  # whether it has its report
    is_running: bool = False  # whether a process is still adding to it
    # When its file was written, in seconds since 1970. No field of the report: the same seed gives
    # the same report.
    written: float | None = None

    def __post_init__(self) -> None:
        # A report's own sentences are for another reader, or by another release.
        spelled = tuple(one.spelled(self.spelling) for one in self.warnings)
        object.__setattr__(self, "warnings", spelled)

    @property
    def spelling(self) -> Spelling:
        """How whoever made the run sets something, for advice in the same language."""
        return spelling_of(self.config)

    @property
    def of_the_run(self) -> tuple[Finding, ...]:
        """Findings about the run as a whole."""
        return tuple(f for f in self.findings if f.server_round is None)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of our own command line; none for a project whose words may mean else."""
        return {} if self.spelling in ("python", "audit") else self.config

    @property
    def accuracy(self) -> float | None:
        """The last that was measured."""
        known = [one.accuracy for one in self.rounds if one.accuracy is not None]
        return known[-1] if known else None

    @property
    def without_noise(self) -> float | None:
        """Accuracy after as many rounds without its noise, if a rehearsal has shown it."""
        if self.settings.get("noise", "none") == "none":
            return None
        heard = (one for one in self.rehearsals if len(one.accuracies) == len(self.rounds))
        return next((found for one in heard if (found := one.noiseless) is not None), None)


def spelling_of(noted: Mapping[str, Any]) -> Spelling:
    """Return how whoever made a run sets something, by the settings that the run has noted."""
    if noted.get(LAUNCH) == AUDIT_COMMAND:
        return "audit"
    if not set(noted) >= _OURS:
        return "python"  # a project of its own, whose words may mean something else
    return "run-config" if LAUNCH in noted else "flags"


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Return the runs, with names that differ."""
    runs = [read_run(path) for path in paths]
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return runs
    return [replace(run, name=f"{i}: {run.name}") for i, run in enumerate(runs, start=1)]


def runs_in(folder: Path) -> list[Path]:
    """Return the runs right below a folder, the one that was written to last first."""
    files = (file for name in FILES for file in folder.glob(f"*/{name}"))
    found = {file.parent for file in files if _has_begun(file)}
    return sorted(found, key=lambda one: (changed(one), one.name), reverse=True)


def _has_begun(file: Path) -> bool:
    """Whether a file of a run says anything: `Audited` makes an empty one before its run."""
    return file.stat().st_size > 0 or (file.parent / "config.toml").is_file()


def changed(folder: Path) -> float:
    """Return when a run was written to, in seconds since 1970."""
    files = (folder / name for name in FILES)
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)


def read_run(path: Path) -> Run:
    """Return the run in a folder; a file in it names the folder as well."""
    path = path.expanduser().absolute()
    folder = path.parent if path.is_file() else path
    for name, made in ((REPORT, _finished), (ROUNDS, _unfinished)):
        if (file := folder / name).is_file():
            try:
                return _checked(made(file))
            except CodecError as error:  # a wrong value is a user's mistake
                raise ConfigError(f"{file}: {error}") from None
    newest = [f"the newest run in it is {one}" for one in runs_in(folder)[:1]]
    fix = newest or ["start a run with: leakmeter --out runs/demo"]
    raise ConfigError(
        f"RUN must be the folder of a run with {REPORT} or {ROUNDS}, got {path}; {fix[0]}"
    )


def _finished(path: Path) -> Run:
    values = _parsed(_text(path), str(path))
    _check_schema(path, [values.get("schema") if isinstance(values, dict) else None])
    report: Report = read(Report, {"claims": [], **values})  # earlier releases had none
    known = {f.name: getattr(report, f.name) for f in fields(report)}
    known["name"] = report.name or path.parent.name
    known["findings"] = tuple(_explained(f, report.glossary) for f in report.findings)
    heard, size = values.get("rehearsal", []), values.get("parameters")
    known["rehearsals"] = codec(tuple[Rehearsal, ...]).read(heard, "rehearsal")
    known["parameters"] = codec(int | None).read(size, "parameters")
    return Run(folder=path.parent, written=path.stat().st_mtime, **known)


def _unfinished(path: Path) -> Run:
    lines = [line for line in _text(path).splitlines(keepends=True) if line.endswith("\n")]
    values = [_parsed(line, f"{path}, line {i}") for i, line in enumerate(lines, start=1)]
    _check_schema(path, [v.get("schema") for v in values if isinstance(v, dict)])
    rounds: tuple[Line, ...] = read(tuple[Line, ...], values, "rounds")
    folder = path.parent
    config = _settings(folder / "config.toml") | _settings(folder / CALIBRATED)
    return Run(
        folder.name,
        folder,
        is_finished=False,
        written=path.stat().st_mtime,
        config=config,
        claims=_claims(config),
        rounds=rounds,
        findings=tuple(f for line in rounds for f in line.findings),
    )


def _claims(config: Mapping[str, Any]) -> tuple[Claim, ...]:
    """Return the claims among the settings of an unfinished run; others are known at its end."""
    stated = config.get("claim")
    try:
        return claims_of(stated) if isinstance(stated, str) else ()
    except ValueError as error:
        raise CodecError(str(error)) from None


def _checked(run: Run) -> Run:
    """Refuse a round that is listed twice: which of the two happened?"""
    counts = Counter(one.server_round for one in run.rounds)
    if twice := [n for n, count in counts.items() if count > 1]:
        raise CodecError(f"rounds must list each round once, got round {twice[0]} again")
    return run


def _check_schema(path: Path, found: Sequence[Any]) -> None:
    """Say why a file of another schema is not read, and what to do about it."""
    if other := [schema for schema in found if schema != SCHEMA]:
        raise ConfigError(
            f"{path}: schema must be {SCHEMA}, got {short(other[0])}. Another release of leakmeter "
            "wrote it: read it with that release, or run it again with this one."
        )


def _explained(finding: Finding, glossary: Mapping[str, str]) -> Finding:
    """Return a finding whose assumptions that are none of ours are the report's own sentences."""

    def words(name: str) -> str:
        text = glossary.get(name, "")
        # A name of ours in place of a sentence would pass for an assumption that we have checked.
        return text if text and not is_known(name) and not is_known(text) else name

    return replace(finding, assumptions=tuple(map(words, finding.assumptions)))


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
    for _ in range(_MAX_LEVELS):
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
            codec(bool).read(finding.get(DERIVED, False), f"{inside}findings[{j}].{DERIVED}")
    return found
