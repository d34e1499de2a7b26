"""Whether this is a deployment, and what is different there: clients are real machines.

This is the only place where the app decides it. One of the signs, `is_supernode`, is kept next to
`tap_mod`, which asks it in other people's apps too.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

from leakmeter.auditors.hook.mods import is_supernode
from leakmeter.fl_app.config.audits import AUDITORS
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import out_of_range

# Flower starts these for a SuperLink's runs and a SuperNode's clients, and never in a simulation.
_PROGRAMS = ("flwr-serverapp", "flwr-clientapp")
# One of these is loaded wherever clients are simulated: Flower's engine, in all of its workers as
# well, or ours.
_SIMULATORS = ("flwr.server.superlink.fleet.vce", "leakmeter.fl_app.engines.inline")


def is_deployed() -> bool:
    """Whether this process is part of a deployment, or cannot show that it is a simulation.

    In doubt the answer is yes: a simulation only loses its seed and its tap by that, while a
    deployment that is taken for a simulation loses its privacy.
    """
    if is_supernode() or Path(sys.argv[0]).stem in _PROGRAMS:
        return True
    return not any(name in sys.modules for name in _SIMULATORS)


def noise_seed(config: Config, deployed: bool) -> int | None:
    """Return the seed of noise and rounding: the run's own, or None for the system's source."""
    return None if deployed else config.seed


def cohort_seed(config: Config) -> int:
    """Return the seed of the cohorts: the run's own, or a secret one if they must stay hidden.

    Every client of a deployment gets the run's seed with its configuration. Patterns that last for
    epochs keep that seed, so that a resumed run continues them: no claim depends on their secrecy.
    """
    if is_deployed() and config.participation in ("fixed", "poisson"):
        return secrets.randbits(63)
    return config.seed


def check_deployed(config: Config) -> None:
    """Raise if this is a deployment and the run needs what only a simulation has."""
    if not is_deployed():
        return
    if config.hides_records:
        allowed = "another in a deployment: this one is drawn from the run's seed"
        raise out_of_range("--noise", allowed, config.noise)
    if config.target_epsilon and (config.noise, config.participation) == ("distributed", "poisson"):
        allowed = (
            "0 in a deployment with --noise distributed and --participation poisson: the number of "
            "clients that add noise is not known beforehand"
        )
        raise out_of_range("--target-epsilon", allowed, config.target_epsilon)
    if config.download:
        allowed = "off in a deployment: whoever starts a run may not fill folders of the server"
        raise out_of_range("--download", f"{allowed}; put the files there yourself", True)
    if config.dropout:
        allowed = "0 in a deployment, where real clients drop out on their own"
        raise out_of_range("--dropout", allowed, config.dropout)
    check_auditors_deployed(config)


def check_auditors_deployed(config: Config) -> None:
    """Raise if an auditor needs the clients' data, which the server of a deployment lacks."""
    possible = [name for name, owner in AUDITORS.items() if not owner.lacks]
    for name in config.auditor_names:
        if name not in possible:
            why = f"{name} {AUDITORS[name].lacks}"
            allowed = f"{' or '.join(possible)} or none in a deployment: {why}"
            raise out_of_range("--auditors", allowed, name)
