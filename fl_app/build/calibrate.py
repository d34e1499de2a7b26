"""The noise multiplier that makes a planned run guarantee a wanted ε."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from flwr.serverapp.strategy import Strategy

from leakmeter.auditors.finding import Finding
from leakmeter.clients.secure_sum.quantise import CoarseError
from leakmeter.fl_app.build.strategy import CoarseNoiseError, link, planned, server_strategy
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.deployment import is_deployed
from leakmeter.strategies import Chosen

_DIGITS = 6  # of the multiplier, rounded up: what is printed is what is used
_LEAST, _MOST = 1e-3, 1e6


def calibrated(config: Config) -> Config:
    """Return the configuration with the multiplier that its `target_epsilon` asks for.

    Without a target it is returned as it is.

    Raises:
        ConfigError: No multiplier reaches the target.
    """
    if not config.target_epsilon:
        return config
    usual = replace(config, noise_multiplier=Config.noise_multiplier)
    return replace(config, noise_multiplier=_multiplier(usual, is_deployed()))


def planned_guarantee(config: Config) -> Finding:
    """Return what the run would guarantee if nobody drops out.

    It is the guarantee that `headline` chooses, with the cost of rounding in a secure
    sum.
    """
    strategy = server_strategy(config)
    guarantees = planned(config, strategy, _cohorts(config, strategy), rounds_off=True)
    if guarantees is None:
        raise ConfigError(
            "--target-epsilon needs at least one round that releases a model, but no cohort of "
            "this plan has three clients; use a larger --sample or another --seed"
        )
    return guarantees.headline(config.delta)


def _cohorts(config: Config, strategy: Strategy) -> list[Sequence[int]]:
    """Return the clients of each planned round."""
    if is_deployed() and config.participation in ("fixed", "poisson"):
        # They are drawn from a secret, so somebody may take part in every round.
        return [range(config.cohort)] * config.rounds
    chosen = link(strategy, Chosen)
    assert chosen is not None
    return [chosen.cohort(number) for number in range(1, config.rounds + 1)]


# Once per configuration; whether this is a deployment decides about the cohorts, so it is a key.
@lru_cache(maxsize=4)
def _multiplier(config: Config, _: bool) -> float:
    """Return the smallest multiplier that reaches the target, up to its last digit."""
    from scipy.optimize import brentq  # a fifth of a second, and few ask

    target = config.target_epsilon
    # With adaptive clipping, Config refuses a multiplier from a tenth of the cohort on.
    most = _MOST if config.clipping == "fixed" else config.cohort / 10 * (1 - 1e-9)

    def excess(log_multiplier: float) -> float:
        one = replace(config, noise_multiplier=math.exp(log_multiplier))
        # In logs the curve is nearly straight. No guarantee at all is a large number, and so is 0.
        epsilon = _planned_epsilon(one)
        return math.log(min(max(epsilon, 1e-300), 1e300) / target)

    low, high = math.log(_LEAST), math.log(most)
    if excess(high) > 0:
        raise ConfigError(
            f"--target-epsilon must be one that noise of at most {most:.4g} times the clip norm "
            f"reaches in {config.rounds} rounds, got {target:g}; use fewer rounds, more clients "
            f"or a larger target{_or_bits(config)}"
        )
    if excess(low) <= 0:  # a plan in which nobody takes part
        return _LEAST
    root = brentq(excess, low, high, xtol=1e-9)
    return _rounded_up(math.exp(root + 2e-9))


def _or_bits(config: Config) -> str:
    """Return what else helps where rounding in a small ring moves sums further than noise hides."""
    if config.noise_distribution == "gaussian" or not config.has_sums:
        return ""
    return f", or more --secagg-bits than {config.secagg_bits}"


def _planned_epsilon(config: Config) -> float:
    """Return ε of the plan; infinite where its integer noise would be too small for its grid."""
    try:
        return planned_guarantee(config).value
    except (CoarseNoiseError, CoarseError):
        return math.inf


def _rounded_up(value: float) -> float:
    """Return the next number with few digits.

    >>> _rounded_up(1.2345671), _rounded_up(34.567)
    (1.23457, 34.567)
    """
    unit = _DIGITS - 1 - math.floor(math.log10(value))
    # Decimal digits exactly as they are printed; the product may err in its last bit.
    return float(f"{math.ceil(value * 10**unit * (1 - 1e-13)) / 10**unit:.{_DIGITS}g}")
