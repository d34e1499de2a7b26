"""What all rounds of a run together tell of a client's data.

Elkordy et al. (2023), arXiv:2208.02304, section 5.4: local data are drawn afresh for every run, the
rounds are played, and what the server saw of each round is put side by side in one vector A.

The paper hands data and vectors to MINE. We take I(D; A) = h(A) - h(A | D) and look at two runs
that share the target's data D and nothing else: their difference over √2 has the covariance of A
given D, on average over D, and each of them has that of A. The figure is that of a Gaussian
model, along directions that are fixed on other runs. Users who collude keep data and batches in all
runs, since the server knows them; who takes part in which round is known and stays the same too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from leakmeter.auditors._types import Floats, Indices, Vector
from leakmeter.auditors.information import IndependentWhitened, run_bound
from leakmeter.auditors.information.figure import NATS_PER_BIT
from leakmeter.auditors.information.logdet import Subspace, logdet_information, principal_subspace
from leakmeter.auditors.rng import stream
from leakmeter.fl_app.experiments.elkordy2023.measure import (
    SEED,
    TARGET,
    Setting,
    held_by_target,
    initial_model,
    task_of,
)


@dataclass(frozen=True)
class Run:
    """How a run is played and looked at.

    Attributes:
        users: All users, the target among them.
        rounds: Rounds T.
        pairs: Pairs of runs that share the target's data.
        rank: Directions in which the sum of each round is looked at.
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
        if self.pairs <= self.rank * self.rounds + 3:
            least = self.rank * self.rounds + 4
            raise ValueError(
                f"pairs must be at least rank x rounds + 4 = {least}, got {self.pairs}"
            )

    @property
    def cell(self) -> str:
        """Names results; those of another size are not taken for these."""
        who = f"N{self.users}-K{self.cohort or self.users}-colluding{self.colluding}"
        return f"{who}-T{self.rounds}-{self.pairs}x{self.rank}"

    def cohorts(self) -> list[list[int]]:
        """Return who takes part in each round: the same in every run."""
        return [
            sorted(
                stream(SEED, "mi-rounds", "cohort", t)
                .choice(self.users, self.cohort or self.users, replace=False)
                .tolist()
            )
            for t in range(self.rounds)
        ]


def accumulated(setting: Setting, run: Run) -> list[dict[str, Any]]:
    """Return what the first T rounds tell of the target's data, for every T of the run."""
    federation = _Federation(setting, run)
    directions = federation.directions()
    looks = [federation.pair(m, directions) for m in range(run.pairs)]
    first, second = (np.stack(side) for side in zip(*looks, strict=True))  # (pairs, rounds, rank)
    held = held_by_target(setting)
    taken = np.cumsum([TARGET in cohort for cohort in run.cohorts()])
    return [
        {"rounds": t, "participations": int(taken[t - 1]), "records": held}
        | _information(first[:, :t], second[:, :t])
        | _bounds(run, t, int(taken[t - 1]))
        for t in range(1, run.rounds + 1)
    ]


def accuracies(setting: Setting, run: Run, plays: int) -> list[list[float]]:
    """Return the accuracy of the model after each round, (plays, rounds); nobody colludes."""
    if run.colluding:
        raise ValueError(f"colluding must be 0 where accuracy is measured, got {run.colluding}")
    federation = _Federation(setting, run)
    return [federation.accuracies(("accuracy", m)) for m in range(plays)]


def _information(first: Floats, second: Floats) -> dict[str, float]:
    """Return I(D; A) of pairs of runs that share D, in bits."""
    seen = first.reshape(len(first), -1)
    apart = (seen - second.reshape(len(second), -1)) / math.sqrt(2)
    found = logdet_information(seen, apart)
    error = math.inf if found.std_error is None else found.std_error
    return {"bits": found.bits, "error": error / NATS_PER_BIT}


