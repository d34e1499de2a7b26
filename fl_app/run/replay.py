"""A recorded run for `leakmeter replay`, whose rounds are shown to auditors again.

What is heavy is imported once the recording and the settings have been checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import InitVar, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakmeter.auditors.finding import Finding, Limitation
from leakmeter.auditors.replay_log import FOLDER, Recording
from leakmeter.auditors.run_log import REPORT, ROUNDS, RoundLine, RunLog
from leakmeter.auditors.verdict.claim import USER, Claim, claims_of
from leakmeter.fl_app.config.audits import AUDITORS, OneShotSettings
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError, kebab
from leakmeter.fl_app.report.read import REPLAY_OF, Run, read_run
from leakmeter.fl_app.run.folder import MAY_CHANGE, free_path

if TYPE_CHECKING:
    from leakmeter.auditors.auditor import Auditor, Project
    from leakmeter.fl_app.run.progress import Progress

_SELF, _RECORDER = "replay", "recorder"
_AUDIT = {kebab(spec.name) for spec in fields(Config) if spec.metadata["group"] == "audit"}
# Settings of audits that changed the run itself: canaries take part in rounds.
_PLAYED = ("canary-seats", "canaries", "canary-repetitions", "canary-kind")


def free_folder(wanted: str | None, run: Path) -> Path:
    """Return the folder of a replay: the one that the user names, or the next free one.

    Raises:
        ConfigError: The named folder is not empty.
    """
    if not wanted:
        return free_path(run.with_name(f"{run.name}-replay"))
    path = Path(wanted).expanduser().absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"--out must be a new or empty folder, got {path}; choose another")
    return path


@dataclass(frozen=True)
class ReplayConfig(Config):
    """Settings of a replay; its canary seats are those of the run, whatever auditors it has.

    Attributes:
        played: Canary seats of the recorded run.
    """

    played: InitVar[int] = 0

    def __post_init__(self, played: int) -> None:
        object.__setattr__(self, "_played", played)
        super().__post_init__()

    @property
    def seats(self) -> int:
        """Canary seats of the recorded run: who took part follows from them."""
        return int(vars(self)["_played"])


@dataclass(frozen=True)
class Recorded:
    """A run that was recorded.

    Attributes:
        run: Its folder.
        recording: Its rounds.
        config: The settings that it was run with.
        left: What it has written about itself, its report or its rounds; None if nothing.
    """

    run: Path
    recording: Recording
    config: Config
    left: Run | None

    @property
    def report(self) -> Run | None:
        """Its own report; None if it was not finished."""
        return self.left if self.left and self.left.is_finished else None

    def settings(self, given: Mapping[str, Any]) -> ReplayConfig:
        """Return the settings of a replay.

        Args:
            given: What the user has typed, by kebab-case names.

        Raises:
            ConfigError: One of them belongs to the run itself, or they cannot be combined.
        """
        ours = self.config.to_mapping()
        self._check_given(given, ours)
        own = ",".join(name for name in self.config.auditor_names if name != _RECORDER)
        here = {"auditors": own, "engine": "inline", "ray-address": "", "stop-above": 0.0}
        here |= {"fail-above": 0.0, "require-guarantee": 0.0, "against": ""}
        # As many rounds as canaries played in then, whatever bounds and claims would ask for now.
        played: dict[str, Any] = {"canary-repetitions": OneShotSettings.repetitions(self.config)}
        # Recordings of earlier releases say no kind, and then it is not that of "auto".
        kinds = (o.kind for one in self.recording.rounds for o in one.instructed.values())
        played["canary-kind"] = next(kinds, self.config.canary_kind)
        merged = {**ours, **here, **given, **(played if self.config.seats else {})}
        values = {spec.name: merged[kebab(spec.name)] for spec in fields(Config)}
        config = ReplayConfig(**values, played=self.config.seats)
        self._check_auditors(config)
        return config

    def _check_given(self, given: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
        """Raise if a setting was given that changed the run itself."""
        for name, value in given.items():
            if name in ("seed", *_PLAYED) and value != ours[name]:
                has = "data and canaries" if name == "seed" else "canaries"
                raise ConfigError(
                    f"the recording has {has} of {name} {ours[name]}, got --{name} {value}: "
                    f"canaries cannot be played in hindsight. Leave --{name} out"
                )
            if name not in (*_AUDIT, "data-dir", "download", "device", "seed"):
                raise ConfigError(
                    f"--{name} is not a setting of audits: the recorded run has {name} = "
                    f"{ours[name]}, and a replay does not train. Leave it out, or start a new run "
                    f"with --config {self.run / 'config.toml'} --{name} {value}"
                )

    def _check_auditors(self, config: Config) -> None:
        """Raise if there is no auditor, or one that cannot audit a recording."""
        if not config.auditor_names:
            raise ConfigError(
                "--auditors must name at least one for a replay, got none: try --auditors one-shot"
            )
        if _RECORDER in config.auditor_names:
            raise ConfigError(
                f"--auditors must not name {_RECORDER} in a replay: {self.recording.folder} is "
                "the recording already. Leave it out"
            )
        if "one-shot" in config.auditor_names and "one-shot" not in self.config.auditor_names:
            raise ConfigError(
                "one-shot looks for canaries, and the recorded run has played none: they cannot be "
                "played in hindsight. Run again with --auditors one-shot,recorder"
            )
        if self.recording.about.get("deployed"):
            from leakmeter.fl_app.deployment import check_auditors_deployed  # imports Flower

            check_auditors_deployed(config)

    def kept_findings(self) -> list[Finding]:
        """Return what the mechanism of the run guarantees, whatever the auditors."""
        of_the_run = () if self.report is None else self.report.of_the_run
        return [one for one in of_the_run if one.auditor not in AUDITORS]

    def claims(self, config: Config) -> tuple[Claim, ...]:
        """Return what is claimed: by the settings of the replay, and by the run's own noise."""
        noted = () if self.report is None else self.report.claims
        return claims_of([*claims_of(config.claim), *(one for one in noted if one.source != USER)])

    def limitations(self) -> Iterator[Limitation]:
        """Yield that this is a replay, and what the run has said about itself."""
        yield Limitation(
            _SELF,
            f"These auditors looked at the recorded rounds of {self.run}; nothing was trained. "
            "Warnings and guarantees are those of that run.",
        )
        recording = self.recording
        if not recording.is_whole:
            yield Limitation(
                _SELF,
                f"The run was interrupted: {len(recording.rounds)} of {recording.num_rounds} "
                "planned rounds are audited. Bounds share their confidence among all planned "
                "rounds.",
            )
        if self.report is None:
            yield Limitation(
                _SELF, "The run has no report.json, so its warnings and guarantees are missing."
            )
        else:
            yield from (one for one in self.report.limitations if one.auditor not in AUDITORS)


