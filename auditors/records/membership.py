"""Membership of single records in the training data, from a released model's losses.

Yeom, Giacomelli, Fredrikson and Jha 2018, Privacy Risk in Machine Learning (arXiv:1709.01604):
a record with a small loss was trained on. Carlini et al. 2022, Membership Inference Attacks From
First Principles (arXiv:2112.03570), LiRA: its loss in shadow models that were, and were not,
trained on the record shows how small is small for it. Ours differs in three points:
1. Scores become a lower bound on epsilon through `auditors.bounds.lower_bound`, with limits that
   allow for the choice of the threshold; the area is also reported and claims nothing.
2. The advantage is reported with what chance may add to it taken away: see `advantage_bound`.
3. The offline score is the z-value itself, not its tail probability, which rounds to 0 or 1.
4. Where the rounds of a record's client are known, all released models are attacked: see
   `Trajectory`.

`Trajectory` scores records from all released models: whose loss falls when its client takes part?
Chang et al. 2024, Efficient Privacy Auditing in Federated Learning (USENIX Security), follow losses
over rounds. Zarifzadeh, Liu and Shokri 2024, Low-Cost High-Power Membership Inference Attacks
(arXiv:2312.03262), RMIA, compare the likelihood ratio of a record between the model and reference
models with that of other records. Ours takes the model before a round for the reference, so that no
model has to be trained: ln p(x; after) - ln p(x; before) is the drop of the loss, and the records
that it is compared with are held out. The final model alone forgets most of what a round shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leakmeter.auditors.audited_round import Claims
from leakmeter.auditors.auditor import Auditor, DivergedError, Due, RoundView
from leakmeter.auditors.bounds.lower_bound import Rule, SimultaneousBand, epsilon_lower_bound
from leakmeter.auditors.codec import Kept, Resumable
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Bound, Finding, Sees, ThreatModel
from leakmeter.auditors.values import Floats, Indices, Vector, within
from leakmeter.auditors.wording import Assumption, counted


class Trajectory(Resumable):
    """Sums the drops of losses over rounds with, and without, the client of a record.

    The score of a record is the sum of its drops over the rounds that its client took part in, less
    what as many of the other rounds brought, over the spread of such a difference. In each round
    drops are measured in standard deviations of the held-out records' drops, from their mean.
    """

    rounds: Kept[int]
    _last: Kept[Floats]  # losses after the last round, (records,)
    _inside: Kept[Floats]  # sum of drops in rounds with the client, (records,)
    _outside: Kept[Floats]  # the same in the others
    _count: Kept[Floats]  # rounds with the client

    def __init__(self) -> None:
        self.rounds = 0
        self._last = self._inside = self._outside = self._count = np.zeros(0)

    def start(self, losses: Floats) -> None:
        """Take the losses at the model that the first round has sent, unless there are some."""
        if not self._last.size:
            self._last, nothing = losses, np.zeros(len(losses))
            self._inside, self._outside, self._count = nothing, nothing.copy(), nothing.copy()

    def add(self, losses: Floats, took_part: NDArray[np.bool_], members: int) -> None:
        """Add the losses after a round.

        Args:
            losses: Of all records, members first; infinite ones count as no change.
            took_part: Whose client has taken part, (records,).
            members: How many of them are members.
        """
        with np.errstate(invalid="ignore"):  # both infinite
            drops = self._last - losses
        drops = np.where(np.isfinite(drops), drops, 0.0)
        self._last = losses
        spread = float(drops[members:].std())
        if spread == 0:  # an abandoned round, or too few records to compare with
            return
        drops = (drops - drops[members:].mean()) / spread
        self._inside += np.where(took_part, drops, 0.0)
        self._outside += np.where(took_part, 0.0, drops)
        self._count += took_part
        self.rounds += 1

    @property
    def is_seen(self) -> NDArray[np.bool_]:
        """Which records have had a round with their client."""
        return self._count > 0

    def scores(self) -> Floats:
        """Return the score of each record; larger means more likely a member.

        They are in standard deviations of a record that no client has: otherwise records of busy
        clients would have larger scores, members or not.
        """
        share = self._count / np.maximum(self.rounds - self._count, 1)
        spread = np.sqrt(np.maximum(self._count * (1 + share), 1))
        return (self._inside - self._outside * share) / spread


Spread = Literal["shared", "record"]
# Maps a model to the losses of member and of held-out records, always in the same order.
Losses = Callable[[Vector], tuple[ArrayLike, ArrayLike]]
# Positions of the members that a round has trained on, and of all records, members first, whose
# client took part. A held-out record counts with a client that it could have belonged to.
Use = tuple[Indices, Indices]

# A probability that rounds to 1 or to 0 has no logit; these losses are the last that have one.
_MIN_LOSS, _MAX_LOSS = 2.0**-53, 745.0


def logit_confidences(losses: ArrayLike) -> Floats:
    """Return ln(p / (1 - p)) of the probability p = e^-loss that a model gives the true label.

    Carlini et al. 2022, logit scaling: on this scale a record's distribution over models is closest
    to a Gaussian. It is computed from the loss, where 1 - p does not cancel.

    >>> logit_confidences([np.log(2), np.log1p(np.exp(-3.0))]).round(12)
    array([0., 3.])
    """
    loss = np.clip(_losses("losses", losses), _MIN_LOSS, _MAX_LOSS)
    return np.asarray(-loss - np.log(-np.expm1(-loss)))


@dataclass(frozen=True)
class Shadows:
    """Confidences of shadow models, trained for comparison, in the same records.

    Attributes:
        confidences: Logit confidences, (models, records).
        was_in: Which model was trained on which record, (models, records); None if none was on
            any, which is the offline attack.
        spread: "shared" fits one standard deviation, within records, for all of them, which is
            better with few models (fewer than 64 in the paper); "record" fits one for each.
    """

    confidences: Floats
    was_in: NDArray[np.bool_] | None = None
    spread: Spread = "shared"

    def __post_init__(self) -> None:
        if self.confidences.ndim != 2 or not np.isfinite(self.confidences).all():
            got = self.confidences.shape
            raise BadValueError("confidences", "finite numbers (models, records)", got)
        if self.was_in is not None and self.was_in.shape != self.confidences.shape:
            shape = f"of shape {self.confidences.shape}"
            raise BadValueError("was_in", shape, self.was_in.shape)
        if self.spread not in ("shared", "record"):
            raise BadValueError("spread", "'shared' or 'record'", self.spread)

    def scores(self, confidences: ArrayLike) -> Floats:
        """Return how likely each record was trained on, by its logit confidence at a model.

        Online: ln N(φ; in) - ln N(φ; out), Carlini et al. 2022, Algorithm 1. Offline: how many
        standard deviations φ is above the mean of the models without the record.
        """
        seen = np.asarray(confidences, dtype=np.float64)
        if seen.shape != self.confidences.shape[1:]:
            shape = f"of shape {self.confidences.shape[1:]}"
            raise BadValueError("confidences", shape, seen.shape)
        if self.was_in is None:
            mean, std = self._gaussian(np.ones(self.confidences.shape, dtype=bool), "shadow models")
            return (seen - mean) / std
        gaussians = (
            self._gaussian(self.was_in, "shadow models trained on it"),
            self._gaussian(~self.was_in, "shadow models not trained on it"),
        )
        inside, outside = (
            -(((seen - mean) / std) ** 2) / 2 - np.log(std) for mean, std in gaussians
        )
        return np.asarray(inside - outside)

    def _gaussian(self, chosen: NDArray[np.bool_], who: str) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of each record over the chosen models."""
        counts = chosen.sum(axis=0)
        least = 2 if self.spread == "record" else 1
        if counts.size and counts.min() < least:
            record = int(counts.argmin())
            enough = f"at least {least} {who} with spread {self.spread!r} for record {record}"
            raise BadValueError("was_in", enough, int(counts.min()))
        mean = np.where(chosen, self.confidences, 0.0).sum(axis=0) / counts
        squares = (np.where(chosen, self.confidences - mean, 0.0) ** 2).sum(axis=0)
        freedom = counts - 1
        if self.spread == "shared":
            squares, freedom = squares.sum(), np.maximum(freedom.sum(), 1)
        std = np.broadcast_to(np.sqrt(squares / freedom), counts.shape)
        if not (std > 0).all():
            raise BadValueError("confidences", f"different between {who}", std.min())
        return mean, std


