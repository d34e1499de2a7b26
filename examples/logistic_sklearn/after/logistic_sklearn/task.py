"""Model, data and training: plain scikit-learn."""

from functools import cache

import numpy as np
from flwr.app import Array, ArrayRecord
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

CLASSES = np.arange(10)


def create_model(learning_rate: float) -> SGDClassifier:
    """Return a logistic regression that takes one pass over shuffled data at a time."""
    model = SGDClassifier(
        loss="log_loss", penalty=None, learning_rate="constant", eta0=learning_rate
    )
    model.classes_ = CLASSES
    model.coef_ = np.zeros((10, 64))
    model.intercept_ = np.zeros(10)
    return model


def get_arrays(model: SGDClassifier) -> ArrayRecord:
    """Return the model as Flower sends it."""
    return ArrayRecord({"coef": Array(model.coef_), "intercept": Array(model.intercept_)})


def set_arrays(model: SGDClassifier, arrays: ArrayRecord) -> None:
    """Take a model that Flower has sent."""
    model.coef_ = arrays["coef"].numpy().copy()
    model.intercept_ = arrays["intercept"].numpy().copy()


@cache  # a process may serve many clients
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's handwritten digits."""
    return load_digits(return_X_y=True)


def load_data(partition_id: int, num_partitions: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a client's digits."""
    images, labels = digits()
    mine = slice(partition_id, None, num_partitions)
    return images[mine] / 16, labels[mine]
