"""Where canary records come from. Nobody has them before, and anyone may draw more: the decoys.

Carlini, Liu, Erlingsson, Kos, Song (2019), The Secret Sharer, arXiv:1802.08232, has secrets in a
fixed text; Aerni, Zhang, Tramèr (2024), arXiv:2404.17399, records with a random label.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.rng import derive, of_key, stream
from leakmeter.auditors.values import Record, require

# Texts, or inputs and labels of several records, each in one array.
Batch = list[str] | tuple[NDArray[Any], NDArray[Any]]

_ALPHABETS: Final = {"digits": string.digits, "letters": string.ascii_lowercase}
_PLACE: Final = re.compile(r"\{(\w+):(\d+)\}")


class Generator:
    """Draws records: number `n` of a seed is always the same, and says nothing of the others.

    A generator of your own writes `record`, or `draw` if records depend on each other.

    Attributes:
        size: How many different numbers there are; None for any.
    """

    size: int | None = None

    def draw(self, seed: int, numbers: Sequence[int]) -> list[Record]:
        """Return the records of a seed with these numbers."""
        return [self.record(of_key(derive(seed, "planted", number))) for number in numbers]

    def record(self, rng: np.random.Generator) -> Record:
        """Return one record."""
        raise NotImplementedError


def batch(records: Sequence[Record]) -> Batch:
    """Return records as scores take them: texts, or all inputs and all labels."""
    texts = [one for one in records if isinstance(one, str)]
    if texts:
        return texts
    pairs = [one for one in records if not isinstance(one, str)]
    return np.stack([x for x, _ in pairs]), np.stack([y for _, y in pairs])


class Secrets(Generator):
    """A text with random parts, such as "my code is {digits:9}".

    Args:
        template: {digits:9} stands for nine random digits, {letters:6} for six small letters.

    >>> Secrets("my code is {digits:4}").draw(0, [0, 1])
    ['my code is 7899', 'my code is 8886']
    """

    def __init__(self, template: str) -> None:
        found = _PLACE.findall(template)
        wrong = [name for name, size in found if name not in _ALPHABETS or not int(size)]
        if not found or wrong:
            raise ValueError(
                "template must have random parts such as {digits:9} or {letters:6}, got "
                f"{template!r}"
            )
        self.template = template

    @property
    def prefix(self) -> str:
        """What comes before the first random part: what an attacker knows."""
        return _PLACE.split(self.template, maxsplit=1)[0]

    def record(self, rng: np.random.Generator) -> str:
        """Return the text with all parts filled."""

        def filled(place: re.Match[str]) -> str:
            alphabet = _ALPHABETS[place[1]]
            return "".join(alphabet[i] for i in rng.integers(len(alphabet), size=int(place[2])))

        return _PLACE.sub(filled, self.template)


class RandomLabel(Generator):
    """An input of a public pool with a random label.

    Args:
        inputs: The pool, which no client needs to have, (inputs, ...).
        classes: Labels are drawn from 0 to `classes` - 1.
    """

    def __init__(self, inputs: NDArray[Any], classes: int) -> None:
        require("at least 2", classes=classes)
        require("at least 1", inputs=len(inputs))
        self.inputs, self.classes = inputs, classes

    def record(self, rng: np.random.Generator) -> Record:
        """Return an input and its label."""
        return self.inputs[rng.integers(len(self.inputs))], np.asarray(rng.integers(self.classes))


class RandomPattern(Generator):
    """An input of independent uniform numbers with a random label.

    Args:
        shape: Of the input.
        classes: Labels are drawn from 0 to `classes` - 1.
        low: Smallest number of an input.
        high: Largest number.
    """

    def __init__(
        self, shape: Sequence[int], classes: int, *, low: float = 0.0, high: float = 1.0
    ) -> None:
        require("at least 2", classes=classes)
        require("[-1e+30, 1e+30]", low=low, high=high)
        self.shape, self.classes, self.low, self.high = tuple(shape), classes, low, high

    def record(self, rng: np.random.Generator) -> Record:
        """Return an input and its label."""
        unit = rng.random(self.shape, dtype=np.float32)
        x = np.float32(self.low) + np.float32(self.high - self.low) * unit
        return np.asarray(x), np.asarray(rng.integers(self.classes))


class FromFile(Generator):
    """Records of a file in a random order: the first are canaries, the others decoys.

    Args:
        path: Lines of text, or an .npz file with arrays `x` and `y`. No client may have trained on
            any of them.
    """

    def __init__(self, path: str | Path) -> None:
        file = Path(path).expanduser()
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                if not {"x", "y"} <= set(arrays):
                    raise ValueError(f"{file} must have arrays x and y, got {sorted(arrays)}")
                x, y = arrays["x"], arrays["y"]
            if len(x) != len(y):
                raise ValueError(f"x and y in {file} must be equally long, got {len(x)}, {len(y)}")
            self._records: list[Record] = [(a, np.asarray(b)) for a, b in zip(x, y, strict=True)]
        else:
            try:
                lines = file.read_text(encoding="utf-8").splitlines()
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"path must be an .npz file or lines of text in UTF-8, got {file}: {error}. "
                    "Save it as UTF-8"
                ) from None
            self._records = [*dict.fromkeys(lines)]
        self.size = len(self._records)

    def draw(self, seed: int, numbers: Sequence[int]) -> list[Record]:
        """Return the records at these places of the random order."""
        order = stream(seed, "planted", "file").permutation(len(self._records))
        return [self._records[order[number]] for number in numbers]
