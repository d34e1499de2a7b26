"""The likelihood-ratio audit of a secure sum at the size of the paper, in several games.

Ngo, Östman, Durisi, Graell i Amat (2024), arXiv:2403.17775, section 5: the first round of
federated averaging with 100 clients, of which n + 1 are in the sum. All initial models train on
the same partitions and batches, and the sums of fewer clients are prefixes of the sums of more, so
one simulation serves all of them. The pair of candidates is the one that is farthest apart on
average over the initial models, which is hardly less than each model's own worst. Both games with
independent clients share fit and pair; they differ in the trials alone. The likelihood-ratio audit
chooses pair and test; the experiments' tests compare the scores with those of its own game.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from leakmeter.auditors.bounds.lower_bound import (
    DELTAS,
    BandAndFixed,
    Fixed,
    RateLimits,
    Scores,
    TradeoffBound,
    proven_epsilons,
)
from leakmeter.auditors.finding import Game
from leakmeter.auditors.likelihood_ratio.game import (
    Challenge,
    SampleBudget,
    between,
    farthest_pair,
)
from leakmeter.auditors.likelihood_ratio.sum_distribution import DenseGaussian
from leakmeter.auditors.sampling.sampler import Stream, UpdateSampler, finite
from leakmeter.auditors.values import Floats
from leakmeter.papers import distribute
from leakmeter.papers.base import Cells

Partition = Literal["iid", "dirichlet", "dirichlet-labels"]

_SEED = 2403
_CONFIDENCE = 0.95
DELTA = 1e-5
EPSILON = 7.0  # where the paper states δ
SHARES = (1.0, 0.5)  # of the allowed failures, for the threshold named beforehand


@dataclass(frozen=True)
class Setting:
    """One federation under audit."""

    dataset: str
    partition: Partition = "iid"  # or one of the two Dirichlet ones, with a concentration of 1
    models: int = 10  # initial models
    clients: int = 100  # that share the data
    sums: tuple[int, ...] = (60, 70, 90)  # clients in the sum, the target among them
    fit: int = 25_000  # updates behind the covariance of the sum
    candidates: int = 5_000  # updates of the target among which the worst pair is chosen
    trials: int = 5_000  # sums on which the test is judged
    pilot: int = 200  # sums that fix one threshold before the trials
    block: int = 500  # trials computed at a time; what an interrupted run loses at most
    synthetic_examples: int = 6000  # records of the synthetic data set

    @property
    def others(self) -> list[int]:
        """Clients beside the target, in the largest sum."""
        return list(range(1, max(self.sums)))


def audit(setting: Setting, game: Game, cells: Cells) -> dict[str, Any]:
    """Return what the audit of one game shows, for each size of the sum and each initial model."""
    # Results of another size are not taken for these. More trials keep those that are there.
    size = f"{setting.models}x{setting.fit}x{setting.candidates}"
    name = f"{setting.dataset}-{setting.partition}-{game}-{size}"
    whole = f"{name}x{setting.trials}x{setting.pilot}"
    done: dict[str, Any] = cells.get(whole, _play, setting, game, cells, name)
    return done


def _play(setting: Setting, game: Game, cells: Cells, name: str) -> dict[str, Any]:
    """Return the result of a game from its parts, each of which is kept by itself."""
    attack = cells.get(f"{name}-attack", _attack, setting, game)
    shifts = np.asarray(attack["shifts"])  # (models,)
    sums = partial(_sums, setting, game, attack)
    drawn = cells.get(f"{name}-pilot", sums, "pilot", range(setting.pilot))
    middles = np.mean(drawn["scores"], axis=-1) + shifts[:, None] / 2  # (models, sizes)
    blocks = []
    for first in range(0, setting.trials, setting.block):
        draws = range(first, min(first + setting.block, setting.trials))
        blocks.append(cells.get(f"{name}-trials-{first}", sums, "test", draws))
    scores = np.concatenate([b["scores"] for b in blocks], axis=-1)  # (models, sizes, trials)
    within = float(np.mean([b["within"] for b in blocks]))
    return {
        str(size): _judged(shifts, scores[:, i], middles[:, i], (size - 1) * within)
        for i, size in enumerate(setting.sums)
    }


def sampler_of(setting: Setting, game: Game) -> tuple[Any, Floats]:
    """Return the sampler of a game and the initial models, (models, dim)."""
    import torch

    from leakmeter.clients.update import fedavg
    from leakmeter.fl_app.build.audit import sampler_for
    from leakmeter.fl_app.config.settings import TaskConfig
    from leakmeter.fl_app.task import build_model, load_task

    config = TaskConfig(
        dataset=setting.dataset,
        synthetic_examples=setting.synthetic_examples,
        model="linear",
        partition=setting.partition,
        dirichlet=1.0,
        clients=setting.clients,
        seed=_SEED,
    )
    task = load_task(config)
    about = ("linear", task.dataset.input_shape, task.dataset.num_classes)
    built = [build_model(*about, seed).parameters() for seed in range(setting.models)]
    starts = [torch.nn.utils.parameters_to_vector(parameters) for parameters in built]
    # One local epoch of batches of 64 at a rate of 0.01, as in the paper.
    rule = fedavg(epochs=1, batch_size=64, lr=0.01)
    sampler = sampler_for(task, config, rule, game, threads=distribute.threads())
    return distribute.distributed(sampler), torch.stack(starts).detach().double().numpy()


def _attack(setting: Setting, game: Game) -> dict[str, Any]:
    """Fit the distribution of the others' sum at each model and choose the pair, before trials."""
    sampler, models = sampler_of(setting, game)
    budget = SampleBudget(fit=setting.fit, candidates=setting.candidates)
    stream = _stream(setting, game)
    tests = _challenges(sampler, models, 0, setting.others, budget=budget, stream=stream)
    return {
        "pair": tests[0].pair,
        "directions": [test.direction for test in tests],
        "shifts": [test.shift for test in tests],
    }


