"""Figures of information, and theory about a secure sum: Gaussian truth, upper bounds, entropies.

Source: Elkordy et al. 2023, How Much Privacy Does Federated Learning with Secure Aggregation
Guarantee? (PoPETs 2023(1); arXiv:2208.02304), Theorem 1 and Corollaries 1 and 2.

How ours differs from the print:
1. (16) counts the rounds that a user takes part in as K/N; over T rounds it is T·K/N.
2. (25) loses a factor d*, which (26) has again; we keep it.
3. Case 2 asks of the whitened gradient, whose covariance is the identity, a density with
   curvature of at least the identity. By Brascamp and Lieb only a Gaussian has both, and for it
   the excess over the Gaussian term is really 0. The formula is offered as printed.
4. C_0 of Case 1 is only said to exist. Whoever uses the bound states it, and the result says so.
5. An update is a function of records and batches, so it carries at most their entropy. The paper
   has no such limit; its Gaussian term alone exceeds it for large models (`update_entropy`).

The rest is information in a sum from covariances of samples, as if updates were Gaussian.

For z = x + y with x and y independent, I(x; z) = h(z) - h(y). If both are Gaussian that is
½ ln|Σ_z| - ½ ln|Σ_y|. For other distributions it is neither an upper nor a lower bound.

From draws of sums (`logdet_information`): the bias of ln|S| depends on sample size and dimension
alone, so with equally many draws of z and y it cancels and otherwise is known. Background: Cai,
Liang and Zhou 2015, Law of log determinant of sample covariance matrix (arXiv:1309.0482). How ours
differs from the textbook:
1. z and y may share the same draws of y, row by row; that keeps the figure unbiased and takes most
   of its noise away, since it cancels in the difference.
2. The standard error is a jackknife over rows, less what it is known to exaggerate for Gaussians
   when d is not small compared with K (Efron and Stein 1981: it always errs upwards).
3. Coordinates that never move are left out; redundant ones are an error, never a number.

For K Gaussian rows ln|S| - ln|Σ| is a sum of logarithms of independent chi-squares, so mean and
variance are known exactly (Anderson 2003, An Introduction to Multivariate Statistical Analysis,
Theorem 7.5.3). Leaving out one row changes a determinant by its leverage, so all K of them cost
one triangular solve.

From draws of single clients (`each_information`): clients that draw independently have
Σ_z = Σ_1 + … + Σ_N, so I(x_i; z) follows from their covariances one by one. A draw of N clients
then counts N times, and noise of the mechanism enters exactly, as σ²I: the same updates give an
error about √N times smaller. The jackknife (Quenouille 1956) removes the bias of the determinants,
whatever the distribution. What is left is of the order of one over the draws squared: for Gaussians
below 1 % where draws times other clients are 20 times the rank, and some 5 % downwards at 6 times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.linalg.blas import dsyrk
from scipy.special import gammaln, polygamma, psi

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Bound, Kind
from leakmeter.auditors.sampling.sampler import UpdateSampler
from leakmeter.auditors.values import AnyFloats, Floats, within
from leakmeter.auditors.wording import Assumption

NATS_PER_BIT = math.log(2)


@dataclass(frozen=True)
class Information:
    """Mutual information in nats, with what is needed to print it honestly.

    Attributes:
        nats: The value; infinite where the sum gives the update away.
        kind: How strong it is; see `auditors.finding.Kind`.
        rule: How it was computed, for people; in bits, so logarithms are log₂.
        std_error: Standard error in nats; None for a figure that is not estimated from samples.
        rank: Dimension d* in which it was computed, if it has one.
        variance_kept: Share of the variance inside the subspace used; 1 for the whole space.
        sample_sizes: How many samples of what went in.
        cap: The largest value in nats that the method could have shown, if there is one.
        assumptions: What must hold for the kind to be deserved.
        facts: Constants that the assumptions refer to.
    """

    nats: float
    kind: Kind
    rule: str
    std_error: float | None = None
    rank: int | None = None
    variance_kept: float = 1.0
    sample_sizes: Mapping[str, int] = field(default_factory=dict)
    cap: float | None = None
    assumptions: tuple[str, ...] = ()
    facts: Mapping[str, float] = field(default_factory=dict)

    @property
    def bits(self) -> float:
        """The value in bits."""
        return self.nats / NATS_PER_BIT

    def limited(self, nats: float | None) -> Information:
        """Return the smaller of this figure and the entropy of what is random; None: no limit.

        >>> Information(9.0, "approximation", "by a model").limited(2.0).nats
        2.0
        """
        if nats is None:
            return self
        known = replace(
            self,
            cap=nats if self.cap is None else min(self.cap, nats),
            assumptions=(*self.assumptions, Assumption.NOTHING_ELSE_RANDOM),
        )
        if self.nats < nats:
            return known
        rule = f"{self.rule}; limited to the entropy of the client's records and batches"
        return replace(known, nats=nats, std_error=None, rule=rule)

    def bound(self) -> Bound:
        """Return the value in bits as the number that an auditor reports.

        >>> Information(math.log(8), "estimate", "counting").bound().value
        3.0
        """
        return Bound(
            value=self.bits,
            kind=self.kind,
            rule=self.rule,
            sample_sizes=self.sample_sizes,
            cap=None if self.cap is None else self.cap / NATS_PER_BIT,
            saturated=self.cap is not None and self.nats >= self.cap,
            assumptions=self.assumptions,
        )


@dataclass(frozen=True)
class IndependentWhitened:
    """Case 1: the whitened gradient has independent entries with finite fourth moments.

    Attributes:
        constant: C_0 of (9), at least 0. It depends on the distribution; a Gaussian has 0.
    """

    name: ClassVar[str] = "Case 1"
    assumption: ClassVar[Assumption] = Assumption.WHITENED_INDEPENDENT
    constant: float

    def __post_init__(self) -> None:
        within("constant", self.constant, lowest=0.0)

    @property
    def constants(self) -> Mapping[str, float]:
        """What was stated, by name."""
        return {"c_0": self.constant}

    def excess(self, rank: int) -> float:
        """Return the numerator of the first term of (9): d* C_0."""
        return rank * self.constant


@dataclass(frozen=True)
class LogConcaveWhitened:
    """Case 2: the whitened gradient is uniformly sigma-log-concave.

    Attributes:
        sigma: In (0, 1]; the identity covariance allows no more.
        entropy: h(g) - ½ ln|Σ_g| in nats: the entropy of the whitened gradient.
    """

    name: ClassVar[str] = "Case 2"
    assumption: ClassVar[Assumption] = Assumption.WHITENED_LOG_CONCAVE
    sigma: float
    entropy: float

    def __post_init__(self) -> None:
        within("sigma", self.sigma, above=0.0, highest=1.0)
        within("entropy", self.entropy)

    @property
    def constants(self) -> Mapping[str, float]:
        """What was stated, by name."""
        return {"sigma": self.sigma, "entropy_nats": self.entropy}

    def excess(self, rank: int) -> float:
        """Return the numerator of the first term of (10): (d* C_1 - C_2) / sigma⁴."""
        # Of all distributions with identity covariance the Gaussian has the most entropy.
        gaussian = rank / 2 * math.log(2 * math.pi * math.e)
        within("entropy", self.entropy, highest=gaussian * (1 + 1e-12))
        # As printed: at σ = 1 and the Gaussian's entropy it is 2 d*, where the true excess is 0 (3
        # above).
        c_1 = 2 * (1 + self.sigma + math.log(2 * math.pi) - math.log(self.sigma))
        c_2 = 4 * self.entropy
        return (rank * c_1 - c_2) / self.sigma**4


Case = IndependentWhitened | LogConcaveWhitened


@dataclass(frozen=True)
class UpdateEntropy:
    """Entropy of everything random in a client's updates, in nats; see `update_entropy`.

    Attributes:
        records: Of which records the client holds. They are drawn once and kept in all rounds.
        batches: Of one round's batches, given the records. They are drawn again in every round.
        alone: Of one round's batches if the records are unknown and not kept. Less than `records`
            plus `batches` where a round uses only some of the records.
    """

    records: float
    batches: float
    alone: float

    def over(self, rounds: int) -> float:
        """Return the most that any observer can learn about the updates of this many rounds."""
        # Two bounds of one joint entropy: the chain rule, with the records drawn once, and
        # subadditivity, with each round's batches as if their records were drawn again. Few rounds
        # favour the second.
        return min(self.records + rounds * self.batches, rounds * self.alone)


# Entropy of a client's updates, by its number; None where something else is random too.
LimitOf = Callable[[int], UpdateEntropy | None]


@dataclass(frozen=True)
class Theory:
    """What theory a measured figure is compared with.

    Attributes:
        cases: What is assumed of the gradients, for the bound of Theorem 1; none for no bound. The
            bound is about FedSGD only.
        batch_size: Records per update, for that bound.
        limit: Gives the entropy of a client's updates, which no figure may exceed.
        entropy_bits: Entropy of the target's data, if the figure is wanted as a share of it.
    """

    cases: Sequence[Case] = ()
    batch_size: int = 1
    limit: LimitOf | None = None
    entropy_bits: float | None = None

    def __post_init__(self) -> None:
        within("batch_size", self.batch_size, lowest=1)
        if self.entropy_bits is not None:
            within("entropy_bits", self.entropy_bits, above=0.0)

    def covers(self, sampler: UpdateSampler) -> bool:
        """Whether Theorem 1 may be about these clients: FedSGD, and independent updates."""
        return sampler.sends_gradient is not False and sampler.game != "partition"

    def over_rounds(self, rank: int, rounds: int, nats: float) -> Information:
        """Return Corollary 1: the sum of the bounds of a client's rounds."""
        # Which case is the smallest depends on the rank alone; so do assumptions and constants.
        one = round_bound(rank, 2, self.batch_size, cases=self.cases)
        rule = f"Corollary 1 over {rounds} rounds, each with its own bound; {one.rule}"
        return replace(one, nats=nats, rule=rule)


