"""What the record-level audit of a run with water filling needs to know of one client's part."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import vector_to_parameters

from leakmeter.auditors._types import Floats, Indices
from leakmeter.auditors.auditor import RoundView
from leakmeter.auditors.records.game import RecordCase
from leakmeter.auditors.rng import stream
from leakmeter.clients.noise.clipping import gaussian
from leakmeter.clients.water_filling.gradient_matrix import DenseGradients
from leakmeter.clients.water_filling.per_example import per_example_gradients
from leakmeter.clients.water_filling.water_filling import WaterFilling
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.task import Task, load_task

_CANDIDATES = 20  # records of others that may stand in a record's place
# Beyond so many records or numbers a draw of the mechanism takes too long to be tried a thousand
# times; its law is drawn from instead, and the finding says so.
_MOST_RECORDS, _MOST_NUMBERS = 200, 2_000_000


def record_case(config: Config, view: RoundView) -> RecordCase:
    """Return the part that a client would have in the round's sum, for a record of its own.

    The client is that of `lrt-target`, the first by default. Others are taken to add their floor
    only, the least they may.
    """
    task = load_task(config)
    client = max(config.lrt_target, 0)
    own = len(task.parts[client])
    x, y = _examples(task, config.seed, client)
    net = task.new_model()
    start = torch.from_numpy(view.sent).to(next(net.parameters()).dtype)
    vector_to_parameters(start, net.parameters())
    gradients = per_example_gradients(net, x, y, config.clip_norm)
    filling = WaterFilling(config.wfna_floor, config.wfna_blocks)
    rest = max(view.facts.num_clients - config.seats - 1, 0) * config.wfna_floor

    @lru_cache(maxsize=1)
    def matrix() -> Floats:
        return gradients.columns(0, gradients.dim)

    def draw(which: Indices, rng: np.random.Generator) -> Floats:
        estimate = filling.draw(DenseGradients(matrix()[which]), config.batch_size, rng).gradient
        return estimate + gaussian(gradients.dim, rest**0.5, rng)

    is_small = own <= _MOST_RECORDS and gradients.dim * len(y) <= _MOST_NUMBERS
    return RecordCase(
        blocks=tuple(filling.parts(gradients)),
        records=own,
        batch=config.batch_size,
        floor=config.wfna_floor,
        rest=rest,
        draw=draw if is_small else None,
    )


def _examples(task: Task, seed: int, client: int) -> tuple[Tensor, Tensor]:
    """Return the client's own records, then candidates of others."""
    own = task.parts[client].numpy()
    pool = np.setdiff1d(np.arange(len(task.dataset.train_y)), own)
    rng = stream(seed, "record-candidates", client)
    chosen = rng.choice(pool, min(_CANDIDATES, len(pool)), replace=False)
    rows = np.concatenate([own, chosen])
    x, y = task.dataset.train_x[rows], task.dataset.train_y[rows]
    return torch.from_numpy(x), torch.from_numpy(y)