def _bounds(run: Run, rounds: int, participations: int) -> dict[str, float]:
    """Return Corollary 1 along the same directions, for Gaussians: C_0 = 0.

    Once for the rounds that the target took part in, and once for their mean, (16).
    """
    cohort = run.cohort or run.users
    colluding = round(run.colluding * cohort / run.users)  # of a cohort, on average
    if cohort - colluding < 2:
        return {"corollary": math.inf, "expected": math.inf}
    found = {}
    for name, count in (("corollary", float(participations)), ("expected", None)):
        found[name] = run_bound(
            run.rank,
            run.users,
            1,
            rounds=rounds,
            cases=[IndependentWhitened(0.0)],
            cohort=cohort,
            participations=count,
            colluding=colluding,
        ).bits
    return found


class _Federation:
    """Plays runs from the same initial model with data drawn afresh."""

    def __init__(self, setting: Setting, run: Run) -> None:
        import torch

        from leakmeter.clients.cohort.cohort import Cohort

        task = task_of(setting)
        self._task, self._run, self._setting = task, run, setting
        self._cohort = Cohort(task.new_model(), setting.rule)
        self._x = torch.from_numpy(task.dataset.train_x)
        self._y = torch.from_numpy(task.dataset.train_y)
        self._model = initial_model(task)
        self._cohorts = run.cohorts()
        self._colluding = set(range(1, 1 + run.colluding))

    def directions(self) -> list[Subspace]:
        """Return the directions for each round, from runs that are used for nothing else."""
        runs = [list(self._play(("pilot", m), ("pilot", m))) for m in range(3 * self._run.rank + 2)]
        return [
            principal_subspace(np.stack(seen), rank=self._run.rank)
            for seen in zip(*runs, strict=True)
        ]

    def pair(self, index: int, directions: Sequence[Subspace]) -> tuple[Floats, Floats]:
        """Return two runs that share the target's data, along the directions, (rounds, rank)."""
        looks = []
        for half in range(2):
            seen = self._play(("pair", index), ("pair", index, half))
            looks.append(
                np.stack([d.project(a[None])[0] for a, d in zip(seen, directions, strict=True)])
            )
        return looks[0], looks[1]

    def accuracies(self, names: Sequence[str | int]) -> list[float]:
        """Return the accuracy after each round of one run, on the test records."""
        import torch
        from torch.nn.utils import vector_to_parameters

        net, data = self._task.new_model(), self._task.dataset
        x, y = torch.from_numpy(data.test_x), torch.from_numpy(data.test_y)
        model, found = self._model, []
        for total, cohort in zip(self._play(names, names), self._cohorts, strict=True):
            model = model + total / len(cohort)
            vector_to_parameters(torch.from_numpy(model).float(), net.parameters())
            with torch.no_grad():
                found.append(float((net(x).argmax(dim=1) == y).double().mean()))
        return found

    def _play(self, own: Sequence[str | int], others: Sequence[str | int]) -> Iterator[Vector]:
        """Yield the sum of each round, less what colluding users added; names name randomness."""
        held = {user: self._records(user, own, others) for user in range(self._run.users)}
        model = self._model
        for t, cohort in enumerate(self._cohorts):
            rngs = [stream(SEED, *self._names(user, others), "batches", t) for user in cohort]
            parts = [held[user] for user in cohort]
            rows = self._cohort.updates(model, self._x, self._y, parts, rngs).double().numpy()
            weights = self._cohort.weights(parts)
            rows = rows * (weights / weights.mean())[:, None]
            yield rows[[user not in self._colluding for user in cohort]].sum(axis=0)
            model = model + rows.sum(axis=0) / len(cohort)

    def _records(self, user: int, own: Sequence[str | int], others: Sequence[str | int]) -> Indices:
        """Return what a user holds throughout a run."""
        from leakmeter.fl_app.data.partition import draw

        names = own if user == TARGET else self._names(user, others)
        rng = stream(SEED, *names, "records", user)
        labels, s = self._y.numpy(), self._setting
        return draw(labels, np.arange(len(labels)), s.clients, s.partition, s.dirichlet, rng)

    def _names(self, user: int, others: Sequence[str | int]) -> list[str | int]:
        """Return what names a user's randomness: those who collude have the same in all runs."""
        return ["mi-rounds", *(("known",) if user in self._colluding else others), user]
