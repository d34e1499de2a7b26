"""What all rounds of a run together reveal about a client's data.

Elkordy et al. (2023), arXiv:2208.02304, section 5.4. The paper plays whole runs with data drawn
afresh and hands data and sums to MINE. We play one run, and the library's estimator
(`auditors.information.over_rounds`) looks at its models: pairs of the target's updates that share
its data and nothing else give I(data; sums | models) of a Gaussian model. Users who collude are
taken off the sum; who takes part in which round is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from leakmeter.auditors._types import Floats, Vector
from leakmeter.auditors.information import IndependentWhitened, run_bound
from leakmeter.auditors.information.figure import NATS_PER_BIT
from leakmeter.auditors.information.over_rounds import (
    PairedDraws,
    directions_of,
    draw_pairs,
    over_rounds,
)
from leakmeter.auditors.rng import stream
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.experiments.elkordy2023.measure import (
    SEED,
    TARGET,
    Found,
    accuracy_of,
    held_by_target,
    name_of,
    sampler_of,
)
from leakmeter.fl_app.task import load_task


@dataclass(frozen=True)
class Run:
    """How a run is played and looked at.

    Attributes:
        users: All users, the target among them.
        rounds: Rounds T.
        pairs: Pairs of draws that share the target's data.
        rank: Directions in which each round is looked at.
        cohort: Users drawn for each round; None takes all.
        colluding: Users that show the server their updates.
    """

    users: int
    rounds: int
    pairs: int
    rank: int
    cohort: int | None = None
    colluding: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.colluding <= self.users - 2:
            allowed = f"in [0, users - 2 = {self.users - 2}]"
            raise ValueError(f"colluding must be {allowed}, got {self.colluding}")
        if self.cohort is not None and not 2 <= self.cohort <= self.users:
            raise ValueError(f"cohort must be in [2, users = {self.users}], got {self.cohort}")
        most = directions_of(self.pairs, self.rounds, self.rank)
        if most < self.rank:
            raise ValueError(f"rank must be at most {most} for so many pairs, got {self.rank}")

    @property
    def cell(self) -> str:
        """Names results; those of another size are not taken for these."""
        who = f"N{self.users}-K{self.cohort or self.users}-colluding{self.colluding}"
        return f"{who}-T{self.rounds}-{self.pairs}x{self.rank}"

    def cohorts(self) -> list[list[int]]:
        """Return who takes part in each round."""
        return [
            sorted(
                stream(SEED, "mi-rounds", "cohort", t)
                .choice(self.users, self.cohort or self.users, replace=False)
                .tolist()
            )
            for t in range(self.rounds)
        ]


def accumulated(config: Config, run: Run) -> list[Found]:
    """Return what the first T rounds reveal about the target's data, for every T of the run."""
    cohorts, held = run.cohorts(), held_by_target(config)
    halves = _halves(config, replace(run, colluding=0))
    drawn: list[PairedDraws] = []
    found = []
    for t, cohort in enumerate(cohorts, 1):
        if t in halves:
            hidden = tuple(user for user in cohort if not 1 <= user <= run.colluding)
            drawn.append(PairedDraws(t, hidden, 0.0, halves[t]))
        told = {"rounds": t, "participations": len(drawn), "records": held}
        found.append(told | _information(drawn) | _bounds(run, t, len(drawn)))
    return found


def accuracies(config: Config, run: Run, plays: int) -> list[list[float]]:
    """Return the accuracy of the model after each round, (plays, rounds)."""
    task = load_task(config)
    return [
        [accuracy_of(task, model) for model in list(_models(config, run, play))[1:]]
        for play in range(plays)
    ]


def _models(config: Config, run: Run, play: int = 0) -> Iterator[Vector]:
    """Yield the model that each round of a run sends, and the last one."""
    sampler, model = sampler_of(config)
    names = ("mi-rounds", "run", play)
    kept = sampler.keeping((*names, "data"))  # each run draws the users' records afresh
    assert kept is not None
    yield model
    for t, cohort in enumerate(run.cohorts(), 1):
        (rows,) = kept.sample(model, cohort, 1, (*names, t))
        model = model + rows[0].mean(axis=0)
        yield model


@lru_cache(maxsize=1)
def _halves(config: Config, run: Run) -> dict[int, Floats]:
    """Return the target's paired updates in each of its rounds, (2, pairs, rank) each."""
    sampler, _ = sampler_of(config)
    names = ("mi-rounds", name_of(config))
    found = {}
    for t, (model, cohort) in enumerate(zip(_models(config, run), run.cohorts(), strict=False), 1):
        if TARGET in cohort:
            draw = partial(draw_pairs, sampler, model, TARGET, pairs=run.pairs, directions=run.rank)
            found[t] = draw(names=names, server_round=t)
    return {t: halves for t, halves in found.items() if halves is not None}


def _information(drawn: list[PairedDraws]) -> dict[str, float]:
    """Return the library's figure for these rounds in bits, with what shuffled pairs show."""
    found = over_rounds(drawn, TARGET, SEED)
    if found is None:  # the target took part in no round
        return dict.fromkeys(("bits", "error", "null", "single"), 0.0)
    error = found.figure.std_error
    return {
        "bits": found.figure.bits,
        "error": math.inf if error is None else error / NATS_PER_BIT,
        "null": found.null_band[1] / NATS_PER_BIT,
        "single": found.single_rounds / NATS_PER_BIT,
    }


def _bounds(run: Run, rounds: int, participations: int) -> dict[str, float]:
    """Return Corollary 1 along the same directions, for Gaussians: C_0 = 0.

    Once for the rounds that the target took part in, and once for their mean, (16).
    """
    cohort = run.cohort or run.users
    colluding = round(run.colluding * cohort / run.users)  # of a cohort, on average
    if cohort - colluding < 2:
        return {"corollary": math.inf, "expected": math.inf}
    bound = partial(
        run_bound,
        run.rank,
        run.users,
        1,
        rounds=rounds,
        cases=[IndependentWhitened(0.0)],
        cohort=cohort,
        colluding=colluding,
    )
    counts = {"corollary": float(participations), "expected": None}
    return {name: bound(participations=count).bits for name, count in counts.items()}
