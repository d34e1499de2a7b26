"""What can be chosen by name, and what makes it: data, models, training, servers, cohorts, noise.

What makes something is written as `module:function`. The module is imported when a run needs it, so
it may import what it likes, while `--help` reads these tables at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, Literal

from leakmeter.fl_app.config.errors import ConfigError, out_of_range

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
_IMAGE, _TABLE = "leakmeter.fl_app.data.image", "leakmeter.fl_app.data.table"
DATASETS: Final[Mapping[str, str]] = {
    "digits": f"{_IMAGE}:load_digits",
    "adult": f"{_TABLE}:load_adult",
    "mnist": f"{_IMAGE}:load_mnist",
    "fashion-mnist": f"{_IMAGE}:load_mnist",
    "emnist-digits": f"{_IMAGE}:load_mnist",
    "cifar10": f"{_IMAGE}:load_cifar10",
    "synthetic": f"{_TABLE}:load_synthetic",
}
PARTITIONS: Final = ("iid", "dirichlet", "dirichlet-labels", "natural")


@dataclass(frozen=True)
class Layers:
    """The layers of a model, from a record to the logits, of which `build_model` makes torch's.

    Attributes:
        hidden: Widths of the dense layers before the logits, each followed by a ReLU.
        channels: Of convolutions before them, all 3×3 with a border of zeros, each followed by a
            ReLU. Such a model takes images (channels, height, width) or (height, width); others
            flatten any record.
        pooled: Which of the convolutions are followed by a pool, of 3×3 every 2 pixels.
        ends_in_relu: Whether logits below 0 become 0.
    """

    hidden: tuple[int, ...] = ()
    channels: tuple[int, ...] = ()
    pooled: tuple[int, ...] = ()
    ends_in_relu: bool = False

    @property
    def smallest(self) -> int:
        """The smallest side of an image of which the pools leave a pixel."""
        return (2 << len(self.pooled)) - 1

    def filters(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the channels of an image and of all convolutions."""
        return (shape[0] if len(shape) == 3 else 1, *self.channels)

    def widths(self, name: str, shape: Sequence[int], classes: int) -> tuple[int, ...]:
        """Return the widths of the dense layers, from the flat record to the logits.

        Args:
            name: The model's name, for an error.
            shape: Shape of one record.
            classes: Number of logits.

        Raises:
            ConfigError: The model cannot fit such data.
        """
        if not shape or min(shape) < 1:
            allowed = f"one or more positive sizes for --model {name}"
            raise out_of_range("input_shape", allowed, tuple(shape))
        if classes < 2:
            raise out_of_range("num_classes", f"at least 2 for --model {name}", classes)
        flat = self._last_pool(name, shape) if self.channels else math.prod(shape)
        return (flat, *self.hidden, classes)

    def _last_pool(self, name: str, shape: Sequence[int]) -> int:
        """Return how many values the convolutions make of an image."""
        sides = list(shape[-2:])
        if len(shape) not in (2, 3) or min(sides) < self.smallest:
            raise ConfigError(
                f"--model {name} needs images of at least {self.smallest}×{self.smallest}, got "
                f"records of size {'×'.join(map(str, shape))}. Try --model mlp or --dataset mnist."
            )
        for _ in self.pooled:
            sides = [(side - 3) // 2 + 1 for side in sides]
        return self.channels[-1] * math.prod(sides)

    def parameters(self, name: str, shape: Sequence[int], classes: int) -> int:
        """Return the size of the model.

        >>> MODELS["linear"].parameters("linear", (20,), 10)
        210
        >>> MODELS["cnn"].parameters("cnn", (3, 32, 32), 10)
        82554
        """
        widths = self.widths(name, shape, classes)
        dense = sum((fan_in + 1) * out for fan_in, out in pairwise(widths))
        if not self.channels:
            return dense
        return dense + sum((9 * fan_in + 1) * out for fan_in, out in pairwise(self.filters(shape)))


# As in Elkordy et al. (2023), "How Much Privacy Does Federated Learning with Secure Aggregation
# Guarantee?" (arXiv:2208.02304), Table 1. The paper gives the CNN's size, 82,554 for CIFAR-10, and
# that it is made from AlexNet (Krizhevsky, Sutskever and Hinton 2012), no more; ours has AlexNet's
# order of layers and its overlapping pools in the one width of which the count comes out. AlexNet's
# dropout is left out: a client's update should be a function of its batches.
MODELS: Final[Mapping[str, Layers]] = {
    "linear": Layers(),
    # Its logits are not negative, and a class whose logit is 0 has no gradient.
    "slp": Layers(ends_in_relu=True),
    "mlp": Layers(hidden=(100, 100)),
    "cnn": Layers(hidden=(80, 64), channels=(16, 32, 48, 48, 32), pooled=(0, 1, 4)),
}

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


# Of `auditors.noise`, which draws and prices them, by name: whether noise is over integers. These
# need the grid of a sum.
DISTRIBUTIONS: Final[Mapping[str, bool]] = {
    "gaussian": False,
    "skellam": True,
    "discrete-gaussian": True,
}


@dataclass(frozen=True)
class NoiseKind:
    """What a run must know of a noise before its mechanism is made.

    Attributes:
        make: What makes the mechanism of a `Config`, as `module:function`.
        unit: Whose data it hides; None if it hides nobody's.
        added_by: Who adds it: all `clients`, each a share, or the `server`; None if nobody does.
        needs_sums: Why only a secure sum makes it strong enough; empty if it is so by itself.
        distributions: Which of --noise-distribution it may have.
        can_adapt: Whether --clipping may be adaptive.
    """

    make: str = ""
    unit: Literal["client", "record"] | None = "client"
    added_by: Literal["clients", "server"] | None = "clients"
    needs_sums: str = ""
    distributions: Literal["gaussian", "real", "all"] = "gaussian"
    can_adapt: bool = False

    @property
    def has_integers(self) -> bool:
        """Whether it may be over integers."""
        return self.distributions == "all"


NO_NOISE: Final = NoiseKind(unit=None, added_by=None)
_BUILD: Final = "leakmeter.fl_app.build.strategy"
# On the clipped gradients of a client's examples.
_RECORDS: Final = NoiseKind(
    f"{_BUILD}:records", unit="record", needs_sums="one client's noise floor is weak"
)
NOISES: Final[Mapping[str, NoiseKind]] = {
    "none": NO_NOISE,
    "central": NoiseKind(
        f"{_BUILD}:central", added_by="server", distributions="all", can_adapt=True
    ),
    "distributed": NoiseKind(
        f"{_BUILD}:distributed",
        needs_sums="one client's share of the noise is weak",
        distributions="all",
    ),
    "local": NoiseKind(f"{_BUILD}:local", distributions="real"),
    "wfna": _RECORDS,
    "record-sgd": _RECORDS,
    "record-gd": _RECORDS,
    "record-isotropic": _RECORDS,
}
CLIENT_NOISES: Final = tuple(name for name, kind in NOISES.items() if kind.unit == "client")
RECORD_NOISES: Final = tuple(name for name, kind in NOISES.items() if kind.unit == "record")
