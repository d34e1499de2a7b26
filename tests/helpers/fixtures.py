"""Short names for what pytest hands to a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Call = Callable[..., str]  # `call` of the command line's tests
Printed = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
