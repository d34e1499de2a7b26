"""P-values from decoys: valid together, capped as stated, and what torch models say."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.bounds.one_run import headline
from leakmeter.auditors.planting.scores import (
    TorchScores,
    exposure,
    histogram,
    largest_score,
    log_p_values,
)
from leakmeter.auditors.rng import stream
from tests.helpers.numbers import few_or_many, first_fast, most_allowed

K, SPENT = 200, 0.0125


def proven(
    scores: np.ndarray, is_in: np.ndarray, log_p: np.ndarray, spent: float, delta: float = 1e-6
) -> float:
    """Return the ε that p-values prove at 95 %."""
    options = {"delta": delta, "confidence": 0.95, "guesses": 1, "spent": spent}
    return headline(scores, is_in, log_p, **options)[0].value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("decoys", "planted", "cap"),
    [
        *((2000, 100, 4.97), (5000, 100, 5.859), (20_000, 100, 7.153), (50_000, 100, 8.066)),
        *((5000, 120, 5.859), (5000, 95, 4.27), (20_000, 80, 5.26)),  # few in: a lower cap
    ],
)
def test_decoys_and_coins_cap_what_can_be_shown(decoys: int, planted: int, cap: float) -> None:
    # MATH: scores reach ln(M/8.5), and ln(M/9.5) above 5,000 decoys.
    most = largest_score(decoys, SPENT)
    assert most == pytest.approx(math.log(decoys / (8.5 if decoys <= 5000 else 9.5)), abs=0.03)
    scores, is_in = np.ones(K), np.arange(K) < planted
    log_p = log_p_values(scores, np.zeros(decoys), SPENT)
    bound, _ = headline(
        *(scores, is_in, log_p), delta=1e-5, confidence=0.95, guesses=1, spent=SPENT, most=most
    )
    assert bound.value == bound.cap == pytest.approx(cap, abs=0.005)
    assert bound.saturated


def no_leak(rng: np.random.Generator, decoys: int) -> tuple[np.ndarray, ...]:
    """Return scores that say nothing, coins and decoys."""
    return rng.standard_normal(K), rng.random(K) < 0.5, rng.standard_normal(decoys)


def leak(
    rng: np.random.Generator, canaries: int, decoys: int, epsilon: float
) -> tuple[np.ndarray, ...]:
    """Return scores of a feasible extreme at ε: a large one is e^ε times as likely in as out."""
    inside, outside = math.exp(-0.02), math.exp(-0.02 - epsilon)
    is_in = rng.random(canaries) < 0.5
    is_large = rng.random(canaries) < np.where(is_in, inside, outside)
    return is_large * 1.0, is_in, (rng.random(decoys) < outside) * 1.0


@pytest.mark.parametrize("decoys", first_fast(1, [300, 2000]))
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("runs", few_or_many(20, 1000))
def test_bounds_exceed_the_truth_at_most_as_often_as_promised(
    decoys: int, epsilon: float, runs: int
) -> None:
    above = 0
    for run in range(runs):
        rng = stream(run, "coverage", decoys)
        found = no_leak(rng, decoys) if epsilon == 0 else leak(rng, K, decoys, epsilon)
        scores, is_in, null = found
        above += proven(scores, is_in, log_p_values(scores, null, SPENT), SPENT) > epsilon
    # Nominal 5 %, and three standard errors: exceeded by a valid bound in 1 of 1,000 tests.
    assert above <= most_allowed(runs)


def under_noise(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return scores of Gaussian noise on what a record adds, of standard deviation 1."""
    is_in = rng.random(K) < 0.5
    return is_in + rng.standard_normal(K), is_in, rng.standard_normal(2000)