def gaussian_information(rank: int, users: int) -> Information:
    """Return I(x_i; x_1 + … + x_N) of independent, equally distributed Gaussian updates.

    It is (d*/2) ln(N / (N - 1)) nats, the second term of (9); exact for Gaussians, and what a
    Gaussian model says about any other distribution.

    Args:
        rank: Rank d* of the updates' covariance, at least 0.
        users: Users N in the sum, at least 2.

    >>> round(gaussian_information(7850, 2).nats, 1)
    2720.6
    """
    rank, users = whole("rank", rank, 0), _summed("users", users)
    return Information(
        nats=_gaussian_nats(rank, users),
        kind="approximation",
        rule="(d*/2) log₂(N / (N − 1))",
        rank=rank,
        assumptions=(Assumption.ALIKE_GAUSSIAN_UPDATES,),
    )


def round_bound(
    rank: int,
    users: int,
    batch_size: int,
    *,
    cases: Sequence[Case],
    dropped: int = 0,
    colluding: int = 0,
) -> Information:
    """Return the upper bound on what one round of FedSGD reveals about a user's update.

    Theorem 1, (9) and (10), joined as in (11); Corollary 2, (15), where users drop out or collude:
    the server takes their part off the sum, so only the others hide the target.

    Args:
        rank: Rank d* of the gradient's covariance, at least 0.
        users: Users whose updates are summed, before anybody drops out.
        batch_size: Records per update, B.
        cases: What is assumed of the gradient; the smallest bound among them counts.
        dropped: Users who drop out of the round.
        colluding: Survivors who show the server their update.

    Raises:
        ValueError: If fewer than 2 honest survivors remain, since the server then has the update.
    """
    rank, batch_size = whole("rank", rank, 0), whole("batch_size", batch_size, 1)
    if not cases:
        raise BadValueError("cases", "at least one Case", cases)
    gone = whole("dropped", dropped, 0) + whole("colluding", colluding, 0)
    honest = _summed("users - dropped - colluding", whole("users", users, 1) - gone)
    # (11): both cases have the same Gaussian term, so the smaller excess decides.
    best = min(cases, key=lambda case: case.excess(rank))
    return Information(
        # The excess falls as 1/((N - 1) B): by the central limit theorem the sum of the others
        # comes closer to a Gaussian with every further record.
        nats=_gaussian_nats(rank, honest) + best.excess(rank) / ((honest - 1) * batch_size),
        kind="guarantee",
        rule=f"Theorem 1, {best.name}",
        rank=rank,
        assumptions=(Assumption.ALIKE_GRADIENTS, best.assumption, Assumption.FEDSGD),
        facts={"batch_size": batch_size, **best.constants},
    )


