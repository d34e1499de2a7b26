"""Settings of the auditors that look at what a round leaves: one-shot, span and recorder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakmeter.fl_app.config.errors import out_of_range
from leakmeter.fl_app.config.field import EVERY_NTH, AuditorSettings, audit_setting

if TYPE_CHECKING:
    from leakmeter.auditors import Auditor
    from leakmeter.fl_app.build.audit import AuditRun
    from leakmeter.fl_app.config.settings import Settings


@dataclass(frozen=True)
class OneShotSettings(AuditorSettings):
    """Canaries in a few seats of each round: did this client take part?"""

    auditor = "one-shot"
    short_name = "canaries"
    bets = True
    lacks = ""

    canary_seats: int = audit_setting(
        10, "clients per round, in addition to --sample, that play canaries for one-shot", low=0
    )
    canaries: int = audit_setting(
        0, "total number of canaries; 0 = as many as the seats allow", low=0, most=10**7
    )
    canary_repetitions: int = audit_setting(1, "rounds in which each canary plays", low=1)

    @staticmethod
    def slots(config: Settings) -> int:
        """Return how many canaries the seats of all rounds have room for."""
        return config.canary_seats * config.rounds // config.canary_repetitions

    @classmethod
    def planned(cls, config: Settings) -> int:
        """Return the number of canaries."""
        return config.canaries or cls.slots(config)

    @classmethod
    def check(cls, config: Settings) -> None:
        """Require enough seats for the canaries, and a δ that leaves something to anytime bets."""
        if not cls.is_in(config):
            return
        if config.canary_seats < 1:
            allowed = "at least 1 for the auditor one-shot"
            raise config.refused("canary_seats", allowed, "Try --canary-seats 10")
        if config.canary_repetitions > config.rounds:
            allowed = f"at most --rounds {config.rounds}"
            fix = f"Try --rounds {config.canary_repetitions}"
            raise config.refused("canary_repetitions", allowed, fix)
        most, canaries = cls.slots(config), cls.planned(config)
        if not 2 <= canaries <= most:
            allowed = f"from 2 to {most} = canary seats × rounds / repetitions"
            fix = "Use more seats (--canary-seats) or rounds (--rounds)"
            raise out_of_range("--canaries", allowed, canaries, fix=fix)
        limit = (1 - config.confidence) / canaries
        if config.bounds == "anytime" and config.delta >= limit:
            raise config.refused(
                "delta",
                f"below (1 − confidence) / canaries = {limit:.2g} with --bounds anytime, which "
                "pays δ for each canary",
                f"Try --delta {limit / 100:.1g}",
            )

    @classmethod
    def memory(cls, config: Settings, dim: int, features: int) -> tuple[int, str]:
        """Return the bytes of the canaries' scores."""
        return 200 * cls.planned(config), "--canaries"

    @classmethod
    def make(cls, run: AuditRun) -> Auditor:
        """Return the canaries of a run; a fair coin decides which of them play."""
        from leakmeter.auditors import OneShotCanaries

        config = run.config
        return OneShotCanaries(
            seats=config.canary_seats,
            canaries=config.canaries or None,
            repetitions=config.canary_repetitions,
            delta=config.delta,
            confidence=run.anytime_confidence,
            seed=config.seed,
        )


@dataclass(frozen=True)
class SpanSettings(AuditorSettings):
    """Span condition: does an update lie outside the span of the other clients' updates?"""

    auditor = "span"
    lacks = "needs the clients' plain updates, which only a simulation keeps"

    span_every: int = audit_setting(1, f"rounds that span audits: {EVERY_NTH}", low=-1)

    @classmethod
    def check(cls, config: Settings) -> None:
        """Require other clients."""
        if cls.is_in(config):
            cls.check_others(config)

    @classmethod
    def memory(cls, config: Settings, dim: int, features: int) -> tuple[int, str]:
        """Return the bytes of the clients' updates."""
        return 16 * dim * config.sample, "--sample, or use a smaller --model"

    @classmethod
    def make(cls, run: AuditRun) -> Auditor:
        """Return the audit of the span condition."""
        from leakmeter.auditors import SpanCondition

        return SpanCondition(every=run.config.span_every)


@dataclass(frozen=True)
class RecorderSettings(AuditorSettings):
    """Records what the server saw of each round, so that it can be audited again later."""

    auditor = "recorder"
    lacks = ""

    @classmethod
    def make(cls, run: AuditRun) -> Auditor:
        """Return the recorder, which notes the settings of the run."""
        from leakmeter.auditors import AggregateRecorder

        return AggregateRecorder(
            about={"config": run.config.to_mapping(), "deployed": run.is_deployed}
        )
