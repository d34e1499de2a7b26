"""Noise that hides single records: clients add it to their gradients, the server adds nothing.

Zhang and Psounis 2024, Differentially Private Federated Learning without Noise Addition: When is it
Possible? (arXiv:2405.04551), with the corrected bound of `strategies.accounting.rdp`. Every client
samples its gradients and adds noise (`clients.protection.record_rule`), for instance only what
their covariance lacks, and a secure sum hides the single updates.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
from flwr.app import ArrayRecord, Message

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Adjacency, Bound, Conduct, Finding
from leakmeter.auditors.hook import wire
from leakmeter.auditors.values import Vector, require
from leakmeter.clients.secure_sum.quantise import NOISE_ROOM
from leakmeter.clients.secure_sum.wire import metrics_of
from leakmeter.strategies.accounting.assurance import (
    OF_OWNERS,
    Charge,
    Guarantees,
    Priced,
    Spending,
)
from leakmeter.strategies.accounting.ledger import Entry
from leakmeter.strategies.accounting.rdp import (
    NOISED,
    Contribution,
    RecordRelease,
    best_guarantee,
    finding_of,
)
from leakmeter.strategies.protection.mechanism import Clip, Mechanism, Order, Summed

_log = logging.getLogger("flwr")


@dataclass(frozen=True)
class RecordNoise(Mechanism):
    """Clients make their gradients random; the server accounts for the released sums.

    The guarantee is for one record of one client that is replaced, against the server, which knows
    who took part when: no amplification. The secure sum says how many contributors may collude;
    they reveal their noise, so it does not count. Nor does that of canary seats, which send none.
    Clients list `mask_mod` and `fill_mod`.

    Attributes:
        sigma2: σ², least variance of a client's gradient estimate in any direction.
        clip_norm: C, largest norm of an example's gradient.
        batch_size: B, scale of the Gaussian sampling weights, or size of the minibatch.
        examples: Fewest examples that any client has; public.
        lr: The clients' learning rate; public. An update is -lr times the gradient estimate.
        steps: Local steps; there is no guarantee for more than one.
        kind: What makes a client's gradient estimate random: water filling, or isotropic noise of
            variance `sigma2` on Gaussian sampling ("isotropic"), on the full gradient ("full";
            `batch_size` is not used) or on the mean gradient of a batch drawn without replacement
            ("minibatch").

    Example:
        noise = RecordNoise(sigma2=1e-3, clip_norm=10, batch_size=32, examples=1200, lr=0.1)
        strategy = Masked(Noised(FedAvg(), noise=noise), max_weight=1, clip_range=noise.clip_range)
    """

    order_key: ClassVar[str] = wire.FILLED
    clips_updates: ClassVar[bool] = False
    release: ClassVar[type[Priced]] = RecordRelease
    needs_sums: ClassVar[str] = "RecordNoise needs Masked around Noised: one client's noise is weak"

    sigma2: float
    clip_norm: float
    batch_size: int
    examples: int
    lr: float
    steps: int = 1
    kind: str = "water-filling"

    def __post_init__(self) -> None:
        if self.kind not in NOISED:
            raise BadValueError("kind", f"one of {NOISED}", self.kind)
        if self.kind == "minibatch":
            require(f"[1, {self.examples}]", batch_size=self.batch_size)
        require("(0, inf)", lr=self.lr)
        require("at least 1", steps=self.steps)
        self._member()  # checks the others

    def _member(self) -> Contribution:
        """Return what one honest client adds to a sum."""
        batch = 1 if self.kind == "full" else self.batch_size
        return Contribution(self.sigma2, self.clip_norm, batch, self.examples)

    @property
    def clip_range(self) -> float:
        """Range of the secure sum; a coordinate saturates with probability at most 1.5e-23.

        A mean of clipped gradients is within C, and the variance of Gaussian sampling in any
        direction is at most C²/B: the trace of GᵀG/(BD).
        """
        one = self._member()
        sampled = one.clip**2 / one.batch
        largest = {
            "water-filling": max(one.floor, sampled),
            "isotropic": one.floor + sampled,
        }
        std = math.sqrt(largest.get(self.kind, one.floor))
        return self.lr * self.steps * (one.clip + NOISE_ROOM * std)

    def order(self, clip: Clip) -> Order:
        """Return what the accounting will assume."""
        return {
            "mechanism": self.kind,
            "sigma2": float(self.sigma2),
            "clip-norm": float(self.clip_norm),
            "batch-size": 0 if self.kind == "full" else int(self.batch_size),
            "examples": int(self.examples),
            "lr": float(self.lr),
            "steps": int(self.steps),
        }

    def check_reply(self, message: Message, weight_key: str, *, is_sum: bool) -> None:
        """Raise if a mean is not that of clients of weight 1, or has metrics, which lack noise."""
        if (weight := wire.weight(message.content, weight_key)) != 1:
            raise ValueError(
                f"{weight_key} must be 1 under water filling, got {weight:g} on average: "
                "list fill_mod in the client app"
            )
        if extra := sorted(metrics_of(message.content).keys() - {weight_key}):
            raise BadValueError(
                "metrics",
                f"none but {weight_key!r} under water filling",
                ", ".join(extra),
                fix="They carry no noise",
            )

    def grain(self, arrays: ArrayRecord, start: Vector) -> float:
        """Return the coarsest grid of a model's numbers: trained parameters are rounded to it."""
        found = (array.numpy() for array in arrays.values())
        floats = [a for a in found if np.issubdtype(a.dtype, np.floating) and a.size]
        return max((float(np.spacing(np.abs(a).max())) for a in floats), default=0.0)

    def cost(self, summed: Summed) -> Charge:
        """Return a sum in units of a gradient; canary seats add no noise."""
        if summed.saturated:
            _log.warning("water filling: saturated coordinates void the guarantee")
        step = max(summed.grain, summed.step) / self.lr
        release = RecordRelease((self._member(),), self.kind, step=step, saturated=summed.saturated)
        return Charge(release, max(summed.contributors - summed.seats, 0))

    def charge(self, summed: Summed, clients: tuple[int, ...], **about: Any) -> Charge:
        """Return the charge of a sum; where canaries play, an active server has two honest shares.

        Clients that list `canary_mod` accept all but two of a sum as seats, which add no noise.
        """
        charged = super().charge(summed, clients, **about)
        if charged.fewest is None or not summed.seats:
            return charged
        return replace(charged, fewest=min(charged.fewest, (charged.bearable or 0) + 2))

    def guarantees(self, spending: Spending) -> RecordAssurance:
        smallest = spending.smallest()
        active = () if smallest is None else tuple(smallest.charges)
        return RecordAssurance(self, tuple(spending.charges), active)


