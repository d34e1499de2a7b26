"""The MINE audit: what do neural critics find of one client's update in the sum of a round?

Belghazi et al. 2018, Mutual Information Neural Estimation (arXiv:1801.04062), as in section 4.1 of
Elkordy et al. 2023 (arXiv:2208.02304). Ours differs in four points:
1. Critics look along the directions of the log-det audit (`auditor`), and share its draws. In all
   coordinates of a model they find next to nothing of thousands of nats.
2. Values are of draws that no critic was trained on, next to those of shuffled pairs. The paper's
   reading, on training samples, finds about as much in shuffled pairs and is not made.
3. Few draws of many clients are enough, since they are recombined (`critics`).
4. The figure of the run is the mean over its audited rounds, never the largest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import stdtrit

from leakmeter.auditors.audited_round import AuditedRound, SumObserver
from leakmeter.auditors.auditor import Project
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.finding import Finding, Game
from leakmeter.auditors.information.auditor import InformationAuditor
from leakmeter.auditors.information.critics import PARTS, GuidedCritic, Pairing, train
from leakmeter.auditors.information.draws import DrawPlan, Draws
from leakmeter.auditors.information.findings import NEURAL, Claims
from leakmeter.auditors.information.theory import Information, LimitOf, Theory
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.sampler import RoundSampler
from leakmeter.auditors.values import Floats, within
from leakmeter.auditors.wording import Assumption, counted

MAX_DIRECTIONS = 200  # from here on held-out critics find nothing, whatever there is
MIN_DRAWS = 8  # two in each of four parts: a stranger takes another draw of the same part
MIN_PAIRS = 20


@dataclass(frozen=True)
class Critics:
    """How many critics look at a round, and how they are trained.

    Attributes:
        count: Critics on the pairs as they are, and as many on shuffled ones. Four, or a multiple,
            test on every draw equally often.
        steps: Steps of ascent; validation chooses one of them.
        hidden: Width of both hidden layers.
        rate: Learning rate of Adam.
        device: Where torch trains them, such as "cuda". Pairs and weights are drawn on the CPU.
    """

    count: int = 4
    steps: int = 20
    hidden: int = 32
    rate: float = 1e-3
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, lowest in (("count", 2), ("steps", 0), ("hidden", 1)):
            within(name, getattr(self, name), lowest=lowest)
        within("rate", self.rate, above=0.0)


@dataclass(frozen=True)
class HeldOut:
    """Held-out NWJ values in nats: their mean over the critics is the estimate.

    Attributes:
        values: One per critic.
        nulls: One per critic on shuffled pairs.
        pairs: Updates behind them, K: draws times clients.
    """

    values: tuple[float, ...]
    nulls: tuple[float, ...]
    pairs: int

    @property
    def mean(self) -> float:
        """Mean over the critics."""
        return float(np.mean(self.values))

    @property
    def std_error(self) -> float:
        """Standard error of the mean; critics share the samples, so it is not all."""
        return float(np.std(self.values, ddof=1) / math.sqrt(len(self.values)))

    @property
    def null_band(self) -> tuple[float, float]:
        """What critics find in shuffled pairs: 90 %, widened by the error of the estimate."""
        return null_band(self.nulls, 1.0, self.std_error)

    @property
    def cap(self) -> float:
        """ln K: no distribution-free lower bound from K pairs goes much beyond it."""
        return math.log(self.pairs)


def null_band(nulls: Sequence[float], share: float, error: float) -> tuple[float, float]:
    """Return Student's 90 % band of an estimate without a leak.

    Critics on shuffled pairs often find exactly 0, while an estimate varies with its test draws. So
    its own error counts too: without it, next to nothing would be beyond the band.

    Args:
        nulls: Values without a leak, at least 2.
        share: Variance of the estimate without a leak, as a share of that of one value.
        error: Standard error of the estimate.

    >>> low, high = null_band([-1.0, 0.0, 1.0], 1.0, 0.0)
    >>> round(low, 2), round(high, 2)
    (-3.37, 3.37)
    """
    variance = float(np.var(nulls, ddof=1)) * (share + 1 / len(nulls)) + error**2
    reach = float(stdtrit(len(nulls) - 1, 0.95)) * math.sqrt(variance)
    return float(np.mean(nulls)) - reach, float(np.mean(nulls)) + reach


def held_out(
    rows: Floats,
    fitted: Floats,
    *,
    critics: Critics,
    path: Sequence[str | int],
    seed: int,
    noise_std: float = 0.0,
    game: Game = "independent",
) -> HeldOut:
    """Return what critics find on draws that they were not trained on.

    Args:
        rows: Draws of all clients of a sum, (draws, clients, width), at least 8.
        fitted: Further draws that only train, (any, clients, width).
        critics: How many, and how they are trained.
        path: Names the randomness, together with the seed.
        seed: Of all randomness here.
        noise_std: Noise on each coordinate of the sum.
        game: What is random in the draws.
    """
    import torch

    within("draws", len(rows), lowest=MIN_DRAWS)
    within("draws times clients", rows.shape[0] * rows.shape[1], lowest=MIN_PAIRS)
    names = [(kind, i) for kind in ("pairs", "shuffled") for i in range(critics.count)]
    rngs = [stream(seed, "mine", *path, *name) for name in names]
    pairings = [
        Pairing.of(
            rows,
            fitted,
            # Both kinds split the draws alike; every four critics have an order of their own.
            order=stream(seed, "mine", *path, "split", i // PARTS).permutation(len(rows)),
            turn=i % PARTS,
            noise_std=noise_std,
            game=game,
        )
        for _, i in names
    ]
    played = [
        pairing.pairs(rng, is_shuffled=kind == "shuffled")
        for pairing, rng, (kind, _) in zip(pairings, rngs, names, strict=True)
    ]
    parts = [
        tuple(torch.from_numpy(np.stack(own)).to(critics.device) for own in zip(*part, strict=True))
        for part in zip(*played, strict=True)
    ]
    pairs = rows.shape[0] * rows.shape[1]
    correlations = np.stack([pairing.correlations for pairing in pairings])
    critic = GuidedCritic.drawn(correlations, critics.hidden, math.log(pairs), rngs, critics.device)
    values = train(critic, parts, steps=critics.steps, rate=critics.rate)
    return HeldOut(tuple(values[: critics.count]), tuple(values[critics.count :]), pairs)


class NeuralInformation(InformationAuditor):
    """Estimates I(client's update; sum of the round | model) by critics on held-out draws.

    Args:
        sampler: Draws fresh updates, and names the game; a function of the round where the
            clients' mechanism changes.
        every: Rounds between two audits; 0 audits the first only, -1 rounds 1, 2, 4, 8, … and the
            last.
        plan: Draws and directions, as for `MutualInformation`; at least 8 draws. The rank must be
            a number.
        critics: How many critics, and how they are trained.
        limit: Gives the entropy of a client's updates, which no figure may exceed.
        colluding: Clients that show the server their update, or any number of them.
        observer: "server" sees the sum before server noise, "outsider" after it.
        seed: Names all draws. With the seed, sampler and plan of a `MutualInformation` both look
            along the same directions.

    Attributes:
        drawing: Draws of the last round. An auditor that shares it draws nothing twice.

    Example:
        information = MutualInformation(sampler, plan=DrawPlan(draws=16, rank=8))
        mine = NeuralInformation(sampler, plan=DrawPlan(draws=16, rank=8))
        mine.drawing = information.drawing
        strategy = Audited(FedAvg(), auditors=[information, mine], out="runs/mine")
    """

    name = "mine"
    quantity = NEURAL
    _rounds: Kept[_Rounds]

    def __init__(
        self,
        sampler: RoundSampler,
        *,
        every: int = 1,
        plan: DrawPlan = DrawPlan(draws=MIN_DRAWS),  # noqa: B008 - a frozen value
        critics: Critics = Critics(),
        limit: LimitOf | None = None,
        colluding: Collection[int] | int = (),
        observer: SumObserver = "server",
        seed: int = 0,
    ) -> None:
        theory = Theory(limit=limit)
        super().__init__(
            sampler, plan, theory, colluding, every=every, observer=observer, seed=seed
        )
        if plan.rank is None:
            raise ValueError(
                "plan.rank must be a number of directions, got None: in all coordinates of a model "
                "critics find nothing; use 8"
            )
        if plan.draws < MIN_DRAWS:
            raise ValueError(f"plan.draws must be at least {MIN_DRAWS}, got {plan.draws}")
        self.critics = critics
        self._rounds = _Rounds()

    def begin(self, dim: int, num_rounds: int) -> None:
        """Forget an earlier run."""
        super().begin(dim, num_rounds)
        self._rounds = _Rounds()

    def limits(self, project: Project) -> Sequence[str]:
        """Return where updates cannot be resampled, or critics have too few pairs to say much."""
        said = list(super().limits(project))
        rank = min(self.plan.rank or 0, project.dim)
        if rank >= MAX_DIRECTIONS:
            said.append(
                f"critics find nothing along {rank} directions, whatever there is: use fewer than "
                f"{MAX_DIRECTIONS}, such as 8"
            )
        if project.honest is None:
            return said
        if few := self.too_few(project, self.plan.fit_draws(self.plan.rank or 1, project.honest)):
            return said + few
        if (pairs := self.plan.draws * project.honest) < MIN_PAIRS:
            draws = -(-MIN_PAIRS // project.honest)
            said.append(
                f"{self.plan.draws} draws of {project.honest} honest clients make {pairs} pairs, "
                f"and critics need {MIN_PAIRS}: use at least {draws} draws"
            )
        return said

    def measured(self, audited: AuditedRound, claims: Claims) -> Sequence[Finding]:
        """Let critics look at draws of the round, the same as those of the log-det audit."""
        hidden, game, noise_std = audited.hidden, audited.game, audited.noise_std
        if self.plan.draws * len(hidden) < MIN_PAIRS:
            return ()
        drawn = self.drawing.directed(Draws.of(audited), self.plan, self.stream_of(audited))
        audited.watch("critics", 0.0)
        found = held_out(
            drawn.rows,
            drawn.fitted,
            critics=self.critics,
            path=(audited.server_round,),
            seed=self.seed,
            noise_std=noise_std,
            game=game,
        )
        self._rounds.add(audited.server_round, found, game)
        count = self.critics.count
        figure = Information(
            nats=found.mean,
            kind="estimate",
            rule=f"held-out NWJ, mean of {count} critics, pairs of all clients pooled",
            std_error=found.std_error,
            rank=drawn.subspace.rank,
            variance_kept=drawn.subspace.variance_kept,
            sample_sizes={"pairs": found.pairs, "clients": len(hidden), "critics": count},
            cap=found.cap,
            assumptions=_assumed(game),
        )
        known = claims.known(drawn.subspace.rank, noise_std)
        limit = claims.limit_of(dict.fromkeys(hidden, 1), 1)
        figure = figure.limited(limit)
        return [claims.finding(figure, known, NEURAL, null_band=found.null_band)]

    def report(self) -> Sequence[Finding]:
        """Return the mean over the audited rounds."""
        kept = self._rounds
        if not kept.rounds:
            return ()
        claims = replace(self._claims, game=kept.game)
        facts = {"audited rounds": len(kept.rounds)}
        return [claims.finding(kept.figure(), facts, NEURAL, null_band=kept.band())]


def _assumed(game: Game) -> tuple[str, ...]:
    """Return what the figure needs in a game."""
    pooled = (Assumption.GOOD_CRITIC, Assumption.POOLED_CLIENTS)
    # Shares of one partition are not recombined.
    return pooled if game == "partition" else (*pooled, Assumption.INDEPENDENT_CLIENTS)


@dataclass
class _Rounds:
    """What is kept of the audited rounds.

    Attributes:
        rounds: Which.
        values: Estimate, its standard error, mean of the shuffled pairs and cap in nats by round.
        single: Null band of a run with one audited round.
        game: What was random.
    """

    rounds: list[int] = field(default_factory=list)
    values: list[tuple[float, float, float, float]] = field(default_factory=list)
    single: tuple[float, float] = (0.0, 0.0)
    game: Game = "rerun"

    def add(self, server_round: int, found: HeldOut, game: Game) -> None:
        """Add a round."""
        self.rounds.append(server_round)
        self.values.append((found.mean, found.std_error, float(np.mean(found.nulls)), found.cap))
        self.single, self.game = found.null_band, game

    def figure(self) -> Information:
        """Return the mean over the rounds. Each round is judged alone: nothing is added up."""
        # (rounds, 4), transposed.
        means, _, _, caps = np.array(self.values).T
        rounds = counted(len(means), "audited round")
        return Information(
            nats=float(means.mean()),
            kind="estimate",
            rule=f"held-out NWJ of critics per round, mean over {rounds}",
            std_error=self._error(),
            sample_sizes={"audited rounds": len(means)},
            cap=float(caps.mean()),
            assumptions=_assumed(self.game),
        )

    def band(self) -> tuple[float, float]:
        """Return the 90 % band of that mean without a leak."""
        if len(self.rounds) == 1:
            return self.single
        nulls = [null for _, _, null, _ in self.values]
        return null_band(nulls, 1 / len(nulls), self._error())

    def _error(self) -> float:
        """Return the standard error of the mean: over the rounds, which have draws of their own."""
        means, errors, _, _ = np.array(self.values).T
        if len(means) == 1:
            return float(errors[0])
        return float(np.std(means, ddof=1) / math.sqrt(len(means)))
