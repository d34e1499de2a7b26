"""Reconstruction of training images from gradients, and its audit on the rounds of a run.

The attack is in `attack`, the audit of a run in `inversion`, its pictures in `picture`.
"""

from __future__ import annotations

from leakmeter.auditors.reconstruction.attack import (
    Attack,
    Reconstruction,
    infer_labels,
    invert,
    psnr,
)

__all__ = ["Attack", "Reconstruction", "infer_labels", "invert", "psnr"]
