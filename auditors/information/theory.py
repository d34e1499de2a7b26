"""Figures of information, and theory about a secure sum: Gaussian truth, upper bounds, entropies.

Source: Elkordy et al. 2023, How Much Privacy Does Federated Learning with Secure Aggregation
Guarantee? (PoPETs 2023(1); arXiv:2208.02304), Theorem 1 and Corollaries 1 and 2.

How ours differs from the print:
1. (16) counts the rounds that a user takes part in as K/N; over T rounds it is T·K/N.
2. (25) loses a factor d*, which (26) has again; we keep it.
3. Case 2 asks of the whitened gradient, whose covariance is the identity, a density with
   curvature of at least the identity. By Brascamp and Lieb only a Gaussian has both, and for it
   the excess over the Gaussian term is really 0. The formula is offered as printed.
4. C_0 of Case 1 is only said to exist. Whoever uses the bound states it, and the result says so.
5. An update is a function of records and batches, so it carries at most their entropy. The paper
   has no such limit; its Gaussian term alone exceeds it for large models (`update_entropy`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from scipy.special import gammaln

from leakmeter.auditors.finding import Bound, Kind
from leakmeter.auditors.sampling.sampler import UpdateSampler
from leakmeter.auditors.values import within
from leakmeter.auditors.wording import Assumption

NATS_PER_BIT = math.log(2)


@dataclass(frozen=True)
class Information:
    """Mutual information in nats, with what is needed to print it honestly.

    Attributes:
        nats: The value; infinite where the sum gives the update away.
        kind: How strong it is; see `auditors.finding.Kind`.
        rule: How it was computed, for people; in bits, so logarithms are log₂.
        std_error: Standard error in nats; None for a figure that is not estimated from samples.
        rank: Dimension d* in which it was computed, if it has one.
        variance_kept: Share of the variance inside the subspace used; 1 for the whole space.
        sample_sizes: How many samples of what went in.
        cap: The largest value in nats that the method could have shown, if there is one.
        assumptions: What must hold for the kind to be deserved.
        facts: Constants that the assumptions refer to.
    """

    nats: float
    kind: Kind
    rule: str
    std_error: float | None = None
    rank: int | None = None
    variance_kept: float = 1.0
    sample_sizes: Mapping[str, int] = field(default_factory=dict)
    cap: float | None = None
    assumptions: tuple[str, ...] = ()
    facts: Mapping[str, float] = field(default_factory=dict)

    @property
    def bits(self) -> float:
        """The value in bits."""
        return self.nats / NATS_PER_BIT

    def limited(self, nats: float | None) -> Information:
        """Return the smaller of this figure and the entropy of what is random; None: no limit.

        >>> Information(9.0, "approximation", "by a model").limited(2.0).nats
        2.0
        """
        if nats is None:
            return self
        known = replace(
            self,
            cap=nats if self.cap is None else min(self.cap, nats),
            assumptions=(*self.assumptions, Assumption.NOTHING_ELSE_RANDOM),
        )
        if self.nats < nats:
            return known
        rule = f"{self.rule}; limited to the entropy of the client's records and batches"
        return replace(known, nats=nats, std_error=None, rule=rule)

    def bound(self) -> Bound:
        """Return the value in bits as the number that an auditor reports.

        >>> Information(math.log(8), "estimate", "counting").bound().value
        3.0
        """
        return Bound(
            value=self.bits,
            kind=self.kind,
            rule=self.rule,
            sample_sizes=self.sample_sizes,
            cap=None if self.cap is None else self.cap / NATS_PER_BIT,
            saturated=self.cap is not None and self.nats >= self.cap,
            assumptions=self.assumptions,
        )


@dataclass(frozen=True)
class IndependentWhitened:
    """Case 1: the whitened gradient has independent entries with finite fourth moments.

    Attributes:
        constant: C_0 of (9), at least 0. It depends on the distribution; a Gaussian has 0.
    """

    name: ClassVar[str] = "Case 1"
    assumption: ClassVar[Assumption] = Assumption.WHITENED_INDEPENDENT
    constant: float

    def __post_init__(self) -> None:
        within("constant", self.constant, lowest=0.0)

    @property
    def constants(self) -> Mapping[str, float]:
        """What was stated, by name."""
        return {"c_0": self.constant}

    def excess(self, rank: int) -> float:
        """Return the numerator of the first term of (9): d* C_0."""
        return rank * self.constant


@dataclass(frozen=True)
class LogConcaveWhitened:
    """Case 2: the whitened gradient is uniformly sigma-log-concave.

    Attributes:
        sigma: In (0, 1]; the identity covariance allows no more.
        entropy: h(g) - ½ ln|Σ_g| in nats: the entropy of the whitened gradient.
    """

    name: ClassVar[str] = "Case 2"
    assumption: ClassVar[Assumption] = Assumption.WHITENED_LOG_CONCAVE
    sigma: float
    entropy: float

    def __post_init__(self) -> None:
        within("sigma", self.sigma, above=0.0, highest=1.0)
        within("entropy", self.entropy)

    @property
    def constants(self) -> Mapping[str, float]:
        """What was stated, by name."""
        return {"sigma": self.sigma, "entropy_nats": self.entropy}

    def excess(self, rank: int) -> float:
        """Return the numerator of the first term of (10): (d* C_1 - C_2) / sigma⁴."""
        # Of all distributions with identity covariance the Gaussian has the most entropy.
        gaussian = rank / 2 * math.log(2 * math.pi * math.e)
        within("entropy", self.entropy, highest=gaussian * (1 + 1e-12))
        # As printed: at σ = 1 and the Gaussian's entropy it is 2 d*, where the true excess is 0 (3
        # above).
        c_1 = 2 * (1 + self.sigma + math.log(2 * math.pi) - math.log(self.sigma))
        c_2 = 4 * self.entropy
        return (rank * c_1 - c_2) / self.sigma**4


Case = IndependentWhitened | LogConcaveWhitened


@dataclass(frozen=True)
class UpdateEntropy:
    """Entropy of everything random in a client's updates, in nats; see `update_entropy`.

    Attributes:
        records: Of which records the client holds. They are drawn once and kept in all rounds.
        batches: Of one round's batches, given the records. They are drawn again in every round.
        alone: Of one round's batches if the records are unknown and not kept. Less than `records`
            plus `batches` where a round uses only some of the records.
    """

    records: float
    batches: float
    alone: float

    def over(self, rounds: int) -> float:
        """Return the most that any observer can learn about the updates of this many rounds."""
        # Two bounds of one joint entropy: the chain rule, with the records drawn once, and
        # subadditivity, with each round's batches as if their records were drawn again. Few rounds
        # favour the second.
        return min(self.records + rounds * self.batches, rounds * self.alone)


# Entropy of a client's updates, by its number; None where something else is random too.
LimitOf = Callable[[int], UpdateEntropy | None]


@dataclass(frozen=True)
class Theory:
    """What theory a measured figure is compared with.

    Attributes:
        cases: What is assumed of the gradients, for the bound of Theorem 1; none for no bound. The
            bound is about FedSGD only.
        batch_size: Records per update, for that bound.
        limit: Gives the entropy of a client's updates, which no figure may exceed.
        entropy_bits: Entropy of the target's data, if the figure is wanted as a share of it.
    """

    cases: Sequence[Case] = ()
    batch_size: int = 1
    limit: LimitOf | None = None
    entropy_bits: float | None = None

    def __post_init__(self) -> None:
        within("batch_size", self.batch_size, lowest=1)
        if self.entropy_bits is not None:
            within("entropy_bits", self.entropy_bits, above=0.0)

    def covers(self, sampler: UpdateSampler) -> bool:
        """Whether Theorem 1 may be about these clients: FedSGD, and independent updates."""
        return sampler.sends_gradient is not False and sampler.game != "partition"

    def over_rounds(self, rank: int, rounds: int, nats: float) -> Information:
        """Return Corollary 1: the sum of the bounds of a client's rounds."""
        # Which case is the smallest depends on the rank alone; so do assumptions and constants.
        one = round_bound(rank, 2, self.batch_size, cases=self.cases)
        rule = f"Corollary 1 over {rounds} rounds, each with its own bound; {one.rule}"
        return replace(one, nats=nats, rule=rule)


