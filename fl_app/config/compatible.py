"""Which settings go together; each by itself is checked by its field."""

from __future__ import annotations

from dataclasses import fields

from leakmeter.fl_app.config.errors import ConfigError, out_of_range, unknown_name
from leakmeter.fl_app.config.field import kebab
from leakmeter.fl_app.config.names import AUDITORS, GAUSSIAN_ENTROPY, IMAGES, RECORD_NOISES
from leakmeter.fl_app.config.settings import Settings

# Noise for records with which the sum of a round is Gaussian.
_AUDITED = ("wfna", "record-gd", "record-isotropic")
_SUM_SETTINGS = ("secagg_threshold", "secagg_neighbours", "secagg_bits", "colluders")
_OF_SUMS = ("likelihood-ratio", "mutual-information", "mine")  # auditors


def check_together(config: Settings) -> None:
    """Raise if settings contradict each other; the text names both and what is allowed."""
    for name in config.auditor_names:
        if name not in AUDITORS:
            raise unknown_name("auditors", name, AUDITORS)
    if config.cohort > config.clients:
        wanted = f"{config.sample} + {config.seats} = {config.cohort}"
        raise ConfigError(
            f"sample + canary-seats must be at most clients = {config.clients}, got {wanted}"
        )
    if config.has_sums and config.cohort < 3:
        raise out_of_range("sample", "at least 3 clients a round with secagg", config.cohort)
    _check_sum(config)
    _check_noise(config)
    _check_target(config)
    _check_filling(config)
    _check_participation(config)
    if config.ray_address and config.engine != "ray":
        raise out_of_range("ray-address", "empty unless engine is ray", config.ray_address)
    if "one-shot" in config.auditor_names:
        _check_canaries(config)
    if "likelihood-ratio" in config.auditor_names:
        _check_trials(config)
    elif config.lrt_models > 1:
        allowed = "1 without the auditor likelihood-ratio; add it to --auditors"
        raise out_of_range("lrt-models", allowed, config.lrt_models)
    if "mutual-information" in config.auditor_names and config.mi_target >= config.clients:
        raise out_of_range("mi-target", f"below clients = {config.clients}", config.mi_target)
    if "mine" in config.auditor_names:
        _check_critics(config)
    _check_theory(config)
    if set(_OF_SUMS) & set(config.auditor_names):
        _check_game(config)
    if "inversion" in config.auditor_names and config.dataset not in IMAGES:
        allowed = f"one of images ({', '.join(IMAGES)}) for the auditor inversion, such as digits"
        raise out_of_range("dataset", allowed, config.dataset)
    if "span" in config.auditor_names and config.sample < 2:
        raise out_of_range("sample", "at least 2 for the auditor span", config.sample)
    if config.membership_shadows == 1:
        raise out_of_range("membership-shadows", "0, or at least 2 to know their spread", 1)
    _check_over_rounds(config)


def _check_over_rounds(config: Settings) -> None:
    """Data that are kept over rounds must be random, and somebody must look."""
    if not config.mi_over_rounds:
        return
    if "mutual-information" not in config.auditor_names:
        allowed = "0 without the auditor mutual-information"
        raise out_of_range("mi-over-rounds", allowed, config.mi_over_rounds)
    if config.game not in ("independent", "independent-held-out"):
        allowed = f"0 in the game {config.game}, in which data are known or shared; try --lrt-game "
        raise out_of_range("mi-over-rounds", f"{allowed}independent", config.mi_over_rounds)


def _check_sum(config: Settings) -> None:
    """Settings of the secure sum need one, and clients to mask with."""
    if config.secagg == "off":
        for spec in fields(config):
            if spec.name in _SUM_SETTINGS and getattr(config, spec.name) != spec.default:
                allowed = f"{spec.default:g} with secagg off: there is no secure sum to set"
                raise out_of_range(kebab(spec.name), allowed, getattr(config, spec.name))
        return
    neighbours = config.secagg_neighbours
    if config.secagg == "active" and neighbours >= config.cohort:
        allowed = f"0, or a number below the {config.cohort} clients of a round"
        raise out_of_range("secagg-neighbours", allowed, neighbours)
    if config.secagg == "on" and neighbours and (neighbours % 2 or neighbours >= config.cohort):
        allowed = f"0, or an even number below the {config.cohort} clients of a round"
        raise out_of_range("secagg-neighbours", allowed, neighbours)
    if neighbours and config.participation == "poisson":
        allowed = "0 with participation poisson: a sparse graph is planned for one size of cohort"
        raise out_of_range("secagg-neighbours", allowed, neighbours)
    if config.colluders > config.sample - 2:
        # A sum of which all but one client is known is that client's update.
        allowed = f"at most sample - 2 = {config.sample - 2}: two clients must stay honest"
        raise out_of_range("colluders", allowed, config.colluders)


