"""Walks a chain of nested strategies and asks what its wrappers know.

A `Wrapper` has declared members. Any other strategy is asked through `Foreign`, the only place
that reads a foreign strategy's attributes by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import Message
from flwr.serverapp.strategy import Strategy

from leakmeter.auditors.auditor import Project, RoundFacts
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.wrapper import Wrapper
from leakmeter.auditors.verdict.claim import Claim

# Flower's own wrappers all have one of these in their names; their noise is drawn inside them.
_FLOWERS_NOISE = ("DifferentialPrivacy", "DPFedAvg")
# The base of Flower's FedAdam, FedYogi and FedAdagrad.
_ADAPTIVE = "FedOpt"
# They keep or combine single updates by how near they are to the others.
_SELECTIVE = frozenset({"Krum", "MultiKrum", "Bulyan", "FedMedian", "FedTrimmedAvg"})


@dataclass(frozen=True)
class Foreign:
    """A strategy that is not ours, read by the names that Flower's strategies use.

    Each may be missing, or mean something else to its author: then it has a default.
    """

    strategy: Strategy

    @property
    def held(self) -> Any:
        """The strategy that it wraps, if any; of the legacy API if it is."""
        held = getattr(self.strategy, "strategy", None)
        # The legacy API is not imported here: a release may come without it.
        return held if isinstance(held, Strategy) or hasattr(held, "aggregate_fit") else None

    @property
    def weight_key(self) -> str | None:
        """The metric by which it weights clients, if any."""
        key = getattr(self.strategy, "weighted_by_key", None)
        return key if isinstance(key, str) else None

    @property
    def fraction_train(self) -> float:
        """Share of the nodes that it asks to train."""
        fraction: float = getattr(self.strategy, "fraction_train", 1.0)
        return fraction

    @property
    def least_nodes(self) -> Mapping[str, int]:
        """Nodes that it waits for, by the name of the setting."""
        names = ("min_train_nodes", "min_available_nodes")
        return {name: getattr(self.strategy, name, 0) for name in names}

    @property
    def kinds(self) -> frozenset[str]:
        """Names of the classes of Flower's that it is; no release has all of them."""
        bases = type(self.strategy).__mro__
        return frozenset(b.__name__ for b in bases if b.__module__.startswith("flwr."))

    @property
    def is_accounted(self) -> bool:
        """Whether Flower's own accountant prices its releases."""
        return getattr(self.strategy, "accountant", None) is not None

    @property
    def budget(self) -> tuple[float, float] | None:
        """The ε that this accountant allows the run, and its δ; None if it has no limit."""
        accountant = getattr(self.strategy, "accountant", None)
        config = getattr(accountant, "config", None)
        most, delta = (getattr(config, name, None) for name in ("max_epsilon", "target_delta"))
        return None if most is None or delta is None else (float(most), float(delta))

    def attributes(self, names: Iterable[str]) -> dict[str, Any]:
        """Return what it keeps under these names, all of which it must have."""
        return {name: getattr(self.strategy, name) for name in names}

    def set_attributes(self, values: Mapping[str, Any]) -> None:
        """Restore what `attributes` returned."""
        for name, value in values.items():
            setattr(self.strategy, name, value)


def chain(strategy: Strategy | None) -> Iterator[Strategy]:
    """Yield the strategy, the one inside it, and so on inwards; nothing for None."""
    current = strategy
    while current is not None:
        yield current
        current = current.strategy if isinstance(current, Wrapper) else Foreign(current).held


def wrappers(strategy: Strategy | None) -> Iterator[Wrapper]:
    """Yield our own strategies in the chain, from the outside in."""
    return (held for held in chain(strategy) if isinstance(held, Wrapper))


def foreigners(strategy: Strategy | None) -> Iterator[Foreign]:
    """Yield the other strategies in the chain, from the outside in."""
    return (Foreign(held) for held in chain(strategy) if not isinstance(held, Wrapper))


def client_of(strategy: Strategy | None) -> Mapping[int, int] | None:
    """Return node id to client index from the first wrapper that knows it; None if none does."""
    known = (wrapper.client_of for wrapper in wrappers(strategy))
    return next((found for found in known if found is not None), None)


def pattern(strategy: Strategy | None) -> Mapping[str, Any]:
    """Return how clients are drawn from the first wrapper that knows it; empty if none does."""
    known = (wrapper.pattern for wrapper in wrappers(strategy))
    return next((found for found in known if found is not None), {})


def weight_key(strategy: Strategy | None) -> str:
    """Return the metric by which the chain weights its clients."""
    known = (
        held.weight_key if isinstance(held, Wrapper) else Foreign(held).weight_key
        for held in chain(strategy)
    )
    return next((key for key in known if key is not None), wire.WEIGHT)


def unused(strategy: Strategy | None) -> set[int]:
    """Return the nodes whose replies of the last round some wrapper could not use."""
    return {node for wrapper in wrappers(strategy) for node in wrapper.unused}


def known_facts(strategy: Strategy | None) -> RoundFacts:
    """Return what all wrappers know of the last round; on one field the innermost decides."""
    known = RoundFacts()
    for wrapper in wrappers(strategy):
        known = wrapper.facts().over(known)
    return known


def survey(
    strategy: Strategy | None, dim: int, num_rounds: int, claims: tuple[Claim, ...] = ()
) -> Project:
    """Return what the chain of strategies shows before anybody is chosen, and what is claimed."""
    held = list(chain(strategy))
    names = [type(one).__name__ for one in held]
    return Project(
        dim=dim,
        num_rounds=num_rounds,
        is_masked=any(wrapper.hides_updates for wrapper in wrappers(strategy)),
        noised_by=tuple(n for n in names if any(word in n for word in _FLOWERS_NOISE)),
        bent_by=_of_kind(held, {_ADAPTIVE}),
        selected_by=_of_kind(held, _SELECTIVE),
        clipped_by=tuple(type(one).__name__ for one in wrappers(strategy) if one.clips_mean),
        claims=claims,
    )


def _of_kind(held: Iterable[Strategy], names: Collection[str]) -> tuple[str, ...]:
    """Return the names of those strategies that are, or inherit from, one of these classes."""
    return tuple(
        type(one).__name__
        for one in held
        if any(base.__name__ in names for base in type(one).__mro__)
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