def membership_bound(
    members: ArrayLike,
    held_out: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    rule: Rule = SimultaneousBand(),  # noqa: B008 - a frozen value
) -> Bound:
    """Return the epsilon that scores of member and held-out records of one model refute.

    All scores come from one run, so their independence is an assumption, and the bound says so.

    Args:
        members: Scores of records that were trained on; larger means more likely a member.
        held_out: Scores of records from the same source that were not.
        delta: The delta that epsilon belongs to, in [0, 1).
        confidence: Probability in (0, 1) that the true epsilon is no smaller, under the
            assumptions.
        rule: How the threshold is chosen.
    """
    bound = epsilon_lower_bound(
        members, held_out, delta=delta, confidence=confidence, rule=rule, same_run=True
    )
    return replace(bound, assumptions=(*bound.assumptions, Assumption.RECORDS_ALIKE))


def advantage_bound(
    members: ArrayLike, held_out: ArrayLike, *, confidence: float = 0.95, alike: bool = False
) -> Bound:
    """Return the share of members that the model gives away, at least.

    Say that a model depends on the members T, and on none of the others, U. If records are alike,
    the scores of U and of the held-out records are independent draws from one distribution, given
    the model. Hits minus false alarms at any threshold are then at most |T|/n, and what chance adds
    in n members and m held-out records: √(ln(2/α)/2n) + √(ln(2/α)/2m), with confidence 1 − α at all
    thresholds together (Massart 1990, the DKW inequality with its exact constant). Nothing is
    assumed of T.

    Args:
        members: Scores of records that were trained on; larger means more likely a member.
        held_out: Scores of records that were not.
        confidence: In (0, 1).
        alike: Whether chance alone decided which records were held out. If not, a difference of the
            two sources looks like membership, and the bound is conditional.
    """
    within("confidence", confidence, above=0.0, below=1.0)
    sizes = np.array([np.size(members), np.size(held_out)])
    chance = float(np.sqrt(np.log(2 / (1 - confidence)) / (2 * sizes)).sum())
    seen = separation(members, held_out)["advantage"]
    return Bound(
        max(seen - chance, 0.0),
        "lower_bound",
        f"hits exceed false alarms by {seen:.3g} at the best threshold, less {chance:.3g} that "
        "chance may add at any",
        confidence=confidence,
        sample_sizes={"members": int(sizes[0]), "held-out": int(sizes[1])},
        cap=max(1 - chance, 0.0),
        saturated=seen == 1 and chance < 1,
        assumptions=(Assumption.DEALT_AT_RANDOM if alike else Assumption.RECORDS_ALIKE,),
    )


