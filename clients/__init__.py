"""What runs on a client: update rules, and mods between them and the wire."""

from clients.mods import MaskMod, mask_mod
from clients.noising import NoiseMod, noise_mod
from clients.participant import Policy

__all__ = ["MaskMod", "NoiseMod", "Policy", "mask_mod", "noise_mod"]
