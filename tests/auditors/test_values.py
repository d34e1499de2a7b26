"""Ranges: what is at their ends, what is no number, and what an error says."""

from __future__ import annotations

import math
import pickle
import re

import pytest

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.values import require
from leakmeter.fl_app.config.field import BadSettingError


@pytest.mark.parametrize(
    ("allowed", "inside", "outside"),
    [
        ("(0, 1]", (0.5, 1), (0, 1.5, math.nan, None)),
        ("[0, 1)", (0, 0.5), (-0.5, 1, math.nan)),
        ("(0, inf)", (1e-300, 1e300), (0.0, math.inf, -1.0)),
        ("[0, inf)", (0.0, 5), (math.inf, -math.inf)),
        ("at least 1", (1, 7, math.inf), (0, -3, math.nan)),
        (f"[0, {2}]", (0, 2), (3, -1)),
    ],
)
def test_a_range_says_what_is_in_it(
    allowed: str, inside: tuple[float, ...], outside: tuple[float | None, ...]
) -> None:
    for value in inside:
        require(allowed, size=value)
    words = allowed if allowed.startswith("at") else f"in {allowed}"
    for value in outside:
        said = re.escape(f"size must be {words}, got {value}")
        with pytest.raises(ValueError, match=f"^{said}$"):
            require(allowed, other=inside[0], size=value)


def test_none_is_no_value_only_where_it_may_be() -> None:
    require("at least 1", is_optional=True, chunk=None)
    with pytest.raises(ValueError, match="chunk must be at least 1, got None"):
        require("at least 1", chunk=None)
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        require("at least 1", is_optional=True, chunk=0)


@pytest.mark.parametrize("kind", [BadValueError, BadSettingError])
def test_a_refusal_has_four_parts_and_survives_another_process(kind: type[BadValueError]) -> None:
    error = kind("--rounds", "at least 1", 0, fix="Try --rounds 1")
    assert str(error) == "--rounds must be at least 1, got 0. Try --rounds 1."
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.name) == (kind, str(error), "--rounds")


def test_a_refusal_shows_no_more_than_a_line_holds() -> None:
    said = str(BadValueError("names", "short", ["x" * 1000] * 9, hint="; did you mean y?"))
    assert len(said) < 120
    assert said.endswith("; did you mean y?")
