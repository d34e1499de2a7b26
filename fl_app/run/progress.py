"""What a person sees of a run: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from leakmeter.auditors.finding import Finding, Limitation, RunWarning
from leakmeter.auditors.judge.summary import brief, summary
from leakmeter.auditors.run_log import RoundLine
from leakmeter.auditors.wording import number, plain_spaces
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.data.partition import Sizes


class Progress:
    """Shows rounds as they end and the findings at the end."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._bar: Bar | None = None

    def say(self, text: str) -> None:
        """Print one line."""
        self._console.print(plain_spaces(text), markup=False)

    def begin(self, config: Config, dim: int, sizes: Sizes, rounds_done: int) -> None:
        """Say what is about to run."""
        self.say(f"{config.dataset}, {config.model} with {dim:,} parameters")
        self.say(
            f"{config.clients} clients ({sizes}); each round {config.sample} honest ones and "
            f"{config.seats} canary seats; {config.algorithm} clients, {config.server} server"
        )
        if config.target_epsilon:
            self.say(_calibration(config))
        auditors = ", ".join(config.auditor_names) or "none"
        self.say(f"auditors: {auditors}; engine {config.engine}, seed {config.seed}")
        if rounds_done:
            self.say(f"resuming after round {rounds_done} of {config.rounds}")
        self._count(config.rounds, rounds_done)

    def begin_replay(self, source: str, auditors: Sequence[str], dim: int, rounds: int) -> None:
        """Say which recorded run is about to be audited again."""
        self.say(f"replay of {source}: {rounds} rounds of {dim:,} parameters; nothing is trained")
        self.say(f"auditors: {', '.join(auditors)}")
        self._count(rounds, 0)

    def _count(self, rounds: int, done: int) -> None:
        """Show a bar of the rounds, in a terminal."""
        self._total = rounds
        if self._console.is_terminal:
            self._bar = Bar(
                TextColumn("rounds"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("left"),
                TextColumn("{task.fields[audit]}"),
                console=self._console,
                speed_estimate_period=math.inf,  # a round may take minutes, and the next seconds
            )
            self._task = self._bar.add_task("rounds", total=rounds, completed=done, audit="")
            self._bar.start()

    def round(self, line: RoundLine) -> None:
        """Show a finished round."""
        accuracy = "" if line.accuracy is None else f"  accuracy {number(line.accuracy)}"
        first = {f.auditor: f for f in reversed(line.findings)}  # the others are in the report
        findings = "".join(f"  {name} {brief(f)}" for name, f in reversed(first.items()))
        self.say(f"round {line.server_round:>3}/{self._total}{accuracy}{findings}")
        if self._bar is not None:
            self._bar.update(self._task, completed=line.server_round, audit="")

    def audit(self, stage: str, share: float) -> None:
        """Show how far a long audit of the round is."""
        if self._bar is not None:
            self._bar.update(self._task, audit=f"audit: {stage} {share:.0%}")

    def stop(self) -> None:
        """Remove the bar; for a run that ends early as well."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def summary(
        self,
        findings: Sequence[Finding],
        failures: Sequence[str],
        limitations: Sequence[Limitation] = (),
        warnings: Sequence[RunWarning] = (),
    ) -> None:
        """Print the verdict on the run, then a block for each attacker.

        Args:
            findings: Of the run and its rounds; only those of the run are printed.
            failures: Which auditors were left out, and why.
            limitations: What auditors cannot see or show here.
            warnings: Reasons to doubt the run itself.
        """
        self.stop()
        self.say("")
        for line in summary(findings, failures, limitations, warnings):
            self.say(line)


def _calibration(config: Config) -> str:
    """Return the calibrated noise multiplier, and what it is calibrated for."""
    observer = "outsiders who see every model" if config.noise == "central" else "the server"
    world = "added or removed" if config.clipping == "adaptive" else "zeroed out"
    return (
        f"noise multiplier {config.noise_multiplier:g}, calibrated: the planned run guarantees "
        f"ε ≤ {config.target_epsilon:g} at δ = {config.delta:g} for one client that is {world}, "
        f"against {observer} and may know who takes part when"
    )
