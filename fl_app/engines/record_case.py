"""What the record-level audit of a run needs to know of one client's part in a sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from leakmeter.auditors._types import Floats, Indices
from leakmeter.auditors.auditor import RoundView
from leakmeter.auditors.records.game import RecordCase
from leakmeter.auditors.rng import stream
from leakmeter.clients.protection.clipping import gaussian
from leakmeter.clients.protection.gaussian_sampling import GaussianSampling
from leakmeter.clients.protection.gradient_matrix import DenseGradients, Gradients
from leakmeter.clients.protection.per_example import per_example_gradients
from leakmeter.clients.protection.water_filling import WaterFilling
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.rule import record_rule
from leakmeter.fl_app.task import Task, load_task

_CANDIDATES = 20  # records of others that may take a record's place
# Beyond this many records or numbers a draw of the mechanism takes too long to be tried a thousand
# times; its law is drawn from instead, and the finding says so.
_MOST_RECORDS, _MOST_NUMBERS = 200, 2_000_000


def record_case(
    config: Config, cohort_of: Callable[[int], Sequence[int]], view: RoundView
) -> RecordCase:
    """Return the part that a client would have in the round's sum, for a record of its own.

    The client is that of `lrt-target`, by default the first of the round. In the worst case others
    add their floor only; where it is known who was in the sum, and the client was, the case has
    the noise of their own data beside it.

    Args:
        config: The run's settings.
        cohort_of: Returns the clients that a round asks.
        view: The round.
    """
    task = load_task(config)
    asked = cohort_of(view.server_round)
    honest = [c for c in asked if c not in view.instructed]
    client = config.lrt_target if config.lrt_target >= 0 else next(iter(honest), 0)
    own = len(task.parts[client])
    x, y = _examples(task, config.seed, client)
    net = task.new_model()
    start = torch.from_numpy(view.sent).to(next(net.parameters()).dtype)
    vector_to_parameters(start, net.parameters())
    gradients = per_example_gradients(net, x, y, config.clip_norm)
    rule = record_rule(config)
    rest = max(view.facts.num_clients - len(view.instructed) - 1, 0) * config.wfna_floor
    excess: tuple[Floats, ...] = ()
    # The full gradient has no randomness but the noise, which is the same whatever the data.
    if rule.sampling == "gaussian" and client in honest and len(asked) == view.facts.num_clients:
        others = (task.examples(c) for c in honest if c != client)
        found = [_excess(config, net, rule, (x, y), theirs) for theirs in others]
        excess = tuple(np.sum(parts, axis=0) for parts in zip(*found, strict=True))

    @lru_cache(maxsize=1)
    def matrix() -> Floats:
        return gradients.columns(0, gradients.dim)

    def draw(which: Indices, rng: np.random.Generator) -> Floats:
        estimate, _ = rule.estimate(DenseGradients(matrix()[which]), rng)
        return estimate + gaussian(gradients.dim, rest**0.5, rng)

    is_small = own <= _MOST_RECORDS and gradients.dim * len(y) <= _MOST_NUMBERS
    # Isotropic noise comes on top of the sampling, and so is part of what every direction has.
    own_floor = _filled_to(rule)
    return RecordCase(
        blocks=tuple(_parts(rule, gradients)),
        records=own,
        batch=rule.batch_size,
        floor=own_floor,
        rest=rest + config.wfna_floor - own_floor,
        draw=draw if is_small else None,
        excess=excess,
    )


def _excess(
    config: Config,
    net: nn.Module,
    rule: GaussianSampling,
    rows: tuple[Tensor, Tensor],
    theirs: tuple[Tensor, Tensor],
) -> list[Floats]:
    """Return G E Gᵀ for each block: E is what another client's sampling adds above the floor.

    With its gradients H, (records, dim), the client adds h(Σ), Σ = HᵀH/(BD) with eigenvalues μ; if
    its noise is isotropic, Σ and the noise, which is the same with a floor of 0.
    Of E = Σ_μ (μ - σ²)₊ w wᵀ the eigenvectors are w = Hᵀv/√(μBD), with v those of the Gram matrix
    HHᵀ/(BD). So only products of gradients are needed, never a vector of length dim.
    """
    x, y = (torch.cat(pair) for pair in zip(rows, theirs, strict=True))
    gradients = per_example_gradients(net, x, y, config.clip_norm)
    first, scale = len(rows[1]), config.batch_size * len(theirs[1])
    floor, found = _filled_to(rule), []
    for part in _parts(rule, gradients):
        gram = part.gram()
        mu, v = np.linalg.eigh(gram[first:, first:] / scale)
        # Without filling, what is left of eigenvalues that are zero is rounding.
        above = mu > max(floor, 1e-12 * float(mu[-1]))
        mu, seen = mu[above], gram[:first, first:] @ v[:, above]  # (rows, directions)
        found.append((seen * ((mu - floor) / (mu * scale))) @ seen.T)
    return found


def _parts(rule: GaussianSampling, gradients: Gradients) -> Iterator[Gradients]:
    """Yield the gradients of each block that is sampled and filled separately."""
    if isinstance(rule.noise, WaterFilling):
        yield from rule.noise.parts(gradients)
    else:
        yield gradients


def _filled_to(rule: GaussianSampling) -> float:
    """Return the floor that a client's covariance is filled to; 0 where noise is added to it."""
    return rule.noise.sigma2 if isinstance(rule.noise, WaterFilling) else 0.0


def _examples(task: Task, seed: int, client: int) -> tuple[Tensor, Tensor]:
    """Return the client's own records, then candidates of others."""
    own = task.parts[client].numpy()
    pool = np.setdiff1d(np.arange(len(task.dataset.train_y)), own)
    rng = stream(seed, "record-candidates", client)
    chosen = rng.choice(pool, min(_CANDIDATES, len(pool)), replace=False)
    rows = np.concatenate([own, chosen])
    x, y = task.dataset.train_x[rows], task.dataset.train_y[rows]
    return torch.from_numpy(x), torch.from_numpy(y)
