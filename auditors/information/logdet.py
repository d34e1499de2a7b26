"""Information in a sum from determinants of covariances: unbiased for Gaussian updates.

For z = x + y with x and y independent, I(x; z) = h(z) - h(y). If both are Gaussian that is
½ ln|Σ_z| - ½ ln|Σ_y|, and the bias of ln|S| depends on sample size and dimension alone, so with
equally many draws of z and y it cancels and otherwise is known. For other distributions it is
neither an upper nor a lower bound. Background: Cai, Liang and Zhou 2015, Law of log determinant of
sample covariance matrix (arXiv:1309.0482).

How ours differs from the textbook:
1. z and y may share the same draws of y, row by row; that keeps the figure unbiased and takes most
   of its noise away, since it cancels in the difference.
2. The standard error is a jackknife over rows, less what it is known to exaggerate for Gaussians
   when d is not small compared with K (Efron and Stein 1981: it always errs upwards).
3. Coordinates that never move are left out; redundant ones are an error, never a number.

For K Gaussian rows ln|S| - ln|Σ| is a sum of logarithms of independent chi-squares, so mean and
variance are known exactly (Anderson 2003, An Introduction to Multivariate Statistical Analysis,
Theorem 7.5.3). Leaving out one row changes a determinant by its leverage, so all K of them cost
one triangular solve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.linalg.blas import dsyrk
from scipy.special import polygamma, psi

from leakmeter.auditors._types import AnyFloats, Floats
from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.information.figure import Information
from leakmeter.auditors.sampling.sampler import Moments

Rows = NDArray[np.floating[Any]]
Draws = Rows | Moments | Sequence[Moments]

_CHUNK = 1024
# Part of a coordinate's variance that the ones before it leave unexplained; less is redundancy.
# Moments may have been summed in single precision, whose rounding looks like 1e-6.
_LEFT_OF_ROWS, _LEFT_OF_MOMENTS = 1e-10, 1e-6


def logdet_information(sums_with: Draws, sums_without: Draws) -> Information:
    """Return I(x; x + y) from draws of the sum with and without the target's update x.

    Row k of both should come from the same draw of y (see above); draws that have nothing to do
    with each other are also fine. Rows may be single precision; all else is done in double.

    Args:
        sums_with: Draws of x + y, (K, d), with K > d; or their moments; or one `Moments` per block
            of draws, which gives a jackknife over blocks without keeping rows.
        sums_without: Draws of y, likewise. If their number differs each bias is taken off.

    Returns:
        The information, kind "approximation": exact in expectation for Gaussians alone. Without
        rows or blocks the standard error is that of unrelated Gaussian draws. It is infinite if
        some coordinate moves with the target only, and 0 if nothing moves at all.

    >>> from leakmeter.auditors.rng import stream
    >>> y = stream(0, "others").standard_normal((400, 3))
    >>> x = stream(0, "target").standard_normal((400, 3))
    >>> found = logdet_information(x + y, y)
    >>> abs(found.nats - 1.5 * math.log(2)) < 3 * found.std_error < 0.3
    True
    """
    z, y = Sample.of("sums_with", sums_with), Sample.of("sums_without", sums_without)
    if z.dim != y.dim:
        raise ValueError(f"sums_without must have {z.dim} columns, got {y.dim}")
    sizes = {"with": z.count, "without": y.count}
    if (y.moving & ~z.moving).any():
        coordinate = int(np.argmax(y.moving & ~z.moving))
        raise ValueError(
            f"sums_with must vary wherever sums_without does, got coordinate {coordinate} constant"
        )
    # Along such a coordinate the others hide nothing: z shows x exactly, and I(x; z) is infinite.
    if (z.moving & ~y.moving).any():
        return _approximation(math.inf, None, int(z.moving.sum()), sizes)
    if not z.moving.any():
        return _approximation(0.0, 0.0, 0, sizes)
    # I = ½ ln|Σ_z| - ½ ln|Σ_y|. The entropies' constants, ½ d ln 2πe each, cancel.
    nats, error = combine([z.log_det(), y.log_det()], [0.5, -0.5])
    if z.count == y.count and z.leaves_out_rows and y.leaves_out_rows:
        error = _less_excess(error, nats, int(z.moving.sum()), z.count)
    return _approximation(nats, error, int(z.moving.sum()), sizes)


def joint_information(x: Rows, z: Rows) -> Information:
    """Return I(x; z) as if x and z were jointly Gaussian, from K pairs of rows.

    ½ (ln|S_x| + ln|S_z| - ln|S_xz|), each determinant without its bias. It asks nothing of how z
    comes from x, but needs K > 2 d and is noisier than `logdet_information`.
    """
    if len(x) != len(z):
        raise ValueError(f"z must have as many rows as x, {len(x)}, got {len(z)}")
    parts = [Sample.of("x", x), Sample.of("z", z)]
    sizes = {"pairs": len(x)}
    if not all(part.moving.any() for part in parts):
        return _approximation(0.0, 0.0, 0, sizes)
    # (K, d_x + d_z): the determinant of the joint covariance, blocks S_x, S_z and what they share.
    both = np.concatenate([x[:, parts[0].moving], z[:, parts[1].moving]], axis=1)
    joint = Sample.of("x and z together", both)
    found = [sample.log_det() for sample in (*parts, joint)]
    nats, error = combine(found, [0.5, 0.5, -0.5])
    # No more canonical correlations than the smaller of the two has coordinates.
    rank = min(int(part.moving.sum()) for part in parts)
    return _approximation(nats, error, rank, sizes, "joint Gaussian plug-in without its bias")


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


def _approximation(
    nats: float,
    error: float | None,
    rank: int,
    sizes: dict[str, int],
    rule: str = "½ log₂|S_with| − ½ log₂|S_without|",
) -> Information:
    return Information(
        nats=nats,
        kind="approximation",
        rule=rule,
        std_error=error,
        rank=rank,
        sample_sizes=sizes,
        assumptions=(Assumption.GAUSSIAN_UPDATES,),
    )


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


@dataclass(frozen=True)
class LogDet:
    """ln|S| without its bias, its Gaussian standard deviation, and what it is without each part."""

    value: float
    std: float
    left_out: Floats | None  # value with one part left out, up to a constant; None if unknown
    shares: Floats | None  # rows / rows in the part


def combine(dets: Sequence[LogDet], weights: Sequence[float]) -> tuple[float, float]:
    """Return a weighted sum of log determinants and its standard error."""
    total = math.fsum(w * det.value for w, det in zip(weights, dets, strict=True))
    shares = dets[0].shares
    paired = shares is not None and all(
        det.shares is not None and np.array_equal(det.shares, shares) for det in dets
    )
    if paired and shares is not None:
        # (parts,) changes of the whole combination, each with part k missing in all determinants.
        # Paired parts are left out together, so what they share cancels.
        left_out = sum(w * cast(Floats, det.left_out) for w, det in zip(weights, dets, strict=True))
        _, std = jackknife(np.asarray(total), total + cast(Floats, left_out), shares)
        return total, float(std)
    # Unrelated draws: variances add. For draws that are paired this would be far too large.
    return total, math.hypot(*(w * det.std for w, det in zip(weights, dets, strict=True)))


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


@dataclass(frozen=True)
class Sample:
    """Draws of one sum, as rows, moments or blocks, with the moments of all of them."""

    name: str
    moments: Moments
    rows: Rows | None = None
    blocks: Sequence[Moments] | None = None

    @classmethod
    def of(cls, name: str, draws: Draws) -> Sample:
        """Read whatever form the draws come in."""
        if isinstance(draws, Moments):
            return cls(name, draws.plain())
        if isinstance(draws, np.ndarray):
            return cls(name, _moments(name, draws), rows=draws)
        if not draws:
            raise ValueError(f"{name} must contain at least one block, got none")
        blocks = [block.plain() for block in draws]
        return cls(name, _merged(blocks), blocks=blocks if len(blocks) > 1 else None)

    @property
    def count(self) -> int:
        """Draws in all."""
        return self.moments.count

    @property
    def dim(self) -> int:
        """Coordinates, moving or not."""
        return self.moments.mean.size

    @property
    def moving(self) -> NDArray[np.bool_]:
        """Which coordinates vary by more than the rounding of their mean."""
        rounding = self.count * (64 * np.finfo(np.float64).eps * self.moments.mean) ** 2
        return np.asarray(np.diagonal(self.moments.scatter) > rounding)

    @property
    def leaves_out_rows(self) -> bool:
        """Whether there are rows, and enough for a jackknife over them to have a variance."""
        return self.rows is not None and self.count > int(self.moving.sum()) + 3

    def log_det(self) -> LogDet:
        """Return ln|S| over the moving coordinates."""
        moving, count = self.moving, self.count
        rank = int(moving.sum())
        if count <= rank:
            raise ValueError(
                f"{self.name} must have more draws than its {rank} moving coordinates, got {count}:"
                " use more draws or a subspace"
            )
        spread = np.sqrt(np.diagonal(self.moments.scatter)[moving])
        tol = _LEFT_OF_MOMENTS if self.rows is None else _LEFT_OF_ROWS
        factor = _factor(self.moments.scatter, moving, spread)
        if factor is None or float(factor.diagonal().min()) ** 2 < tol:
            raise ValueError(
                f"{self.name} must have linearly independent coordinates, got some that follow from"
                " others: drop them (one class of a softmax layer, say) or use a subspace"
            )
        # |scatter| = |factor|² · Π spread², and a triangular determinant is the product of its
        # diagonal.
        log_scatter = 2 * float(np.log(factor.diagonal()).sum() + np.log(spread).sum())
        # S = scatter / (K - 1), so its determinant is smaller by (K - 1)^d.
        value = log_scatter - rank * math.log(count - 1) - log_det_bias(rank, count)
        left_out, shares = self._left_out(moving, spread, factor, log_scatter)
        return LogDet(value, log_det_std(rank, count), left_out, shares)

    def _left_out(
        self, moving: NDArray[np.bool_], spread: Floats, factor: Floats, log_scatter: float
    ) -> tuple[Floats | None, Floats | None]:
        """Return ln|S| with each row or block left out minus ln|S|, and their shares."""
        count, rank = self.count, len(spread)
        if self.rows is not None and self.leaves_out_rows:
            mean = self.moments.mean[moving]
            leverage = _leverage(self.rows, moving, mean, spread, factor)
            # Matrix determinant lemma: without row k the scatter loses K/(K-1) · c cᵀ, c = row -
            # mean, so |scatter| shrinks by 1 - K/(K-1) · leverage. The new divisor K - 2 is the
            # same for every row, and a jackknife ignores constants.
            changes = np.log1p(-count / (count - 1) * leverage)
            return changes, np.full(count, float(count))
        if self.blocks is not None and count - max(b.count for b in self.blocks) > rank:
            changes = np.array([self._without(b, moving, spread) for b in self.blocks])
            sizes = np.array([b.count for b in self.blocks], dtype=np.float64)
            # Fewer rows have a smaller scatter and another bias: both are known.
            biases = [
                rank * math.log(count - 1 - size) + log_det_bias(rank, int(count - size))
                for size in sizes
            ]
            here = rank * math.log(count - 1) + log_det_bias(rank, count)
            return changes - log_scatter - biases + here, count / sizes
        return None, None

    def _without(self, block: Moments, moving: NDArray[np.bool_], spread: Floats) -> float:
        """Return ln of the scatter's determinant with one block left out."""
        rest = self.count - block.count
        shift = block.mean - self.moments.mean
        # Chan et al. backwards: removing a block also removes the spread between its mean and the
        # mean of the rest, which is K_block · K / K_rest times the outer product of `shift`, (d,
        # d).
        scatter = (
            self.moments.scatter
            - block.scatter
            - block.count * self.count / rest * np.outer(shift, shift)
        )
        factor = _factor(scatter, moving, spread)
        if factor is None:
            raise ValueError(f"{self.name} must be regular without any one block: use larger ones")
        return 2 * float(np.log(factor.diagonal()).sum() + np.log(spread).sum())


