"""The names a user may choose from, kept apart so that `--help` imports nothing heavy."""

from __future__ import annotations

from typing import Final

DATASETS: Final = (
    "digits",
    "adult",
    "mnist",
    "fashion-mnist",
    "emnist-digits",
    "cifar10",
    "synthetic",
)
IMAGES: Final = ("digits", "mnist", "fashion-mnist", "emnist-digits", "cifar10")  # of DATASETS
MODELS: Final = ("linear", "slp", "mlp", "cnn")
PARTITIONS: Final = ("iid", "dirichlet", "natural")
ALGORITHMS: Final = ("fedavg", "fedsgd", "fedprox", "gd")
SERVERS: Final = ("fedavg", "fedavgm")
AUDITORS: Final = (
    "one-shot",
    "likelihood-ratio",
    "mutual-information",
    "mine",
    "record-likelihood-ratio",
    "membership",
    "inversion",
    "span",
    "recorder",
    "none",
)
GAMES: Final = ("auto", "rerun", "partition", "independent", "independent-held-out")
ENGINES: Final = ("inline", "ray")
SWITCH: Final = ("on", "off")
# Noise that protects single records, on the clipped gradients of a client's examples.
RECORD_NOISES: Final = ("wfna", "record-sgd", "record-gd", "record-isotropic")
NOISES: Final = ("none", "central", "distributed", "local", *RECORD_NOISES)
CLIPPINGS: Final = ("fixed", "adaptive")
OVER_BUDGET: Final = ("refuse", "warn")
PATTERNS: Final = ("fixed", "poisson", "once", "epochs")
