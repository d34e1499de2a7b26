"""Whether this is a deployment, and what is different there: clients are real machines.

This is the only place where the app decides it. One of the signs, `is_supernode`, is kept next to
`tap_mod`, which asks it in other people's apps too.

Signing keys are files there, which the owner of each machine has installed. In a simulation they
follow from the run's seed, so that every worker has the same: they are real keys that protect
nobody, like everything else that is simulated.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Context

from leakmeter.auditors.hook.mods import is_supernode
from leakmeter.auditors.rng import derive
from leakmeter.auditors.wording import counted
from leakmeter.clients.secure_sum.signing import (
    MIN_CLIENTS,
    Identity,
    KeyFileError,
    TrustedKeys,
)
from leakmeter.fl_app.config.audits import AUDITORS
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError, out_of_range
from leakmeter.fl_app.config.settings import PATTERNS, usual_auditors

# Flower starts these for a SuperLink's runs and a SuperNode's clients, and never in a simulation.
_PROGRAMS = ("flwr-serverapp", "flwr-clientapp")
# One of these is loaded wherever clients are simulated: Flower's engine, in all of its workers as
# well, or ours.
_SIMULATORS = ("flwr.server.superlink.fleet.vce", "leakmeter.fl_app.engines.inline")
# Variables of the machine, by their names in a SuperNode's --node-config, which come first.
IDENTITY, TRUSTED = "LEAKMETER_IDENTITY", "LEAKMETER_TRUSTED"
_KEYS = {"identity": IDENTITY, "trusted": TRUSTED}
_MIN_THRESHOLD = "min-threshold"  # in --node-config


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
        raise config.refused("noise", allowed)
    if config.target_epsilon and config.noise_kind.needs_sums and config.participation == "poisson":
        raise config.refused(
            "target_epsilon",
            f"0 in a deployment with --noise {config.noise} and --participation poisson: the "
            "number of clients that add noise is not known beforehand",
        )
    if config.measures_clip:
        allowed = "a number in a deployment: the server has no data to measure it on"
        raise config.refused("clip_norm", f"{allowed}; take one from a simulation")
    if config.download:
        allowed = "off in a deployment: whoever starts a run may not fill folders of the server"
        raise config.refused("download", f"{allowed}; put the files there yourself")
    if config.dropout:
        allowed = "0 in a deployment, where real clients drop out on their own"
        raise config.refused("dropout", allowed)
    check_auditors_deployed(config)


def with_possible_auditors(config: Config) -> tuple[Config, str]:
    """Return the configuration with auditors that run here, and a line about those left out.

    In a deployment the default auditors give way, since nobody has chosen them: canaries are
    played. Auditors that somebody has chosen are left to `check_deployed`.
    """
    if not is_deployed() or config.auditors != usual_auditors(config.secagg):
        return config, ""
    kept = [name for name in config.auditor_names if name in _possible()]
    left = [name for name in config.auditor_names if name not in kept]
    config = replace(config, auditors=",".join(kept))
    seats = f"{counted(config.seats, 'client')} per round send a canary in place of an update"
    return config, (
        f"this is a deployment: auditors = {config.auditors!r} ({seats}), without "
        f"{', '.join(left)}: their server would need the clients' data"
    )


def _possible() -> list[str]:
    return [name for name, owner in AUDITORS.items() if not owner.lacks]


def check_auditors_deployed(config: Config) -> None:
    """Raise if an auditor needs the clients' data, which the server of a deployment lacks."""
    possible = _possible()
    for name in config.auditor_names:
        if name not in possible:
            why = f"{name} {AUDITORS[name].lacks}"
            allowed = f"{' or '.join(possible)} or none in a deployment: {why}"
            raise out_of_range("--auditors", allowed, name)


def client_keys(
    config: Config, deployed: bool, context: Context
) -> tuple[Identity, TrustedKeys] | None:
    """Return a client's own key and its list of trusted ones; None if it signs nothing.

    A deployed client that has keys signs whatever the run's configuration says: that comes from
    whoever starts the run.

    Raises:
        ConfigError: The run is signed, and the client has no keys, or they cannot be read.
    """
    if not deployed:
        if config.secagg != "active":
            return None
        key = _simulated(config.seed, int(context.node_config["partition-id"]))
        return Identity(key), _all_simulated(config)
    given = ((name, context.node_config.get(key)) for key, name in _KEYS.items())
    own, listed = (str(value or os.environ.get(name, "")) for name, value in given)
    if not own and not listed and config.secagg != "active":
        return None
    if not own or not listed:
        raise ConfigError(
            f"a client that signs needs {IDENTITY} and {TRUSTED}, or identity and trusted in its "
            "--node-config: make a key with leakmeter keys new DIR"
        )
    return _loaded(Path(own), Path(listed))


def own_threshold(context: Context, deployed: bool) -> int | None:
    """Return the least threshold that the owner of a deployed client accepts; None for any.

    Raises:
        ConfigError: It is not a whole number of at least 2.
    """
    value = context.node_config.get(_MIN_THRESHOLD)
    if not deployed or value is None:
        return None
    if type(value) is not int or value < 2:
        raise ConfigError(
            f"{_MIN_THRESHOLD} in --node-config must be a whole number from 2, got {value!r}"
        )
    return value


def server_keys(config: Config, deployed: bool) -> TrustedKeys | None:
    """Return the server's list of clients, by which it leaves strangers out; None if none sign.

    Raises:
        ConfigError: The run is signed, and there is no list, or one of too few clients.
    """
    if config.secagg != "active":
        return None
    if not deployed:
        return _all_simulated(config)
    path = os.environ.get(TRUSTED)
    if not path:
        raise ConfigError(
            f"secagg active in a deployment needs {TRUSTED}, a file with the public lines of all "
            "clients, where the server runs; or take secagg on"
        )
    try:
        trusted = TrustedKeys.of(path)
        trusted.check_enough()
        return trusted
    except KeyFileError as error:
        raise ConfigError(f"{TRUSTED}: {error}") from None


@lru_cache(maxsize=8)
def _loaded(own: Path, listed: Path) -> tuple[Identity, TrustedKeys]:
    try:
        identity, trusted = Identity.load(own), TrustedKeys.of(listed)
        trusted.check_enough()
    except KeyFileError as error:
        raise ConfigError(str(error)) from None
    return identity, trusted


@lru_cache(maxsize=4096)
def _simulated(seed: int, client: int) -> Ed25519PrivateKey:
    words = (derive(seed, "signing key", client, half) for half in range(2))
    return Ed25519PrivateKey.from_private_bytes(b"".join(w.to_bytes(16, "little") for w in words))


@lru_cache(maxsize=4)
def _all_simulated(config: Config) -> TrustedKeys:
    """Return the keys of all clients; of many, of those that the rounds of the run ask."""
    clients: Iterable[int] = range(config.clients)
    if config.cohort * config.rounds < config.clients:
        cohort_of = partial(PATTERNS[config.participation](config).cohort, cohort_seed(config))
        rounds = range(1, config.rounds + 1)
        asked = {c for number in rounds for c in cohort_of(number, config.clients)}
        clients = sorted(asked.union(range(MIN_CLIENTS)))  # no list is shorter
    public = [_simulated(config.seed, c).public_key().public_bytes_raw() for c in clients]
    return TrustedKeys.of(public)
