"""Settings of the auditors that only look at what a round leaves: span and recorder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakmeter.fl_app.config.audits.base import (
    EVERY_NTH,
    AuditorSettings,
    audit_setting,
    check_sample,
)

if TYPE_CHECKING:
    from leakmeter.auditors import Auditor
    from leakmeter.fl_app.build.audit import AuditRun
    from leakmeter.fl_app.config.settings import Settings


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
            check_sample(cls.auditor, config)

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
