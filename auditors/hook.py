"""The hook: a strategy around any Flower strategy that lets auditors see each round.

`Audited` does not wrap the calls of a round from outside. It replaces Flower's four methods on
the inner strategy's *instance* for the time of `start` and then runs the inner strategy's own
`start`. A strategy that brings its own loop, logging or attributes keeps them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from auditors import wire
from auditors.base import Auditor, Canary, Finding, RoundView, Vector
from auditors.chain import chain, replaced
from auditors.layout import Layout
from auditors.panel import Panel
from auditors.record import RoundLine, RunRecord
from auditors.view import Updates, collect_truth, merged_facts, weight_key

_log = logging.getLogger("flwr")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True)
class _Open:
    """A round between its configuration and its aggregation."""

    server_round: int
    arrays: ArrayRecord
    sent: Vector
    clients: Mapping[int, int]  # node id -> client index
    orders: Mapping[int, Canary]
    grid: Grid
    is_noised: bool  # by the clients themselves


class Audited(Strategy):
    """Runs `strategy` as it is and shows every round to the auditors.

    Args:
        strategy: Any Flower strategy, also one that wraps others. `Audited` must be outermost.
        auditors: What looks on. Their names must differ.
        out: Folder for `rounds.jsonl` and `report.json`; nothing is written without it.
        config: What to note in the report about how the run was made.
        rounds_done: Rounds of an interrupted run that are already there; counted on from.
        on_round: Called with the line of each finished round and the model after it.

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
        on_round: Callable[[RoundLine, ArrayRecord], None] | None = None,
    ) -> None:
        if rounds_done < 0:
            raise ValueError(f"rounds_done must be at least 0, got {rounds_done}")
        self.strategy = strategy
        self.findings: list[Finding] = []
        self._panel = Panel(auditors)
        self._record = RunRecord(Path(out), config or {}, rounds_done) if out else None
        self._offset = rounds_done
        self._on_round = on_round
        self._layout: Layout | None = None
        self._nodes: dict[int, int] = {}
        self._open: _Open | None = None
        self._pending: tuple[RoundLine, ArrayRecord] | None = None
        self._timeout = 0.0
        # Taken before anything is replaced on the instance.
        self._inner_configure_train = strategy.configure_train
        self._inner_aggregate_train = strategy.aggregate_train
        self._inner_configure_evaluate = strategy.configure_evaluate
        self._inner_aggregate_evaluate = strategy.aggregate_evaluate

    def __getattr__(self, name: str) -> Any:
        """Hand on what the strategies inside offer beyond Flower's interface."""
        if not name.startswith("_") and name != "strategy":
            for held in chain(self.strategy):
                if hasattr(held, name):
                    return getattr(held, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def auditors(self) -> Sequence[Auditor]:
        """Those that still look on."""
        return self._panel.auditors

    @property
    def failures(self) -> Sequence[str]:
        """Which auditors were left out, when and why."""
        return self._panel.failures

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
        _log.info("Auditors: %s", ", ".join(a.name for a in self.auditors) or "none")
        with replaced(
            self.strategy,
            configure_train=self._configure,
            aggregate_train=self._aggregate,
            configure_evaluate=self._configure_evaluate,
            aggregate_evaluate=self._aggregate_evaluate,
        ):
            result = self.strategy.start(
                grid=grid,
                initial_arrays=initial_arrays,
                num_rounds=max(num_rounds - self._offset, 0),
                timeout=timeout,
                train_config=train_config,
                evaluate_config=evaluate_config,
                **more,
            )
        self._flush()
        self._finish()
        return result

    def state(self) -> dict[str, Any]:
        """Return the layout and what the auditors need to go on after an interruption."""
        layout = asdict(self._layout) if self._layout else None
        return {"layout": layout, **self._panel.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a state that `state` returned; it reaches the auditors before their round."""
        # The first record's layout: FedAvg has turned integer arrays into floats since.
        if state["layout"] is not None:
            self._layout = Layout.from_json(state["layout"])
        self._panel.restore(state)

    def _begin(self, arrays: ArrayRecord, num_rounds: int) -> None:
        """Fix the layout and wake the auditors, before anything is sent."""
        self._open = self._pending = None  # of a start that was broken off
        self._layout = self._layout or Layout.of(arrays)
        self._layout.announce()
        self._panel.begin(self._layout.dim, num_rounds)

    def _configure(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Stand in for the inner `configure_train`: let it choose, then hand out orders."""
        self._flush()
        layout = self._layout
        assert layout is not None
        server_round += self._offset
        sent = layout.flatten(arrays)  # before the inner strategy may change the record
        messages = list(self._inner_configure_train(server_round, arrays, config, grid))
        clients = self._clients([m.metadata.dst_node_id for m in messages], grid)
        # Nobody takes part in a round that was given up before it began.
        orders = self._panel.instruct(server_round, sorted(clients.values())) if clients else {}
        for message in messages:
            client = clients[message.metadata.dst_node_id]
            if client in orders:
                wire.add_record(message, wire.CANARY, wire.canary_record(orders[client]))
                wire.add_left_out(message, layout.left_out)
            if self._panel.wants_truth:
                key = weight_key(self.strategy)
                keep = ConfigRecord({"action": "keep", "round": server_round, "weight-key": key})
                wire.add_record(message, wire.TAP, keep)
        by_client = {clients[m.metadata.dst_node_id]: m for m in messages}
        key = weight_key(self.strategy)
        self._panel.bind(server_round, grid, by_client, layout, sent, key)
        is_noised = any(wire.share_std(m.content) > 0 for m in messages)
        self._open = _Open(server_round, arrays, sent, clients, orders, grid, is_noised)
        return messages

    def _aggregate(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Stand in for the inner `aggregate_train`: let it aggregate, then look."""
        opened, layout = self._open, self._layout
        assert opened is not None
        assert layout is not None
        replies = list(replies)
        contents = {
            opened.clients[m.metadata.src_node_id]: m.content
            for m in replies
            if m.has_content() and m.metadata.src_node_id in opened.clients
        }
        updates = Updates(layout, opened.sent, contents, weight_key(self.strategy))
        arrays, metrics = self._inner_aggregate_train(server_round + self._offset, replies)
        truth, weights = self._truth(opened, layout)
        view = RoundView(
            server_round=opened.server_round,
            sent=opened.sent,
            replies=updates,
            released=opened.sent if arrays is None else layout.flatten(arrays),
            facts=merged_facts(self.strategy, updates, released=arrays is not None),
            truth=truth,
            truth_weights=weights,
            instructed=self._obeyed(opened, updates),
        )
        findings = self._panel.observe(view)
        scalars = _scalars(metrics)
        if findings:
            said = {f"{f.auditor}.{f.quantity}": float(f.value) for f in findings}
            metrics = MetricRecord({**(metrics or {}), **said})
        line = RoundLine(opened.server_round, len(updates), scalars, tuple(findings))
        self._pending = (line, opened.arrays if arrays is None else arrays)
        self._open = None
        return arrays, metrics

    def _obeyed(self, opened: _Open, updates: Updates) -> dict[int, Canary]:
        """Return the orders of the seats that answered, and did as told as far as one can see."""
        answered = {c: o for c, o in opened.orders.items() if c in updates}
        if opened.is_noised:
            return answered
        obeyed = {c: o for c, o in answered.items() if updates.carries(c, o)}
        if len(obeyed) < len(answered):
            _log.warning(
                "%d of %d canary seats have sent something else: is canary_mod in the client app?",
                *(len(answered) - len(obeyed), len(answered)),
            )
        return obeyed

    def _truth(
        self, opened: _Open, layout: Layout
    ) -> tuple[Mapping[int, Vector], Mapping[int, float]]:
        """Return the plain updates and weights that clients kept, if an auditor wants them."""
        if not self._panel.wants_truth:
            return {}, {}
        return collect_truth(
            opened.grid,
            opened.clients,
            server_round=opened.server_round,
            layout=layout,
            sent=opened.sent,
            timeout=self._timeout,
        )

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
        self._note(metrics)
        return metrics

    def _watch_evaluation(self, evaluate_fn: EvaluateFn) -> EvaluateFn:
        """Return the server's evaluation, made to complete the round's line."""

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics = evaluate_fn(server_round + self._offset, arrays)
            self._note(metrics)
            self._flush()
            return metrics

        return evaluate

    def _clients(self, nodes: Sequence[int], grid: Grid) -> dict[int, int]:
        """Return node id to client index, from the strategy that knows it or by first sight."""
        for strategy in chain(self.strategy):
            known: Mapping[int, int] | None = getattr(strategy, "client_of", None)
            if known is not None:
                return {node: known[node] for node in nodes}
        for node in sorted({*grid.get_node_ids(), *nodes}):
            self._nodes.setdefault(node, len(self._nodes))
        return {node: self._nodes[node] for node in nodes}

    def _note(self, metrics: MetricRecord | None) -> None:
        """Add evaluation metrics to the line of the round that is not written yet."""
        if self._pending is not None and metrics is not None:
            line, arrays = self._pending
            line = replace(line, metrics={**line.metrics, **_scalars(metrics)})
            self._pending = (line, arrays)

    def _flush(self) -> None:
        """Write the line of the last round, once, and tell whoever listens."""
        if self._pending is None:
            return
        line, arrays = self._pending
        self._pending = None
        self.findings += line.findings
        if self._record is not None:
            self._record.add(line)
        if self._on_round is not None:
            self._on_round(line, arrays)

    def _finish(self) -> None:
        """Let every auditor report on the run and write the report."""
        final = self._panel.report()
        for held in chain(self.strategy):  # what the mechanism itself can say, such as guarantees
            final += getattr(held, "findings", list)()
        self.findings += final
        if self._record is not None:
            path = self._record.finish(final, self.failures)
            _log.info("Audit written to %s", path)

    def _refuse(self, *args: Any, **more: Any) -> NoReturn:
        """Refuse: only a wrapper around `Audited` would call one of these."""
        raise RuntimeError(_NOT_OUTERMOST)

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _refuse

    def summary(self) -> None:
        """Log what the inner strategy says of itself."""
        self.strategy.summary()


_NOT_OUTERMOST = (
    "Audited must be outermost: write Audited(Wrapper(strategy), ...), "
    "not Wrapper(Audited(strategy, ...))"
)


def _scalars(metrics: MetricRecord | None) -> dict[str, float]:
    """Return the metrics that are single numbers."""
    return {k: float(v) for k, v in (metrics or {}).items() if isinstance(v, int | float)}
