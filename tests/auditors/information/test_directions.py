"""Leading directions: those of the centred samples, and their share of draws they do not know."""

from __future__ import annotations

import numpy as np
import pytest

from leakmeter.auditors.information.draws import ConstantUpdatesError, leading_directions
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.sampler import RowStore

DRAWS, CLIENTS, DIM, RANK = 6, 5, 200, 3


def drawn(dtype: type[np.floating], dim: int = DIM) -> np.ndarray:
    """Return updates (draws, clients, dim): a few strong directions, a mean for each client."""
    rng = stream(0, "directions", dim)
    strong = rng.standard_normal((DRAWS, CLIENTS, 4)) @ rng.standard_normal((4, dim))
    weak = rng.standard_normal((DRAWS, CLIENTS, dim))
    return (strong + 0.3 * weak + 5 * rng.standard_normal((CLIENTS, dim))).astype(dtype)


def slow(rows: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the projection on the directions and the share of the second half, by SVD."""

    def leading(part: np.ndarray) -> np.ndarray:
        centred = (part - part.mean(axis=0)).reshape(-1, rows.shape[2])
        return np.linalg.svd(centred, full_matrices=False)[2][:RANK].T

    rows = rows.astype(np.float64)
    found, half = leading(rows), DRAWS // 2
    rest = rows[half:] - rows[half:].mean(axis=0)
    along = rest @ leading(rows[:half])
    return found @ found.T, float(np.square(along).sum() / np.square(rest).sum())


# More coordinates than samples, and fewer: products of samples, and of coordinates.
@pytest.mark.parametrize("dim", [DIM, 12])
@pytest.mark.parametrize(("dtype", "close"), [(np.float64, 1e-9), (np.float32, 1e-5)])
def test_directions_are_those_of_the_singular_value_decomposition(dtype, close, dim) -> None:
    rows = drawn(dtype, dim)
    found = leading_directions(RowStore.of(rows.reshape(-1, dim)), DRAWS, RANK)
    projection, share = slow(rows)
    np.testing.assert_allclose(found.directions @ found.directions.T, projection, atol=close)
    np.testing.assert_allclose(found.directions.T @ found.directions, np.eye(RANK), atol=1e-9)
    assert found.variance_kept == pytest.approx(share, rel=close)


def test_a_constant_half_shows_no_share_of_its_own() -> None:
    rows = drawn(np.float64)
    rows[: DRAWS // 2] = rows[0]
    found = leading_directions(RowStore.of(rows.reshape(-1, DIM)), DRAWS, RANK)
    assert found.variance_kept == pytest.approx(1.0)  # of all directions that there are
    rows[:] = rows[0]
    with pytest.raises(ConstantUpdatesError, match="every update is the same"):
        leading_directions(RowStore.of(rows.reshape(-1, DIM)), DRAWS, RANK)
