"""Products of columns are what all multiplications give, with fewer of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling import moments as module
from leakmeter.auditors.sampling.moments import ColumnProducts
from tests.helpers.numbers import num_examples


def total(chunks: list[np.ndarray], *, even: list[bool]) -> np.ndarray:
    """Return the products of all rows, less nothing."""
    dim = chunks[0].shape[1]
    products = ColumnProducts(dim)
    for rows, is_even in zip(chunks, even, strict=True):
        products.open(len(rows))
        for at, columns, tile, _ in products.tiles():
            tile[:] = rows[at, columns]
        products.add(is_even)
    return products.total(np.zeros(dim), np.zeros(dim))


@given(
    st.lists(st.tuples(st.integers(1, 150), st.booleans()), min_size=1, max_size=4),
    st.integers(1, 70),
    st.sampled_from([1, 2, 4, 8, 16]),
)
@settings(max_examples=num_examples(40), deadline=None)
def test_whole_numbers_have_exact_products_in_any_blocks_and_chunks(
    sizes: list[tuple[int, bool]], dim: int, blocks: int
) -> None:
    rng = stream(dim, "whole", blocks)
    chunks = [rng.integers(-9, 10, (count, dim)).astype(np.float32) for count, _ in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCKED_FROM", 1)
        patch.setattr(module, "_BLOCKS", blocks)
        found = total(chunks, even=[is_even for _, is_even in sizes])
    truth = sum(rows.astype(np.int64).T @ rows.astype(np.int64) for rows in chunks)
    np.testing.assert_array_equal(found, truth)


def test_sums_of_blocks_cost_a_factor_of_about_five_in_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_BLOCKED_FROM", 1)
    rows = stream(0, "normal").standard_normal((2048, 400), dtype=np.float32)
    truth = rows.T.astype(np.float64) @ rows.astype(np.float64)
    above = np.triu_indices(400, 1)
    fewer, plain = (
        float(np.sqrt(np.mean((total([rows], even=[even]) - truth)[above] ** 2))) / len(rows)
        for even in (True, False)
    )
    assert 2 * plain < fewer < 8 * plain
    assert 2e-8 < fewer < 5e-8
