"""Strategies around a strategy: what a wrapper may know about a run, and how a chain is asked.

A `Wrapper` has declared members. Any other strategy is asked through `Foreign`, the only place
that reads a foreign strategy's attributes by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from leakmeter.auditors.auditor import Project, RoundFacts
from leakmeter.auditors.codec import Resumable
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.hook import wire
from leakmeter.auditors.verdict.claim import Claim

Link = TypeVar("Link", bound=Strategy)


@dataclass(frozen=True)
class SumOpening:
    """A secure sum for which the server is about to ask for shares of masks.

    Attributes:
        asked: Nodes that were asked to train.
        uploaded: Those among them whose updates are in the sum.
        outcome: How the updates were rounded, and how many clients may collude.
    """

    asked: tuple[int, ...]
    uploaded: tuple[int, ...]
    outcome: wire.SumOutcome


class Wrapper(Resumable, Strategy):
    """Passes every call on to `strategy`; subclasses override the calls that they change.

    It is an ordinary strategy: Flower's own loop runs it, and nothing of the strategy inside is
    touched. If that one overrides `start`, its loop runs with this wrapper's methods in place of
    its own, for as long as it runs. Therefore inner calls use `_inner_...`, saved before anything
    is replaced, never `strategy`.

    What a wrapper may know about a run has members here, whose defaults mean "not known". To ask a
    whole chain of strategies, use the functions below. What a wrapper has to remember between
    rounds is annotated with `Kept`; its state does not contain the inner strategy's.

    Attributes:
        strategy: The strategy inside.
        hides_updates: Whether the server never sees single updates. Auditors do not replay such
            rounds: that would unmask clients.
        gets_sums: Whether replies come from a secure sum around this wrapper, which sets this when
            it is created. A reply alone cannot show it: a client may write anything into one.
        clips_mean: Whether it clips the mean update. Then an outsider sees another sum than the
            server, and not one that is linear in the updates.
        fixed_weight: The weight that every client must have here; None for any.
        needs_exact_sums: Whether a secure sum passes its mean on in float64. Rounded to the model's
            type before noise, it may move by more than the sensitivity.
        before_release: Called when a wrapper has noted a charge, before anything that it covers can
            be released. The keeper of the charges sets it, so that they survive the process.
        ended: Why the run has ended before its last round; None if it has not.
        unused: Nodes whose replies of the last round could not be used, so they are not in the
            mean.
    """

    hides_updates: bool = False
    gets_sums: bool = False
    clips_mean: bool = False
    fixed_weight: float | None = None
    needs_exact_sums: bool = False
    before_release: Callable[[], None] | None = None
    ended: str | None = None
    unused: frozenset[int] = frozenset()

    def __init__(self, strategy: Strategy) -> None:
        # By its methods: whoever copies Flower's interface without inheriting from it is welcome.
        methods = ("start", "configure_train", "aggregate_train")
        if isinstance(strategy, type) or not all(hasattr(strategy, name) for name in methods):
            raise TypeError(
                f"strategy must be a Flower strategy, got {strategy!r}; for example "
                f"{type(self).__name__}(FedAvg(), ...)"
            )
        self.strategy = strategy
        self._inner_configure_train = strategy.configure_train
        self._inner_aggregate_train = strategy.aggregate_train
        self._inner_configure_evaluate = strategy.configure_evaluate
        self._inner_aggregate_evaluate = strategy.aggregate_evaluate

    @property
    def client_of(self) -> Mapping[int, int] | None:
        """Node id to client index; None if not known here."""
        return None

    @property
    def pattern(self) -> Mapping[str, Any] | None:
        """How clients are drawn, as fields of the accountant's `Release`; None if not known."""
        return None

    @property
    def weight_key(self) -> str | None:
        """The metric that weights clients; None if not known here."""
        return None

    def facts(self) -> RoundFacts:
        """Return what this wrapper knows of the round that just ended."""
        return RoundFacts()

    def findings(self) -> Sequence[Finding]:
        """Return what this wrapper can say of the whole run, such as a guarantee."""
        return ()

    def opens(self, opening: SumOpening) -> None:
        """Charge a secure sum that is about to be opened: it may be rejected, or cut off."""

    def charges(self) -> Mapping[str, Any] | None:
        """Return what was charged so far, including the open round; None if nothing is."""
        return None

    def restore_charges(self, charges: Mapping[str, Any]) -> None:
        """Restore charges that `charges` returned; a round that is open keeps its own."""

    def begin(self) -> None:
        """Prepare for a run; called before the loop of `start`, from the outside in."""
        vars(self).pop("ended", None)

    def start(self, *args: Any, **kwargs: Any) -> Result:
        """Run Flower's loop around this wrapper, or that of the inner strategy if it has its own.

        If a wrapper ends the run early, `ended` there says why, and the result has the model and
        the metrics so far.
        """
        held: Strategy = self
        while isinstance(held, Wrapper):
            held.begin()
            held = held.strategy
        try:
            if not has_own_loop(held):
                return super().start(*args, **kwargs)
            with lend_methods(held, self):
                return held.start(*args, **kwargs)
        except EndedError as early:
            return early.result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a training round."""
        return self._inner_configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the model and the metrics after a training round."""
        return self._inner_aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of an evaluation round."""
        return self._inner_configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the metrics of an evaluation round."""
        return self._inner_aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log what the inner strategy says about itself."""
        self.strategy.summary()


class EndedError(Exception):
    """Leaves the loop of a run that a wrapper ends early; `Wrapper.start` handles it.

    Attributes:
        result: What the loop would have returned, as far as it came.
    """

    def __init__(self, reason: str, result: Result) -> None:
        super().__init__(reason)
        self.result = result


def has_own_loop(strategy: Strategy) -> bool:
    """Whether a strategy overrides `start`, or is none of Flower's at all."""
    return getattr(type(strategy), "start", None) is not Strategy.start


