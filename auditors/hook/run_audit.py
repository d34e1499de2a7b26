"""The audit of one run, told of its rounds by events: opened, replied, closed.

Whoever sees the rounds tells them: `Audited` as a strategy around a strategy, `AuditedGrid` as a
grid around a grid. The audit knows neither.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Any, Final

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from leakmeter.auditors.auditor import Auditor, Project, RoundMessages, UnableError
from leakmeter.auditors.codec import Kept, Resumable
from leakmeter.auditors.finding import Bound, Finding, Limitation, RunWarning, ThreatModel
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.canary_order import (
    CLAIMED,
    Answer,
    Choice,
    ReplyKind,
    Size,
    bypasses_noise,
    may_bypass,
    size_warning,
    take_answer,
)
from leakmeter.auditors.hook.guest_noise import claims_of_strategy
from leakmeter.auditors.hook.layout import Layout, LayoutError, LazyModel
from leakmeter.auditors.hook.mods import take_planting_answer
from leakmeter.auditors.hook.open_round import (
    ClientNumbers,
    OpenRound,
    RoundObserver,
    Updates,
    are_clipped,
    ask_to_keep,
    give_orders,
    take_back_orders,
    will_hide_updates,
)
from leakmeter.auditors.hook.panel import BEFORE, EarlyEnd, Health, Panel, StopRule
from leakmeter.auditors.hook.wrapper import (
    after_first_round,
    client_of,
    survey,
    weight_key,
    wrappers,
)
from leakmeter.auditors.run_log import (
    Callback,
    Listeners,
    ProgressFile,
    RoundLine,
    RunEnd,
    RunLog,
    RunStart,
)
from leakmeter.auditors.verdict import sentences
from leakmeter.auditors.verdict.claim import USER, Claim, claims_of
from leakmeter.auditors.verdict.lines import Ending, Step, steps, summary
from leakmeter.auditors.verdict.verdict import Verdict, judge
from leakmeter.auditors.wording import Assumption, plain_spaces

_log = logging.getLogger("flwr")
_OVERSIZE: Final = 10.0  # a clip that does not work lets so much more pass
SEVERAL_RECORDS: Final = (
    "clients are sent several ArrayRecords, or none, so it is not known what their updates are "
    "added to: no round is audited"
)
OWN_MODELS: Final = (
    "clients of one round are sent different models, such as slices or those of clusters, so their "
    "updates have no common base: no round is audited"
)
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


@dataclass(frozen=True)
class _Replies:
    """What has come back of a round."""

    number: object
    updates: Updates | None
    answers: Mapping[int, Answer]
    silent: Mapping[int, bool]  # node to whether its update was not finite, of those without one
    num_replies: int
    took: Mapping[int, bool]  # node to whether it says that it took its records

    def after(self, earlier: _Replies) -> _Replies:
        """Return both, of a round whose replies come one after the other."""
        if self.updates is not None and earlier.updates is not None:
            self.updates.add(earlier.updates)
        answers, silent = {**self.answers, **earlier.answers}, {**self.silent, **earlier.silent}
        count = self.num_replies + earlier.num_replies
        count = count if self.updates is None else len(self.updates)
        took = {**self.took, **earlier.took}
        return _Replies(self.number, self.updates, answers, silent, count, took)


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
        on_round: Called with the line of each finished round and the model after it. What it raises
            ends the run.
        on_report: Called before the report is written; returns fields to add to it.
        offset: Rounds of the run that were done before this start.
        seen: Rounds that were closed since this start.
        limit: The largest proven ε at which the run continues.
        claims: All that is claimed, as far as it is known.
        has_begun: Whether a run is under way.
    """

    # The first record's layout: FedAvg has turned integer arrays into floats since.
    _layout: Kept[Layout | None]
    _sending: Kept[ReplyKind]
    _observer: Kept[RoundObserver]
    limit: Kept[StopRule]
    _panel: Kept[Panel]
    claims: Kept[tuple[Claim, ...]]
    _is_bypassed: Kept[bool]
    _may_bypass: Kept[bool]

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
        if rounds_done < 0:
            raise ValueError(f"rounds_done must be at least 0, got {rounds_done}")
        self._given = self.claims = claims_of(claims)
        self._heard: dict[int, Answer] = {}  # what each node has answered last
        self._strategy = strategy
        self._panel = Panel(auditors)
        self.limit = StopRule(callbacks, auditors)
        self._known: tuple[Limitation, ...] = ()
        self._sending = ReplyKind(sends)
        self._run_log: RunLog | None = None
        if out:
            folder = Path(out).expanduser()
            self._run_log = RunLog(folder, config or {}, rounds_done, name=name)
        self._lines = RoundLog(self._run_log, self._keep)
        self._listeners = Listeners([ProgressFile(), *callbacks])
        self._name, self._config = name, dict(config or {})
        self._has_metrics = metrics
        self._layout = None
        self._project: Project | None = None
        self._size = Size()  # of canaries
        self._numbers = ClientNumbers()
        self._observer = RoundObserver(strategy, self._panel, self._sending)
        self._open: OpenRound | None = None
        self._replied: _Replies | None = None
        self._aggregated: set[int] = set()  # numbers of rounds
        self._is_blind = False  # whether the model cannot be read
        self.offset, self.seen, self.has_begun = rounds_done, 0, False
        self.logs_verdict = True
        self._is_bypassed = False  # whether canaries miss noise that clients' own updates get
        self._may_bypass = False  # whether they may miss some: in training, or of an unknown mod
        self.on_round: OnRound | None = None
        self.on_report: Callable[[], Mapping[str, Any]] | None = None

    @property
    def auditors(self) -> Sequence[Auditor]:
        """The auditors that are still active."""
        return self._panel.auditors

    @property
    def folder(self) -> Path | None:
        """Where the run log is; None if nothing is written."""
        return None if self._run_log is None else self._run_log.folder

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
    def log_failure(self) -> OSError | None:
        """Why the run log could not be written any further; None if it is complete so far."""
        return self._lines.failure

    @property
    def verdict(self) -> Verdict:
        """What the run says so far; before its end, without what auditors report at the end."""
        of_run = [f for f in self._lines.findings if f.server_round is None]
        accuracy, claims = self._lines.accuracy, self.claims
        return judge(of_run, self.warnings, accuracy=accuracy, claims=claims)

    @property
    def findings(self) -> list[Finding]:
        """All findings so far."""
        return self._lines.findings

    def add_limitations(self, *limitations: Limitation) -> None:
        """Note what is known beforehand to be outside this audit, for the report."""
        self._known += limitations

    def note(self, words: str) -> None:
        """Note what the audit cannot see here, once, for the log and the report."""
        self._panel.note(words)

    def shifted(self, server_round: int) -> int:
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
        self._panel.keeps_files = self.on_round is not None
        self._lines.forget()
        if self.seen:  # a second start is another run
            self._lines.findings, self._layout, self._project = [], None, None
            self._observer.health = Health()
            self.limit.begin()
            self.claims, self._is_bypassed, self._may_bypass = self._given, False, False
            if self._run_log is not None:
                self._run_log.start_again()
        self.seen, self._is_blind = 0, False
        self._heard.clear()
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
        early = self._given
        with self._panel.guarded("what is claimed could not be read"):
            # A noise multiplier claims an ε at every δ: that of the audits' bounds is judged.
            deltas = (auditor.delta for auditor in self.auditors if auditor.num_bounds)
            stated = claims_of_strategy(self._strategy, min(deltas, default=Auditor.delta))
            early = tuple(dict.fromkeys((*self._given, *stated)))
            self._claim(early)
        # Not what clients said before an interruption: it must not change what auditors plan.
        self._panel.begin(self._layout.dim, num_rounds, self.folder, claims=early)
        with self._panel.guarded("the project could not be surveyed"):
            self._project = survey(self._strategy, self._layout.dim, num_rounds, claims=early)
            self._panel.consider(self._project)
            if any(claim.source == USER and claim.unit == "client" for claim in early):
                self._panel.note_canaries(CLAIMED)
            self._size = size_for(self._project)
            if self._size != Size():
                self._panel.note_canaries(size_warning(self._size))
        _log.info("Auditors: %s", ", ".join(a.name for a in self.auditors) or "none")

    def _claim(self, claims: Iterable[Claim]) -> None:
        """Log what is claimed, and keep it for auditors and report."""
        said = list(claims)
        for claim in said:
            _log.info("%s", plain_spaces(sentences.claimed(claim)))
        self.claims = tuple(dict.fromkeys((*self.claims, *said)))

    def _hear(self, answers: Mapping[int, Answer]) -> None:
        """Note what the mods of most clients claim, and whether canaries miss their noise.

        A client may answer anything, so none speaks for the others. In most rounds seats alone are
        asked, often a single one: what each node has answered last counts.
        """
        self._heard |= answers
        said = self._heard.values()
        most, known = len(said) / 2, {claim.source for claim in self.claims}
        noises = Counter(answer.local_noise for answer in said)
        heard = (one.claim for one, count in noises.items() if one is not None and count > most)
        self._claim(claim for claim in heard if claim.source not in known)
        self._is_bypassed |= sum(map(bypasses_noise, said)) > most
        self._may_bypass |= sum(map(may_bypass, said)) > most

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
        self.limit.check(arrays)

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
        with self._panel.guarded(f"round {server_round} may repeat orders of an earlier round"):
            take_back_orders(messages)
        number = self._new_number(server_round)
        if number is not None and not self._is_blind:
            with self._panel.guarded(f"round {number} could not be audited"):
                self._open = self._ordered(number, arrays, messages, grid)

    def _ordered(
        self, server_round: int, arrays: ArrayRecord, messages: Sequence[Message], grid: Grid
    ) -> OpenRound | None:
        """Give the messages of a round their orders and keep what is needed to look at it."""
        layout = self._layout
        assert layout is not None
        try:
            model = LazyModel(layout, common_base(messages, arrays))
        except UnableError as error:
            self._stop(f"round {server_round}", str(error))
            return None
        except ValueError as error:
            self._stop(f"round {server_round}", f"{CHANGED}: {error}")
            return None
        nodes = [m.metadata.dst_node_id for m in messages]
        clients = self._numbers.of(nodes, self._strategy, grid)
        by_client = {clients[m.metadata.dst_node_id]: m for m in messages}
        if self._sending.sends is None and are_clipped(messages):
            self._sending.sends = "models"  # our noise mods take replies for nothing else
        key, sends = weight_key(self._strategy), self._sending.sends
        # Nobody takes part in a round that was given up before it began.
        chosen = sorted(by_client)
        everybody = population(self._strategy, grid)
        orders = self._panel.instruct(server_round, chosen, everybody) if clients else {}
        self._consider_round(messages, len(orders))
        self._panel.bind(server_round, RoundMessages(grid, by_client, layout, model, key))
        records = self._panel.plant(server_round, chosen)
        # The first round shows which clients list canary_mod; replays need to know it every time.
        asks_all = not self._aggregated or sends is None or self._panel.replays(server_round)
        asks_all |= self._panel.wants_answers
        greeted = by_client.keys() if asks_all else orders.keys()
        hidden = will_hide_updates(messages)
        is_noised = any(wire.share_std(m.content) > 0 for m in messages)
        # Messages are changed last: whatever fails before leaves them as they were.
        if hidden and self._panel.wants_truth and self._observer.has_tap:
            ask_to_keep(messages, server_round)
        # Under our masks an answer must not depend on a reply, and replies are models.
        sends = sends or ("models" if hidden else None)
        give_orders(by_client, orders, greeted, layout, sends, self._size)
        for client, order in records.items():
            wire.add_record(by_client[client], wire.PLANTED, order)
        return OpenRound(
            server_round=server_round,
            arrays=arrays,
            model=model,
            clients=clients,
            orders=orders,
            greeted=tuple(greeted),
            grid=grid,
            layout=layout,
            weight_key=key,
            hides_updates=hidden,
            is_noised=is_noised,
            planted=frozenset(records),
        )

    def _consider_round(self, messages: Sequence[Message], seats: int) -> None:
        """Let the auditors say what they cannot do, once it is known who takes part."""
        if self._project is None or self._project.clients is not None or not messages:
            return
        self._project = after_first_round(self._project, messages, seats)
        self._panel.consider(self._project)

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
            with self._panel.guarded(f"round {server_round} could not be audited"):
                # Before the inner strategy may put other arrays into the replies.
                updates = self._open.updates(messages)
        silent = {
            m.metadata.src_node_id: wire.says_diverged(m) for m in messages if wire.blank_reason(m)
        }
        contents = [m for m in wire.distinct(messages) if m.has_content()]
        num_replies = len(contents) if updates is None else len(updates)
        took = {node: has_taken for node, has_taken in said.items() if has_taken is not None}
        come = _Replies(server_round, updates, answers, silent, num_replies, took)
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
            self._lines.amend(server_round, metrics, arrays)
            return metrics
        self._aggregated.add(number)
        findings: list[Finding] = []
        if opened is not None and replied is not None and replied.updates is not None:
            about = (replied.updates, replied.answers, arrays, replied.silent, replied.took)
            with self._panel.guarded(f"round {server_round} could not be audited"):
                try:
                    findings = self._observer.observe(opened, *about)
                except LayoutError as error:
                    self._stop(f"round {server_round}", f"{CHANGED}: {error}")
        if replied is not None and replied.answers:
            with self._panel.guarded("what clients claim could not be read"):
                self._hear(replied.answers)
        self.limit.note(findings)
        answered = 0 if replied is None else replied.num_replies
        line = RoundLine(number, answered, scalars(metrics), tuple(findings))
        after = arrays if arrays is not None else (opened.arrays if opened else None)
        if after is not None:
            self._lines.put(line, after)
        metrics = with_findings(metrics, findings) if self._has_metrics else metrics
        self.limit.keep("train_metrics_clientapp", number - self.offset, metrics)
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
        self._lines.note(metrics)

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

    def _keep(self, line: RoundLine, arrays: ArrayRecord) -> None:
        """Hand a finished round to whoever keeps checkpoints."""
        if self.on_round is not None:
            self.on_round(line, arrays)

    def flush(self) -> None:
        """Write the line of the last round; a full disk must not end the training."""
        line = self._lines.line
        if (error := self._lines.flush()) is not None:
            self._run_log = None
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
        has_ended |= self.limit.reason is not None
        if has_ended:
            kind: EarlyEnd = "ended-early" if self.limit.reason is None else "stopped-above"
            self._observer.health.note_end(self.offset + self.seen, num_rounds, kind)
        # A resumed run may have no round left to play.
        was_seen = self.seen > 0 or num_rounds <= self.offset or has_ended
        with self._panel.guarded("the run has no complete report"):
            self._report(was_seen=was_seen)

    def _report(self, *, was_seen: bool) -> None:
        if not was_seen:
            self._panel.fail("the run was not audited", RuntimeError(UNSEEN))
        final = self.limit.qualified(self._panel.report()) if was_seen else []
        self._claim(claim for auditor in self.auditors for claim in auditor.claimed)
        if self._is_bypassed:
            final = [unprotected(one, Assumption.BYPASSED_NOISE) for one in final]
        if self._may_bypass:
            final = [unprotected(one, Assumption.BYPASSED_TRAINING) for one in final]
        for wrapper in wrappers(self._strategy):  # what the mechanism itself guarantees
            with self._panel.guarded(f"{type(wrapper).__name__} has no findings"):
                final += wrapper.findings()
        final += self._open_updates(final)
        self._lines.findings += final
        said = (self.failures, self.limitations, self.warnings)
        if self.logs_verdict:
            for line in summary(self.verdict, self.failures, Ending(self._steps())):
                _log.info("%s", line)
        if self._run_log is not None:
            added = dict(self.on_report()) if self.on_report is not None else {}
            if self._layout is not None:
                added["parameters"] = self._layout.dim
            path = self._run_log.finish(
                final, *said, schedules=self._panel.schedules, claims=self.claims, more=added
            ).resolve()
            _log.info("Audit written to %s", path)
            _log.info("page: leakmeter report %s", path.parent)
            _log.info("details: leakmeter report --text %s", path.parent)
        self._panel.close()
        end = RunEnd(final, *said, self.folder, self.claims)
        self._listeners.tell(lambda callback: callback.on_end(end))

    def _steps(self) -> list[Step]:
        """Return what to do next, in the words of a project of its own."""
        parameters = None if self._layout is None else self._layout.dim
        return steps(self.verdict, self._lines.cohorts, parameters=parameters)

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


