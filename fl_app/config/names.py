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
MODELS: Final = ("linear", "slp", "mlp", "cnn")
PARTITIONS: Final = ("iid", "dirichlet", "dirichlet-labels", "natural")
ALGORITHMS: Final = ("fedavg", "fedsgd", "fedprox", "gd")
SERVERS: Final = ("fedavg", "fedavgm")
AUDITORS: Final = (
    "one-shot",
    "likelihood-ratio",
    "mutual-information",
    "record-likelihood-ratio",
    "none",
)
GAMES: Final = ("auto", "rerun", "partition", "independent", "independent-held-out")
ENGINES: Final = ("inline", "ray")
SWITCH: Final = ("on", "off")
NOISES: Final = ("none", "central", "distributed", "local", "wfna")
CLIPPINGS: Final = ("fixed", "adaptive")
OVER_BUDGET: Final = ("refuse", "warn")
PATTERNS: Final = ("fixed", "poisson", "once", "epochs")