def _challenges(
    sampler: UpdateSampler,
    models: Floats,
    target: int,
    others: Sequence[int],
    *,
    budget: SampleBudget,
    stream: Stream,
) -> list[Challenge]:
    """Return the tests of a game at several initial models, between one pair of candidates.

    The models share all draws, and the pair is the one farthest apart on average over them, so that
    the trials can serve all models at once. The sum has no noise, and the fit needs as many draws
    as a covariance matrix does.

    Args:
        sampler: Draws updates.
        models: The initial models, (models, dim).
        target: Client whose two candidate updates are to be distinguished.
        others: Clients whose sum hides it.
        budget: How many draws go into the fit and the candidates.
        stream: Names the randomness, as in `play_game`.
    """
    drawn = (*stream, "candidates")
    rows, fits = [], []
    gram = np.zeros((budget.candidates, budget.candidates))
    moments_at = sampler.moments_each(models, others, budget.fit, (*stream, "fit"))
    for model, moments in zip(models, moments_at, strict=True):
        sample = finite(sampler.sample(model, [target], budget.candidates, drawn))
        rows.append(np.concatenate(list(sample))[:, 0])  # (candidates, dim)
        fits.append(DenseGaussian.fit(moments, free=sampler.free, overwrite=True))
        gram += fits[-1].gram(rows[-1], rows[-1].mean(axis=0))
    first, second = farthest_pair(gram)
    return [
        between(own[first], own[second], fit, (first, second))
        for own, fit in zip(rows, fits, strict=True)
    ]


def _stream(setting: Setting, game: Game) -> tuple[str, ...]:
    """Name the randomness; both games with independent clients share it."""
    return ("secagg-lrt", game.removesuffix("-held-out"), setting.partition)


def _sums(
    setting: Setting, game: Game, attack: dict[str, Any], stage: str, draws: range
) -> dict[str, Any]:
    """Return the scores of some draws of the sum, (models, sizes, draws)."""
    sampler, models = sampler_of(setting, game)
    stream = _stream(setting, game)
    # Whether the others may hold the records behind the two candidates is what the game says.
    others = sampler.excluding_drawn(0, (*stream, "candidates"), sorted(attack["pair"]))
    project = np.asarray(attack["directions"])[:, :, None]
    drawn = others.sample(
        models, setting.others, len(draws), (*stream, stage), project=project, first=draws.start
    )
    each = np.concatenate(list(drawn), axis=1)[..., 0]  # (models, trials, others)
    sums = np.cumsum(each, axis=-1)[..., [size - 2 for size in setting.sums]]
    within = float(each.var(axis=-1, ddof=1).mean())
    return {"scores": np.moveaxis(sums, -1, 1), "within": within}


def _judged(shifts: Floats, scores: Floats, middles: Floats, variance: float) -> dict[str, Any]:
    """Return separations, error rates and bounds of one size of the sum, model by model.

    Args:
        shifts: How far the two worlds are apart, (models,).
        scores: Of the trials in the second world, (models, trials).
        middles: Thresholds fixed on the pilot, where the log-likelihood ratio is 0, (models,).
        variance: What as many independent clients would have.
    """
    worlds = [Scores.of(own + shift, own, None) for own, shift in zip(scores, shifts, strict=True)]
    curves = [
        TradeoffBound.of(
            both.ins, both.outs, confidence=_CONFIDENCE, rule=BandAndFixed(float(middle))
        )
        for both, middle in zip(worlds, middles, strict=True)
    ]
    std = scores.std(axis=-1, ddof=1)
    return {
        "separation": (shifts / std).tolist(),
        "variance_ratio": float((std**2).mean() / variance),
        "error_as_printed": [_printed(both) for both in worlds],
        "error": [curve.balanced() for curve in curves],
        "epsilon": [float(curve.epsilons([DELTA])[0]) for curve in curves],
        "cap": float(curves[0].caps([DELTA])[0]),
        "deltas": DELTAS,
        "epsilons": [curve.epsilons(DELTAS).tolist() for curve in curves],
        "caps": curves[0].caps(DELTAS).tolist(),
        "tradeoff": [curve.points() for curve in curves],
        "fixed": [list(map(partial(_fixed, share), worlds, middles)) for share in SHARES],
    }


def _rates(both: Scores, thresholds: Floats, share: float = 1.0) -> tuple[Floats, Floats]:
    """Return upper limits of both errors, each of which holds at one threshold only."""
    limits = RateLimits(Fixed(0.0), share * (1 - _CONFIDENCE) / 2, "clopper-pearson")
    log_fpr, fnr = both.rates(thresholds, limits)
    return np.exp(log_fpr), fnr


def _printed(both: Scores) -> float:
    """Return the smallest error that both stay below, as the paper takes it.

    Its limits hold at one threshold only, and the best threshold is taken on the same trials: the
    number flatters the attack, and no confidence belongs to it.
    """
    return float(np.maximum(*_rates(both, both.distinct())).min())


def _fixed(share: float, both: Scores, middle: float) -> dict[str, float]:
    """Return what one threshold that was named beforehand proves with a share of the failures."""
    fpr, fnr = _rates(both, np.array([middle]), share)
    # (8) of the paper at one δ, and solved for δ at one ε.
    epsilon = proven_epsilons(np.log(fpr), fnr, delta=DELTA)
    delta = 1 - np.minimum(fpr, fnr) * math.exp(EPSILON) - np.maximum(fpr, fnr)
    return {"epsilon": max(float(epsilon[0]), 0.0), "delta": max(float(delta[0]), 0.0)}
