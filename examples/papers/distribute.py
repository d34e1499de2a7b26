"""Lets experiments draw updates over Ray: the numbers are the same as in one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leakmeter.auditors.sampling.sampler import UpdateSampler
    from leakmeter.clients.sampler import CohortSampler

# Ray's address, and what to do when it is left; None where this process draws the updates.
_RAY: ContextVar[tuple[str, ExitStack] | None] = ContextVar("ray", default=None)


@contextmanager
def over_ray(address: str) -> Iterator[None]:
    """Distribute the work of the samplers that are made inside.

    Args:
        address: HOST:PORT of a cluster; empty for the one in RAY_ADDRESS, or else a local one.
    """
    with ExitStack() as leaving:
        leaving.callback(_RAY.reset, _RAY.set((address, leaving)))
        yield


def threads() -> int:
    """Return how many threads a sampler should train with."""
    # Ray's workers are as many as there are processors already.
    return 1 if _RAY.get() else min(os.cpu_count() or 1, 8)


def distributed(sampler: CohortSampler) -> UpdateSampler:
    """Return the sampler, or inside `over_ray` one whose work Ray distributes."""
    if (ray := _RAY.get()) is None:
        return sampler
    from leakmeter.fl_app.engines import cluster

    address, leaving = ray
    if cluster.join(cluster.address_of(address)):  # not where this process had joined before
        leaving.callback(cluster.leave)
    return sampler.through(cluster.RayExecutor(sampler.data))
