"""Exact privacy of two Gaussians: epsilon, delta, trade-off, noise; needs scipy only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import front_page

if TYPE_CHECKING:
    from leakmeter.auditors.gaussian.pair import anderson_darling as anderson_darling
    from leakmeter.auditors.gaussian.pair import (
        classical_sigma_unsafe_above_epsilon_1 as classical_sigma_unsafe_above_epsilon_1,
    )
    from leakmeter.auditors.gaussian.pair import delta_gaussian as delta_gaussian
    from leakmeter.auditors.gaussian.pair import (
        epsilon_between_gaussians as epsilon_between_gaussians,
    )
    from leakmeter.auditors.gaussian.pair import epsilon_gaussian as epsilon_gaussian
    from leakmeter.auditors.gaussian.pair import gaussian_sigma as gaussian_sigma
    from leakmeter.auditors.gaussian.pair import log_delta_gaussian as log_delta_gaussian
    from leakmeter.auditors.gaussian.pair import tradeoff_gaussian as tradeoff_gaussian
else:
    __all__, __getattr__ = front_page(__spec__)
