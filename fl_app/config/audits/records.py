"""Settings of the audits of single records: their likelihood ratio, membership and inversion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakmeter.fl_app.config.field import EVERY_NTH, AuditorSettings, audit_setting

if TYPE_CHECKING:
    from leakmeter.auditors import Auditor
    from leakmeter.fl_app.build.audit import AuditRun
    from leakmeter.fl_app.config.settings import Settings

# Noise for records that keeps the sum of a round Gaussian.
_AUDITED = ("wfna", "record-gd", "record-isotropic")


@dataclass(frozen=True)
class RecordLikelihoodRatioSettings(AuditorSettings):
    """Likelihood ratio under noise for records: is one record in a batch?"""

    auditor = "record-likelihood-ratio"

    @classmethod
    def check(cls, config: Settings) -> None:
        """Require noise for records whose sum has a likelihood ratio that is known."""
        if not cls.is_in(config) or config.noise in _AUDITED:
            return
        allowed = f"{' or '.join(_AUDITED)} with the auditor record-likelihood-ratio"
        if config.hides_records:
            allowed += (
                ": a minibatch makes the sum a mixture over all batches, whose exact likelihood "
                "ratio is not known"
            )
            raise config.refused("noise", allowed, "Try --noise record-isotropic")
        raise config.refused("noise", allowed, "Try --noise wfna")

    @classmethod
    def make(cls, run: AuditRun) -> Auditor:
        """Return the audit of records in the sums of rounds, every so often as `--lrt-every`."""
        from leakmeter.auditors.records.game import RecordLikelihoodRatio

        config = run.config
        return RecordLikelihoodRatio(
            run.records.case,
            every=config.lrt_every,
            delta=config.delta,
            confidence=config.confidence,
            seed=config.seed,
        )


@dataclass(frozen=True)
class MembershipSettings(AuditorSettings):
    """Membership inference on a model: was this record used?"""

    auditor = "membership"
    short_name = "mia"
    lacks = "needs the records that clients trained on"

    membership_every: int = audit_setting(
        0,
        "also attack the model of every N-th round with membership; 0 = final model only, -1 = "
        "rounds 1, 2, 4, 8, … and the last",
        low=-1,
    )
    membership_shadows: int = audit_setting(
        0,
        "shadow models that membership trains on half of the test records for its likelihood "
        "ratio; 0 = loss threshold only",
        low=0,
        high=256,
    )

    @classmethod
    def check(cls, config: Settings) -> None:
        """Require as many shadow models as a spread needs."""
        if config.membership_shadows == 1:
            allowed = "0, or at least 2 to estimate their spread"
            raise config.refused("membership_shadows", allowed, "Try --membership-shadows 8")

    @classmethod
    def memory(cls, config: Settings, dim: int, features: int) -> tuple[int, str]:
        """Return the bytes of the shadow models."""
        return 8 * dim * config.membership_shadows, "--membership-shadows"

    @classmethod
    def make(cls, run: AuditRun) -> Auditor:
        """Return the attack by losses, and by shadow models if there are any."""
        from leakmeter.auditors import Membership

        config, known = run.config, run.records
        known.check_shadows()
        return Membership(
            known.losses,
            shadows=known.shadows if config.membership_shadows else None,
            trained=known.trained,
            every=config.membership_every,
            delta=config.delta,
            confidence=config.confidence,
        )


@dataclass(frozen=True)
class InversionSettings(AuditorSettings):
    """Gradient inversion: what did the images look like?"""

    auditor = "inversion"
    short_name = "dlg"
    needs_images = True
    lacks = "compares images with those that clients trained on"

    inversion_every: int = audit_setting(0, f"rounds that inversion audits: {EVERY_NTH}", low=-1)
    inversion_images: int = audit_setting(
        8, "images that inversion searches for in a round's sum", low=1, high=512
    )
    inversion_steps: int = audit_setting(
        200, "optimiser steps of each inversion", low=1, high=100_000
    )

    @classmethod
    def memory(cls, config: Settings, dim: int, features: int) -> tuple[int, str]:
        """Return the bytes of the search, which keeps its last hundred steps."""
        return 800 * features * config.inversion_images, "--inversion-images"

    @classmethod
    def make(cls, run: AuditRun) -> Auditor:
        """Return the search for the images in a round's mean update."""
        from leakmeter.auditors.reconstruction import Attack
        from leakmeter.auditors.reconstruction.inversion import Inversion

        config, known = run.config, run.records
        return Inversion(
            known.at,
            known.images,
            rate=config.lr,
            steps=known.mean_steps,
            seek=config.inversion_images,
            every=config.inversion_every,
            attack=Attack(steps=config.inversion_steps),
            seed=config.seed,
        )
