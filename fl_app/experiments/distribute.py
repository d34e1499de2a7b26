"""Lets experiments draw updates over Ray: the numbers are the same as in one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leakmeter.auditors.sampler import UpdateSampler
    from leakmeter.clients.sampling.sampler import CohortSampler


class _Ray:
    """Ray, started when the first sampler asks for it."""

    def __init__(self, address: str) -> None:
        self._address, self._is_ours = address, False

    def join(self) -> None:
        """Start or join it, unless this process has done so already."""
        from leakmeter.fl_app.engines import cluster

        self._is_ours |= cluster.join(cluster.address_of(self._address))

    def leave(self) -> None:
        """Leave the cluster, or end the local one, if `join` has started it."""
        if self._is_ours:
            from leakmeter.fl_app.engines import cluster

            cluster.leave()


# What draws the updates; None is this process.
_RAY: ContextVar[_Ray | None] = ContextVar("ray", default=None)


@contextmanager
def over_ray(address: str) -> Iterator[None]:
    """Distribute the work of the samplers that are made inside.

    Args:
        address: HOST:PORT of a cluster; empty for the one in RAY_ADDRESS, or else a local one.
    """
    engine = _Ray(address)
    token = _RAY.set(engine)
    try:
        yield
    finally:
        _RAY.reset(token)
        engine.leave()


def threads() -> int:
    """Return how many threads a sampler should train with."""
    # Ray's workers are as many as there are processors already.
    return 1 if _RAY.get() else min(os.cpu_count() or 1, 8)


def distributed(sampler: CohortSampler) -> UpdateSampler:
    """Return the sampler, or inside `over_ray` one whose work Ray distributes."""
    engine = _RAY.get()
    if engine is None:
        return sampler
    from leakmeter.fl_app.engines.ray_sampler import RaySampler

    engine.join()
    return RaySampler(sampler)
