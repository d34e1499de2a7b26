"""Checks which settings may be combined; each field checks its own value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from leakmeter.fl_app.config.audits import AUDITORS
from leakmeter.fl_app.config.audits.base import AuditorSettings
from leakmeter.fl_app.config.errors import ConfigError, out_of_range, unknown_name
from leakmeter.fl_app.config.field import option
from leakmeter.fl_app.config.settings import AUDITOR_NAMES, Settings
from leakmeter.fl_app.config.tables import CLIENT_NOISES, RECORD_NOISES

_SIZES = ("clients", "sample", "canary-seats", "rounds")
_SUM_SETTINGS = ("secagg_threshold", "secagg_neighbours", "secagg_bits", "colluders")
_ALL_OTHERS = "Try --secagg-neighbours 0 for all others of the round"


def check_together(config: Settings) -> None:
    """Raise if settings contradict each other; the text names both and what is allowed."""
    for name in config.auditor_names:
        if name not in AUDITORS:
            short = {owner.short_name: known for known, owner in AUDITORS.items()}
            raise unknown_name("--auditors", name, AUDITOR_NAMES, short)
    if config.cohort > config.clients:
        wanted = f"{config.sample} + {config.seats} = {config.cohort}"
        raise ConfigError(
            f"--sample plus --canary-seats must be at most --clients {config.clients}, got "
            f"{wanted}. Try --clients {config.cohort}."
        )
    if config.has_sums and config.cohort < 3:
        allowed = "at least 3 clients per round with secure aggregation"
        raise out_of_range("--sample", allowed, config.cohort, fix="Try --sample 3")
    _check_sum(config)
    _check_noise(config)
    _check_distribution(config)
    _check_target(config)
    _check_filling(config)
    _check_participation(config)
    if config.ray_address and config.engine != "ray":
        fix = "Add --engine ray"
        raise out_of_range(
            "--ray-address", "empty without --engine ray", config.ray_address, fix=fix
        )
    for owner in AUDITORS.values():
        owner.check(config)
    _check_game(config)
    _check_bounds(config)


def fitting_defaults(values: Mapping[str, Any]) -> dict[str, int]:
    """Return other defaults for settings that are not given, where the usual ones cannot fit.

    Args:
        values: The settings that are given, by kebab-case names.
    """
    usual: dict[str, Any] = {option(spec.name)[2:]: spec.default for spec in fields(Settings)}
    now = {**usual, **values}
    if any(type(now[name]) is not int for name in _SIZES):
        return {}  # checked later, with a message of its own
    changed = {**_fitting_cohort(values, now)}
    now |= changed
    sample, names = now["sample"], _names(now)
    if "mine" in names and "mine-draws" not in values and 1 < sample < 20 / usual["mine-draws"]:
        changed["mine-draws"] = -(-20 // sample)  # for 20 pairs of an update and a sum
    seats = now["canary-seats"] if "one-shot" in names else 0
    if now["participation"] == "once" and "rounds" not in values and sample + seats > 0:
        changed["rounds"] = min(max(now["clients"] // (sample + seats), 1), now["rounds"])
    return {k: v for k, v in changed.items() if k not in values and v != usual[k]}


def _names(values: Mapping[str, Any]) -> set[str]:
    return {name.strip() for name in str(values["auditors"]).split(",")}


def _fitting_cohort(values: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, int]:
    """Return clients, sample and canary seats that fit, of those that are not given."""
    clients, sample, seats = (now[name] for name in _SIZES[:3])
    has_seats = "one-shot" in _names(now)
    if sample + (seats if has_seats else 0) <= clients:
        return {}
    if "clients" not in values:
        return {"clients": sample + (seats if has_seats else 0)}
    if not has_seats:
        return {} if "sample" in values else {"sample": clients}
    if "canary-seats" not in values:
        left = clients - sample if "sample" in values else clients // 4
        seats = min(max(left, 1), seats)
    if "sample" not in values:
        return {"sample": min(max(clients - seats, 1), sample), "canary-seats": seats}
    return {"canary-seats": seats}


def _named(config: Settings) -> list[type[AuditorSettings]]:
    """Return the auditors of a run."""
    return [AUDITORS[name] for name in config.auditor_names]


def _check_bounds(config: Settings) -> None:
    """Require an auditor with bounds that hold at every round."""
    if config.stop_above and config.bounds != "anytime":
        allowed = "0 without --bounds anytime: only its bounds hold at every round"
        fix = "Add --bounds anytime"
        raise out_of_range("--stop-above", allowed, config.stop_above, fix=fix)
    if config.bounds != "anytime":
        return
    if not any(owner.bets for owner in _named(config)):
        able = ", ".join(name for name, owner in AUDITORS.items() if owner.bets)
        allowed = f"split without one of the auditors {able}"
        fix = "Add --auditors one-shot"
        raise out_of_range("--bounds", allowed, config.bounds, fix=fix)


def _check_sum(config: Settings) -> None:
    """Require a secure sum for its settings, and enough clients to mask with."""
    if config.secagg == "off":
        for spec in fields(config):
            if spec.name in _SUM_SETTINGS and getattr(config, spec.name) != spec.default:
                allowed = f"{spec.default:g} with --secagg off, which has no secure sum"
                fix = f"Leave out {option(spec.name)}, or --secagg off"
                raise out_of_range(option(spec.name), allowed, getattr(config, spec.name), fix=fix)
        return
    neighbours = config.secagg_neighbours
    if config.secagg == "active" and neighbours >= config.cohort:
        allowed = f"0, or a number below the {config.cohort} clients of a round"
        raise out_of_range("--secagg-neighbours", allowed, neighbours, fix=_ALL_OTHERS)
    if config.secagg == "on" and neighbours and (neighbours % 2 or neighbours >= config.cohort):
        allowed = f"0, or an even number below the {config.cohort} clients of a round"
        raise out_of_range("--secagg-neighbours", allowed, neighbours, fix=_ALL_OTHERS)
    if neighbours and config.participation == "poisson":
        allowed = "0 with --participation poisson: a sparse graph is planned for one cohort size"
        raise out_of_range("--secagg-neighbours", allowed, neighbours, fix=_ALL_OTHERS)
    if config.colluders > config.sample - 2:
        # If all clients but one are known, the sum reveals the update of that one.
        allowed = f"at most --sample minus 2 = {config.sample - 2}: two clients must stay honest"
        fix = "Try --colluders -1 for as many as the sum tolerates"
        raise out_of_range("--colluders", allowed, config.colluders, fix=fix)


def _check_target(config: Settings) -> None:
    """Require noise that can be calibrated, at a price that is known beforehand."""
    if not config.target_epsilon:
        return
    if config.noise_kind.unit != "client":
        known = f"{', '.join(CLIENT_NOISES[:-1])} or {CLIENT_NOISES[-1]}"
        allowed = f"{known} with --target-epsilon, which calibrates that noise"
        raise out_of_range("--noise", allowed, config.noise, fix="Try --noise central")
    if config.clipping == "adaptive" and config.has_sums:
        allowed = (
            "fixed with --target-epsilon and secure aggregation: the smaller the clip norm, the "
            "more rounding costs, and the clip norm is not known beforehand"
        )
        fix = "Try --clipping fixed, or --noise-multiplier in place of --target-epsilon"
        raise out_of_range("--clipping", allowed, config.clipping, fix=fix)
    if config.noise_kind.needs_sums and config.dropout:
        allowed = (
            f"0 with --target-epsilon and --noise {config.noise}: clients that drop out take their "
            "noise away, so the run would exceed the target"
        )
        fix = "Try --dropout 0, or --noise-multiplier in place of --target-epsilon"
        raise out_of_range("--dropout", allowed, config.dropout, fix=fix)


def _check_distribution(config: Settings) -> None:
    """Refuse integer noise where no proof covers it."""
    if config.noise_distribution == "gaussian":
        return
    if not config.noise_kind.has_integers:
        allowed = f"gaussian with --noise {config.noise}: integer noise is for sums"
        fix = "Add --noise distributed or --noise central"
        raise out_of_range("--noise-distribution", allowed, config.noise_distribution, fix=fix)
    if config.clipping == "adaptive":
        allowed = (
            "gaussian with --clipping adaptive: no proof covers integer noise together with the "
            "noise on clip bits"
        )
        fix = "Try --clipping fixed"
        raise out_of_range("--noise-distribution", allowed, config.noise_distribution, fix=fix)


def _check_noise(config: Settings) -> None:
    """Check the combination of clip norm, noise, ledger and budget."""
    if config.noise != "none" and config.clip_norm == 0:
        allowed = f"above 0 with --noise {config.noise}: without clipping no ε can be guaranteed"
        raise out_of_range("--clip-norm", allowed, 0.0, fix="Try --clip-norm 1")
    kind = config.noise_kind
    if (kind.unit, kind.added_by) == ("client", "clients") and config.noise_multiplier == 0:
        allowed, fix = f"above 0 with --noise {config.noise}", "Try --noise-multiplier 1"
        raise out_of_range("--noise-multiplier", allowed, 0.0, fix=fix)
    if kind.unit == "client" and kind.needs_sums and config.secagg == "off":
        allowed = f"on with --noise {config.noise}: {kind.needs_sums}"
        raise out_of_range("--secagg", allowed, "off", fix="Try --secagg on, or --noise local")
    if config.clipping == "adaptive" and config.noise == "none":
        allowed, fix = "central with --clipping adaptive", "Try --noise central"
        raise out_of_range("--noise", allowed, config.noise, fix=fix)
    if config.clipping == "adaptive" and not kind.can_adapt:
        allowed, fix = f"fixed with --noise {config.noise}", "Try --clipping fixed"
        raise out_of_range("--clipping", allowed, config.clipping, fix=fix)
    if config.clipping == "adaptive" and config.noise_multiplier >= config.cohort / 10:
        # Noise on the clip bits is cohort / 20, and must be above half the multiplier.
        allowed = (
            f"below {config.cohort / 10:g} with --clipping adaptive and {config.cohort} clients "
            "per round"
        )
        fix = "Lower it, or take more clients per round (--sample)"
        raise out_of_range("--noise-multiplier", allowed, config.noise_multiplier, fix=fix)
    if config.noise == "none" and config.clip_norm > 0:
        allowed, fix = "0 with --noise none, which clips nothing", "Add --noise central"
        raise out_of_range("--clip-norm", allowed, config.clip_norm, fix=fix)
    if config.noise == "none" and config.ledger:
        allowed = "empty with --noise none, which spends an unlimited ε"
        raise out_of_range("--ledger", allowed, config.ledger, fix="Add --noise central")
    if config.budget and not config.ledger:
        fix = "Add --ledger FILE"
        raise out_of_range("--budget", "0 without --ledger", config.budget, fix=fix)
    if config.clip_aggregate and kind.added_by == "server":
        # These auditors model what an outsider sees as a sum of updates and noise.
        linear = [owner for owner in _named(config) if owner.resamples]
        if linear:
            allowed = f"0 with --noise {config.noise} and the auditor {linear[0].auditor}"
            fix = "Try --auditors one-shot"
            raise out_of_range("--clip-aggregate", allowed, config.clip_aggregate, fix=fix)


def _check_filling(config: Settings) -> None:
    """Check what noise for single records needs, and the settings that only it has."""
    if config.wfna_blocks != 1 and config.noise != "wfna":
        fix = "Leave out --wfna-blocks"
        raise out_of_range("--wfna-blocks", "1 without --noise wfna", config.wfna_blocks, fix=fix)
    if not config.hides_records:
        if config.wfna_floor:
            allowed = f"0 unless --noise is {' or '.join(RECORD_NOISES)}"
            raise out_of_range("--wfna-floor", allowed, config.wfna_floor, fix="Add --noise wfna")
        return
    if config.wfna_floor == 0:
        allowed, fix = f"above 0 with --noise {config.noise}", "Try --wfna-floor 0.01"
        raise out_of_range("--wfna-floor", allowed, 0.0, fix=fix)
    if config.secagg == "off":
        allowed = f"on with --noise {config.noise}: {config.noise_kind.needs_sums}"
        raise out_of_range("--secagg", allowed, "off", fix="Try --secagg on")
    _check_steps(config)
    if config.ledger:
        allowed = f"empty with --noise {config.noise}: the ledger counts clients, not records"
        raise out_of_range("--ledger", allowed, config.ledger, fix="Leave out --ledger")


def _check_steps(config: Settings) -> None:
    """Require the local steps that the guarantee of the noise is for."""
    noise, algorithm = config.noise, config.algorithm
    if noise == "wfna":
        fits: tuple[str, ...] = ("fedsgd", "fedavg")
        allowed = "fedsgd with --noise wfna, or fedavg, which no guarantee covers"
    else:
        fits = ("gd",) if noise == "record-gd" else ("fedsgd",)
        allowed = f"{fits[0]} with --noise {noise}, whose guarantee is for one such step"
    if algorithm not in fits:
        fix = f"Try --algorithm {fits[0]}"
        raise out_of_range("--algorithm", allowed, algorithm, fix=fix)
    if noise == "record-gd":
        if config.epochs != 1:
            allowed = "1 with --noise record-gd: no theorem covers more than one local step"
            raise out_of_range("--epochs", allowed, config.epochs, fix="Try --epochs 1")
    elif config.batch_size == 0:
        fix = "Try --batch-size 8"
        raise out_of_range("--batch-size", f"at least 1 with --noise {noise}", 0, fix=fix)


def _check_participation(config: Settings) -> None:
    """Require that nobody takes part more often than the pattern allows."""
    most = config.clients // config.cohort
    if config.participation == "once" and config.rounds > most:
        allowed = f"at most {most} = clients / (sample + canary seats) with --participation once"
        fix = f"Try --rounds {most}, or --clients {config.rounds * config.cohort}"
        raise out_of_range("--rounds", allowed, config.rounds, fix=fix)


def _check_game(config: Settings) -> None:
    """Require a game that can be played with this partition."""
    resamples = any(owner.resamples for owner in _named(config))
    if resamples and config.partition == "natural" and config.game != "rerun":
        allowed = "auto or rerun with --partition natural, where each person's records are fixed"
        raise out_of_range("--lrt-game", allowed, config.lrt_game, fix="Try --lrt-game rerun")
