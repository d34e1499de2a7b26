"""A synthetic task: balanced classes, each a unit Gaussian around its own random centre."""

from __future__ import annotations

import numpy as np

from leakmeter.auditors.rng import stream
from leakmeter.fl_app.config.errors import out_of_range
from leakmeter.fl_app.data.dataset import Dataset, Floats, Labels, Request


def load(request: Request) -> Dataset:
    """Return as many training records as asked for, and a quarter as many for testing."""
    task = request.task
    classes, features, examples = (
        task.synthetic_classes,
        task.synthetic_features,
        task.synthetic_examples,
    )
    if classes < 2:
        raise out_of_range("--synthetic-classes", "at least 2", classes)
    if features < 1:
        raise out_of_range("--synthetic-features", "at least 1", features)
    if examples < classes:
        allowed = f"at least {classes}, one per class"
        raise out_of_range("--synthetic-examples", allowed, examples)
    # Centres at distance about 3 from the origin overlap a little in any number of features.
    centres = stream(task.seed, "synthetic", "centres").normal(size=(classes, features))
    centres *= 3 / np.sqrt(features)

    def draw(part: str, count: int) -> tuple[Floats, Labels]:
        rng = stream(task.seed, "synthetic", part)
        y = rng.permutation(np.arange(count, dtype=np.int64) % classes)
        return (centres[y] + rng.normal(size=(count, features))).astype(np.float32), y

    train = draw("train", examples)
    test = draw("test", max(classes, examples // 4))
    return Dataset("synthetic", *train, *test, num_classes=classes)
