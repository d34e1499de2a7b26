"""Whole secure rounds to be measured: ours twice, and Flower's own, with the same dropouts.

The scripts beside it ask the questions; this one only plays.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.client.mod.secure_aggregation.secaggplus_mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.compat.common import recorddict_compat as compat
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation import SecAggPlusWorkflow
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from auditors import wire
from clients import MaskMod
from clients.graph import MAX_ABORT, MAX_EXPOSURE
from clients.keys import Session
from clients.mask_wire import (
    get_by_number,
    get_keys,
    get_keys_of_peers,
    get_participant,
    put_by_number,
    put_participant,
)
from clients.participant import Participant, Policy
from clients.quantise import Quantiser
from fl_app.inline import InlineGrid, run_inline
from strategies import Masked
from strategies.topology import Topology
from strategies.unmasking import Cohort

Call = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Call], Message]

UPDATE = 0.25  # what every client adds to every coordinate
WEIGHT = 50
DROPOUT = 0.1
THRESHOLD = 0.6


class Dropout(Exception):  # noqa: N818  (it is none of the program's)
    """A client that does not upload."""


@dataclass(frozen=True)
class Case:
    """One shape of a round."""

    clients: int
    dim: int
    neighbours: int | Literal["auto"] | None
    repetitions: int
    target: float | None = None

    @property
    def dropped(self) -> set[int]:
        """Nodes that have shared and do not upload."""
        return set(range(1, round(DROPOUT * self.clients) + 1))

    def __str__(self) -> str:
        graph = "complete" if self.neighbours is None else f"{self.neighbours} neighbours"
        return f"{self.clients} clients, d = {self.dim:,}, {graph}"


class Direct(InlineGrid):
    """Calls a client mod without an engine around it, and may count the bytes that pass.

    An exception keeps what it did to the client's state, which is fine here: the client is gone.
    """

    def __init__(self, mod: Mod, train: Call, num_nodes: int, count_bytes: bool) -> None:
        super().__init__(ClientApp(), num_nodes)
        self.down = self.up = 0
        self._mod, self._train, self._counts = mod, train, count_bytes

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Call the mod for each message in turn."""
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(next(self._ids))
            self.down += _size(message) if self._counts else 0
            context = self._contexts[message.metadata.dst_node_id]
            try:
                reply = self._mod(message, context, self._train)
            except Dropout as error:
                reply = Message(Error(code=2, reason=str(error)), reply_to=message)
            self.up += _size(reply) if self._counts else 0
            replies.append(reply)
        return replies


def _size(message: Message) -> int:
    """Return the bytes of a message's records; numbers take eight, lists are added up."""
    if message.has_error():
        return 0
    return sum(_bytes(dict(record)) for record in message.content.values())


def _bytes(value: Any) -> int:
    match value:
        case dict():
            return sum(len(name) + _bytes(entry) for name, entry in value.items())
        case list():
            return sum(map(_bytes, value))
        case Array():
            return len(value.data)
        case bytes() | str():
            return len(value)
    return 8


class FirstReply(Strategy):
    """Sends one model to all and takes the first reply: no work beside the secure sum's."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return one message a node."""
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, node, "train") for node in grid.get_node_ids()]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return what all synthetic replies hold."""
        return wire.arrays(next(iter(replies)).content), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return nothing."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Return nothing."""

    def summary(self) -> None:
        """Say nothing."""


def our_functions(case: Case) -> float:
    """Return the CPU seconds of what `MaskMod` and `Masked` call, with their records."""
    topology = Topology(
        threshold=THRESHOLD, neighbours=case.neighbours, max_abort=1.0, max_exposure=1.0
    )
    policy, session = Policy(), Session(run=1, server_round=1)
    update = np.full(case.dim, UPDATE)

    _settle()
    begin = time.process_time()
    states, keys = {}, {}
    for n in range(1, case.clients + 1):
        client = Participant.announce(session, n)
        states[n] = put_participant(client)
        keys[n] = get_keys(ConfigRecord({"keys": client.public.to_bytes()}))
    plan = topology.plan(case.clients)
    cohort = Cohort(session, keys, plan.draw(sorted(keys)), plan.threshold)
    boxes = {}
    for n in keys:
        peers = put_by_number("keys", {p: k.to_bytes() for p, k in cohort.peers(n).items()})
        announced = get_keys_of_peers(ConfigRecord(peers))
        client, for_peers = get_participant(states[n]).share(n, announced, plan.threshold, policy)
        states[n] = put_participant(client)
        boxes[n] = get_by_number(ConfigRecord(put_by_number("boxes", for_peers)), "boxes")
    sharers = cohort.enough(boxes)
    quantiser = Quantiser(clip_range=4.0, bits=32, max_clients=len(sharers), max_weight=1000.0)
    uploads = {}
    for n in sorted(sharers - case.dropped):
        for_me = {p: boxes[p][n] for p in cohort.neighbourhood(n, sharers)}
        order = ConfigRecord(put_by_number("boxes", for_me))
        client = get_participant(states[n]).open(get_by_number(order, "boxes"), policy)
        vector = quantiser.encode(update, WEIGHT, {}, np.random.default_rng())
        client, uploads[n] = client.upload(vector, quantiser.ring)
        states[n] = put_participant(client)
    cohort.check(uploads, sharers)
    revealed = {}
    for n in uploads:
        alive = [n, *cohort.neighbourhood(n, uploads)]
        gone = cohort.neighbourhood(n, sharers & case.dropped)
        client, shares = get_participant(states[n]).reveal(alive, gone)
        states[n] = put_participant(client)
        revealed[n] = get_by_number(ConfigRecord(put_by_number("shares", shares)), "shares")
    total = cohort.total(uploads, sharers, revealed, quantiser.ring)
    assert quantiser.implausible(total, len(uploads)) is None
    mean = quantiser.decode(total)
    seconds = time.process_time() - begin

    assert np.abs(mean.mean - UPDATE).max() <= mean.quantum
    return seconds


