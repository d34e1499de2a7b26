"""What a person sees of a run: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from auditors.base import Finding
from auditors.record import RoundLine
from fl_app.config import Config
from fl_app.partition import Sizes


class Progress:
    """Shows rounds as they end and the findings at the end."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._bar: Bar | None = None

    def say(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, markup=False)

    def begin(self, config: Config, dim: int, sizes: Sizes, rounds_done: int) -> None:
        """Say what is about to run."""
        self.say(f"{config.dataset}, {config.model} with {dim:,} parameters")
        self.say(
            f"{config.clients} clients ({sizes}); each round {config.sample} honest ones and "
            f"{config.seats} canary seats; {config.algorithm} clients, {config.server} server"
        )
        auditors = ", ".join(config.auditor_names) or "none"
        self.say(f"auditors: {auditors}; engine {config.engine}, seed {config.seed}")
        if rounds_done:
            self.say(f"going on after round {rounds_done} of {config.rounds}")
        if self._console.is_terminal:
            self._bar = Bar(
                TextColumn("rounds"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._bar.add_task("rounds", total=config.rounds, completed=rounds_done)
            self._bar.start()
        self._total = config.rounds

    def round(self, line: RoundLine) -> None:
        """Show a finished round."""
        accuracy = "" if line.accuracy is None else f"  accuracy {line.accuracy:.3f}"
        findings = "".join(f"  {f.auditor} {brief(f)}" for f in line.findings)
        self.say(f"round {line.server_round:>3}/{self._total}{accuracy}{findings}")
        if self._bar is not None:
            self._bar.update(self._task, completed=line.server_round)

    def stop(self) -> None:
        """Take the bar away; for a run that ends early as well."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def summary(self, findings: Sequence[Finding], failures: Sequence[str]) -> None:
        """Print what the run as a whole shows."""
        self.stop()
        table = Table(
            title="What the whole run leaks, as far as the auditors can tell",
            title_justify="left",
            show_lines=True,
        )
        for heading in ("adversary, and how it was measured", "says", "when nothing\nleaks"):
            table.add_column(heading, overflow="fold")
        for f in findings:
            if f.server_round is None:
                band = "" if f.null_band is None else "{:.2f} to {:.2f}".format(*f.null_band)
                how = Text(f"{f.threat_model}\n{f.auditor}, {f.kind}: {f.rule}")
                says = "" if f.kind == "diagnostic" else "\n".join([_value(f), *_terms(f)])
                table.add_row(how, Text(says), band)
        if table.row_count:
            self._console.print(table, soft_wrap=False)
        for failure in failures:
            self.say(f"an auditor failed and was left out: {failure}")


def brief(finding: Finding) -> str:
    """Return a finding in a few words that say how strong it is."""
    if finding.kind == "diagnostic":
        return f"{_name(finding)}: {finding.rule}"
    return f"{_value(finding)} {', '.join(_terms(finding))}".rstrip()


def _name(finding: Finding) -> str:
    return "ε" if finding.quantity == "epsilon" else finding.quantity


def _value(finding: Finding) -> str:
    """Return the number with a sign that says on which side of it the truth may lie."""
    sign = {"guarantee": "≤", "lower_bound": "≥"}.get(finding.kind, "≈")
    return f"{_name(finding)} {sign} {finding.value:.2f}"


def _terms(finding: Finding) -> list[str]:
    """Return what the number depends on."""
    delta = [] if finding.delta is None else [f"at δ = {finding.delta:g}"]
    level = [] if finding.confidence is None else [f"{finding.confidence:.0%} confidence"]
    return delta + level
