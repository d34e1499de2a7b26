"""The table of all settings of a run, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from leakmeter.fl_app.config.field import setting
from leakmeter.fl_app.config.names import (
    ALGORITHMS,
    AUDITORS,
    CLIPPINGS,
    DATASETS,
    ENGINES,
    GAMES,
    MODELS,
    NOISES,
    OVER_BUDGET,
    PARTITIONS,
    PATTERNS,
    SERVERS,
    SWITCH,
)
from leakmeter.fl_app.config.task_config import TaskConfig


@dataclass(frozen=True)
class Settings:
    """Every setting with its default, its help text and its range, as `Config` checks them.

    Every field is a string, a number or a truth value, as Flower allows.
    """

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
    synthetic_examples: int = setting(6000, "training records of synthetic", group="task", low=1)
    synthetic_features: int = setting(20, "features of synthetic", group="task", low=1)
    synthetic_classes: int = setting(10, "classes of synthetic", group="task", low=2)
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
    clients: int = setting(60, "clients in all", group="federation", low=1)
    sample: int = setting(30, "honest clients in a round", group="federation", low=1)
    rounds: int = setting(30, "rounds of training", group="federation", low=1)
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
    epochs: int = setting(2, "local passes over the data, not fedsgd", group="client", low=1)
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
    auditors: str = setting(
        "one-shot,likelihood-ratio,mutual-information",
        f"who measures the leak, separated by commas: {', '.join(AUDITORS)}",
        group="audit",
        metavar="NAMES",
    )
    canary_seats: int = setting(
        10,
        "clients in a round, beside the honest ones, that play canaries for one-shot",
        group="audit",
        low=0,
    )
    canaries: int = setting(
        0, "canaries in all; 0 takes as many as the seats allow", group="audit", low=0
    )
    canary_repetitions: int = setting(1, "rounds in which each canary plays", group="audit", low=1)
    lrt_game: str = setting(
        "auto",
        "what likelihood-ratio and mutual-information resample: batches (rerun), who holds which "
        "records (partition), or each client's records, drawn from all records (independent) or "
        "from all but those of the client under attack (independent-held-out); auto = independent "
        "(rerun with --partition natural)",
        group="audit",
        choices=GAMES,
    )
    lrt_every: int = setting(
        1, "rounds between two likelihood-ratio audits; 0 for the first only", group="audit", low=0
    )
    lrt_target: int = setting(
        -1, "client under attack by likelihood-ratio; -1 draws one", group="audit", low=-1
    )
    lrt_fit: int = setting(
        200, "updates sampled to model the aggregate of the other clients", group="audit", low=10
    )
    lrt_candidates: int = setting(
        50, "candidate updates among which the worst pair is chosen", group="audit", low=2
    )
    lrt_trials: int = setting(60, "sums on which likelihood-ratio is tested", group="audit", low=20)
    mi_every: int = setting(
        1,
        "rounds between two mutual-information audits; 0 for the first only",
        group="audit",
        low=0,
    )
    mi_target: int = setting(
        -1,
        "client that mutual-information looks at; -1 takes all of a round",
        group="audit",
        low=-1,
    )
    mi_draws: int = setting(
        8, "draws of a round's clients for mutual-information", group="audit", low=4
    )
    mi_rank: int = setting(
        8,
        "directions of the sum that mutual-information looks along; 0 takes all coordinates, which "
        "needs more draws than parameters",
        group="audit",
        low=0,
    )
    delta: float = setting(1e-5, "δ of every (ε, δ) reported", group="audit", above=0, below=1)
    seed: int = setting(
        0, "the same seed gives the same report", group="run", low=0, high=2**31 - 1
    )
    engine: str = setting(
        "inline", "all in one process, or Flower's simulation", group="run", choices=ENGINES
    )
    ray_address: str = setting(
        "", "Ray cluster to join with the engine ray, or auto", group="run", metavar="HOST:PORT"
    )

    @property
    def task(self) -> TaskConfig:
        """The settings that decide about data, partition and model."""
        return TaskConfig(**{spec.name: getattr(self, spec.name) for spec in fields(TaskConfig)})

    @property
    def auditor_names(self) -> tuple[str, ...]:
        """The auditors' names in order, without blanks."""
        names = (name.strip() for name in self.auditors.split(","))
        return tuple(name for name in names if name and name != "none")

    @property
    def game(self) -> str:
        """Game of the audits that resample updates."""
        if self.lrt_game != "auto":
            return self.lrt_game
        return "rerun" if self.partition == "natural" else "independent"

    @property
    def seats(self) -> int:
        """Canary seats that are really there."""
        return self.canary_seats if "one-shot" in self.auditor_names else 0

    @property
    def cohort(self) -> int:
        """Clients in a round: honest ones and canary seats."""
        return self.sample + self.seats
