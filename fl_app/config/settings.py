"""All settings of a run in one table, what can be chosen by name, and what follows from both.

What makes a choice is written as `module:function`. The module is imported when a run needs it, so
it may import what it likes, while `--help` reads these tables at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import pairwise
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, Literal

from leakmeter.fl_app.config.audits import AUDITORS, PlantedRecordsSettings, SettingsOfAuditors
from leakmeter.fl_app.config.field import (
    ConfigError,
    audit_setting,
    names_of,
    option,
    out_of_range,
    setting,
)

if TYPE_CHECKING:
    from leakmeter.auditors import PlantPlan


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

AUDITOR_NAMES: Final = (*AUDITORS, "none")
AUTO: Final = "auto"  # a clip norm that is still to be measured
PLAYERS: Final = frozenset(name for name, owner in AUDITORS.items() if owner.plays)
ENGINES: Final = ("inline", "ray")
DEVICES: Final = ("auto", "cpu", "cuda", "mps")
LOGGERS: Final = ("tensorboard", "wandb", "mlflow")  # also the names of their extras

_task = partial(setting, group="task")
_federation = partial(setting, group="federation")
_client = partial(setting, group="client")
_privacy = partial(setting, group="privacy")
_run = partial(setting, group="run")


@dataclass(frozen=True)
class TaskSettings:
    """What is learnt, with the settings of single data sets."""

    dataset: str = _task("digits", "data set to train on", choices=tuple(DATASETS))
    data_dir: str = _task(
        "",
        "folder that contains the files of adult, cifar10 or the mnist sets; searched before the "
        "folder in the environment variable LEAKMETER_DATA (default: only that)",
        metavar="DIR",
    )
    download: bool = _task(
        False, "let torchvision download an image set into --data-dir if it is missing; not adult"
    )
    model: str = _task(
        "mlp",
        "linear classifier, the same with a ReLU on its logits (slp), two hidden layers of 100 "
        "(mlp), or convolutions (cnn)",
        choices=tuple(MODELS),
    )
    partition: str = _task(
        "iid",
        "how records are partitioned among clients: uniformly (iid); with label shares that each "
        "client draws (dirichlet); with each label split by its own draw (dirichlet-labels); or by "
        "person (natural)",
        choices=PARTITIONS,
    )
    dirichlet: float = _task(
        1.0, "concentration of the dirichlet partitions; smaller = more skewed labels", above=0
    )
    synthetic_examples: int = _task(
        6000,
        "training records of --dataset synthetic that the clients share; a quarter as many for "
        "testing",
        low=1,
        most=10**7,
    )
    synthetic_per_client: int = _task(
        0,
        "records of each client of --dataset synthetic, generated from seed and client when it "
        "trains, so that a million clients take no room; 0 = partition --synthetic-examples",
        low=0,
        most=10**6,
    )
    synthetic_features: int = _task(20, "features of --dataset synthetic", low=1, most=10**6)
    synthetic_classes: int = _task(10, "classes of --dataset synthetic", low=2, most=10**5)


@dataclass(frozen=True)
class TaskConfig(TaskSettings):
    """What is learnt, and by how many. Two runs that agree here share one loaded task.

    Loading the task checks it.
    """

    clients: int = 60
    seed: int = 0
    planted: tuple[PlantPlan, str] | None = None  # who holds which canaries, and their generator

    @property
    def of_data(self) -> TaskConfig:
        """The same for a data set, which loads alike whatever model and clients learn from it."""
        if self.synthetic_per_client:  # each client generates its own records
            return replace(self, model=TaskConfig.model)
        names = ("model", "clients", "partition", "dirichlet")
        return replace(self, **{name: getattr(TaskConfig, name) for name in names})


@dataclass(frozen=True)
class TrainingSettings:
    """Who trains, and how it is protected."""

    clients: int = _federation(60, "total number of clients", low=1, most=10**6)
    sample: int = _federation(30, "honest clients per round", low=1, most=10**6)
    rounds: int = _federation(30, "training rounds", low=1, most=10**5)
    participation: str = _federation(
        "fixed",
        "which clients take part in a round: a fixed number (fixed), each with the same "
        "probability (poisson), each at most once (once), or in shuffled epochs (epochs)",
        choices=tuple(PATTERNS),
    )
    server: str = _federation(
        "fedavg",
        "server optimiser: add the mean update (fedavg), with momentum (fedavgm), or scaled per "
        "coordinate by Adam or Yogi (fedadam, fedyogi)",
        choices=tuple(SERVERS),
    )
    server_lr: float = _federation(
        0.0,
        "server learning rate, not for fedavg; 0 = the usual one: 1 for fedavgm, 0.1 for fedadam "
        "and fedyogi",
        low=0,
    )
    server_momentum: float = _federation(0.9, "server momentum, fedavgm only", low=0, below=1)
    server_beta1: float = _federation(
        0.9, "β₁ of fedadam and fedyogi: decay of the averaged mean update", low=0, below=1
    )
    server_beta2: float = _federation(
        0.99, "β₂ of fedadam and fedyogi: decay of the averaged squares", low=0, below=1
    )
    server_tau: float = _federation(
        1e-3,
        "τ of fedadam and fedyogi, added to the root of the squares; larger = less adaptive",
        above=0,
    )
    secagg: str = _federation(
        "on",
        "secure aggregation: the server sees only masked updates and their sum; active = clients "
        "sign, so that this also holds against a server that breaks the protocol",
        choices=("on", "active", "off"),
    )
    secagg_threshold: float = _federation(
        2 / 3,
        "fraction of a client's share holders (itself and its neighbours) needed to remove its "
        "masks; with fewer survivors the round is abandoned",
        above=0.5,
        high=1,
    )
    secagg_neighbours: int = _federation(
        0,
        "number of clients that each client masks with, even (with --secagg active: that each "
        "client draws); 0 = all others of the round",
        low=0,
        high=10_000,
    )
    secagg_bits: int = _federation(
        32,
        "bits per coordinate in the secure sum; fewer = smaller uploads, coarser rounding",
        low=8,
        high=64,
    )
    colluders: int = _federation(
        -1,
        "clients assumed to collude with the server in a secure sum; -1 = as many as it tolerates",
        low=-1,
        high=1_000_000,
    )
    dropout: float = _federation(
        0.0,
        "probability that a client drops out in each stage of a round (keys, shares, train, "
        "unmask; with --secagg active also draw and survivors; with --secagg off only train); "
        "simulations only",
        low=0,
        below=1,
    )
    algorithm: str = _client(
        "fedavg",
        "local training: SGD epochs (fedavg), one step on one batch (fedsgd), SGD with a proximal "
        "term (fedprox), or full-batch gradient descent (gd)",
        choices=tuple(ALGORITHMS),
    )
    epochs: int = _client(2, "local epochs, not for fedsgd", low=1, most=10**5)
    batch_size: int = _client(8, "records per gradient step; 0 = all records of a client", low=0)
    lr: float = _client(0.3, "client learning rate", above=0)
    prox_mu: float = _client(0.1, "μ of fedprox: strength of the proximal term", low=0)
    noise: str = _privacy(
        "none",
        "noise for differential privacy, added by the server (central), by all clients together "
        "(distributed) or by each client (local); for single records: filled up to a floor (wfna), "
        "on a minibatch gradient (record-sgd), on the full gradient (record-gd), or on Gaussian "
        "sampling (record-isotropic)",
        choices=tuple(NOISES),
    )
    noise_distribution: str = _privacy(
        "gaussian",
        "distribution of central or distributed noise: Gaussian in floating point, or exact "
        "integers: differences of Poissons (skellam; with distributed noise inside the ring of the "
        "secure sum) or discrete Gaussians",
        choices=tuple(DISTRIBUTIONS),
        was="noise-law",
    )
    noise_multiplier: float = _privacy(
        1.0, "noise standard deviation on the sum, divided by the clip norm", low=0
    )
    target_epsilon: float = _privacy(
        0.0,
        "calibrate the noise so that the planned run guarantees a client at most this ε (at "
        "--delta), in place of --noise-multiplier",
        zero="off",
        low=0,
        high=1000,
    )
    target_adjacency: str = _privacy(
        "zero-out",
        "which two worlds --target-epsilon is about: a client sent its update or nothing "
        "(zero-out), or it sent one of any two updates (replace), which needs twice the noise",
        choices=("zero-out", "replace"),
    )
    clip_norm: float = _privacy(
        0.0,
        "clip each client's update (wfna and record-…: each example's gradient) to this L2 norm; "
        "required with --noise; auto = the --clip-quantile of the norms in a rehearsal "
        "without noise, a choice that no guarantee covers",
        zero="off",
        low=0,
    )
    clip_aggregate: float = _privacy(
        0.0,
        "clip the mean update to this L2 norm, before server noise and optimiser; alone it "
        "guarantees nothing",
        zero="off",
        low=0,
    )
    wfna_floor: float = _privacy(
        0.0,
        "σ² for --noise wfna and record-…: least variance of a client's gradient estimate in any "
        "direction",
        low=0,
    )
    wfna_blocks: int = _privacy(
        1,
        "blocks of parameters that wfna samples and fills separately; 1 adds the least noise",
        low=1,
    )
    clipping: str = _privacy(
        "fixed",
        "keep the clip norm fixed, or let it follow a quantile of the norms (adaptive); measured = "
        "fixed at a norm of these data, as --clip-norm auto finds it",
        choices=("fixed", "adaptive", "measured"),
    )
    clip_quantile: float = _privacy(
        0.5,
        "quantile of update norms for --clip-norm auto and adaptive clipping",
        above=0,
        below=1,
    )
    ledger: str = _privacy(
        "",
        "file that adds up the privacy cost of all runs on a data set; created if missing",
        metavar="FILE",
    )
    budget: float = _privacy(
        0.0,
        "privacy budget: largest total ε (at --delta) allowed in the ledger",
        zero="no limit",
        low=0,
    )
    over_budget: str = _privacy(
        "refuse",
        "what to do if the planned run would exceed the budget",
        choices=("refuse", "warn"),
    )


@dataclass(frozen=True)
class AuditSettings:
    """Which auditors measure leakage, and what their bounds have in common."""

    auditors: str = audit_setting(
        "one-shot,likelihood-ratio,mutual-information,mine",
        f"auditors to run, separated by commas: {', '.join(AUDITOR_NAMES)}; with --secagg off, "
        "single-update is one of the defaults",
        metavar="NAMES",
    )
    delta: float = audit_setting(1e-5, "δ of every (ε, δ) reported", above=0, below=1)
    confidence: float = audit_setting(
        0.95, "confidence of every lower bound on ε", low=0.5, below=1
    )
    bounds: str = audit_setting(
        "split",
        "how one-shot and likelihood-ratio prove an ε for the run: at its end (split), or after "
        "every round, at one confidence for all rounds together (anytime)",
        choices=("split", "anytime"),
    )
    claim: str = audit_setting(
        "",
        "claim about the privacy of the run, for the audit to refute or not: ε@δ, against whom "
        "(server, outsider, wire) and per what (round, run); may be given several times",
        metavar='"10@1e-5 server round"',
        was="claims",
        several=True,
    )


@dataclass(frozen=True)
class Preset:
    """Other defaults for several settings, under a name (`--preset`)."""

    about: str
    settings: Mapping[str, int | float | str]  # by kebab-case names


PRESETS: Final[Mapping[str, Preset]] = {
    "quick": Preset(
        "a first look: canaries alone, in a third of the rounds",
        {"rounds": 10, "auditors": "one-shot"},
    ),
    "thorough": Preset(
        "sharper bounds, and attacks on all rounds and on records; three times the time",
        {
            "auditors": f"{AuditSettings.auditors},transcript,membership",
            "canary-seats": 20,
            "lrt-trials": 1000,
        },
    ),
    "paper": Preset(
        "50 users of MNIST with FedSGD, as in Elkordy et al. 2023, figures 3 to 5",
        {
            "dataset": "mnist",
            "model": "linear",
            "clients": 50,
            "sample": 50,
            "algorithm": "fedsgd",
            "epochs": 1,
            "batch-size": 32,
            "lr": 0.1,
            "auditors": "mutual-information,mine",
        },
    ),
}


def usual_auditors(secagg: str, usual: str = AuditSettings.auditors) -> str:
    """Return the default auditors; where no masks hide single updates, one looks at these too.

    >>> usual_auditors("off")
    'one-shot,single-update,likelihood-ratio,mutual-information,mine'
    """
    return usual.replace("one-shot", "one-shot,single-update") if secagg == "off" else usual


@dataclass(frozen=True)
class RunSettings:
    """How the run itself is executed."""

    seed: int = _run(
        0,
        "random seed: the same seed gives the same report on the same machine",
        low=0,
        high=2**31 - 1,
    )
    engine: str = _run(
        "inline",
        "where clients run: in this process (inline), or in Flower's simulation on Ray (ray)",
        choices=ENGINES,
    )
    ray_address: str = _run(
        "",
        "Ray cluster to join with --engine ray: HOST:PORT, or auto for one on this machine "
        "(default: the environment variable RAY_ADDRESS, or a new local Ray)",
        metavar="HOST:PORT",
    )
    device: str = _run(
        "cpu",
        "where clients train, and where mine, inversion and shadow models compute: on the CPU, on "
        "a GPU (cuda, or mps on a Mac), or on the best that this machine has (auto)",
        choices=DEVICES,
    )
    log: str = _run(
        "",
        "tools to send rounds, findings and page to as well, separated by commas: "
        f"{', '.join(LOGGERS)}; their files are next to the run's folder",
        metavar="TOOLS",
        several=True,
    )
    stop_above: float = _run(
        0.0,
        "end the run in order, with model and report, once an ε above this is proven; needs "
        "--bounds anytime",
        zero="off",
        low=0,
    )
    fail_above: float = _run(
        0.0,
        "exit with code 3 if an ε above this is proven (see --against), and with 4 if the audit "
        "could not have shown one; the run itself is the same",
        zero="off",
        low=0,
    )
    require_guarantee: float = _run(
        0.0,
        "exit with code 3 unless an ε of at most this is guaranteed against every attacker (see "
        "--against); the run itself is the same",
        zero="off",
        low=0,
    )
    against: str = _run(
        "",
        "attackers that --fail-above and --require-guarantee are about: server, outsider or wire, "
        "or one with what it sees, such as outsider/all-models (default: all attackers of the run)",
        metavar="ATTACKER",
    )


@dataclass(frozen=True)
class Settings(  # fields come in reverse order
    RunSettings, SettingsOfAuditors, AuditSettings, TrainingSettings, TaskSettings
):
    """Every setting with its default, its help text and its range, as `Config` checks them.

    Every field is a string, a number or a truth value, as Flower allows.
    """

    def refused(self, name: str, allowed: str, fix: str = "") -> ConfigError:
        """Return the error for a setting that does not go with others; see `out_of_range`."""
        value = AUTO if name == "clip_norm" and self.measures_clip else getattr(self, name)
        return out_of_range(option(name), allowed, value, fix=fix)

    @property
    def measures_clip(self) -> bool:
        """Whether the clip norm is still to be measured, in a rehearsal before round 1."""
        return self.clipping == "measured" and self.clip_norm == 0

    @cached_property  # every message asks
    def task(self) -> TaskConfig:
        """The settings that determine data, partition and model."""
        own = (spec.name for spec in fields(TaskConfig) if spec.name != "planted")
        planted = PlantedRecordsSettings.planted(self)
        return TaskConfig(**{name: getattr(self, name) for name in own}, planted=planted)

    @property
    def generates_clients(self) -> bool:
        """Whether clients generate their records, which nobody lists."""
        return self.dataset == "synthetic" and self.synthetic_per_client > 0

    @property
    def auditor_names(self) -> tuple[str, ...]:
        """The auditors' names in order, without blanks."""
        short = {owner.short_name: known for known, owner in AUDITORS.items()}
        names = names_of("--auditors", self.auditors, AUDITOR_NAMES, short)
        return tuple(name for name in names if name != "none")

    @property
    def loggers(self) -> list[str]:
        """The tools that the run is sent to, besides its folder."""
        return names_of("--log", self.log, LOGGERS)

    @property
    def has_sums(self) -> bool:
        """Whether updates go into secure sums."""
        return self.secagg != "off"

    @property
    def noise_kind(self) -> NoiseKind:
        """What the noise of the run hides and needs."""
        return NOISES[self.noise]

    @property
    def hides_records(self) -> bool:
        """Whether clients add noise that protects single records."""
        return self.noise_kind.unit == "record"

    @property
    def game(self) -> str:
        """Game of the audits that resample updates."""
        if self.lrt_game != "auto":
            return self.lrt_game
        return "rerun" if self.partition == "natural" else "independent"

    @property
    def server_step(self) -> float:
        """Step length of the server's optimiser."""
        return self.server_lr or USUAL_STEP[self.server]

    @property
    def seats(self) -> int:
        """Canary seats per round; none without an auditor that plays canaries."""
        return 0 if PLAYERS.isdisjoint(self.auditor_names) else self.canary_seats

    @property
    def cohort(self) -> int:
        """Clients per round: honest ones and canary seats."""
        return self.sample + self.seats

    @property
    def cohort_rate(self) -> float:
        """Share of the clients that a round takes on average."""
        return self.cohort / self.clients
