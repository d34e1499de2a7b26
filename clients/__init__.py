"""What runs on a client: update rules, many clients at once, and mods.

Names are imported on first use, so that a mod can be had without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import alias, front_page

if TYPE_CHECKING:
    from leakmeter.clients.protection.noise_mod import NoiseMod as NoiseMod
    from leakmeter.clients.protection.noise_mod import noise_mod as noise_mod
    from leakmeter.clients.secure_sum.mask_mod import MaskMod as MaskMod
    from leakmeter.clients.secure_sum.mask_mod import mask_mod as mask_mod
else:
    __all__, __getattr__ = front_page(__spec__)

alias(__name__)