def update_entropy(
    records: int, own: int, batches: Sequence[int], *, epochs: int = 1
) -> UpdateEntropy:
    """Return the entropy of all that is random in a client's update, which limits any leak of it.

    The client holds a uniform choice of m out of M records, keeps it over the rounds, and in each
    epoch cuts a uniform order of them into batches of b_1, b_2, … records. Then its update takes
    at most C(M, m) · (m! / Π b_i!)^epochs values, up to the rounding of sums.

    Args:
        records: Records M that the client's are drawn from; `own` where they are known.
        own: Records m that the client holds.
        batches: Records b_i of each step of one epoch, `own` or fewer in all.
        epochs: Passes over the records in one round.

    The digits job with its defaults:

    >>> one = update_entropy(1433, 24, [8, 8, 8], epochs=2)
    >>> round(one.over(1) / math.log(2), 1), round(one.over(10) / math.log(2), 1)
    (238.6, 835.1)
    """
    records, own = whole("records", records, 1), whole("own", own, 1)
    epochs, used = whole("epochs", epochs, 0), [whole("batches", b, 1) for b in batches]
    if own > records:
        raise BadValueError("own", f"in [1, records = {records}]", own)
    if sum(used) > own:
        raise BadValueError("batches", f"at most own = {own} records in all", sum(used))
    # C(M, m) sets of records; per epoch m! / Π b_i! orders, as the order within a batch is no
    # matter.
    return UpdateEntropy(
        records=_log_choices(records, [own]),
        batches=epochs * _log_choices(own, used),
        alone=epochs * _log_choices(records, used),
    )


