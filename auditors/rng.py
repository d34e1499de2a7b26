"""Random streams named by a seed and a path, so that order and thread never matter."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import index
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

_WORD = (1 << 64) - 1


def stream(seed: int, *path: str | int) -> np.random.Generator:
    """Return the generator that belongs to `seed` and a path of names and numbers.

    Two different paths give independent streams and the same path gives the same stream again,
    whatever was drawn elsewhere. Philox is counter based: creating a stream is cheap.

    >>> bool(stream(1, "batches", 3, 7).random() == stream(1, "batches", 3, 7).random())
    True
    """
    return of_key(derive(seed, *path))


def of_key(key: int) -> np.random.Generator:
    """Return the generator of a key of 128 bits, the same as that of `Philox(key=key)`.

    It takes a third of the time: numpy would first ask the operating system for entropy, mix it and
    throw it away. Runs make such generators by the hundred thousand.
    """
    # numpy takes any ISeedSequence, its type hints only its own.
    return np.random.Generator(np.random.Philox(_Key(key)))  # type: ignore[arg-type]


class _Key(ISeedSequence):
    """Hands Philox the two words of its key as they are."""

    def __init__(self, key: int) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[Any]:
        assert n_words == 2
        return np.array((self._key & _WORD, self._key >> 64), dtype)


def derive(seed: int, *path: str | int) -> int:
    """Return a 128-bit number that names this path; for generators that are not numpy's."""
    # repr keeps 1 and "1", and ("a", "b") and ("ab",), apart; index makes numpy's integers plain,
    # which repr would not, and refuses floats.
    names = tuple(part if isinstance(part, str) else index(part) for part in path)
    digest = hashlib.sha256(repr((index(seed), names)).encode()).digest()
    return int.from_bytes(digest[:16], "little")


@contextmanager
def borrowed_generators(*path: str | int) -> Iterator[None]:
    """Seed the global generators for one use, and put them back as they were.

    They are those of `random`, numpy and, where it is loaded, torch. For people's code, which draws
    from them; ours has streams.

    Args:
        path: Two paths have different seeds. The generators' own next draws are mixed in: whoever
            knows the path alone cannot predict what is drawn, which may be noise.
    """
    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    kept = None if torch is None else torch.get_rng_state()
    gpus = [] if torch is None else list(_gpu_generators(torch))
    kept_gpus = [get() for get, _, _ in gpus]
    own = [random.getrandbits(128), int.from_bytes(np.random.bytes(16))]  # noqa: NPY002
    if torch is not None:
        own.append(int(torch.randint(2**62, (), device="cpu")))
    # One for each: Python and numpy have the same algorithm, and would draw the same numbers.
    first, second, third = (derive(0, "borrowed", name, *path, *own) for name in range(3))
    try:
        random.seed(first)
        np.random.seed([second >> shift & 0xFFFFFFFF for shift in range(0, 128, 32)])  # noqa: NPY002
        if torch is not None:
            torch.default_generator.manual_seed(third & _WORD >> 1)
        for _, seed, _ in gpus:
            seed(third & _WORD >> 1)
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(kept)
        for (_, _, put), state in zip(gpus, kept_gpus, strict=True):
            put(state)


def _gpu_generators(torch: Any) -> Iterator[tuple[Callable[..., Any], ...]]:
    """Yield, for each kind of GPU that may have been used, what gets, seeds and sets its state."""
    # Before somebody uses CUDA there is no generator of it, and asking would make one.
    if torch.cuda.is_initialized():
        yield torch.cuda.get_rng_state_all, torch.cuda.manual_seed_all, torch.cuda.set_rng_state_all
    if torch.backends.mps.is_available():
        yield torch.mps.get_rng_state, torch.mps.manual_seed, torch.mps.set_rng_state
