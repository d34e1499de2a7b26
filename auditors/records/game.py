"""Which of two records did a client hold? The likelihood-ratio audit of one record.

The unit of Zhang and Psounis 2024, Differentially Private Federated Learning without Noise
Addition: When is it Possible? (arXiv:2405.04551), and of the guarantee for water filling; audits
that exchange whole updates may rightly exceed that guarantee. The adversary knows everything but
the randomness: all records of all clients but one, two candidates for that one, the model and the
mechanism. It sees the secure sum of one round and uses the exact log-ratio of two Gaussians.

There are two statements. With the other clients at their noise floor, a bound is about the
mechanism, at the worst data that they could hold. With the noise of the data that they do hold, it
is about this run, and may be far smaller.

The worst of a few pairs of records is chosen on pilot draws; the bound comes from fresh ones. Every
trial draws a separate sum, so the bound assumes no independence within a run.

The two Gaussians that differ by one record are computed in the few directions where they differ.
A client samples its D gradients with Gaussian weights and fills the covariance Σ = GᵀG/(BD) to a
floor. A secure sum adds such updates of other clients. With one record replaced, mean and
covariance differ, so the log-ratio of the two densities is quadratic, not linear. Outside the span
of the D + 1 gradients in question both worlds have the same mean and variance, so only coordinates
in that span matter. These come from the Gram matrix: nothing of size dim × dim is formed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, Self

import numpy as np

from leakmeter.auditors.audited_round import AuditedRound, Claims, ScheduledAuditor, Trials
from leakmeter.auditors.auditor import RoundView
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Bound, Detail, Finding, Spectrum, ThreatModel
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Floats, Indices, within
from leakmeter.auditors.wording import Assumption

_RANK = 1e-12  # relative to the largest eigenvalue; smaller ones are rounding
# Least variance, relative to the largest: with none at all the ratio may be infinite or undefined.
_NO_NOISE = 1e-10


class GradientRows(Protocol):
    """Gradients G of some records, (count, dim), however they are stored."""

    @property
    def count(self) -> int: ...

    @property
    def dim(self) -> int: ...

    def gram(self) -> Floats:
        """Return G Gᵀ, (count, count)."""
        ...

    def products(self, vector: Floats) -> Floats:
        """Return G v, (count,)."""
        ...


@dataclass(frozen=True, eq=False)
class World:
    """A Gaussian in coordinates of the span.

    Attributes:
        mean: (rank,).
        axes: Eigenvectors of the covariance as columns, (rank, rank).
        variances: Its eigenvalues.
    """

    mean: Floats
    axes: Floats
    variances: Floats

    @classmethod
    def of(
        cls, gradients: Floats, batch: int, floor: float, rest: float, excess: Floats | None = None
    ) -> World:
        """Return the distribution of the sum in coordinates.

        Args:
            gradients: The client's, (records, rank).
            batch: B; 0 for the full gradient, which has no sampling.
            floor: σ², to which the client fills its covariance.
            rest: Variance that the other clients add in every direction.
            excess: Covariance that they add beyond `rest`, (rank, rank).
        """
        if batch:
            values, axes = np.linalg.eigh(gradients.T @ gradients / (batch * len(gradients)))
        else:
            values, axes = np.zeros(gradients.shape[1]), np.eye(gradients.shape[1])
        variances = np.maximum(values, floor) + rest  # raised eigenvalues: filled to the floor
        if excess is not None:  # it has other eigenvectors, so the sum is diagonalised again
            variances, axes = np.linalg.eigh((axes * variances) @ axes.T + excess)
        least = _NO_NOISE * float(variances.max(initial=np.finfo(np.float64).tiny))
        return cls(gradients.mean(axis=0), axes, np.maximum(variances, least))

    def log_density(self, points: Floats) -> Floats:
        """Return the log-density up to a constant that all worlds share, for (..., rank) points."""
        moved = (points - self.mean) @ self.axes  # in the eigenbasis, where coordinates decouple
        squares = (moved**2 / self.variances).sum(axis=-1)
        return np.asarray(-0.5 * (squares + np.log(self.variances).sum()))

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        """Return independent points, (count, rank)."""
        normals = rng.standard_normal((count, len(self.mean)))
        return np.asarray(self.mean + (np.sqrt(self.variances) * normals) @ self.axes.T)


@dataclass(frozen=True, eq=False)
class PairDistribution:
    """Both worlds of one pair of records.

    Attributes:
        worlds: With the client's own record, and with the other one in its place.
        used: Rows that span the coordinates.
        lift: (rank, len(used)): maps inner products with these rows to coordinates.
        root: (rank, rank): factor R of the covariance RRᵀ that the other clients add beyond `rest`;
            None if they add nothing more.
    """

    worlds: tuple[World, World]
    used: Indices
    lift: Floats
    root: Floats | None = None

    @classmethod
    def of(
        cls,
        gram: Floats,
        own: Indices,
        other: Indices,
        *,
        batch: int,
        floor: float,
        rest: float,
        excess: Floats | None = None,
    ) -> PairDistribution:
        """Return both distributions for two sets of records that differ in one.

        Args:
            gram: Inner products of all gradients.
            own: Rows of the client's records.
            other: The same with one of them replaced.
            batch: B; 0 for the full gradient.
            floor: σ², to which the client fills its covariance; 0 for no filling.
            rest: Variance that all other clients add in every direction.
            excess: G E Gᵀ for the covariance E that they add beyond `rest`; None for none.
        """
        # Gram = V diag(ℓ²) Vᵀ. With the orthonormal basis Gᵀ V diag(1/ℓ) of the span, gradients
        # have the coordinates V diag(ℓ), and v has diag(1/ℓ) Vᵀ (G v): dim never appears.
        used = np.union1d(own, other)
        squares, vectors = np.linalg.eigh(gram[np.ix_(used, used)])
        keep = squares > _RANK * max(float(squares[-1]), 0.0)  # none if all gradients vanish
        lengths = np.sqrt(squares[keep])
        rows = vectors[:, keep] * lengths  # gradients in coordinates, (len(used), rank)
        lift = vectors[:, keep].T / lengths[:, None]
        # Noise of the other clients outside the span is ignored. This takes the marginal of a
        # Gaussian, so the log-ratio is exact for the coordinates that are used.
        more = None if excess is None else lift @ excess[np.ix_(used, used)] @ lift.T
        own_rows, other_rows = (rows[np.searchsorted(used, which)] for which in (own, other))
        worlds = (
            World.of(own_rows, batch, floor, rest, more),
            World.of(other_rows, batch, floor, rest, more),
        )
        return cls(worlds, used, lift, None if more is None else _root(more))

    def coordinates(self, products: Floats) -> Floats:
        """Return the coordinates of a vector, (rank,), from its inner products with all rows."""
        return self.lift @ products[self.used]

    def excess(self, rng: np.random.Generator) -> Floats | float:
        """Return a draw of what the other clients add beyond `rest`, (rank,)."""
        return 0.0 if self.root is None else self.root @ rng.standard_normal(len(self.root))

    def log_ratio(self, points: Floats) -> Floats:
        """Return ln of the density with the own record over that with the other."""
        own, other = self.worlds
        return own.log_density(points) - other.log_density(points)


def _root(covariance: Floats) -> Floats:
    """Return a factor R with RRᵀ the covariance, which may be singular."""
    values, axes = np.linalg.eigh(covariance)
    return np.asarray(axes * np.sqrt(np.maximum(values, 0.0)))


@dataclass(frozen=True)
class CovarianceSpectrum:
    """Eigenvalues of a low-rank covariance Σ, and the floor that it is raised to: a diagnostic.

    Zhang and Psounis 2024, Differentially Private Federated Learning without Noise Addition: When
    is it Possible? (arXiv:2405.04551), Assumption 3 and Fig. 4. The eigenvalues depend on the data:
    a measured smallest one says nothing about other data, so none of this is a guarantee, and none
    of it should leave a simulation.

    Attributes:
        eigenvalues: Those that may be positive, ascending; the other dim - len are zero.
        dim: Number of directions in all.
        floor: Eigenvalues below it are raised to it; 0 adds nothing.
    """

    eigenvalues: Floats
    dim: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < len(self.eigenvalues) <= self.dim:
            raise BadValueError("eigenvalues", f"1 to {self.dim}", len(self.eigenvalues))
        if not 0 <= self.floor < math.inf:
            raise BadValueError("floor", "in [0, inf)", self.floor)

    @classmethod
    def of_gram(cls, gram: Floats, dim: int, *, batch: int, floor: float = 0.0) -> Self:
        """Return the spectrum of Σ = GᵀG/(BD) from G Gᵀ, for D gradients of length `dim`."""
        if batch < 1:
            raise BadValueError("batch", "at least 1", batch)
        # G is (D, dim). GᵀG and G Gᵀ have the same positive eigenvalues, and the second is (D, D).
        return cls.of_eigenvalues(np.linalg.eigvalsh(gram) / (batch * len(gram)), dim, floor)

    @classmethod
    def of_eigenvalues(cls, eigenvalues: Floats, dim: int, floor: float = 0.0) -> Self:
        """Return the spectrum of ascending eigenvalues, of which rounding may make some negative.

        Those of a Gram matrix may be more than `dim`; the lowest are then zero.
        """
        return cls(np.maximum(eigenvalues[-dim:], 0.0), dim, floor)

    @property
    def smallest(self) -> float:
        """Least eigenvalue of Σ over all directions: zero unless gradients span the space."""
        return float(self.eigenvalues[0]) if len(self.eigenvalues) == self.dim else 0.0

    @property
    def rank(self) -> int:
        """Number of eigenvalues above rounding level."""
        # numpy's rule for matrix_rank: rounding errors grow with the size and the largest one.
        top = float(self.eigenvalues[-1])
        tol = top * max(self.dim, len(self.eigenvalues)) * float(np.finfo(np.float64).eps)
        return int((self.eigenvalues > tol).sum())

    @property
    def num_covered(self) -> int:
        """Number of directions in which sampling alone reaches a positive floor."""
        return int((self.eigenvalues >= self.floor).sum()) if self.floor else 0

    @property
    def added(self) -> Floats:
        """Variance that the floor adds in each of these directions; it is the floor in others."""
        return np.maximum(self.floor - self.eigenvalues, 0.0)

    @property
    def added_variance(self) -> float:
        """Expected squared norm of the added noise."""
        # The directions without an eigenvalue get the whole floor.
        return float(self.added.sum()) + self.floor * (self.dim - len(self.eigenvalues))

    @property
    def share_saved(self) -> float:
        """Share of isotropic noise of the same floor that is saved."""
        return 1 - self.added_variance / (self.floor * self.dim) if self.floor else 0.0

    def drawn(self) -> Spectrum:
        """Return what a report needs for its figure."""
        index, variance, added = zip(*self.curve(25), strict=True)
        return Spectrum(index, variance, added, self.dim, self.floor, self.share_saved)

    def curve(self, points: int = 100) -> tuple[tuple[int, float, float], ...]:
        """Return (index, eigenvalue, what is added) from the largest down, at most `points`.

        Indices are spread evenly in their logarithm over all directions, as Fig. 4 wants them.
        """
        if points < 1:
            raise BadValueError("points", "at least 1", points)
        spread = np.geomspace(1, self.dim, points) if self.dim > 1 else np.ones(1)
        largest_first = self.eigenvalues[::-1]

        def at(index: int) -> float:
            return float(largest_first[index]) if index < len(largest_first) else 0.0

        chosen = [int(i) - 1 for i in np.unique(np.round(spread))]
        return tuple((i + 1, at(i), max(self.floor - at(i), 0.0)) for i in chosen)


# One draw of the sum for these rows as the client's records, with the other clients at their floor,
# minus what the adversary knows about them. It must run the real mechanism, with a generator for
# its randomness.
Draw = Callable[[Indices, np.random.Generator], Floats]

THIS_RUN = ThreatModel(
    observer="server", sees="round sum", holds="record", knows_cohort=True, game="rerun"
)
WORST_CASE = replace(THIS_RUN, game="worst-data")


@dataclass(frozen=True, eq=False)
class RecordCase:
    """One client's part in one sum, as far as a single record is concerned.

    Attributes:
        blocks: Gradients of the client's records first, then of those that may replace one; more
            than one where blocks of coordinates are sampled and filled separately.
        records: D, the number of the client's own records.
        batch: B, scale of the Gaussian sampling weights; 0 for the full gradient.
        floor: σ², to which the client fills its covariance; 0 for no filling.
        rest: Variance that the other clients add in every direction. The least is the number of
            honest ones times their floor, where their gradients vanish; 0 without any.
        draw: The mechanism itself; None draws from the distribution that it states.
        excess: For each block G E Gᵀ, (count, count), with E the covariance that the other clients
            add beyond `rest` by sampling the data that they hold; empty for the worst data.
    """

    blocks: tuple[GradientRows, ...]
    records: int
    batch: int
    floor: float
    rest: float
    draw: Draw | None = None
    excess: tuple[Floats, ...] = ()

    def __post_init__(self) -> None:
        counts = {block.count for block in self.blocks}
        if len(counts) != 1:
            raise BadValueError("blocks", "of the same records", sorted(counts))
        within("records", self.records, lowest=1, below=self.count)
        within("batch", self.batch, lowest=0)
        within("floor", self.floor, lowest=0.0, below=math.inf)
        within("rest", self.rest, lowest=0.0, below=math.inf)
        shapes = [one.shape for one in self.excess]
        if shapes and shapes != [(self.count, self.count)] * len(self.blocks):
            side = f"{self.count} x {self.count}"
            raise BadValueError("excess", f"one matrix of {side} for each block", shapes)

    @property
    def count(self) -> int:
        """Records in all."""
        return self.blocks[0].count


@dataclass(frozen=True)
class RecordBudget:
    """How many pairs are tried, and how many sums are drawn.

    Attributes:
        pairs: Pairs of records among which the worst is chosen, those with the most distant
            gradients.
        pilot: Sums for each world of each pair.
        trials: Sums for each world of the pair that was chosen.
    """

    pairs: int = 8
    pilot: int = 100
    trials: int = 500

    def __post_init__(self) -> None:
        for name in ("pairs", "pilot", "trials"):
            within(name, getattr(self, name), lowest=1)


@dataclass(frozen=True, eq=False)
class RecordAudit:
    """What was found for the worst pair.

    Attributes:
        bound: Lower bound on ε.
        record: Row of the client's own record.
        other: Row of the record that replaced it.
        trials: Log-ratios with the own record, and with the other.
        spectrum: Of the client's own sampling, and what its floor adds.
        threat_model: `WORST_CASE` of the others' data, or `THIS_RUN`.
    """

    bound: Bound
    record: int
    other: int
    trials: Trials
    spectrum: CovarianceSpectrum
    threat_model: ThreatModel = WORST_CASE

    @property
    def means(self) -> tuple[float, float]:
        """Mean log-ratio with the own record and with the other."""
        return float(self.trials.first.mean()), float(self.trials.second.mean())

    @property
    def facts(self) -> dict[str, float]:
        """Which pair it was, and how far apart its worlds are."""
        own, other = self.means
        return {"record": self.record, "other": self.other, "mean own": own, "mean other": other}

    def details(self, confidence: float, server_round: int | None = None) -> tuple[Detail, ...]:
        """The trials' error curve, and the client's own randomness if it samples at all."""
        curve = self.trials.curve(confidence, server_round)
        return (curve, self.spectrum.drawn()) if self.spectrum.rank else (curve,)


def audit_records(
    case: RecordCase,
    *,
    delta: float,
    budget: RecordBudget = RecordBudget(),
    confidence: float = 0.95,
    seed: int = 0,
    path: Sequence[str | int] = (),
) -> RecordAudit:
    """Return a lower bound on the ε of one sum for one record of one client.

    Args:
        case: The client and its part in the sum.
        delta: δ.
        budget: How much is drawn.
        confidence: Probability that the bound is no larger than the truth.
        seed: Seed of the draws.
        path: Further names of the random stream: round, client.
    """
    grams = [block.gram() for block in case.blocks]
    pilots = []
    for record, other in _distant(np.sum(grams, axis=0), case.records, budget.pairs):
        pair = _Pair.of(case, grams, record, other)
        names = (*path, "record-pilot", record, other)
        scores = [pair.scores(w, budget.pilot, stream(seed, *names, w)) for w in (0, 1)]
        # The mean log-ratios differ by the sum of the KL divergences in both directions. A bound
        # from so few draws would be zero for most pairs, or luck.
        pilots.append((float(scores[0].mean() - scores[1].mean()), record, other))
    _, record, other = max(pilots)
    pair = _Pair.of(case, grams, record, other)
    names = (*path, "record-trials")
    own, others = (pair.scores(w, budget.trials, stream(seed, *names, w)) for w in (0, 1))
    trials = Trials(own, others)
    bound = trials.bound(delta, confidence)
    words = f"exact log-ratio for the worst of {len(pilots)} pairs of records; {bound.rule}"
    source = Assumption.TRIALS_BY_FORMULA if case.draw is None else Assumption.TRIALS_BY_CODE
    rest = Assumption.OTHERS_ADD_OWN_NOISE if case.excess else Assumption.OTHERS_ADD_FLOOR_ONLY
    bound = replace(bound, rule=words, assumptions=(*bound.assumptions, source, rest))
    threat = THIS_RUN if case.excess else WORST_CASE
    return RecordAudit(bound, record, other, trials, _spectrum(case, grams), threat)


class RecordLikelihoodRatio(ScheduledAuditor):
    """Plays the game of `audit_records` on some rounds.

    Each audit assumes the worst data of the other clients. Where the case knows the noise that they
    really added, it is repeated with that, for a statement about this run.

    A bound for one round is also one for the run. The report has the largest of each kind, at a
    confidence that all audited rounds share.

    Args:
        case_of: Returns a client's part in the round; the gradients are taken at `view.sent`.
        every: Rounds between two audits; 0 for the first only, -1 for rounds 1, 2, 4, 8, … and the
            last.
        delta: δ.
        budget: How much is drawn.
        confidence: Of each round's bound, and of the run's.
        seed: Names the draws.
    """

    name = "record-likelihood-ratio"
    num_bounds = 2  # at the worst data of the others, and in this run
    reads = frozenset({"sent", "facts", "instructed"})
    _played: Kept[list[tuple[int, RecordAudit]]]  # with their rounds

    def __init__(
        self,
        case_of: Callable[[RoundView], RecordCase],
        *,
        every: int = 0,
        delta: float = 1e-5,
        budget: RecordBudget = RecordBudget(),
        confidence: float = 0.95,
        seed: int = 0,
    ) -> None:
        super().__init__(every=every)
        within("delta", delta, lowest=0.0, below=1.0)
        within("confidence", confidence, above=0.0, below=1.0)
        self._case_of, self._delta = case_of, delta
        self.confidence, self._seed = confidence, seed
        self._audit = partial(audit_records, delta=delta, budget=budget, seed=seed)
        self._played = []

    def begin(self, dim: int, num_rounds: int) -> None:
        """Forget an earlier run."""
        super().begin(dim, num_rounds)
        self._played = []

    def audit(self, audited: AuditedRound) -> Sequence[Finding]:
        """Play for the worst data of the other clients, and for this run where that is known."""
        case, server_round = self._case_of(audited.view), audited.server_round
        path = ("round", server_round)
        found = [self._audit(replace(case, excess=()), confidence=self.confidence, path=path)]
        if case.excess:
            own = (*path, "own-noise")
            found.append(self._audit(case, confidence=self.confidence, path=own))
        self._played += [(server_round, one) for one in found]
        return [
            self._claims(one.threat_model, server_round).finding(
                one.bound, one.facts, one.details(self.confidence, server_round)
            )
            for one in found
        ]

    def report(self) -> Sequence[Finding]:
        """Return the largest bound of the audited rounds, for the worst case and for this run."""
        found = (self._largest(threat) for threat in (WORST_CASE, THIS_RUN))
        return [finding for finding in found if finding is not None]

    def _claims(self, threat: ThreatModel, server_round: int | None = None) -> Claims:
        """Return what makes findings about a round, or about the run."""
        claims = Claims(self.name, threat, self._delta, self.confidence, unit="record")
        return replace(claims, server_round=server_round, seed=self._seed)

    def _largest(self, threat: ThreatModel) -> Finding | None:
        audits = [(r, one) for r, one in self._played if one.threat_model == threat]
        if not audits:
            return None
        # A strategy's own loop may run longer than planned; its rounds share the confidence too.
        sharing = max(len(self._due), len(audits))
        claims = self._claims(threat)
        index, bound = claims.largest([one.trials for _, one in audits], sharing)
        server_round, best = audits[index]
        looks = f"largest of {len(audits)} audited rounds, which share the confidence"
        rule = f"{best.bound.rule}; {looks}"
        bound = replace(bound, rule=rule, assumptions=best.bound.assumptions)
        facts = {**best.facts, "audited rounds": len(audits), "sharing confidence": sharing}
        return claims.finding(
            bound, facts, best.details(claims.shared_confidence(sharing), server_round)
        )


def _spectrum(case: RecordCase, grams: Sequence[Floats]) -> CovarianceSpectrum:
    """Return the spectrum of the client's own sampling: blocks are sampled independently."""
    own = slice(case.records)
    dim = sum(block.dim for block in case.blocks)
    if not case.batch:  # nothing is sampled
        return CovarianceSpectrum.of_eigenvalues(np.zeros(min(case.records, dim)), dim, case.floor)
    found = [
        CovarianceSpectrum.of_gram(gram[own, own], block.dim, batch=case.batch).eigenvalues
        for gram, block in zip(grams, case.blocks, strict=True)
    ]
    return CovarianceSpectrum.of_eigenvalues(np.sort(np.concatenate(found)), dim, case.floor)