def _log_choices(total: int, parts: Sequence[int]) -> float:
    """Return the log number of ways to take disjoint parts of these sizes out of `total`."""
    # Multinomial: total! / (Π parts! · rest!), by ln Γ since the factorials overflow from 171 on.
    rest = total - sum(parts)
    if rest == 0 and len(parts) == 1:  # exactly 0, where gammaln would leave a rounding error
        return 0.0
    return float(gammaln(total + 1) - gammaln(np.array([*parts, rest]) + 1).sum())


def _gaussian_nats(rank: int, users: int) -> float:
    # ln(N / (N - 1)) = -ln(1 - 1/N): log1p keeps all digits where N is large and the ratio near 1.
    return rank / 2 * -math.log1p(-1 / users)


def _summed(name: str, users: int) -> int:
    """Return `users` as a number of updates that hide each other."""
    if (count := whole(name, users, 0)) < 2:
        raise BadValueError(
            name,
            "at least 2",
            count,
            fix="A sum of one update is that update, and its information has no bound",
        )
    return count


def whole(name: str, value: int, lowest: int) -> int:
    """Return a whole number of at least `lowest`; anything else is refused by its name."""
    if value != int(value) or value < lowest:
        raise BadValueError(name, f"a whole number of at least {lowest}", value)
    return int(value)


PARTS = 20  # that a jackknife over draws leaves out, at most
_CHUNK = 1024
# Part of a coordinate's variance that the ones before it leave unexplained; less is redundancy.
_LEFT = 1e-10
_SPARE = 3  # rows beyond the coordinates, for a jackknife over rows to have a variance
_ROUNDING = 1e-12  # eigenvalues below this share of the largest are no more than that
# The others leave at least this share of a direction's variance, or it is the target's alone.
_OTHERS = 1e-9
_approximation = partial(
    Information, kind="approximation", assumptions=(Assumption.GAUSSIAN_UPDATES,)
)


