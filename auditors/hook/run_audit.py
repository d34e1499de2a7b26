"""The audit of one run, told of its rounds by events: opened, replied, closed.

Whoever sees the rounds tells them: `Audited` as a strategy around a strategy, `AuditedGrid` as a
grid around a grid. The audit knows neither.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import Any, Final

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from leakmeter.auditors.auditor import Auditor, UnableError
from leakmeter.auditors.codec import Kept, Resumable
from leakmeter.auditors.finding import Bound, Finding, Limitation, RunWarning, ThreatModel
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.canary_order import (
    CLAIMED,
    Choice,
    ReplyKind,
    Size,
    size_warning,
    take_answer,
)
from leakmeter.auditors.hook.guest_noise import claims_of_strategy
from leakmeter.auditors.hook.layout import Layout, LayoutError, LazyModel
from leakmeter.auditors.hook.mods import take_planting_answer
from leakmeter.auditors.hook.open_round import (
    OpenRound,
    Replies,
    RoundObserver,
    are_equal,
    common_base,
)
from leakmeter.auditors.hook.panel import (
    BEFORE,
    EarlyEnd,
    Health,
    Panel,
    RunClaims,
    StopRule,
    plays_canaries,
)
from leakmeter.auditors.hook.wrapper import survey, wrappers
from leakmeter.auditors.run_log import (
    Callback,
    Listeners,
    ProgressFile,
    RoundLine,
    RunEnd,
    RunLog,
    RunStart,
)
from leakmeter.auditors.values import require
from leakmeter.auditors.verdict.claim import USER, Claim, claims_of
from leakmeter.auditors.verdict.lines import Ending, NextStep, steps, summary
from leakmeter.auditors.verdict.verdict import Verdict, judge

_log = logging.getLogger("flwr")
CHANGED: Final = "the model has changed its arrays"
REPEATED: Final = (
    "the strategy aggregates a round more than once, or gives two rounds the same number: only the "
    "first aggregate of each number is audited. Let its loop give each aggregate its own number"
)
UNCOUNTED: Final = (
    "the strategy gives a round a number that is not a whole number from 1 on: such a round is not "
    "audited. Let its loop count from 1"
)
UNRELEASED: Final = (
    "the model after the last round is not known, so that round is not audited: hand it over, "
    "AuditedGrid.finish(model)"
)
UNSEEN: Final = (
    "the strategy's start never called self.configure_train and self.aggregate_train, so no "
    "auditor saw a round: let its loop call these two"
)


class RunAudit(Resumable):
    """Shows each round of a run to the auditors and reports at its end.

    Whatever goes wrong with it, the training continues; `failures` and `limitations` say what is
    missing.

    Args:
        strategy: The chain of strategies, which may know facts about a round; None for a loop that
            has none.
        auditors: The auditors to run. Their names must differ.
        out: Folder for `rounds.jsonl` and `report.json`; nothing is written without it.
        name: What the report calls the run; None takes the folder's name.
        metrics: Whether findings also go into Flower's train metrics.
        sends: What clients reply with.
        config: What to note in the report about how the run was made.
        rounds_done: Rounds of an interrupted run that are done; numbering continues after them.
        callbacks: Told of the start, of each round and of the end.
        claims: Privacy claims about the run, as values or texts; Flower's own noise adds its own.

    Attributes:
        logs_verdict: Whether the log ends with the verdict; an app that prints it says False.
        lines: The lines of its rounds.
        on_report: Called before the report is written; returns fields to add to it.
        offset: Rounds of the run that were done before this start.
        seen: Rounds that were closed since this start.
        stop_rule: When the run ends early, and the metrics that Flower then lacks.
        has_begun: Whether a run is under way.
    """

    # The first record's layout: FedAvg has turned integer arrays into floats since.
    _layout: Kept[Layout | None]
    _reply_kind: Kept[ReplyKind]
    _observer: Kept[RoundObserver]
    stop_rule: Kept[StopRule]
    _panel: Kept[Panel]
    _claims: Kept[RunClaims]

    def __init__(
        self,
        strategy: Strategy | None,
        auditors: Sequence[Auditor],
        *,
        out: str | Path | None = None,
        name: str | None = None,
        metrics: bool = False,
        sends: Choice = "auto",
        config: Mapping[str, Any] | None = None,
        rounds_done: int = 0,
        callbacks: Sequence[Callback] = (),
        claims: str | Iterable[Claim | str] = (),
    ) -> None:
        require("at least 0", rounds_done=rounds_done)
        self._claims = RunClaims(claims_of(claims))
        self._strategy = strategy
        self._panel = Panel(auditors)
        self.stop_rule = StopRule(callbacks, auditors)
        self._known: tuple[Limitation, ...] = ()
        self._reply_kind = ReplyKind(sends)
        log = RunLog(Path(out).expanduser(), config or {}, rounds_done, name=name) if out else None
        self.lines = PendingLine(log)
        self._listeners = Listeners([ProgressFile(), *callbacks])
        self._name, self._config = name, dict(config or {})
        self._has_metrics = metrics
        self._layout = None
        self._observer = RoundObserver(strategy, self._panel, self._reply_kind)
        self._open: OpenRound | None = None
        self._replied: Replies | None = None
        self._aggregated: set[int] = set()  # numbers of rounds
        self._is_blind = False  # whether the model cannot be read
        self.offset, self.seen, self.has_begun = rounds_done, 0, False
        self.logs_verdict = True
        self.on_report: Callable[[], Mapping[str, Any]] | None = None

    @property
    def auditors(self) -> Sequence[Auditor]:
        """The auditors that are still active."""
        return self._panel.auditors

    @property
    def folder(self) -> Path | None:
        """Where the run log is; None if nothing is written."""
        return None if self.lines.run_log is None else self.lines.run_log.folder

    @property
    def failures(self) -> Sequence[str]:
        """Which auditors were left out, when and why."""
        return self._panel.failures

    @property
    def limitations(self) -> Sequence[Limitation]:
        """What auditors cannot measure in this project."""
        return (*self._known, *self._panel.limitations)

    @property
    def warnings(self) -> Sequence[RunWarning]:
        """Reasons to doubt the run itself, so far."""
        found = self._observer.health.warnings(self._panel.canaries)
        return (*found, *self._panel.warnings)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """All that is claimed, as far as it is known."""
        return self._claims.claims

    @property
    def verdict(self) -> Verdict:
        """What the run says so far; before its end, without what auditors report at the end."""
        of_run = [f for f in self.lines.findings if f.server_round is None]
        accuracy, claims = self.lines.accuracy, self.claims
        return judge(of_run, self.warnings, accuracy=accuracy, claims=claims)

    @property
    def findings(self) -> list[Finding]:
        """All findings so far."""
        return self.lines.findings

    def add_limitations(self, *limitations: Limitation) -> None:
        """Note what is known beforehand to be outside this audit, for the report."""
        self._known += limitations

    def note(self, words: str) -> None:
        """Note what the audit cannot see here, once, for the log and the report."""
        self._panel.note(words)

    def number_in_run(self, server_round: int) -> int:
        """Return the number of a round in the whole run; unchanged unless a run is resumed."""
        return server_round + self.offset if self.offset else server_round

    # A run begins.

    def begin(self, arrays: ArrayRecord, num_rounds: int, timeout: float) -> None:
        """Fix the layout, wake the auditors and let them say what they cannot do.

        Args:
            arrays: The first model.
            num_rounds: Length of the whole run.
            timeout: Seconds to wait for what clients have kept for auditors.
        """
        self.has_begun = True
        self._observer.timeout = timeout
        self._open = self._replied = None  # of a start that was broken off
        self._panel.keeps_files = self.lines.on_round is not None
        self.lines.forget()
        if self.seen:  # a second start is another run
            self.lines.findings, self._layout = [], None
            self._observer.health = Health()
            self.stop_rule.begin()
            self._claims.begin()
            if self.lines.run_log is not None:
                self.lines.run_log.start_again()
        self.seen, self._is_blind = 0, False
        self._aggregated.clear()
        self._wake(arrays, num_rounds)
        name = self._name or (self.folder.name if self.folder else "run")
        start = RunStart(num_rounds, self.offset, name, self._config, self.folder, self.claims)
        self._listeners.tell(lambda callback: callback.on_start(start))

    def _wake(self, arrays: ArrayRecord, num_rounds: int) -> None:
        try:
            self._layout = self._layout or Layout.of(arrays)
            self._layout.announce()
        except Exception as error:  # a model that cannot be audited can still be trained
            self._stop(BEFORE, str(error))
            return
        early = self._claims.given
        with self._panel.keep_training_on_error("what is claimed could not be read"):
            # A noise multiplier claims an ε at every δ: that of the audits' bounds is judged.
            deltas = (auditor.delta for auditor in self.auditors if auditor.num_bounds)
            stated = claims_of_strategy(self._strategy, min(deltas, default=Auditor.delta))
            early = tuple(dict.fromkeys((*early, *stated)))
            self._claims.add(early)
        # Not what clients said before an interruption: it must not change what auditors plan.
        self._panel.begin(self._layout.dim, num_rounds, self.folder, claims=early)
        with self._panel.keep_training_on_error("the project could not be surveyed"):
            project = survey(self._strategy, self._layout.dim, num_rounds, claims=early)
            self._panel.consider(project)
            if any(claim.source == USER and claim.unit == "client" for claim in early):
                self._panel.note(CLAIMED, plays_canaries)
            self._observer.size = Size.testing(project)
            if self._observer.size != Size():
                self._panel.note(size_warning(self._observer.size), plays_canaries)
        _log.info("Auditors: %s", ", ".join(a.name for a in self.auditors) or "none")

    def _stop(self, when: str, reason: str) -> None:
        """Look no more; the training continues, and auditors report on what they have seen."""
        self._is_blind = True
        self._panel.stop(when, UnableError(reason))

    # A round.

    def before_round(self, arrays: ArrayRecord) -> None:
        """Complete the round before, and stop if more than the limit is proven.

        Raises:
            EndedError: The run stops here, with the model that the round would start from.
        """
        self.flush()
        self._panel.tidy()
        self._open = self._replied = None
        self.stop_rule.check(arrays)

    def opened(
        self, server_round: object, arrays: ArrayRecord, messages: Sequence[Message], grid: Grid
    ) -> None:
        """Give the messages of a round their orders, before they are sent.

        Args:
            server_round: Its number in the whole run.
            arrays: The model that it starts from.
            messages: What is about to be sent.
            grid: Delivers what auditors ask for besides.
        """
        repeats = f"round {server_round} may repeat orders of an earlier round"
        with self._panel.keep_training_on_error(repeats):
            for message in messages:  # a strategy may send the same message objects again
                wire.remove(message, wire.CANARY, wire.SEATS, wire.TAP, wire.PLANTED)
        number = self._new_number(server_round)
        if number is not None and not self._is_blind and self._layout is not None:
            with self._panel.keep_training_on_error(f"round {number} could not be audited"):
                try:
                    base = LazyModel(self._layout, common_base(messages, arrays))
                except ValueError as error:
                    words = str(error) if isinstance(error, UnableError) else f"{CHANGED}: {error}"
                    self._stop(f"round {number}", words)
                    return
                self._open = self._observer.open(
                    number, arrays, messages, grid, self._layout, base, not self._aggregated
                )

    def replied(self, server_round: object, replies: Sequence[Any]) -> None:
        """Take the answers of our mods out of the replies, before any strategy sees them."""
        # A loop of its own may hand on something else than messages; that is not audited.
        messages = [reply for reply in replies if isinstance(reply, Message)]
        # Whatever happens, the strategy sees none of our records.
        taken = [(m.metadata.src_node_id, take_answer(m)) for m in messages]
        # Of two replies of one node the first counts, as everywhere.
        answers = {node: answer for node, answer in reversed(taken) if answer is not None}
        said = {m.metadata.src_node_id: take_planting_answer(m) for m in reversed(messages)}
        updates = None
        if self._open is not None:
            with self._panel.keep_training_on_error(f"round {server_round} could not be audited"):
                # Before the inner strategy may put other arrays into the replies.
                updates = self._open.updates(messages)
        silent = {
            m.metadata.src_node_id: wire.says_diverged(m) for m in messages if wire.blank_reason(m)
        }
        contents = [m for m in wire.distinct(messages) if m.has_content()]
        num_replies = len(contents) if updates is None else len(updates)
        took = {node: has_taken for node, has_taken in said.items() if has_taken is not None}
        come = Replies(server_round, updates, answers, silent, num_replies, took)
        self._replied = come if self._replied is None else come.after(self._replied)

    def closed(
        self, server_round: object, arrays: ArrayRecord | None, metrics: MetricRecord | None
    ) -> MetricRecord | None:
        """Show the round to the auditors.

        Args:
            server_round: Its number.
            arrays: The model after it; None if there is none.
            metrics: Of its training, where they are known.

        Returns:
            The metrics, with what the auditors found if that was asked for.
        """
        opened, replied = self._open, self._replied
        self._open = self._replied = None
        self.seen += 1
        number = self._new_number(server_round)
        if number is None:
            self.lines.amend(server_round, metrics, arrays)
            return metrics
        self._aggregated.add(number)
        findings: list[Finding] = []
        if opened is not None and replied is not None and replied.updates is not None:
            with self._panel.keep_training_on_error(f"round {server_round} could not be audited"):
                try:
                    findings = self._observer.observe(opened, replied, replied.updates, arrays)
                except LayoutError as error:
                    self._stop(f"round {server_round}", f"{CHANGED}: {error}")
        if replied is not None and replied.answers:
            with self._panel.keep_training_on_error("what clients claim could not be read"):
                self._claims.note_answers(replied.answers)
        self.stop_rule.note(findings)
        answered = 0 if replied is None else replied.num_replies
        line = RoundLine(number, answered, scalars(metrics), tuple(findings))
        after = arrays if arrays is not None else (opened.arrays if opened else None)
        if after is not None:
            self.lines.put(line, after)
        metrics = with_findings(metrics, findings) if self._has_metrics else metrics
        self.stop_rule.keep("train_metrics_clientapp", number - self.offset, metrics)
        return metrics

    def released(self, arrays: ArrayRecord) -> None:
        """Close a round whose model becomes known only now; nothing if it is closed already.

        A model that has not changed is that of a round without one.
        """
        if self._replied is None:
            return
        before = None if self._open is None else self._open.arrays
        is_same = before is not None and are_equal(arrays, before)
        self.closed(self._replied.number, None if is_same else arrays, None)

    def abandon(self) -> None:
        """Close a round whose model nobody knows."""
        if self._replied is not None:
            self._panel.note(UNRELEASED)
            self._open = self._replied = None

    def evaluated(self, metrics: MetricRecord | None) -> None:
        """Note what clients or the server have measured of the model after the last round."""
        self.lines.note(metrics)

    def _new_number(self, server_round: object) -> int | None:
        """Return the number of a round for the audit; None, and say why, if it cannot have one."""
        try:
            number = index(server_round)  # type: ignore[arg-type]  # a loop may count in numpy
        except TypeError:
            number = 0
        if number >= 1 and number not in self._aggregated:
            return number
        self._panel.note(UNCOUNTED if number < 1 else REPEATED)
        return None

    def flush(self) -> None:
        """Write the line of the last round; a full disk must not end the training."""
        line, error = self.lines.flush()
        if error is not None:
            self._panel.fail("the run log could not be written any further", error)
        if line is not None:
            warnings = self.warnings
            self._listeners.tell(lambda callback: callback.on_round(line, warnings))

    # A run ends.

    def finish(self, num_rounds: int) -> None:
        """Let every auditor report on the run and write the report.

        Args:
            num_rounds: Rounds that the run was to have.
        """
        self.flush()
        self.has_begun = False
        has_ended = any(wrapper.ended for wrapper in wrappers(self._strategy))
        has_ended |= self.stop_rule.reason is not None
        if has_ended:
            kind: EarlyEnd = "ended-early" if self.stop_rule.reason is None else "stopped-above"
            self._observer.health.note_end(self.offset + self.seen, num_rounds, kind)
        # A resumed run may have no round left to play.
        was_seen = self.seen > 0 or num_rounds <= self.offset or has_ended
        with self._panel.keep_training_on_error("the run has no complete report"):
            self._report(was_seen=was_seen)

    def _report(self, *, was_seen: bool) -> None:
        if not was_seen:
            self._panel.fail("the run was not audited", RuntimeError(UNSEEN))
        final = self.stop_rule.with_conditions(self._panel.report()) if was_seen else []
        self._claims.add(claim for auditor in self.auditors for claim in auditor.claimed)
        final = self._claims.with_conditions(final, self._observer.size.times)
        for wrapper in wrappers(self._strategy):  # what the mechanism itself guarantees
            with self._panel.keep_training_on_error(f"{type(wrapper).__name__} has no findings"):
                final += wrapper.findings()
        final += self._open_updates(final)
        self.lines.findings += final
        said = (self.failures, self.limitations, self.warnings)
        if self.logs_verdict:
            for line in summary(self.verdict, self.failures, Ending(self._steps())):
                _log.info("%s", line)
        if self.lines.run_log is not None:
            added = dict(self.on_report()) if self.on_report is not None else {}
            if self._layout is not None:
                added["parameters"] = self._layout.dim
            path = self.lines.run_log.finish(
                final, *said, schedules=self._panel.schedules, claims=self.claims, more=added
            ).resolve()
            _log.info("Audit written to %s", path)
            _log.info("page: leakmeter report %s", path.parent)
            _log.info("details: leakmeter report --text %s", path.parent)
        self._panel.close()
        end = RunEnd(final, *said, self.folder, self.claims)
        self._listeners.tell(lambda callback: callback.on_end(end))

    def _steps(self) -> list[NextStep]:
        """Return what to do next, in the words of a project of its own."""
        parameters = None if self._layout is None else self._layout.dim
        return steps(self.verdict, self.lines.cohorts, parameters=parameters)

    def _open_updates(self, found: Sequence[Finding]) -> list[Finding]:
        """Return that nothing is guaranteed against a server that sees every update.

        It sees them where no secure sum hides them. Without this finding, nobody who reads the
        verdict of such a run would learn of the strongest attacker if it was not audited. If it
        was, this is about the same two worlds, so that the verdict has one row for both.
        """
        is_known = any(f.kind == "guarantee" and f.threat_model.sees == "updates" for f in found)
        rounds = self.offset + self.seen
        is_hidden = any(wrapper.hides_updates for wrapper in wrappers(self._strategy))
        if not rounds or is_known or is_hidden:
            return []
        model = ThreatModel(
            observer="server", sees="updates", knows_cohort=True, participations=rounds
        )
        rule = "no secure sum hides updates from the server, and clients account for no noise"
        bound = Bound(math.inf, "guarantee", rule, delta=0.0)
        asked = (f for f in found if f.kind == "lower_bound" and f.threat_model.sees == "updates")
        adjacency = next((f.adjacency for f in asked), "replace")
        about = {"auditor": "server", "quantity": "epsilon", "adjacency": adjacency}
        return [Finding.of(bound, threat_model=model, **about)]


OnRound = Callable[[RoundLine, ArrayRecord], None]


class PendingLine:
    """Collects what is known about each round and writes it when the round is over.

    Args:
        run_log: Where lines are written, if anywhere.

    Attributes:
        run_log: The same; None once a line could not be written.
        on_round: Called with the line of each finished round and the model after it. What it raises
            ends the run.
        findings: Of all finished rounds, and at the end of the run.
        cohorts: Clients that answered, round by round.
        accuracy: After the last round in which anybody measured it.
        failure: Why a line could not be written.
    """

    def __init__(self, run_log: RunLog | None) -> None:
        self.run_log = run_log
        self.on_round: OnRound | None = None
        self._open: tuple[RoundLine, ArrayRecord] | None = None
        self.findings: list[Finding] = []
        self.cohorts: list[int] = []
        self.accuracy: float | None = None
        self.failure: OSError | None = None

    def forget(self) -> None:
        """Delete a line that an interrupted start has left."""
        self._open = None

    def put(self, line: RoundLine, arrays: ArrayRecord) -> None:
        """Open the line of a round that was aggregated."""
        self._open = (line, arrays)

    def note(self, metrics: object) -> None:
        """Add evaluation metrics to the line that is open."""
        if self._open is not None:
            line, arrays = self._open
            self._open = (replace(line, metrics={**line.metrics, **scalars(metrics)}), arrays)

    def amend(self, server_round: object, metrics: object, arrays: ArrayRecord | None) -> None:
        """Note a further aggregate of a round whose line is open; its findings stay."""
        if self._open is None or self._open[0].server_round != server_round:
            return
        self.note(metrics)
        if arrays is not None:
            self._open = (self._open[0], arrays)

    def flush(self) -> tuple[RoundLine | None, OSError | None]:
        """Write the open line, once, and tell whoever listens.

        Returns:
            The line, and why it could not be written; then no further line is tried.
        """
        if self._open is None:
            return None, None
        line, arrays = self._open
        self._open = None
        self.findings += line.findings
        self.cohorts.append(line.num_clients)
        self.accuracy = self.accuracy if line.accuracy is None else line.accuracy
        failed = None
        # Before the callback: a keeper of the run's state must know that the line is missing.
        if self.run_log is not None:
            try:
                self.run_log.add(line)
            except OSError as error:
                self.run_log = None
                self.failure = failed = error
        if self.on_round is not None:
            self.on_round(line, arrays)
        return line, failed


def scalars(metrics: object) -> dict[str, float]:
    """Return the metrics that are single numbers; a custom loop may return anything."""
    if not isinstance(metrics, Mapping):
        return {}
    return {str(k): wire.as_float(v) for k, v in metrics.items() if isinstance(v, int | float)}


def with_findings(metrics: MetricRecord | None, findings: Sequence[Finding]) -> MetricRecord | None:
    """Return the metrics with what auditors found, for Flower's log and result.

    If an auditor reports several numbers for one quantity, each name includes its kind: a weaker
    kind must not pass for a stronger one.
    """
    if not findings:
        return metrics
    names = Counter((f.auditor, f.quantity) for f in findings)
    said: dict[str, float] = {}
    for f in findings:
        several = names[f.auditor, f.quantity] > 1
        said.setdefault(f"{f.auditor}.{f.quantity}" + f".{f.kind}" * several, float(f.value))
    return MetricRecord({**(metrics or {}), **said})


class AuditReader:
    """What can be read and set of an audit, at whoever tells it of rounds.

    Attributes:
        audit: The audit itself.
    """

    audit: RunAudit

    @property
    def auditors(self) -> Sequence[Auditor]:
        """The auditors that are still active."""
        return self.audit.auditors

    @property
    def folder(self) -> Path | None:
        """Where the run log is; None if nothing is written."""
        return self.audit.folder

    @property
    def failures(self) -> Sequence[str]:
        """Which auditors were left out, when and why."""
        return self.audit.failures

    @property
    def limitations(self) -> Sequence[Limitation]:
        """What auditors cannot measure in this project."""
        return self.audit.limitations

    @property
    def warnings(self) -> Sequence[RunWarning]:
        """Reasons to doubt the run itself, so far."""
        return self.audit.warnings

    @property
    def log_failure(self) -> OSError | None:
        """Why the run log could not be written any further; None if it is complete so far."""
        return self.audit.lines.failure

    @property
    def verdict(self) -> Verdict:
        """What the run says so far; before its end, without what auditors report at the end."""
        return self.audit.verdict

    @property
    def on_round(self) -> OnRound | None:
        """Called with the line of each finished round and the model after it.

        It keeps checkpoints. Unlike with a callback, what it raises ends the run.
        """
        return self.audit.lines.on_round

    @on_round.setter
    def on_round(self, keep: OnRound | None) -> None:
        self.audit.lines.on_round = keep

    @property
    def logs_verdict(self) -> bool:
        """Whether the log ends with the verdict; an app that prints it says False."""
        return self.audit.logs_verdict

    @logs_verdict.setter
    def logs_verdict(self, says: bool) -> None:
        self.audit.logs_verdict = says

    def add_limitations(self, *limitations: Limitation) -> None:
        """Note what is known beforehand to be outside this audit, for the report."""
        self.audit.add_limitations(*limitations)

    def findings(self) -> list[Finding]:
        """Return all findings so far."""
        return self.audit.lines.findings
