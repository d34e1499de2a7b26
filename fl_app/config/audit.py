"""Settings of the audit."""

from __future__ import annotations

from dataclasses import dataclass

from leakmeter.fl_app.config.field import setting
from leakmeter.fl_app.config.names import (
    AUDITORS,
    BOUNDS,
    CASES,
    COHORTS,
    GAMES,
    GAUSSIAN_ENTROPY,
    TRANSCRIPTS,
)

_EVERY = "1 = every round, N = every N-th, 0 = first only, -1 = rounds 1, 2, 4, 8, ... and the last"


@dataclass(frozen=True)
class AuditSettings:
    """Which auditors measure leakage, and how closely."""

    auditors: str = setting(
        "one-shot,likelihood-ratio,mutual-information,mine",
        f"auditors to run, separated by commas: {', '.join(AUDITORS)}",
        group="audit",
        metavar="NAMES",
    )
    delta: float = setting(1e-5, "δ of every (ε, δ) reported", group="audit", above=0, below=1)
    confidence: float = setting(
        0.95, "confidence of every lower bound on ε", group="audit", low=0.5, below=1
    )
    bounds: str = setting(
        "split",
        "how one-shot and likelihood-ratio prove an ε for the run: at its end (split), or after "
        "every round, at one confidence for all rounds together (anytime)",
        group="audit",
        choices=BOUNDS,
    )
    canary_seats: int = setting(
        10,
        "clients per round, in addition to --sample, that play canaries for one-shot",
        group="audit",
        low=0,
    )
    canaries: int = setting(
        0,
        "total number of canaries; 0 = as many as the seats allow",
        group="audit",
        low=0,
        most=10**7,
    )
    canary_repetitions: int = setting(1, "rounds in which each canary plays", group="audit", low=1)
    lrt_game: str = setting(
        "auto",
        "what likelihood-ratio, transcript, mutual-information and mine resample: batches (rerun), "
        "the partition of the records (partition), or each client's records, drawn from all "
        "records (independent) or from all but those of the client under attack "
        "(independent-held-out); auto = independent (rerun with --partition natural)",
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
        -1,
        "client that likelihood-ratio and transcript attack; -1 = a random one",
        group="audit",
        low=-1,
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
        60, "test trials of likelihood-ratio (fresh sums)", group="audit", low=20, most=10**6
    )
    transcript_mode: str = setting(
        "frozen-models",
        "how transcript plays its trials: every round at the model of this run (frozen-models), or "
        "as whole runs, which is exact and takes minutes (whole-runs)",
        group="audit",
        choices=TRANSCRIPTS,
    )
    transcript_cohorts: str = setting(
        "known",
        "whether the attacker of transcript knows in which rounds the client takes part",
        group="audit",
        choices=COHORTS,
    )
    transcript_trials: int = setting(
        200, "test transcripts of transcript in each world", group="audit", low=20, most=10**5
    )
    lrt_models: int = setting(
        1,
        "repeat the first test of likelihood-ratio at this many initial models and report the "
        "spread; 1 = the run's own only",
        group="audit",
        low=1,
        high=100,
    )
    mi_every: int = setting(
        1,
        f"rounds that mutual-information audits: {_EVERY}",
        group="audit",
        low=-1,
    )
    mi_target: int = setting(
        -1,
        "client that mutual-information measures; -1 = all clients of a round",
        group="audit",
        low=-1,
    )
    mi_draws: int = setting(
        8, "draws of a round's clients for mutual-information", group="audit", low=4, most=10**6
    )
    mi_rank: int = setting(
        8,
        "directions of the sum that mutual-information and mine measure; 0 = all coordinates for "
        "mutual-information (needs more draws than parameters) and 8 directions for mine",
        group="audit",
        low=0,
    )
    mi_over_rounds: int = setting(
        0,
        "measure what all audited rounds together reveal about a client's data, with this many "
        "pairs of draws that share its data in each round of mutual-information; 0 = off",
        group="audit",
        low=0,
        high=1_000_000,
    )
    mi_case: str = setting(
        "none",
        "add the published upper bound on mutual information, assuming that whitened gradients "
        "have independent coordinates (Case 1) or are log-concave (Case 2); needs --algorithm "
        "fedsgd",
        group="audit",
        choices=CASES,
    )
    mi_c0: float = setting(
        0.0, "C₀ for --mi-case independent; 0 for a Gaussian", group="audit", low=0, high=1e6
    )
    mi_sigma: float = setting(
        1.0, "σ for --mi-case log-concave; 1 for a Gaussian", group="audit", above=0, high=1
    )
    mi_entropy: float = setting(
        GAUSSIAN_ENTROPY,
        "entropy for --mi-case log-concave, in nats per coordinate; at most ½ ln 2πe, that of a "
        "Gaussian",
        group="audit",
        high=GAUSSIAN_ENTROPY,
        low=-1e3,
    )
    mine_every: int = setting(1, f"rounds that mine audits: {_EVERY}", group="audit", low=-1)
    mine_draws: int = setting(
        8,
        "draws of a round's clients for mine; if equal to --mi-draws, both auditors share them",
        group="audit",
        low=8,
        high=100_000,
    )
    mine_critics: int = setting(
        4,
        "neural critics of mine; as many again are trained on shuffled pairs for the null band",
        group="audit",
        low=2,
        high=1000,
    )
    mine_steps: int = setting(
        20, "training steps of each critic of mine", group="audit", low=0, high=1_000_000
    )
    membership_every: int = setting(
        0,
        "also attack the model of every N-th round with membership; 0 = final model only, -1 = "
        "rounds 1, 2, 4, 8, … and the last",
        group="audit",
        low=-1,
    )
    membership_shadows: int = setting(
        0,
        "shadow models that membership trains on half of the test records for its likelihood "
        "ratio; 0 = loss threshold only",
        group="audit",
        low=0,
        high=256,
    )
    inversion_every: int = setting(
        0,
        "rounds that inversion audits: N = every N-th, 0 = round 1 only, -1 = rounds 1, 2, 4, 8, … "
        "and the last",
        group="audit",
        low=-1,
    )
    inversion_images: int = setting(
        8, "images that inversion searches for in a round's sum", group="audit", low=1, high=512
    )
    inversion_steps: int = setting(
        200, "optimiser steps of each inversion", group="audit", low=1, high=100_000
    )
    span_every: int = setting(
        1,
        "rounds that span audits: N = every N-th, 0 = round 1 only, -1 = rounds 1, 2, 4, 8, … and "
        "the last",
        group="audit",
        low=-1,
    )