def logdet_information(sums_with: AnyFloats, sums_without: AnyFloats) -> Information:
    """Return I(x; x + y) from draws of the sum with and without the target's update x.

    Row k of both should come from the same draw of y (see above); draws that have nothing to do
    with each other are also fine. Rows may be single precision; all else is done in double.

    Args:
        sums_with: Draws of x + y, (K, d), with K > d.
        sums_without: Draws of y, likewise. If their number differs each bias is taken off.

    Returns:
        The information, kind "approximation": exact in expectation for Gaussians alone. It is
        infinite if some coordinate moves with the target only, and 0 if nothing moves at all.

    >>> from leakmeter.auditors.rng import stream
    >>> y = stream(0, "others").standard_normal((400, 3))
    >>> x = stream(0, "target").standard_normal((400, 3))
    >>> found = logdet_information(x + y, y)
    >>> abs(found.nats - 1.5 * math.log(2)) < 3 * found.std_error < 0.3
    True
    """
    z, y = Sample.of("sums_with", sums_with), Sample.of("sums_without", sums_without)
    if z.mean.size != y.mean.size:
        raise BadValueError("sums_without", f"of {z.mean.size} columns", y.mean.size)
    rank, sizes = z.rank, {"with": z.count, "without": y.count}
    rule = "½ log₂|S_with| − ½ log₂|S_without|"
    figure = partial(_approximation, rule=rule, sample_sizes=sizes, rank=rank)
    if (y.moving & ~z.moving).any():
        coordinate = int(np.argmax(y.moving & ~z.moving))
        fix = f"Coordinate {coordinate} is constant"
        raise BadValueError("sums_with", "varying wherever sums_without does", 0.0, fix=fix)
    # Along such a coordinate the others hide nothing: z shows x exactly, and I(x; z) is infinite.
    if (z.moving & ~y.moving).any():
        return figure(math.inf)
    if not rank:
        return figure(0.0, std_error=0.0)
    # I = ½ ln|Σ_z| - ½ ln|Σ_y|. The entropies' constants, ½ d ln 2πe each, cancel.
    nats, error = combine([z, y], [0.5, -0.5])
    if z.count == y.count > rank + _SPARE:  # both move in the same coordinates here
        error = _less_excess(error, nats, rank, z.count)
    return figure(nats, std_error=error)


def joint_information(x: AnyFloats, z: AnyFloats) -> Information:
    """Return I(x; z) as if x and z were jointly Gaussian, from K pairs of rows.

    ½ (ln|S_x| + ln|S_z| - ln|S_xz|), each determinant without its bias. It asks nothing of how z
    comes from x, but needs K > 2 d and is noisier than `logdet_information`.
    """
    if len(x) != len(z):
        raise BadValueError("z", f"as many rows as x, {len(x)}", len(z))
    parts = [Sample.of("x", x), Sample.of("z", z)]
    # No more canonical correlations than the smaller of the two has coordinates.
    rank, rule = min(part.rank for part in parts), "joint Gaussian plug-in without its bias"
    figure = partial(_approximation, rule=rule, sample_sizes={"pairs": len(x)}, rank=rank)
    if not rank:
        return figure(0.0, std_error=0.0)
    # (K, d_x + d_z): the determinant of the joint covariance, blocks S_x, S_z and what they share.
    both = np.concatenate([x[:, parts[0].moving], z[:, parts[1].moving]], axis=1)
    joint = Sample.of("x and z together", both)
    nats, error = combine([*parts, joint], [0.5, 0.5, -0.5])
    return figure(nats, std_error=error)


def _less_excess(error: float, nats: float, rank: int, count: int) -> float:
    """Return the jackknife's standard error without its excess, at least that of Gaussians.

    With c = d/K and r the mean squared correlation of z and y along their canonical directions,
    the variance of ½ ln|S_z| - ½ ln|S_y| for Gaussians tends to ln((1 - cr) / (1 - c)) as d and K
    grow together, and the jackknife's to c/(1 - c) - cr/(1 - cr). The terms without r are those
    of one determinant; those with r are ours, and the tests hold them against simulation. What
    heavier tails than a Gaussian's add is not exaggerated, so the excess is taken off, not scaled.
    """
    c = rank / (count - 2)
    # A geometric mean, since Σ ln r_i = -2 I; it is below the arithmetic one: errs upwards.
    r = min(1.0, math.exp(-2 * nats / rank))
    # r → 1 (z = y) gives 0 for both variances, r → 0 those of two unrelated determinants.
    gaussian = math.log((1 - c * r) / (1 - c))
    excess = c / (1 - c) - c * r / (1 - c * r) - gaussian
    return math.sqrt(max(error**2 - excess, gaussian))


