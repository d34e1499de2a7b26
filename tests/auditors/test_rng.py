"""Streams depend on seed and path, and on nothing else."""

from __future__ import annotations

import pickle
import random
import sys
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from leakmeter.auditors.rng import borrowed_generators, derive, of_key, stream

PATH = st.lists(st.one_of(st.text(max_size=5), st.integers(0, 10**6)), max_size=4)


@given(st.integers(0, 2**63), PATH)
def test_the_same_path_gives_the_same_stream(seed: int, path: list[str | int]) -> None:
    assert stream(seed, *path).random() == stream(seed, *path).random()


@given(st.integers(0, 3), st.integers(0, 3), PATH, PATH)
def test_different_names_give_different_streams(
    seed: int, other_seed: int, path: list[str | int], other_path: list[str | int]
) -> None:
    same = (seed, path) == (other_seed, other_path)
    assert (derive(seed, *path) == derive(other_seed, *other_path)) is same


def test_names_that_look_alike_are_kept_apart() -> None:
    alike: list[tuple[str | int, ...]] = [(1,), ("1",), (12,), (1, 2), ()]
    alike += [("a", "b"), ("ab",), ("a,b",), ("a', 'b",)]
    assert len({derive(0, *path) for path in alike}) == len(alike)
    assert derive(1, 2) != derive(2, 1)


def test_numpy_integers_name_the_same_stream_as_plain_ones_and_floats_none() -> None:
    for kind in (np.int32, np.int64, np.uint8):
        assert derive(kind(3), "x", kind(7)) == derive(3, "x", 7)
    with pytest.raises(TypeError):
        derive(0, 2.5)  # type: ignore[arg-type]  # it would be rounded


def test_streams_of_neighbouring_paths_are_uniform_and_uncorrelated() -> None:
    # First draws of 5,000 neighbouring paths; chance of failure by bad luck 2e-4 (fixed seed).
    first = np.array([stream(0, "round", i).random() for i in range(5000)])
    assert kstest(first, "uniform").pvalue > 1e-4
    lagged = np.corrcoef(first[:-1], first[1:])[0, 1]
    assert abs(lagged) < 3.9 / np.sqrt(5000)


def test_a_stream_is_the_same_on_every_machine_and_in_every_release() -> None:
    # Golden: other values here mean that old runs cannot be repeated.
    assert derive(1, "batches", 3) == 132629375305417663443060961991459833241
    assert stream(1, "batches", 3).random() == 0.4009742847700961


@given(st.one_of(st.integers(0, 2**128 - 1), st.sampled_from([0, 2**64 - 1, 2**64, 2**128 - 1])))
def test_the_generator_of_a_key_is_that_of_numpy(key: int) -> None:
    ours, theirs = of_key(key), np.random.Generator(np.random.Philox(key=key))
    assert repr(ours.bit_generator.state) == repr(theirs.bit_generator.state)
    again = pickle.loads(pickle.dumps(ours))
    assert ours.random() == theirs.random() == again.random()


def test_a_stream_has_no_children() -> None:
    # Its key is all it has: children would be the same in all streams, or differ between runs.
    with pytest.raises(TypeError, match="spawning"):
        stream(0, "a").spawn(1)


def drawn() -> tuple[float, float, float]:
    """Return a number of each global generator."""
    return random.random(), np.random.random(), float(torch.rand(()))  # noqa: NPY002


def borrowed(*path: str | int) -> tuple[float, float, float]:
    with borrowed_generators(*path):
        return drawn()


@pytest.mark.usefixtures("flower_draws")
def test_borrowed_generators_are_put_back_also_after_an_exception() -> None:
    torch.manual_seed(3)
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    expected = drawn()
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])
    with pytest.raises(ZeroDivisionError), borrowed_generators("a", 1):
        _ = drawn()[0] / 0
    assert drawn() == expected


@pytest.mark.usefixtures("flower_draws")
def test_borrowed_generators_differ_by_their_path_and_by_what_they_were_before() -> None:
    first, again, other = borrowed("a", 1), borrowed("a", 1), borrowed("a", 2)
    assert first == again
    assert len({*first, *other}) == 6  # and no two of them are the same generator
    random.random()  # a secret of whoever draws: the path alone predicts nothing
    assert not set(first) & set(borrowed("a", 1))


@pytest.mark.usefixtures("flower_draws")
def test_generators_of_a_torch_that_nobody_has_loaded_stay_unloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    with borrowed_generators("a"):
        pass
    assert "torch" not in sys.modules


@pytest.mark.usefixtures("flower_draws")
def test_generators_of_gpus_are_borrowed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {"cuda": [1, 2], "mps": 3}
    seeds: dict[str, set[int]] = {"cuda": set(), "mps": set()}

    def seeded(name: str, number: int) -> None:
        states[name] = number
        seeds[name].add(number)

    for name, ending in (("cuda", "_all"), ("mps", "")):
        module = getattr(torch, name)
        monkeypatch.setattr(module, f"get_rng_state{ending}", partial(states.get, name))
        monkeypatch.setattr(module, f"set_rng_state{ending}", partial(states.__setitem__, name))
        monkeypatch.setattr(module, f"manual_seed{ending}", partial(seeded, name))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    for turn in range(2):
        with borrowed_generators("a", turn):
            assert states["cuda"] in seeds["cuda"]
        assert states == {"cuda": [1, 2], "mps": 3}
    assert len(seeds["cuda"]) == len(seeds["mps"]) == 2
