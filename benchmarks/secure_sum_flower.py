"""Flower's side of a secure round: its own mod, and the stages of its own workflow."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod.secure_aggregation.secaggplus_mod import secaggplus_mod
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

from benchmarks.secure_sum import (
    THRESHOLD,
    UPDATE,
    WEIGHT,
    Call,
    Case,
    Direct,
    Dropout,
    settle,
)
from leakmeter.strategies.secure_sum.sum_round import AbandonedError


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

    settle()
    begin = time.process_time()
    for stage in (
        workflow.setup_stage,
        workflow.share_keys_stage,
        workflow.collect_masked_vectors_stage,
        workflow.unmask_stage,
    ):
        if not stage(grid, context, progress):
            raise AbandonedError(stage.__name__)
    seconds = time.process_time() - begin

    assert len(survivors) == case.clients - len(case.dropped)
    mean = compat.arrayrecord_to_parameters(state.array_records[MAIN_PARAMS_RECORD], True)
    assert np.allclose(parameters_to_ndarrays(mean)[0], UPDATE, atol=1e-2)
    return seconds, grid
