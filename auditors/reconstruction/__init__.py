"""Reconstruction of training images from gradients, and its audit on the rounds of a run.

The attack is in `attack`, the audit of a run in `inversion`, its pictures in `picture`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import front_page

if TYPE_CHECKING:
    from leakmeter.auditors.reconstruction.attack import Attack as Attack
    from leakmeter.auditors.reconstruction.attack import Reconstruction as Reconstruction
    from leakmeter.auditors.reconstruction.attack import infer_labels as infer_labels
    from leakmeter.auditors.reconstruction.attack import invert as invert
    from leakmeter.auditors.reconstruction.attack import psnr as psnr
else:
    __all__, __getattr__ = front_page(__spec__)
