"""Settings of the audit."""

from __future__ import annotations

from dataclasses import dataclass

from leakmeter.fl_app.config.field import setting
from leakmeter.fl_app.config.names import AUDITORS, GAMES


@dataclass(frozen=True)
class AuditSettings:
    """Who looks for leaks, and how closely."""

    auditors: str = setting(
        "one-shot,likelihood-ratio,mutual-information",
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
        "what likelihood-ratio and mutual-information resample: batches (rerun), who holds which "
        "records (partition), or each client's records, drawn from all records (independent) or "
        "from all but those of the client under attack (independent-held-out); auto = independent "
        "(rerun with --partition natural)",
        group="audit",
        choices=GAMES,
    )
    lrt_every: int = setting(
        1, "rounds between two likelihood-ratio audits; 0 for the first only", group="audit", low=0
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
        "rounds between two mutual-information audits; 0 for the first only",
        group="audit",
        low=0,
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
        "directions of the sum that mutual-information looks along; 0 takes all coordinates, which "
        "needs more draws than parameters",
        group="audit",
        low=0,
    )
    delta: float = setting(1e-5, "δ of every (ε, δ) reported", group="audit", above=0, below=1)
