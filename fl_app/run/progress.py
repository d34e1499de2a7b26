"""What a person sees of a run: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from textwrap import fill

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from leakmeter.auditors.finding import Finding
from leakmeter.auditors.run_log import RoundLine
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.data.partition import Sizes
from leakmeter.fl_app.report.judge.adversary import by_adversary, leading, unsaid_bounds

_WIDTH = 80  # of an ordinary terminal


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
        accuracy = "" if line.accuracy is None else f"  accuracy {line.accuracy:.3f}"
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

    def summary(self, findings: Sequence[Finding], failures: Sequence[str]) -> None:
        """Print what the run as a whole shows, a block for each adversary."""
        self.stop()
        of_the_run = [f for f in findings if f.server_round is None]
        adversaries = by_adversary(of_the_run)
        if adversaries:
            self.say("\nWhat the whole run leaks, as far as the auditors can tell")
            self.say("(≈ estimate, ≥ lower bound with confidence, ≤ guarantee)")
        for (threat_model, adjacency, unit), found in adversaries.items():
            world = f" [{adjacency}, {unit}]" if adjacency else ""
            self.say("\n" + fill(threat_model + world, _WIDTH))
            for line in _block(found):
                self.say(fill(line, _WIDTH, initial_indent="  ", subsequent_indent="      "))
        if adversaries:
            self.say("\nAll findings, with their assumptions, are in report.json.")
        for failure in failures:
            self.say(f"not audited as planned: {failure}")


def _block(findings: Sequence[Finding]) -> list[str]:
    """Return the lines about one adversary."""
    lines = [f"{brief(f)} ({f.auditor}: {_method(f)})" for f in leading(findings)]
    if more := unsaid_bounds(findings):
        lines.append(f"and {more} more lower bound{'s' * (more > 1)}, by other methods")
    # Where there is no number, say why.
    return lines or list(dict.fromkeys(f"{f.auditor}: {f.rule}" for f in findings))


def brief(finding: Finding) -> str:
    """Return a finding in a few words that say how strong it is."""
    if finding.kind == "diagnostic":
        return f"{_name(finding)}: {finding.rule}"
    return f"{_value(finding)} {', '.join(_terms(finding))}".rstrip()


def _name(finding: Finding) -> str:
    return "ε" if finding.quantity == "epsilon" else finding.quantity


def _value(finding: Finding) -> str:
    """Return the number with a sign that says on which side of it the truth may be."""
    if finding.kind == "guarantee" and finding.quantity != "epsilon":
        # Which side is safe depends on the quantity: for clients in a sum it is above.
        return f"{_name(finding)}: {finding.value:g}, guaranteed"
    if finding.kind == "guarantee" and math.isinf(finding.value):
        return f"{_name(finding)} ≤ ∞, no guarantee"
    sign = {"guarantee": "≤", "lower_bound": "≥"}.get(finding.kind, "≈")
    return f"{_name(finding)} {sign} {_rounded(finding)}"


def _rounded(finding: Finding) -> str:
    """Return the value to two places, a bound never stronger than it is."""
    mode = {"guarantee": ROUND_CEILING, "lower_bound": ROUND_FLOOR}.get(finding.kind)
    if mode is None or not abs(finding.value) < 1e15:  # where there are no places to round
        return f"{finding.value:.2f}"
    return f"{Decimal(repr(float(finding.value))).quantize(Decimal('0.01'), mode):.2f}"


def _terms(finding: Finding) -> list[str]:
    """Return what the number depends on."""
    delta = [] if finding.delta is None else [f"at δ = {finding.delta:g}"]
    level = [] if finding.confidence is None else [f"{100 * finding.confidence:.4g}% confidence"]
    return delta + level


def _method(finding: Finding) -> str:
    """Return how the number was made, what it assumes, and what it would be without a leak."""
    words = [finding.rule]
    if finding.kind == "lower_bound":  # in few words; the report has all
        words = [re.sub(r" \([^)]*\)", "", finding.rule)]
        words += [f"assuming that {finding.assumptions[0]}"] if finding.assumptions else []
    elif finding.kind == "approximation":
        words = [f"approximation: {finding.rule}"]
    if finding.null_band is not None:
        words.append("without a leak {:.2f} to {:.2f}".format(*finding.null_band))
    return "; ".join(words)
