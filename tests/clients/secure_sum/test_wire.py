"""Records of signed stages: they come back as they went, and anything else is refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from flwr.app import ConfigRecord
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.clients.secure_sum.wire import (
    get_drawn,
    get_keys,
    get_keys_of_peers,
    get_roster,
    get_signature,
    get_signatures,
    put_by_number,
    put_signatures,
)

SIGNATURES = {3: bytes([3]) * 64, 1: bytes([1]) * 64}
LISTS = {3: [1, 3, 9], 1: [1]}


@pytest.mark.parametrize("lists", [{}, LISTS])
def test_signatures_and_lists_come_back(lists: Any) -> None:
    record = ConfigRecord(put_signatures(SIGNATURES, lists))
    assert get_signatures(record) == (SIGNATURES, lists)


def test_a_roster_comes_back() -> None:
    roster = {2: bytes(32), 7: bytes([1]) * 32}
    assert get_roster(ConfigRecord(put_by_number("identities", roster))) == roster


PARSERS = [
    lambda record: get_keys(record, is_signed=True),
    lambda record: get_keys_of_peers(record, is_signed=True),
    get_roster,
    get_signature,
    get_signatures,
    lambda record: get_drawn(record, 1, range(1, 9), 3),
]
NAMES = ("keys", "identities", "signature", "signatures", "lists", "lengths", "drawn")
values = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=5),
    st.binary(max_size=200),
    st.binary(min_size=64, max_size=64),
    st.lists(st.integers(-3, 300), max_size=5),
    st.lists(st.floats(), max_size=3),
    st.booleans(),
)


@given(st.sampled_from(PARSERS), st.dictionaries(st.sampled_from(NAMES), values, max_size=5))
def test_a_parser_returns_a_value_or_says_why_not(parser: Any, fields: Any) -> None:
    with suppress(ValueError):
        parser(ConfigRecord(fields))


@pytest.mark.parametrize(
    "change",
    [
        {"lengths": [3]},
        {"lengths": [3, 2]},
        {"lengths": [-1, 5]},
        {"lengths": [True, True]},
        {"lengths": [1.0, 3.0]},
        {"lengths": 4},
        {"lists": b"123"},
        {"lists": "x"},
        {"signatures": bytes(126)},
    ],
)
def test_lists_that_do_not_fit_the_signatures_are_refused(change: Any) -> None:
    record = ConfigRecord({**put_signatures(SIGNATURES, LISTS), **change})
    with pytest.raises(ValueError, match=r"lists|signatures"):
        get_signatures(record)


@pytest.mark.parametrize(
    "drawn", [[2, 3], [2, 3, 3], [1, 2, 3], [2, 3, 99], [2.0, 3.0, 4.0], "234"]
)
def test_draws_that_are_not_so_many_others_are_refused(drawn: Any) -> None:
    with pytest.raises(ValueError, match="drawn must be"):
        get_drawn(ConfigRecord({"drawn": drawn}), 1, range(1, 9), 3)