def our_round(case: Case, count_bytes: bool = False) -> tuple[float, Direct]:
    """Return the CPU seconds of one round of `Masked` and `MaskMod`, with all their records."""
    start = np.zeros(case.dim, np.float32)
    moved = ArrayRecord({"w": Array(start + np.float32(UPDATE))})
    metrics = MetricRecord({"num-examples": WEIGHT})

    def train(message: Message, context: Context) -> Message:
        if context.node_id in case.dropped:
            raise Dropout
        return Message(RecordDict({"arrays": moved, "metrics": metrics}), reply_to=message)

    # 14 neighbours are a shape to measure, no graph to trust: any risk is let pass.
    limit = None if case.neighbours == "auto" else 1.0
    strategy = Masked(
        FirstReply(),
        threshold=THRESHOLD,
        neighbours=case.neighbours,
        max_abort=limit or MAX_ABORT,
        max_exposure=limit or MAX_EXPOSURE,
    )
    grid = Direct(MaskMod(), train, case.clients, count_bytes)
    arrays = ArrayRecord({"w": Array(start)})

    _settle()
    begin = time.process_time()
    messages = list(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    replies = grid.send_and_receive(messages)
    model, _ = strategy.aggregate_train(1, replies)
    seconds = time.process_time() - begin

    assert model is not None, strategy.facts
    assert strategy.facts["num_clients"] == case.clients - len(case.dropped)
    assert np.abs(strategy.facts["aggregate"] - UPDATE).max() <= strategy.facts["quantum"]
    return seconds, grid


def flower_round(case: Case, count_bytes: bool = False) -> tuple[float, Direct]:
    """Return the CPU seconds of one round of Flower's SecAgg+ mod and workflow."""
    moved = ndarrays_to_parameters([np.full(case.dim, UPDATE, np.float32)])
    answer = FitRes(Status(Code.OK, ""), moved, WEIGHT, {})

    def train(message: Message, context: Context) -> Message:
        if context.node_id in case.dropped:
            raise Dropout
        return Message(compat.fitres_to_recorddict(answer, True), reply_to=message)

    def mod(message: Message, context: Context, call_next: Call) -> Message:
        # Flower's mod takes entries out of a record that all messages of a stage share here.
        message.content = RecordDict(
            {
                key: ConfigRecord(dict(r)) if isinstance(r, ConfigRecord) else r
                for key, r in message.content.items()
            }
        )
        return secaggplus_mod(message, context, call_next)

    survivors: list[Any] = []

    def aggregate(_: int, results: Any, __: Any) -> tuple[Any, dict[str, Any]]:
        survivors.extend(results)
        return results[0][1].parameters, {}

    grid = Direct(mod, train, case.clients, count_bytes)
    parameters = ndarrays_to_parameters([np.zeros(case.dim, np.float32)])
    fit = [(SimpleNamespace(node_id=n), FitIns(parameters, {})) for n in grid.get_node_ids()]
    state = RecordDict(
        {
            MAIN_CONFIGS_RECORD: ConfigRecord({WorkflowKey.CURRENT_ROUND: 1}),
            MAIN_PARAMS_RECORD: compat.parameters_to_arrayrecord(parameters, True),
        }
    )
    context: Any = SimpleNamespace(
        state=state,
        strategy=SimpleNamespace(configure_fit=lambda *_: fit, aggregate_fit=aggregate),
        client_manager=SimpleNamespace(num_available=lambda: case.clients),
        history=SimpleNamespace(add_metrics_distributed_fit=lambda **_: None),
    )
    shares = case.neighbours + 1 if isinstance(case.neighbours, int) else 1.0
    workflow = SecAggPlusWorkflow(shares, THRESHOLD, max_weight=1000.0)
    progress = WorkflowState()

    _settle()
    begin = time.process_time()
    for stage in (
        workflow.setup_stage,
        workflow.share_keys_stage,
        workflow.collect_masked_vectors_stage,
        workflow.unmask_stage,
    ):
        assert stage(grid, context, progress), stage.__name__
    seconds = time.process_time() - begin

    assert len(survivors) == case.clients - len(case.dropped)
    mean = compat.arrayrecord_to_parameters(state.array_records[MAIN_PARAMS_RECORD], True)
    assert np.allclose(parameters_to_ndarrays(mean)[0], UPDATE, atol=1e-2)
    return seconds, grid


def _settle() -> None:
    """Leave what is there out of garbage collection: a pass over it takes a tenth of our round."""
    gc.collect()
    gc.freeze()


def within_a_run(work: Callable[[], None]) -> None:
    """Do the work where Flower lets messages be made."""
    server = ServerApp()

    @server.main()
    def main(_: Grid, __: Context) -> None:
        work()

    run_inline(server, ClientApp(), 1)
