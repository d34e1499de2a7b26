"""Noise as a wrapper: clients get orders, the server adds its part, and all of it is charged.

McMahan, Ramage, Talwar, Zhang (2018), Learning Differentially Private Recurrent Language Models,
arXiv:1710.06963. The noise goes on the mean *before* the server's optimiser, so that momentum and
adaptive steps are post-processing. (Noise after a momentum of 0.9 gives a contributor 2.55 times
the separation that an accountant assumes.) The sum is divided by a fixed public number, not by the
number of clients that answered.

Also `Clipped`, by which the server clips the mean update and adds nothing: Elkordy, Zhang,
Ezzeldin, Psounis, Avestimehr (2023), How Much Privacy Does Federated Learning with Secure
Aggregation Guarantee?, arXiv:2208.02304, section 5.7: the aggregate is clipped to a norm C, then
noised. Ours differs in two points:
1. The paper uses C as the sensitivity of the clipped aggregate to one client. It is up to 2C, and
   nothing here relies on it: without noise clipping guarantees nothing, and under noise `Noised`
   accounts by the clip norm of single updates. It clips the sum itself (`clip_mean`).
2. The server sees the mean before it clips it. Only outsiders see the clipped one.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from leakmeter.auditors.auditor import RoundFacts
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.hook import canary_order, wire
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.hook.wrapper import (
    SumOpening,
    Wrapper,
    client_of,
    pattern,
    weight_key,
    wrappers,
)
from leakmeter.auditors.noise import gaussian
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Vector, require
from leakmeter.auditors.wording import Assumption
from leakmeter.clients.protection.noise_mod import clip
from leakmeter.strategies.accounting.assurance import Charge, Guarantees, Spending
from leakmeter.strategies.flower import left_out, usable_train_replies
from leakmeter.strategies.protection.mechanism import (
    Clip,
    Clipping,
    FixedClip,
    Mechanism,
    NotNoisedError,
    Summed,
    clip_bit,
    with_arrays,
)
from leakmeter.strategies.secure_sum.masked import check_is_inside, check_mean_only

_log = logging.getLogger("flwr")


class Noised(Wrapper):
    """Orders and adds noise as a mechanism says, and accounts for what was released.

    Args:
        strategy: Gets only noised means; its optimiser is post-processing.
        noise: The mechanism: who adds how much, and whom it hides.
        clipping: The clip norm of updates, for a mechanism that clips them: a number, or how it is
            chosen. Adaptive only with central Gaussian noise.
        expected_clients: The public number that sums are divided by; None takes the size of the
            first round, which must then not be random.
        delta: The delta of the guarantees.
        seed: Seed of the server's noise in a simulation; None takes the operating system's source.
        clip_mean: Largest L2 norm of the mean before the server's noise; None for any. The sum is
            projected on a ball of fixed radius, which moves no two sums further apart, so the
            guarantees are the same as without it.

    Attributes:
        mechanism: The mechanism.
        spending: What was released so far, and who took part how often.

    Example:
        inner = Noised(FedAvg(), noise=Central(1.0), clipping=0.5, expected_clients=50)
        result = Masked(inner, max_weight=1).start(grid, initial_arrays, num_rounds=20)
    """

    fixed_weight = 1.0

    _layout: Kept[Layout | None]
    _clip_norm: Kept[float]
    _expected: Kept[float | None]

    def __init__(
        self,
        strategy: Strategy,
        *,
        noise: Mechanism,
        clipping: Clipping | float | None = None,
        expected_clients: float | None = None,
        delta: float = 1e-5,
        seed: int | None = None,
        clip_mean: float | None = None,
    ) -> None:
        super().__init__(strategy)
        if not isinstance(noise, Mechanism):
            raise TypeError(
                f"noise must be a Mechanism, such as Central(1.0), got {noise!r}: what it adds and "
                "costs is not known"
            )
        positive = {"clip_mean": clip_mean, "expected_clients": expected_clients}
        require("(0, inf)", is_optional=True, **positive)
        require("(0, 1)", delta=delta)
        if isinstance(clipping, (int, float)):
            require("(0, inf)", clipping=clipping)
            clipping = FixedClip(clipping)
        noise.check_clipping(clipping, clip_mean)
        check_is_inside(self)
        if any(isinstance(held, Noised) for held in wrappers(strategy)):
            raise TypeError("Noised must not hold Noised: updates get one noise")
        self.mechanism, self._clipping = noise, clipping
        self._expected, self._delta, self._seed = expected_clients, delta, seed
        self._clip_mean, self.clips_mean = clip_mean, clip_mean is not None
        self.needs_exact_sums = noise.clips_updates
        self._clip_norm = clipping.initial if clipping else math.inf
        self._weight_key = weight_key(strategy)
        self.spending = Spending()
        self._layout = None
        self._messages: list[Message] = []
        self._sent, self._start = ArrayRecord(), np.empty(0)
        self._facts = RoundFacts()
        if expected_clients is not None:
            self.mechanism.server_std(self._clip)  # raises now if noise on clip bits does not fit

    @property
    def weight_key(self) -> str:
        """The metric that weights clients."""
        return self._weight_key

    @property
    def share_std(self) -> float:
        """The noise that each client adds to its update."""
        return self.mechanism.share_std(self._clip)

    def facts(self) -> RoundFacts:
        """Return clip norm, noise and noised mean of the last round."""
        return self._facts

    def guarantees(self) -> Guarantees | None:
        """Return what all rounds so far guarantee; None before the first."""
        return self.mechanism.guarantees(self.spending) if self.spending.charges else None

    def state(self) -> dict[str, Any]:
        """Return clip norm and charges."""
        return {**super().state(), "spending": self.spending.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned; the mechanism reads its releases."""
        super().restore(state)
        self.spending.close()
        self.restore_charges(state["spending"])

    def charges(self) -> Mapping[str, Any]:
        """Return what was charged so far, including the round that is open."""
        return self.spending.state()

    def restore_charges(self, charges: Mapping[str, Any]) -> None:
        """Restore charges that `charges` returned; a round that is open keeps its own."""
        self.spending.rebase(self.mechanism.charges_of(charges))

    def opens(self, opening: SumOpening) -> None:
        """Charge everybody who was asked for a secure sum that is about to be opened."""
        # If the sum is rejected, somebody in it has lied, and that noise does not count.
        honest = max(len(opening.uploaded) - 1, 0)
        self.spending.open(self._charge(opening.asked, opening.uploaded, honest, [opening.outcome]))

    def findings(self) -> Sequence[Finding]:
        """Return the guarantee for each observer."""
        guarantees = self.guarantees()
        found = guarantees.findings(self._delta) if guarantees else ()
        if self._clipping is None or not self._clipping.is_measured:
            return found
        return [
            replace(f, assumptions=(*f.assumptions, Assumption.PUBLIC_CLIP_NORM)) for f in found
        ]

    def planned(
        self,
        cohorts: Iterable[Sequence[int]],
        bearable: Callable[[int], int | None],
        *,
        fewest: Callable[[int], int | None] = lambda _: None,
        step: Callable[[int, float, str], float] = lambda *_: 0.0,
        dim: int = 0,
    ) -> Guarantees | None:
        """Return the guarantees of rounds with these clients, if nobody drops out.

        Args:
            cohorts: The clients of each round.
            bearable: Maps a number of clients to how many of them may collude; None without a
                secure sum.
            fewest: Maps a number of clients to how few of them may be in a sum that a server which
                may do anything opens; None where it must follow the protocol.
            step: Maps a number of clients, the standard deviation of each one's noise and its
                distribution to the rounding step of their secure sum; by default there is no
                rounding, which noise over integers allows only if the server adds it.
            dim: Number of parameters, on which the cost of rounding depends.
        """
        trial, share = Spending(), self.share_std
        name = self.mechanism.noise_distribution.name if share > 0 else "gaussian"
        for cohort in cohorts:
            grid, size = step(len(cohort), share, name), len(cohort)
            summed = self._summed(size, step=grid, dim=dim, fewest=fewest(size))
            trial.add(self.mechanism.charge(summed, tuple(cohort), bearable=bearable(size)))
        return self.mechanism.guarantees(trial) if trial.charges else None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Order each client of the round to do its half."""
        if self.mechanism.needs_sums and not self.gets_sums:
            raise ValueError(self.mechanism.needs_sums)
        self._facts, self.unused = RoundFacts(), frozenset()
        self.spending.close()
        messages = list(self._inner_configure_train(server_round, arrays, config, grid))
        if self._layout is None:
            self._layout = Layout.of(arrays)
            if self.mechanism.clips_updates:
                _warn(self._layout, self._delta, self._pattern.get("population", 0))
        self._sent, self._messages = arrays, messages
        self._start = self._layout.flatten(arrays)
        if self._expected is None:
            if self.mechanism.clips_updates and self._pattern.get("sampling") == "poisson":
                raise ValueError("expected_clients must be given with Poisson sampling, got None")
            self._expected = float(len(messages)) or None
        order = self.mechanism.order(self._clip)
        order |= {"round": server_round, "weight-key": self._weight_key}
        for message in messages:
            record = ConfigRecord({**order})
            wire.add_record(message, self.mechanism.order_key, record)
            if self.mechanism.clips_updates:
                wire.add_left_out(message, self._layout.left_out)
        if not self.gets_sums:  # a secure sum charges the round when it is opened
            nodes = [message.metadata.dst_node_id for message in messages]
            self.spending.open(self._charge(nodes, nodes, len(nodes)))
            if self.before_release is not None:
                self.before_release()
        return messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Refuse evaluation by clients if nothing may leave them but their update."""
        messages = list(self._inner_configure_evaluate(server_round, arrays, config, grid))
        if messages and not self.mechanism.clips_updates:
            raise ValueError(
                f"clients must not evaluate on filled data, got {len(messages)} messages: their "
                "metrics carry no noise; set fraction_evaluate to 0 and evaluate on the server"
            )
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Charge the round; noise the mean and let the inner strategy aggregate copies of it."""
        replies = wire.distinct(replies)
        come = [m for m in replies if m.has_content()]
        # Where nobody was asked, noise may be added anyway.
        is_filled = not self._messages and self.mechanism.fills_empty_rounds
        if self._layout is None or self._expected is None or not (come or is_filled):
            self.spending.undo()
            return self._inner_aggregate_train(server_round, replies)
        parts = self._parts(come)
        self.unused = left_out(come, (message for message, _, _ in parts))
        # What a secure sum has noted with its mean; a client's own note would be forged.
        noted = (wire.sum_outcome(m.content) for m in come) if self.gets_sums else ()
        outcomes = [outcome for outcome in noted if outcome is not None]
        self.spending.undo()
        # A client that has answered has shown its reply, even if it could not be read.
        nodes = [m.metadata.src_node_id for m in come]
        self.spending.add(self._charge(nodes, nodes, len(parts), outcomes))
        if come and not parts:
            self._facts = RoundFacts(abandoned="no reply could be read")
            errors = [m for m in replies if m.has_error()]
            return self._inner_aggregate_train(server_round, errors)
        if not self.mechanism.clips_updates:
            return self._inner_aggregate_train(server_round, replies)
        noised = self._noised(parts, server_round)
        arrays = self._layout.restore(self._start + noised, self._sent)
        copies = with_arrays([m for m, _, _ in parts], arrays, self._weight_key)
        return self._inner_aggregate_train(server_round, copies)

    def _noised(self, parts: Sequence[tuple[Message, Vector, float]], server_round: int) -> Vector:
        """Return the mean with the server's noise, and move the clip norm."""
        assert self._expected is not None
        total = sum((update for _, update, _ in parts), np.zeros(len(self._start)))
        if self._clip_mean is not None and np.isfinite(total).all():
            # Times the public number: a radius that grew with the number of answers would add to
            # the sensitivity.
            total = clip(total, self._clip_mean * self._expected)
        std, kind = self.mechanism.server_std(self._clip), self.mechanism.noise_distribution
        if std > 0:
            total = kind.noised(total, std, self._rng("server-noise", server_round))
        noised = np.asarray(total / self._expected)
        share = self.share_std * math.sqrt(len(parts))
        self._facts = RoundFacts(
            clip_norm=self._clip_norm,
            noised=noised,
            noise_std=math.hypot(std, share) / self._expected,
            share_std=self.share_std,
            noise_distribution=kind.name if kind.is_integer else None,
            divisor=self._expected,
        )
        self._adapt(sum(bit for _, _, bit in parts), server_round)
        return noised

    @property
    def _pattern(self) -> Mapping[str, Any]:
        """How clients are drawn, where a strategy inside knows it."""
        return pattern(self.strategy)

    @property
    def _clip(self) -> Clip:
        """The clip norm of this round, and the noise on the sum of bits."""
        bit_std = self._clipping.bit_noise(self._expected) if self._clipping else None
        return Clip(self._clip_norm, bit_std)

    def _rng(self, purpose: str, server_round: int) -> np.random.Generator | None:
        return None if self._seed is None else stream(self._seed, purpose, server_round)

    def _parts(self, replies: Sequence[Message]) -> list[tuple[Message, Vector, float]]:
        """Return the replies that can be read, each with its clipped update and its bit, ±1/2.

        A reply that cannot be read is a dropout. If several clients reply and all lack noise_mod,
        the app is wrong, and this raises.
        """
        parts = []
        failed: list[Exception] = []
        for message in replies:
            try:
                parts.append((message, *self._read(message)))
            except Exception as error:  # a client may send anything
                if self.gets_sums:  # our own reply
                    raise
                failed.append(error)
                node, reason = message.metadata.src_node_id, wire.one_line(str(error))
                _log.warning("node %d drops out, its reply cannot be used: %s", node, reason)
        if len(failed) > 1 and all(isinstance(e, NotNoisedError) for e in failed) and not parts:
            raise failed[0]
        return parts

    def _read(self, message: Message) -> tuple[Vector, float]:
        """Return a reply's update, clipped where the server can, and its bit, ±1/2."""
        assert self._layout is not None
        self.mechanism.check_reply(message, self._weight_key, is_sum=self.gets_sums)
        if not self.mechanism.clips_updates:
            return self._start, 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            update = self._layout.flatten(wire.arrays(message.content)) - self._start
            length = float(np.linalg.norm(update))
        bit = 0.0 if self._clip.bit_std is None else clip_bit(message) - 0.5
        if self.gets_sums:  # the mean of a secure sum cannot be clipped any more
            return update, bit
        if self.share_std == 0:
            return clip(update, self._clip_norm), bit
        # Nor can an update with noise on it; but honest noise has a largest norm.
        most = self._clip_norm + self.mechanism.noise_distribution.longest(
            self.share_std, update.size
        )
        if not length <= most * (1 + 1e-6):
            raise BadValueError("a noised update", f"at most {most:g} long", length)
        return update, bit

    def _charge(
        self,
        payers: Iterable[int],
        summed: Sequence[int],
        contributors: int,
        outcomes: Sequence[wire.SumOutcome] = (),
    ) -> Charge:
        """Return what a round releases and who is charged.

        Args:
            payers: Nodes that pay.
            summed: Nodes whose replies are in the sum.
            contributors: How many of these count.
            outcomes: What secure sums have noted.
        """
        known, asked = client_of(self.strategy) or {}, list(payers)
        # The audit is outermost, so its orders are in our messages by now. A canary moves from
        # seat to seat, so the rounds of the seats say nothing about the rounds of a canary.
        orders = canary_order.canaries(self._messages)
        terms = self._summed(
            contributors,
            seats=sum(node in orders for node in summed),
            step=max((outcome.step for outcome in outcomes), default=0.0),
            saturated=max((outcome.saturated for outcome in outcomes), default=0),
            grain=self.mechanism.grain(self._sent, self._start),
            dim=self._layout.dim if self._layout else 0,
            fewest=min((outcome.fewest for outcome in outcomes if outcome.fewest), default=None),
        )
        return self.mechanism.charge(
            terms,
            tuple(known.get(node, node) for node in asked),
            canaries=tuple(f"{orders[n].seed}/{orders[n].id}" for n in asked if n in orders),
            bearable=min((outcome.colluders for outcome in outcomes), default=None),
        )

    def _summed(self, contributors: int, **about: Any) -> Summed:
        return Summed(self._clip, contributors=contributors, pattern=self._pattern, **about)

    def _adapt(self, bits: float, server_round: int) -> None:
        """Move the clip norm, by the noised share of updates below it.

        With bits of ±1/2 one client moves their sum by 1/2, and an absent one by nothing.
        """
        bit_std = self._clip.bit_std
        if bit_std is None or self._clipping is None:
            return
        assert self._expected is not None
        noisy = bits + float(gaussian(1, bit_std, self._rng("bit-noise", server_round))[0])
        self._clip_norm = self._clipping.moved(self._clip_norm, noisy / self._expected + 0.5)


