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
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from leakmeter.auditors._types import Floats
from leakmeter.auditors._validate import within
from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.information.determinant import Draws, Rows, Sample, combine
from leakmeter.auditors.information.figure import Information
from leakmeter.auditors.sampler import Moments


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


@dataclass(frozen=True)
class Subspace:
    """Directions along which sums are looked at, fixed before the samples they are used on.

    Attributes:
        directions: Orthonormal columns, (dim, rank).
        variance_kept: Share of the variance of the samples it was fitted on.
    """

    directions: Floats
    variance_kept: float

    @property
    def rank(self) -> int:
        """Number of directions, d*."""
        return int(self.directions.shape[1])

    def project(self, rows: Rows) -> Floats:
        """Return the coordinates of rows along the directions, (rows, rank)."""
        return np.asarray(rows @ self.directions.astype(rows.dtype), dtype=np.float64)


def principal_subspace(
    draws: Rows | Moments, *, rank: int | None = None, share: float | None = None
) -> Subspace:
    """Return the directions of largest variance; fit on other samples than you then measure.

    Directions chosen on the measured samples themselves would favour their accidents.

    Args:
        draws: Rows, (K, dim), or their moments. With K < dim rows the small Gram matrix is used.
        rank: Number of directions; or
        share: Least share of the variance to keep, in (0, 1]; the smallest rank that does.
    """
    if (rank is None) == (share is None):
        raise ValueError(f"exactly one of rank and share must be given, got {rank} and {share}")
    spectrum, directions = _principal(draws)
    if not spectrum.sum() > 0:
        raise ValueError("draws must vary in some direction, got constant ones")
    kept = np.cumsum(spectrum) / spectrum.sum()
    if share is not None:
        within("share", share, above=0.0, highest=1.0)
        rank = num_directions(kept, share)
    assert rank is not None
    if not 1 <= rank <= len(spectrum):
        raise ValueError(f"rank must be in [1, {len(spectrum)}], the draws' own, got {rank}")
    return Subspace(np.ascontiguousarray(directions[:, :rank]), min(1.0, float(kept[rank - 1])))


def num_directions(kept: Floats, share: float = 1.0) -> int:
    """Return how many directions keep a share of the variance, from what the first k keep."""
    # 1 + index, since kept[k - 1] is what the first k keep.
    # The last steps of a cumulative sum may miss 1 by a rounding.
    return 1 + int(np.searchsorted(kept, share * (1 - 1e-12)))


def _principal(draws: Rows | Moments) -> tuple[Floats, Floats]:
    """Return the positive eigenvalues of the scatter, largest first, and their directions."""
    if isinstance(draws, Moments):
        return positive(*np.linalg.eigh(draws.plain().scatter))
    # Mean in double: rows may be single, and a mean of thousands of them would lose digits.
    centred = draws - draws.mean(axis=0, dtype=np.float64)
    if len(draws) >= draws.shape[1]:
        return positive(*np.linalg.eigh(centred.T @ centred))
    # Fewer rows than coordinates: (K, K) instead of (d, d). X Xᵀ u = λ u implies that Xᵀ u / √λ is
    # a unit eigenvector of Xᵀ X for the same λ.
    spectrum, left = positive(*np.linalg.eigh(centred @ centred.T))
    return spectrum, centred.T @ left / np.sqrt(spectrum)  # (K,), (d, K)


def positive(spectrum: Floats, directions: Floats) -> tuple[Floats, Floats]:
    """Return the eigenvalues above rounding, largest first, and their eigenvectors."""
    # `eigh` sorts upwards, so the last one is the largest; below its rounding a 0 may have any
    # sign.
    floor = len(spectrum) * np.finfo(np.float64).eps * spectrum[-1]
    real = spectrum > max(floor, 0.0)
    return spectrum[real][::-1], directions[:, real][:, ::-1]
