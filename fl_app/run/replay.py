"""Shows the rounds of a recorded run to auditors and writes a folder as a run does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits

# Marks this process as a simulation, so that the seed gives the same draws as in the run.
import leakmeter.fl_app.engines.inline  # noqa: F401
from leakmeter.auditors import Auditor, Finding, Limitation
from leakmeter.auditors.auditor import Project
from leakmeter.auditors.hook.chain import survey
from leakmeter.auditors.hook.panel import Panel
from leakmeter.auditors.replay_log import Recording
from leakmeter.auditors.run_log import RoundLine, RunLog
from leakmeter.fl_app import build
from leakmeter.fl_app.config.audits import AUDITORS
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.report.read import REPLAY_OF
from leakmeter.fl_app.run.progress import Progress
from leakmeter.fl_app.run.recorded import Recorded
from leakmeter.fl_app.run.run import Outcome
from leakmeter.fl_app.task import load_task

_SELF = "replay"


def new_folder(wanted: Path | None, run: Path) -> Path:
    """Return the folder of a replay: the one that the user names, or the next free one.

    Raises:
        ConfigError: The named folder is not empty.
    """
    if wanted is None:
        base = path = run.with_name(f"{run.name}-replay")
        number = 2
        while path.exists():
            path, number = base.with_name(f"{base.name}-{number}"), number + 1
        return path
    path = wanted.expanduser().absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"--out must be a new or empty folder, got {path}; choose another")
    return path


def audit_again(recorded: Recorded, config: Config, out: Path, progress: Progress) -> Outcome:
    """Audit the recorded rounds and write the folder of the replay.

    Args:
        recorded: The run.
        config: Its settings, with those of the audit as the user wants them.
        out: New folder.
        progress: Called with rounds and stages.

    Raises:
        ConfigError: The recording does not fit the settings or an auditor, or is damaged.
    """
    # As the run did: on one thread sums have the same last bits.
    torch.set_num_threads(1)
    threadpool_limits(limits=1)
    recording, task = recorded.recording, load_task(config)
    if recording.dim != task.dim:
        raise ConfigError(
            f"{recording.folder / 'plan.json'} must be of a model with {task.dim} parameters "
            f"({config.dataset}, {config.model}), got dim {recording.dim}: the recording is of "
            "another run, or the data have changed"
        )
    auditors = build.auditors(config, task.dim, progress.audit)
    left_out = list(_checked(recording, auditors))
    about = {**config.to_mapping(), REPLAY_OF: str(recorded.run)}
    try:
        log = RunLog(out, about, name=f"{recorded.run.name} (replay)")
    except OSError as error:
        raise ConfigError(f"--out must be writable, got {out}: {error.strerror}") from None
    progress.begin_replay(
        str(recorded.run), config.auditor_names, recording.dim, len(recording.rounds)
    )
    panel = Panel(auditors)
    panel.begin(recording.dim, recording.num_rounds, log.folder, first_round=recording.first_round)
    for project in _projects(recording, config):
        panel.consider(project)
    findings = _observed(recorded, panel, log, progress)
    own = panel.report() + _carried(recorded)
    limitations = [*_remarks(recorded), *left_out, *panel.limitations]
    warnings = () if recorded.report is None else recorded.report.warnings
    log.finish(own, panel.failures, limitations, warnings)
    panel.close()
    return Outcome(findings + own, panel.failures, limitations, warnings)


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


def _projects(recording: Recording, config: Config) -> list[Project]:
    """Return what the run knew before it began, and once its first round had chosen clients."""
    first, facts = recording.rounds[0], recording.rounds[0].facts
    known = survey(build.server_strategy(config), recording.dim, recording.num_rounds)
    chosen = replace(
        known,
        clients=facts.asked or len(first.replies) or facts.num_clients,
        seats=len(first.instructed),
        has_client_noise=(facts.share_std or 0.0) > 0,
    )
    return [known, chosen]


def _observed(recorded: Recorded, panel: Panel, log: RunLog, progress: Progress) -> list[Finding]:
    """Show the rounds and write a line for each, with what the run measured after it."""
    findings: list[Finding] = []
    for view in recorded.recording.views():
        metrics = recorded.metrics.get(view.server_round, {})
        found = tuple(panel.observe(view))
        line = RoundLine(view.server_round, len(view.replies), metrics, found)
        log.add(line)
        progress.round(line)
        findings += found
    return findings


def _carried(recorded: Recorded) -> list[Finding]:
    """Return what the mechanism of the run guarantees, whatever the auditors."""
    if recorded.report is None:
        return []
    return [f for f in recorded.report.of_the_run if f.auditor not in AUDITORS]


def _remarks(recorded: Recorded) -> Iterator[Limitation]:
    """Yield that this is a replay, and what the run has said about itself."""
    yield Limitation(
        _SELF,
        f"These auditors looked at the recorded rounds of {recorded.run}; nothing was trained. "
        "Warnings and guarantees are those of that run.",
    )
    recording = recorded.recording
    if not recording.is_whole:
        yield Limitation(
            _SELF,
            f"The run was interrupted: {len(recording.rounds)} of {recording.num_rounds} planned "
            "rounds are audited. Bounds share their confidence among all planned rounds.",
        )
    if recorded.report is None:
        yield Limitation(
            _SELF, "The run has no report.json, so its warnings and guarantees are missing."
        )
    else:
        said = recorded.report.limitations
        yield from (one for one in said if one.auditor not in AUDITORS)