def unprotected(finding: Finding, bypassed: Assumption) -> Finding:
    """Return a finding; a bound of canaries says what they bypass."""
    if finding.kind != "lower_bound" or finding.threat_model.holds != "canary":
        return finding
    return replace(finding, assumptions=(*finding.assumptions, bypassed))


def size_for(project: Project) -> Size:
    """Return how long canaries must be to test the claims about a run.

    Only a claim that somebody asks about is worth a distorted model, and Flower's own noise clips
    before it adds. Masks clip every coordinate: a longer canary would only be distorted there.
    """
    tested = [claim for claim in project.claims if claim.unit == "client"]
    if project.is_masked or all(claim.source != USER for claim in tested):
        return Size()
    return Size(_OVERSIZE, max(claim.clip_norm or 0.0 for claim in tested))


def population(strategy: Strategy | None, grid: Grid) -> int | None:
    """Return how many clients there are; None if neither strategy nor grid can say."""
    if known := client_of(strategy):  # a list of a million nodes takes 40 MB
        return len(known)
    try:
        return len(list(grid.get_node_ids()))
    except Exception:  # a grid of the project's own
        return None


def common_base(messages: Iterable[Message], arrays: ArrayRecord) -> ArrayRecord:
    """Return the model that all clients of a round are sent: what their updates are added to.

    Args:
        messages: What is about to be sent.
        arrays: The strategy's model, for a round without messages.

    Raises:
        UnableError: They are not all sent the same, or more than a model. Slices, models of
            clusters and further arrays would be measured against the wrong base.
    """
    base, seen = arrays, set[int]()
    for message in messages:
        records = [r for r in message.content.values() if isinstance(r, ArrayRecord)]
        if len(records) != 1:
            raise UnableError(SEVERAL_RECORDS)
        if not seen:
            base = records[0]
        # Flower's strategies send one record to all.
        if id(records[0]) not in seen and not are_equal(records[0], base):
            raise UnableError(OWN_MODELS)
        seen.add(id(records[0]))
    return base


