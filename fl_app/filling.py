"""Water filling in a run: the clients' rule, the server's wrapper, and the record-level audit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from flwr.serverapp.strategy import Strategy
from torch.nn.utils import vector_to_parameters

from leakmeter.auditors._types import Floats, Indices
from leakmeter.auditors.auditor import Auditor, RoundView
from leakmeter.auditors.not_covered import NotCovered
from leakmeter.auditors.records.game import RecordCase
from leakmeter.auditors.rng import stream
from leakmeter.clients.noise.clipping import gaussian
from leakmeter.clients.water_filling.gaussian_sampling import GaussianSampling
from leakmeter.clients.water_filling.gradient_matrix import DenseGradients
from leakmeter.clients.water_filling.per_example import per_example_gradients
from leakmeter.clients.water_filling.water_filling import WaterFilling
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.task import load_task
from leakmeter.strategies import Filled

_OF_UPDATES = ("likelihood-ratio", "mutual-information")
_CANDIDATES = 20  # records of others that may stand in a record's place
# Beyond so many records or numbers a draw of the mechanism takes too long to be tried a thousand
# times; its law is drawn from instead, and the finding says so.
_MOST_RECORDS, _MOST_NUMBERS = 200, 2_000_000


def filling_rule(config: Config) -> GaussianSampling:
    """Return what a client does: Gaussian sampling, filled to the floor."""
    return GaussianSampling(
        config.lr,
        config.clip_norm,
        config.batch_size,
        noise=WaterFilling(config.wfna_floor, config.wfna_blocks),
        steps=_steps(config),
        simulated=True,
    )


def filled(strategy: Strategy, config: Config) -> Filled:
    """Return the strategy with the accounting of water filling around it."""
    return Filled(
        strategy,
        sigma2=config.wfna_floor,
        clip_norm=config.clip_norm,
        batch_size=config.batch_size,
        examples=load_task(config).sizes.smallest,
        lr=config.lr,
        steps=_steps(config),
        colluders=config.seats,  # a seat's canary carries no noise
        delta=config.delta,
    )


def beside_records(auditors: Sequence[Auditor]) -> list[Auditor]:
    """Return auditors whose findings about clients say that the guarantee is for records only.

    Samplers draw updates with all the noise of water filling in them; canaries carry none.
    """
    return [NotCovered(one, is_frozen=one.name in _OF_UPDATES) for one in auditors]


def record_case(config: Config, view: RoundView) -> RecordCase:
    """Return the part that a client would have in the round's sum, for a record of its own.

    The client is that of `lrt-target`, the first by default. Others are taken to add their floor
    only, the least they may.
    """
    task = load_task(config)
    client = max(config.lrt_target, 0)
    own = task.parts[client].numpy()
    pool = np.setdiff1d(np.arange(len(task.dataset.train_y)), own)
    rng = stream(config.seed, "record-candidates", client)
    chosen = rng.choice(pool, min(_CANDIDATES, len(pool)), replace=False)
    rows = np.concatenate([own, chosen])
    x, y = (torch.from_numpy(a[rows]) for a in (task.dataset.train_x, task.dataset.train_y))
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

    is_small = len(own) <= _MOST_RECORDS and gradients.dim * len(rows) <= _MOST_NUMBERS
    return RecordCase(
        blocks=tuple(filling.parts(gradients)),
        records=len(own),
        batch=config.batch_size,
        floor=config.wfna_floor,
        rest=rest,
        draw=draw if is_small else None,
    )


def _steps(config: Config) -> int:
    return 1 if config.algorithm == "fedsgd" else config.epochs
