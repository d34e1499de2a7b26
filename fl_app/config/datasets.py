"""The table of data sets: where the loader of each is, and the settings that one of them has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from leakmeter.fl_app.config.field import setting

# Name and loader, `module:function`. A loader takes a `Request` and returns a `Dataset`; its module
# is imported when the data set is loaded, so it may import what it needs.
DATASETS: Final[Mapping[str, str]] = {
    "digits": "leakmeter.fl_app.data.digits:load",
    "adult": "leakmeter.fl_app.data.adult:load",
    "mnist": "leakmeter.fl_app.data.mnist:load_mnist",
    "fashion-mnist": "leakmeter.fl_app.data.mnist:load_fashion_mnist",
    "emnist-digits": "leakmeter.fl_app.data.mnist:load_emnist_digits",
    "cifar10": "leakmeter.fl_app.data.cifar:load_cifar10",
    "synthetic": "leakmeter.fl_app.data.synthetic:load",
}


@dataclass(frozen=True)
class SyntheticSettings:
    """The size of the data set synthetic."""

    synthetic_examples: int = setting(
        6000, "training records of --dataset synthetic", group="task", low=1, most=10**7
    )
    synthetic_features: int = setting(
        20, "features of --dataset synthetic", group="task", low=1, most=10**6
    )
    synthetic_classes: int = setting(
        10, "classes of --dataset synthetic", group="task", low=2, most=10**5
    )
