"""Settings of the audits of sums: likelihood ratio of a round and of all rounds, information.

The game, the target and the size of the fit are shared: `--lrt-game` also says what the audits of
information resample. They belong to likelihood-ratio, the first auditor that had them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, cast

from leakmeter.fl_app.config.errors import out_of_range
from leakmeter.fl_app.config.field import EVERY, AuditorSettings, audit_setting

if TYPE_CHECKING:
    from leakmeter.auditors import Auditor
    from leakmeter.auditors.information.theory import Case
    from leakmeter.fl_app.build.audit import AuditRun
    from leakmeter.fl_app.config.settings import Settings

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
        "pairs of draws that share its data in each round of mutual-information; 0 = off",
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