_METHODS: Final[tuple[str, ...]] = (
    "configure_train",
    "aggregate_train",
    "configure_evaluate",
    "aggregate_evaluate",
)


@contextmanager
def lend_methods(strategy: Strategy, wrapper: Strategy) -> Iterator[None]:
    """Give this one instance the methods of a wrapper around it for a while.

    Raises:
        TypeError: It cannot have other methods than those of its class.
    """
    try:
        own = vars(strategy)
    except TypeError:
        name = type(strategy).__name__
        raise TypeError(
            f"{name} has a loop of its own and __slots__, so no wrapper but Audited can be around "
            f"it: write Audited({name}(...), ...), or give it a __dict__"
        ) from None
    before = {name: own[name] for name in _METHODS if name in own}
    own.update({name: _LentMethod(strategy, name, getattr(wrapper, name)) for name in _METHODS})
    try:
        yield
    finally:
        for name in _METHODS:
            del own[name]
        own.update(before)


class _LentMethod:
    """Stands in for a method of one strategy; in copies and pickles of it the method is back.

    A strategy that saves itself, for a checkpoint of its own, must not save us.
    """

    def __init__(self, strategy: Strategy, name: str, call: Callable[..., Any]) -> None:
        self._strategy, self._name, self._call = strategy, name, call

    def __call__(self, *args: Any, **more: Any) -> Any:
        return self._call(*args, **more)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # The copy is in the memo by now: its attributes are copied after it was made.
        return getattr(memo.get(id(self._strategy), self._strategy), self._name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._strategy, self._name)


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


def link(strategy: Strategy, kind: type[Link]) -> Link | None:
    """Return the strategy of a kind in a chain; None if there is none."""
    return next((one for one in chain(strategy) if isinstance(one, kind)), None)


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


def unused_nodes(strategy: Strategy | None) -> set[int]:
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


def after_first_round(project: Project, messages: Sequence[Message], seats: int) -> Project:
    """Return the project with what the messages of its first round show."""
    masked = any(wire.MASK in m.content for m in messages)
    return replace(
        project,
        clients=len(messages),
        seats=seats,
        is_masked=project.is_masked or masked,
        has_client_noise=any(wire.share_std(m.content) > 0 for m in messages),
    )
