"""What a person sees of a run: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import fill

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from leakmeter.auditors.finding import Finding, Limitation, RunWarning
from leakmeter.auditors.run_log import RoundLine
from leakmeter.auditors.wording import (
    both_ends,
    claim,
    evidence,
    null_band,
    number,
    plain_spaces,
    quantity,
    size,
    terms,
)
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.data.partition import Sizes
from leakmeter.fl_app.report.judge.adversary import Group, unsaid_bounds
from leakmeter.fl_app.report.judge.meaning import certainties, surprises
from leakmeter.fl_app.report.judge.verdict import judged, overall

_WIDTH = 80  # of an ordinary terminal


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
        auditors = ", ".join(config.auditor_names) or "none"
        self.say(f"auditors: {auditors}; engine {config.engine}, seed {config.seed}")
        if rounds_done:
            self.say(f"resuming after round {rounds_done} of {config.rounds}")
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
            self._task = self._bar.add_task(
                "rounds", total=config.rounds, completed=rounds_done, audit=""
            )
            self._bar.start()
        self._total = config.rounds

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
        made = judged([f for f in findings if f.server_round is None])
        self._paragraph("\n" + overall(made, warnings))
        for warning in warnings:
            self._paragraph(f"Warning: {warning.text}")
        if made:
            self.say("\nWhat the run leaks, by attacker")
            self.say("(≈ estimate or approximation, ≥ lower bound with confidence, ≤ guarantee)")
        for verdict in made:
            first = verdict.group.findings[0]
            world = f" [{first.adjacency}, {first.unit}]" if first.adjacency else ""
            self._paragraph("\n" + verdict.group.adversary.sentence() + world)
            for line in _block(verdict.group):
                self._paragraph(line, indent="  ", hanging="      ")
        if limitations:
            self.say("\nLimits of this audit")
        for limitation in limitations:
            words = f"{limitation.auditor}: {limitation.text}"
            self._paragraph(words, indent="  ", hanging="      ")
        if made:
            self.say("\nAll findings, with their assumptions, are in report.json.")
        for failure in failures:
            self.say(f"not audited as planned: {failure}")

    def _paragraph(self, text: str, *, indent: str = "", hanging: str = "") -> None:
        """Print text that is broken where an ordinary terminal ends."""
        start = "\n" if text[:1] == "\n" else ""
        lines = fill(
            text.lstrip("\n"),
            _WIDTH,
            initial_indent=indent,
            subsequent_indent=hanging,
            break_on_hyphens=False,
        )
        self.say(start + lines)


def _block(group: Group) -> list[str]:
    """Return the lines about one attacker."""
    lines = []
    for f, upper in group.rows:
        if upper is not None:
            lines.append(both_ends(f, upper))
        lines += [_line(one) for one in (f, upper) if one is not None]
    lines += surprises(group)
    lines += [f"{f.auditor}: {f.rule}" for f in certainties(group)] if lines else []
    if more := unsaid_bounds(group.findings):
        lines.append(f"and {more}: see report.json")
    # Where there is no number, say why.
    return lines or list(dict.fromkeys(f"{f.auditor}: {f.rule}" for f in group.findings))


def _line(finding: Finding) -> str:
    """Return a finding with its size, its method and what the method says without a leak."""
    kind = "approximation: " if finding.kind == "approximation" else ""
    more = (size(finding), evidence(finding), null_band(finding))
    words = [f"{finding.auditor}: {kind}{finding.rule}", *(w for w in more if w)]
    return f"{brief(finding)} ({'; '.join(words)})"


def brief(finding: Finding) -> str:
    """Return a finding in a few words that say how strong it is."""
    if finding.kind == "diagnostic":
        return f"{quantity(finding.quantity)}: {finding.rule}"
    return claim(finding) + terms(finding)
