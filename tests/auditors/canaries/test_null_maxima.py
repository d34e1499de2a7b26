"""The distribution of the largest cosines of canaries that stay out is exact."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy.stats import ks_2samp

from leakmeter.auditors.canaries.transcript import null_maxima
from leakmeter.auditors.rng import stream

# Statistical tests: fixed seeds, each fails by bad luck with a chance of 1e-4, and the wrong law
# beside it is rejected at 1e-6.
ACCEPT, REJECT = 1e-4, 1e-6


def transcript(*, rounds: int, dim: int, rank: int | None = None) -> np.ndarray:
    """Return round deltas that go in related directions with very different lengths."""
    rng = stream(0, "transcript")
    drift = rng.standard_normal(dim)
    if rank is not None:
        basis = rng.standard_normal((rank, dim))
        return rng.standard_normal((rounds, rank)) @ basis
    lengths = 10.0 ** np.arange(rounds)[:, None]
    return lengths * (drift + rng.standard_normal((rounds, dim)))


def brute_maxima(deltas: np.ndarray, draws: int) -> np.ndarray:
    """Return largest cosines of real vectors with real deltas."""
    vectors = stream(5, "fresh").standard_normal((draws, deltas.shape[1]))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    lengths = np.linalg.norm(deltas, axis=1)
    cosines = vectors @ deltas.T / np.where(lengths > 0, lengths, 1.0)
    return cosines.max(axis=1)


TRANSCRIPTS = {
    "related rounds": transcript(rounds=5, dim=30),
    "one round": transcript(rounds=1, dim=30),
    "dependent rounds": transcript(rounds=8, dim=30, rank=3),
    "more rounds than parameters": transcript(rounds=12, dim=5, rank=5),
    "a round that changed nothing": np.vstack([transcript(rounds=2, dim=30), np.zeros((1, 30))]),
}


@pytest.mark.parametrize(
    ("name", "block"), [*((name, 2**22) for name in TRANSCRIPTS), ("related rounds", 100)]
)
def test_null_maxima_have_the_law_of_real_vectors(name: str, block: int) -> None:
    deltas = TRANSCRIPTS[name]
    draws = null_maxima(deltas @ deltas.T, deltas.shape[1], 20_003, stream(1, "null"), block)
    assert draws.size == 20_003  # the last block may be smaller
    assert ks_2samp(draws, brute_maxima(deltas, 20_000)).pvalue > ACCEPT
    assert not null_maxima(np.zeros((3, 3)), 30, 7, stream(1, "null")).any()  # nothing changed


def test_wrong_nulls_are_rejected() -> None:
    deltas = TRANSCRIPTS["related rounds"]
    real, gram = brute_maxima(deltas, 20_000), deltas @ deltas.T
    unrelated = null_maxima(np.diag(np.diag(gram)), 30, 20_000, stream(1, "null"))
    wrong_size = null_maxima(gram, 40, 20_000, stream(1, "null"))
    # Without the part of a canary that no delta sees, cosines would be far too large.
    without_rest = null_maxima(gram, 5, 20_000, stream(1, "null"))
    for wrong in (unrelated, wrong_size, without_rest):
        assert ks_2samp(wrong, real).pvalue < REJECT


def all_at_once(gram: np.ndarray, dim: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Draw as `null_maxima` does, with every draw in memory."""
    lengths = np.sqrt(np.diag(gram))
    values, vectors = np.linalg.eigh(gram / np.outer(lengths, lengths))
    factor = vectors * np.sqrt(values)
    normal = rng.standard_normal((draws, len(gram)))
    rest = rng.chisquare(dim - len(gram), draws)
    return (normal @ factor.T).max(axis=1) / np.sqrt((normal**2).sum(axis=1) + rest)


def related(rounds: int) -> np.ndarray:
    """Return the Gram matrix of so many related changes."""
    deltas = 1 + stream(0, "changes").standard_normal((rounds, 60))
    return deltas @ deltas.T


def test_draws_do_not_depend_on_how_many_are_in_memory() -> None:
    gram = related(20)
    few = null_maxima(gram, 60, 50_000, stream(1, "null"))
    np.testing.assert_allclose(few, all_at_once(gram, 60, 50_000, stream(1, "null")), rtol=1e-12)


def test_memory_of_the_null_does_not_grow_with_the_rounds() -> None:
    def peak(rounds: int) -> int:
        gram = related(rounds)
        tracemalloc.start()
        try:
            null_maxima(gram, 60, 100_000, stream(1, "null"))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(40) < 1.2 * peak(5)