def log_det_bias(dim: int, count: int) -> float:
    """Return E ln|S| - ln|Σ| for the covariance S of `count` Gaussian rows."""
    # Bartlett: |S| / |Σ| is a product of χ²_{K-1-i} / (K - 1), i < d; E ln χ²_k = ψ(k/2) + ln 2.
    halves = (count - 1 - np.arange(dim)) / 2
    return float(psi(halves).sum() - dim * math.log((count - 1) / 2))


def log_det_std(dim: int, count: int) -> float:
    """Return the standard deviation of ln|S| for the covariance S of `count` Gaussian rows."""
    # The same independent factors: Var ln χ²_k = ψ₁(k/2), the trigamma function.
    halves = (count - 1 - np.arange(dim)) / 2
    return math.sqrt(float(polygamma(1, halves).sum()))


def combine(samples: Sequence[Sample], weights: Sequence[float]) -> tuple[float, float]:
    """Return a weighted sum of the samples' log determinants and its standard error."""
    values, stds, left_out = zip(*(sample.log_det() for sample in samples), strict=True)
    total = math.fsum(w * value for w, value in zip(weights, values, strict=True))
    sizes = {0 if one is None else len(one) for one in left_out}
    if len(sizes) > 1 or 0 in sizes:
        # Unrelated draws: variances add. For draws that are paired this would be far too large.
        return total, math.hypot(*(w * std for w, std in zip(weights, stds, strict=True)))
    # (rows,) changes of the whole combination, each with row k missing in all determinants. Paired
    # rows are left out together, so what they share cancels.
    changes = total + sum(w * one for w, one in zip(weights, left_out, strict=True))
    shares = np.full(len(changes), float(len(changes)))
    return total, float(jackknife(np.asarray(total), changes, shares)[1])


def jackknife(whole: Floats, left_out: Floats, shares: Floats) -> tuple[Floats, Floats]:
    """Return estimates without their bias, and their standard errors.

    Busing, Meijer and van der Leeden 1999, Delete-m jackknife for unequal m.

    Args:
        whole: Estimates from all rows, of any shape.
        left_out: The same with one part left out, (parts, ...).
        shares: For each part, all rows over rows of the part; all equal K if parts are rows.
    """
    h = shares.reshape(-1, *[1] * (left_out.ndim - 1))
    # With equal shares h = K this is the usual K θ - (K - 1) mean θ_(-k).
    centre = len(h) * whole - ((1 - 1 / h) * left_out).sum(axis=0)
    pseudo = h * whole - (h - 1) * left_out  # (parts, ...)
    return centre, np.sqrt(((pseudo - centre) ** 2 / (h - 1)).mean(axis=0))