def gaussian_information(rank: int, users: int) -> Information:
    """Return I(x_i; x_1 + … + x_N) of independent, equally distributed Gaussian updates.

    It is (d*/2) ln(N / (N - 1)) nats, the second term of (9); exact for Gaussians, and what a
    Gaussian model says about any other distribution.

    Args:
        rank: Rank d* of the updates' covariance, at least 0.
        users: Users N in the sum, at least 2.

    >>> round(gaussian_information(7850, 2).nats, 1)
    2720.6
    """
    rank, users = whole("rank", rank, 0), _summed("users", users)
    return Information(
        nats=_gaussian_nats(rank, users),
        kind="approximation",
        rule="(d*/2) log₂(N / (N − 1))",
        rank=rank,
        assumptions=(Assumption.ALIKE_GAUSSIAN_UPDATES,),
    )


def round_bound(
    rank: int,
    users: int,
    batch_size: int,
    *,
    cases: Sequence[Case],
    dropped: int = 0,
    colluding: int = 0,
) -> Information:
    """Return the upper bound on what one round of FedSGD reveals about a user's update.

    Theorem 1, (9) and (10), joined as in (11); Corollary 2, (15), where users drop out or collude:
    the server takes their part off the sum, so only the others hide the target.

    Args:
        rank: Rank d* of the gradient's covariance, at least 0.
        users: Users whose updates are summed, before anybody drops out.
        batch_size: Records per update, B.
        cases: What is assumed of the gradient; the smallest bound among them counts.
        dropped: Users who drop out of the round.
        colluding: Survivors who show the server their update.

    Raises:
        ValueError: If fewer than 2 honest survivors remain, since the server then has the update.
    """
    rank, batch_size = whole("rank", rank, 0), whole("batch_size", batch_size, 1)
    if not cases:
        raise ValueError("cases must contain at least one Case, got none")
    gone = whole("dropped", dropped, 0) + whole("colluding", colluding, 0)
    honest = _summed("users - dropped - colluding", whole("users", users, 1) - gone)
    # (11): both cases have the same Gaussian term, so the smaller excess decides.
    best = min(cases, key=lambda case: case.excess(rank))
    return Information(
        # The excess falls as 1/((N - 1) B): by the central limit theorem the sum of the others
        # comes closer to a Gaussian with every further record.
        nats=_gaussian_nats(rank, honest) + best.excess(rank) / ((honest - 1) * batch_size),
        kind="guarantee",
        rule=f"Theorem 1, {best.name}",
        rank=rank,
        assumptions=(Assumption.ALIKE_GRADIENTS, best.assumption, Assumption.FEDSGD),
        facts={"batch_size": batch_size, **best.constants},
    )


