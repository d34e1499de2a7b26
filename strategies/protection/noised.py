"""DP-FedAvg as a wrapper: clipping by the clients, noise on the mean, and its guarantee.

McMahan, Ramage, Talwar, Zhang (2018), Learning Differentially Private Recurrent Language Models,
arXiv:1710.06963. The noise goes on the mean *before* the server's optimiser, so that momentum and
adaptive steps are post-processing. (Noise after a momentum of 0.9 gives a contributor 2.55 times
the separation that an accountant assumes.) The sum is divided by a fixed public number, not by the
number of clients that answered.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from leakmeter.auditors._types import Vector
from leakmeter.auditors.auditor import RoundFacts
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.hook import seat, wire
from leakmeter.auditors.hook.chain import client_of, pattern, weight_key
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.hook.wrapper import Opening, Wrapper
from leakmeter.auditors.noise.integer import Law
from leakmeter.auditors.rng import stream
from leakmeter.clients.protection.clipping import clip, gaussian
from leakmeter.strategies.accounting.accountant import Release, multiplier_with_bit
from leakmeter.strategies.accounting.assurance import Assurance
from leakmeter.strategies.accounting.spending import Spending
from leakmeter.strategies.consistent import left_out
from leakmeter.strategies.mechanism import (
    AdaptiveClip,
    Central,
    Clipping,
    Distributed,
    FixedClip,
    Local,
    Noise,
    law_of,
)
from leakmeter.strategies.protection import on_grid
from leakmeter.strategies.protection.on_grid import IntegerShare
from leakmeter.strategies.protection.reply import (
    NotNoisedError,
    check,
    clip_bit,
    reply_of_nobody,
    with_arrays,
)
from leakmeter.strategies.secure_sum.masked import check_is_inside

_log = logging.getLogger("flwr")

# Rounding errors of float64 below this share of the clip norm are ignored, as in every guarantee
# about real numbers.
_NEGLIGIBLE = 1e-9
# The norm of the noise exceeds σ·(√d + 10) with probability at most e^-50.
_NOISE_TAIL = 10.0


class Noised(Wrapper):
    """Clips every update, noises the mean, and accounts for what was released.

    Args:
        strategy: Gets only noised means; its optimiser is post-processing.
        noise: Who adds how much.
        clipping: The clip norm of updates; adaptive only with central noise.
        expected_clients: The public number that sums are divided by; None takes the size of the
            first round, which must then not be random.
        delta: The delta of the guarantees.
        seed: Seed of the server's noise in a simulation; None takes the operating system's source.
        clip_mean: Largest L2 norm of the mean before the server's noise; None for any. The sum is
            projected on a ball of fixed radius, which moves no two sums further apart, so the
            guarantees are the same as without it.

    Example:
        inner = Noised(FedAvg(), noise=Central(1.0), clipping=FixedClip(0.5), expected_clients=50)
        result = Masked(inner, max_weight=1).start(grid, initial_arrays, num_rounds=20)
    """

    fixed_weight = 1.0
    needs_exact_sums = True

    def __init__(
        self,
        strategy: Strategy,
        *,
        noise: Noise,
        clipping: Clipping,
        expected_clients: float | None = None,
        delta: float = 1e-5,
        seed: int | None = None,
        clip_mean: float | None = None,
    ) -> None:
        super().__init__(strategy)
        if clip_mean is not None and not 0 < clip_mean < math.inf:
            raise ValueError(f"clip_mean must be None or in (0, inf), got {clip_mean}")
        if expected_clients is not None and not 0 < expected_clients < math.inf:
            raise ValueError(f"expected_clients must be in (0, inf), got {expected_clients}")
        if not 0 < delta < 1:
            raise ValueError(f"delta must be in (0, 1), got {delta}")
        if isinstance(clipping, AdaptiveClip) and not isinstance(noise, Central):
            raise ValueError(f"noise must be Central with an adaptive clip norm, got {noise}")
        if isinstance(clipping, AdaptiveClip) and law_of(noise) != "gaussian":
            raise ValueError(
                "law must be gaussian with an adaptive clip norm: no proof covers integer noise "
                f"together with the noise on clip bits, got {law_of(noise)}; take FixedClip"
            )
        check_is_inside(self)
        self._noise, self._clipping = noise, clipping
        self._expected = expected_clients
        self._seed = seed
        self._delta = delta
        self._clip_mean, self.clips_mean = clip_mean, clip_mean is not None
        self._clip_norm = clipping.norm if isinstance(clipping, FixedClip) else clipping.initial
        self._weight_key = weight_key(strategy)
        self._spending = Spending(noise)
        self._layout: Layout | None = None
        self._messages: list[Message] = []
        self._start: Vector = np.empty(0)
        self._facts = RoundFacts()
        if expected_clients is not None:
            self._server_std()  # raises now if the noise on the clip bits does not fit

    @property
    def weight_key(self) -> str:
        """The metric that weights clients."""
        return self._weight_key

    def facts(self) -> RoundFacts:
        """Return clip norm, noise and noised mean of the last round."""
        return self._facts

    @property
    def spending(self) -> Spending:
        """What was released so far, and who took part how often."""
        return self._spending

    def state(self) -> dict[str, Any]:
        """Return clip norm, releases and participations."""
        return {
            "layout": asdict(self._layout) if self._layout else None,
            "clip_norm": self._clip_norm,
            "expected": self._expected,
            "spending": self._spending.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self._layout = Layout.from_json(state["layout"]) if state["layout"] else None
        self._clip_norm, self._expected = state["clip_norm"], state["expected"]
        self._spending.restore(state["spending"])

    def charges(self) -> Mapping[str, Any]:
        """Return what was charged so far, including the round that is open."""
        return self._spending.state()

    def restore_charges(self, charges: Mapping[str, Any]) -> None:
        """Restore charges that `charges` returned; a round that is open keeps its own."""
        self._spending.rebase(charges)

    def opens(self, opening: Opening) -> None:
        """Charge everybody who was asked for a secure sum that is about to be opened."""
        # If the sum is rejected, somebody in it has lied, and that noise does not count.
        honest = max(len(opening.uploaded) - 1, 0)
        self._open(opening.asked, honest, opening.outcome.step, opening.outcome.colluders)

    def findings(self) -> Sequence[Finding]:
        """Return the guarantee for each observer."""
        assurance = self._spending.assurance()
        return assurance.findings(self._delta) if assurance else ()

    def planned(
        self,
        cohorts: Iterable[Sequence[int]],
        bearable: Callable[[int], int | None],
        *,
        step: Callable[[int, float, Law], float] = lambda *_: 0.0,
        dim: int = 0,
    ) -> Assurance | None:
        """Return the guarantee of rounds with these clients, if nobody drops out.

        Args:
            cohorts: The clients of each round.
            bearable: Maps a number of clients to how many of them may collude; None without a
                secure sum.
            step: Maps a number of clients, the standard deviation of each one's noise and its law
                to the rounding step of their secure sum; by default there is no rounding, which
                only Gaussian or central noise allows.
            dim: Number of parameters, on which the cost of rounding depends.
        """
        trial, share = Spending(self._noise), self._share_std()
        law: Law = self.integer_share.law if self.integer_share else "gaussian"
        for cohort in cohorts:
            grid = step(len(cohort), share, law)
            trial.add(
                self._release(grid, dim),
                cohort,
                share_std=share,
                step=grid,
                bearable=bearable(len(cohort)),
            )
        return trial.assurance()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Order each client of the round to clip, and to add noise if clients add it."""
        if isinstance(self._noise, Distributed) and not self.gets_sums:
            raise ValueError(
                "noise Distributed needs Masked around Noised: single shares are weak, got no "
                "secure sum; write Masked(Noised(strategy, ...), max_weight=1) or take Local"
            )
        self._facts = RoundFacts()
        self._spending.close()
        self.unused = frozenset()
        messages = list(self._inner_configure_train(server_round, arrays, config, grid))
        if self._layout is None:
            self._layout = Layout.of(arrays)
            _warn(self._layout, self._delta, self._pattern.get("population", 0))
        self._sent, self._messages = arrays, messages
        self._start = self._layout.flatten(arrays)
        if self._expected is None:
            if self._pattern.get("sampling") == "poisson":
                raise ValueError("expected_clients must be given with Poisson sampling, got None")
            self._expected = float(len(messages)) or None
        law = {"law": self.integer_share.law} if self.integer_share else {}
        for message in messages:
            order = ConfigRecord(
                {
                    "round": server_round,
                    "clip-norm": self._clip_norm,
                    "share-std": self._share_std(),
                    "weight-key": self._weight_key,
                    **law,
                }
            )
            wire.add_record(message, wire.NOISE, order)
            wire.add_left_out(message, self._layout.left_out)
        if not self.gets_sums:  # a secure sum charges the round when it is opened
            nodes = [message.metadata.dst_node_id for message in messages]
            self._open(nodes, len(nodes), step=0.0, bearable=None)
            if self.before_release is not None:
                self.before_release()
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Noise the mean and let the inner strategy aggregate copies of it."""
        replies = wire.distinct(replies)
        come = [m for m in replies if m.has_content()]
        if self._layout is None or self._expected is None or (not come and not self._is_empty):
            self._spending.undo()
            return self._inner_aggregate_train(server_round, replies)
        parts = self._parts(come)
        self.unused = left_out(come, (message for message, _, _ in parts))
        outcomes = _outcomes(come) if self.gets_sums else []
        step = max((outcome.step for outcome in outcomes), default=0.0)
        self._spending.undo()
        # A client that has answered has shown its reply, even if it could not be read.
        bearable = min((o.colluders for o in outcomes), default=None)
        nodes = [m.metadata.src_node_id for m in come]
        self._spending.add(**self._charge(nodes, len(parts), step, bearable))
        if come and not parts:
            self._facts = RoundFacts(abandoned="no reply could be read")
            errors = [m for m in replies if m.has_error()]
            return self._inner_aggregate_train(server_round, errors)
        noised = self._noised(parts, server_round)
        arrays = self._layout.restore(self._start + noised, self._sent)
        copies = with_arrays([m for m, _, _ in parts], arrays, self._weight_key)
        copies = copies or [reply_of_nobody(arrays, self._weight_key)]
        return self._inner_aggregate_train(server_round, copies)

    def _noised(self, parts: Sequence[tuple[Message, Vector, float]], server_round: int) -> Vector:
        """Return the mean with the server's noise, and move the clip norm."""
        assert self._expected is not None
        total = sum((update for _, update, _ in parts), np.zeros(len(self._start)))
        if self._clip_mean is not None and np.isfinite(total).all():
            # Times the public number: a radius that grew with the number of answers would add to
            # the sensitivity.
            total = clip(total, self._clip_mean * self._expected)
        noised = self._with_server_noise(total, server_round) / self._expected
        share = self._share_std() * math.sqrt(len(parts))
        self._facts = RoundFacts(
            clip_norm=self._clip_norm,
            noised=noised,
            noise_std=math.hypot(self._server_std(), share) / self._expected,
            share_std=self._share_std(),
            noise_law=None if law_of(self._noise) == "gaussian" else law_of(self._noise),
            divisor=self._expected,
        )
        self._adapt(sum(bit for _, _, bit in parts), server_round)
        return noised

    def _with_server_noise(self, total: Vector, server_round: int) -> Vector:
        """Return the sum with the server's noise."""
        std, rng = self._server_std(), self._rng("server-noise", server_round)
        law = law_of(self._noise)
        if law == "gaussian" or std == 0:
            return np.asarray(total + gaussian(total.size, std, rng))
        return on_grid.noised_sum(total, std, law, rng)

    @property
    def _is_empty(self) -> bool:
        """Whether nobody was asked: noise is added anyway, or one client would be visible."""
        return not self._messages and isinstance(self._noise, Central)

    @property
    def _pattern(self) -> Mapping[str, Any]:
        """How clients are drawn, where a strategy inside knows it."""
        return pattern(self.strategy)

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
        if not self.gets_sums:  # a secure sum has checked the weights of all
            check(message, self._weight_key, has_noise=self._share_std() > 0)
        with np.errstate(over="ignore", invalid="ignore"):
            update = self._layout.flatten(wire.arrays(message.content)) - self._start
            length = float(np.linalg.norm(update))
        bit = clip_bit(message) - 0.5 if isinstance(self._clipping, AdaptiveClip) else 0.0
        if self.gets_sums:  # the mean of a secure sum cannot be clipped any more
            return update, bit
        if isinstance(self._noise, Central):
            return clip(update, self._clip_norm), bit
        # Nor can an update with noise on it; but honest noise has a largest norm.
        most = self._clip_norm + self._share_std() * (math.sqrt(update.size) + _NOISE_TAIL)
        if not length <= most * (1 + 1e-6):
            raise ValueError(f"a noised update must be at most {most:g} long, got {length:g}")
        return update, bit

    def _share_std(self) -> float:
        """Return the noise that each client adds to its update."""
        match self._noise:
            case Central():
                return 0.0
            case Distributed(noise_multiplier=multiplier, min_honest=min_honest):
                return multiplier * self._clip_norm / math.sqrt(min_honest)
            case Local(multiplier):
                return multiplier * self._clip_norm

    @property
    def integer_share(self) -> IntegerShare | None:
        """The integer noise that each client adds inside a secure sum; None with other noise."""
        if not isinstance(self._noise, Distributed) or self._noise.law == "gaussian":
            return None
        return IntegerShare(self._noise.law, self._share_std())

    def _server_std(self) -> float:
        """Return the noise that the server adds to the sum."""
        if not isinstance(self._noise, Central):
            return 0.0
        multiplier = self._noise.noise_multiplier
        if multiplier > 0 and (bit_std := self._bit_std()) is not None:
            # More noise on the vector, so that vector and bit together cost the requested one.
            multiplier = multiplier_with_bit(multiplier, bit_std)
        return multiplier * self._clip_norm

    def _bit_std(self) -> float | None:
        """Return the noise on the sum of bits; None with a fixed clip norm."""
        if isinstance(self._clipping, FixedClip):
            return None
        return self._clipping.bit_std or (self._expected or 1.0) / 20

    def _open(
        self, nodes: Iterable[int], contributors: int, step: float, bearable: int | None
    ) -> None:
        """Charge a round before anything of it can be released."""
        self._spending.open(**self._charge(nodes, contributors, step, bearable))

    def _charge(
        self, nodes: Iterable[int], contributors: int, step: float, bearable: int | None
    ) -> dict[str, Any]:
        """Return what a round releases and who is charged, as the arguments of `Spending.add`."""
        known, asked = client_of(self.strategy) or {}, list(nodes)
        # The audit is outermost, so its orders are in our messages by now. A canary moves from
        # seat to seat, so the rounds of the seats say nothing about the rounds of a canary.
        orders = seat.canaries(self._messages)
        grain = float(np.spacing(np.abs(self._start).max(initial=0.0)))
        dim = self._layout.dim if self._layout else 0
        return {
            "release": self._release(step, dim, contributors * grain if step else 0.0),
            "clients": [known.get(node, node) for node in asked],
            "contributors": contributors,
            "share_std": self._share_std(),
            "step": step,
            "grain": grain,
            "canaries": [f"{orders[n].seed}/{orders[n].id}" for n in asked if n in orders],
            "bearable": bearable,
        }

    def _release(self, step: float, dim: int, slack: float = 0.0) -> Release:
        """Return a round's sum with the server's noise on it.

        `slack` bounds the float64 rounding error of a coordinate of the sum.
        """
        law, std = law_of(self._noise), self._server_std()
        if law != "gaussian" and isinstance(self._noise, Distributed):
            about = on_grid.of_clients(law, self._clip_norm, step, dim)
            return Release(noise_std=0.0, **about, **self._pattern)
        # Each client rounds separately, which may lengthen its update by step·√d. Under Gaussian
        # noise of its own the rounding must be fine instead.
        rounded = dim if isinstance(self._noise, Central) else 0
        if slack * math.sqrt(rounded) > _NEGLIGIBLE * self._clip_norm:
            step += slack
        moved = self._clip_norm + step * math.sqrt(rounded)
        if law != "gaussian" and std > 0:
            return Release(
                noise_std=std, **on_grid.of_server(law, std, moved, dim), **self._pattern
            )
        return Release(noise_std=std, sensitivity=moved, bit_std=self._bit_std(), **self._pattern)

    def _adapt(self, bits: float, server_round: int) -> None:
        """Move the clip norm towards the quantile, by the noised share of updates below it.

        Andrew et al. (2021), Algorithm 1: if too many are below it, it shrinks. With bits of ±1/2
        one client moves their sum by 1/2, and an absent one by nothing.
        """
        if not isinstance(self._clipping, AdaptiveClip):
            return
        bit_std = self._bit_std()
        assert bit_std is not None
        assert self._expected is not None
        noisy = bits + float(gaussian(1, bit_std, self._rng("bit-noise", server_round))[0])
        below = noisy / self._expected + 0.5
        self._clip_norm *= math.exp(-self._clipping.rate * (below - self._clipping.quantile))


def _outcomes(replies: Sequence[Message]) -> list[wire.SumOutcome]:
    """Return what a secure sum has noted with its mean."""
    return [o for m in replies if (o := wire.sum_outcome(m.content)) is not None]


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