@dataclass(frozen=True, eq=False)
class Sample:
    """Draws of one sum, with their moments.

    Attributes:
        name: Of the argument that they came as.
        rows: (K, d).
        mean: (d,).
        scatter: Sum of the outer products of the centred rows, (d, d).
        moving: Which coordinates vary by more than the rounding of their mean, (d,).
    """

    name: str
    rows: AnyFloats
    mean: Floats
    scatter: Floats
    moving: NDArray[np.bool_]

    @classmethod
    def of(cls, name: str, rows: AnyFloats) -> Sample:
        """Return rows with their moments, summed in double precision chunk by chunk."""
        rows = np.asarray(rows)
        if rows.ndim != 2 or len(rows) < 2 or not rows.shape[1]:
            raise BadValueError(name, "of shape (2 or more, 1 or more)", rows.shape)
        mean = rows.mean(axis=0, dtype=np.float64)
        if not np.isfinite(mean).all():
            raise BadValueError(name, "finite", mean[~np.isfinite(mean)][0])
        scatter = np.zeros((rows.shape[1], rows.shape[1]), order="F")
        for start in range(0, len(rows), _CHUNK):
            centred = rows[start : start + _CHUNK] - mean  # double, since the mean is
            # A symmetric rank-k update writes one triangle: half the work of centredᵀ @ centred.
            scatter = dsyrk(1.0, centred.T, beta=1.0, c=scatter, overwrite_c=1, lower=1)
        scatter += np.tril(scatter, -1).T
        rounding = len(rows) * (64 * np.finfo(np.float64).eps * mean) ** 2
        return cls(name, rows, mean, scatter, np.diagonal(scatter) > rounding)

    @property
    def count(self) -> int:
        """Draws in all, K."""
        return len(self.rows)

    @property
    def rank(self) -> int:
        """Coordinates that move."""
        return int(self.moving.sum())

    def log_det(self) -> tuple[float, float, Floats | None]:
        """Return ln|S| over the moving coordinates, without its bias, and how far it may err.

        Second is its standard deviation for Gaussian rows, third what leaving out each row changes,
        (rows,), up to a constant; None for too few rows.
        """
        moving, count, rank = self.moving, self.count, self.rank
        if count <= rank:
            more = f"more draws than its {rank} moving coordinates"
            raise BadValueError(self.name, more, count, fix="Use more draws or a subspace")
        spread = np.sqrt(np.diagonal(self.scatter)[moving])
        factor = self._factor(spread)
        if factor is None or float(factor.diagonal().min()) ** 2 < _LEFT:
            fix = "Drop them (one class of a softmax layer, say) or use a subspace"
            independent = "of linearly independent coordinates"
            raise BadValueError(self.name, independent, "some that follow from others", fix=fix)
        # |scatter| = |factor|² · Π spread², and a triangular determinant is the product of its
        # diagonal.
        log_scatter = 2 * float(np.log(factor.diagonal()).sum() + np.log(spread).sum())
        # S = scatter / (K - 1), so its determinant is smaller by (K - 1)^d.
        value = log_scatter - rank * math.log(count - 1) - log_det_bias(rank, count)
        left_out = None
        if count > rank + _SPARE:
            # Matrix determinant lemma: without row k the scatter loses K/(K-1) · c cᵀ, c = row -
            # mean, so |scatter| shrinks by 1 - K/(K-1) · leverage. The new divisor K - 2 is the
            # same for every row, and a jackknife ignores constants.
            left_out = np.log1p(-count / (count - 1) * self._leverage(spread, factor))
        return value, log_det_std(rank, count), left_out

    def _factor(self, spread: Floats) -> Floats | None:
        """Return the lower Cholesky factor in units of `spread`; None if it has none."""
        # Coordinates of equal size make the pivots comparable.
        moving = self.moving
        scaled = self.scatter if moving.all() else self.scatter[np.ix_(moving, moving)]
        scaled = scaled / spread
        scaled /= spread[:, None]
        try:
            # Symmetric, so the transpose is the same matrix in the order that LAPACK overwrites.
            return np.asarray(cholesky(scaled.T, lower=True, overwrite_a=True, check_finite=False))
        except LinAlgError:
            return None

    def _leverage(self, spread: Floats, factor: Floats) -> Floats:
        """Return (row - mean)ᵀ scatter⁻¹ (row - mean) for each row."""
        found, mean = np.empty(self.count), self.mean[self.moving]
        for start in range(0, self.count, _CHUNK):
            chunk = self.rows[start : start + _CHUNK][:, self.moving].astype(np.float64)
            centred = np.asfortranarray(((chunk - mean) / spread).T)
            # L w = c gives w = L⁻¹ c, (d, rows), and cᵀ scatter⁻¹ c = ‖w‖²: no inverse is formed.
            white = solve_triangular(
                factor, centred, lower=True, overwrite_b=True, check_finite=False
            )
            found[start : start + _CHUNK] = np.einsum("ij,ij->j", white, white)
        return found


