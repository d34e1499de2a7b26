"""What runs on the server: choice of clients, secure sums, noise and its accounting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import alias, lazy

if TYPE_CHECKING:
    from leakmeter.strategies.chosen import Chosen
    from leakmeter.strategies.filled import Filled
    from leakmeter.strategies.grid import PatientGrid
    from leakmeter.strategies.masked import Masked
    from leakmeter.strategies.mechanism import AdaptiveClip, Central, Distributed, FixedClip, Local
    from leakmeter.strategies.noised import Noised
    from leakmeter.strategies.participation import (
        EachOnce,
        FixedSize,
        Participation,
        Poisson,
        ShuffledEpochs,
    )

_HOME = {
    "AdaptiveClip": "mechanism",
    "Central": "mechanism",
    "Chosen": "chosen",
    "Distributed": "mechanism",
    "EachOnce": "participation",
    "Filled": "filled",
    "FixedClip": "mechanism",
    "FixedSize": "participation",
    "Local": "mechanism",
    "Masked": "masked",
    "Noised": "noised",
    "Participation": "participation",
    "PatientGrid": "grid",
    "Poisson": "participation",
    "ShuffledEpochs": "participation",
}

__all__ = [
    "AdaptiveClip",
    "Central",
    "Chosen",
    "Distributed",
    "EachOnce",
    "Filled",
    "FixedClip",
    "FixedSize",
    "Local",
    "Masked",
    "Noised",
    "Participation",
    "PatientGrid",
    "Poisson",
    "ShuffledEpochs",
]

__getattr__ = lazy(__name__, _HOME)
alias(__name__)
