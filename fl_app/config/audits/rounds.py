"""Settings of the auditors of a round and its records: canaries, span, recorder, records."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from leakmeter.fl_app.config.errors import out_of_range
from leakmeter.fl_app.config.field import EVERY_NTH, AuditorSettings, audit_setting

if TYPE_CHECKING:
    from leakmeter.auditors import Auditor, PlantPlan
    from leakmeter.fl_app.build.audit import AuditRun
    from leakmeter.fl_app.config.settings import Settings

# Noise for records that keeps the sum of a round Gaussian.
_AUDITED = ("wfna", "record-gd", "record-isotropic")


@dataclass(frozen=True)
class OneShotSettings(AuditorSettings):
    """Canaries in a few seats of each round: did this client take part?"""

    auditor = "one-shot"
    short_name = "canaries"
    bets = True
    plays = True
    lacks = ""

    canary_seats: int = audit_setting(
        10,
        "clients per round, in addition to --sample, that play canaries for one-shot and "
        "single-update",
        low=0,
    )
    canaries: int = audit_setting(
        0, "total number of canaries; 0 = as many as the seats allow", low=0, most=10**7
    )
    canary_repetitions: int = audit_setting(
        0, "rounds in which each canary plays; 0 = as many as a client takes part in", low=0
    )

    canary_kind: str = audit_setting(
        "auto",
        "how canaries are drawn: uniform on the sphere, or random signs, which are faster; auto = "
        "signs above 1,000,000 parameters",
        choices=("auto", "sphere", "signs"),
    )

    @classmethod
    def slots(cls, config: Settings) -> int:
        """Return how many canaries the seats of all rounds have room for."""
        return config.canary_seats * config.rounds // cls.repetitions(config)

    @classmethod
    def repetitions(cls, config: Settings) -> int:
        """Return the rounds in which each canary plays: by default as many as a client.

        A claim about each round is tested by canaries that play once: there are more of them. Bets
        wait for the last round of a canary, so there it plays once, too.
        """
        tests_rounds = "round" in config.claim.replace(";", " ").split()
        if config.canary_repetitions or tests_rounds or config.bounds == "anytime":
            return config.canary_repetitions or 1
        room = config.canary_seats * config.rounds // (config.canaries or 2)
        return max(min(cls.client_rounds(config), config.rounds, room), 1)

    @staticmethod
    def client_rounds(config: Settings) -> int:
        """Return the rounds that a client can expect to send an update of its own in."""
        if config.participation == "once":
            return 1
        return max(round(config.sample * config.rounds / config.clients), 1)

    @classmethod
    def planned(cls, config: Settings) -> int:
        """Return the number of canaries."""
        return config.canaries or cls.slots(config)

    @classmethod
    def check(cls, config: Settings) -> None:
        """Require enough seats for the canaries."""
        cls.check_seats(config, cls.auditor)

    @classmethod
    def check_seats(cls, config: Settings, auditor: str) -> None:
        """Require enough seats for the canaries of an auditor."""
        if config.canary_seats < 1:
            allowed = f"at least 1 for the auditor {auditor}"
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

    @classmethod
    def memory(cls, config: Settings, dim: int, features: int) -> tuple[int, str]:
        """Return the bytes of the canaries' scores."""
        return 200 * cls.planned(config), "--canaries"

    @classmethod
    def make(cls, run: AuditRun) -> Auditor:
        """Return the canaries of a run."""
        from leakmeter.auditors import OneShotCanaries

        return OneShotCanaries(**cls.plan(run.config), confidence=run.anytime_confidence)

    @classmethod
    def plan(cls, config: Settings) -> dict[str, Any]:
        """Return which canaries play, and at which δ; a fair coin decides about each."""
        return {
            "seats": config.canary_seats,
            "canaries": config.canaries or None,
            "repetitions": cls.repetitions(config),
            "client_rounds": cls.client_rounds(config),
            "include": "coin",
            "delta": config.delta,
            "seed": config.seed,
            "kind": config.canary_kind,
        }


@dataclass(frozen=True)
class SingleUpdateSettings(AuditorSettings):
    """Canaries again, searched for in single updates: what does a server see without masks?"""

    auditor = "single-update"
    plays = True
    lacks = ""

    @classmethod
    def check(cls, config: Settings) -> None:
        """Require enough seats for the canaries."""
        OneShotSettings.check_seats(config, cls.auditor)

    @classmethod
    def memory(cls, config: Settings, dim: int, features: int) -> tuple[int, str]:
        """Return the bytes of the canaries' scores and of a few updates."""
        size, settings = OneShotSettings.memory(config, dim, features)
        return size + 48 * dim, settings

    @classmethod
    def make(cls, run: AuditRun) -> Auditor:
        """Return the search in single updates; canaries are those of one-shot if that runs too."""
        from leakmeter.auditors import SingleUpdates

        return SingleUpdates(**OneShotSettings.plan(run.config), confidence=run.config.confidence)


