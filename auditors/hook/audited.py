"""The hook: a strategy around any Flower strategy that lets auditors see each round.

Like every `Wrapper`, `Audited` replaces Flower's four methods on the inner strategy's *instance*
for the time of `start` and runs the inner strategy's own `start`. A strategy that brings its own
loop or logging keeps it, and its attributes are where they were: on `strategy`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from leakmeter.auditors.auditor import Auditor, Project, RoundMessages, UnableError
from leakmeter.auditors.callback import Callback, Listeners, ProgressFile, RunEnd, RunStart
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.finding import Bound, Finding, Limitation, RunWarning, ThreatModel
from leakmeter.auditors.hook import remarks, wire
from leakmeter.auditors.hook.chain import survey, understood, weight_key, with_round, wrappers
from leakmeter.auditors.hook.health import Early, Health
from leakmeter.auditors.hook.layout import Layout, LayoutError
from leakmeter.auditors.hook.limit import Limit, ProvenError
from leakmeter.auditors.hook.observer import RoundObserver
from leakmeter.auditors.hook.open_round import (
    ClientNumbers,
    OpenRound,
    are_clipped,
    ask_to_keep,
    give_orders,
    take_back_orders,
    will_hide_updates,
)
from leakmeter.auditors.hook.panel import BEFORE, Panel
from leakmeter.auditors.hook.round_log import OnRound, RoundLog, scalars, with_findings
from leakmeter.auditors.hook.seat import take_answer
from leakmeter.auditors.hook.sending import Choice, Sending
from leakmeter.auditors.hook.wrapper import Wrapper
from leakmeter.auditors.run_log import RoundLine, RunLog
from leakmeter.auditors.verdict.lines import summary
from leakmeter.auditors.verdict.verdict import Verdict, judge

_log = logging.getLogger("flwr")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class Audited(Wrapper):
    """Runs `strategy` as it is and shows every round to the auditors.

    Before training starts, each auditor logs what it cannot measure in this project. Whatever goes
    wrong with the audit, the training continues; `failures` and `limitations` say what is missing.

    Args:
        strategy: Any Flower strategy, also one that wraps others. `Audited` must be outermost.
        auditors: The auditors to run. Their names must differ.
        out: Folder for `rounds.jsonl` and `report.json`, `~` is your home; nothing is written
            without it. If it already contains a run, the next free name is taken.
        name: What the report calls the run; None takes the folder's name.
        metrics: Whether findings also go into Flower's train metrics, as `auditor.quantity`.
        sends: What clients reply with: "models", or "differences" such as gradients. "auto" lets
            the seats of round 1 tell, and decides from the honest replies.
        config: What to note in the report about how the run was made.
        rounds_done: Rounds of an interrupted run that are done; numbering continues after them.
        callbacks: Told of the start, of each round and of the end, such as a logger of
            `leakmeter.loggers`; what one raises is logged. `StopAbove(ε)` ends the run once more
            than ε is proven.

    Attributes:
        logs_verdict: Whether the log ends with the verdict; an app that prints it says False.
        on_round: Called with the line of each finished round and the model after it, to keep a
            checkpoint. Unlike with a callback, what it raises ends the run.
        on_report: Called before the report is written; returns fields to add to it.

    Example:
        strategy = Audited(FedAvg(), auditors=[OneShotCanaries(seats=2)], out="runs/mine")
        result = strategy.start(grid, initial_arrays, num_rounds=20)
    """

    logs_verdict: bool = True
    on_round: OnRound | None = None
    on_report: Callable[[], Mapping[str, Any]] | None = None

    # The first record's layout: FedAvg has turned integer arrays into floats since.
    _layout: Kept[Layout | None]
    _sending: Kept[Sending]
    _observer: Kept[RoundObserver]
    _limit: Kept[Limit]
    _panel: Kept[Panel]

    def __init__(
        self,
        strategy: Strategy,
        auditors: Sequence[Auditor],
        *,
        out: str | Path | None = None,
        name: str | None = None,
        metrics: bool = False,
        sends: Choice = "auto",
        config: Mapping[str, Any] | None = None,
        rounds_done: int = 0,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        if rounds_done < 0:
            raise ValueError(f"rounds_done must be at least 0, got {rounds_done}")
        _check_kinds(strategy, auditors)
        super().__init__(strategy)
        self._panel = Panel(auditors)
        self._limit = Limit(callbacks, auditors)
        self._known: tuple[Limitation, ...] = ()
        self._sending = Sending(sends)
        self._run_log: RunLog | None = None
        if out:
            folder = Path(out).expanduser()
            self._run_log = RunLog(folder, config or {}, rounds_done, name=name)
        self._lines = RoundLog(self._run_log, self._keep)
        self._listeners = Listeners([ProgressFile(), *callbacks])
        self._name, self._config = name, dict(config or {})
        self._offset = rounds_done
        self._has_metrics = metrics
        self._layout = None
        self._project: Project | None = None
        self._numbers = ClientNumbers()
        self._observer = RoundObserver(strategy, self._panel, self._sending)
        self._open: OpenRound | None = None
        self._seen = 0
        self._aggregated: set[int] = set()  # numbers of rounds
        self._is_blind = False  # whether the model cannot be read

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
        return self._observer.health.warnings(self._panel.canaries)

    @property
    def log_failure(self) -> OSError | None:
        """Why the run log could not be written any further; None if it is complete so far."""
        return self._lines.failure

    @property
    def verdict(self) -> Verdict:
        """What the run says so far; before its end, without what auditors report at the end."""
        of_run = [f for f in self._lines.findings if f.server_round is None]
        return judge(of_run, self.warnings, accuracy=self._lines.accuracy)

    def add_limitations(self, *limitations: Limitation) -> None:
        """Note what is known beforehand to be outside this audit, for the report."""
        self._known += limitations

    def findings(self) -> list[Finding]:
        """Return all findings so far."""
        return self._lines.findings

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        **more: Any,
    ) -> Result:
        """Run the inner strategy's own `start`, then let the auditors report.

        `num_rounds` is the length of the whole run; of an interrupted one the rest is run.
        """
        if "configure_train" in vars(self):  # put there by the `start` of a wrapper around us
            raise RuntimeError(remarks.NOT_OUTERMOST)
        self._observer.timeout = timeout
        self._begin(initial_arrays, num_rounds)
        start = self._start_of(num_rounds)
        self._listeners.tell(lambda callback: callback.on_start(start))
        if evaluate_fn is not None:
            more["evaluate_fn"] = self._watch_evaluation(evaluate_fn)
        left = max(num_rounds - self._offset, 0)
        usual = {"timeout": timeout, "train_config": train_config}
        usual["evaluate_config"] = evaluate_config
        try:
            result = super().start(
                grid=grid,
                initial_arrays=initial_arrays,
                num_rounds=left,
                **understood(self.strategy, usual),
                **more,
            )
        except ProvenError:
            result = self._limit.result
        self._flush()
        self.ended = self._limit.reason
        has_ended = any(wrapper.ended for wrapper in (self, *wrappers(self.strategy)))
        if has_ended:
            kind: Early = "ended-early" if self.ended is None else "stopped-above"
            self._observer.health.note_end(self._offset + self._seen, num_rounds, kind)
        with self._panel.guarded("the run has no complete report"):
            # A resumed run may have no round left to play.
            self._finish(was_seen=self._seen > 0 or left == 0 or has_ended)
        return result

    def _hooks(self) -> Mapping[str, Callable[..., Any]]:
        """Return what takes the place of the inner strategy's methods during `start`."""
        return {
            "configure_train": self._configure,
            "aggregate_train": self._aggregate,
            "configure_evaluate": self._configure_evaluate,
            "aggregate_evaluate": self._aggregate_evaluate,
        }

    def _begin(self, arrays: ArrayRecord, num_rounds: int) -> None:
        """Fix the layout, wake the auditors and let them say what they cannot do."""
        self._open = None  # of a start that was broken off
        self._panel.keeps_files = self.on_round is not None
        self._lines.forget()
        if self._seen:  # a second start is another run
            self._lines.findings, self._layout, self._project = [], None, None
            self._observer.health = Health()
            self._limit.begin()
            if self._run_log is not None:
                self._run_log.start_again()
        self._seen, self._is_blind = 0, False
        self._aggregated.clear()
        try:
            self._layout = self._layout or Layout.of(arrays)
            self._layout.announce()
        except Exception as error:  # a model that cannot be audited can still be trained
            self._stop(BEFORE, str(error))
            return
        self._panel.begin(self._layout.dim, num_rounds, self.folder)
        with self._panel.guarded("the project could not be surveyed"):
            self._project = survey(self.strategy, self._layout.dim, num_rounds)
            self._panel.consider(self._project)
        _log.info("Auditors: %s", ", ".join(a.name for a in self.auditors) or "none")

    def _configure(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        *more: Any,
        **named: Any,
    ) -> list[Message] | None:
        """Stand in for the inner `configure_train`: let it choose, then hand out orders."""
        self._flush()
        self._panel.tidy()
        self._open = None
        self._limit.check(arrays)
        server_round = self._shifted(server_round)
        kept = ArrayRecord(dict(arrays))  # the inner strategy may change the record
        made = self._inner_configure_train(server_round, arrays, config, grid, *more, **named)
        if made is None:  # so a loop of its own may skip a round
            return None
        messages = list(made)
        with self._panel.guarded(f"round {server_round} may repeat orders of an earlier round"):
            take_back_orders(messages)
        number = self._new_number(server_round)
        if number is not None and not self._is_blind:
            with self._panel.guarded(f"round {number} could not be audited"):
                self._open = self._ordered(number, kept, messages, grid)
        return messages

    def _ordered(
        self, server_round: int, arrays: ArrayRecord, messages: Sequence[Message], grid: Grid
    ) -> OpenRound | None:
        """Give the messages of a round their orders and keep what is needed to look at it."""
        layout = self._layout
        assert layout is not None
        try:
            sent = layout.flatten(arrays)
        except ValueError as error:
            self._stop(f"round {server_round}", f"{remarks.CHANGED}: {error}")
            return None
        nodes = [m.metadata.dst_node_id for m in messages]
        clients = self._numbers.of(nodes, self.strategy, grid)
        by_client = {clients[m.metadata.dst_node_id]: m for m in messages}
        if self._sending.sends is None and are_clipped(messages):
            self._sending.sends = "models"  # our noise mods take replies for nothing else
        key, sends = weight_key(self.strategy), self._sending.sends
        # Nobody takes part in a round that was given up before it began.
        orders = self._panel.instruct(server_round, sorted(by_client)) if clients else {}
        self._consider_round(messages, len(orders))
        self._panel.bind(server_round, RoundMessages(grid, by_client, layout, sent, key))
        # The first round shows which clients list canary_mod; replays need to know it every time.
        asks_all = not self._aggregated or sends is None or self._panel.replays(server_round)
        greeted = by_client.keys() if asks_all else orders.keys()
        hidden = will_hide_updates(messages)
        is_noised = any(wire.share_std(m.content) > 0 for m in messages)
        # Messages are changed last: whatever fails before leaves them as they were.
        if hidden and self._panel.wants_truth and self._observer.has_tap:
            ask_to_keep(messages, server_round)
        # Under our masks an answer must not depend on a reply, and replies are models.
        give_orders(by_client, orders, greeted, layout, sends or ("models" if hidden else None))
        return OpenRound(
            server_round=server_round,
            arrays=arrays,
            sent=sent,
            clients=clients,
            orders=orders,
            greeted=tuple(greeted),
            grid=grid,
            layout=layout,
            weight_key=key,
            hides_updates=hidden,
            is_noised=is_noised,
        )

    def _stop(self, when: str, reason: str) -> None:
        """Look no more; the training continues, and auditors report on what they have seen."""
        self._is_blind = True
        self._panel.stop(when, UnableError(reason))

    def _consider_round(self, messages: Sequence[Message], seats: int) -> None:
        """Let the auditors say what they cannot do, once it is known who takes part."""
        if self._project is None or self._project.clients is not None or not messages:
            return
        self._project = with_round(self._project, messages, seats)
        self._panel.consider(self._project)

    def _aggregate(
        self, server_round: int, replies: Iterable[Message], *more: Any, **named: Any
    ) -> tuple[Any, ...]:
        """Stand in for the inner `aggregate_train`: let it aggregate, then look."""
        opened, self._open = self._open, None
        server_round = self._shifted(server_round)
        replies = list(replies)
        failed = f"round {server_round} could not be audited"
        # A loop of its own may hand on something else than messages; that is not audited.
        messages = [reply for reply in replies if isinstance(reply, Message)]
        # Whatever happens, the strategy sees none of our records.
        taken = [(m.metadata.src_node_id, take_answer(m)) for m in messages]
        # Of two replies of one node the first counts, as everywhere.
        answers = {node: answer for node, answer in reversed(taken) if answer is not None}
        updates = None
        if opened is not None:
            with self._panel.guarded(failed):
                # Before the inner strategy may put other arrays into the replies.
                updates = opened.updates(messages)
        silent = {
            m.metadata.src_node_id: wire.says_diverged(m) for m in messages if wire.blank_reason(m)
        }
        # A strategy with a loop of its own may take and return more than Flower's do.
        made: tuple[Any, ...] = self._inner_aggregate_train(server_round, replies, *more, **named)
        arrays, metrics, *rest = made
        self._seen += 1
        number = self._new_number(server_round)
        if number is None:
            self._lines.amend(server_round, metrics, arrays)
            return made
        self._aggregated.add(number)
        findings: list[Finding] = []
        if opened is not None and updates is not None:
            with self._panel.guarded(failed):
                try:
                    findings = self._observer.observe(opened, updates, answers, arrays, silent)
                except LayoutError as error:
                    self._stop(f"round {server_round}", f"{remarks.CHANGED}: {error}")
        self._limit.note(findings)
        contents = [m for m in wire.distinct(messages) if m.has_content()]
        answered = len(contents) if updates is None else len(updates)
        line = RoundLine(number, answered, scalars(metrics), tuple(findings))
        after = arrays if arrays is not None else (opened.arrays if opened else None)
        if after is not None:
            self._lines.put(line, after)
        metrics = with_findings(metrics, findings) if self._has_metrics else metrics
        self._limit.keep("train_metrics_clientapp", number - self._offset, metrics)
        return arrays, metrics, *rest

    def _shifted(self, server_round: int) -> int:
        """Return the number that the inner strategy gets; unchanged unless a run is resumed."""
        return server_round + self._offset if self._offset else server_round

    def _new_number(self, server_round: object) -> int | None:
        """Return the number of a round for the audit; None, and say why, if it cannot have one."""
        try:
            number = index(server_round)  # type: ignore[arg-type]  # a loop may count in numpy
        except TypeError:
            number = 0
        if number >= 1 and number not in self._aggregated:
            return number
        self._panel.note(remarks.UNCOUNTED if number < 1 else remarks.REPEATED)
        return None

    def _keep(self, line: RoundLine, arrays: ArrayRecord) -> None:
        """Hand a finished round to whoever keeps checkpoints."""
        if self.on_round is not None:
            self.on_round(line, arrays)

    def _flush(self) -> None:
        """Write the line of the last round; a full disk must not end the training."""
        line = self._lines.line
        if (error := self._lines.flush()) is not None:
            self._run_log = None
            self._panel.fail("the run log could not be written any further", error)
        if line is not None:
            warnings = self.warnings
            self._listeners.tell(lambda callback: callback.on_round(line, warnings))

    def _start_of(self, num_rounds: int) -> RunStart:
        """Return what callbacks are told before round 1."""
        name = self._name or (self.folder.name if self.folder else "run")
        return RunStart(num_rounds, self._offset, name, self._config, self.folder)

    def _configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Stand in for the inner `configure_evaluate`: count the rounds of the whole run."""
        return self._inner_configure_evaluate(self._shifted(server_round), arrays, config, grid)

    def _aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Stand in for the inner `aggregate_evaluate`: note what the clients measured."""
        metrics = self._inner_aggregate_evaluate(self._shifted(server_round), replies)
        self._limit.keep("evaluate_metrics_clientapp", server_round, metrics)
        self._lines.note(metrics)
        return metrics

    def _watch_evaluation(self, evaluate_fn: EvaluateFn) -> EvaluateFn:
        """Return the server's evaluation, made to complete the round's line."""

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics = evaluate_fn(self._shifted(server_round), arrays)
            self._limit.keep("evaluate_metrics_serverapp", server_round, metrics)
            self._lines.note(metrics)
            self._flush()
            return metrics

        return evaluate

    def _finish(self, *, was_seen: bool) -> None:
        """Let every auditor report on the run and write the report."""
        if not was_seen:
            self._panel.fail("the run was not audited", RuntimeError(remarks.UNSEEN))
        final = self._limit.qualified(self._panel.report()) if was_seen else []
        for wrapper in wrappers(self.strategy):  # what the mechanism itself guarantees
            with self._panel.guarded(f"{type(wrapper).__name__} has no findings"):
                final += wrapper.findings()
        final += self._open_updates(final)
        self._lines.findings += final
        said = (self.failures, self.limitations, self.warnings)
        if self.logs_verdict:
            for line in summary(self.verdict, self.failures):
                _log.info("%s", line)
        if self._run_log is not None:
            more = self.on_report() if self.on_report is not None else {}
            schedules = self._panel.schedules
            path = self._run_log.finish(final, *said, schedules=schedules, more=more).resolve()
            _log.info("Audit written to %s", path)
            _log.info("page: leakmeter report %s", path.parent)
            _log.info("details: leakmeter report --text %s", path.parent)
        self._panel.close()
        end = RunEnd(final, *said, self.folder)
        self._listeners.tell(lambda callback: callback.on_end(end))

    def _open_updates(self, found: Sequence[Finding]) -> list[Finding]:
        """Return that nothing is guaranteed against a server that sees every update.

        It sees them where no secure sum hides them. Without this finding, nobody who reads the
        verdict of such a run would learn that the strongest attacker was not audited.
        """
        is_known = any(f.kind == "guarantee" and f.threat_model.sees == "updates" for f in found)
        rounds = self._offset + self._seen
        is_hidden = any(wrapper.hides_updates for wrapper in wrappers(self.strategy))
        if not found or not rounds or is_known or is_hidden:
            return []
        model = ThreatModel(
            observer="server", sees="updates", knows_cohort=True, participations=rounds
        )
        rule = "no secure sum hides updates from the server, and clients account for no noise"
        bound = Bound(math.inf, "guarantee", rule, delta=0.0)
        about = {"auditor": "server", "quantity": "epsilon", "adjacency": "replace"}
        return [Finding.of(bound, threat_model=model, **about)]

    def _refuse(self, *args: Any, **more: Any) -> NoReturn:
        """Refuse: only a wrapper around `Audited` would call one of these."""
        raise RuntimeError(remarks.NOT_OUTERMOST)

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _refuse


def _check_kinds(strategy: object, auditors: object) -> None:
    """Raise TypeError, in words, unless these are a strategy and a list of auditors."""
    # By its methods: whoever copies Flower's interface without inheriting from it is welcome.
    methods = ("start", "configure_train", "aggregate_train")
    if isinstance(strategy, type) or not all(hasattr(strategy, name) for name in methods):
        raise TypeError(
            f"strategy must be a Flower strategy, got {strategy!r}; for example "
            "Audited(FedAvg(), auditors=[OneShotCanaries(seats=2)])"
        )
    given = list(auditors) if isinstance(auditors, Iterable) else [auditors]
    wrong = [one for one in given if not isinstance(one, Auditor)]
    if wrong or not isinstance(auditors, Sequence):
        raise TypeError(
            f"auditors must be a list of Auditor objects, got {(wrong or [auditors])[0]!r}; for "
            "example auditors=[OneShotCanaries(seats=2)]"
        )
