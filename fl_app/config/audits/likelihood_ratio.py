"""Settings of the likelihood-ratio attacks on sums: of one round, and of all rounds of a client.

The game, the target and the size of the fit are shared: `--lrt-game` also says what the audits of
information resample. They belong to likelihood-ratio, the first auditor that had them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from leakmeter.fl_app.config.errors import out_of_range
from leakmeter.fl_app.config.field import EVERY, AuditorSettings, audit_setting

if TYPE_CHECKING:
    from leakmeter.auditors import Auditor
    from leakmeter.fl_app.build.audit import AuditRun
    from leakmeter.fl_app.config.settings import Settings

GAMES: Final = ("auto", "rerun", "partition", "independent", "independent-held-out")


@dataclass(frozen=True)
class LikelihoodRatioSettings(AuditorSettings):
    """Likelihood ratio in the sum of a round: which of two updates did this client send?"""

    auditor = "likelihood-ratio"
    short_name = "lrt"
    bets = resamples = True

    lrt_game: str = audit_setting(
        "auto",
        "what likelihood-ratio, transcript, mutual-information and mine resample: batches (rerun), "
        "the partition of the records (partition), or each client's records, drawn from all "
        "records (independent) or from all but those of the client under attack "
        "(independent-held-out); auto = independent (rerun with --partition natural)",
        choices=GAMES,
    )
    lrt_every: int = audit_setting(
        1,
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
        60, "test trials of likelihood-ratio (fresh sums)", low=20, most=10**6
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
        if cls.is_in(config):
            cls.check_others(config)
            cls.check_target(config, "lrt_target", "a random one")
        elif config.lrt_models > 1:
            allowed = "1 without the auditor likelihood-ratio"
            raise config.refused("lrt_models", allowed, "Add it to --auditors")

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
        if not cls.is_in(config):
            return
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
        from leakmeter.auditors import HiddenCohorts, TranscriptBudget, TranscriptLikelihoodRatio
        from leakmeter.auditors.likelihood_ratio.transcript_runs import Mode

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
        ("--clipping", config.clipping, "fixed"),
        ("--server-lr", config.server_step, 1),
        ("--clip-aggregate", config.clip_aggregate, 0),
    ):
        if value != allowed:
            wanted = f"{allowed} with --transcript-mode whole-runs"
            raise out_of_range(name, wanted, value, fix="Try --transcript-mode frozen-models")
