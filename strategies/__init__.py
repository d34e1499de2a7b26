"""What runs on the server: choice of clients, secure sums, noise and its accounting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import alias, lazy

if TYPE_CHECKING:
    from leakmeter.strategies.chosen import Chosen
    from leakmeter.strategies.clipped import Clipped
    from leakmeter.strategies.mechanism import (
        AdaptiveClip,
        Central,
        Distributed,
        FixedClip,
        Local,
    )
    from leakmeter.strategies.noise.noised import Noised
    from leakmeter.strategies.participation import (
        EachOnce,
        FixedSize,
        Participation,
        Poisson,
        ShuffledEpochs,
    )
    from leakmeter.strategies.secure_sum.masked import Masked
    from leakmeter.strategies.secure_sum.topology import Risks
    from leakmeter.strategies.water_filling.filled import Filled

_HOME = {
    "AdaptiveClip": "mechanism",
    "Central": "mechanism",
    "Chosen": "chosen",
    "Clipped": "clipped",
    "Distributed": "mechanism",
    "EachOnce": "participation",
    "Filled": "water_filling.filled",
    "FixedClip": "mechanism",
    "FixedSize": "participation",
    "Local": "mechanism",
    "Masked": "secure_sum.masked",
    "Noised": "noise.noised",
    "Participation": "participation",
    "Poisson": "participation",
    "ShuffledEpochs": "participation",
    "Risks": "secure_sum.topology",
}

__all__ = [
    "AdaptiveClip",
    "Central",
    "Chosen",
    "Clipped",
    "Distributed",
    "EachOnce",
    "Filled",
    "FixedClip",
    "FixedSize",
    "Local",
    "Masked",
    "Noised",
    "Participation",
    "Poisson",
    "Risks",
    "ShuffledEpochs",
]

__getattr__ = lazy(__name__, _HOME)
alias(__name__)
