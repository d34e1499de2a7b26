"""Tokens in the sum of a round: exact for plain SGD, a test that holds, and right words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

from leakmeter import Audited, Masked, MaskMod, TokenInversion, canary_mod
from leakmeter.auditors import check_auditor
from leakmeter.auditors.auditor import RoundFacts, RoundMessages, RoundView, UnableError
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.reconstruction.tokens import named_tokens
from leakmeter.auditors.rng import stream
from leakmeter.auditors.verdict import labels, sentences
from leakmeter.auditors.verdict.gate import GateLimits, check
from leakmeter.auditors.verdict.verdict import judge
from tests.helpers.numbers import most_allowed

TOKENS, WIDTH, LENGTH = 200, 8, 6
FIRST = 3  # numbers in front of the embedding
DIM = FIRST + TOKENS * WIDTH + WIDTH * TOKENS


def drawn(seed: int, count: int) -> list[list[int]]:
    """Return texts whose tokens are as unequally frequent as words are."""
    chances = 1 / np.arange(1, TOKENS + 1)
    rng = stream(seed, "texts")
    return rng.choice(TOKENS, (count, LENGTH), p=chances / chances.sum()).tolist()


def gradient(texts: list[list[int]], *, is_tied: bool = False) -> np.ndarray:
    """Return the gradient of a model that predicts the next token from the mean of all before."""
    torch.manual_seed(0)
    embedding, output = torch.randn(TOKENS, WIDTH), torch.randn(TOKENS, WIDTH)
    embedding.requires_grad_()
    output = embedding if is_tied else output.requires_grad_()
    text = torch.tensor(texts)
    loss = torch.nn.functional.cross_entropy(embedding[text[:, :-1]].mean(1) @ output.T, text[:, 0])
    slopes = torch.autograd.grad(loss, [embedding, output], allow_unused=True)
    parts = [np.zeros(FIRST), *(s.reshape(-1).double().numpy() for s in slopes)]
    return np.concatenate(parts)[:DIM]


def layout() -> Layout:
    shapes = {"bias": (FIRST,), "embed.weight": (TOKENS, WIDTH), "head.weight": (TOKENS, WIDTH)}
    return Layout.of(ArrayRecord({n: Array(np.zeros(s)) for n, s in shapes.items()}))


def audited(
    auditor: TokenInversion, update: np.ndarray, rounds: int = 1, **facts: Any
) -> TokenInversion:
    """Return the auditor after rounds with this mean update."""
    auditor.begin(DIM, rounds)
    for number in range(1, rounds + 1):
        auditor.bind(RoundMessages(None, {}, layout(), np.zeros(DIM), ""))  # type: ignore[arg-type]
        known = RoundFacts(aggregate=update, num_clients=3, **facts)
        auditor.observe(RoundView(number, np.zeros(DIM), {}, update, known))
    return auditor


def occurring(texts: list[list[int]]) -> set[int]:
    return {token for text in texts for token in text[:-1]}


def test_the_rows_that_moved_are_the_tokens_of_the_batch() -> None:
    texts = drawn(1, 30)
    rows = gradient(texts)[FIRST : FIRST + TOKENS * WIDTH].reshape(TOKENS, WIDTH)
    named, is_exact = named_tokens(-0.1 * rows)
    assert is_exact
    assert set(np.flatnonzero(named)) == occurring(texts)


def test_rounding_of_a_secure_sum_names_no_token() -> None:
    rng, texts = stream(2), drawn(1, 30)
    rows = gradient(texts)[FIRST : FIRST + TOKENS * WIDTH].reshape(TOKENS, WIDTH)
    rounded = rows + rng.uniform(-1e-6, 1e-6, rows.shape)
    named, is_exact = named_tokens(rounded, 1e-6 * math.sqrt(WIDTH))
    assert is_exact
    assert set(np.flatnonzero(named)) == occurring(texts)


def test_noise_alone_names_about_one_token() -> None:
    """The count is Poisson with mean 1 in each of 200 rounds: 200 ± 5 deviations."""
    rng = stream(3)
    total = sum(
        int(named_tokens(rng.normal(0, 0.3, (TOKENS, WIDTH)), noise_std=0.3)[0].sum())
        for _ in range(200)
    )
    assert abs(total - 200) < 5 * math.sqrt(200)


def test_shared_weights_move_all_rows_and_the_widest_gap_is_a_guess_that_says_so() -> None:
    texts = drawn(1, 3)
    rows = gradient(texts, is_tied=True)[FIRST : FIRST + TOKENS * WIDTH].reshape(TOKENS, WIDTH)
    named, is_exact = named_tokens(rows)
    assert not is_exact
    hits = len(set(np.flatnonzero(named)) & occurring(texts))
    assert hits >= 0.9 * named.sum() > 0


def test_a_leak_is_shown_as_rebuilt_data_with_its_control() -> None:
    texts, strangers = drawn(1, 30), drawn(2, 2000)
    auditor = TokenInversion("embed.weight", lambda _: (texts, strangers), alike=True)
    [found] = audited(auditor, -gradient(texts)).report()
    assert (found.facts["named"], found.facts["right"]) == (len(occurring(texts)),) * 2
    assert found.value > 0
    assert found.confidence == pytest.approx(0.95)
    assert not found.is_conditional
    verdict = judge([found])
    assert verdict.severity == "rebuilt"
    said = sentences.headline(verdict)
    assert "can read which words clients trained on" in said
    assert labels.cells_of_test(found)[2] == f"≥ {found.value:g} tokens"
    [result] = check(verdict, GateLimits(no_reconstruction=True))
    assert result.outcome == "exceeded"
    # Texts that chance did not deal make the test conditional.
    auditor = TokenInversion("embed.weight", lambda _: (texts, strangers))
    assert audited(auditor, -gradient(texts)).report()[0].is_conditional


def test_without_a_leak_tokens_are_said_to_be_recovered_no_more_often_than_promised() -> None:
    """Named tokens of other texts: 5 % of runs, and beyond the limit by chance once in 100."""
    wrong, runs = 0, 80
    for seed in range(runs):
        pool = drawn(1000 + seed, 30 + 30 * 20)
        texts, others, strangers = pool[:10], pool[10:30], pool[30:]
        about = (texts, strangers)
        auditor = TokenInversion("embed.weight", lambda _, a=about: a, alike=True, seed=seed)
        update = np.zeros(DIM)
        for token in occurring(others):
            update[FIRST + token * WIDTH] = 1.0
        wrong += audited(auditor, update).report()[0].value > 0
    assert wrong <= most_allowed(runs)


def test_only_the_first_audited_round_is_the_test_of_the_run() -> None:
    texts, strangers = drawn(1, 10), drawn(2, 400)
    auditor = TokenInversion("embed.weight", lambda _: (texts, strangers), every=1)
    found = audited(auditor, -gradient(texts), rounds=3).report()
    assert [f.facts["round"] for f in found] == [1]


def test_too_few_strangers_cannot_show_anything() -> None:
    texts = drawn(1, 10)
    auditor = TokenInversion("embed.weight", lambda _: (texts, drawn(2, 18)))
    [found] = audited(auditor, -gradient(texts)).report()
    assert (found.value, found.cap) == (0, 0)
    assert "needs 19 strangers for each text" in found.rule


def test_a_wrong_name_is_answered_with_the_matrices_that_there_are() -> None:
    auditor = TokenInversion("embeddings", lambda _: ([], []))
    with pytest.raises(UnableError, match=r"got 'embeddings'; .* embed.weight, head.weight"):
        audited(auditor, np.zeros(DIM))


def test_tokens_without_a_row_are_named() -> None:
    auditor = TokenInversion("embed.weight", lambda _: ([[TOKENS]], []))
    with pytest.raises(ValueError, match=rf"tokens in \[0, {TOKENS}\), .* got {TOKENS}"):
        audited(auditor, np.ones(DIM))


def test_the_auditor_keeps_the_contract() -> None:
    def made() -> TokenInversion:
        auditor = TokenInversion("w", lambda _: ([[1]], [[2]] * 40), every=2)
        matrix = Layout.of(ArrayRecord({"w": Array(np.zeros((3, 2)))}))
        auditor.bind(RoundMessages(None, {}, matrix, np.zeros(6), ""))  # type: ignore[arg-type]
        return auditor

    check_auditor(made)


@pytest.mark.parametrize("is_masked", [False, True])
def test_tokens_are_read_off_the_sum_of_a_project_also_behind_masks(
    federation: Any, is_masked: bool
) -> None:
    texts = {client: [[client, 9 - client]] for client in range(3)}

    class Readers(federation):  # type: ignore[misc, valid-type]
        def trained(self, client: int, arrays: ArrayRecord) -> dict[str, np.ndarray]:
            models = {name: array.numpy().copy() for name, array in arrays.items()}
            models["w"][texts[client][0]] += 0.1
            return models

    mods = [MaskMod(seed=0), canary_mod] if is_masked else [canary_mod]
    clients = Readers(3, mods=mods)
    originals = [text for some in texts.values() for text in some]
    auditor = TokenInversion("w", lambda _: (originals, [[3, 6]] * 57), alike=True)
    strategy = FedAvg(fraction_evaluate=0.0)
    Audited(Masked(strategy) if is_masked else strategy, [auditor]).start(
        clients.grid, clients.arrays(), 1
    )
    [found] = auditor.report()
    assert (found.facts["named"], found.facts["right"], found.facts["is exact"]) == (6, 6, True)
    assert found.value == 6
