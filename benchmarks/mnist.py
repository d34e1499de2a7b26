"""The first digits of MNIST, as several benchmarks take them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from leakmeter.fl_app.data.dataset import load

SHAPE = (1, 28, 28)


def digits(count: int) -> tuple[Tensor, Tensor]:
    """Return images and labels, from the folder that LEAKMETER_DATA names."""
    data = load("mnist")
    x = torch.from_numpy(np.array(data.train_x[:count], dtype=np.float32)).reshape(-1, *SHAPE)
    return x, torch.from_numpy(np.array(data.train_y[:count], dtype=np.int64))
