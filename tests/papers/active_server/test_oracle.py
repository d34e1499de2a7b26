"""The answers of clients that sign carry nothing about their data."""

from __future__ import annotations

import pytest

from leakmeter.auditors.hook.wire import RefusedError
from leakmeter.clients.secure_sum.quantise import Quantiser
from leakmeter.papers.active_server.oracle import questioned
from tests.helpers.numbers import few_or_many


@pytest.mark.parametrize("rounds", few_or_many(40, 1000))
def test_answers_do_not_depend_on_data(rounds: int) -> None:
    found = questioned(rounds)
    assert found["answers differ"] == 0
    # The questions are such that errors would have told: see the next test.
    assert found["failed once"] >= rounds / 10
    assert found["uploaded"] >= rounds / 2


@pytest.mark.slow
def test_errors_after_training_would_tell_the_data_sets_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise RefusedError("update, weight or a metric is out of range")

    monkeypatch.setattr(Quantiser, "encode_blank", refuse)
    found = questioned(40)
    assert found["answers differ"] == found["failed once"] >= 4