def _check_target(config: Settings) -> None:
    """There is noise that can be calibrated, and its price is known beforehand."""
    if not config.target_epsilon:
        return
    if config.noise not in ("central", "distributed", "local"):
        allowed = "central, distributed or local with target-epsilon, which calibrates that noise"
        raise out_of_range("noise", allowed, config.noise)
    if config.clipping == "adaptive" and config.has_sums:
        allowed = (
            "fixed with target-epsilon and secagg on: rounding costs the more, the smaller the "
            "clip norm becomes, and nobody knows it beforehand"
        )
        raise out_of_range("clipping", allowed, config.clipping)
    if config.noise == "distributed" and config.dropout:
        allowed = (
            "0 with target-epsilon and noise distributed: clients that drop out take their noise "
            "away, so the run would exceed the target"
        )
        raise out_of_range("dropout", allowed, config.dropout)


def _check_noise(config: Settings) -> None:
    """Clip norms, noise and the ledger go together."""
    if config.noise != "none" and config.clip_norm == 0:
        raise out_of_range("clip-norm", "above 0 with noise, or nothing bounds it", 0.0)
    if config.noise in ("distributed", "local") and config.noise_multiplier == 0:
        raise out_of_range("noise-multiplier", f"above 0 with noise {config.noise}", 0.0)
    if config.noise == "distributed" and config.secagg == "off":
        raise out_of_range("secagg", "on with noise distributed: single shares are weak", "off")
    if config.clipping == "adaptive" and config.noise == "none":
        raise out_of_range("noise", "central for adaptive clipping", config.noise)
    if config.clipping == "adaptive" and config.noise != "central":
        raise out_of_range("clipping", f"fixed with noise {config.noise}", config.clipping)
    if config.clipping == "adaptive" and config.noise_multiplier >= config.cohort / 10:
        # Noise on the clip bits is cohort / 20, and must be above half the multiplier.
        allowed = f"below {config.cohort / 10:g} with adaptive clipping and {config.cohort} clients"
        raise out_of_range("noise-multiplier", allowed, config.noise_multiplier)
    if config.noise == "none" and config.clip_norm > 0:
        raise out_of_range("clip-norm", "0 without noise: nothing would clip", config.clip_norm)
    if config.noise == "none" and config.ledger:
        raise out_of_range("ledger", "empty without noise, which spends any ε", config.ledger)
    if config.budget and not config.ledger:
        raise out_of_range("budget", "0 without a ledger to add it up", config.budget)
    if config.clip_aggregate and config.noise == "central":
        # They judge what an outsider sees, as a sum of updates and noise.
        linear = [name for name in config.auditor_names if name in _OF_SUMS]
        if linear:
            allowed = f"0 with noise central and the auditor {linear[0]}; take one-shot instead"
            raise out_of_range("clip-aggregate", allowed, config.clip_aggregate)


def _check_filling(config: Settings) -> None:
    """What noise for single records needs, and what only it can have."""
    if config.wfna_blocks != 1 and config.noise != "wfna":
        raise out_of_range("wfna-blocks", "1 unless noise is wfna", config.wfna_blocks)
    if not config.hides_records:
        if config.wfna_floor:
            allowed = f"0 unless noise is {' or '.join(RECORD_NOISES)}"
            raise out_of_range("wfna-floor", allowed, config.wfna_floor)
        if "record-likelihood-ratio" in config.auditor_names:
            allowed = f"{' or '.join(_AUDITED)} with the auditor record-likelihood-ratio"
            raise out_of_range("noise", allowed, config.noise)
        return
    if config.wfna_floor == 0:
        raise out_of_range("wfna-floor", f"above 0 with noise {config.noise}", 0.0)
    if config.secagg == "off":
        allowed = f"on with noise {config.noise}: a single floor is weak"
        raise out_of_range("secagg", allowed, "off")
    _check_steps(config)
    if config.ledger:
        allowed = f"empty with noise {config.noise}: it counts clients"
        raise out_of_range("ledger", allowed, config.ledger)
    if "record-likelihood-ratio" in config.auditor_names and config.noise not in _AUDITED:
        allowed = (
            f"{' or '.join(_AUDITED)} with the auditor record-likelihood-ratio: a minibatch makes "
            "the sum a mixture over all batches, whose exact likelihood ratio is not known"
        )
        raise out_of_range("noise", allowed, config.noise)