def all_or_none(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return scores of a mechanism that leaks of all records together, or of none, by a coin."""
    return leak(rng, K, 2000, 3.0 if rng.random() < 0.5 else 0.0)


def revealed(delta: float, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return scores that show each record with this chance, and nothing else."""
    is_in = rng.random(K) < 0.5
    return rng.random(K) + 5 * is_in * (rng.random(K) < delta), is_in, rng.random(2000)


def without_replacement(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return scores that say nothing, of canaries and decoys of one file."""
    pool = rng.permutation(np.exp(3 * rng.standard_normal(700)))
    return pool[:K], rng.random(K) < 0.5, pool[K:]


@pytest.mark.parametrize(
    ("draw", "delta", "truth"),
    [
        (without_replacement, 1e-6, 0.0),
        (under_noise, 1e-5, epsilon_gaussian(1e-5, 1.0)),
        (all_or_none, 1e-6, 3.0),
        (partial(revealed, 1e-4), 1e-4, 0.0),
        (partial(revealed, 1e-3), 1e-3, 0.0),  # k·δ is above the level: another bound
        (partial(leak, canaries=K, decoys=5000, epsilon=6.0), 5e-4, 6.0),
    ],
    ids=["file", "noise", "all or none", "revealed", "revealed often", "large k·δ"],
)
@pytest.mark.parametrize("runs", few_or_many(15, 1000))
def test_bounds_stay_below_what_a_mechanism_delivers(
    draw: Callable[[np.random.Generator], tuple[np.ndarray, ...]],
    delta: float,
    truth: float,
    runs: int,
) -> None:
    found = []
    for run in range(runs):
        scores, is_in, null = draw(stream(run, "mechanism"))
        log_p = log_p_values(scores, null, SPENT)
        found.append(proven(scores, is_in, log_p, SPENT, delta))
    assert sum(bound > truth for bound in found) <= most_allowed(runs)


@pytest.mark.slow
def test_plain_ranks_among_shared_decoys_break_the_promise() -> None:
    naive = honest = 0
    for run in range(60):
        scores, is_in, null = leak(stream(run, "naive", 40), 1000, 40, 2.0)
        reached = (null[None] >= scores[:, None]).sum(axis=1)
        naive += proven(scores, is_in, np.log((reached + 1) / 41), 0.0) > 2.0
        honest += proven(scores, is_in, log_p_values(scores, null, SPENT), SPENT) > 2.0
    assert naive > most_allowed(60)
    assert honest <= most_allowed(60)


def test_p_values_and_exposure_rise_with_the_score_and_ties_count_against_it() -> None:
    null = np.repeat(np.arange(50.0), 4)
    log_p = log_p_values(np.array([-1.0, 10.0, 10.5, 49.0, 60.0]), null, 0.01)
    assert (np.diff(log_p) <= 0).all()
    assert log_p[0] == 0
    assert log_p[3] > log_p[4]  # four decoys reach 49
    found = exposure(np.array([2000.0, 1022.0, 511.0, -1.0]), np.arange(1023.0))
    assert found == pytest.approx([10, 9, 10 - math.log2(513), 0])
    uniform = stream(0, "exposure").random(20_000)
    assert exposure(uniform[:10_000], uniform[10_000:]).mean() == pytest.approx(1.44, abs=0.06)


def test_a_histogram_counts_everybody_once() -> None:
    rng = stream(1, "histogram")
    drawn = histogram(rng.normal(3, 1, 40), rng.normal(0, 1, 30), rng.normal(0, 1, 500))
    assert (sum(drawn.included), sum(drawn.excluded)) == (40, 30)
    assert sum(drawn.null) == pytest.approx(1, abs=1e-4)
    assert histogram(np.ones(3), np.ones(2), np.ones(4)).edges[0] == 1


class Bigram(nn.Module):
    """Predicts the next token from the last alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.table(tokens)
        return logits


def encode(text: str) -> list[int]:
    """Return letters a to d as numbers."""
    return ["abcd".index(letter) for letter in text]


def test_losses_of_texts_are_those_of_their_tokens_whatever_their_lengths() -> None:
    model = stream(0, "bigram").standard_normal(16)
    logits = model.reshape(4, 4)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    texts = ["ab", "abcd", "dd", "cab", "abcd"]
    expected = [
        -sum(log_p[a, b] for a, b in zip(encode(t), encode(t)[1:], strict=False)) for t in texts
    ]
    found = TorchScores(Bigram(), encode)(model, texts)
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_text_is_extracted_where_every_next_token_is_the_likeliest() -> None:
    model = np.zeros((4, 4))
    model[0, 1] = model[1, 2] = model[2, 3] = model[3, 3] = 5.0  # a → b → c → d → d
    scores = TorchScores(Bigram(), encode, prefix="ab")
    found = scores.extract(model.ravel(), ["abcd", "abcc", "cbcd", "abddd", "abcddd"])
    assert found.tolist() == [True, False, True, False, True]  # the prefix itself is given


@pytest.mark.parametrize(("prefix", "end"), [("ab", []), ("aa", []), ("a", [3])])
def test_tokens_that_join_prefix_and_secret_must_be_completed(prefix: str, end: list[int]) -> None:
    def joined(text: str) -> list[int]:
        """Return "ab" as two tokens, but "abd" as three others; some tokenisers add an end."""
        return encode(text.replace("abd", "acd")) + (end if text == prefix else [])

    model = np.zeros((4, 4))
    model[0, 1] = model[2, 3] = 5.0  # a → b, c → d
    found = TorchScores(Bigram(), joined, prefix=prefix).extract(model.ravel(), ["abd", "acd"])
    assert found.tolist() == [False, False]  # of "acd" nobody has got c, which a does not give


def test_losses_of_a_classifier_are_cross_entropies() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    rng = stream(2, "classifier")
    model = rng.random(sum(p.numel() for p in net.parameters()))
    x, y = rng.standard_normal((700, 3)).astype(np.float32), rng.integers(2, size=700)
    found = TorchScores(net)(model, (x, y))
    net.eval()
    expected = nn.functional.cross_entropy(
        net(torch.from_numpy(x)), torch.from_numpy(y), reduction="none"
    )
    assert found == pytest.approx(expected.detach().numpy(), rel=1e-5)
    stored = rng.random(sum(t.numel() for t in net.state_dict().values() if t.is_floating_point()))
    assert TorchScores(net)(stored, (x, y)).shape == (700,)  # with the running means
    with pytest.raises(ValueError, match="module must have the 5 parameters that travel, got 12"):
        TorchScores(net)(np.zeros(5), (x, y))
