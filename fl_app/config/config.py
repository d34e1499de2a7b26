"""All settings of a run, with the same words on the command line, in TOML and in Flower.

Each field checks its own value; which of them may be combined is checked here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from leakmeter.fl_app.config.audits import AUDITORS
from leakmeter.fl_app.config.field import (
    AuditorSettings,
    ConfigError,
    checked,
    kebab,
    nearest,
    option,
    out_of_range,
    read_toml,
    shown_name,
    unknown_name,
)
from leakmeter.fl_app.config.settings import (
    AUTO,
    CLIENT_NOISES,
    DISTRIBUTIONS,
    PLAYERS,
    PRESETS,
    RECORD_NOISES,
    Settings,
    usual_auditors,
)

if TYPE_CHECKING:
    from flwr.app import Context

# Settings of the launch under Flower, which do not change what a run does.
OUT, RESUME = "out", "resume"
# The file of a run with the noise multiplier that was calibrated for its target-epsilon.
CALIBRATED = "calibrated.toml"

_SIZES = ("clients", "sample", "canary-seats", "rounds")
SUM_SETTINGS = ("secagg_threshold", "secagg_neighbours", "secagg_bits", "colluders")
# Records of a client with the default settings, which 6,000 for 60 clients give.
_PER_CLIENT = 100
_ADD_AUDITOR = "Add it to --auditors"
_ALL_OTHERS = "Try --secagg-neighbours 0 for all others of the round"


@dataclass(frozen=True)
class Config(Settings):
    """All settings of a run, checked one by one and in combination."""

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = checked(spec, getattr(self, spec.name))
            object.__setattr__(self, spec.name, value)  # a whole number may become a float
        check_together(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Return the configuration with the given kebab-case settings, defaults elsewhere."""
        known = {kebab(f.name): f for f in fields(cls)}
        earlier = {f.metadata["was"]: f for f in fields(cls) if f.metadata["was"]}
        for name in values:
            if name not in known and name not in earlier:
                hint = nearest(name, known) or f"; known settings: {', '.join(sorted(known))}"
                raise ConfigError(f"unknown setting {shown_name(name)}{hint}")
            if name in earlier and (now := kebab(earlier[name].name)) in values:
                raise ConfigError(f"{name} is the earlier name of {now}; leave one of them out")
        return cls(**{(earlier | known)[k].name: v for k, v in _measured(values).items()})

    @classmethod
    def adapted(cls, values: Mapping[str, Any], preset: str = "") -> tuple[Self, str]:
        """Return the configuration with defaults that fit the given settings, and which changed.

        A default that contradicts what is given gives way; what is given never does. The second
        value has a line for the preset, whose settings are defaults too, and one for what gave way.
        """
        others = preset_settings(preset)
        changed = fitting_defaults(values, others)
        usual = {kebab(f.name): f.default for f in fields(cls)} | others
        words = [f"--{name} {new} (default {usual[name]})" for name, new in changed.items()]
        config = cls.from_mapping({**others, **values, **changed})
        if config.target_epsilon and "noise-multiplier" in values:
            raise ConfigError(
                "--noise-multiplier must be left out with --target-epsilon, which calibrates it, "
                f"got --noise-multiplier {config.noise_multiplier:g} and --target-epsilon "
                f"{config.target_epsilon:g}; leave one of them out"
            )
        left = {name: value for name, value in others.items() if name not in {**values, **changed}}
        lines = [preset_line(preset, left)] if preset else []
        lines += [f"adapted to your settings: {', '.join(words)}"] if words else []
        return config, "\n".join(lines)

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """Return the configuration that a run has written to a TOML file."""
        return cls.from_mapping(read_toml(path))

    def to_mapping(self) -> dict[str, Any]:
        """Return all settings in kebab-case."""
        return {kebab(name): value for name, value in asdict(self).items()}

    def to_toml(self) -> str:
        """Return all settings as TOML, grouped by comments.

        A multiplier that follows from `target-epsilon` is left out: another seed or number of
        rounds needs another one.
        """
        lines: list[str] = []
        group = ""
        for spec in fields(self):
            if spec.metadata["group"] != group:
                group = spec.metadata["group"]
                lines += ["", f"# {group}"]
            if spec.name == "noise_multiplier" and self.target_epsilon:
                lines.append(f"# noise-multiplier follows from target-epsilon, see {CALIBRATED}")
                continue
            # JSON's printable strings, numbers and truth values are TOML's.
            value = json.dumps(getattr(self, spec.name), ensure_ascii=False)
            lines.append(f"{kebab(spec.name)} = {value}")
        return "\n".join(lines[1:]) + "\n"


