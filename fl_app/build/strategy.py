"""Builds the strategies of a run, plans what they guarantee, and calibrates their noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pkgutil import resolve_name
from typing import Any

from flwr.serverapp.strategy import FedAvg, Strategy

from leakmeter.auditors.bounds.gaussian import brent_root
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.wrapper import link
from leakmeter.clients.secure_sum.quantise import CoarseError, Quantiser
from leakmeter.fl_app.config.config import SUM_SETTINGS, Config
from leakmeter.fl_app.config.field import ConfigError, kebab, out_of_range
from leakmeter.fl_app.config.settings import PATTERNS, SERVERS
from leakmeter.fl_app.deployment import cohort_seed, is_deployed, noise_seed, server_keys
from leakmeter.fl_app.task import load_task, record_rule
from leakmeter.strategies import (
    Central,
    Chosen,
    Clipped,
    Distributed,
    Local,
    Masked,
    Noised,
    RecordNoise,
    Risks,
)
from leakmeter.strategies.accounting.assurance import Guarantees
from leakmeter.strategies.chosen import Participation
from leakmeter.strategies.protection.mechanism import (
    AdaptiveClip,
    Clip,
    Clipping,
    FixedClip,
    Mechanism,
)
from leakmeter.strategies.secure_sum.topology import Topology

# keys, shares, train and unmask; where clients sign, draw and survivors too.
_STAGES = {"on": 4, "active": 6}
_DIGITS = 6  # of the multiplier, rounded up: what is printed is what is used
_MIN_MULTIPLIER, _MAX_MULTIPLIER = 1e-3, 1e6
_MAX_RATIO = 1e4  # of noise to signal: a hundred already leaves a model no accuracy


class CoarseNoiseError(ConfigError):
    """More integer noise, or more bits, would be needed for a proof."""


def server_strategy(config: Config, sums: type[Masked] = Masked) -> Strategy:
    """Return the chain of strategies without the audit: `Masked(Noised(Chosen(FedAvg())))`.

    Without noise or masks a link is missing. `sums` makes the outermost one.
    """
    # Chosen shows each round's clients only, and all of them take part.
    inner: FedAvg = SERVERS[config.server](config, min_train_nodes=1, min_available_nodes=1)
    inner.fraction_evaluate = 0.0  # the server evaluates; as an argument Flower warns of it
    strategy: Strategy = Chosen(
        inner,
        participation(config),
        num_clients=config.clients,
        seed=cohort_seed(config),
        needs_answers=not is_deployed(),
    )
    # Noise that hides clients clips the mean itself, before it is noised.
    if config.clip_aggregate and config.noise_kind.unit != "client":
        strategy = Clipped(strategy, config.clip_aggregate)
    if config.noise != "none":
        # The table of noises says where its mechanism is made.
        mechanism = resolve_name(config.noise_kind.make)(config)
        _check_row(mechanism, config)
        strategy = _noised(strategy, mechanism, config)
    return _masked(strategy, config, sums) if config.has_sums else strategy


def participation(config: Config) -> Participation:
    """Return who takes part in which round."""
    pattern: Participation = PATTERNS[config.participation](config)
    return pattern


def central(config: Config) -> Central:
    """Return noise that the server adds."""
    return Central(config.noise_multiplier, config.noise_distribution)


def distributed(config: Config) -> Distributed:
    """Return noise that all clients add together.

    The target is reached by those who are certain to be there, less those who may collude.
    """
    plan = _topology(config).plan(config.cohort)
    certain = plan.least or plan.threshold - plan.bearable(config.cohort)
    return Distributed(
        config.noise_multiplier, min_honest=certain, distribution=config.noise_distribution
    )


def local(config: Config) -> Local:
    """Return noise that each client adds for itself."""
    return Local(config.noise_multiplier, config.noise_distribution)


def records(config: Config) -> RecordNoise:
    """Return noise for single records."""
    rule, sizes = record_rule(config), load_task(config).sizes
    if rule.sampling == "minibatch" and rule.batch_size > sizes.smallest:
        allowed = (
            f"at most {sizes.smallest}, the fewest records of a client, with --noise record-sgd"
        )
        raise out_of_range("--batch-size", allowed, rule.batch_size)
    return RecordNoise(
        sigma2=config.wfna_floor,
        clip_norm=rule.clip_norm,
        batch_size=rule.batch_size,
        examples=sizes.smallest,
        lr=rule.lr,
        steps=rule.steps,
        kind=rule.mechanism,
    )


def _check_row(noise: Mechanism, config: Config) -> None:
    """Raise if the table says of a noise what its mechanism denies: texts follow the table."""
    known: dict[str, Any] = {
        "unit": "client" if noise.clips_updates else "record",
        "needs_sums": bool(noise.needs_sums),
    }
    if noise.clips_updates:
        known["distribution"] = noise.noise_distribution.name
        known["added_by"] = "clients" if noise.share_std(Clip(config.clip_norm)) > 0 else "server"
    row = {
        **vars(config.noise_kind),
        "needs_sums": bool(config.noise_kind.needs_sums),
        "distribution": config.noise_distribution,
    }
    for field, value in known.items():
        if row[field] != value:
            raise TypeError(
                f"the row of {config.noise!r} in NOISES (fl_app/config/settings.py) must agree "
                f"with {type(noise).__name__} that {field} is {value!r}, got {row[field]!r}"
            )


def _noised(strategy: Strategy, noise: Mechanism, config: Config) -> Noised:
    """Return the strategy with clipping, noise and accounting."""
    if not noise.clips_updates:
        return Noised(strategy, noise=noise, delta=config.delta)
    clipping: Clipping = FixedClip(config.clip_norm, is_measured=config.clipping == "measured")
    if config.clipping == "adaptive":
        clipping = AdaptiveClip(config.clip_norm, quantile=config.clip_quantile)
    return Noised(
        strategy,
        noise=noise,
        clipping=clipping,
        expected_clients=float(config.cohort),
        delta=config.delta,
        seed=noise_seed(config, is_deployed()),
        clip_mean=config.clip_aggregate or None,
    )


def _masked(strategy: Strategy, config: Config, sums: type[Masked]) -> Masked:
    """Return the strategy behind secure sums; what does not fit the cohort is an error now."""
    noised, topology = link(strategy, Noised), _topology(config)
    shape = {**_shape(config, noised), "bits": config.secagg_bits}
    noise: dict[str, Any] = {}
    if noised and noised.share_std > 0 and noised.mechanism.noise_distribution.is_integer:
        noise["noise_distribution"] = noised.mechanism.noise_distribution.name
        noise["noise_std"] = noised.share_std
    try:
        topology.plan(config.cohort)
        Quantiser(max_clients=config.cohort, **noise, **shape)
    except CoarseError as error:
        raise CoarseNoiseError(
            f"--noise-distribution {config.noise_distribution} must have enough noise for its "
            f"grid, got --secagg-bits {config.secagg_bits} and --noise-multiplier "
            f"{config.noise_multiplier:g}: {error}. Try --secagg-bits "
            f"{min(2 * config.secagg_bits, 64)}."
        ) from None
    except ValueError as error:
        shown = ", ".join(f"{kebab(name)} {getattr(config, name):g}" for name in SUM_SETTINGS)
        raise ConfigError(
            f"--secagg must have settings that fit {config.cohort} clients per round, got {shown}: "
            f"{error}; use fewer colluders, a higher threshold, more neighbours (0 = all) or more "
            "bits"
        ) from None
    return sums(
        strategy,
        threshold=topology.threshold,
        neighbours=topology.neighbours,
        risks=topology.risks,
        **shape,
    )


def _shape(config: Config, noised: Noised | None) -> dict[str, Any]:
    """Return what goes into a secure sum, within which limits."""
    metrics = {"train-loss": (0.0, 16.0)}
    if config.clipping == "adaptive":
        metrics[wire.CLIP_BIT] = (0.0, 1.0)
    if config.noise_kind.added_by == "clients":
        metrics = {}  # the server would learn them without noise
    # A simulation knows its clients: the tightest limits give the finest rounding.
    clip_range = 4.0
    if noised is not None and isinstance(noised.mechanism, RecordNoise):
        clip_range = noised.mechanism.clip_range
    elif noised is not None and config.clipping != "adaptive":
        clip_range = config.clip_norm
    largest = 1.0 if noised is not None else float(load_task(config).sizes.largest)
    return {"clip_range": clip_range, "max_weight": largest, "metrics": metrics}


def _topology(config: Config) -> Topology:
    """Return who masks with whom, how many shares open a secret, and who may collude."""
    standard = Risks()
    return Topology(
        threshold=config.secagg_threshold,
        neighbours=config.secagg_neighbours or None,
        risks=Risks(
            colluders=None if config.colluders < 0 else config.colluders,
            dropout_rate=max(
                standard.dropout_rate, 1 - (1 - config.dropout) ** _STAGES.get(config.secagg, 0)
            ),
            collusion_rate=max(standard.collusion_rate, config.colluders / config.cohort),
            # Simulated dropouts are meant to abandon rounds now and then.
            max_abort=1.0 if config.dropout else standard.max_abort,
            trusted=server_keys(config, is_deployed()),
        ),
    )


def planned_cohorts(config: Config, strategy: Strategy) -> list[tuple[int, ...]]:
    """Return the clients that a chain chooses in each round of a run."""
    chosen = link(strategy, Chosen)
    assert chosen is not None
    return [tuple(chosen.cohort(number)) for number in range(1, config.rounds + 1)]


def planned(
    config: Config,
    strategy: Strategy,
    cohorts: Sequence[Sequence[int]],
    *,
    rounds_off: bool,
) -> Guarantees | None:
    """Return what rounds with these clients would guarantee if nobody drops out.

    Args:
        config: Of the run.
        strategy: Its chain, with noise.
        cohorts: The clients of each round.
        rounds_off: Whether to count the cost of rounding in a secure sum; integer noise has no
            price without its grid.

    Returns:
        None if no round releases anything.
    """
    noised, masked = link(strategy, Noised), link(strategy, Masked)
    assert noised is not None
    if masked is None:
        dim = load_task(config).dim if rounds_off else 0
        return noised.planned(cohorts, lambda _: None, dim=dim)
    if not rounds_off:
        return noised.planned(cohorts, masked.bearable, fewest=masked.fewest)
    # Fewer than three clients give no sum, so they release nothing.
    sums = [cohort for cohort in cohorts if len(cohort) > 2]
    step, dim = masked.step, load_task(config).dim
    return noised.planned(sums, masked.bearable, fewest=masked.fewest, step=step, dim=dim)


def calibrated(config: Config) -> Config:
    """Return the configuration with the multiplier that its `target_epsilon` asks for.

    Without a target it is returned as it is.

    Raises:
        ConfigError: No multiplier reaches the target.
    """
    if not config.target_epsilon:
        return config
    usual = replace(config, noise_multiplier=Config.noise_multiplier)
    found = replace(config, noise_multiplier=_multiplier(usual, is_deployed()))
    if (ratio := noise_ratio(found)) > _MAX_RATIO:
        raise config.refused(
            "target_epsilon",
            f"one whose noise leaves something to learn: this one needs --noise-multiplier "
            f"{found.noise_multiplier:g}, noise that is {ratio:,.0f} times as long as a mean "
            "update may be, in every round",
            "Try --target-epsilon 8, or see what each costs: leakmeter sweep --target-epsilon "
            "1..32",
        )
    return found


def noise_ratio(config: Config) -> float:
    """Return the norm of the noise over that of a mean update as long as the clip norm."""
    return sum_noise(config) * math.sqrt(load_task(config).dim) / config.cohort


def sum_noise(config: Config) -> float:
    """Return the noise on the sum of a whole cohort in units of the clip norm, whoever adds it."""
    noised = link(server_strategy(config), Noised)
    assert noised is not None
    shares = noised.share_std / (config.clip_norm or 1.0) * math.sqrt(config.cohort)
    return shares or config.noise_multiplier


def planned_guarantee(config: Config, cohorts: Sequence[Sequence[int]] | None = None) -> Finding:
    """Return what the run would guarantee if nobody drops out.

    It is the guarantee that `headline` chooses, with the cost of rounding in a secure
    sum.

    Args:
        config: Of the run.
        cohorts: The clients of each round, if they are known already.
    """
    cohorts = _priced_cohorts(config) if cohorts is None else cohorts
    guarantees = planned(config, server_strategy(config), cohorts, rounds_off=True)
    if guarantees is None:
        raise ConfigError(
            "--target-epsilon needs at least one round that releases a model, but no cohort of "
            "this plan has three clients; use a larger --sample or another --seed"
        )
    # With adaptive clipping there is a guarantee for clients added or removed alone.
    is_replaced = config.target_adjacency == "replace"
    return guarantees.headline(config.delta, "replace" if is_replaced else None)


def _priced_cohorts(config: Config) -> Sequence[Sequence[int]]:
    if is_deployed() and config.participation in ("fixed", "poisson"):
        # They are drawn from a secret, so somebody may take part in every round.
        return [range(config.cohort)] * config.rounds
    return planned_cohorts(config, server_strategy(config))


# Once per configuration; whether this is a deployment decides about the cohorts, so it is a key.
@lru_cache(maxsize=4)
def _multiplier(config: Config, _: bool) -> float:
    """Return the smallest multiplier that reaches the target, up to its last digit."""
    target, cohorts = config.target_epsilon, _priced_cohorts(config)
    # With adaptive clipping, Config refuses a multiplier from a tenth of the cohort on.
    most = _MAX_MULTIPLIER if config.clipping != "adaptive" else config.cohort / 10 * (1 - 1e-9)

    def excess(log_multiplier: float) -> float:
        one = replace(config, noise_multiplier=math.exp(log_multiplier))
        # In logs the curve is nearly straight. No guarantee at all is a large number, and so is 0.
        try:
            epsilon = planned_guarantee(one, cohorts).value
        except (CoarseNoiseError, CoarseError):  # its integer noise would be too small for its grid
            epsilon = math.inf
        return math.log(min(max(epsilon, 1e-300), 1e300) / target)

    low, high = math.log(_MIN_MULTIPLIER), math.log(most)
    if excess(high) > 0:
        # Rounding in a small ring may move sums further than noise hides.
        rounds_off = config.noise_distribution != "gaussian" and config.has_sums
        more = f", or more --secagg-bits than {config.secagg_bits}" if rounds_off else ""
        raise ConfigError(
            f"--target-epsilon must be one that noise of at most {most:.4g} times the clip norm "
            f"reaches in {config.rounds} rounds, got {target:g}, which needs more noise than that; "
            f"use fewer rounds, more clients or a larger target, such as --target-epsilon 8{more}"
        )
    if excess(low) <= 0:  # a plan in which nobody takes part
        return _MIN_MULTIPLIER
    root = brent_root(excess, low, high, xtol=1e-9)
    return _rounded_up(math.exp(root + 2e-9))


def _rounded_up(value: float) -> float:
    """Return the next number with few digits.

    >>> _rounded_up(1.2345671), _rounded_up(34.567)
    (1.23457, 34.567)
    """
    unit = _DIGITS - 1 - math.floor(math.log10(value))
    # Decimal digits exactly as they are printed; the product may err in its last bit.
    return float(f"{math.ceil(value * 10**unit * (1 - 1e-13)) / 10**unit:.{_DIGITS}g}")
