"""What runs on the server: choice of clients, secure sums, noise and its accounting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import alias, front_page

if TYPE_CHECKING:
    from leakmeter.strategies.chosen import Chosen as Chosen
    from leakmeter.strategies.chosen import EachOnce as EachOnce
    from leakmeter.strategies.chosen import FixedSize as FixedSize
    from leakmeter.strategies.chosen import Participation as Participation
    from leakmeter.strategies.chosen import Poisson as Poisson
    from leakmeter.strategies.chosen import ShuffledEpochs as ShuffledEpochs
    from leakmeter.strategies.protection.client_noise import Central as Central
    from leakmeter.strategies.protection.client_noise import Distributed as Distributed
    from leakmeter.strategies.protection.client_noise import Local as Local
    from leakmeter.strategies.protection.clipped import Clipped as Clipped
    from leakmeter.strategies.protection.mechanism import AdaptiveClip as AdaptiveClip
    from leakmeter.strategies.protection.mechanism import FixedClip as FixedClip
    from leakmeter.strategies.protection.mechanism import Mechanism as Mechanism
    from leakmeter.strategies.protection.noised import Noised as Noised
    from leakmeter.strategies.protection.record_noise import RecordNoise as RecordNoise
    from leakmeter.strategies.secure_sum.masked import Masked as Masked
    from leakmeter.strategies.secure_sum.topology import Risks as Risks
else:
    __all__, __getattr__ = front_page(__spec__)

alias(__name__)