@dataclass(frozen=True)
class RecordAssurance(Guarantees):
    """What a run's sums guarantee to a record of the client that took part most.

    Attributes:
        noise: The mechanism.
        charges: The sums, and who was in them.
        smallest: The sums that a server could have opened in place of these if it may do anything;
            empty where it must follow the protocol.
        conduct: What the server may do.
    """

    noise: RecordNoise
    charges: tuple[Charge, ...]
    smallest: tuple[Charge, ...] = ()
    conduct: Conduct = "curious"

    def findings(self, delta: float) -> Sequence[Finding]:
        """Return the weakest guarantee over the clients, against each kind of server."""
        if not self.smallest:
            return [self._finding(delta)]
        active = replace(self, charges=self.smallest, smallest=(), conduct="active")
        return [self._finding(delta), active._finding(delta)]

    def _finding(self, delta: float) -> Finding:
        noise, most = self.noise, max(map(len, self._taken()))
        facts = {
            "mechanism": noise.kind,
            "sigma2": noise.sigma2,
            "clip_norm": noise.clip_norm,
            **({} if noise.kind == "full" else {"batch_size": noise.batch_size}),
            "examples": noise.examples,
            "fewest honest": min(map(self._honest, self.charges)),
        }
        bound = self._bound(delta)
        if self.conduct == "active":
            bound = replace(bound, assumptions=(*bound.assumptions, *OF_OWNERS))
        return finding_of(
            bound,
            participations=most,
            colluders=self._colluders,
            conduct=self.conduct,
            facts=facts,
        )

    def headline(self, delta: float, adjacency: Adjacency | None = None) -> Finding:
        """Return the guarantee against the strongest server that clients defend against."""
        return self.findings(delta)[-1]

    def entry(self, *, run: str, data: str, seed: int | None) -> Entry:
        """Refuse: a ledger adds up what whole clients have paid."""
        raise ValueError(f"ledger must be none with noise for records, got the run {run!r}")

    @property
    def _colluders(self) -> int:
        """Assumed colluders: in no round more than its secure sum tolerates."""
        return min(charge.bearable or 0 for charge in self.charges)

    def _honest(self, charge: Charge) -> int:
        """Return how many contributors' noise counts."""
        return max(charge.contributors - self._colluders, 0)

    def _taken(self) -> list[list[Charge]]:
        """Return the sums that each client was in."""
        taken: dict[int, list[Charge]] = {}
        for charge in self.charges:
            for client in charge.clients:
                taken.setdefault(client, []).append(charge)
        return list(taken.values())

    def _bound(self, delta: float) -> Bound:
        """Return the largest ε over the clients."""
        if self.noise.steps > 1:
            rule = f"no theorem covers {self.noise.steps} local steps: the sum is no Gaussian"
            return Bound(math.inf, "guarantee", rule, delta)
        if min(map(self._honest, self.charges)) == 0:
            return Bound(math.inf, "guarantee", "a sum without any honest contributor", delta)
        found = [best_guarantee(rounds, delta) for rounds in self._patterns()]
        worst = max(found, key=lambda bound: bound.value)
        # It is to hold for every client, also where rounding leaves an approximation only.
        weakest = next((bound for bound in found if bound.kind == "approximation"), worst)
        return replace(weakest, value=worst.value, rule=worst.rule, sample_sizes=worst.sample_sizes)

    def _patterns(self) -> list[tuple[RecordRelease, ...]]:
        """Return the rounds of the clients, each pattern once: many took part in equal rounds."""
        if self.noise.kind == "minibatch":
            # Its accountant takes seconds per pattern. One pattern is at least as bad as every
            # client's: the number of rounds of the busiest client, with the fewest honest
            # contributors.
            rounds = sorted(map(self._round, self.charges), key=_order)
            step, saturated = max(r.step for r in rounds), max(r.saturated for r in rounds)
            worst = rounds[: max(map(len, self._taken()))]
            return [tuple(replace(one, step=step, saturated=saturated) for one in worst)]
        patterns = {tuple(sorted(map(self._round, sums), key=_order)) for sums in self._taken()}
        return sorted(patterns, key=len)

    def _round(self, charge: Charge) -> RecordRelease:
        """Return a sum with the noise of all who count."""
        return cast(RecordRelease, charge.release.of_shares(self._honest(charge)))


def _order(one: RecordRelease) -> tuple[int, float, int]:
    return len(one.members), one.step, one.saturated