def update_entropy(
    records: int, own: int, batches: Sequence[int], *, epochs: int = 1
) -> UpdateEntropy:
    """Return the entropy of all that is random in a client's update, which limits any leak of it.

    The client holds a uniform choice of m out of M records, keeps it over the rounds, and in each
    epoch cuts a uniform order of them into batches of b_1, b_2, … records. Then its update takes
    at most C(M, m) · (m! / Π b_i!)^epochs values, up to the rounding of sums.

    Args:
        records: Records M that the client's are drawn from; `own` where they are known.
        own: Records m that the client holds.
        batches: Records b_i of each step of one epoch, `own` or fewer in all.
        epochs: Passes over the records in one round.

    The digits job with its defaults:

    >>> one = update_entropy(1433, 24, [8, 8, 8], epochs=2)
    >>> round(one.over(1) / math.log(2), 1), round(one.over(10) / math.log(2), 1)
    (238.6, 835.1)
    """
    records, own = whole("records", records, 1), whole("own", own, 1)
    epochs, used = whole("epochs", epochs, 0), [whole("batches", b, 1) for b in batches]
    if own > records:
        raise ValueError(f"own must be in [1, records = {records}], got {own}")
    if sum(used) > own:
        raise ValueError(f"batches must contain at most own = {own} records, got {sum(used)}")
    # C(M, m) sets of records; per epoch m! / Π b_i! orders, as the order within a batch is no
    # matter.
    return UpdateEntropy(
        records=_log_choices(records, [own]),
        batches=epochs * _log_choices(own, used),
        alone=epochs * _log_choices(records, used),
    )


def _log_choices(total: int, parts: Sequence[int]) -> float:
    """Return the log number of ways to take disjoint parts of these sizes out of `total`."""
    # Multinomial: total! / (Π parts! · rest!), by ln Γ since the factorials overflow from 171 on.
    rest = total - sum(parts)
    if rest == 0 and len(parts) == 1:  # exactly 0, where gammaln would leave a rounding error
        return 0.0
    return float(gammaln(total + 1) - gammaln(np.array([*parts, rest]) + 1).sum())


def _gaussian_nats(rank: int, users: int) -> float:
    # ln(N / (N - 1)) = -ln(1 - 1/N): log1p keeps all digits where N is large and the ratio near 1.
    return rank / 2 * -math.log1p(-1 / users)


def _summed(name: str, users: int) -> int:
    """Return `users` as a number of updates that hide each other."""
    if (count := whole(name, users, 0)) < 2:
        raise ValueError(
            f"{name} must be at least 2, got {count}: a sum of one update is that update, and its "
            "information has no bound"
        )
    return count


def whole(name: str, value: int, lowest: int) -> int:
    """Return a whole number of at least `lowest`; anything else is refused by its name."""
    if value != int(value) or value < lowest:
        raise ValueError(f"{name} must be a whole number of at least {lowest}, got {value}")
    return int(value)
