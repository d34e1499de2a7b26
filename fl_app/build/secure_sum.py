"""Builds the secure sum of a run from its configuration."""

from __future__ import annotations

from typing import Any

from flwr.serverapp.strategy import Strategy

from leakmeter.auditors.hook.chain import chain
from leakmeter.clients.secure_sum.quantise import CoarseError, Quantiser
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.deployment import is_deployed, server_keys
from leakmeter.strategies import Masked, Noised, Risks
from leakmeter.strategies.secure_sum.topology import Topology

# keys, shares, train and unmask; where clients sign, draw and survivors too.
_STAGES = {"on": 4, "active": 6}


class CoarseNoiseError(ConfigError):
    """More integer noise, or more bits, would be needed for a proof."""


def masked(strategy: Strategy, config: Config, **shape: Any) -> Masked:
    """Return the strategy behind secure sums; what does not fit the cohort is an error now.

    Args:
        strategy: Gets the sums.
        config: Says how they are made.
        shape: `clip_range`, `max_weight` and `metrics` of `Masked`.
    """
    plan = topology(config)
    noised = next((s for s in chain(strategy) if isinstance(s, Noised)), None)
    noise: dict[str, Any] = {}
    if (
        noised is not None
        and noised.share_std > 0
        and noised.mechanism.noise_distribution.is_integer
    ):
        noise = {
            "noise_distribution": noised.mechanism.noise_distribution.name,
            "noise_std": noised.share_std,
        }
    try:
        plan.plan(config.cohort)
        Quantiser(max_clients=config.cohort, bits=config.secagg_bits, **noise, **shape)
    except CoarseError as error:
        raise CoarseNoiseError(_coarse(config, str(error))) from None
    except ValueError as error:
        raise ConfigError(_advice(config, str(error))) from None
    return Masked(
        strategy,
        threshold=plan.threshold,
        neighbours=plan.neighbours,
        risks=plan.risks,
        bits=config.secagg_bits,
        **shape,
    )


def topology(config: Config) -> Topology:
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
    names = ["secagg-threshold", "secagg-neighbours", "secagg-bits", "colluders"]
    values = (config.secagg_threshold, config.secagg_neighbours, config.secagg_bits)
    shown = zip(names, (*values, config.colluders), strict=True)
    return (
        f"--secagg must have settings that fit {config.cohort} clients per round, got "
        f"{', '.join(f'{name} {value:g}' for name, value in shown)}: {reason}; use fewer "
        "colluders, a higher threshold, more neighbours (0 = all) or more bits"
    )
