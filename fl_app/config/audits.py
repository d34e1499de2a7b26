"""What each auditor can be set to, what it needs, and how it is built; and the table of all.

The game, the target and the size of the fit are shared: `--lrt-game` also says what the audits of
information resample. They belong to likelihood-ratio, the first auditor that had them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from leakmeter.fl_app.config.field import (
    EVERY,
    EVERY_NTH,
    AuditorSettings,
    audit_setting,
    out_of_range,
)

if TYPE_CHECKING:
    from leakmeter.auditors import Auditor, PlantPlan
    from leakmeter.auditors.information.theory import Case
    from leakmeter.fl_app.build.audit import AuditRun
    from leakmeter.fl_app.config.settings import Settings

# Noise for records that keeps the sum of a round Gaussian.
_AUDITED = ("wfna", "record-gd", "record-isotropic")


@dataclass(frozen=True)
class OneShotSettings(AuditorSettings):
    """Canaries in a few seats of each round: did this client send an update?"""

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


GAMES: Final = ("auto", "rerun", "partition", "independent", "independent-held-out")
GAUSSIAN_ENTROPY: Final = 1.4189385332046727  # ½ ln 2πe nats, of one coordinate of variance 1
_RANK = 8  # directions where the setting says 0 and all would be too many


@dataclass(frozen=True)
class LikelihoodRatioSettings(AuditorSettings):
    """Likelihood ratio in the sum of a round: which of two updates did this client send?"""

    auditor = "likelihood-ratio"
    every = "lrt_every"
    short_name = "lrt"
    bets = resamples = True
    asks: ClassVar[tuple[str, ...]] = ("lrt_models",)

    lrt_game: str = audit_setting(
        "auto",
        "what likelihood-ratio, transcript, mutual-information and mine resample: batches (rerun), "
        "the partition of the records (partition), or each client's records, drawn from all "
        "records (independent) or from all but those of the client under attack "
        "(independent-held-out); auto = independent (rerun with --partition natural)",
        choices=GAMES,
    )
    lrt_every: int = audit_setting(
        -1,
        f"rounds that likelihood-ratio and record-likelihood-ratio audit: {EVERY}; fewer audits "
        "share the confidence, so bounds get larger",
        low=-1,
    )
    lrt_target: int = audit_setting(
        -1, "client that likelihood-ratio and transcript attack; -1 = a random one", low=-1
    )
    lrt_fit: int = audit_setting(
        200, "updates sampled to model the aggregate of the other clients", low=10, most=10**6
    )
    lrt_candidates: int = audit_setting(
        50, "candidate updates among which the worst pair is chosen", low=2, most=10**5
    )
    lrt_trials: int = audit_setting(
        300, "test trials of likelihood-ratio (fresh sums)", low=20, most=10**6
    )
    lrt_models: int = audit_setting(
        1,
        "repeat the first test of likelihood-ratio at this many initial models and report the "
        "spread; 1 = the run's own only",
        low=1,
        high=100,
    )

    @classmethod
    def check(cls, config: Settings) -> None:
        """Require a client to attack and another to hide it."""
        cls.check_others(config)
        cls.check_target(config, "lrt_target", "a random one")

    @classmethod
    def memory(cls, config: Settings, dim: int, features: int) -> tuple[int, str]:
        """Return the bytes of all samples, and of their products while they are computed."""
        rows = config.lrt_fit + config.lrt_candidates + config.lrt_trials + config.lrt_models
        # The products of all candidates, and of all draws or all coordinates.
        products = 24 * (config.lrt_candidates**2 + min(config.lrt_fit, dim) ** 2)
        return 8 * dim * rows + products, "--lrt-fit, --lrt-candidates or --lrt-trials"

    @classmethod
    def make(cls, run: AuditRun) -> Auditor:
        """Return the audit of single rounds."""
        from leakmeter.auditors import LikelihoodRatio, SampleBudget

        config = run.config
        return LikelihoodRatio(
            run.sampler(run.game),
            target=run.one_client(config.lrt_target),
            every=config.lrt_every,
            budget=SampleBudget(
                fit=config.lrt_fit,
                candidates=config.lrt_candidates,
                pilot=max(config.lrt_trials // 4, 20),
                trials=config.lrt_trials,
                models=tuple(map(run.other_initial, range(1, config.lrt_models))),
            ),
            observer=run.observer,
            delta=config.delta,
            confidence=run.anytime_confidence,
            seed=config.seed,
        )


@dataclass(frozen=True)
class TranscriptSettings(AuditorSettings):
    """Likelihood ratio over all rounds of a client: which of two data sets does it have?"""

    auditor = "transcript"
    resamples = True

    transcript_mode: str = audit_setting(
        "frozen-models",
        "how transcript plays its trials: every round at the model of this run (frozen-models), or "
        "as whole runs, which is exact and takes minutes (whole-runs)",
        choices=("frozen-models", "whole-runs"),
    )
    transcript_cohorts: str = audit_setting(
        "known",
        "whether the attacker of transcript knows in which rounds the client takes part",
        choices=("known", "hidden"),
    )
    transcript_trials: int = audit_setting(
        200, "test transcripts of transcript in each world", low=20, most=10**5
    )

    @classmethod
    def check(cls, config: Settings) -> None:
        """Require data that can be drawn, and a run that the trials can play again."""
        cls.check_others(config)
        cls.check_target(config, "lrt_target", "a random one")
        if config.game == "rerun":
            allowed = "partition, independent or independent-held-out for the auditor transcript"
            fix = "It gives a client other data, so it needs --partition iid or dirichlet"
            raise config.refused("lrt_game", allowed, fix)
        if config.transcript_cohorts == "hidden" and config.participation != "fixed":
            words = "fixed with --transcript-cohorts hidden, whose trials draw cohorts of one size"
            raise config.refused("participation", words)
        if config.transcript_mode == "whole-runs":
            _check_whole_runs(config)

    @classmethod
    def memory(cls, config: Settings, dim: int, features: int) -> tuple[int, str]:
        """Return the bytes of the fit and of the trials' scores."""
        size = 8 * dim * (config.lrt_fit + 20) + 64 * config.transcript_trials * config.rounds
        return size, "--lrt-fit or --transcript-trials"

    @classmethod
    def make(cls, run: AuditRun) -> Auditor:
        """Return the audit of all rounds together."""
        from leakmeter.auditors import TranscriptBudget, TranscriptLikelihoodRatio
        from leakmeter.auditors.likelihood_ratio.transcript_runs import HiddenCohorts, Mode

        config = run.config
        hidden = None
        if config.transcript_cohorts == "hidden":
            hidden = HiddenCohorts(config.sample / config.clients, config.clients)
        return TranscriptLikelihoodRatio(
            run.sampler(run.game),
            target=run.one_client(config.lrt_target),
            hidden=hidden,
            budget=TranscriptBudget(
                fit=config.lrt_fit,
                pilot=max(config.transcript_trials // 2, 20),
                trials=config.transcript_trials,
                mode=cast(Mode, config.transcript_mode),
            ),
            observer=run.observer,
            delta=config.delta,
            confidence=config.confidence,
            seed=config.seed,
        )


def _check_whole_runs(config: Settings) -> None:
    """Require a server that adds the mean update to the model, the same in every run."""
    for name, value, allowed in (
        ("--server", config.server, "fedavg"),
        ("--clipping", config.clipping.replace("measured", "fixed"), "fixed"),
        ("--server-lr", config.server_step, 1),
        ("--clip-aggregate", config.clip_aggregate, 0),
    ):
        if value != allowed:
            wanted = f"{allowed} with --transcript-mode whole-runs"
            raise out_of_range(name, wanted, value, fix="Try --transcript-mode frozen-models")


@dataclass(frozen=True)
class MutualInformationSettings(AuditorSettings):
    """Mutual information between one update and the sum: how many bits does it reveal?"""

    auditor = "mutual-information"
    every = "mi_every"
    short_name = "mi"
    resamples = True
    asks: ClassVar[tuple[str, ...]] = (
        "mi_over_rounds",
        "mi_case",
        "mi_c0",
        "mi_sigma",
        "mi_entropy",
    )

    mi_every: int = audit_setting(1, f"rounds that mutual-information audits: {EVERY}", low=-1)
    mi_target: int = audit_setting(
        -1, "client that mutual-information measures; -1 = all clients of a round", low=-1
    )
    mi_draws: int = audit_setting(
        8, "draws of a round's clients for mutual-information", low=4, most=10**6
    )
    mi_rank: int = audit_setting(
        _RANK,
        "directions of the sum that mutual-information and mine measure; 0 = all coordinates for "
        "mutual-information (needs more draws than parameters) and 8 directions for mine",
        low=0,
    )
    mi_over_rounds: int = audit_setting(
        0,
        "measure what all audited rounds together reveal about a client's data, with this many "
        "pairs of draws that share its data in each round of mutual-information",
        zero="off",
        low=0,
        high=1_000_000,
    )
    mi_case: str = audit_setting(
        "none",
        "add the published upper bound on mutual information, assuming that whitened gradients "
        "have independent coordinates (Case 1) or are log-concave (Case 2); needs --algorithm "
        "fedsgd",
        choices=("none", "independent", "log-concave"),
    )
    mi_c0: float = audit_setting(
        0.0, "C₀ for --mi-case independent; 0 for a Gaussian", low=0, high=1e6
    )
    mi_sigma: float = audit_setting(
        1.0, "σ for --mi-case log-concave; 1 for a Gaussian", above=0, high=1
    )
    mi_entropy: float = audit_setting(
        GAUSSIAN_ENTROPY,
        "entropy for --mi-case log-concave, in nats per coordinate; at most ½ ln 2πe, that of a "
        "Gaussian",
        high=GAUSSIAN_ENTROPY,
        low=-1e3,
    )

    @classmethod
    def check(cls, config: Settings) -> None:
        """Require a target that exists, data that are random, and the theorem's training."""
        cls.check_target(config, "mi_target", "all clients")
        _check_theory(config)
        if config.mi_over_rounds and config.game not in ("independent", "independent-held-out"):
            allowed = f"0 in the game {config.game}, in which data are known or shared"
            raise config.refused("mi_over_rounds", allowed, "Try --lrt-game independent")

    @classmethod
    def memory(cls, config: Settings, dim: int, features: int) -> tuple[int, str]:
        """Return the bytes of the draws, and of the pairs of all rounds."""
        pairs = 16 * config.mi_over_rounds * config.rounds * (config.mi_rank or _RANK)
        return 12 * dim * config.mi_draws + pairs, "--mi-draws, --mi-over-rounds"

    @classmethod
    def make(cls, run: AuditRun) -> Auditor:
        """Return the Gaussian audit of information, with the published bound if asked for."""
        from leakmeter.auditors import MutualInformation
        from leakmeter.auditors.information.draws import DrawPlan
        from leakmeter.auditors.information.theory import Theory

        config = run.config
        return MutualInformation(
            run.sampler(run.game_without_pair),
            target=run.one_client(config.mi_target),
            every=config.mi_every,
            plan=DrawPlan(
                draws=config.mi_draws, rank=config.mi_rank or None, pairs=config.mi_over_rounds
            ),
            theory=Theory(cases=_cases(run), batch_size=run.least_batch, limit=run.entropy_of),
            colluding=max(config.colluders, 0),
            observer=run.observer,
            seed=config.seed,
        )


@dataclass(frozen=True)
class MineSettings(AuditorSettings):
    """Mutual information by neural critics, without assuming Gaussian updates."""

    auditor = "mine"
    every = "mine_every"
    resamples = True

    mine_every: int = audit_setting(1, f"rounds that mine audits: {EVERY}", low=-1)
    mine_draws: int = audit_setting(
        8,
        "draws of a round's clients for mine; if equal to --mi-draws, both auditors share them",
        low=8,
        high=100_000,
    )
    mine_critics: int = audit_setting(
        4,
        "neural critics of mine; as many again are trained on shuffled pairs for the null band",
        low=2,
        high=1000,
    )
    mine_steps: int = audit_setting(
        20, "training steps of each critic of mine", low=0, high=1_000_000
    )

    @classmethod
    def check(cls, config: Settings) -> None:
        """Require enough draws in a round for the critics."""
        if config.sample > 1 and config.mine_draws * config.sample < 20:
            least = -(-20 // config.sample)
            sample = f"--sample {config.sample}"
            allowed = f"at least {least} with {sample}, for 20 pairs of an update and a sum"
            raise config.refused("mine_draws", allowed, f"Try --mine-draws {least}")

    @classmethod
    def memory(cls, config: Settings, dim: int, features: int) -> tuple[int, str]:
        """Return the bytes of the pairs of an update and a sum."""
        rank = config.mi_rank or _RANK
        return 16 * config.mine_draws * config.sample * rank, "--mine-draws"

    @classmethod
    def make(cls, run: AuditRun) -> Auditor:
        """Return the audit of information by critics."""
        from leakmeter.auditors import Critics, NeuralInformation
        from leakmeter.auditors.information.draws import DrawPlan

        config = run.config
        return NeuralInformation(
            run.sampler(run.game_without_pair),
            every=config.mine_every,
            plan=DrawPlan(draws=config.mine_draws, rank=config.mi_rank or _RANK),
            critics=Critics(config.mine_critics, config.mine_steps, device=str(run.device)),
            limit=run.entropy_of,
            colluding=max(config.colluders, 0),
            observer=run.observer,
            seed=config.seed,
        )


def _cases(run: AuditRun) -> list[Case]:
    """Return what Theorem 1 is to assume of the gradients; nothing for no bound."""
    from leakmeter.auditors.information.theory import IndependentWhitened, LogConcaveWhitened

    config = run.config
    match config.mi_case:
        case "independent":
            return [IndependentWhitened(config.mi_c0)]
        case "log-concave":
            return [LogConcaveWhitened(config.mi_sigma, config.mi_entropy * run.task.dim)]
    return []


def _check_theory(config: Settings) -> None:
    """Require the training and the constants that the published bound on information is about."""
    for name, usual, case in (
        ("mi_c0", 0, "independent"),
        ("mi_sigma", 1.0, "log-concave"),
        ("mi_entropy", GAUSSIAN_ENTROPY, "log-concave"),
    ):
        if getattr(config, name) != usual and config.mi_case != case:
            wanted = f"--mi-case {case}"
            raise config.refused(name, f"{usual} without {wanted}", f"Add {wanted}")
    if config.mi_case == "none":
        return
    if config.algorithm != "fedsgd" or config.noise == "wfna":
        words = "none unless --algorithm is fedsgd and --noise is not wfna: the bound is for FedSGD"
        raise config.refused("mi_case", words, "Try --algorithm fedsgd")
    if config.game == "partition":
        allowed = "none with --lrt-game partition: the bound is for independent clients"
        raise config.refused("mi_case", allowed, "Try --lrt-game independent")


@dataclass(frozen=True)
class SettingsOfAuditors(  # one row for each auditor; fields come in reverse order
    RecorderSettings,
    SpanSettings,
    InversionSettings,
    PlantedRecordsSettings,
    MembershipSettings,
    RecordLikelihoodRatioSettings,
    TranscriptSettings,
    MineSettings,
    MutualInformationSettings,
    LikelihoodRatioSettings,
    SingleUpdateSettings,
    OneShotSettings,
):
    """The settings of all auditors together."""


AUDITORS: Final[Mapping[str, type[AuditorSettings]]] = {
    owner.auditor: owner
    for owner in reversed(SettingsOfAuditors.__bases__)
    if issubclass(owner, AuditorSettings)
}
