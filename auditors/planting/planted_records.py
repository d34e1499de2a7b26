"""What a released model reveals about records that were planted in the clients' data.

Each canary is planted by a fair coin, and found by how far training has lowered its loss, next to
decoys of the same generator. Carlini et al. (2019), arXiv:1802.08232, rank secrets in this way;
Steinke, Nasr, Jagielski (2023), arXiv:2305.08846, have coins and one run. Ours differs:

1. A p-value is the upper end of a band for the decoys' tail, so all of them hold together, and the
   bound needs no independent scores.
2. The largest ε that so many decoys can show is part of the finding.
3. A score is the fall of the loss since the initial model: how hard a record is for any model
   cancels. For an attacker who sees all models it is the largest of all falls, since the initial
   model and since the one before. Each is counted in standard deviations of records of a pilot.
4. Copies of a record are a group, which a claim about one record allows more (group privacy).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from scipy.special import ndtri

from leakmeter.auditors.audited_round import Claims
from leakmeter.auditors.auditor import (
    Auditor,
    DivergedError,
    Due,
    Project,
    RoundMessages,
    RoundView,
    UnableError,
)
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.bounds.one_run import headline
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Bound, Finding, LossUnit, RunWarning, Sees, ThreatModel
from leakmeter.auditors.planting.plan import Generator, PlantPlan, batch
from leakmeter.auditors.planting.scores import (
    Extract,
    Score,
    check_completions,
    check_losses,
    exposure,
    histogram,
    largest_score,
    log_p_values,
    normal_scores,
)
from leakmeter.auditors.values import Floats, Record, Vector, require
from leakmeter.auditors.wording import Assumption

_AT_ONCE = 1000  # records that a score gets
_PILOT = 100  # records that tell how far losses fall in a round
_TINY = 1e-12
_SPENT = 0.25  # share of a bound's failure probability for the band of the decoys
_MASKED = (
    "clients mask their updates, and each is asked to plant other records: their masks would not "
    "cancel. Plant records at the clients, as run_sim.py does, or audit without masks"
)


class PlantedRecords(Auditor):
    """Plants records in the data of some clients and searches for them in the released models.

    Clients take part by listing `plant_mod` and by taking the records from `planted`.

    Args:
        generator: Draws the records: `Secrets`, `RandomLabel`, `RandomPattern` or `FromFile`.
        score: Returns the loss of each record at a flat model; called with the model and with at
            most 1,000 records, a list of texts or a pair of inputs and labels. `TorchScores` is
            one for torch models.
        plan: How many canaries there are, who holds them, and how often.
        decoys: Records that nobody trains on. They limit the ε that can be shown: with 200
            canaries, 2,000 to 4.9, 5,000 to 5.8, 20,000 to 7.1 and 50,000 to 8.0. If coins plant
            fewer than half of the canaries, the limit is up to 1.9 lower; findings have it.
        every: Also look at the models of every N-th round; -1 takes rounds 1, 2, 4, 8, … and the
            last; 0 none. The initial and the final model are always looked at.
        extract: Returns which texts a flat model completes; called with the model and a list of
            texts. None leaves extraction out.
        delta: The delta of every epsilon.
        confidence: Confidence of each single lower bound.
        orders: Whether clients are asked by message. False if they have the records already,
            such as simulated clients that know the plan.

    Example:
        plan = PlantPlan(canaries=200, clients=20, copies=4)
        auditor = PlantedRecords(Secrets("my code is {digits:9}"), losses, plan)
    """

    name = "planted-records"
    reads = frozenset({"sent", "released"})
    wants_mean = False

    _model: Kept[Vector | None]  # after the last round
    _rounds: Kept[int]  # played so far
    _looked: Kept[int]  # the last round whose model was looked at
    _first: Kept[Floats]  # losses at the initial model: canaries, decoys, pilot; empty before
    _last: Kept[Floats]  # losses at the model that was looked at last
    _largest: Kept[Floats]  # the largest fall in standard deviations; empty before the first
    _times: Kept[dict[int, int]]  # client to the rounds that it trained in with records to plant
    _took: Kept[set[int]]  # those that say they did, at least once

    def __init__(
        self,
        generator: Generator,
        score: Score,
        plan: PlantPlan = PlantPlan(),  # noqa: B008 - a frozen value
        *,
        decoys: int = 20_000,
        every: int = 0,
        extract: Extract | None = None,
        delta: float = 1e-5,
        confidence: float = 0.95,
        orders: bool = True,
    ) -> None:
        require("[0, 1)", delta=delta)
        require("(0, 1)", confidence=confidence)
        require("at least 100", decoys=decoys)
        if generator.size is not None:
            decoys = min(decoys, generator.size - 2 * plan.canaries - _PILOT)
            if decoys < 100:
                enough = (
                    f"of {2 * plan.canaries + _PILOT + 100} records for {plan.canaries} canaries"
                )
                fewer = "Use fewer canaries, or a larger file"
                raise BadValueError("generator", enough, generator.size, fix=fewer)
        self.generator, self.plan, self.decoys, self.every = generator, plan, decoys, every
        self.delta, self.confidence, self.num_bounds = delta, confidence, 2 if every else 1
        self._score, self._extract, self._orders = score, extract, orders
        self._due = Due(every, 1)
        self._forget()

    def _forget(self) -> None:
        self._model, self._rounds, self._looked = None, 0, 0
        self._first, self._last, self._largest = np.empty(0), np.empty(0), np.empty(0)
        self._times, self._took = {}, set()

    @property
    def due(self) -> Due | None:
        """Which rounds it looks at; None where that is the last alone."""
        return self._due if self.every else None

    def begin(self, dim: int, num_rounds: int) -> None:
        """Plan the rounds whose models are looked at."""
        self._due = Due(self.every, num_rounds)
        self._forget()

    def limits(self, project: Project) -> Sequence[str]:
        """Return where fewer clients hold canaries than planned.

        Raises:
            UnableError: Clients mask their updates.
        """
        if self._orders and project.is_masked:
            raise UnableError(_MASKED)
        if self.population is None or self.population >= self.plan.clients:
            return ()
        return [
            f"{self.population} clients for a plan with {self.plan.clients}: the canaries of the "
            "others are planted nowhere, so bounds are lower; use "
            f"PlantPlan(clients={self.population})"
        ]

    @cached_property
    def _canaries(self) -> list[Record]:
        """All canaries, those that are left out as well."""
        return self.generator.draw(self.plan.seed, range(self.plan.canaries))

    def bind(self, messages: RoundMessages) -> None:
        """Look at the first model: if a score is wrong, nothing has been planted yet."""
        if not self._first.size:
            first = self._losses(messages.sent)
            if self.plan.is_in.any():
                self._extracted(messages.sent)  # which the end of the run needs
            self._first = self._last = first

    def plant(
        self, server_round: int, chosen: Sequence[int]
    ) -> Mapping[int, tuple[Sequence[Record], int]]:
        """Ask the chosen clients that hold canaries to train on them."""
        if not self._orders:
            return {}
        numbers = {client: self.plan.planted(client, server_round) for client in chosen}
        return {
            client: (self.generator.draw(self.plan.seed, own), self.plan.copies)
            for client, own in numbers.items()
            if own
        }

    def observe(self, view: RoundView) -> Sequence[Finding]:
        """Look at the models that are due."""
        asked = view.took if self._orders else view.replies
        for client in asked:  # whether it took them or not: it alone knows
            if self.plan.planted(client, view.server_round):
                self._times[client] = self._times.get(client, 0) + 1
        self._took |= {client for client, has_taken in view.took.items() if has_taken}
        if not self._first.size:
            self._first = self._last = self._losses(view.sent)
        if not np.isfinite(view.released).all():
            raise DivergedError
        self._model, self._rounds = view.released.copy(), view.server_round
        if self.every and view.server_round in self._due:
            self._look()
        return ()

    def _look(self) -> None:
        """Note how far losses have fallen since the model that was looked at before."""
        assert self._model is not None
        losses = self._losses(self._model)
        for fall in (self._first - losses, self._last - losses):
            pilot = fall[-_PILOT:]  # neither canaries nor decoys
            seen = (fall - pilot.mean()) / max(float(pilot.std()), _TINY)
            self._largest = np.maximum(self._largest, seen) if self._largest.size else seen
        self._last, self._looked = losses, self._rounds

    def _losses(self, model: Vector) -> Floats:
        """Return the losses of canaries, decoys and pilot, (canaries + decoys + pilot,)."""
        decoys = self.plan.decoys(self.decoys + _PILOT)
        parts = [self._canaries[i : i + _AT_ONCE] for i in range(0, len(self._canaries), _AT_ONCE)]
        found = [self._scored(model, part) for part in parts]
        for start in range(0, len(decoys), _AT_ONCE):
            drawn = self.generator.draw(self.plan.seed, decoys[start : start + _AT_ONCE])
            found.append(self._scored(model, drawn))
            if self.watch is not None:
                self.watch("losses of decoys", (start + len(drawn)) / len(decoys))
        return np.concatenate(found)

    def _scored(self, model: Vector, records: Sequence[Record]) -> Floats:
        return check_losses(self._score(model.copy(), batch(records)), len(records))

    @property
    def warnings(self) -> Sequence[RunWarning]:
        """That the model has been trained on canaries, and who did not take them."""
        planted = int(self.plan.is_in.sum())
        found = []
        if planted and (self._took if self._orders else self._rounds):
            found.append(RunWarning.of("trained-on-canaries", planted, self.plan.canaries))
        if self._orders and (left := len(self._times.keys() - self._took)):
            found.append(RunWarning.of("untaken-canaries", left, len(self._times)))
        return found

    def report(self) -> Sequence[Finding]:
        """Return what the final model shows, and what all models that were looked at show."""
        if self._model is None or not self.plan.is_in.any():
            return []
        if self._looked < self._rounds:
            self._look()
        found = self._findings("final model", self._first - self._last)
        if self.every:
            found += self._findings("all models", self._largest)
        return found + self._extracted(self._model)

    def _findings(self, sees: Sees, falls: Floats) -> list[Finding]:
        """Return what the falls of losses show somebody who sees these models."""
        plan, claims, spent = self.plan, self._claims(sees), _SPENT * (1 - self.confidence)
        scores, decoys = falls[: plan.canaries], falls[plan.canaries : -_PILOT]
        bound, facts = headline(
            scores,
            plan.is_in,
            log_p_values(scores, decoys, spent),
            delta=self.delta,
            confidence=self.confidence,
            guesses=1,
            spent=spent,
            most=largest_score(decoys.size, spent),
        )
        sizes = {**bound.sample_sizes, "decoys": decoys.size}
        assumed = (Assumption.FAIR_COINS, Assumption.DECOYS_ALIKE)
        bound = claims.assuming(replace(bound, sample_sizes=sizes, assumptions=assumed))
        inside, outside = scores[plan.is_in], scores[~plan.is_in]
        unit: LossUnit = "nats" if sees == "final model" else "standard deviations"
        drawn = histogram(inside, outside, decoys, unit)
        found = [claims.finding(bound, {**facts, "copies": plan.copies}, (drawn,))]
        estimate = self._estimated(claims, inside, decoys)
        found += [estimate] if estimate.value >= bound.value else []
        bits = [
            float(exposure(part, decoys).mean()) if part.size else 0.0 for part in (inside, outside)
        ]
        most = float(exposure(inside, decoys).max())
        rule = (
            f"planted records have {bits[0]:.1f} bits on average and at most {most:.1f}, those "
            f"left out {bits[1]:.1f}; a rank among {decoys.size:,} decoys has 1.4 without a leak"
        )
        shown = {"left_out": bits[1], "largest": most}
        return [*found, claims.diagnostic("exposure in bits", bits[0], rule, shown)]

    def _estimated(self, claims: Claims, inside: Floats, decoys: Floats) -> Finding:
        """Return the ε of a Gaussian mechanism that would rank planted records like this.

        On the scale on which decoys are standard normal, what has that ε only moves the mean.
        """
        mean, highest = float(normal_scores(inside, decoys).mean()), float(ndtri(0.95))
        value, most = (
            epsilon_gaussian(self.delta, max(mu, 0.0)) for mu in (mean, highest / inside.size**0.5)
        )
        bound = Bound(
            value,
            "estimate",
            "mean rank of planted records among decoys, as a shift of the normal distribution",
            self.delta,
            sample_sizes={"in": inside.size, "decoys": decoys.size},
            assumptions=(Assumption.GAUSSIAN_RANKS,),
        )
        return replace(claims.finding(claims.assuming(bound)), null_band=(0.0, most))

    def _extracted(self, model: Vector) -> list[Finding]:
        """Return which share of planted texts the final model completes, next to other texts."""
        extract, is_in = self._extract, self.plan.is_in
        if extract is None:
            return []
        texts = batch(self._canaries)
        if not isinstance(texts, list):
            raise BadValueError("extract", "None for records that are no texts", extract)
        others = batch(
            self.generator.draw(self.plan.seed, self.plan.decoys(min(_AT_ONCE, self.decoys)))
        )
        inside = [text for text, one in zip(texts, is_in, strict=True) if one]
        outside = [text for text, one in zip(texts, is_in, strict=True) if not one]
        assert isinstance(others, list)
        done, by_chance = (
            int(check_completions(extract(model.copy(), some), len(some)).sum())
            for some in (inside, [*outside, *others])
        )
        control = len(outside) + len(others)
        rule = (
            f"the final model completes {done} of {len(inside)} planted texts from their beginning,"
            f" and {by_chance} of {control:,} that nobody trained on"
        )
        shown = {"extracted": done, "planted": len(inside), "control": by_chance, "others": control}
        claims = self._claims("final model")
        return [claims.diagnostic("secrets extracted", done / len(inside), rule, shown)]

    def _claims(self, sees: Sees) -> Claims:
        adjacency, assumed = self.plan.world
        attacker = ThreatModel(
            observer="outsider",
            sees=sees,
            holds="record",
            knows_cohort=True,
            participations=max(self._times.values(), default=self._rounds),
        )
        return Claims(
            self.name,
            attacker,
            self.delta,
            self.confidence,
            adjacency,
            self.plan.unit,
            seed=self.plan.seed,
            assumptions=(assumed,),
        )
