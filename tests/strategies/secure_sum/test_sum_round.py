"""What the strategy inside a secure sum reads from the replies that share its mean."""

from __future__ import annotations

import numpy as np
from flwr.app import Array

from leakmeter.strategies.secure_sum.sum_round import _Shared


def test_a_strategy_that_changes_what_it_reads_changes_no_other_reply() -> None:
    numbers = np.arange(6.0).reshape(2, 3)
    usual = Array(numbers)
    shared = _Shared(usual.dtype, usual.shape, usual.stype, usual.data)
    first = shared.numpy()
    first += 1
    assert np.array_equal(shared.numpy(), numbers)
    assert np.array_equal(usual.numpy(), numbers)
