"""Secure aggregation for Flower's strategies: the server learns the weighted mean and no update.

Bonawitz et al. 2017, Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS),
and Bell et al. 2020, Secure Single-Server Aggregation with (Poly)Logarithmic Overhead (CCS).
Keys and shares travel in `configure_train`, masked updates with the training, and shares of the
masks in `aggregate_train`: the two calls that Flower gives a strategy anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from leakmeter.auditors.auditor import RoundFacts
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Conduct, Finding, ThreatModel
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.hook.wrapper import EndedError, Wrapper, foreigners, weight_key, wrappers
from leakmeter.auditors.noise import distribution_named
from leakmeter.auditors.wording import Assumption
from leakmeter.clients.secure_sum.quantise import CoarseError, Quantiser, SecureMean
from leakmeter.clients.secure_sum.signing import PublicKeys
from leakmeter.clients.secure_sum.wire import put_sum
from leakmeter.strategies.secure_sum.sum_round import (
    AbandonedError,
    Exchange,
    MaskedCohort,
    RejectedError,
    SumRound,
    check_even,
)
from leakmeter.strategies.secure_sum.topology import GraphPlan, Risks, Topology, union

_log = logging.getLogger("flwr")

# Every sum that is opened costs privacy. So many in a row that are rejected end the run.
_MAX_REJECTED = 3


class Masked(Wrapper):
    """Gives `strategy` the secure weighted mean in place of the single replies.

    A server that colludes with at most T clients learns no more than the sum over the honest
    clients that survived: if it follows the protocol, or with `Risks(trusted=…)` whatever it does.
    All clients must be told the same, since their masks are bound to it. Never claimed: the
    validity of what clients send; the privacy of the sum. Clients list `mask_mod` as their first
    mod, or with `trusted` a `MaskMod` with keys of their own.

    Args:
        strategy: Any strategy that needs only the weighted mean of the replies.
        threshold: Shares that open a secret, as a number or as a fraction of the holders; not
            used with neighbours="auto", which computes it.
        neighbours: Peers of each client: None for all, a number for a random regular graph,
            "auto" for the smallest graph that is safe at the stated rates.
        risks: Who may collude or drop out, and what a sparse graph may risk.
        clip_range: Update coordinates are clipped to ± this value.
        bits: Size of the ring; a coordinate takes as many bits of upload, in whole bytes.
        max_weight: Largest weight (number of examples) that a client may state.
        metrics: Name to (low, high) of the metrics to average inside the secure sum.
        stage_timeout: Seconds to wait for the replies of a stage.

    Attributes:
        current: The secure sum between its train messages and its mean; None outside of it.
        num_announced: How many clients have announced keys in the last round.
        asked_to_train: Whether the last round got as far as the training.

    Example:
        strategy = Masked(FedAvg(), max_weight=500, metrics={"train-loss": (0.0, 10.0)})
        result = strategy.start(grid, initial_arrays, num_rounds=20)
    """

    hides_updates = True

    # Keys belong to their round alone. The layout is that of the first record: FedAvg has turned
    # integer arrays into floats since.
    _layout: Kept[Layout | None]
    _last: Kept[int]
    _rejected: Kept[int]  # sums in a row that were opened for nothing
    _tally: Kept[Tally]

    def __init__(
        self,
        strategy: Strategy,
        *,
        threshold: int | float = 2 / 3,
        neighbours: int | Literal["auto"] | None = None,
        risks: Risks = Risks(),  # noqa: B008 - a frozen value
        clip_range: float = 4.0,
        bits: int = 32,
        max_weight: float = 1000.0,
        metrics: Mapping[str, tuple[float, float]] | None = None,
        stage_timeout: float = 600.0,
    ) -> None:
        super().__init__(strategy)
        for inside in wrappers(strategy):
            inside.gets_sums = True
        check_mean_only(strategy)
        self._topology = Topology(threshold=threshold, neighbours=neighbours, risks=risks)
        self._shape: dict[str, Any] = {
            "clip_range": clip_range,
            "bits": bits,
            "max_weight": max_weight,
            "metrics": dict(metrics or {}),
        }
        Quantiser(max_clients=3, **self._shape)  # refuse now, not in round 1
        self._timeout = stage_timeout
        self._weight_key = weight_key(strategy)
        if self._weight_key in self._shape["metrics"]:
            raise BadValueError("metrics", "others than the weight", self._weight_key)
        self._layout = None
        self._last = 0
        self.current: SumRound | None = None
        self.num_announced, self.asked_to_train = 0, False
        self._facts = RoundFacts()
        self._tally = Tally()
        self._rejected = 0
        self._result = Result()
        self._has_warned = False

    @property
    def weight_key(self) -> str:
        """The metric that weights clients."""
        return self._weight_key

    def facts(self) -> RoundFacts:
        """Return what the server learnt in the last round."""
        return self._facts

    def bearable(self, num_clients: int) -> int | None:
        """Return how many of a whole cohort may collude; None if it is too small for a sum."""
        try:
            return self._topology.plan(num_clients).bearable(num_clients)
        except ValueError:
            return None

    def fewest(self, num_clients: int) -> int | None:
        """Return how few of a whole cohort a sum may have; None if the server cannot choose."""
        try:
            return self._topology.plan(num_clients).fewest(num_clients)
        except ValueError:
            return None

    def step(
        self, num_clients: int, noise_std: float = 0.0, noise_distribution: str = "gaussian"
    ) -> float:
        """Return the grid that updates of this many clients, with this noise, are rounded to."""
        return Quantiser(
            max_clients=num_clients,
            noise_std=noise_std,
            noise_distribution=noise_distribution,
            **self._shape,
        ).step

    def findings(self) -> Sequence[Finding]:
        """Say what secure aggregation has hidden, and from whom."""
        return self._tally.findings(self._topology.risks)

    def begin(self) -> None:
        """Prepare for a run; it ends early after three rejected sums in a row."""
        super().begin()
        self._result = Result()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Exchange keys and shares, then return the train messages of the remaining clients."""
        if self._rejected >= _MAX_REJECTED:
            self._result.arrays = arrays
            self.ended = (
                f"{self._rejected} secure sums in a row were opened and rejected, and each further "
                "one would cost privacy; the log says why each of them was"
            )
            _log.error("the run ends early: %s", self.ended)
            raise EndedError(self.ended, self._result)
        self.current, self._facts = None, RoundFacts()
        self.num_announced, self.asked_to_train = 0, False
        messages = list(self._inner_configure_train(server_round, arrays, config, grid))
        check_even(messages)
        is_first, self._last = self._last == 0, max(server_round, self._last + 1)
        if is_first and len(messages) > 2:
            self._check(messages)
        self._layout = self._layout or Layout.of(arrays)
        # By a number of our own: clients refuse a round twice, and a second `start` in one run
        # counts from 1 again.
        numbered = dict(enumerate(messages, start=1))
        exchange = self._exchange(grid, numbered)
        try:
            return self._prepare(exchange, arrays, self._layout)
        except AbandonedError as reason:
            self._abandon(str(reason), exchange)
            return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the masks off the sum and let the inner strategy aggregate the mean."""
        current, self.current = self.current, None
        if current is None:
            return None, None
        try:
            uploads = current.uploads(replies)
            survivors = list(uploads)
            mean = current.total(uploads, lambda: self._charge(current, survivors))
            self._check_weight(mean)
        except RejectedError as reason:
            self._rejected += 1
            self._abandon(str(reason), current.exchange, rejected=True)
            return None, None
        except AbandonedError as reason:
            self._abandon(f"{reason}{_complaint(current.exchange)}", current.exchange)
            return None, None
        self._rejected = 0
        self._facts = RoundFacts(
            aggregate=mean.mean,
            num_clients=mean.num_clients,
            blank=None if self._fixed_weight is not None else mean.blank,
            total_weight=mean.total_weight,
            quantum=mean.quantum,
            saturated=mean.saturated,
            coordinates=mean.num_clients * len(mean.mean),
            asked=len(current.exchange.messages),
        )
        _log.info("secure sum of %d of %d clients", len(survivors), len(current.sharers))
        if mean.saturated:
            _log.warning("%d coordinates were clipped to fit the secure sum", mean.saturated)
        tally = self._tally.with_dropouts(current.exchange.dropped)
        idle = current.num_seats(survivors) + mean.blank
        self._tally = tally.with_round(len(survivors), current.plan, idle=idle, blank=mean.blank)
        assert self._layout is not None
        is_exact = any(inside.needs_exact_sums for inside in wrappers(self.strategy))
        about = (survivors, mean, self._layout, self._weight_key)
        replies = current.replies(*about, is_exact=is_exact)
        made, metrics = self._inner_aggregate_train(server_round, replies)
        if metrics is not None:
            self._result.train_metrics_clientapp[server_round] = metrics
        return made, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Warn once that evaluation replies travel in plain text."""
        messages = list(self._inner_configure_evaluate(server_round, arrays, config, grid))
        if messages and not self._has_warned:
            self._has_warned = True
            _log.warning("clients evaluate: their metrics reach the server one by one, in clear")
        return messages

    def _check(self, messages: Sequence[Message]) -> None:
        """Refuse settings that do not fit the first cohort: that is a mistake, no dropout."""
        num_clients = len(messages)
        plan = self._topology.plan(num_clients)
        Quantiser(max_clients=num_clients, **_noise(messages), **self._shape)
        if plan.risk is not None:
            _log.info(
                "secure sum of %d clients, %d neighbours, threshold %d: P(abort) ≤ %.2g, "
                "P(exposure) ≤ %.2g in a round",
                *(num_clients, plan.degree, plan.threshold, plan.risk.abort, plan.risk.exposure),
            )

    def _prepare(self, exchange: Exchange, arrays: ArrayRecord, layout: Layout) -> list[Message]:
        """Run the stages before the training and return the train messages with their orders."""
        if len(exchange.messages) < 3:
            raise AbandonedError(f"{len(exchange.messages)} clients were chosen, 3 are needed")
        keys = exchange.keys()
        self.num_announced = len(keys)
        try:
            plan = self._topology.plan(len(keys))
        except ValueError as error:
            listed = "" if keys else "; does the client app list mask_mod, as its first mod?"
            raise AbandonedError(
                f"{len(keys)} of {len(exchange.messages)} clients have announced keys: {error}"
                + _complaint(exchange)
                + listed
            ) from None
        cohort = self._cohort(exchange, keys, plan)
        boxes = exchange.boxes(cohort)
        sharers = cohort.enough(boxes)
        # Noise that clients add themselves gets room, so that nothing is clipped after it.
        noise = _noise(exchange.messages.values())
        norm = max(wire.clip_norm(m.content) or 0.0 for m in exchange.messages.values())
        # Integer noise is added after the range clip, so nothing needs room.
        is_added_before = (
            not distribution_named(noise["noise_distribution"]).is_integer
            and noise["noise_std"] > 0
        )
        if is_added_before and norm > self._shape["clip_range"]:
            raise BadValueError(
                "clip_range",
                f"at least the clip norm {norm:g} where clients add noise, or updates find no room",
                self._shape["clip_range"],
            )
        try:
            quantiser = Quantiser(max_clients=len(sharers), **noise, **self._shape)
        except CoarseError as error:  # more clients than in the first round: a coarser grid
            raise AbandonedError(str(error)) from None
        start = layout.flatten(arrays)
        self.asked_to_train = True
        self.current = SumRound(exchange, plan, cohort, sharers, quantiser, arrays, start)
        shared = put_sum(quantiser, layout, self._weight_key)
        return [
            exchange.order(
                number,
                {peer: boxes[peer][number] for peer in cohort.neighbourhood(number, sharers)},
                shared,
            )
            for number in sorted(sharers)
        ]

    def _exchange(self, grid: Grid, messages: Mapping[int, Message]) -> Exchange:
        """Return what asks the clients of this round, by their numbers."""
        return Exchange(grid, messages, self._last, self._timeout, self._topology.risks.keys)

    def _cohort(
        self, exchange: Exchange, keys: Mapping[int, PublicKeys], plan: GraphPlan
    ) -> MaskedCohort:
        """Return who masks with whom: drawn here, or by the clients themselves."""
        if not plan.is_drawn:
            return MaskedCohort(exchange.session, keys, plan.draw(sorted(keys)), plan.threshold)
        drawn = exchange.draws(plan.degree, plan.threshold)
        return MaskedCohort(exchange.session, keys, union(keys, drawn), plan.threshold, drawn)

    def _charge(self, current: SumRound, uploads: Sequence[int]) -> None:
        """Let the strategies inside charge the sum, and whoever keeps the charges keep them."""
        opening = current.opening(uploads, self._fixed_weight)
        for inside in wrappers(self.strategy):
            inside.opens(opening)
        if self.before_release is not None:
            self.before_release()

    @property
    def _fixed_weight(self) -> float | None:
        """The weight that every client must have for a strategy inside; None for any."""
        fixed = (inside.fixed_weight for inside in wrappers(self.strategy))
        return next((weight for weight in fixed if weight is not None), None)

    def _check_weight(self, mean: SecureMean) -> None:
        """Reject a sum in which somebody weighs more or less than a strategy inside counts on."""
        fixed = self._fixed_weight
        if fixed is None:
            return
        if mean.blank:  # a client that noises always has something to send
            raise RejectedError(f"{mean.blank} clients of a noised sum have added no noise")
        if mean.total_weight == fixed * mean.num_clients:
            return
        average = mean.total_weight / mean.num_clients
        raise RejectedError(
            f"{self._weight_key} must be {fixed:g} under noise, got {average:g} from the clients "
            "of a secure sum, on average: list noise_mod, or with water filling fill_mod, in the "
            "client app"
        )

    def _abandon(self, reason: str, exchange: Exchange, *, rejected: bool = False) -> None:
        """Give the round up; the model stays, and the next round starts."""
        done = "opened, rejected and charged" if rejected else "abandoned"
        _log.warning("secure sum %s, the model stays as it is: %s", done, reason)
        self._tally = self._tally.with_dropouts(exchange.dropped).with_abandoned()
        self._facts = RoundFacts(abandoned=reason, rejected=rejected or None)


