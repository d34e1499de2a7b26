"""What runs on a client: update rules, many clients at once, and mods between them and the wire.

Names are imported on first use, so that a mod can be had without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clients.filling import FillMod, fill_mod
    from clients.mods import MaskMod, mask_mod
    from clients.noising import NoiseMod, noise_mod
    from clients.participant import Policy
    from clients.sampler import CohortSampler

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


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"clients.{_HOME[name]}"), name)
