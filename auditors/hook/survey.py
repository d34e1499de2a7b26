"""Looks over a project before its first training, for what auditors must know of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flwr.app import Message
from flwr.serverapp.strategy import Strategy

from leakmeter.auditors.auditor import Project
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.chain import chain

# Flower's own wrappers all have this in their names; their noise is drawn inside them.
_FLOWERS_NOISE = "DifferentialPrivacy"
# The base of Flower's FedAdam, FedYogi and FedAdagrad.
_ADAPTIVE = "FedOpt"


def survey(strategy: Strategy, dim: int, num_rounds: int) -> Project:
    """Return what the chain of strategies shows before anybody is chosen."""
    held = list(chain(strategy))
    return Project(
        dim=dim,
        num_rounds=num_rounds,
        is_masked=any(getattr(one, "hides_updates", False) for one in held),
        noised_by=tuple(n for one in held if _FLOWERS_NOISE in (n := type(one).__name__)),
        bent_by=tuple(
            type(one).__name__
            for one in held
            if any(base.__name__ == _ADAPTIVE for base in type(one).__mro__)
        ),
    )


def with_round(project: Project, messages: Sequence[Message], seats: int) -> Project:
    """Return the project with what the messages of its first round show."""
    masked = any(wire.MASK in m.content for m in messages)
    return replace(
        project,
        clients=len(messages),
        seats=seats,
        is_masked=project.is_masked or masked,
        has_client_noise=any(wire.share_std(m.content) > 0 for m in messages),
    )