def _noise(messages: Iterable[Message]) -> dict[str, Any]:
    """Return the noise that the messages ask each client to add, as arguments of a quantiser."""
    asked = [(wire.share_std(m.content), wire.noise_distribution(m.content).name) for m in messages]
    std, name = max(asked, default=(0.0, "gaussian"))
    return {"noise_std": std, "noise_distribution": name}


def _complaint(exchange: Exchange) -> str:
    """Return what a client that failed has said, as the end of a sentence."""
    return f"; one failed in stage {exchange.complaint}" if exchange.complaint else ""


def check_is_inside(wrapper: Wrapper) -> None:
    """Raise if a wrapper that belongs inside `Masked` holds one."""
    if any(isinstance(held, Masked) for held in wrappers(wrapper)):
        name = type(wrapper).__name__
        raise TypeError(f"{name} must be inside Masked: write Masked({name}(strategy, ...))")


# What a sum depends on, by what the server may do.
_RELAY: Mapping[Conduct, tuple[str, ...]] = {
    "curious": (Assumption.HONEST_RELAY,),
    "active": (Assumption.TRUSTED_KEYS, Assumption.OWN_APP, Assumption.OWN_THRESHOLD),
}
_ALWAYS = (Assumption.COMPUTATIONAL, Assumption.SUM_NOT_JUDGED)
_RULES: Mapping[Conduct, str] = {
    "curious": "secure sum: pairwise and self masks, shared secrets",
    "active": "secure sum: pairwise and self masks, shared secrets, signed keys and survivors",
}