def open_recorded(path: Path) -> Recorded:
    """Return the recorded run in a folder, or around its recording.

    Raises:
        ConfigError: There is none, or a file of it is missing, damaged or of another run.
    """
    path = path.expanduser().absolute()
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    if not (folder / "plan.json").is_file():
        raise ConfigError(
            f"RUN must be a recorded run with {FOLDER}/plan.json, got {path}; record one with "
            "--auditors one-shot,recorder"
        )
    try:
        recording = Recording.open(folder)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    run = folder.parent if folder.name == FOLDER else folder
    config = _settings(run, recording)
    left = read_run(run) if any((run / name).is_file() for name in (REPORT, ROUNDS)) else None
    if left is not None and left.is_finished and not recording.is_whole:
        missing = f"round-{len(recording.rounds) + 1:06d}.npz"
        raise ConfigError(
            f"{folder} must contain all {recording.num_rounds} rounds of the finished run, lacks "
            f"{missing}: copy it from where the run was recorded"
        )
    return Recorded(run, recording, config, left)


def _settings(run: Path, recording: Recording) -> Config:
    """Return the settings that the run was recorded with."""
    path, noted = run / "config.toml", recording.about.get("config")
    if noted is None and not path.is_file():
        raise ConfigError(
            f"RUN must have its settings in {path}, which is missing. If another project was "
            "recorded, call leakmeter.replay(folder, auditors) in Python"
        )
    if noted is None:
        return Config.from_toml(path)
    try:
        config = Config.from_mapping(noted)
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{recording.folder / 'plan.json'}: {error}") from None
    if not path.is_file():
        return config
    now = Config.from_toml(path).to_mapping()
    for name, value in config.to_mapping().items():
        if now[name] != value and name not in (*_AUDIT - set(_PLAYED), *MAY_CHANGE):
            raise ConfigError(
                f"{path} has {name} = {now[name]}, but the recording is of a run with {name} = "
                f"{value}: undo the change"
            )
    return config


