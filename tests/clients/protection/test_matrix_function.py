"""Functions of a symmetric matrix: the twin goes through all eigenvectors."""

from __future__ import annotations

import numpy as np
import pytest

from leakmeter.auditors.rng import stream
from leakmeter.clients.protection import record_rule
from leakmeter.clients.protection.record_rule import function_times


def root(values: np.ndarray) -> np.ndarray:
    """Return √(1 - μ), and 0 above 1: as steep as the filling at its floor."""
    return np.sqrt(np.maximum(1 - values, 0.0))


def with_spectrum(values: np.ndarray) -> np.ndarray:
    q, _ = np.linalg.qr(stream(0, "q").standard_normal((len(values), len(values))))
    return np.asarray((q * values) @ q.T)


CASES = {
    "one": np.array([0.3]),
    "two": np.array([0.3, 2.0]),
    "three": np.array([0.3, 0.3, 2.0]),
    "zero": np.zeros(20),
    "identity": np.ones(20) * 0.7,
    "spread": np.geomspace(1e-9, 1e3, 120),
    "a large cluster": np.repeat([0.0, 0.5, 3.0], 50),
    "low rank": np.concatenate([np.zeros(140), np.linspace(0.1, 2.0, 10)]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("scale", [1.0, 1e-8])
def test_it_agrees_with_the_route_through_eigenvectors(name: str, scale: float) -> None:
    matrix = scale * with_spectrum(CASES[name])
    before = matrix.copy()
    vector = stream(1, "v").standard_normal(len(matrix))
    values, found = function_times(matrix, lambda mu: root(mu / scale), vector)
    exact, vectors = np.linalg.eigh(matrix)
    truth = vectors @ (root(exact / scale) * (vectors.T @ vector))
    size = scale * max(CASES[name].max(), 1.0)
    assert values == pytest.approx(exact, abs=1e-13 * size)
    assert found == pytest.approx(truth, abs=1e-10 * size / scale)
    assert np.array_equal(matrix, before)


def test_it_falls_back_when_the_tridiagonal_solver_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(diagonal: np.ndarray, _: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        return diagonal, np.eye(len(diagonal)), 1

    matrix, vector = with_spectrum(CASES["spread"]), np.ones(120)
    _, before = function_times(matrix, root, vector)
    monkeypatch.setattr(record_rule.lapack, "dstevd", fails, raising=False)
    _, after = function_times(matrix, root, vector)
    assert after == pytest.approx(before, abs=1e-10)


def test_a_matrix_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        function_times(np.full((4, 4), np.nan), root, np.ones(4))