@dataclass(frozen=True)
class Tally:
    """Counts over the rounds so far.

    Attributes:
        rounds: Rounds that gave a sum.
        abandoned: Rounds that gave none.
        survivors: Clients in the smallest sum, canary seats among them.
        uninstructed: Fewest clients in a sum that have an update of their own: they play no canary,
            and their training has not failed. What a canary seat sends is known to whoever ordered
            it, and an update that is not there hides nobody. Of a server that may do anything it is
            the fewest that clients would have accepted.
        blank: Updates, over all rounds, that their clients could not send.
        colluders: Most clients that could collude with the server in every round.
        exposure: Chance that sparse graphs have exposed some client, added up over the rounds;
            None while all graphs were complete.
        dropped: Stage to the clients that dropped out in it, abandoned rounds included. Who drops
            out while masks are taken off is in the sum nevertheless.
    """

    rounds: int = 0
    abandoned: int = 0
    survivors: int = 0
    uninstructed: int = 0
    colluders: int = 0
    blank: int = 0
    exposure: float | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)

    def with_round(self, survivors: int, plan: GraphPlan, *, idle: int, blank: int = 0) -> Self:
        """Return the tally with one more sum.

        Args:
            survivors: Clients in it.
            plan: Graph and threshold of the round.
            idle: Survivors that hide nobody: they play a canary, or have sent no update.
            blank: Those that have sent no update.
        """
        others = plan.with_update(survivors, idle)
        bearable = plan.bearable(others)
        if plan.server == "active" and idle > blank:
            # Clients that list canary_mod accept all but two of a sum as seats.
            others = min(others, bearable + 2)
        if self.rounds:
            survivors, bearable = min(survivors, self.survivors), min(bearable, self.colluders)
            others = min(others, self.uninstructed)
        return replace(
            self,
            rounds=self.rounds + 1,
            survivors=survivors,
            uninstructed=others,
            colluders=bearable,
            blank=self.blank + blank,
            exposure=(self.exposure or 0.0) + plan.risk.exposure if plan.risk else self.exposure,
        )

    def with_dropouts(self, dropped: Mapping[str, int]) -> Self:
        """Return the tally with the dropouts of one more round, by stage."""
        stages = [*self.dropped, *(stage for stage in dropped if stage not in self.dropped)]
        counts = {s: self.dropped.get(s, 0) + dropped.get(s, 0) for s in stages}
        return replace(self, dropped=counts)

    def with_abandoned(self) -> Self:
        """Return the tally with one more round that gave no sum."""
        return replace(self, abandoned=self.abandoned + 1)

    def findings(self, risks: Risks) -> Sequence[Finding]:
        """Say what was hidden from whom; nothing if there was no sum."""
        server = risks.server
        if not self.rounds:
            return ()
        chance: tuple[str, ...] = ()
        facts: dict[str, float] = {
            "rounds": self.rounds,
            "abandoned": self.abandoned,
            "clients in the smallest sum": self.survivors,
        }
        facts |= {"updates that clients could not send": self.blank} if self.blank else {}
        facts |= {f"dropouts in stage {s}": count for s, count in self.dropped.items() if count}
        if self.exposure is not None:
            is_drawn = server == "active"
            chance = (
                Assumption.COLLUDERS_FIXED_BEFOREHAND
                if is_drawn
                else Assumption.RATES_FIXED_BEFOREHAND,
            )
            if not is_drawn:  # drawn neighbours bear any dropouts
                facts["largest dropout rate"] = risks.dropout_rate
            facts["largest collusion rate"] = risks.collusion_rate
            facts["chance that a client was exposed"] = self.exposure
        return [
            Finding(
                value=float(max(self.uninstructed - self.colluders, 0)),
                kind="guarantee",
                quantity="honest clients in the smallest sum",
                rule=_RULES[server],
                auditor="secure-sum",
                threat_model=ThreatModel(
                    observer="server",
                    sees="round sum",
                    knows_cohort=True,
                    colluders=self.colluders,
                    conduct=server,
                ),
                assumptions=(*_RELAY[server], *_ALWAYS, *chance),
                facts=facts,
            )
        ]


# By name, since not every release has all of them.
_NEED_REPLIES = {
    "Bulyan": "it compares single updates",
    "DifferentialPrivacyClientSideAdaptiveClipping": "it reads a bit of each client in clear",
    "DifferentialPrivacyServerSideAdaptiveClipping": "it clips single updates on the server",
    "DifferentialPrivacyServerSideFixedClipping": "it clips single updates on the server",
    "FedMedian": "a median is no weighted mean",
    "FedTrimmedAvg": "trimming needs single updates",
    "FedXgbBagging": "trees are no vectors to be added",
    "FedXgbCyclic": "trees are no vectors to be added",
    "Krum": "it compares single updates",
    "MultiKrum": "it compares single updates",
    "QFedAvg": "its weights depend on each client's loss",
}


def check_mean_only(strategy: Strategy) -> None:
    """Raise with the reason if a strategy in the chain needs more than the weighted mean."""
    for held in foreigners(strategy):
        for name, reason in _NEED_REPLIES.items():
            if name in held.kinds:
                raise TypeError(
                    f"strategy must need only the weighted mean inside Masked, got {name}: {reason}"
                )