def separation(members: ArrayLike, held_out: ArrayLike) -> dict[str, float]:
    """Return the usual figures of an attack, as observed on these scores, without a claim.

    "auc" is the probability that a member scores above a held-out record (ties count half).
    "advantage" is the largest true minus false positive rate. "tpr at fpr 0.01" is the true
    positive rate of the best threshold with at most that false positive rate.

    >>> separation([1.0, 3.0], [0.0, 2.0])
    {'auc': 0.75, 'advantage': 0.5, 'tpr at fpr 0.01': 0.5}
    """
    ins, outs = (np.asarray(scores, dtype=np.float64) for scores in (members, held_out))
    everyone = np.sort(np.concatenate([ins, outs]))
    # Equal scores share the mean of their ranks, which are half-integers: the sum is exact.
    ranks = sum(np.searchsorted(everyone, ins, side).sum() for side in ("left", "right"))
    ranks = (ranks + ins.size) / 2
    auc = (ranks - ins.size * (ins.size + 1) / 2) / (ins.size * outs.size)
    thresholds = np.unique(np.concatenate([ins, outs]))
    tpr, fpr = (
        1 - np.searchsorted(np.sort(scores), thresholds) / scores.size for scores in (ins, outs)
    )
    few = np.where(fpr <= 0.01, tpr, 0.0).max(initial=0.0)
    return {
        "auc": float(auc),
        "advantage": float((tpr - fpr).max(initial=0.0)),
        "tpr at fpr 0.01": float(few),
    }


