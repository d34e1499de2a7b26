"""What a measured round or run may say of mutual information, in findings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.details import PerClient
from leakmeter.auditors.finding import Finding, Game, Observer, Quantity, ThreatModel
from leakmeter.auditors.information.account import Entry
from leakmeter.auditors.information.figure import NATS_PER_BIT, Information
from leakmeter.auditors.information.measure import Measured
from leakmeter.auditors.information.theory import gaussian_information

if TYPE_CHECKING:
    from leakmeter.auditors.information.mine.estimator import NeuralEstimate, Spread

QUANTITY: Quantity = "mutual information"
# Figures that are not of the directions looked along, or not of a model, have names of their own.
WHOLE: Quantity = "mutual information of all coordinates"
NEURAL: Quantity = "mutual information by critics"


@dataclass(frozen=True)
class Words:
    """Turns figures into findings; knows the adversary and, once told, the round.

    Attributes:
        name: Of the auditor.
        observer: Who looks on.
        seed: Of the auditor.
        entropy_bits: What the target's data hold in bits, for a share of it; None for no share.
        server_round: Which round; None for the run.
        game: What is random.
        target: Whose update is at stake; None for the mean over all.
        hidden: Clients in the sum that the observer does not know.
        colluding: Clients whose updates it takes off.
    """

    name: str
    observer: Observer
    seed: int
    entropy_bits: float | None = None
    server_round: int | None = None
    game: Game = "rerun"
    target: int | None = None
    hidden: int = 0
    colluding: int = 0

    def round(
        self, measured: Measured, dim: int, noise_std: float, limit: Information | None
    ) -> list[Finding]:
        """Return what was measured, and what Gaussians of one law would say.

        Args:
            measured: The figures.
            dim: Coordinates that may vary, for the figure of the whole sum.
            noise_std: Noise on each coordinate of the sum.
            limit: The most that the target's own randomness holds, if known.
        """
        known = self._known(measured.rank, dim, noise_std)
        found = []
        if measured.figure is not None:
            figure = measured.figure
            if limit is not None:
                figure = replace(figure, cap=limit.nats)
                known["share_of_limit"] = _share(figure.nats, limit.nats)
            truth = known["gaussian_nats"]
            known["share_of_gaussian"] = _share(figure.nats, truth)
            each = {c: nats / NATS_PER_BIT for c, (nats, _) in measured.each.items()}
            spread = PerClient(tuple(each), tuple(each.values()), (1,) * len(each))
            found.append(self.finding(figure, known, drawn=(spread,)))
        if measured.neural is not None:
            found.append(self._neural(measured.neural, known))
        if self.hidden > 1:
            whole = gaussian_information(dim, self.hidden)
            assumptions = (*whole.assumptions, Assumption.ALIKE_GAUSSIAN_UPDATES)
            found.append(self.finding(replace(whole, assumptions=assumptions), {}, WHOLE))
        return found

    def finding(
        self,
        figure: Information,
        facts: Mapping[str, Any],
        quantity: Quantity = QUANTITY,
        drawn: tuple[PerClient, ...] = (),
    ) -> Finding:
        """Return one figure with its error and, if asked for, its share of an entropy."""
        more: dict[str, Any] = {"nats": figure.nats, "bits": figure.bits, "rank": figure.rank}
        more["variance_kept"] = figure.variance_kept
        if figure.std_error is not None:
            more["std_error_bits"] = figure.std_error / NATS_PER_BIT
        if self.entropy_bits is not None:
            more["share_of_entropy"] = figure.bits / self.entropy_bits
        context = self._context() | {"quantity": quantity}
        return Finding.of(figure.bound("bits"), facts=more | dict(facts), details=drawn, **context)

    def _neural(self, neural: NeuralEstimate, known: Mapping[str, Any]) -> Finding:
        """Return the held-out figure of critics, beside the paper's and what they find in none."""
        low, high = neural.null_nwj.band
        facts = {
            **known,
            **_spread("trained", neural.trained),
            **_spread("held_out_nwj", neural.nwj),
            **_spread("held_out_dv", neural.dv),
            **_spread("null_trained", neural.null_trained),
            "log_samples_bits": neural.log_samples / NATS_PER_BIT,
        }
        finding = self.finding(neural.information(), facts, NEURAL)
        return replace(finding, null_band=(low / NATS_PER_BIT, high / NATS_PER_BIT))

    def note(self, value: float, rule: str) -> Finding:
        """Return a value that needs no estimate, with the reason in words."""
        return Finding(value=value, kind="diagnostic", rule=rule, **self._context())

    def _known(self, rank: int, dim: int, noise_std: float) -> dict[str, Any]:
        """Return what the figure may be compared with."""
        alike = gaussian_information(rank, self.hidden).nats if self.hidden > 1 else math.inf
        return {
            "target": self.target,
            "hidden": self.hidden,
            "colluding": self.colluding,
            "noise_std": noise_std,
            "dimension": dim,
            "gaussian_nats": alike,
        }

    def _context(self) -> dict[str, Any]:
        """Return the fields that all findings share."""
        return {
            "auditor": self.name,
            "quantity": QUANTITY,
            "threat_model": ThreatModel(
                observer=self.observer,
                sees="round sum" if self.observer == "server" else "noised sum",
                knows_cohort=True,
                game=self.game,
                colluders=self.colluding,
            ),
            "unit": "client",
            "server_round": self.server_round,
            "seed": self.seed,
        }


def summed(entry: Entry, who: str, directions: str) -> Information:
    """Return the sum over audited rounds, labelled as what it is.

    The chain rule bounds what a run tells by what each round tells given the earlier ones. The sum
    of single rounds is that bound if a client's randomness is drawn anew in every round.
    """
    return Information(
        nats=entry.nats,
        kind="approximation",
        rule=f"sum over the audited rounds of {who}, along {directions}; not that of the run",
        std_error=math.sqrt(entry.variance) if math.isfinite(entry.variance) else None,
        sample_sizes={"audited rounds": entry.audited},
        assumptions=(
            Assumption.FRESH_EVERY_ROUND,
            Assumption.GAUSSIAN_UPDATES,
        ),
    )


def alike(entry: Entry) -> Information:
    """Return the same for all coordinates, if clients were alike and Gaussian."""
    return Information(
        nats=entry.alike,
        kind="approximation",
        rule="the same if all coordinates vary, without noise: (d*/2) ln(N / (N - 1)) a round",
        sample_sizes={"audited rounds": entry.audited},
        assumptions=(Assumption.ALIKE_GAUSSIAN_UPDATES,),
    )


def _share(nats: float, whole: float) -> float:
    if math.isinf(whole):
        return 0.0 if math.isfinite(nats) else 1.0
    return nats / whole if whole else 0.0


def _spread(name: str, found: Spread) -> dict[str, float]:
    """Return mean and 95 % interval over the seeds, in bits."""
    low, high = found.interval
    return {
        f"{name}_bits": found.mean / NATS_PER_BIT,
        f"{name}_bits_low": low / NATS_PER_BIT,
        f"{name}_bits_high": high / NATS_PER_BIT,
    }
