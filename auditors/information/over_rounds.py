"""What the sums of all rounds together reveal about a client's data.

Elkordy et al. (2023), arXiv:2208.02304, section 5.4 and Corollary 1. A client keeps its data D over
its rounds, so later sums repeat part of what earlier ones revealed, and the sum over single rounds
is too large. Ours differs from the paper in four points:
1. The models are those of the real run. So the figure is I(D; A | models), with A the sums of the
   client's rounds side by side, each along a few directions that were fixed on other draws.
2. Draws come in pairs that share D and nothing else. With C the covariance of one client's updates
   over its rounds and B the covariance of the two halves of a pair, B is the part that D explains.
3. Clients are independent and alike, so the covariance of the sums needs no draws of sums: it is
   Σ = n ∘ C, with n(t, s) the clients that take part in both round t and round s. The figure is
   ½ ln|Σ| − ½ ln|Σ − B|. All errors are relative to it: with draws of sums they would be as large
   as for a client that is alone.
4. The same halves in shuffled pairs share nothing. They give the null band, and a figure inside it
   may be zero.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from leakmeter.auditors.audited_round import AuditedRound
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.information.draws import ConstantUpdatesError, Draws
from leakmeter.auditors.information.theory import Information
from leakmeter.auditors.rng import stream as numbers
from leakmeter.auditors.sampling.sampler import Stream
from leakmeter.auditors.values import Floats, Vector
from leakmeter.auditors.wording import Assumption

MIN_PAIRS = 20
_SHUFFLES = 200  # behind the null band
_GROUPS = 20  # of pairs, for the jackknife
_ROOM = 2  # pairs for each number that is looked at
_MANY_TRAININGS = 20_000  # that are worth a line


@dataclass(frozen=True)
class PairedDraws:
    """Updates of one client in one round, in pairs that share its data.

    Attributes:
        server_round: Which round.
        hidden: Clients in the sum that the observer does not know.
        noise_std: Noise of the mechanism on each coordinate of the sum.
        halves: Both halves of each pair along the directions, (2, pairs, directions).
    """

    server_round: int
    hidden: tuple[int, ...]
    noise_std: float
    halves: Floats


@dataclass(frozen=True)
class OverRounds:
    """What the rounds of a client reveal together.

    Attributes:
        figure: The information about its data.
        null_band: In nats, 5 % and 95 % quantiles of the same figure for shuffled pairs.
        is_told_from_zero: Whether the figure is above that band.
        single_rounds: Sum of the figures of the single rounds, in nats.
        rounds: How many rounds.
        client: Whose.
    """

    figure: Information
    null_band: tuple[float, float]
    is_told_from_zero: bool
    single_rounds: float
    rounds: int
    client: int


def directions_of(pairs: int, rounds: int, most: int | None) -> int:
    """Return along how many directions each round is looked at, so that the draws suffice.

    Raises:
        ValueError: There are too few pairs for one direction per round.
    """
    least = max(MIN_PAIRS, _ROOM * rounds)
    if pairs < least:
        enough = f"at least {least} for the information over {rounds} audited rounds"
        raise BadValueError("pairs", enough, pairs, fix="Use more pairs, or audit fewer rounds")
    return min(8 if most is None else most, pairs // (_ROOM * rounds))


def many_trainings(pairs: int, rounds: int, directions: int) -> list[str]:
    """Say how many more trainings the information over all rounds takes, if they are many."""
    each = 2 * pairs + _fit_draws(directions)
    if (total := each * rounds) < _MANY_TRAININGS:
        return []
    return [
        f"the information over all rounds trains a client {total:,} times more, {each:,} times "
        "in each audited round: fewer pairs cost less and show less"
    ]


def _fit_draws(directions: int) -> int:
    # Three samples per direction, as elsewhere, and some to spare for the client's own mean.
    return 3 * directions + 2


def draw_pairs(
    drawn: Draws, pairs: int, directions: int, *, names: Stream, server_round: int
) -> Floats | None:
    """Return a client's updates in pairs that share its data, (2, pairs, directions).

    Draw m of every round has the same data: it comes from a stream that does not name the round.

    Args:
        drawn: Draws of one client in the round.
        pairs: How many.
        directions: Along how many directions, fixed on draws of their own.
        names: Names the randomness.
        server_round: Which round.

    Returns:
        None if the sampler cannot keep a client's data.

    Raises:
        ConstantUpdatesError: No update varies.
    """
    kept = drawn.sampler.keeping((*names, "data"))
    if kept is None:
        return None
    fit, here = _fit_draws(directions), (*names, server_round)
    subspace, _ = drawn.subspace(directions, fit, (*here, "directions"))
    keeping = replace(drawn, sampler=kept)
    # The stream names round and half, so batches differ; the data come from the stream of `kept`.
    halves = (keeping.along(subspace, pairs, (*here, half), "pairs of draws") for half in range(2))
    return np.stack([half[:, 0] for half in halves])


def paired_draws(
    audited: AuditedRound, pairs: int, directions: int, names: Stream
) -> list[PairedDraws]:
    """Return the pairs of a round; none if no update varies, or data cannot be kept."""
    # Clients of the game are alike, whether they take part or not: client 0 stands for all.
    drawn, server_round = replace(Draws.of(audited), clients=[0]), audited.server_round
    try:
        halves = draw_pairs(drawn, pairs, directions, names=names, server_round=server_round)
    except ConstantUpdatesError:
        return []
    hidden, noise_std = tuple(audited.hidden), audited.noise_std
    return [] if halves is None else [PairedDraws(server_round, hidden, noise_std, halves)]


def over_rounds(drawn: Sequence[PairedDraws], client: int | None, seed: int) -> OverRounds | None:
    """Return what the rounds of a client reveal about its data; None if it was in none.

    Args:
        drawn: The audited rounds, at least one.
        client: Who; only the rounds that it takes part in count. None takes whoever has the most.
        seed: Of the shuffles.
    """
    if client is None:
        counts = Counter(c for one in drawn for c in one.hidden)
        # Of equally many rounds the first client: clients are alike, so this is no selection.
        client = min(counts, key=lambda c: (-counts[c], c))
    rounds = [one for one in drawn if client in one.hidden]
    if not rounds:
        return None
    joint = _Joint.of(rounds)
    nats = joint.information()
    rng = numbers(seed, "over-rounds", "null")
    # Shuffled, B is 0 in truth: what the figure then shows is the noise of its estimate.
    null = [joint.information(rng.permutation(joint.pairs)) for _ in range(_SHUFFLES)]
    low, high = np.quantile(null, (0.05, 0.95))
    told = nats > float(high)
    rule = (
        f"what the sums of {len(rounds)} audited rounds together reveal about one client's data, "
        f"at the models of the run: ½ log₂|Σ| − ½ log₂|Σ − B| along {joint.numbers} directions in "
        "all"
    )
    figure = Information(
        nats=max(nats, 0.0),
        kind="approximation",
        rule=rule if told else f"{rule}; may be zero with so few draws",
        std_error=joint.std_error(),
        rank=joint.numbers,
        sample_sizes={"pairs of draws": joint.pairs, "audited rounds": len(rounds)},
        assumptions=(Assumption.ALIKE_GAUSSIAN_UPDATES, Assumption.MODELS_AS_SENT),
    )
    return OverRounds(
        figure,
        (max(float(low), 0.0), max(float(high), 0.0)),
        told,
        math.fsum(max(_Joint.of([one]).information(), 0.0) for one in rounds),
        len(rounds),
        client,
    )


@dataclass(frozen=True)
class _Joint:
    """The draws of several rounds side by side.

    Attributes:
        halves: Both halves of each pair around their mean, (2, pairs, numbers).
        together: Clients that take part in the rounds of each two numbers, (numbers, numbers).
        noise: Variance of the noise on each number, (numbers,).
    """

    halves: Floats
    together: Floats
    noise: Vector

    @classmethod
    def of(cls, rounds: Sequence[PairedDraws]) -> _Joint:
        halves = np.concatenate([one.halves for one in rounds], axis=2)
        which = np.repeat(np.arange(len(rounds)), [one.halves.shape[2] for one in rounds])
        # n(t, s) of the module docstring, (rounds, rounds); a client in one round only adds no
        # covariance.
        counts = np.array(
            [[len(set(a.hidden) & set(b.hidden)) for b in rounds] for a in rounds], dtype=np.float64
        )
        noise = np.array([one.noise_std**2 for one in rounds])[which]
        centred = halves - halves.mean(axis=(0, 1))
        # From (rounds, rounds) to (numbers, numbers): all directions of a round share its counts.
        return cls(centred, counts[np.ix_(which, which)], noise)

    @property
    def pairs(self) -> int:
        return len(self.halves[0])

    @property
    def numbers(self) -> int:
        return len(self.noise)

    def information(self, order: Any = None) -> float:
        """Return the figure in nats, perhaps with the second halves in another order.

        Σ − B = (n − 1) ∘ C + (C − B), and C − B is the scatter of the differences of a pair: both
        parts have no negative eigenvalue, whatever the draws.
        """
        first, second = self.halves[0], self.halves[1] if order is None else self.halves[1][order]
        # 2 (M - 1): both halves of M pairs, or, in C - B = ½ Cov(a - b), the ½ of the difference.
        scale = 2 * (len(first) - 1)
        total = (first.T @ first + second.T @ second) / scale  # C, (numbers, numbers)
        apart = (first - second).T @ (first - second) / scale  # C − B
        noise = np.diag(self.noise)
        seen = _log_det(self.together * total + noise)
        given = _log_det((self.together - 1) * total + apart + noise)
        if math.isinf(seen) and math.isinf(given):
            return 0.0  # nothing varies in some direction, neither does it reveal anything
        return 0.5 * (seen - given)

    def std_error(self) -> float | None:
        """Return the jackknife's standard error, leaving out groups of pairs."""
        found = []
        for group in np.array_split(np.arange(self.pairs), _GROUPS):
            rest = np.delete(self.halves, group, axis=1)
            left = _Joint(rest - rest.mean(axis=(0, 1)), self.together, self.noise)
            found.append(left.information())
        if not np.isfinite(found).all():
            return None
        # Delete-a-group: (g - 1)/g · Σ (θ_(-k) - mean)², and np.var divides by g.
        return math.sqrt((len(found) - 1) * float(np.var(found)))


def _log_det(matrix: Floats) -> float:
    # Not a Cholesky factor: without noise a direction may have no variance at all.
    sign, value = np.linalg.slogdet(matrix)
    return float(value) if sign > 0 else -math.inf
