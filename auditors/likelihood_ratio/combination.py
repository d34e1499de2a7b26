"""One linear test over the scores of all rounds, fitted on transcripts of its own.

Fisher's linear discriminant: for Gaussian scores with one covariance C in both worlds and means
that differ by g, the log-likelihood ratio is linear with weights C⁻¹g, and the worlds are
√(gᵀC⁻¹g) standard deviations apart. For independent rounds that is √ΣΔ_t². Any weights give a valid
test, since the trials that judge it are others: a bad fit costs power, never confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from leakmeter.auditors._types import Floats, Vector
from leakmeter.auditors.audited_round import Claims, Trials
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.wording import counted


@dataclass(frozen=True)
class Transcripts:
    """Scores of played transcripts, the same number in each of the two worlds.

    Attributes:
        first: Scores if the target holds the first data set, (draws, features).
        second: Scores if it holds the second.
    """

    first: Floats
    second: Floats

    def __post_init__(self) -> None:
        if self.first.shape != self.second.shape or self.first.ndim != 2:
            shapes = f"{self.first.shape} and {self.second.shape}"
            raise ValueError(f"both worlds must have scores (draws, features), got {shapes}")

    def __len__(self) -> int:
        return len(self.first)

    def split(self, pilot: int) -> tuple[Transcripts, Transcripts]:
        """Return the first `pilot` transcripts, which fix the test, and the others."""
        return self.of(slice(None, pilot)), self.of(slice(pilot, None))

    def of(self, draws: slice) -> Transcripts:
        """Return some of the transcripts."""
        return Transcripts(self.first[draws], self.second[draws])

    def judged(self, pilot: int) -> Trials:
        """Return the scores of a test that the first `pilot` transcripts fix, on the others."""
        fitted, judged = self.split(pilot)
        return Combination.fit(fitted).trials(judged)

    @staticmethod
    def joined(rounds: Sequence[Transcripts]) -> Transcripts:
        """Return the features of several rounds side by side."""
        return Transcripts(
            np.concatenate([one.first for one in rounds], axis=1),
            np.concatenate([one.second for one in rounds], axis=1),
        )


@dataclass(frozen=True)
class Combination:
    """The weights of the scores, and the threshold half way between the two worlds.

    Attributes:
        weights: One for each feature, (features,).
        middle: Combined score at which neither world is more likely.
    """

    weights: Vector
    middle: float

    @classmethod
    def fit(cls, pilot: Transcripts) -> Combination:
        """Return the discriminant of some transcripts, which may not be used as trials."""
        if len(pilot) < 4:
            raise ValueError(f"pilot must be at least 4 transcripts, got {len(pilot)}")
        means = pilot.first.mean(axis=0), pilot.second.mean(axis=0)
        # g of the docstring, (features,).
        gap = means[0] - means[1]
        # Both worlds around their own means, (2 draws, features): one covariance C, pooled, with 2
        # draws - 2 degrees of freedom.
        centred = np.concatenate([pilot.first - means[0], pilot.second - means[1]])
        std = np.sqrt(np.square(centred).sum(axis=0) / (len(centred) - 2))
        # A feature that never varies would get an infinite weight; rounding gives it a little.
        std = np.maximum(std, 1e-9 * max(float(np.abs(gap).max()), 1e-300))
        scaled = centred / std
        correlation = _shrunk(scaled.T @ scaled / (len(centred) - 2), len(pilot))
        # C⁻¹g with C = D R D, D = diag(std): D⁻¹R⁻¹D⁻¹g. Shrinking R instead of C leaves the scale
        # of each feature alone.
        weights = np.linalg.solve(correlation, gap / std) / std
        return cls(weights, float((means[0] + means[1]) @ weights) / 2)

    def trials(self, transcripts: Transcripts) -> Trials:
        """Return the combined scores in both worlds, (draws,) each."""
        first, second = transcripts.first @ self.weights, transcripts.second @ self.weights
        return Trials(first, second, self.middle)


def prove(
    claims: Claims,
    rounds: Sequence[Transcripts],
    models: Sequence[Transcripts] = (),
    *,
    target: int,
    pilot: int,
) -> Finding:
    """Return what the trials of these rounds together prove.

    Args:
        claims: About the last of these rounds if the run continues, else about the run.
        rounds: Scores of the rounds in which the target takes part or might.
        models: The same for models that the attacker has seen beside the sums.
        target: Client under attack.
        pilot: Transcripts that fix the test; the others are trials.
    """
    model = replace(claims.threat_model, participations=len(rounds))
    claims, count = replace(claims, threat_model=model), len(rounds)
    trials = Transcripts.joined([*rounds, *models]).judged(pilot)
    bound = claims.assuming(trials.bound(claims.delta, claims.confidence))
    bound = replace(bound, rule=f"{bound.rule}; one test over {counted(count, 'round')}")
    facts = {"target": target, "rounds": count, "separation": trials.separation}
    if claims.server_round is not None:
        return claims.finding(bound, facts)
    alone = [one.judged(pilot) for one in rounds]
    shared = claims.shared(count)
    facts["largest single round"] = max(one.bound(claims.delta, shared).value for one in alone)
    facts["largest separation of one round"] = max(one.separation for one in alone)
    return claims.finding(bound, facts, (trials.curve(claims.confidence),))


def _shrunk(correlation: Floats, draws: int) -> Floats:
    """Return a correlation matrix pulled to the identity as far as its errors ask for.

    Schäfer and Strimmer (2005), A Shrinkage Approach to Large-Scale Covariance Matrix Estimation:
    the best intensity is the sum of the variances of the off-diagonal entries over the sum of
    their squares; here with the variance of a correlation of Gaussians, (1 - r²)²/(draws - 1).
    """
    off = correlation[~np.eye(len(correlation), dtype=bool)]
    size = float(np.square(off).sum())
    errors = float(np.square(1 - np.square(off)).sum()) / (draws - 1)
    share = min(errors / size, 1.0) if size > 0 else 1.0
    return (1 - share) * correlation + share * np.eye(len(correlation))