class Membership(Auditor):
    """Lets an outsider guess which records the released models were trained on.

    Args:
        losses: Returns the cross-entropy losses of the member and of the held-out records at a
            model, in a fixed order; called with the flat released model.
        shadows: Shadow models' confidences in the members, then the held-out records, or a function
            that returns them; adds the likelihood-ratio attack to the loss threshold.
        every: Also attack the model of every N-th round; -1 takes those of rounds 1, 2, 4, 8, …;
            0 none. The final model is always attacked.
        used: Returns which members a round has trained on, by their positions, and which records,
            members first, had a client that took part; each held-out record counts with a client
            that it could have belonged to. Members that have never trained are left out then, and
            an attack on all models is added, whose attacker knows the rounds of a record's client.
        alike: Whether chance alone decided which records were held out; the advantage is a bound
            without a condition then.
        delta: The delta of the bounds.
        confidence: Confidence of each single bound: the largest of several has less.
        rule: How the threshold is chosen.

    Example:
        def losses(model):
            vector_to_parameters(torch.from_numpy(model).float(), net.parameters())
            with torch.no_grad():
                each = cross_entropy(net(x), y, reduction="none").numpy()
            return each[:500], each[500:]

        strategy = Audited(FedAvg(), auditors=[Membership(losses)])
    """

    name = "membership"
    reads = frozenset({"sent", "released", "facts"})
    wants_mean = False
    _model: Kept[Vector | None]
    _rounds: Kept[int]  # behind the model
    _uses: Kept[Indices]  # rounds in which each member trained, (members,)
    _trajectory: Kept[Trajectory]

    def __init__(
        self,
        losses: Losses,
        *,
        shadows: Shadows | Callable[[], Shadows] | None = None,
        every: int = 0,
        used: Callable[[RoundView], Use] | None = None,
        alike: bool = False,
        delta: float = 1e-5,
        confidence: float = 0.95,
        rule: Rule = SimultaneousBand(),  # noqa: B008 - a frozen value
    ) -> None:
        within("delta", delta, lowest=0.0, below=1.0)
        within("confidence", confidence, above=0.0, below=1.0)
        self._losses, self._shadows, self._used = losses, shadows, used
        self.every, self._due = every, Due(every, 1)
        self.delta, self.confidence, self.rule = delta, confidence, rule
        self.alike, self.num_bounds = alike, int(alike)
        self._forget()

    def begin(self, dim: int, num_rounds: int) -> None:
        """Forget the model of an earlier run."""
        self._due = Due(self.every, num_rounds)
        self._forget()

    def _forget(self) -> None:
        self._model, self._rounds, self._uses = None, 0, np.zeros(0, dtype=np.int64)
        self._trajectory = Trajectory()

    def observe(self, view: RoundView) -> Sequence[Finding]:
        """Keep the model that the round released, and report on it if that is due."""
        if not np.isfinite(view.released).all():
            self._model = None
            raise DivergedError
        self._model, self._rounds = view.released, view.server_round
        if self._used is not None and view.facts.abandoned is None:
            self._follow(view, *self._used(view))
        if self.every == 0 or view.server_round not in self._due:
            return ()
        return self._findings(view.released, view.server_round)

    def _follow(self, view: RoundView, trained: Indices, asked: Indices) -> None:
        """Add a round to the uses of each member, and to what all models show."""
        if not self._trajectory.rounds:
            self._trajectory.start(np.concatenate(self._at(view.sent)))
        ins, outs = self._at(view.released)
        took_part = np.zeros(ins.size + outs.size, dtype=bool)
        took_part[asked] = True
        self._trajectory.add(np.concatenate([ins, outs]), took_part, ins.size)
        if not self._uses.size:
            self._uses = np.zeros(ins.size, dtype=np.int64)
        self._uses[np.unique(trained)] += 1

    def report(self) -> Sequence[Finding]:
        """Return what the final model, and all of them, reveal about the records."""
        if self._model is None:
            return ()
        return [*self._findings(self._model, None), *self._from_trajectory()]

    def _at(self, model: Vector) -> tuple[Floats, Floats]:
        """Return the losses of members and of held-out records."""
        ins, outs = self._losses(model.copy())
        return _losses("losses of member records", ins), _losses("losses of held-out records", outs)

    def _findings(self, model: Vector, server_round: int | None) -> list[Finding]:
        """Return a finding for each attack on one model; nothing if no record has trained."""
        if self._used is not None and not self._uses.any():
            return []
        ins, outs = self._at(model)
        # All are members where nobody knows which of them have trained.
        member = np.ones(ins.size, dtype=bool) if self._used is None else self._uses > 0
        attacks = [("loss threshold", -ins[member], -outs)]
        shadows = self._shadows() if callable(self._shadows) else self._shadows
        if shadows is not None:
            scores = shadows.scores(logit_confidences(np.concatenate([ins, outs])))
            kind = "offline" if shadows.was_in is None else "online"
            words = f"likelihood ratio, {kind}, {len(shadows.confidences)} shadow models"
            attacks.append((words, scores[: ins.size][member], scores[ins.size :]))
        claims = self._claims("final model" if server_round is None else "round model")
        claims = replace(claims, server_round=server_round)
        found = [self._finding(claims, *attack) for attack in attacks]
        if server_round is None:  # one test a run, by the attack that is fixed beforehand
            found.insert(0, self._advantage(claims, *attacks[0]))
        return found

    def _from_trajectory(self) -> list[Finding]:
        """Return what an attacker finds that has all models and knows the rounds of clients."""
        if not self._trajectory.rounds or not self._uses.any():
            return []
        scores, seen = self._trajectory.scores(), self._trajectory.is_seen
        count = self._uses.size
        ins, outs = scores[:count][self._uses > 0], scores[count:][seen[count:]]
        if not outs.size:
            return []
        attack = f"drop of the loss in the client's rounds, {counted(self._rounds, 'model')}"
        claims = self._claims("all models")
        attacker = replace(claims.threat_model, knows_cohort=True)
        return [self._finding(replace(claims, threat_model=attacker), attack, ins, outs)]

    def _claims(self, sees: Sees) -> Claims:
        attacker = ThreatModel(
            observer="outsider",
            sees=sees,
            holds="record",
            # Where nobody knows the rounds of the records, they are at most all of them.
            participations=self._rounds if self._used is None else int(self._uses.max()),
        )
        return Claims(self.name, attacker, unit="record")

    def _finding(self, claims: Claims, attack: str, members: Floats, held_out: Floats) -> Finding:
        bound = membership_bound(
            members, held_out, delta=self.delta, confidence=self.confidence, rule=self.rule
        )
        bound = replace(bound, rule=f"{attack}; {bound.rule}")
        return claims.finding(bound, {"attack": attack, **separation(members, held_out)})

    def _advantage(self, claims: Claims, attack: str, members: Floats, held_out: Floats) -> Finding:
        bound = advantage_bound(members, held_out, confidence=self.confidence, alike=self.alike)
        bound = replace(bound, rule=f"{attack}; {bound.rule}")
        claims = replace(claims, adjacency=None)
        return claims.finding(bound, {"attack": attack}, quantity="membership advantage")


def _losses(name: str, values: ArrayLike) -> Floats:
    """Return losses as numbers, or raise if they cannot be cross-entropies."""
    losses = np.asarray(values, dtype=np.float64)
    if losses.ndim != 1 or not losses.size:
        raise BadValueError(name, "one number per record, at least one", losses.shape)
    if not (losses >= 0).all():  # refuses nan too; infinity is a model that was certain and wrong
        raise BadValueError(name, "cross-entropies, at least 0", losses.min())
    return losses
