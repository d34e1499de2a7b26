"""Information in a sum from covariances of samples, as if updates were Gaussian.

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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.linalg.blas import dsyrk
from scipy.special import polygamma, psi

from leakmeter.auditors.information.theory import Information
from leakmeter.auditors.values import AnyFloats, Floats, within
from leakmeter.auditors.wording import Assumption

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
        raise ValueError(f"sums_without must have {z.mean.size} columns, got {y.mean.size}")
    rank, sizes = z.rank, {"with": z.count, "without": y.count}
    rule = "½ log₂|S_with| − ½ log₂|S_without|"
    figure = partial(_approximation, rule=rule, sample_sizes=sizes, rank=rank)
    if (y.moving & ~z.moving).any():
        coordinate = int(np.argmax(y.moving & ~z.moving))
        raise ValueError(
            f"sums_with must vary wherever sums_without does, got coordinate {coordinate} constant"
        )
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
        raise ValueError(f"z must have as many rows as x, {len(x)}, got {len(z)}")
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
            raise ValueError(f"{name} must have shape (2 or more, 1 or more), got {rows.shape}")
        mean = rows.mean(axis=0, dtype=np.float64)
        if not np.isfinite(mean).all():
            wrong = mean[~np.isfinite(mean)][0]
            raise ValueError(f"{name} must be finite, got {wrong} in a column")
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
            raise ValueError(
                f"{self.name} must have more draws than its {rank} moving coordinates, got {count}:"
                " use more draws or a subspace"
            )
        spread = np.sqrt(np.diagonal(self.scatter)[moving])
        factor = self._factor(spread)
        if factor is None or float(factor.diagonal().min()) ** 2 < _LEFT:
            raise ValueError(
                f"{self.name} must have linearly independent coordinates, got some that follow from"
                " others: drop them (one class of a softmax layer, say) or use a subspace"
            )
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
        raise ValueError(f"rows must be (draws, clients, rank), none of them 0, got {rows.shape}")
    draws, clients, rank = rows.shape
    within("draws", draws, lowest=4)
    within("noise_std", noise_std, lowest=0.0)
    if noise_std == 0 and clients > 1 and rank > (most := most_directions(draws, clients)):
        raise ValueError(
            f"rank must be at most {most} for {draws} draws of {clients} clients, got {rank}"
        )
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