def _warn(layout: Layout, delta: float, population: int) -> None:
    """Warn once about statistics in the update and about a large delta."""
    buffers = [n for n in layout.names if n.endswith(("running_mean", "running_var"))]
    if buffers:
        _log.warning("running statistics are clipped and noised like weights: %s", buffers)
    if delta * population >= 1:
        _log.warning(
            "delta %g is not below 1 / %d clients: a mechanism that publishes one client outright "
            "would pass at this delta",
            *(delta, population),
        )


class Clipped(Wrapper):
    """Clips the weighted mean of the updates to an L2 norm and passes it on.

    A mean within the norm passes unchanged.

    Args:
        strategy: Gets the clipped mean in place of every reply.
        norm: Largest L2 norm of the mean update, over all float parameters.

    Example:
        strategy = Masked(Clipped(FedAvg(), 1.0))
    """

    clips_mean = True

    _layout: Kept[Layout | None]

    def __init__(self, strategy: Strategy, norm: float) -> None:
        super().__init__(strategy)
        require("(0, inf)", norm=norm)
        check_mean_only(strategy)
        self._norm = norm
        self._weight_key = weight_key(strategy)
        self._layout = None
        self._sent = ArrayRecord()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keep the model that is sent: updates are differences from it."""
        self._layout = self._layout or Layout.of(arrays)
        self._sent, self.unused = arrays, frozenset()
        return self._inner_configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Clip the mean update of the round."""
        if self._layout is None:
            return self._inner_aggregate_train(server_round, replies)
        come = wire.distinct(replies)
        replies = usable_train_replies(come, self._weight_key, self._layout.fits)
        self.unused = left_out(come, replies)
        if good := [m for m in replies if m.has_content()]:
            start = self._layout.flatten(self._sent)
            weights = [wire.weight(m.content, self._weight_key) for m in good]
            total = np.zeros(start.size)
            for message, weight in zip(good, weights, strict=True):
                total += weight * (self._layout.flatten(wire.arrays(message.content)) - start)
            mean = total / (sum(weights) or 1.0)
            if self._norm < np.linalg.norm(mean) < math.inf:  # never where it is not finite
                arrays = self._layout.restore(start + clip(mean, self._norm), self._sent)
                # Copies, in which weight and metrics stay: what came is never changed.
                replies = [copy.copy(m) for m in good]
                for other in replies:
                    key = wire.arrays_key(other.content)
                    other.content = RecordDict({**other.content, key: arrays})
        return self._inner_aggregate_train(server_round, replies)
