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
    SECAGG,
    SERVERS,
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
        "how records are partitioned among clients: evenly; with label shares that each client "
        "draws (dirichlet); with each label split by its own draw (dirichlet-labels); or by person",
        group="task",
        choices=PARTITIONS,
    )
    dirichlet: float = setting(
        1.0,
        "concentration of the dirichlet partitions; the smaller, the more skewed",
        group="task",
        above=0,
    )
    clients: int = setting(60, "clients in all", group="federation", low=1, most=10**6)
    sample: int = setting(30, "honest clients in a round", group="federation", low=1, most=10**6)
    rounds: int = setting(30, "rounds of training", group="federation", low=1, most=10**5)
    server: str = setting(
        "fedavg",
        "what the server does with the mean update: take it, add momentum, or scale each "
        "coordinate by its past (Adam, Yogi)",
        group="federation",
        choices=SERVERS,
    )
    server_lr: float = setting(
        0.0,
        "server step length, not fedavg; 0 takes the usual one: 1 for fedavgm, 0.1 for fedadam and "
        "fedyogi",
        group="federation",
        low=0,
    )
    server_momentum: float = setting(
        0.9, "server momentum, fedavgm only", group="federation", low=0, below=1
    )
    server_beta1: float = setting(
        0.9,
        "how much of the mean update fedadam and fedyogi keep from round to round",
        group="federation",
        low=0,
        below=1,
    )
    server_beta2: float = setting(
        0.99,
        "the same of its square, by whose root they divide",
        group="federation",
        low=0,
        below=1,
    )
    server_tau: float = setting(
        1e-3,
        "what fedadam and fedyogi add to that root; the larger, the less they adapt",
        group="federation",
        above=0,
    )
    secagg: str = setting(
        "on",
        "secure aggregation: the server sees masked updates only; active = clients sign, so that "
        "this holds against a server that breaks the protocol",
        group="federation",
        choices=SECAGG,
    )
    secagg_threshold: float = setting(
        2 / 3,
        "share of a client's share holders (itself and its neighbours) that opens its masks; fewer "
        "survivors abandon the round",
        group="federation",
        above=0.5,
        high=1,
    )
    secagg_neighbours: int = setting(
        0,
        "clients that each client masks with, an even number (secagg active: that each client "
        "draws); 0 = all others of the round",
        group="federation",
        low=0,
        high=10_000,
    )
    secagg_bits: int = setting(
        32,
        "bits of a coordinate in the secure sum; fewer make uploads smaller and rounding coarser",
        group="federation",
        low=8,
        high=64,
    )
    colluders: int = setting(
        -1,
        "clients assumed to collude with the server in a secure sum; -1 = as many as it can bear",
        group="federation",
        low=-1,
        high=1_000_000,
    )
    dropout: float = setting(
        0.0,
        "chance that a client drops out in a stage of a round (keys, shares, train, unmask; with "
        "secagg active also draw and survivors; with secagg off train alone); simulations only",
        group="federation",
        low=0,
        below=1,
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
        "none",
        "noise for differential privacy: of the server, of all clients together, of each client; "
        "for single records: filled up to a floor (wfna), on a minibatch gradient (record-sgd), on "
        "the full gradient (record-gd), or on Gaussian sampling (record-isotropic)",
        group="privacy",
        choices=NOISES,
    )
    noise_multiplier: float = setting(
        1.0, "noise on the sum in units of the clip norm", group="privacy", low=0
    )
    target_epsilon: float = setting(
        0.0,
        "largest ε (at --delta) that the planned run may guarantee a client: calibrates the noise "
        "multiplier in place of --noise-multiplier; 0 = off",
        group="privacy",
        low=0,
        high=1000,
    )
    clip_norm: float = setting(
        0.0,
        "clip each client's update (wfna and record-…: each example's gradient) to this L2 norm; "
        "required with --noise; 0 = off",
        group="privacy",
        low=0,
    )
    clip_aggregate: float = setting(
        0.0,
        "clip the mean update to this L2 norm, before server noise and optimiser; guarantees "
        "nothing by itself; 0 = off",
        group="privacy",
        low=0,
    )
    wfna_floor: float = setting(
        0.0,
        "σ² of noise wfna and record-…: least variance of a client's gradient estimate in any "
        "direction",
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
