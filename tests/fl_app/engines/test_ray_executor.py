"""Samplers of a run's own task, and Ray's workers that may change no number."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from leakmeter.auditors.sampling.sampler import Moments
from leakmeter.clients.sampler import CohortSampler, in_process
from leakmeter.fl_app.build.audit import AuditRun, sampler_for
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.engines import cluster
from leakmeter.fl_app.engines.cluster import RayExecutor
from leakmeter.fl_app.task import load_task, update_rule
from tests.helpers.refusals import refuses

DIM = 210
GAMES = ["rerun", "partition", "independent", "independent-held-out"]


def made(config: Config, game: str, **options: Any) -> CohortSampler:
    return sampler_for(load_task(config), config.task, update_rule(config), game, **options)


def start(config: Config) -> np.ndarray:
    return parameters_to_vector(load_task(config).initial.parameters()).detach().numpy()


def test_reruns_use_the_runs_own_partition(tiny_config: Config) -> None:
    of, task = made(tiny_config, "rerun"), load_task(tiny_config)
    for client in range(6):
        held = of.held(client, ("any",), [0])
        np.testing.assert_array_equal(held, task.parts[client])
    assert of.scale == 20.0  # 120 records for six
    assert made(tiny_config, "rerun", weighted=False).scale == 1.0


@pytest.mark.parametrize("game", ["partition", "independent"])
@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "dirichlet-labels"])
def test_data_are_drawn_anew_by_the_runs_own_scheme(tiny_config, game, scheme) -> None:
    of = made(replace(tiny_config, partition=scheme, dirichlet=5.0), game)
    assert (of.game, of.scale) == (game, 20.0)
    sizes = [len(of.held(2, ("any",), [draw])) for draw in range(50)]
    assert np.mean(sizes) == pytest.approx(20, abs=3)
    assert (len(set(sizes)) == 1) == (scheme != "dirichlet-labels")
    labels = load_task(tiny_config).dataset.train_y
    held = {tuple(np.bincount(labels[of.held(2, ("any",), [draw])])) for draw in range(20)}
    assert len(held) > 10  # the label shares are drawn again too


def test_persons_cannot_be_dealt_anew(tiny_config: Config) -> None:
    config = replace(tiny_config, partition="natural")
    task = load_task(tiny_config)
    rule = update_rule(config)
    with refuses("--partition"):
        sampler_for(task, config.task, rule, "partition")
    assert sampler_for(task, config.task, rule, "rerun").game == "rerun"


def test_updates_are_clipped_as_the_runs_clients_clip_them(tiny_config: Config) -> None:
    noisy = replace(tiny_config, noise="central", clip_norm=0.1)

    def clip_norm(config: Config, norm: float | None = None) -> float | None:
        return AuditRun(config).sampler_of("rerun", view_of(norm))._clip_norm

    assert clip_norm(tiny_config) is None
    assert clip_norm(noisy) == 0.1
    assert clip_norm(noisy, 0.3) == 0.3


def view_of(clip_norm: float | None = None) -> Any:
    """Return a round of which nothing is known but its clip norm."""
    return SimpleNamespace(facts=SimpleNamespace(clip_norm=clip_norm))


# Ray.


class DiedError(Exception):
    """As Ray's, where a worker has died."""


class LostError(Exception):
    """As Ray's, where a result was on a node that has died."""


class StandIn(SimpleNamespace):
    """What of Ray the sampler uses, at once and in this process; values go through pickle."""

    def __init__(self) -> None:
        super().__init__(running=False, started=[], stopped=0, under_way=0, most=0)
        self.exceptions = SimpleNamespace(RayActorError=DiedError, ObjectLostError=LostError)
        self.death: type[Exception] = DiedError
        self.put_away, self.deaths = 0, 0  # values put; pieces whose worker dies next

    def is_initialized(self) -> bool:
        return self.running

    def init(self, **options: Any) -> None:
        self.running = True
        self.started.append(options)

    def shutdown(self) -> None:
        self.running = False
        self.stopped += 1

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "NodeID": "one", "Resources": {"CPU": 3.0}}]

    def put(self, value: Any) -> bytes:
        self.put_away += 1
        return pickle.dumps(value)

    def remote(self, **_: Any) -> Any:
        def opened(value: Any) -> Any:
            return pickle.loads(value) if isinstance(value, bytes) else value

        def submitting(work: Any) -> Any:
            def submit(*given: Any) -> bytes:
                self.under_way += 1
                self.most = max(self.most, self.under_way)
                return pickle.dumps(work(*map(opened, given)))

            return SimpleNamespace(remote=submit)

        def wrapped(kind: Any) -> Any:
            def start(*given: Any) -> Any:
                worker = kind(*map(opened, given))
                return SimpleNamespace(rows=submitting(worker.rows))

            actor = SimpleNamespace(remote=start)
            actor.options = lambda **_: actor
            return actor

        return wrapped

    def get(self, value: bytes) -> Any:
        self.under_way -= 1
        if self.deaths:
            self.deaths -= 1
            raise self.death("the node has died")
        return pickle.loads(value)

    def cancel(self, _: bytes) -> None:
        self.under_way -= 1


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    ray = StandIn()
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    return ray


