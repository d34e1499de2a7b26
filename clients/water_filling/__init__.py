"""Water filling on a client: the update rule, its noise, and what `fill_mod` checks.

Below them `gradient_matrix`, `per_example` and `convolution` (gradients of single examples) and
`matrix_function`. Names are imported on first use, so that the mod can be had without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import front_page

if TYPE_CHECKING:
    from leakmeter.clients.water_filling.fill_mod import filled_record as filled_record
    from leakmeter.clients.water_filling.gaussian_sampling import (
        GaussianSampling as GaussianSampling,
    )
    from leakmeter.clients.water_filling.water_filling import WaterFilling as WaterFilling

__all__, __getattr__ = front_page(__spec__)