def are_equal(one: ArrayRecord, other: ArrayRecord) -> bool:
    """Whether two records have the same arrays in the same order."""
    return list(one) == list(other) and all(
        (a.dtype, tuple(a.shape), a.data) == (b.dtype, tuple(b.shape), b.data)
        for a, b in zip(one.values(), other.values(), strict=True)
    )


OnRound = Callable[[RoundLine, ArrayRecord], None]


class RoundLog:
    """Collects what is known about each round and writes it when the round is over.

    Args:
        run_log: Where lines are written, if anywhere.
        on_round: Called with the line of each finished round and the model after it.
    """

    def __init__(self, run_log: RunLog | None, on_round: OnRound) -> None:
        self._run_log, self._on_round = run_log, on_round
        self._open: tuple[RoundLine, ArrayRecord] | None = None
        self.findings: list[Finding] = []
        self.cohorts: list[int] = []  # clients that answered, round by round
        self.accuracy: float | None = None  # after the last round in which anybody measured it
        self.failure: OSError | None = None

    @property
    def line(self) -> RoundLine | None:
        """The line that is open."""
        return None if self._open is None else self._open[0]

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

    def flush(self) -> OSError | None:
        """Write the open line, once, and tell whoever listens.

        Returns:
            Why it could not be written; then no further line is tried.
        """
        if self._open is None:
            return None
        line, arrays = self._open
        self._open = None
        self.findings += line.findings
        self.cohorts.append(line.num_clients)
        self.accuracy = self.accuracy if line.accuracy is None else line.accuracy
        failed = None
        # Before the callback: a keeper of the run's state must know that the line is missing.
        if self._run_log is not None:
            try:
                self._run_log.add(line)
            except OSError as error:
                self._run_log = None
                self.failure = failed = error
        self._on_round(line, arrays)
        return failed


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