def everything(of: Any, model: np.ndarray) -> Iterator[np.ndarray]:
    """Yield all kinds of numbers that a sampler gives."""
    clients, matrix = [0, 2, 5], np.ones((DIM, 2))
    yield np.concatenate(list(of.sample(model, clients, 7, ("a",))))
    yield np.concatenate(list(of.sample(model, clients, 7, ("a",), project=matrix)))
    yield np.concatenate(list(of.sums(model, clients, 7, ("a",))))
    rest = of.excluding_drawn(1, ("a",), [0, 3])
    yield np.concatenate(list(rest.sums(model, clients, 7, ("b",))))
    found: list[Moments] = [
        of.moments(model, clients, 20, ("c",)),
        rest.moments(model, clients, 20, ("c",)),
        *of.moments_each(np.stack([model, -model]), clients, 12, ("d",)),
    ]
    for moments in found:
        yield from (np.array(moments.count), moments.mean, moments.scatter)


@pytest.mark.parametrize(
    ("game", "chunk"), [*zip([*GAMES, "generated"], [8, DIM, DIM, 8, 8], strict=True)]
)
def test_work_that_was_sent_away_comes_back_bit_by_bit(game, chunk, tiny_config, stand_in) -> None:
    if game == "generated":
        game, tiny_config = "independent", replace(tiny_config, synthetic_per_client=20)
    of = made(tiny_config, game, chunk=chunk)
    model = start(tiny_config)
    spread = of.through(RayExecutor(of.data))
    assert (spread.game, spread.scale) == (game, of.scale)
    np.testing.assert_array_equal(spread.free, of.free)
    assert spread.seconds(model, 0) is None  # other machines may be faster
    pairs = zip(everything(of, model), everything(spread, model), strict=True)
    for one, other in pairs:
        np.testing.assert_array_equal(one, other)
    assert stand_in.most <= 3
    assert stand_in.under_way == 0


def test_a_call_that_is_broken_off_leaves_nothing_under_way(tiny_config, stand_in) -> None:
    of = made(tiny_config, "rerun", chunk=1)
    spread = of.through(RayExecutor(of.data))
    chunks = spread.sample(start(tiny_config), [0], 9, ("a",))
    next(chunks)
    assert stand_in.under_way == 2  # of three workers, one is done
    chunks.close()
    assert stand_in.under_way == 0


@pytest.mark.parametrize("death", [DiedError, LostError])
def test_a_piece_lost_with_its_worker_is_drawn_again(tiny_config, stand_in, death) -> None:
    stand_in.death = death
    of, model = made(tiny_config, "partition", chunk=8), start(tiny_config)
    ray = RayExecutor(of.data)
    spread, before = of.through(ray), list(ray._workers)
    stand_in.deaths = 1
    for one, other in zip(everything(of, model), everything(spread, model), strict=True):
        np.testing.assert_array_equal(one, other)
    assert ray._workers[0] is not before[0]
    assert ray._workers[1] is before[1]


# A piece that takes every worker with it, and a Ray that was ended: that is no auditor's failure.
@pytest.mark.parametrize(
    ("running", "deaths", "error"), [(True, 4, DiedError), (False, 1, SystemExit)]
)
def test_a_piece_that_nobody_can_do_is_given_up(
    running, deaths, error, tiny_config, stand_in
) -> None:
    of = made(tiny_config, "rerun")
    spread = of.through(RayExecutor(of.data))
    stand_in.running, stand_in.deaths = running, deaths
    with pytest.raises(error):
        list(spread.sample(start(tiny_config), [0], 1, ("a",)))
    assert stand_in.deaths == 0


def test_rounds_are_sampled_where_ray_runs_and_the_data_travel_once(tiny_config, stand_in) -> None:
    sampler_of = AuditRun(replace(tiny_config, engine="ray")).sampler("rerun")
    here = sampler_of(view_of())
    assert here._cohort._threads == min(os.cpu_count() or 1, 4)
    assert here._executor is in_process
    stand_in.init()
    first = sampler_of(view_of())
    assert isinstance(first._executor, RayExecutor)
    assert first._cohort._threads == 1
    put = stand_in.put_away
    assert sampler_of(view_of())._executor is first._executor
    assert stand_in.put_away == put


@pytest.mark.launch
@pytest.mark.parametrize("workers", [1, 2])
def test_rays_own_workers_give_the_same_numbers(workers: int, tiny_config: Config) -> None:
    torch.set_num_threads(1)
    model = start(tiny_config)
    of = made(tiny_config, "partition", chunk=12)
    cluster.join("local", workers=workers)
    try:
        spread = of.through(cluster.RayExecutor(of.data))
        for one, other in zip(everything(of, model), everything(spread, model), strict=True):
            np.testing.assert_array_equal(one, other)
    finally:
        cluster.leave()
