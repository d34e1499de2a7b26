"""A recorded run for `leakmeter replay`: the recording, its settings, its report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, fields
from pathlib import Path
from typing import Any

from leakmeter.auditors.replay_log import FOLDER, Recording
from leakmeter.auditors.run_log import read_rounds
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.config.field import kebab
from leakmeter.fl_app.report.read import Run, read_run
from leakmeter.fl_app.run.folder import MAY_CHANGE

_RECORDER = "recorder"
_AUDIT = {kebab(spec.name) for spec in fields(Config) if spec.metadata["group"] == "audit"}
# Settings of audits that changed the run itself: canaries take part in rounds.
_PLAYED = ("canary-seats", "canaries", "canary-repetitions")


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
        report: Its own report; None if it was not finished.
        metrics: What was measured after each round, as far as it is known.
    """

    run: Path
    recording: Recording
    config: Config
    report: Run | None
    metrics: Mapping[int, Mapping[str, float]]

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
        values = {kebab(f.name): f.name for f in fields(Config)}
        merged = {**ours, **here, **given}
        config = ReplayConfig(
            **{values[name]: value for name, value in merged.items()}, played=self.config.seats
        )
        self._check_auditors(config)
        return config

    def _check_given(self, given: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
        """Raise if a setting was given that changed the run itself."""
        for name, value in given.items():
            if name == "seed" and value != ours[name]:
                raise ConfigError(
                    f"the recording has data and canaries of seed {ours[name]}, got --seed {value}:"
                    " canaries cannot be played in hindsight. Leave --seed out"
                )
            if name in _PLAYED and value != ours[name]:
                raise ConfigError(
                    f"the recording has canaries of {name} {ours[name]}, got --{name} {value}: "
                    f"canaries cannot be played in hindsight. Leave --{name} out"
                )
            if name not in (*_AUDIT, "data-dir", "download", "seed"):
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
    report = read_run(run) if (run / "report.json").is_file() else None
    if report is not None and not recording.is_whole:
        missing = f"round-{len(recording.rounds) + 1:06d}.npz"
        raise ConfigError(
            f"{folder} must contain all {recording.num_rounds} rounds of the finished run, lacks "
            f"{missing}: copy it from where the run was recorded"
        )
    return Recorded(run, recording, config, report, _metrics(run))


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
    ours, now = config.to_mapping(), Config.from_toml(path).to_mapping()
    for name, value in ours.items():
        if now[name] != value and name not in (*_AUDIT - set(_PLAYED), *MAY_CHANGE):
            raise ConfigError(
                f"{path} has {name} = {now[name]}, but the recording is of a run with {name} = "
                f"{value}: undo the change"
            )
    return config


def _metrics(run: Path) -> dict[int, dict[str, float]]:
    """Return what was measured after each round, from the run's own log."""
    try:
        return {
            int(line["server_round"]): {k: float(v) for k, v in line["metrics"].items()}
            for line in read_rounds(run)
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{run / 'rounds.jsonl'} must contain whole lines of a run, got {error!r}"
        ) from None
