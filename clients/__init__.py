"""What runs on a client: update rules, many clients at once, and mods between them and the wire.

Names are imported on first use, so that a mod can be had without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import alias, lazy

if TYPE_CHECKING:
    from leakmeter.clients.filling import FillMod, fill_mod
    from leakmeter.clients.mods import MaskMod, mask_mod
    from leakmeter.clients.noising import NoiseMod, noise_mod
    from leakmeter.clients.participant import Policy
    from leakmeter.clients.sampler import CohortSampler

_HOME = {
    "CohortSampler": "sampler",
    "FillMod": "filling",
    "MaskMod": "mods",
    "NoiseMod": "noising",
    "Policy": "participant",
    "fill_mod": "filling",
    "mask_mod": "mods",
    "noise_mod": "noising",
}

__all__ = [
    "CohortSampler",
    "FillMod",
    "MaskMod",
    "NoiseMod",
    "Policy",
    "fill_mod",
    "mask_mod",
    "noise_mod",
]

__getattr__ = lazy(__name__, _HOME)
alias(__name__)
