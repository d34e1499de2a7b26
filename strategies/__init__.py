"""What runs on the server: choice of clients, secure sums, noise and its accounting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import alias, front_page

if TYPE_CHECKING:
    from leakmeter.strategies.accounting.dp_sgd import DpSgdAccountant as DpSgdAccountant
    from leakmeter.strategies.chosen import Chosen as Chosen
    from leakmeter.strategies.protection.mechanism import Central as Central
    from leakmeter.strategies.protection.mechanism import Distributed as Distributed
    from leakmeter.strategies.protection.mechanism import Local as Local
    from leakmeter.strategies.protection.noised import Clipped as Clipped
    from leakmeter.strategies.protection.noised import Noised as Noised
    from leakmeter.strategies.protection.record_noise import RecordNoise as RecordNoise
    from leakmeter.strategies.secure_sum.masked import Masked as Masked
    from leakmeter.strategies.secure_sum.topology import Risks as Risks
else:
    __all__, __getattr__ = front_page(__spec__)

alias(__name__)
