"""Settings of the training: data and model, federation, clients, protection."""

from __future__ import annotations

from dataclasses import dataclass

from leakmeter.fl_app.config.field import setting
from leakmeter.fl_app.config.names import (
    ALGORITHMS,
    CLIPPINGS,
    DATASETS,
    MODELS,
    NOISES,
    OVER_BUDGET,
    PARTITIONS,
    PATTERNS,
    SERVERS,
    SWITCH,
)


@dataclass(frozen=True)
class TrainingSettings:
    """What is trained by whom, and what protects it."""

    dataset: str = setting("digits", "what to learn", group="task", choices=DATASETS)
    data_dir: str = setting(
        "",
        "folder with the files of adult or mnist (default: the environment's LEAKMETER_DATA)",
        group="task",
        metavar="DIR",
    )
    download: bool = setting(
        False, "let torchvision download mnist into that folder if it is missing", group="task"
    )
    synthetic_examples: int = setting(
        6000, "training records of synthetic", group="task", low=1, most=10**7
    )
    synthetic_features: int = setting(20, "features of synthetic", group="task", low=1, most=10**6)
    synthetic_classes: int = setting(10, "classes of synthetic", group="task", low=2, most=10**5)
    model: str = setting(
        "mlp",
        "linear classifier, the same with a ReLU, two hidden layers of 100, or convolutions",
        group="task",
        choices=MODELS,
    )
    partition: str = setting(
        "iid",
        "how records are partitioned among clients: evenly, with skewed labels, or by person",
        group="task",
        choices=PARTITIONS,
    )
    dirichlet: float = setting(
        1.0,
        "concentration of the dirichlet partition; the smaller, the more skewed",
        group="task",
        above=0,
    )
    clients: int = setting(60, "clients in all", group="federation", low=1, most=10**6)
    sample: int = setting(30, "honest clients in a round", group="federation", low=1, most=10**6)
    rounds: int = setting(30, "rounds of training", group="federation", low=1, most=10**5)
    server: str = setting(
        "fedavg",
        "what the server does with the mean update: take it, or add momentum",
        group="federation",
        choices=SERVERS,
    )
    server_lr: float = setting(1.0, "server step length, fedavgm only", group="federation", above=0)
    server_momentum: float = setting(
        0.9, "server momentum, fedavgm only", group="federation", low=0, below=1
    )
    secagg: str = setting(
        "on",
        "secure aggregation: the server sees masked updates only",
        group="federation",
        choices=SWITCH,
    )
    algorithm: str = setting(
        "fedavg",
        "SGD epochs, one step on one batch, SGD held near the model sent, or full-batch descent",
        group="client",
        choices=ALGORITHMS,
    )
    epochs: int = setting(
        2, "local passes over the data, not fedsgd", group="client", low=1, most=10**5
    )
    batch_size: int = setting(
        8, "records in a gradient step; 0 takes all a client has", group="client", low=0
    )
    lr: float = setting(0.3, "client step length", group="client", above=0)
    prox_mu: float = setting(
        0.1, "how strongly fedprox holds a client near the model sent", group="client", low=0
    )
    participation: str = setting(
        "fixed",
        "who takes part: a fixed number, each by a coin, each once, or in shuffled epochs",
        group="federation",
        choices=PATTERNS,
    )
    noise: str = setting(
        "none", "who adds noise for differential privacy", group="privacy", choices=NOISES
    )
    noise_multiplier: float = setting(
        1.0, "noise on the sum in units of the clip norm", group="privacy", low=0
    )
    clip_norm: float = setting(
        0.0,
        "clip each client's update (wfna: each example's gradient) to this L2 norm; required with "
        "--noise; 0 = off",
        group="privacy",
        low=0,
    )
    wfna_floor: float = setting(
        0.0,
        "σ² of noise wfna: least variance of a client's gradient estimate in any direction",
        group="privacy",
        low=0,
    )
    wfna_blocks: int = setting(
        1,
        "parts of the parameters that wfna samples and fills by themselves; 1 adds the least noise",
        group="privacy",
        low=1,
    )
    clipping: str = setting(
        "fixed", "clip norm fixed, or following a quantile", group="privacy", choices=CLIPPINGS
    )
    clip_quantile: float = setting(
        0.5, "quantile of update norms for adaptive clipping", group="privacy", above=0, below=1
    )
    ledger: str = setting(
        "",
        "file that adds up what all runs on a data set have released; made if missing",
        group="privacy",
        metavar="FILE",
    )
    budget: float = setting(
        0.0,
        "privacy budget: largest total ε (at --delta) allowed in the ledger; 0 = no limit",
        group="privacy",
        low=0,
    )
    over_budget: str = setting(
        "refuse",
        "what to do if the planned run would exceed the budget",
        group="privacy",
        choices=OVER_BUDGET,
    )