def most_directions(draws: int, clients: int) -> int:
    """Return the largest rank that this many draws allow without noise.

    With one part left out, the covariance of the others' sum must still have four times as many
    degrees of freedom.
    """
    return (draws - -(-draws // min(draws, PARTS)) - 1) * (clients - 1) // 4


@dataclass(frozen=True)
class EachInformation:
    """What the sum reveals about each client, in nats; infinite where the others do not hide it.

    Attributes:
        nats: One per client.
        std_error: Standard error of each.
        mean_error: Standard error of their mean.
        draws: Joint draws behind them.
        rank: Directions in which the sum varies.
    """

    nats: Floats
    std_error: Floats
    mean_error: float
    draws: int
    rank: int

    def of(self, client: int | None) -> Information:
        """Return the figure of one client by its place, or the mean over all for None."""
        if client is None:
            nats, error = float(self.nats.mean()), self.mean_error
            who, mean = "one client", f", mean over {len(self.nats)} clients"
        else:
            nats, error = float(self.nats[client]), float(self.std_error[client])
            who, mean = "the client", ""
        return _approximation(
            nats,
            rule=f"½ log₂|Σ| − ½ log₂|Σ without {who}| from single covariances{mean}",
            std_error=error if np.isfinite(error) else None,
            rank=self.rank,
            sample_sizes={"draws of each client": self.draws, "clients": len(self.nats)},
        )


def each_information(rows: AnyFloats, *, noise_std: float = 0.0) -> EachInformation:
    """Return I(x_i; x_1 + … + x_N + noise) for every client i.

    Args:
        rows: Joint draws, (draws, clients, rank); clients are independent within a draw.
        noise_std: Noise on each coordinate of the sum.

    >>> from leakmeter.auditors.rng import stream
    >>> found = each_information(stream(0, "doc").standard_normal((200, 10, 4)))
    >>> truth = 2 * np.log(10 / 9)
    >>> bool(abs(found.nats - truth).max() < 4 * found.std_error.max() < 0.1)
    True
    """
    if rows.ndim != 3 or not rows.shape[1] or not rows.shape[2]:
        raise BadValueError("rows", "(draws, clients, rank), none of them 0", rows.shape)
    draws, clients, rank = rows.shape
    within("draws", draws, lowest=4)
    within("noise_std", noise_std, lowest=0.0)
    if noise_std == 0 and clients > 1 and rank > (most := most_directions(draws, clients)):
        raise BadValueError("rank", f"at most {most} for {draws} draws of {clients} clients", rank)
    centred = rows - rows.mean(axis=0, dtype=np.float64)  # (draws, clients, rank)
    # One covariance per client, (clients, rank, rank): K - 1 degrees of freedom each, and the sum
    # over N independent clients has N times as many. Draws of the sum itself would have K - 1.
    whole, kept = _nats(_covariances(rows), noise_std)
    parts = np.array_split(np.arange(draws), min(draws, PARTS))
    rests = (np.delete(centred, part, axis=0) for part in parts)
    left_out = np.stack([_nats(_covariances(rest), noise_std)[0] for rest in rests])
    shares = np.array([draws / len(part) for part in parts])
    finite = np.isfinite(whole) & np.isfinite(left_out).all(axis=0)
    with np.errstate(invalid="ignore"):
        nats, errors = jackknife(whole, left_out, shares)
        mean_error = jackknife(whole.mean(), left_out.mean(axis=1), shares)[1]
    return EachInformation(
        nats=np.where(finite, nats, np.where(np.isfinite(whole), whole, np.inf)),
        std_error=np.where(finite, errors, np.inf),
        mean_error=float(mean_error) if finite.all() else np.inf,
        draws=draws,
        rank=kept,
    )


def _nats(covariances: Floats, noise_std: float) -> tuple[Floats, int]:
    """Return -½ ln|1 - Σ_z^-½ Σ_i Σ_z^-½| for each client, and the rank of Σ_z."""
    total = covariances.sum(axis=0) + noise_std**2 * np.eye(covariances.shape[-1])
    spectrum, directions = np.linalg.eigh(total)
    real = spectrum > _ROUNDING * max(spectrum[-1], 0.0)
    if not real.any():  # nothing varies at all
        return np.zeros(len(covariances)), 0
    # Whitens z: rootᵀ Σ_z root = 1, (rank, real).
    root = directions[:, real] / np.sqrt(spectrum[real])
    own = np.linalg.eigvalsh(root.T @ covariances @ root)  # (clients, rank): shares of the target
    alone = own[:, -1] > 1 - _OTHERS
    nats = -0.5 * np.log1p(-np.clip(own, 0.0, 1 - _OTHERS)).sum(axis=1)
    return np.where(alone, np.inf, nats), int(real.sum())


def _covariances(rows: AnyFloats) -> Floats:
    """Return the clients' covariances over some draws, (clients, rank, rank)."""
    centred = rows - rows.mean(axis=0, dtype=np.float64)
    return np.asarray(np.einsum("kni,knj->nij", centred, centred) / (len(rows) - 1))
