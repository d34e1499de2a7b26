"""Model, data and training: a network of one hidden layer in NumPy."""

import numpy as np

FEATURES, HIDDEN, CLASSES, RECORDS = 20, 16, 5, 80


def load_data(partition_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the records of a client; each class has its own centre."""
    centres = np.random.default_rng(0).normal(scale=0.5, size=(CLASSES, FEATURES))
    rng = np.random.default_rng([1, partition_id + 1])
    labels = rng.integers(CLASSES, size=RECORDS)
    return centres[labels] + rng.normal(size=(RECORDS, FEATURES)), labels


def create_model() -> dict[str, np.ndarray]:
    """Return the initial weights."""
    rng = np.random.default_rng(2)
    return {
        "w1": rng.normal(size=(FEATURES, HIDDEN)) / np.sqrt(FEATURES),
        "b1": np.zeros(HIDDEN),
        "w2": rng.normal(size=(HIDDEN, CLASSES)) / np.sqrt(HIDDEN),
        "b2": np.zeros(CLASSES),
    }


def predict(model: dict[str, np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the hidden layer and the probability of each class."""
    hidden = np.tanh(x @ model["w1"] + model["b1"])
    scores = hidden @ model["w2"] + model["b2"]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, scores / scores.sum(axis=1, keepdims=True)


def train(
    model: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray, lr: float, batch_size: int
) -> dict[str, np.ndarray]:
    """Return the model after one pass over the shuffled records."""
    model = {name: array.copy() for name, array in model.items()}
    for batch in np.array_split(np.random.permutation(len(y)), len(y) // batch_size):
        hidden, error = predict(model, x[batch])
        error[np.arange(len(batch)), y[batch]] -= 1
        error /= len(batch)
        back = (error @ model["w2"].T) * (1 - hidden**2)
        model["w2"] -= lr * hidden.T @ error
        model["b2"] -= lr * error.sum(axis=0)
        model["w1"] -= lr * x[batch].T @ back
        model["b1"] -= lr * back.sum(axis=0)
    return model


def accuracy(model: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> float:
    """Return the share of records that are told right."""
    return float((predict(model, x)[1].argmax(axis=1) == y).mean())