def _factor(scatter: AnyFloats, moving: NDArray[np.bool_], spread: Floats) -> Floats | None:
    """Return the lower Cholesky factor of the scatter in units of `spread`; None if it has none."""
    # Coordinates of equal size make the pivots comparable.
    scaled = scatter if moving.all() else scatter[np.ix_(moving, moving)]
    scaled = scaled / spread
    scaled /= spread[:, None]
    try:
        # Symmetric, so the transpose is the same matrix in the order that LAPACK overwrites.
        return np.asarray(cholesky(scaled.T, lower=True, overwrite_a=True, check_finite=False))
    except LinAlgError:
        return None


def _leverage(
    rows: Rows, moving: NDArray[np.bool_], mean: Floats, spread: Floats, factor: Floats
) -> Floats:
    """Return (row - mean)ᵀ scatter⁻¹ (row - mean) for each row."""
    found = np.empty(len(rows))
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK][:, moving].astype(np.float64)
        centred = np.asfortranarray(((chunk - mean) / spread).T)
        # L w = c gives w = L⁻¹ c, (d, rows), and cᵀ scatter⁻¹ c = ‖w‖²: no inverse is formed.
        white = solve_triangular(factor, centred, lower=True, overwrite_b=True, check_finite=False)
        found[start : start + _CHUNK] = np.einsum("ij,ij->j", white, white)
    return found


