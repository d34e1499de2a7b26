"""What runs on a client: update rules, many clients at once, and mods.

Names are imported on first use, so that a mod can be had without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import alias, lazy

if TYPE_CHECKING:
    from leakmeter.clients.noise.noise_mod import NoiseMod, noise_mod
    from leakmeter.clients.sampling.sampler import CohortSampler
    from leakmeter.clients.secure_sum.mask_mod import MaskMod, mask_mod
    from leakmeter.clients.water_filling.fill_mod import FillMod, fill_mod

_HOME = {
    "CohortSampler": "sampling.sampler",
    "FillMod": "water_filling.fill_mod",
    "MaskMod": "secure_sum.mask_mod",
    "NoiseMod": "noise.noise_mod",
    "fill_mod": "water_filling.fill_mod",
    "mask_mod": "secure_sum.mask_mod",
    "noise_mod": "noise.noise_mod",
}

__all__ = [
    "CohortSampler",
    "FillMod",
    "MaskMod",
    "NoiseMod",
    "fill_mod",
    "mask_mod",
    "noise_mod",
]

__getattr__ = lazy(__name__, _HOME)
alias(__name__)
