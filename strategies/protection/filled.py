"""Water filling as a wrapper: accounts for the clients' noise and its guarantee.

Zhang and Psounis 2024, Differentially Private Federated Learning without Noise Addition: When is it
Possible? (arXiv:2405.04551), with the corrected bound of `strategies.accounting.rdp`. The server
adds nothing: every client samples its gradients with Gaussian weights and fills what their
covariance lacks (`clients.protection.gaussian_sampling`), and a secure sum hides the single
updates.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from leakmeter.auditors.finding import Bound, Finding
from leakmeter.auditors.hook import seat, wire
from leakmeter.auditors.hook.chain import client_of, weight_key, wrappers
from leakmeter.auditors.hook.wrapper import Opening, Wrapper
from leakmeter.clients.secure_sum.quantise import NOISE_ROOM
from leakmeter.strategies.accounting.guarantee import RecordGuarantee, best_guarantee
from leakmeter.strategies.accounting.rdp import Contribution, Mechanism, Round
from leakmeter.strategies.protection.noised import Noised
from leakmeter.strategies.secure_sum.masked import check_is_inside

_log = logging.getLogger("flwr")
# Sampling alone has no floor that a server could order.
_NOISED: tuple[Mechanism, ...] = ("water-filling", "isotropic", "full", "minibatch")


@dataclass(frozen=True)
class _Sum:
    """One secure sum that was released.

    Attributes:
        clients: Clients in it, or for a sum that was opened and rejected all who were asked; nodes
            where clients are not known.
        step: Grid that each update was rounded to, by the secure sum or as a model's parameter, in
            units of an update.
        saturated: Coordinates that did not fit.
        bearable: Colluders that the secure sum tolerates.
        silent: Clients whose noise does not count: canary seats, which add none, and for a rejected
            sum those who are not in it and one who has lied.
    """

    clients: tuple[int, ...]
    step: float
    saturated: int
    bearable: int
    silent: int


class Filled(Wrapper):
    """Tells clients how to fill their updates, and accounts for the released sums.

    It goes inside `Masked`; clients list `mask_mod` and `fill_mod`. The guarantee is for one
    record of one client that is replaced, against the server, which knows who took part when: no
    amplification. The secure sum says how many contributors may collude; they reveal their noise,
    so it does not count. Nor does that of canary seats, which send none.

    Args:
        strategy: Gets the filled means; what it makes of them is post-processing.
        sigma2: σ², least variance of a client's gradient estimate in any direction.
        clip_norm: C, largest norm of an example's gradient.
        batch_size: B, scale of the Gaussian sampling weights.
        examples: Fewest examples that any client has; public.
        lr: The clients' learning rate; public. An update is -lr times the gradient estimate.
        steps: Local steps; there is no guarantee for more than one.
        mechanism: What makes a client's gradient estimate random: water filling, or isotropic noise
            of variance `sigma2` on Gaussian sampling ("isotropic"), on the full gradient ("full";
            `batch_size` is not used) or on the mean gradient of a batch drawn without replacement
            ("minibatch").
        delta: The delta of the guarantee.

    Example:
        inner = Filled(FedAvg(), sigma2=1e-3, clip_norm=10, batch_size=32, examples=1200, lr=0.1)
        Masked(inner, max_weight=1, clip_range=inner.clip_range).start(grid, arrays, num_rounds=20)
    """

    fixed_weight = 1.0

    def __init__(
        self,
        strategy: Strategy,
        *,
        sigma2: float,
        clip_norm: float,
        batch_size: int,
        examples: int,
        lr: float,
        steps: int = 1,
        mechanism: Mechanism = "water-filling",
        delta: float = 1e-5,
    ) -> None:
        super().__init__(strategy)
        if mechanism not in _NOISED:
            raise ValueError(f"mechanism must be one of {_NOISED}, got {mechanism!r}")
        if mechanism == "minibatch" and batch_size > examples:
            raise ValueError(f"batch_size must be in [1, {examples}], got {batch_size}")
        self._mechanism: Mechanism = mechanism
        self._member = Contribution(
            sigma2, clip_norm, 1 if mechanism == "full" else batch_size, examples
        )
        if not 0 < lr < math.inf:
            raise ValueError(f"lr must be in (0, inf), got {lr}")
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        if not 0 < delta < 1:
            raise ValueError(f"delta must be in (0, 1), got {delta}")
        check_is_inside(self)
        if any(isinstance(held, Noised) for held in wrappers(strategy)):
            raise TypeError("Filled must not hold Noised: updates are filled or noised")
        self._lr, self._steps, self._delta = lr, steps, delta
        self._weight_key = weight_key(strategy)
        self._sums: list[_Sum] = []
        self._opened: _Sum | None = None  # the last of them, until it is known what came of it
        self._grain = 0.0
        self._messages: list[Message] = []

    @property
    def weight_key(self) -> str:
        """The metric that weights clients."""
        return self._weight_key

    @property
    def clip_range(self) -> float:
        """Range of the secure sum; a coordinate saturates with probability at most 1.5e-23.

        A mean of clipped gradients is within C, and the variance of Gaussian sampling in any
        direction is at most C²/B: the trace of GᵀG/(BD).
        """
        one = self._member
        sampled = one.clip**2 / one.batch
        largest = {
            "water-filling": max(one.floor, sampled),
            "isotropic": one.floor + sampled,
        }
        std = math.sqrt(largest.get(self._mechanism, one.floor))
        return self._lr * self._steps * (one.clip + NOISE_ROOM * std)

    def state(self) -> dict[str, Any]:
        """Return the sums so far."""
        return {"sums": [asdict(one) for one in self._sums]}

    def charges(self) -> Mapping[str, Any]:
        """Return the sums so far, including one that is open."""
        return self.state()

    def restore_charges(self, charges: Mapping[str, Any]) -> None:
        """Restore charges that `charges` returned; a round that is open keeps its own."""
        opened = self._opened
        self.restore(charges)
        if opened is not None:
            self._sums.append(opened)
            self._opened = opened

    def opens(self, opening: Opening) -> None:
        """Charge everybody who was asked for a secure sum that is about to be opened."""
        orders = seat.canaries(self._messages)
        honest = sum(node not in orders for node in opening.uploaded) - 1
        known = client_of(self.strategy) or {}
        self._opened = _Sum(
            clients=tuple(known.get(node, node) for node in opening.asked),
            step=max(self._grain, opening.outcome.step),
            saturated=0,
            bearable=opening.outcome.colluders,
            silent=len(opening.asked) - max(honest, 0),
        )
        self._sums.append(self._opened)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self._opened = None
        self._sums = [
            _Sum(**{**one, "clients": tuple(map(int, one["clients"]))}) for one in state["sums"]
        ]

    def findings(self) -> Sequence[Finding]:
        """Return the guarantee for a record of the client that took part most."""
        if not self._sums:
            return ()
        worst = self._guarantee()
        facts = {
            "mechanism": self._mechanism,
            "sigma2": self._member.floor,
            "clip_norm": self._member.clip,
            **({} if self._mechanism == "full" else {"batch_size": self._member.batch}),
            "examples": self._member.examples,
            "fewest honest": min(map(self._honest, self._sums)),
        }
        return [worst.finding("accountant", facts=facts)]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """State in each message what the accounting will assume."""
        self._opened = None
        messages = list(self._inner_configure_train(server_round, arrays, config, grid))
        self._grain, self._messages = _grain(arrays), messages
        one = self._member
        for message in messages:
            order = ConfigRecord(
                {
                    "mechanism": self._mechanism,
                    "sigma2": float(one.floor),
                    "clip-norm": float(one.clip),
                    "batch-size": 0 if self._mechanism == "full" else int(one.batch),
                    "examples": int(one.examples),
                    "lr": float(self._lr),
                    "steps": int(self._steps),
                    "weight-key": self._weight_key,
                }
            )
            wire.add_record(message, wire.FILLED, order)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check and note the round's sum, and let the inner strategy aggregate it."""
        replies = list(replies)
        if good := [message for message in replies if message.has_content()]:
            noted = self._noted(good)
            if self._opened is not None:
                self._sums.pop()
                self._opened = None
            self._sums.append(noted)
        return self._inner_aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Refuse evaluation by clients: their answers would carry no noise."""
        messages = list(self._inner_configure_evaluate(server_round, arrays, config, grid))
        if messages:
            raise ValueError(
                f"clients must not evaluate on filled data, got {len(messages)} messages: their "
                "metrics carry no noise; set fraction_evaluate to 0 and evaluate on the server"
            )
        return messages

    def _noted(self, replies: Sequence[Message]) -> _Sum:
        """Return the sum that the round released; raise if it does not match the accounting."""
        for message in replies:
            if (weight := wire.weight(message.content, self._weight_key)) != 1:
                raise ValueError(
                    f"{self._weight_key} must be 1 under water filling, got {weight:g} on average: "
                    "list fill_mod in the client app"
                )
            if extra := sorted(_metrics(message) - {self._weight_key}):
                raise ValueError(
                    f"metrics must be none but {self._weight_key!r} under water filling, got "
                    f"{', '.join(extra)}: they carry no noise"
                )
        outcomes = [o for m in replies if (o := wire.sum_outcome(m.content)) is not None]
        if not self.gets_sums or len(outcomes) < len(replies):
            raise ValueError("Filled needs Masked around it: a single floor protects little")
        known = client_of(self.strategy) or {}
        nodes = [message.metadata.src_node_id for message in replies]
        # The audit, which is outermost, has put its orders into our messages by now.
        orders = seat.canaries(self._messages)
        noted = _Sum(
            tuple(known.get(node, node) for node in nodes),
            max(self._grain, *(outcome.step for outcome in outcomes)),
            max(outcome.saturated for outcome in outcomes),
            min(outcome.colluders for outcome in outcomes),
            sum(node in orders for node in nodes),
        )
        if noted.saturated:
            _log.warning("water filling: saturated coordinates void the guarantee")
        return noted

    def _taken(self) -> dict[int, list[_Sum]]:
        """Return the sums that each client was in."""
        taken: dict[int, list[_Sum]] = {}
        for one in self._sums:
            for client in one.clients:
                taken.setdefault(client, []).append(one)
        return taken

    def _counted(self) -> int:
        """Return the assumed colluders: in no round more than its secure sum tolerates."""
        return min(one.bearable for one in self._sums)

    def _honest(self, one: _Sum) -> int:
        """Return how many contributors' noise counts."""
        return max(len(one.clients) - one.silent - self._counted(), 0)

    def _guarantee(self) -> RecordGuarantee:
        """Return the weakest guarantee over the clients."""
        most = max(len(sums) for sums in self._taken().values())
        return RecordGuarantee(self._bound(), participations=most, colluders=self._counted())

    def _bound(self) -> Bound:
        """Return the largest ε over the clients."""
        if self._steps > 1:
            rule = f"no theorem covers {self._steps} local steps: the sum is no Gaussian"
            return Bound(math.inf, "guarantee", rule, self._delta)
        if min(map(self._honest, self._sums)) == 0:
            rule = "a sum without any honest contributor"
            return Bound(math.inf, "guarantee", rule, self._delta)
        found = [best_guarantee(rounds, self._delta).bound for rounds in self._patterns()]
        worst = max(found, key=lambda bound: bound.value)
        # It is to hold for every client, also where rounding leaves an approximation only.
        weakest = next((bound for bound in found if bound.kind == "approximation"), worst)
        return replace(weakest, value=worst.value, rule=worst.rule, sample_sizes=worst.sample_sizes)

    def _patterns(self) -> list[tuple[Round, ...]]:
        """Return the rounds of the clients, each pattern once: many took part in equal rounds."""
        taken = self._taken().values()
        if self._mechanism == "minibatch":
            # Its accountant takes seconds per pattern. One pattern is at least as bad as every
            # client's: the number of rounds of the busiest client, with the fewest honest
            # contributors.
            rounds = sorted(map(self._round, self._sums), key=_order)
            step, saturated = max(r.step for r in rounds), max(r.saturated for r in rounds)
            worst = rounds[: max(map(len, taken))]
            return [tuple(replace(one, step=step, saturated=saturated) for one in worst)]
        patterns = {tuple(sorted(map(self._round, sums), key=_order)) for sums in taken}
        return sorted(patterns, key=len)

    def _round(self, one: _Sum) -> Round:
        """Return a sum in units of a gradient."""
        step = one.step / self._lr
        members = (self._member,) * self._honest(one)
        return Round(members, self._mechanism, step=step, saturated=one.saturated)


def _grain(arrays: ArrayRecord) -> float:
    """Return the coarsest grid of a model's own numbers: trained parameters are rounded to it."""
    found = (array.numpy() for array in arrays.values())
    floats = [a for a in found if np.issubdtype(a.dtype, np.floating) and a.size]
    return max((float(np.spacing(np.abs(a).max())) for a in floats), default=0.0)


def _order(one: Round) -> tuple[int, float, int]:
    return len(one.members), one.step, one.saturated


def _metrics(message: Message) -> set[str]:
    """Return the names of all metrics in a reply."""
    records = message.content.values()
    return {name for r in records if isinstance(r, MetricRecord) for name in r}
