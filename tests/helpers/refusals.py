"""Which value an error is about, in place of the words it uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from leakmeter.auditors.errors import BadValueError


@contextmanager
def refuses(name: str) -> Iterator[pytest.ExceptionInfo[BadValueError]]:
    """Pass if the block refuses the value of an argument or option of this name.

    What such an error says is tested once, in `tests/auditors/test_auditor.py`.
    """
    with pytest.raises(BadValueError) as caught:
        yield caught
    assert caught.value.name == name, str(caught.value)