def _measured(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings with a clip norm of "auto" as `Settings.measures_clip` has it."""
    if values.get("clip-norm") != AUTO:
        return values
    if values.get("clipping") == "adaptive":
        allowed = "a number with --clipping adaptive, which moves it in every round"
        raise out_of_range("--clip-norm", allowed, AUTO, fix="Try --clip-norm 1")
    return {**values, "clip-norm": 0.0, "clipping": "measured"}


def from_context(context: Context) -> Config:
    """Return the configuration in `context.run_config`, with defaults for what it does not set."""
    return adapted_context(context)[0]


def adapted_context(context: Context) -> tuple[Config, str]:
    """Return the same, and a line about defaults that gave way to what is set, or ""."""
    # As text, because a cache does not distinguish the keys 1, 1.0 and true.
    return _parsed(json.dumps(dict(context.run_config)))


@lru_cache(maxsize=4)
def _parsed(run_config: str) -> tuple[Config, str]:
    usual = Config().to_mapping()
    # Flower fills in every default, so a value that equals its default counts as not given.
    given = {
        name: value
        for name, value in json.loads(run_config).items()
        if name not in (OUT, RESUME) and (name not in usual or value != usual[name])
    }
    # Flower's runtime is the engine of such a run, whatever the default is.
    return Config.adapted({**given, "engine": "ray"})


def check_together(config: Settings) -> None:
    """Raise if settings contradict each other; the text names both and what is allowed."""
    _ = config.auditor_names, config.loggers  # asking for names checks them
    if config.cohort > config.clients:
        raise ConfigError(
            f"--sample plus --canary-seats must be at most --clients {config.clients}, got "
            f"{config.sample} + {config.seats} = {config.cohort}. Try --clients {config.cohort}."
        )
    if config.has_sums and config.cohort < 3:
        allowed = "at least 3 clients per round with secure aggregation"
        raise out_of_range("--sample", allowed, config.cohort, fix="Try --sample 3")
    for check_some in (_check_sum, _check_noise, _check_target, _check_filling):
        check_some(config)
    # Nobody takes part more often than the pattern allows.
    most = config.clients // config.cohort
    if config.participation == "once" and config.rounds > most:
        raise config.refused(
            "rounds",
            f"at most {most} = clients / (sample + canary seats) with --participation once",
            f"Try --rounds {most}, or --clients {config.rounds * config.cohort}",
        )
    if config.engine != "ray":
        _check_usual(config, ["ray_address"], "empty without --engine ray", "Add --engine ray")
    for name, owner in AUDITORS.items():
        if name in config.auditor_names:
            owner.check(config)
        else:
            _check_usual(config, owner.asks, f"{{}} without the auditor {name}", _ADD_AUDITOR)
    _check_audits(config)
    if config.claim:
        _check_claims(config)
    if config.against:
        _check_against(config)


def _check_usual(config: Settings, names: Collection[str], allowed: str, fix: str) -> None:
    """Refuse settings that are about what the run does not have; "{}" stands for their defaults."""
    for name in names:
        usual = getattr(Settings, name)
        if getattr(config, name) != usual:
            raise config.refused(name, allowed.format(usual), fix.format(option(name)))


def _check_sum(config: Settings) -> None:
    """Require a secure sum for its settings, and enough clients to mask with."""
    if config.secagg == "off":
        allowed = "{:g} with --secagg off, which has no secure sum"
        _check_usual(config, SUM_SETTINGS, allowed, "Leave out {}, or --secagg off")
        return
    neighbours = config.secagg_neighbours
    needs_even = config.secagg == "on"
    if neighbours and (neighbours >= config.cohort or (needs_even and neighbours % 2)):
        number = "an even number" if needs_even else "a number"
        allowed = f"0, or {number} below the {config.cohort} clients of a round"
        raise config.refused("secagg_neighbours", allowed, _ALL_OTHERS)
    if neighbours and config.participation == "poisson":
        allowed = "0 with --participation poisson: a sparse graph is planned for one cohort size"
        raise config.refused("secagg_neighbours", allowed, _ALL_OTHERS)
    if config.colluders > config.sample - 2:
        # If all clients but one are known, the sum reveals the update of that one.
        allowed = f"at most --sample minus 2 = {config.sample - 2}: two clients must stay honest"
        fix = "Try --colluders -1 for as many as the sum tolerates"
        raise config.refused("colluders", allowed, fix)


def _check_noise(config: Settings) -> None:
    """Check the combination of clip norm, noise, its distribution, ledger and budget."""
    kind, noise = config.noise_kind, f"--noise {config.noise}"
    if config.noise == "none":
        _check_no_noise(config)
    elif config.clipping == "measured":
        _check_measured(config)
    elif config.clip_norm == 0:
        allowed = f"above 0 with {noise}: without clipping no ε can be guaranteed"
        raise config.refused("clip_norm", allowed, "Try --clip-norm 1, or --clip-norm auto")
    if (kind.unit, kind.added_by) == ("client", "clients") and config.noise_multiplier == 0:
        raise config.refused(
            "noise_multiplier", f"above 0 with {noise}", "Try --noise-multiplier 1"
        )
    if kind.unit == "client" and kind.needs_sums and not config.has_sums:
        allowed = f"on with {noise}: {kind.needs_sums}"
        raise config.refused("secagg", allowed, "Try --secagg on, or --noise local")
    if config.clipping == "adaptive":
        _check_adaptive(config)
    if not config.ledger:
        _check_usual(config, ["budget"], "0 without --ledger", "Add --ledger FILE")
    # These auditors model what an outsider sees as a sum of updates and noise.
    linear = [owner.auditor for owner in _named(config) if owner.resamples]
    if config.clip_aggregate and kind.added_by == "server" and linear:
        allowed = f"0 with {noise} and the auditor {linear[0]}"
        raise config.refused("clip_aggregate", allowed, "Try --auditors one-shot")
    is_integer = DISTRIBUTIONS[config.noise_distribution]
    if config.noise_distribution != "gaussian" and (
        kind.distributions == "gaussian" or (is_integer and not kind.has_integers)
    ):
        allowed = f"gaussian with {noise}" + ": integer noise is for sums" * is_integer
        fix = "Add --noise distributed or --noise central"
        raise config.refused("noise_distribution", allowed, fix)


def _check_measured(config: Settings) -> None:
    """Refuse a norm of updates where it clips something else, or where every look is counted."""
    if config.noise_kind.unit != "client":
        name, allowed = "clipping", f"fixed with --noise {config.noise}"
        if config.measures_clip:
            name, allowed = "clip_norm", f"a number with --noise {config.noise}"
        raise config.refused(name, f"{allowed}, which clips single gradients", "Try --clip-norm 1")
    if config.ledger and config.measures_clip:
        allowed = "a number with --ledger, which cannot count the rehearsal that measures it"
        raise config.refused("clip_norm", allowed, "Try --clip-norm 1")


def _check_no_noise(config: Settings) -> None:
    """Refuse what only noise can use."""
    if config.clipping == "adaptive":
        raise config.refused("noise", "central with --clipping adaptive", "Try --noise central")
    if config.clip_norm > 0 or config.clipping == "measured":
        allowed = "0 with --noise none, which clips nothing"
        raise config.refused("clip_norm", allowed, "Add --noise central")
    if config.ledger:
        allowed = "empty with --noise none, which spends an unlimited ε"
        raise config.refused("ledger", allowed, "Add --noise central")


def _check_adaptive(config: Settings) -> None:
    """Refuse noise that a clip norm that changes does not go with."""
    if not config.noise_kind.can_adapt:
        raise config.refused(
            "clipping", f"fixed with --noise {config.noise}", "Try --clipping fixed"
        )
    if config.noise_multiplier >= config.cohort / 10:
        # Noise on the clip bits is cohort / 20, and must be above half the multiplier.
        raise config.refused(
            "noise_multiplier",
            f"below {config.cohort / 10:g} with --clipping adaptive and {config.cohort} clients "
            "per round",
            "Lower it, or take more clients per round (--sample)",
        )
    if config.noise_distribution != "gaussian":
        raise config.refused(
            "noise_distribution",
            "gaussian with --clipping adaptive: no proof covers integer noise together with the "
            "noise on clip bits",
            "Try --clipping fixed",
        )


def _check_target(config: Settings) -> None:
    """Require noise that can be calibrated, at a price that is known beforehand."""
    if not config.target_epsilon:
        allowed = "{} without --target-epsilon, which it is about"
        _check_usual(config, ["target_adjacency"], allowed, "Try --target-epsilon 8")
        return
    if config.clipping == "adaptive" and config.target_adjacency == "replace":
        raise config.refused(
            "target_adjacency",
            "zero-out with --clipping adaptive: the proof for its clip bits is about clients that "
            "are added or removed",
            "Try --clipping fixed",
        )
    instead = "or --noise-multiplier in place of --target-epsilon"
    if config.noise_kind.unit != "client":
        known = f"{', '.join(CLIENT_NOISES[:-1])} or {CLIENT_NOISES[-1]}"
        allowed = f"{known} with --target-epsilon, which calibrates that noise"
        raise config.refused("noise", allowed, "Try --noise central")
    if config.clipping == "adaptive" and config.has_sums:
        raise config.refused(
            "clipping",
            "fixed with --target-epsilon and secure aggregation: the smaller the clip norm, the "
            "more rounding costs, and the clip norm is not known beforehand",
            f"Try --clipping fixed, {instead}",
        )
    if config.noise_kind.needs_sums and config.dropout:
        raise config.refused(
            "dropout",
            f"0 with --target-epsilon and --noise {config.noise}: clients that drop out take their "
            "noise away, so the run would exceed the target",
            f"Try --dropout 0, {instead}",
        )


def _check_filling(config: Settings) -> None:
    """Check what noise for single records needs, and the settings that only it has."""
    noise = f"--noise {config.noise}"
    if config.noise != "wfna":
        _check_usual(config, ["wfna_blocks"], "{} without --noise wfna", "Leave out {}")
    if not config.hides_records:
        allowed = f"0 unless --noise is {' or '.join(RECORD_NOISES)}"
        _check_usual(config, ["wfna_floor"], allowed, "Add --noise wfna")
        return
    if config.wfna_floor == 0:
        raise config.refused("wfna_floor", f"above 0 with {noise}", "Try --wfna-floor 0.01")
    if not config.has_sums:
        allowed = f"on with {noise}: {config.noise_kind.needs_sums}"
        raise config.refused("secagg", allowed, "Try --secagg on")
    _check_steps(config)
    if config.ledger:
        allowed = f"empty with {noise}: the ledger counts clients, not records"
        raise config.refused("ledger", allowed, "Leave out --ledger")


def _check_steps(config: Settings) -> None:
    """Require the local steps that the guarantee of the noise is for."""
    noise = config.noise
    fits = {"wfna": ("fedsgd", "fedavg"), "record-gd": ("gd",)}.get(noise, ("fedsgd",))
    if config.algorithm not in fits:
        allowed = f"{fits[0]} with --noise {noise}, whose guarantee is for one such step"
        if noise == "wfna":
            allowed = "fedsgd with --noise wfna, or fedavg, which no guarantee covers"
        raise config.refused("algorithm", allowed, f"Try --algorithm {fits[0]}")
    if noise == "record-gd" and config.epochs != 1:
        allowed = "1 with --noise record-gd: no theorem covers more than one local step"
        raise config.refused("epochs", allowed, "Try --epochs 1")
    if noise != "record-gd" and config.batch_size == 0:
        raise config.refused("batch_size", f"at least 1 with --noise {noise}", "Try --batch-size 8")


def _check_audits(config: Settings) -> None:
    """Require a game for this partition, and an auditor whose bounds hold at every round."""
    named = _named(config)
    if config.partition == "natural" and config.game != "rerun" and any(o.resamples for o in named):
        allowed = "auto or rerun with --partition natural, where each person's records are fixed"
        raise config.refused("lrt_game", allowed, "Try --lrt-game rerun")
    if config.generates_clients and config.game == "partition" and any(o.resamples for o in named):
        allowed = "independent or rerun with --synthetic-per-client: no records are partitioned"
        raise config.refused("lrt_game", allowed, "Try --lrt-game independent")
    if config.bounds != "anytime":
        allowed = "0 without --bounds anytime: only its bounds hold at every round"
        _check_usual(config, ["stop_above"], allowed, "Add --bounds anytime")
    elif not any(owner.bets for owner in named):
        able = ", ".join(name for name, owner in AUDITORS.items() if owner.bets)
        allowed = f"split without one of the auditors {able}"
        raise config.refused("bounds", allowed, "Add --auditors one-shot")


def _check_claims(config: Settings) -> None:
    """Require texts that state claims."""
    from leakmeter.auditors.verdict.claim import claims_of  # imports numpy

    try:
        claims_of(config.claim, option("claim"))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _check_against(config: Settings) -> None:
    """Require an attacker that there is, and a limit that is about it."""
    from leakmeter.auditors.verdict.gate import ALLOWED, ATTACKERS  # imports numpy

    if config.against not in ATTACKERS:
        raise unknown_name("--against", config.against, ATTACKERS, allowed=ALLOWED)
    if not config.fail_above and not config.require_guarantee:
        allowed = "empty without --fail-above or --require-guarantee"
        raise config.refused("against", allowed, "Add --fail-above 8")


def _named(config: Settings) -> list[type[AuditorSettings]]:
    """Return the auditors of a run."""
    return [AUDITORS[name] for name in config.auditor_names]


def preset_settings(name: str) -> dict[str, Any]:
    """Return what a preset sets; nothing without a name."""
    if name and name not in PRESETS:
        raise unknown_name("--preset", name, PRESETS)
    return dict(PRESETS[name].settings) if name else {}


def preset_line(name: str, used: Mapping[str, Any]) -> str:
    """Return what a preset does to a run, in the words of the command line."""
    words = (f"--{setting} {value}" for setting, value in used.items())
    return f"preset {name}: {' '.join(words) or 'your own settings replace all of it'}"


def fitting_defaults(
    values: Mapping[str, Any], preset: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return other defaults for settings that are not given, where the usual ones cannot fit.

    Args:
        values: The settings that are given, by kebab-case names.
        preset: Defaults that replace the usual ones.
    """
    usual: dict[str, Any] = {kebab(spec.name): spec.default for spec in fields(Settings)}
    usual |= preset or {}
    now = {**usual, **values}
    if any(type(now[name]) is not int for name in _SIZES):
        return {}  # checked later, with a message of its own
    if "auditors" not in values:
        now["auditors"] = usual_auditors(now["secagg"], usual["auditors"])
    names = {name.strip() for name in str(now["auditors"]).split(",")}
    has_seats = not PLAYERS.isdisjoint(names)
    changed = {"auditors": now["auditors"], **_fitting_cohort(values, now, has_seats=has_seats)}
    now |= changed
    sample, seats = now["sample"], now["canary-seats"] if has_seats else 0
    if "mine" in names and "mine-draws" not in values and 1 < sample < 20 / usual["mine-draws"]:
        changed["mine-draws"] = -(-20 // sample)  # for 20 pairs of an update and a sum
    is_short = now["dataset"] == "synthetic" and now["clients"] > usual["synthetic-examples"]
    if is_short and "synthetic-examples" not in values:
        changed["synthetic-per-client"] = _PER_CLIENT
    if now["participation"] == "once" and "rounds" not in values and sample + seats > 0:
        changed["rounds"] = min(max(now["clients"] // (sample + seats), 1), now["rounds"])
    return {k: v for k, v in changed.items() if k not in values and v != usual[k]}


def _fitting_cohort(
    values: Mapping[str, Any], now: Mapping[str, Any], *, has_seats: bool
) -> dict[str, int]:
    """Return clients, sample and canary seats that fit, of those that are not given."""
    clients, sample, seats = (now[name] for name in _SIZES[:3])
    wanted = sample + (seats if has_seats else 0)
    if wanted <= clients:
        return {}
    if "clients" not in values:
        return {"clients": wanted}
    if not has_seats:
        return {} if "sample" in values else {"sample": clients}
    if "canary-seats" not in values:
        left = clients - sample if "sample" in values else clients // 4
        seats = min(max(left, 1), seats)
    if "sample" not in values:
        return {"sample": min(max(clients - seats, 1), sample), "canary-seats": seats}
    return {"canary-seats": seats}
