"""The hook: a strategy around any Flower strategy that lets auditors see each round.

Like every `Wrapper`, `Audited` replaces Flower's four methods on the inner strategy's *instance*
for the time of `start` and runs the inner strategy's own `start`. A strategy that brings its own
loop or logging keeps it, and its attributes are where they were: on `strategy`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from leakmeter.auditors._types import Vector
from leakmeter.auditors.auditor import Auditor, Project, RoundMessages, RoundView
from leakmeter.auditors.finding import Finding, Limitation, RunWarning
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.chain import survey, understood, weight_key, with_round, wrappers
from leakmeter.auditors.hook.health import Health
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.hook.open_round import (
    NO_CANARIES,
    NO_TRUTH,
    ClientNumbers,
    OpenRound,
    Updates,
    ask_to_keep,
    give_orders,
    round_facts,
    will_hide_updates,
)
from leakmeter.auditors.hook.panel import Panel
from leakmeter.auditors.hook.round_log import OnRound, RoundLog, scalars, with_findings
from leakmeter.auditors.hook.wrapper import Wrapper
from leakmeter.auditors.run_log import RoundLine, RunLog

_log = logging.getLogger("flwr")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class Audited(Wrapper):
    """Runs `strategy` as it is and shows every round to the auditors.

    Before training starts, each auditor logs what it cannot measure in this project.

    Args:
        strategy: Any Flower strategy, also one that wraps others. `Audited` must be outermost.
        auditors: What looks on. Their names must differ.
        out: Folder for `rounds.jsonl` and `report.json`, `~` is your home; nothing is written
            without it.
        config: What to note in the report about how the run was made.
        rounds_done: Rounds of an interrupted run that are already there; counted on from.
        on_round: Called with the line of each finished round and the model after it.
        limitations: What is known beforehand to be outside this audit, for the report.

    Example:
        strategy = Audited(FedAvg(), auditors=[OneShotCanaries(seats=2)], out="runs/mine")
        result = strategy.start(grid, initial_arrays, num_rounds=20)
    """

    def __init__(
        self,
        strategy: Strategy,
        auditors: Sequence[Auditor],
        *,
        out: str | Path | None = None,
        config: Mapping[str, Any] | None = None,
        rounds_done: int = 0,
        on_round: OnRound | None = None,
        limitations: Sequence[Limitation] = (),
    ) -> None:
        if rounds_done < 0:
            raise ValueError(f"rounds_done must be at least 0, got {rounds_done}")
        super().__init__(strategy)
        self._panel = Panel(auditors)
        self._known = tuple(limitations)
        self._folder = folder = Path(out).expanduser() if out else None
        self._run_log = RunLog(folder, config or {}, rounds_done) if folder else None
        self._lines = RoundLog(self._run_log, on_round)
        self._offset = rounds_done
        self._layout: Layout | None = None
        self._project: Project | None = None
        self._numbers = ClientNumbers()
        self._health = Health()
        self._open: OpenRound | None = None
        self._seen = 0
        self._has_tap = True  # until nobody has answered for one
        self._timeout = 0.0

    @property
    def auditors(self) -> Sequence[Auditor]:
        """Those that still look on."""
        return self._panel.auditors

    @property
    def failures(self) -> Sequence[str]:
        """Which auditors were left out, when and why."""
        return self._panel.failures

    @property
    def limitations(self) -> Sequence[Limitation]:
        """What auditors cannot see or show in this project."""
        return (*self._known, *self._panel.limitations)

    @property
    def warnings(self) -> Sequence[RunWarning]:
        """Reasons to doubt the run itself, as far as it has gone."""
        return self._health.warnings(self._panel.canaries)

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
            raise RuntimeError(_NOT_OUTERMOST)
        self._timeout = timeout
        self._begin(initial_arrays, num_rounds)
        if evaluate_fn is not None:
            more["evaluate_fn"] = self._watch_evaluation(evaluate_fn)
        left = max(num_rounds - self._offset, 0)
        usual = {"timeout": timeout, "train_config": train_config}
        usual["evaluate_config"] = evaluate_config
        result = super().start(
            grid=grid,
            initial_arrays=initial_arrays,
            num_rounds=left,
            **understood(self.strategy, usual),
            **more,
        )
        self._lines.flush()
        self._finish(was_seen=self._seen > 0 or left == 0)
        return result

    def state(self) -> dict[str, Any]:
        """Return the layout and what the auditors need to go on after an interruption."""
        layout = asdict(self._layout) if self._layout else None
        return {"layout": layout, "health": self._health.state(), **self._panel.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a state that `state` returned; it reaches the auditors before their round."""
        # The first record's layout: FedAvg has turned integer arrays into floats since.
        if state["layout"] is not None:
            self._layout = Layout.from_json(state["layout"])
        self._health.restore(state["health"])
        self._panel.restore(state)

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
        self._lines.forget()
        self._seen = 0
        self._layout = self._layout or Layout.of(arrays)
        self._layout.announce()
        self._panel.begin(self._layout.dim, num_rounds, self._folder)
        self._project = survey(self.strategy, self._layout.dim, num_rounds)
        self._panel.consider(self._project)
        _log.info("Auditors: %s", ", ".join(a.name for a in self.auditors) or "none")

    def _configure(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Stand in for the inner `configure_train`: let it choose, then hand out orders."""
        self._lines.flush()
        self._open = None
        server_round += self._offset
        kept = ArrayRecord(dict(arrays))  # the inner strategy may change the record
        messages = list(self._inner_configure_train(server_round, arrays, config, grid))
        with self._panel.guarded(f"round {server_round} could not be audited"):
            self._open = self._ordered(server_round, kept, messages, grid)
        return messages

    def _ordered(
        self, server_round: int, arrays: ArrayRecord, messages: Sequence[Message], grid: Grid
    ) -> OpenRound:
        """Give the messages of a round their orders and keep what is needed to look at it."""
        layout = self._layout
        assert layout is not None
        assert self._project is not None
        sent, key = layout.flatten(arrays), weight_key(self.strategy)
        nodes = [m.metadata.dst_node_id for m in messages]
        clients = self._numbers.of(nodes, self.strategy, grid)
        by_client = {clients[m.metadata.dst_node_id]: m for m in messages}
        # Nobody takes part in a round that was given up before it began.
        orders = self._panel.instruct(server_round, sorted(by_client)) if clients else {}
        self._consider_round(messages, len(orders))
        give_orders(by_client, orders, layout, avoid_zero=bool(self._project.noised_by))
        hidden = will_hide_updates(messages)
        if hidden and self._panel.wants_truth and self._has_tap:
            ask_to_keep(messages, server_round, key)
        self._panel.bind(server_round, RoundMessages(grid, by_client, layout, sent, key))
        is_noised = any(wire.share_std(m.content) > 0 for m in messages)
        return OpenRound(
            server_round, arrays, sent, clients, orders, grid, layout, hidden, is_noised
        )

    def _consider_round(self, messages: Sequence[Message], seats: int) -> None:
        """Let the auditors say what they cannot do, once it is known who takes part."""
        if self._project is None or self._project.clients is not None or not messages:
            return
        self._project = with_round(self._project, messages, seats)
        self._panel.consider(self._project)

    def _aggregate(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Stand in for the inner `aggregate_train`: let it aggregate, then look."""
        opened, self._open = self._open, None
        server_round += self._offset
        replies = list(replies)
        key = weight_key(self.strategy)
        # Before the inner strategy may put other arrays into the replies.
        updates = opened.updates(replies, key) if opened is not None else None
        arrays, metrics = self._inner_aggregate_train(server_round, replies)
        self._seen += 1
        findings: list[Finding] = []
        if opened is not None and updates is not None:
            with self._panel.guarded(f"round {server_round} could not be audited"):
                view = self._view(opened, updates, arrays)
                # First, and guarded by itself: no auditor may cost the run its warnings.
                with self._panel.guarded(f"warnings may lack round {server_round}"):
                    self._health.note(
                        view,
                        asked=len(opened.clients),
                        refused=sum(map(wire.says_not_finite, replies)),
                        plain=opened.plain(view.truth, updates),
                    )
                findings = self._panel.observe(view)
        answered = sum(m.has_content() for m in replies) if updates is None else len(updates)
        line = RoundLine(server_round, answered, scalars(metrics), tuple(findings))
        after = arrays if arrays is not None else (opened.arrays if opened else None)
        if after is not None:
            self._lines.put(line, after)
        return arrays, with_findings(metrics, findings)

    def _view(self, opened: OpenRound, updates: Updates, arrays: ArrayRecord | None) -> RoundView:
        """Return what the round shows, and note where instruments did not answer."""
        obeyed, refused = opened.obeyed(updates)
        self._panel.note_seats(refused, NO_CANARIES)
        truth, weights = self._truth(opened, updates)
        return RoundView(
            server_round=opened.server_round,
            sent=opened.sent,
            replies=updates,
            released=opened.sent if arrays is None else opened.layout.flatten(arrays),
            facts=round_facts(self.strategy, updates, released=arrays is not None),
            truth=truth,
            truth_weights=weights,
            instructed=obeyed,
        )

    def _truth(
        self, opened: OpenRound, updates: Updates
    ) -> tuple[Mapping[int, Vector], Mapping[int, float]]:
        """Return the plain updates and weights, if an auditor wants them and they can be had."""
        if not self._panel.wants_truth or (opened.hides_updates and not self._has_tap):
            return {}, {}
        found = None
        with self._panel.guarded(f"round {opened.server_round} has no plain updates"):
            found = opened.truth(updates, self._timeout)
        if found is None:
            return {}, {}
        truth, weights = found
        if opened.hides_updates:  # a client may have kept an update that it then refused to send
            truth = {client: truth[client] for client in truth if client in updates}
        if updates and not truth:
            self._has_tap = False  # a client app without one is not asked again
            self._panel.note_truth(NO_TRUTH)
        return truth, weights

    def _configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Stand in for the inner `configure_evaluate`: count the rounds of the whole run."""
        return self._inner_configure_evaluate(server_round + self._offset, arrays, config, grid)

    def _aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Stand in for the inner `aggregate_evaluate`: note what the clients measured."""
        metrics = self._inner_aggregate_evaluate(server_round + self._offset, replies)
        self._lines.note(metrics)
        return metrics

    def _watch_evaluation(self, evaluate_fn: EvaluateFn) -> EvaluateFn:
        """Return the server's evaluation, made to complete the round's line."""

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics = evaluate_fn(server_round + self._offset, arrays)
            self._lines.note(metrics)
            self._lines.flush()
            return metrics

        return evaluate

    def _finish(self, *, was_seen: bool) -> None:
        """Let every auditor report on the run and write the report."""
        if not was_seen:
            self._panel.fail("the run was not audited", RuntimeError(_UNSEEN))
        final = self._panel.report() if was_seen else []
        for wrapper in wrappers(self.strategy):  # what the mechanism itself guarantees
            final += wrapper.findings()
        self._lines.findings += final
        for warning in self.warnings:
            _log.info("%s", warning.text)
        if self._run_log is not None:
            path = self._run_log.finish(
                final, self.failures, self.limitations, self.warnings
            ).resolve()
            _log.info("Audit written to %s; a page: leakmeter report %s", path, path.parent)
        self._panel.close()

    def _refuse(self, *args: Any, **more: Any) -> NoReturn:
        """Refuse: only a wrapper around `Audited` would call one of these."""
        raise RuntimeError(_NOT_OUTERMOST)

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _refuse


_NOT_OUTERMOST = (
    "Audited must be outermost: write Audited(Wrapper(strategy), ...), "
    "not Wrapper(Audited(strategy, ...))"
)
_UNSEEN = (
    "the strategy's start never called self.configure_train and self.aggregate_train, so no "
    "auditor saw a round: let its loop call these two"
)
