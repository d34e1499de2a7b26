"""Tables of numbers: ADULT, and a synthetic task.

1. ADULT: Becker and Kohavi (1996), UCI Machine Learning Repository. We keep the complete rows, as
   the 104-feature encoding in the literature does.
2. Synthetic: balanced classes, each a unit Gaussian around its own random centre; one list of
   records for all clients, or a population whose clients each generate their own when these are
   needed. However many clients there are, none takes room before it trains.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Indices
from leakmeter.fl_app.config.field import ConfigError, out_of_range
from leakmeter.fl_app.config.settings import TaskConfig
from leakmeter.fl_app.data.dataset import Dataset, Floats, Labels, Request, content, locate
from leakmeter.fl_app.data.partition import MAX_CONCENTRATION, label_counts

if TYPE_CHECKING:
    from leakmeter.clients.sampler import EqualParts

_NUMERIC = (0, 2, 4, 10, 11, 12)  # age, fnlwgt, education-num, gain, loss, hours
_CATEGORICAL = (1, 3, 5, 6, 7, 8, 9, 13)
_HOW = "Get them by hand from https://archive.ics.uci.edu/dataset/2/adult."


def load_adult(request: Request) -> Dataset:
    """Return the complete rows: 6 numbers scaled to [0, 1], then 98 one-hot levels."""
    paths = locate("adult", request, ["adult"], ["adult.data", "adult.test"], _HOW)
    train, train_y = _rows(paths[0], 30_162, 7_508)
    test, test_y = _rows(paths[1], 15_060, 3_700)
    # The test file lacks one country, so the training file alone sets levels and ranges.
    levels = [np.unique(train[:, column]) for column in _CATEGORICAL]
    low, high = (f(train[:, _NUMERIC].astype(float), axis=0) for f in (np.min, np.max))

    def encode(rows: NDArray[np.str_]) -> Floats:
        columns = zip(_CATEGORICAL, levels, strict=True)
        one_hot = [rows[:, [column]] == known for column, known in columns]
        if not all(hot.any(axis=1).all() for hot in one_hot):
            raise ConfigError(f"adult: {paths[1]} has a level that {paths[0]} lacks")
        numbers = (rows[:, _NUMERIC].astype(float) - low) / (high - low)
        return np.hstack([numbers, *one_hot]).astype(np.float32)

    train_x = encode(train)
    if train_x.shape[1] != 104:
        raise ConfigError(f"adult: {paths[0]} must give 104 features, got {train_x.shape[1]}")
    return Dataset("adult", train_x, train_y, encode(test), test_y, num_classes=2)


def _rows(path: Path, num_rows: int, num_positive: int) -> tuple[NDArray[np.str_], Labels]:
    """Return the complete rows, as text, and their labels, if they are as many as published."""
    lines = content(path).decode(errors="replace").splitlines()
    # Labels end in a full stop in the test file only; "?" stands for an unknown value.
    split = ([cell.strip() for cell in line.rstrip(" .").split(",")] for line in lines)
    rows = [row for row in split if len(row) == 15 and "?" not in row]
    complete = np.array([row for row in rows if all(row[i].isdecimal() for i in _NUMERIC)])
    positive = complete.reshape(-1, 15)[:, 14] == ">50K"
    if (got := (len(positive), int(positive.sum()))) != (num_rows, num_positive):
        raise ConfigError(
            f"adult: {path} must have {num_rows} complete rows, {num_positive} of them >50K, "
            f"got {got[0]} and {got[1]}: it is not the original file"
        )
    return complete, positive.astype(np.int64)


def load_synthetic(request: Request) -> Dataset:
    """Return as many training records as asked for, and a quarter as many for testing.

    With `synthetic_per_client` each client generates its own training records.
    """
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

    test = draw("test", max(classes, examples // 4))
    if not task.synthetic_per_client:
        return Dataset("synthetic", *draw("train", examples), *test, num_classes=classes)
    none = np.zeros((0, features), np.float32), np.zeros(0, np.int64)
    population = _population(task, centres.astype(np.float32))
    return Dataset("synthetic", *none, *test, num_classes=classes, population=population)


def _population(task: TaskConfig, centres: Floats) -> Population:
    """Return clients that generate their own records, with labels as the partition says."""
    if task.partition not in ("iid", "dirichlet"):
        allowed = "iid or dirichlet with --synthetic-per-client: each client draws its own labels"
        raise out_of_range("--partition", allowed, task.partition, fix="Try --partition dirichlet")
    concentration = None if task.partition == "iid" else task.dirichlet
    if concentration is not None and not 0 < concentration <= MAX_CONCENTRATION:
        raise out_of_range("--dirichlet", f"in (0, {MAX_CONCENTRATION:g}]", concentration)
    size = task.synthetic_per_client
    return Population(task.seed, task.clients, size, centres, concentration)


_MAX_RECORD = 2**62  # records have numbers below it, so that they fit in 64 bits


@dataclass(frozen=True)
class Population:
    """Clients with equally many records, each class a unit Gaussian around its centre.

    The records of client c have the numbers c·size to (c + 1)·size - 1. Clients beyond those of the
    run have numbers as well: audits draw them where they need other data of the same distribution.

    Attributes:
        seed: The run's seed.
        clients: Clients of the run.
        size: Records of each.
        centres: Of the classes, (classes, features).
        concentration: ω of the Dirichlet distribution of each client's label shares, whose mean is
            uniform; None draws every label uniformly by itself.
    """

    seed: int
    clients: int
    size: int
    centres: NDArray[np.float32]
    concentration: float | None = None

    @property
    def parts(self) -> EqualParts:
        """The records of each client of the run."""
        from leakmeter.clients.sampler import EqualParts  # imports torch

        return EqualParts(self.clients, self.size)

    def client(self, number: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return a client's inputs, (size, features), and their labels."""
        rng, classes = stream(self.seed, "synthetic", "client", number), len(self.centres)
        if self.concentration is None:
            labels = rng.integers(classes, size=self.size)
        else:
            weights = np.full(classes, self.concentration / classes)
            counts = label_counts(self.size, np.full(classes, self.size), weights, rng)
            labels = np.repeat(np.arange(classes), counts)
        spread = rng.standard_normal((self.size, self.centres.shape[1]), dtype=np.float32)
        return self.centres[labels] + spread, labels

    def rows(self, records: Indices) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return inputs and labels of records; generates the clients that these belong to."""
        owners, rows = np.divmod(records, self.size)
        known, place = np.unique(owners, return_inverse=True)
        made = [self.client(number) for number in known.tolist()]
        x, y = (np.stack(each) for each in zip(*made, strict=True))  # (clients, size, …)
        return x[place, rows], y[place, rows]

    def another(self, rng: np.random.Generator) -> Indices:
        """Return the records of a client that is none of the run's, of the same distribution."""
        number = int(rng.integers(self.clients, _MAX_RECORD // self.size))
        return np.arange(number * self.size, (number + 1) * self.size)