@dataclass(frozen=True)
class SpanSettings(AuditorSettings):
    """Span condition: does an update lie outside the span of the other clients' updates?"""

    auditor = "span"
    every = "span_every"
    lacks = "needs the clients' plain updates, which only a simulation keeps"

    span_every: int = audit_setting(1, f"rounds that span audits: {EVERY_NTH}", low=-1)

    @classmethod
    def check(cls, config: Settings) -> None:
        """Require other clients."""
        cls.check_others(config)

    @classmethod
    def memory(cls, config: Settings, dim: int, features: int) -> tuple[int, str]:
        """Return the bytes of the clients' updates."""
        return 16 * dim * config.sample, "--sample, or use a smaller --model"

    @classmethod
    def make(cls, run: AuditRun) -> Auditor:
        """Return the audit of the span condition."""
        from leakmeter.auditors import SpanCondition

        return SpanCondition(every=run.config.span_every, confidence=run.config.confidence)


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


@dataclass(frozen=True)
class RecordLikelihoodRatioSettings(AuditorSettings):
    """Likelihood ratio under noise for records: is one record in a batch?"""

    auditor = "record-likelihood-ratio"
    every = "lrt_every"

    @classmethod
    def check(cls, config: Settings) -> None:
        """Require noise for records whose sum has a likelihood ratio that is known."""
        if config.noise in _AUDITED:
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
    every = "membership_every"
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
        """Require a list of all records, and as many shadow models as a spread needs."""
        if config.generates_clients:
            allowed = "0 for the auditor membership, which counts the uses of all records"
            fix = "Try fewer --clients, or --auditors one-shot"
            raise config.refused("synthetic_per_client", allowed, fix)
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
            used=known.used,
            every=config.membership_every,
            delta=config.delta,
            confidence=config.confidence,
        )


@dataclass(frozen=True)
class PlantedRecordsSettings(AuditorSettings):
    """Records planted in clients' data, searched for in the model: was this record used?"""

    auditor = "planted-records"
    every = "planted_every"
    short_name = "planted"
    lacks = "plants records in the data of simulated clients; real ones list plant_mod"

    planted_canaries: int = audit_setting(
        200, "records of planted-records; a fair coin plants each or not", low=2, most=10**6
    )
    planted_clients: int = audit_setting(20, "clients that hold them, the first ones", low=1)
    planted_copies: int = audit_setting(
        1, "copies of each planted record in its client's data", low=1, most=10**4
    )
    planted_decoys: int = audit_setting(
        20_000,
        "records that nobody trains on, to compare with; with 200 canaries they limit the ε that "
        "can be shown: 2000 to 4.9, 20000 to 7.1, and less if fewer than half are planted",
        low=100,
        most=10**7,
    )
    planted_generator: str = audit_setting(
        "random-label",
        "what is planted: test records with a random label, or inputs of random numbers",
        choices=("random-label", "random-pattern"),
    )
    planted_every: int = audit_setting(
        0,
        "also look at the model of every N-th round with planted-records; 0 = final model only, "
        "-1 = rounds 1, 2, 4, 8, … and the last",
        low=-1,
    )

    @classmethod
    def planted(cls, config: Settings) -> tuple[PlantPlan, str] | None:
        """Return who holds which canaries, and what draws them; None without the auditor."""
        if cls.auditor not in config.auditor_names:
            return None
        from leakmeter.auditors import PlantPlan

        plan = PlantPlan(
            canaries=config.planted_canaries,
            clients=config.planted_clients,
            copies=config.planted_copies,
            seed=config.seed,
        )
        return plan, config.planted_generator

    @classmethod
    def check(cls, config: Settings) -> None:
        """Require clients that hold canaries, and a list of all records."""
        if config.generates_clients:
            allowed = "0 for the auditor planted-records, which adds to the list of all records"
            raise config.refused("synthetic_per_client", allowed, "Try fewer --clients")
        if config.planted_generator == "random-label" and "membership" in config.auditor_names:
            # Its held-out records are the inputs of random-label, with other labels.
            allowed = "random-pattern beside membership, which holds out the test records"
            raise config.refused("planted_generator", allowed, "Try random-pattern")
        most = min(config.clients, config.planted_canaries)
        if config.planted_clients > most:
            allowed = f"at most --clients {config.clients} and --planted-canaries"
            raise config.refused("planted_clients", allowed, f"Try --planted-clients {most}")

    @classmethod
    def memory(cls, config: Settings, dim: int, features: int) -> tuple[int, str]:
        """Return the bytes of planted records and of all losses."""
        size = 8 * features * config.planted_canaries * config.planted_copies
        return size + 32 * config.planted_decoys, "--planted-copies"

    @classmethod
    def make(cls, run: AuditRun) -> Auditor:
        """Return the search for planted records; simulated clients have them already."""
        from leakmeter.auditors import PlantedRecords, TorchScores

        config, planted = run.config, cls.planted(run.config)
        assert planted is not None
        plan, generator = planted
        return PlantedRecords(
            run.generator(generator),
            TorchScores(run.task.new_model()),
            plan,
            decoys=config.planted_decoys,
            every=config.planted_every,
            delta=config.delta,
            confidence=config.confidence,
            orders=False,
        )


@dataclass(frozen=True)
class InversionSettings(AuditorSettings):
    """Gradient inversion: what did the images look like?"""

    auditor = "inversion"
    every = "inversion_every"
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
        from leakmeter.auditors.reconstruction.attack import Attack
        from leakmeter.auditors.reconstruction.inversion import Inversion

        config, known = run.config, run.records
        return Inversion(
            partial(known.at, device=run.device),
            known.images,
            rate=config.lr,
            seek=config.inversion_images,
            every=config.inversion_every,
            attack=Attack(steps=config.inversion_steps),
            confidence=config.confidence,
            seed=config.seed,
        )
