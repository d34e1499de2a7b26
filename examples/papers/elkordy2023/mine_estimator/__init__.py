"""The neural estimator of mutual information, held to samples that it has not seen.

Belghazi et al. 2018 (arXiv:1801.04062), as Elkordy et al. 2023 use it. Torch is loaded when critics
are trained, not before.
"""

from __future__ import annotations

from leakmeter.auditors.information.mine.estimator import NeuralEstimate, Spread, estimate
from leakmeter.auditors.information.mine.training import Training

__all__ = ["NeuralEstimate", "Spread", "Training", "estimate"]
