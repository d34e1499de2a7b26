"""Which records are planted, which client holds which, and whether a fair coin lets it in.

Nobody has the records before, and anyone may draw more: the decoys.

Carlini, Liu, Erlingsson, Kos, Song (2019), The Secret Sharer, arXiv:1802.08232, has secrets in a
fixed text; Aerni, Zhang, Tramèr (2024), arXiv:2404.17399, records with a random label.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Adjacency, Unit
from leakmeter.auditors.rng import derive, of_key, stream
from leakmeter.auditors.values import Record, require
from leakmeter.auditors.wording import Assumption

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
            parts = "a text with random parts such as {digits:9} or {letters:6}"
            raise BadValueError("template", parts, template)
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
                    raise BadValueError("path", "an .npz file with x and y", sorted(arrays))
                x, y = arrays["x"], arrays["y"]
            if len(x) != len(y):
                raise BadValueError("path", "a file with x and y equally long", (len(x), len(y)))
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


Out = Literal["stand-in", "nothing"]

# What the place of a canary that is out has: the two worlds, and what findings assume.
_WORLDS: Final[Mapping[Out, tuple[Adjacency, Assumption]]] = {
    "stand-in": ("replace", Assumption.STAND_IN),
    "nothing": ("add-remove", Assumption.PLACE_IS_EMPTY),
}


@dataclass(frozen=True)
class PlantPlan:
    """Who holds which canaries: a pure function of these values, the same wherever it is made.

    Records are numbered: canary i is record i, its stand-in is record `canaries` + i, and decoys
    are all after these.

    Attributes:
        canaries: How many records have a coin. Half of them are planted, on average.
        clients: Clients that hold them: the first ones, equally many each.
        copies: How often each planted record is in its client's data.
        rounds: Only the first so many rounds have canaries; None for all.
        out: What is in the place of a canary whose coin says out: a "stand-in", another record that
            is never scored, so that no coin changes how many records a client has (adjacency
            replace); or "nothing" (adjacency add-remove), for clients that train on Poisson samples
            with a fixed denominator.
        whole: Whether a client that holds canaries trains on nothing else, so that the unit is the
            client; there is one canary for each of them.
        seed: Of coins and records.

    >>> plan = PlantPlan(canaries=4, clients=2)
    >>> plan.planted(0), plan.planted(1), plan.planted(2)
    ([4, 2], [1, 7], [])
    """

    canaries: int = 200
    clients: int = 20
    copies: int = 1
    rounds: int | None = None
    out: Out = "stand-in"
    whole: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        require("at least 2", canaries=self.canaries)
        require(f"[1, {self.canaries}]", clients=self.clients)
        require("[1, 10000]", copies=self.copies)  # clients refuse more
        require("at least 1", is_optional=True, rounds=self.rounds)
        if self.out not in _WORLDS:
            raise BadValueError("out", "'stand-in' or 'nothing'", self.out)
        if self.whole and (self.clients < self.canaries or self.out != "stand-in"):
            needed = "False unless clients equals canaries and out is 'stand-in'"
            raise BadValueError("whole", needed, (self.clients, self.canaries, self.out))

    @cached_property
    def is_in(self) -> NDArray[np.bool_]:
        """What the coin of each canary says, (canaries,)."""
        coins = (stream(self.seed, "planted coin", i).random() for i in range(self.canaries))
        return np.array([coin < 0.5 for coin in coins])

    def held(self, client: int) -> range:
        """Return the canaries of a client, whatever their coins say."""
        is_holder = 0 <= client < self.clients
        return range(client, self.canaries, self.clients) if is_holder else range(0)

    def planted(self, client: int, server_round: int = 1) -> list[int]:
        """Return the numbers of the records that a client trains on in a round, each once."""
        if self.rounds is not None and server_round > self.rounds:
            return []
        own = [i if self.is_in[i] else self.canaries + i for i in self.held(client)]
        return own if self.out == "stand-in" else [i for i in own if i < self.canaries]

    def decoys(self, count: int) -> range:
        """Return the numbers of so many decoys."""
        return range(2 * self.canaries, 2 * self.canaries + count)

    @property
    def world(self) -> tuple[Adjacency, Assumption]:
        """How the two worlds of a canary differ, and what findings assume about it."""
        return _WORLDS[self.out]

    @property
    def unit(self) -> Unit:
        """Whose participation a bound is about."""
        if self.whole:
            return "client"
        return "record" if self.copies == 1 else "group"
