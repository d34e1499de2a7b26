"""Where the app's clients and its server have their signing keys from.

In a deployment they are files that the owner of each machine has installed. In a simulation they
follow from the run's seed, so that every worker has the same: they are real keys that protect
nobody, like everything else that is simulated.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Context

from leakmeter.auditors.rng import derive
from leakmeter.clients.secure_sum.signing import Identity, KeyFileError, TrustedKeys
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError

# Variables of the machine; a SuperNode's --node-config has them as identity and trusted.
IDENTITY, TRUSTED = "LEAKMETER_IDENTITY", "LEAKMETER_TRUSTED"
_LEAST = "min-threshold"  # in --node-config


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
        return Identity(key), _all_simulated(config.seed, config.clients)
    own, listed = (_path(context, name) for name in ("identity", "trusted"))
    if own is None and listed is None and config.secagg != "active":
        return None
    if own is None or listed is None:
        raise ConfigError(
            f"a client that signs needs {IDENTITY} and {TRUSTED}, or identity and trusted in its "
            "--node-config: make a key with leakmeter keys new DIR"
        )
    return _loaded(own, listed)


def own_threshold(context: Context, deployed: bool) -> int | None:
    """Return the least threshold that the owner of a deployed client accepts; None for any.

    Raises:
        ConfigError: It is not a whole number of at least 2.
    """
    value = context.node_config.get(_LEAST)
    if not deployed or value is None:
        return None
    if type(value) is not int or value < 2:
        raise ConfigError(f"{_LEAST} in --node-config must be a whole number from 2, got {value!r}")
    return value


def server_keys(config: Config, deployed: bool) -> TrustedKeys | None:
    """Return the server's list of clients, by which it leaves strangers out; None if none sign.

    Raises:
        ConfigError: The run is signed, and there is no list.
    """
    if config.secagg != "active":
        return None
    if not deployed:
        return _all_simulated(config.seed, config.clients)
    path = os.environ.get(TRUSTED)
    if not path:
        raise ConfigError(
            f"secagg active in a deployment needs {TRUSTED}, a file with the public lines of all "
            "clients, where the server runs; or take secagg on"
        )
    try:
        return TrustedKeys.of(path)
    except KeyFileError as error:
        raise ConfigError(f"{TRUSTED}: {error}") from None


def _path(context: Context, name: str) -> Path | None:
    """Return a file that the owner of this node has named."""
    variable = {"identity": IDENTITY, "trusted": TRUSTED}[name]
    value = context.node_config.get(name) or os.environ.get(variable)
    return Path(str(value)) if value else None


@lru_cache(maxsize=8)
def _loaded(own: Path, listed: Path) -> tuple[Identity, TrustedKeys]:
    try:
        return Identity.load(own), TrustedKeys.of(listed)
    except KeyFileError as error:
        raise ConfigError(str(error)) from None


@lru_cache(maxsize=4096)
def _simulated(seed: int, client: int) -> Ed25519PrivateKey:
    words = (derive(seed, "signing key", client, half) for half in range(2))
    return Ed25519PrivateKey.from_private_bytes(b"".join(w.to_bytes(16, "little") for w in words))


@lru_cache(maxsize=4)
def _all_simulated(seed: int, clients: int) -> TrustedKeys:
    public = [_simulated(seed, c).public_key().public_bytes_raw() for c in range(clients)]
    return TrustedKeys.of(public)