def _check_steps(config: Settings) -> None:
    """The clients take the steps that their noise is made for."""
    noise, algorithm = config.noise, config.algorithm
    if noise == "wfna":
        fits: tuple[str, ...] = ("fedsgd", "fedavg")
        allowed = "fedsgd with noise wfna, or fedavg, which no guarantee covers"
    else:
        fits = ("gd",) if noise == "record-gd" else ("fedsgd",)
        allowed = f"{fits[0]} with noise {noise}, whose guarantee is for one such step"
    if algorithm not in fits:
        raise out_of_range("algorithm", allowed, algorithm)
    if noise == "record-gd":
        if config.epochs != 1:
            allowed = "1 with noise record-gd: no theorem covers more than one local step"
            raise out_of_range("epochs", allowed, config.epochs)
    elif config.batch_size == 0:
        raise out_of_range("batch-size", f"at least 1 with noise {noise}", 0)


def _check_participation(config: Settings) -> None:
    """Nobody takes part more often than the pattern allows."""
    most = config.clients // config.cohort
    if config.participation == "once" and config.rounds > most:
        allowed = f"at most clients / (sample + canary-seats) = {most} with participation once"
        raise out_of_range("rounds", allowed, config.rounds)


def _check_canaries(config: Settings) -> None:
    """The seats hold the canaries."""
    slots = config.canary_seats * config.rounds
    if config.canary_seats < 1:
        raise out_of_range("canary-seats", "at least 1 for the auditor one-shot", 0)
    if config.canary_repetitions > config.rounds:
        allowed = f"at most rounds = {config.rounds}"
        raise out_of_range("canary-repetitions", allowed, config.canary_repetitions)
    canaries = config.canaries or slots // config.canary_repetitions
    if canaries < 2 or canaries * config.canary_repetitions > slots:
        allowed = (
            f"from 2 to canary-seats x rounds / canary-repetitions = "
            f"{slots // config.canary_repetitions}"
        )
        raise out_of_range("canaries", allowed, canaries)


def _check_trials(config: Settings) -> None:
    """There is somebody to attack, and somebody to hide among."""
    if config.sample < 2:
        raise out_of_range("sample", "at least 2 for the auditor likelihood-ratio", config.sample)
    if config.lrt_target >= config.clients:
        raise out_of_range("lrt-target", f"below clients = {config.clients}", config.lrt_target)


def _check_theory(config: Settings) -> None:
    """The published bound on mutual information is about this training, and its constants."""
    is_asked = "mutual-information" in config.auditor_names
    if config.mi_c0 and config.mi_case != "independent":
        raise out_of_range("mi-c0", "0 unless mi-case is independent", config.mi_c0)
    for name, value, usual in (
        ("mi-sigma", config.mi_sigma, 1.0),
        ("mi-entropy", config.mi_entropy, GAUSSIAN_ENTROPY),
    ):
        if value != usual and config.mi_case != "log-concave":
            raise out_of_range(name, f"{usual} unless mi-case is log-concave", value)
    if config.mi_case == "none":
        return
    if not is_asked:
        allowed = "none without the auditor mutual-information; add it to --auditors"
        raise out_of_range("mi-case", allowed, config.mi_case)
    if config.algorithm != "fedsgd" or config.noise == "wfna":
        allowed = "none unless algorithm is fedsgd and noise is not wfna: the bound is about FedSGD"
        raise out_of_range("mi-case", allowed, config.mi_case)
    if config.game == "partition":
        allowed = "none with lrt-game partition: the bound is about independent clients"
        raise out_of_range("mi-case", allowed, config.mi_case)


def _check_game(config: Settings) -> None:
    """The game can be played with this partition."""
    if config.partition == "natural" and config.game != "rerun":
        allowed = "auto or rerun with the partition natural: the records of a person are given"
        raise out_of_range("lrt-game", allowed, config.lrt_game)


def _check_critics(config: Settings) -> None:
    """A round's draws make enough pairs for critics."""
    if config.sample > 1 and config.mine_draws * config.sample < 20:
        least = -(-20 // config.sample)
        allowed = (
            f"at least {least} with sample = {config.sample}, for 20 pairs of an update and a sum"
        )
        raise out_of_range("mine-draws", allowed, config.mine_draws)
