"""Water filling on a client: the update rule, its noise, and what `fill_mod` checks.

Below them `gradient_matrix`, `per_example` and `convolution` (gradients of single examples) and
`matrix_function`. Names are imported on first use, so that the mod can be had without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import lazy

if TYPE_CHECKING:
    from leakmeter.clients.water_filling.fill_mod import filled_record
    from leakmeter.clients.water_filling.gaussian_sampling import GaussianSampling
    from leakmeter.clients.water_filling.water_filling import WaterFilling

_HOME = {
    "GaussianSampling": "gaussian_sampling",
    "WaterFilling": "water_filling",
    "filled_record": "fill_mod",
}

__all__ = ["GaussianSampling", "WaterFilling", "filled_record"]

__getattr__ = lazy(__name__, _HOME)
