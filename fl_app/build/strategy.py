"""Builds the chain of strategies of a run from its configuration, and plans what it guarantees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pkgutil import resolve_name
from typing import Any, TypeVar

from flwr.serverapp.strategy import FedAvg, Strategy

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.chain import chain
from leakmeter.clients.secure_sum.quantise import CoarseError, Quantiser
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError, out_of_range
from leakmeter.fl_app.config.field import option
from leakmeter.fl_app.config.tables import PATTERNS, SERVERS
from leakmeter.fl_app.deployment import cohort_seed, is_deployed, noise_seed, server_keys
from leakmeter.fl_app.task import load_task, record_rule
from leakmeter.strategies import (
    AdaptiveClip,
    Central,
    Chosen,
    Clipped,
    Distributed,
    FixedClip,
    Local,
    Masked,
    Mechanism,
    Noised,
    Participation,
    RecordNoise,
    Risks,
)
from leakmeter.strategies.accounting.assurance import Guarantees
from leakmeter.strategies.protection.mechanism import Clipping
from leakmeter.strategies.secure_sum.topology import Topology

Link = TypeVar("Link", bound=Strategy)

# keys, shares, train and unmask; where clients sign, draw and survivors too.
_STAGES = {"on": 4, "active": 6}


class CoarseNoiseError(ConfigError):
    """More integer noise, or more bits, would be needed for a proof."""


def server_strategy(config: Config) -> Strategy:
    """Return the chain of strategies without the audit: `Masked(Noised(Chosen(FedAvg())))`.

    Without noise or masks a link is missing.
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
        strategy = _noised(strategy, resolve_name(config.noise_kind.make)(config), config)
    return _masked(strategy, config) if config.has_sums else strategy


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
    return Local(config.noise_multiplier)


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


def _noised(strategy: Strategy, noise: Mechanism, config: Config) -> Noised:
    """Return the strategy with clipping, noise and accounting."""
    if not noise.clips_updates:
        return Noised(strategy, noise=noise, delta=config.delta)
    clipping: Clipping = FixedClip(config.clip_norm)
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


def _masked(strategy: Strategy, config: Config) -> Masked:
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
        raise CoarseNoiseError(_coarse(config, str(error))) from None
    except ValueError as error:
        raise ConfigError(_advice(config, str(error))) from None
    return Masked(
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
    elif noised is not None and config.clipping == "fixed":
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


def _coarse(config: Config, reason: str) -> str:
    """Return why integer noise cannot be added as set, and what to change."""
    return (
        f"--noise-distribution {config.noise_distribution} must have enough noise for its grid, "
        f"got --secagg-bits {config.secagg_bits} and --noise-multiplier "
        f"{config.noise_multiplier:g}: {reason}. Try --secagg-bits "
        f"{min(2 * config.secagg_bits, 64)}."
    )


def _advice(config: Config, reason: str) -> str:
    """Return why a secure sum cannot be made as set, and what to change."""
    names = ("secagg_threshold", "secagg_neighbours", "secagg_bits", "colluders")
    shown = ", ".join(f"{option(name)[2:]} {getattr(config, name):g}" for name in names)
    return (
        f"--secagg must have settings that fit {config.cohort} clients per round, got {shown}: "
        f"{reason}; use fewer colluders, a higher threshold, more neighbours (0 = all) or more bits"
    )


def link(strategy: Strategy, kind: type[Link]) -> Link | None:
    """Return the strategy of a kind in a chain; None if there is none."""
    return next((one for one in chain(strategy) if isinstance(one, kind)), None)


def planned(
    config: Config, strategy: Strategy, cohorts: Iterable[Sequence[int]], *, rounds_off: bool
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
    bearable = masked.bearable if masked else lambda _: None
    if not rounds_off:
        return noised.planned(cohorts, bearable)
    dim = load_task(config).dim
    if masked is None:
        return noised.planned(cohorts, bearable, dim=dim)
    # Fewer than three clients give no sum, so they release nothing.
    sums = [cohort for cohort in cohorts if len(cohort) > 2]
    return noised.planned(sums, bearable, step=masked.step, dim=dim)
