"""Settings of the audits of mutual information: Gaussian, and by neural critics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from leakmeter.fl_app.config.field import EVERY, AuditorSettings, audit_setting

if TYPE_CHECKING:
    from leakmeter.auditors import Auditor
    from leakmeter.auditors.information.theory import Case
    from leakmeter.fl_app.build.audit import AuditRun
    from leakmeter.fl_app.config.settings import Settings

GAUSSIAN_ENTROPY: Final = 1.4189385332046727  # ½ ln 2πe nats, of one coordinate of variance 1
_RANK = 8  # directions where the setting says 0 and all would be too many


@dataclass(frozen=True)
class MutualInformationSettings(AuditorSettings):
    """Mutual information between one update and the sum: how many bits does it reveal?"""

    auditor = "mutual-information"
    short_name = "mi"
    resamples = True

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
        if cls.is_in(config):
            cls.check_target(config, "mi_target", "all clients")
        _check_theory(config, is_asked=cls.is_in(config))
        if not config.mi_over_rounds:
            return
        if not cls.is_in(config):
            allowed = "0 without the auditor mutual-information"
            raise config.refused("mi_over_rounds", allowed, "Add it to --auditors")
        if config.game not in ("independent", "independent-held-out"):
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
        from leakmeter.auditors.information import Look, Theory

        config = run.config
        return MutualInformation(
            run.sampler(run.game_without_pair),
            target=run.one_client(config.mi_target),
            every=config.mi_every,
            look=Look(
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
        if cls.is_in(config) and config.sample > 1 and config.mine_draws * config.sample < 20:
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
        from leakmeter.auditors.information import Look

        config = run.config
        return NeuralInformation(
            run.sampler(run.game_without_pair),
            every=config.mine_every,
            look=Look(draws=config.mine_draws, rank=config.mi_rank or _RANK),
            critics=Critics(count=config.mine_critics, steps=config.mine_steps),
            limit=run.entropy_of,
            colluding=max(config.colluders, 0),
            observer=run.observer,
            seed=config.seed,
        )


def _cases(run: AuditRun) -> list[Case]:
    """Return what Theorem 1 is to assume of the gradients; nothing for no bound."""
    from leakmeter.auditors.information import IndependentWhitened, LogConcaveWhitened

    config = run.config
    match config.mi_case:
        case "independent":
            return [IndependentWhitened(config.mi_c0)]
        case "log-concave":
            return [LogConcaveWhitened(config.mi_sigma, config.mi_entropy * run.task.dim)]
    return []


def _check_theory(config: Settings, *, is_asked: bool) -> None:
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
    if not is_asked:
        allowed = "none without the auditor mutual-information"
        raise config.refused("mi_case", allowed, "Add it to --auditors")
    if config.algorithm != "fedsgd" or config.noise == "wfna":
        words = "none unless --algorithm is fedsgd and --noise is not wfna: the bound is for FedSGD"
        raise config.refused("mi_case", words, "Try --algorithm fedsgd")
    if config.game == "partition":
        allowed = "none with --lrt-game partition: the bound is for independent clients"
        raise config.refused("mi_case", allowed, "Try --lrt-game independent")