def _moments(name: str, rows: Rows) -> Moments:
    """Return the moments of rows, summed in double precision chunk by chunk."""
    if rows.ndim != 2 or len(rows) < 2 or not rows.shape[1]:
        raise ValueError(f"{name} must have shape (2 or more, 1 or more), got {rows.shape}")
    mean = rows.mean(axis=0, dtype=np.float64)
    if not np.isfinite(mean).all():
        raise ValueError(f"{name} must be finite, got {mean[~np.isfinite(mean)][0]} in a column")
    scatter = np.zeros((rows.shape[1], rows.shape[1]), order="F")
    for start in range(0, len(rows), _CHUNK):
        centred = rows[start : start + _CHUNK] - mean  # double, since the mean is
        # A symmetric rank-k update writes one triangle: half the work of centredᵀ @ centred.
        scatter = dsyrk(1.0, centred.T, beta=1.0, c=scatter, overwrite_c=1, lower=1)
    scatter += np.tril(scatter, -1).T
    return Moments(len(rows), mean, scatter)


def _merged(blocks: Sequence[Moments]) -> Moments:
    """Return the moments of all blocks together (Chan, Golub and LeVeque 1983)."""
    count = sum(b.count for b in blocks)
    mean = sum((b.count * b.mean for b in blocks), np.zeros(blocks[0].mean.size)) / count
    scatter = np.zeros_like(blocks[0].scatter)
    for block in blocks:
        shift = block.mean - mean
        scatter += block.scatter + block.count * np.outer(shift, shift)
    return Moments(count, mean, scatter)
