"""Settings of the audit."""

from __future__ import annotations

from dataclasses import dataclass

from leakmeter.fl_app.config.field import setting
from leakmeter.fl_app.config.names import AUDITORS, CASES, GAMES, GAUSSIAN_ENTROPY

_EVERY = "1 = every round, N = every N-th, 0 = first only, -1 = rounds 1, 2, 4, 8, ... and the last"


@dataclass(frozen=True)
class AuditSettings:
    """Who looks for leaks, and how closely."""

    auditors: str = setting(
        "one-shot,likelihood-ratio,mutual-information,mine",
        f"who measures the leak, separated by commas: {', '.join(AUDITORS)}",
        group="audit",
        metavar="NAMES",
    )
    canary_seats: int = setting(
        10,
        "clients in a round, beside the honest ones, that play canaries for one-shot",
        group="audit",
        low=0,
    )
    canaries: int = setting(
        0, "canaries in all; 0 takes as many as the seats allow", group="audit", low=0, most=10**7
    )
    canary_repetitions: int = setting(1, "rounds in which each canary plays", group="audit", low=1)
    lrt_game: str = setting(
        "auto",
        "what likelihood-ratio, mutual-information and mine resample: batches (rerun), who holds "
        "which records (partition), or each client's records, drawn from all records "
        "(independent) or from all but those of the client under attack (independent-held-out); "
        "auto = independent (rerun with --partition natural)",
        group="audit",
        choices=GAMES,
    )
    lrt_every: int = setting(
        1,
        f"rounds that likelihood-ratio and record-likelihood-ratio audit: {_EVERY}; fewer audits "
        "share the confidence, so bounds get larger",
        group="audit",
        low=-1,
    )
    lrt_target: int = setting(
        -1, "client under attack by likelihood-ratio; -1 draws one", group="audit", low=-1
    )
    lrt_fit: int = setting(
        200,
        "updates sampled to model the aggregate of the other clients",
        group="audit",
        low=10,
        most=10**6,
    )
    lrt_candidates: int = setting(
        50,
        "candidate updates among which the worst pair is chosen",
        group="audit",
        low=2,
        most=10**5,
    )
    lrt_trials: int = setting(
        60, "sums on which likelihood-ratio is tested", group="audit", low=20, most=10**6
    )
    mi_every: int = setting(
        1,
        f"rounds that mutual-information audits: {_EVERY}",
        group="audit",
        low=-1,
    )
    mi_target: int = setting(
        -1,
        "client that mutual-information looks at; -1 takes all of a round",
        group="audit",
        low=-1,
    )
    mi_draws: int = setting(
        8, "draws of a round's clients for mutual-information", group="audit", low=4, most=10**6
    )
    mi_rank: int = setting(
        8,
        "directions of the sum that mutual-information and mine look along; 0 takes all "
        "coordinates for mutual-information, which needs more draws than parameters, and 8 "
        "directions for mine",
        group="audit",
        low=0,
    )
    mi_over_rounds: int = setting(
        0,
        "pairs of draws that share a client's data, in each round that mutual-information audits, "
        "for what all rounds together reveal about the data; 0 = off",
        group="audit",
        low=0,
        high=1_000_000,
    )
    mine_every: int = setting(1, f"rounds that mine audits: {_EVERY}", group="audit", low=-1)
    mine_draws: int = setting(
        8,
        "draws of a round's clients for mine; with the same number, mutual-information and mine "
        "share them",
        group="audit",
        low=8,
        high=100_000,
    )
    mine_critics: int = setting(
        4,
        "critics of mine on held-out draws, and as many on shuffled pairs",
        group="audit",
        low=2,
        high=1000,
    )
    mine_steps: int = setting(
        20, "training steps of each critic of mine", group="audit", low=0, high=1_000_000
    )
    membership_every: int = setting(
        0,
        "rounds between two models that membership attacks beside the final one; 0 = final model "
        "only, -1 = rounds 1, 2, 4, 8, … and the last",
        group="audit",
        low=-1,
    )
    membership_shadows: int = setting(
        0,
        "models that membership trains on half of the test records for its likelihood ratio; 0 = "
        "loss threshold only",
        group="audit",
        low=0,
        high=256,
    )
    inversion_every: int = setting(
        0,
        "rounds between two inversion audits; 0 = round 1 only, -1 = rounds 1, 2, 4, 8, … and the "
        "last",
        group="audit",
        low=-1,
    )
    inversion_images: int = setting(
        8, "images that inversion searches for in a round's sum", group="audit", low=1, high=512
    )
    inversion_steps: int = setting(
        200, "steps of each search of inversion", group="audit", low=1, high=100_000
    )
    span_every: int = setting(
        1,
        "rounds between two span audits; 0 = round 1 only, -1 = rounds 1, 2, 4, 8, … and the last",
        group="audit",
        low=-1,
    )
    delta: float = setting(1e-5, "δ of every (ε, δ) reported", group="audit", above=0, below=1)
    mi_case: str = setting(
        "none",
        "what the published bound on mutual information assumes of whitened gradients: independent "
        "coordinates (Case 1), log-concave (Case 2), or nothing: no bound; fedsgd only",
        group="audit",
        choices=CASES,
    )
    mi_c0: float = setting(
        0.0, "C₀ of the case independent; a Gaussian has 0", group="audit", low=0, high=1e6
    )
    mi_sigma: float = setting(
        1.0, "σ of the case log-concave; a Gaussian has 1", group="audit", above=0, high=1
    )
    mi_entropy: float = setting(
        GAUSSIAN_ENTROPY,
        "entropy of the case log-concave, in nats per coordinate; a Gaussian has the most, "
        "½ ln 2πe",
        group="audit",
        high=GAUSSIAN_ENTROPY,
        low=-1e3,
    )
    lrt_models: int = setting(
        1,
        "initial models at which likelihood-ratio repeats its first test, with their spread; 1 = "
        "the run's own only",
        group="audit",
        low=1,
        high=100,
    )
    confidence: float = setting(
        0.95, "confidence of every lower bound on ε", group="audit", low=0.5, below=1
    )
