"""The table of experiments: what can be listed without importing any of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from leakmeter.fl_app.experiments.base import Experiment

SCALES: Final = ("paper", "small")


@dataclass(frozen=True)
class Entry:
    """What is known of an experiment before it is imported.

    Attributes:
        module: In this package; it has a function `run`.
        what: What it shows.
        small: Processor time of the small scale in seconds.
        paper: Of the published size.
        data: Data sets that the published size reads: names of `fl_app.config.names.DATASETS`, and
            "writers" for who wrote each image of MNIST.
        small_data: Data sets that the small scale reads.
        size: Whether the scale "paper" has the published size, or what is reduced.
        variant: Which row of the module's settings, where several experiments share a module.
        distributes: Whether it draws updates with samplers, whose work Ray can distribute.
    """

    module: str
    what: str
    small: float
    paper: float
    data: tuple[str, ...] = ()
    small_data: tuple[str, ...] = ()
    size: str = "beyond the papers"
    variant: str = ""
    distributes: bool = False

    def load(self) -> Experiment:
        """Import the module and return what runs the experiment."""
        run = import_module(f"leakmeter.fl_app.experiments.{self.module}").run
        return cast("Experiment", partial(run, variant=self.variant) if self.variant else run)

    def seconds(self, scale: str) -> float:
        """Return about the processor time at a scale."""
        return self.paper if scale == "paper" else self.small

    def needs(self, scale: str) -> tuple[str, ...]:
        """Return the data sets that are read at a scale."""
        return self.data if scale == "paper" else self.small_data


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> [duration(s) for s in (3, 110, 600, 5000)]
    ['3 s', '110 s', '10 min', '1.4 h']
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


EXPERIMENTS: Final = {
    "one-shot-table1": Entry(
        "andrew2024.table1",
        "Andrew et al. 2024, Table 1: one-shot estimates of the Gaussian mechanism",
        size="as published",
        small=2,
        paper=50,
    ),
    "dp-fedavg-writers": Entry(
        "andrew2024.writers",
        "DP-FedAvg on MNIST by writer: one-shot findings against the accountant's ε",
        size="reduced (539 writers in place of 341,000 users, one run per row)",
        variant="coins",
        small=4,
        paper=40,
        data=("mnist", "writers"),
    ),
    "one-shot-writers": Entry(
        "andrew2024.writers",
        "Andrew et al. 2024, Tables 2 and 5: canaries in final and in all models",
        size="reduced (539 writers in place of 341,000 users and of 3,383 writers; three noises of "
        "Table 5, with 400 canaries; one run of some rows)",
        variant="tables",
        small=30,
        paper=400,
        data=("mnist", "writers"),
    ),
    "one-shot-all-models": Entry(
        "andrew2024.all_models",
        "Andrew et al. 2024, Tables 2 and 5: Algorithm 3 as printed, and with momentum",
        size="reduced (sums of noise and canaries alone, without honest updates)",
        small=4,
        paper=20,
    ),
    "one-shot-accuracy": Entry(
        "andrew2024.accuracy",
        "Andrew et al. 2024, Table 3: what canaries cost in accuracy",
        size="reduced (539 writers in place of 341,000 users; three of five noises, one run each)",
        small=10,
        paper=80,
        data=("mnist", "writers"),
    ),
    "one-shot-repetitions": Entry(
        "andrew2024.writers",
        "Andrew et al. 2024, Fig. 1 to 3, Table 4: canaries that play several times",
        size="reduced (half of 539 writers, 100 canaries in place of 1,000, one run per row)",
        variant="repetitions",
        small=24,
        paper=60,
        data=("mnist", "writers"),
    ),
    "one-shot-many-runs": Entry(
        "andrew2024.many_runs",
        "Andrew et al. 2024, Fig. 4: one run with many canaries against many runs",
        size="reduced (539 writers; DP-FedAvg repeated three times and once in place of 50)",
        small=25,
        paper=250,
        data=("mnist", "writers"),
    ),
    "one-shot-records": Entry(
        "andrew2024.records",
        "Andrew et al. 2024, Table 6: gradient canaries in DP-SGD, without CANIFE",
        size="reduced (2 runs in place of 50)",
        small=5,
        paper=80,
        data=("fashion-mnist",),
    ),
    "secagg-lrt-adult": Entry(
        "ngo2024.secure_sum",
        "Ngo et al. 2024, Fig. 2: distinguishing two updates in a secure sum, ADULT",
        size="as published",
        variant="adult",
        small=15,
        paper=500,
        data=("adult",),
        small_data=("adult",),
        distributes=True,
    ),
    "secagg-lrt-mnist": Entry(
        "ngo2024.secure_sum",
        "Ngo et al. 2024, Fig. 3: the same for d = 7,850, MNIST, even labels",
        size="reduced (600 images per client in place of 2,800, 1,000 trials in place of 5,000)",
        variant="mnist",
        small=60,
        paper=2500,
        data=("mnist",),
        small_data=("mnist",),
        distributes=True,
    ),
    "secagg-lrt-mnist-skewed": Entry(
        "ngo2024.secure_sum",
        "Ngo et al. 2024, Fig. 4: the same with skewed labels, two Dirichlet partitions",
        size="reduced (600 images per client in place of 2,800, 700 trials in place of 5,000)",
        variant="mnist-skewed",
        small=60,
        paper=1200,
        data=("mnist",),
        small_data=("mnist",),
        distributes=True,
    ),
    "transcript-adult": Entry(
        "ngo2024.transcript",
        "Beyond the papers: ten rounds of a client in one test against the best single round",
        small=10,
        paper=650,
        data=("adult",),
        distributes=True,
    ),
    "ldp-curves": Entry(
        "ngo2024.ldp_curves",
        "Ngo et al. 2024, Fig. 1: optimal LDP curves of a secure sum without noise",
        size="as published, with n and d of our own, which the paper does not state",
        small=3,
        paper=6,
    ),
    "dlg-users": Entry(
        "elkordy2023.dlg_users",
        "Elkordy et al. 2023, Fig. 15: what gradient inversion recovers from a secure sum",
        size="reduced (few attacks per point; 4,000 pictures of CIFAR-10)",
        small=7,
        paper=630,
        data=("mnist", "cifar10"),
    ),
    "mi-users": Entry(
        "elkordy2023.users",
        "Elkordy et al. 2023, Fig. 3 to 5: information in a secure sum over the number of users",
        size="reduced (40 directions of 7,850)",
        variant="users",
        small=14,
        paper=620,
        data=("mnist",),
        distributes=True,
    ),
    "mi-models": Entry(
        "elkordy2023.users",
        "Elkordy et al. 2023, Fig. 3 to 5: information over data sets, models and algorithms",
        size="reduced (some directions of each model; 4,000 pictures of CIFAR-10)",
        variant="models",
        small=6,
        paper=900,
        data=("mnist", "cifar10"),
        distributes=True,
    ),
    "mi-batch": Entry(
        "elkordy2023.sweep",
        "Elkordy et al. 2023, Fig. 6 to 8: the same over the batch size",
        size="reduced (40 directions; the linear model only)",
        variant="batch",
        small=6,
        paper=120,
        data=("mnist",),
        distributes=True,
    ),
    "mi-epochs": Entry(
        "elkordy2023.sweep",
        "Elkordy et al. 2023, Fig. 11 and 12: the same over local epochs",
        size="reduced (40 directions; the linear model only)",
        variant="epochs",
        small=8,
        paper=505,
        data=("mnist",),
        distributes=True,
    ),
    "mi-rounds": Entry(
        "elkordy2023.rounds",
        "Elkordy et al. 2023, Fig. 9: what all rounds together reveal about a client's data",
        size="reduced (ten rounds, few directions per round; the linear model only)",
        variant="rounds",
        small=15,
        paper=250,
        data=("mnist",),
    ),
    "mi-heterogeneity": Entry(
        "elkordy2023.heterogeneity",
        "Elkordy et al. 2023, Fig. 13: information in a secure sum of heterogeneous clients",
        size="reduced (MNIST and the linear model in place of CIFAR-10 and a CNN; five local "
        "epochs with α by label only)",
        small=6,
        paper=560,
        data=("mnist",),
        distributes=True,
    ),
    "mi-dp": Entry(
        "elkordy2023.dp",
        "Elkordy et al. 2023, Fig. 16: information in a sum with noise after it",
        size="reduced (40 directions of 7,850)",
        small=5,
        paper=400,
        data=("mnist",),
        distributes=True,
    ),
    "mi-accuracy": Entry(
        "elkordy2023.rounds",
        "Elkordy et al. 2023, Fig. 10: what all rounds reveal, against the model's accuracy",
        size="reduced (two directions per round; a target of 80 % in place of 85 %)",
        variant="accuracy",
        small=4,
        paper=100,
        data=("mnist",),
    ),
    "mi-writers": Entry(
        "elkordy2023.writers",
        "Elkordy et al. 2023, Fig. 14: information in a secure sum of writers",
        size="reduced (539 writers of MNIST and the linear model in place of FEMNIST and a CNN)",
        small=3,
        paper=70,
        data=("mnist", "writers"),
        distributes=True,
    ),
    "mine-dimension": Entry(
        "elkordy2023.mine_dimension",
        "Elkordy et al. 2023, Appendix D: what the neural estimator finds where the truth is known",
        size="beyond the paper",
        small=5,
        paper=250,
    ),
    "mine-rounds": Entry(
        "elkordy2023.mine_rounds",
        "Elkordy et al. 2023, section 4.1: what the MINE audit finds after each round of a run",
        size="reduced (8 directions; K and steps varied, since the paper does not state K)",
        small=8,
        paper=200,
        data=("mnist",),
    ),
    "active-server": Entry(
        "active_server.table",
        "Malicious server against a secure sum: ten attacks, before and after, and what remains",
        small=8,
        paper=1200,
    ),
    "ring-noise": Entry(
        "ring_noise.table",
        "Distributed noise as integers: accuracy at equal ε over bits per coordinate",
        small=12,
        paper=600,
        data=("mnist", "writers"),
    ),
    "low-bits": Entry(
        "ring_noise.low_bits",
        "Low bits of a noised release: attack on float64, float32, ring and grid",
        small=2,
        paper=8,
    ),
    "coverage": Entry(
        "coverage.table",
        "Every printed lower bound, and the published ones: how often above a known ε",
        size="beyond the papers",
        small=15,
        paper=600,
    ),
    "anytime-refutes": Entry(
        "coverage.waiting",
        "Bounds that hold at all rounds together: how soon they refute Flower's local noise",
        small=2,
        paper=15,
    ),
    "textbook-examples": Entry(
        "textbook",
        "Textbook chapter on privacy: worked examples 1 and 2, clipped updates, DLG under noise",
        size="as published; the federation and the digits that are attacked are ours",
        small=6,
        paper=60,
    ),
    "wfna-mnist": Entry(
        "zhang2024.noised_gradients",
        "Zhang and Psounis 2024, Fig. 4 and 5: noised gradients at equal ε, linear model",
        size="reduced (600 records per user and 20 rounds in place of 1,200 and 100 epochs)",
        variant="linear",
        small=15,
        paper=1050,
        data=("mnist",),
    ),
    "wfna-mnist-cnn": Entry(
        "zhang2024.noised_gradients",
        "Zhang and Psounis 2024, Fig. 4 and 5: noised gradients at equal ε, CNN",
        size="reduced (60 records per user, 8 rounds and B = 8 in place of 1,200, 100 epochs and "
        "32; three runs of two mechanisms, one of the others)",
        variant="cnn",
        small=15,
        paper=700,
        data=("mnist",),
    ),
    "wfna-table1": Entry(
        "zhang2024.table1",
        "Zhang and Psounis 2024, Table 1: what a record is guaranteed, by the valid rows",
        size="as published",
        small=4,
        paper=10,
    ),
    "span-counterexample": Entry(
        "zhang2024.span_counterexample",
        "Elkordy et al. 2023, Fig. 17; Zhang and Psounis 2024, Fig. 3: a sum that hides nothing",
        size="as published, with numbers of our own, which the paper does not state",
        small=2,
        paper=6,
    ),
}