@dataclass(frozen=True, eq=False)
class _Pair:
    """Scores for one record and what may replace it."""

    case: RecordCase
    rows: tuple[Indices, Indices]  # the client's records in either world
    blocks: tuple[PairDistribution, ...]  # both worlds in each block

    @classmethod
    def of(cls, case: RecordCase, grams: Sequence[Floats], record: int, other: int) -> _Pair:
        own = np.arange(case.records)
        changed = np.where(own == record, other, own)
        of = partial(PairDistribution.of, batch=case.batch, floor=case.floor, rest=case.rest)
        excess = case.excess or (None,) * len(grams)
        both = zip(grams, excess, strict=True)
        blocks = tuple(of(gram, own, changed, excess=more) for gram, more in both)
        return cls(case, (own, changed), blocks)

    def scores(self, world: int, count: int, rng: np.random.Generator) -> Floats:
        """Return log-ratios of sums that are drawn in one world; blocks are independent."""
        draw = self.case.draw
        if draw is None:
            drawn = [one.log_ratio(one.worlds[world].draw(count, rng)) for one in self.blocks]
            return np.asarray(np.sum(drawn, axis=0))
        return np.array([self._score(draw(self.rows[world], rng), rng) for _ in range(count)])

    def _score(self, vector: Floats, rng: np.random.Generator) -> float:
        """Return the log-ratio of a sum, with what the other clients add beyond their floor."""
        cuts = np.cumsum([block.dim for block in self.case.blocks])
        if vector.shape != (cuts[-1],):
            raise BadValueError("draw", f"of shape ({cuts[-1]},)", vector.shape)
        total = 0.0
        parts = np.split(vector, cuts[:-1])
        for block, both, part in zip(self.case.blocks, self.blocks, parts, strict=True):
            point = both.coordinates(block.products(part)) + both.excess(rng)
            total += float(both.log_ratio(point))
        return total


def _distant(gram: Floats, records: int, pairs: int) -> list[tuple[int, int]]:
    """Return the pairs (own record, other) whose gradients are furthest apart."""
    squares = np.diagonal(gram)
    apart = squares[:records, None] + squares[None, records:] - 2 * gram[:records, records:]
    order = np.argsort(-apart, axis=None, kind="stable")[:pairs]
    own, other = np.unravel_index(order, apart.shape)
    return [(int(i), records + int(j)) for i, j in zip(own, other, strict=True)]