def audit_again(recorded: Recorded, config: Config, out: Path, progress: Progress) -> Run:
    """Audit the recorded rounds and write the folder of the replay.

    Args:
        recorded: The run.
        config: Its settings, with those of the audit as the user wants them.
        out: New folder.
        progress: Called with rounds and stages.

    Raises:
        ConfigError: The recording does not fit the settings or an auditor, or is damaged.
    """
    # The first one marks this process as a simulation, so that the seed gives the run's own draws.
    import leakmeter.fl_app.engines.inline  # noqa: F401
    from leakmeter.auditors.hook.panel import Panel
    from leakmeter.auditors.verdict.labels import short_name
    from leakmeter.fl_app import build
    from leakmeter.fl_app.run.run import use_one_thread
    from leakmeter.fl_app.task import device_line, device_of, load_task

    device = device_of(config.device).type
    use_one_thread()
    recording, task = recorded.recording, load_task(config)
    if recording.dim != task.dim:
        raise ConfigError(
            f"{recording.folder / 'plan.json'} must be of a model with {task.dim} parameters "
            f"({config.dataset}, {config.model}), got dim {recording.dim}: the recording is of "
            "another run, or the data have changed"
        )
    auditors = build.auditors(config, task.dim, progress.audit)
    left_out = list(_checked(recording, auditors))
    about = {**config.to_mapping(), "device": device, REPLAY_OF: str(recorded.run)}
    try:
        log = RunLog(out, about, name=f"{recorded.run.name} (replay)")
    except OSError as error:
        raise ConfigError(f"--out must be writable, got {out}: {error.strerror}") from None
    if words := device_line(config.device):
        progress.say(words)
    panel, claims = Panel(auditors), recorded.claims(config)
    rounds = len(recording.rounds)
    lines = [
        f"replay    {recorded.run}",
        f"rounds    {rounds} of {recording.dim:,} parameters; nothing is trained",
        f"audit     {', '.join(map(short_name, config.auditor_names))}",
    ]
    progress.begin_with(lines, rounds)
    progress.claims(claims)
    panel.begin(
        recording.dim,
        recording.num_rounds,
        log.folder,
        first_round=recording.first_round,
        claims=claims,
    )
    for project in _projects(recording, config, claims):
        panel.consider(project)
    played = recorded.left.rounds if recorded.left else ()
    metrics = {one.server_round: one.metrics for one in played}  # what the run measured after each
    for view in recording.views():
        found = tuple(panel.observe(view))
        known = metrics.get(view.server_round, {})
        line = RoundLine(view.server_round, len(view.replies), known, found)
        log.add(line)
        progress.round(line)
    own = panel.report() + recorded.kept_findings()
    limitations = [*recorded.limitations(), *left_out, *panel.limitations]
    warnings = () if recorded.report is None else recorded.report.warnings
    log.finish(own, panel.failures, limitations, warnings, claims=claims)
    panel.close()
    return read_run(out)


def _checked(recording: Recording, auditors: list[Auditor]) -> Iterator[Limitation]:
    """Yield what the recording lacks for auditors, after a look at every vector."""
    try:
        for auditor in auditors:
            for words in recording.check(auditor):
                yield Limitation(auditor.name, words)
        for _ in recording.views():  # a damaged file is an error now, not after hours
            pass
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _projects(recording: Recording, config: Config, claims: tuple[Claim, ...]) -> list[Project]:
    """Return what the run knew before it began, and once its first round had chosen clients."""
    from leakmeter.auditors.hook.wrapper import survey
    from leakmeter.fl_app.build import server_strategy

    first, facts = recording.rounds[0], recording.rounds[0].facts
    known = survey(server_strategy(config), recording.dim, recording.num_rounds, claims)
    chosen = replace(
        known,
        clients=facts.asked or len(first.replies) or facts.num_clients,
        seats=len(first.instructed),
        has_client_noise=(facts.share_std or 0.0) > 0,
    )
    return [known, chosen]
