"""What can be chosen by name, and what makes it: data sets, training, servers, cohorts, noise.

What makes something is written as `module:function`. The module is imported when a run needs it, so
it may import what it likes, while `--help` reads these tables at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from leakmeter.fl_app.config.settings import Settings


class Maker:
    """Makes what a name stands for, with settings of the run as arguments.

    Args:
        path: `module:function`.
        takes: Its arguments: names of settings, or of properties of `Settings`.
        named: The same for its keyword arguments.
    """

    def __init__(self, path: str, *takes: str, **named: str) -> None:
        self._path, self._takes, self._named = path, takes, named

    def __call__(self, config: Settings, **more: Any) -> Any:
        """Return what it makes; `more` are arguments that are no settings."""
        given = [getattr(config, name) for name in self._takes]
        named = {key: getattr(config, name) for key, name in self._named.items()}
        return resolve_name(self._path)(*given, **named, **more)


# A loader takes a `Request` and returns a `Dataset`.
DATASETS: Final[Mapping[str, str]] = {
    "digits": "leakmeter.fl_app.data.digits:load",
    "adult": "leakmeter.fl_app.data.adult:load",
    "mnist": "leakmeter.fl_app.data.mnist:load",
    "fashion-mnist": "leakmeter.fl_app.data.mnist:load",
    "emnist-digits": "leakmeter.fl_app.data.mnist:load",
    "cifar10": "leakmeter.fl_app.data.cifar:load_cifar10",
    "synthetic": "leakmeter.fl_app.data.synthetic:load",
}
PARTITIONS: Final = ("iid", "dirichlet", "dirichlet-labels", "natural")

_UPDATE: Final = "leakmeter.clients.update"
ALGORITHMS: Final[Mapping[str, Maker]] = {
    "fedavg": Maker(f"{_UPDATE}:fedavg", "epochs", "batch_size", "lr"),
    "fedsgd": Maker(f"{_UPDATE}:fedsgd", "batch_size", "lr"),
    "fedprox": Maker(f"{_UPDATE}:fedprox", "epochs", "batch_size", "lr", "prox_mu"),
    "gd": Maker(f"{_UPDATE}:gd", "epochs", "lr"),
}

_FLOWER: Final = "flwr.serverapp.strategy"
_ADAPTIVE: Final = {
    "eta": "server_step",
    "beta_1": "server_beta1",
    "beta_2": "server_beta2",
    "tau": "server_tau",
}
SERVERS: Final[Mapping[str, Maker]] = {
    "fedavg": Maker(f"{_FLOWER}:FedAvg"),
    "fedavgm": Maker(
        f"{_FLOWER}:FedAvgM", server_learning_rate="server_step", server_momentum="server_momentum"
    ),
    "fedadam": Maker(f"{_FLOWER}:FedAdam", **_ADAPTIVE),
    "fedyogi": Maker(f"{_FLOWER}:FedYogi", **_ADAPTIVE),
}
# An adaptive server's step is the length of a coordinate's move, not a multiple of the mean update.
USUAL_STEP: Final = {"fedavg": 1.0, "fedavgm": 1.0, "fedadam": 0.1, "fedyogi": 0.1}

_CHOSEN: Final = "leakmeter.strategies.chosen"
PATTERNS: Final[Mapping[str, Maker]] = {
    "fixed": Maker(f"{_CHOSEN}:FixedSize", "cohort"),
    "poisson": Maker(f"{_CHOSEN}:Poisson", "cohort_rate"),
    "once": Maker(f"{_CHOSEN}:EachOnce", "cohort"),
    "epochs": Maker(f"{_CHOSEN}:ShuffledEpochs", "cohort"),
}


@dataclass(frozen=True)
class NoiseKind:
    """What a run must know of a noise before its mechanism is made.

    Attributes:
        make: What makes the mechanism of a `Config`, as `module:function`.
        unit: Whose data it hides; None if it hides nobody's.
        added_by: Who adds it: all `clients`, each a share, or the `server`; None if nobody does.
        needs_sums: Why only a secure sum makes it strong enough; empty if it is so by itself.
        has_integers: Whether --noise-distribution may be one over integers.
        can_adapt: Whether --clipping may be adaptive.
    """

    make: str = ""
    unit: Literal["client", "record"] | None = "client"
    added_by: Literal["clients", "server"] | None = "clients"
    needs_sums: str = ""
    has_integers: bool = False
    can_adapt: bool = False


NO_NOISE: Final = NoiseKind(unit=None, added_by=None)
_BUILD: Final = "leakmeter.fl_app.build.strategy"
# On the clipped gradients of a client's examples.
_RECORDS: Final = NoiseKind(
    f"{_BUILD}:records", unit="record", needs_sums="one client's noise floor is weak"
)
NOISES: Final[Mapping[str, NoiseKind]] = {
    "none": NO_NOISE,
    "central": NoiseKind(f"{_BUILD}:central", added_by="server", has_integers=True, can_adapt=True),
    "distributed": NoiseKind(
        f"{_BUILD}:distributed",
        needs_sums="one client's share of the noise is weak",
        has_integers=True,
    ),
    "local": NoiseKind(f"{_BUILD}:local"),
    "wfna": _RECORDS,
    "record-sgd": _RECORDS,
    "record-gd": _RECORDS,
    "record-isotropic": _RECORDS,
}
CLIENT_NOISES: Final = tuple(name for name, kind in NOISES.items() if kind.unit == "client")
RECORD_NOISES: Final = tuple(name for name, kind in NOISES.items() if kind.unit == "record")
