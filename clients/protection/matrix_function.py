"""A function of a symmetric matrix times a vector, cheaper than through all eigenvectors.

A = Q T Qᵀ with T tridiagonal and Q a product of reflections, so f(A) v = Q f(T) Qᵀ v: the
eigenvectors of T are enough, and Q is only applied to two vectors. LAPACK's `sytrd`, `stevd` (Gu,
Eisenstat 1995, A Divide-and-Conquer Algorithm for the Symmetric Tridiagonal Eigenproblem), `ormqr`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import lapack

from leakmeter.auditors._types import Floats


def function_times(
    matrix: Floats, function: Callable[[Floats], Floats], vector: Floats
) -> tuple[Floats, Floats]:
    """Return the ascending eigenvalues of a symmetric matrix A, and f(A) v.

    Args:
        matrix: A.
        function: f, on an array of eigenvalues.
        vector: v.
    """
    if not np.isfinite(matrix).all():  # LAPACK may loop forever on a NaN
        raise ValueError("matrix must be finite, got NaN or infinity")
    size = len(vector)
    if size < 3:
        return _by_eigenvectors(matrix, function, vector)
    lwork, _ = lapack.dsytrd_lwork(size, lower=1)
    # Transposed, because LAPACK stores columns contiguously; A is symmetric, so it is the same.
    reduced, diagonal, beside, tau, _ = lapack.dsytrd(matrix.T, lower=1, lwork=int(lwork))
    values, vectors, failed = lapack.dstevd(diagonal, beside)
    if failed:  # very rare: an eigenvalue of some part was not found
        return _by_eigenvectors(matrix, function, vector)
    reflectors = reduced[1:, :-1]  # below the subdiagonal

    def rotated(v: Floats, way: str) -> Floats:
        tail, _, _ = lapack.dormqr("L", way, reflectors, tau, v[1:, None], 64)
        return np.concatenate([v[:1], tail[:, 0]])  # Q leaves the first coordinate unchanged

    # f(A) v = Q W f(λ) Wᵀ Qᵀ v, with W the eigenvectors of T.
    inner = function(values) * (vectors.T @ rotated(vector, "T"))
    return values, rotated(vectors @ inner, "N")


def _by_eigenvectors(
    matrix: Floats, function: Callable[[Floats], Floats], vector: Floats
) -> tuple[Floats, Floats]:
    values, vectors = np.linalg.eigh(matrix)
    return values, vectors @ (function(values) * (vectors.T @ vector))
