"""The table of experiments: what can be listed without importing any of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from leakmeter.papers.base import Experiment

SCALES: Final = ("paper", "small")


@dataclass(frozen=True)
class Entry:
    """What is known of an experiment before it is imported."""

    module: str  # in this package; it has a function `run`
    small: float  # processor time of the small scale in seconds
    paper: float  # of the scale "paper"
    cells: int  # that "paper" computes
    what: str  # what it shows
    variant: str = ""  # row of the module's settings, where several experiments share a module
    size: str = "beyond the papers"  # whether "paper" has the published size, or what is reduced
    # Data sets that the scale "paper" reads: names of `fl_app.config.settings.DATASETS`, and
    # "writers" for who wrote each image of MNIST.
    data: tuple[str, ...] = ()
    small_data: tuple[str, ...] = ()  # that the small scale reads
    distributes: bool = False  # whether it draws updates with samplers that Ray can distribute

    def load(self) -> Experiment:
        """Import the module and return what runs the experiment."""
        run = import_module(f"leakmeter.papers.{self.module}").run
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


_sweep = partial(Entry, "elkordy2023.sweep", data=("mnist",), distributes=True)
_secure_sum = partial(Entry, "ngo2024.secure_sum", distributes=True)
_by_writer = partial(Entry, data=("mnist", "writers"))

# fmt: off
# One experiment a paragraph: where it is and how long it takes, what it shows, what is reduced.
EXPERIMENTS: Final = {
    "one-shot-table1": Entry("andrew2024.table1", 2, 50, 12,
        what="Andrew et al. 2024, Table 1: one-shot estimates of the Gaussian mechanism",
        size="as published"),
    "dp-fedavg-writers": _by_writer("andrew2024.writers", 8, 40, 3, variant="coins",
        what="DP-FedAvg on MNIST by writer: one-shot findings against the accountant's ε",
        size="reduced (539 writers in place of 341,000 users; 220 canaries, included by coins, in "
        "place of 1,000; one run per row)"),
    "one-shot-writers": _by_writer("andrew2024.writers", 30, 400, 35, variant="tables",
        what="Andrew et al. 2024, Tables 2 and 5: canaries in final and in all models",
        size="reduced (539 writers in place of 341,000 users and of 3,383 writers; d at most "
        "89,610 in place of millions; three noises of Table 5, with 400 canaries; one run of some "
        "rows)"),
    "one-shot-all-models": Entry("andrew2024.all_models", 5, 20, 13,
        what="Andrew et al. 2024, Tables 2 and 5: Algorithm 3 as printed, and with momentum",
        size="reduced (sums of noise and canaries alone, without honest updates)"),
    "one-shot-accuracy": _by_writer("andrew2024.accuracy", 22, 80, 3,
        what="Andrew et al. 2024, Table 3: what canaries cost in accuracy",
        size="reduced (539 writers in place of 341,000 users; three of five noises, one run each)"),
    "one-shot-repetitions": _by_writer("andrew2024.writers", 24, 60, 16, variant="repetitions",
        what="Andrew et al. 2024, Fig. 1 to 3, Table 4: canaries that play several times",
        size="reduced (half of 539 writers, d = 7,850, 100 canaries in place of 1,000, one run per "
        "row)"),
    "one-shot-many-runs": _by_writer("andrew2024.many_runs", 40, 250, 308,
        what="Andrew et al. 2024, Fig. 4: one run with many canaries against many runs",
        size="reduced (539 writers, d = 7,850; DP-FedAvg: 3 experiments of one run and 1 of ten "
        "runs, in place of 50 each)"),
    "one-shot-records": Entry("andrew2024.records", 8, 80, 2,
        what="Andrew et al. 2024, Table 6: gradient canaries in DP-SGD, without CANIFE",
        size="reduced (2 runs in place of 50; momentum, width, step length and δ are ours, since "
        "the paper states none)",
        data=("fashion-mnist",)),
    "secagg-lrt-adult": _secure_sum(24, 500, 3, variant="adult",
        what="Ngo et al. 2024, Fig. 2: distinguishing two updates in a secure sum, ADULT",
        size="as published",
        data=("adult",), small_data=("adult",)),
    "secagg-lrt-mnist": _secure_sum(35, 2800, 2, variant="mnist",
        what="Ngo et al. 2024, Fig. 3: the same for d = 7,850, MNIST, even labels",
        size="reduced (MNIST, 600 images per client, in place of EMNIST digits, 2,800)",
        data=("mnist",), small_data=("mnist",)),
    "secagg-lrt-mnist-skewed": _secure_sum(40, 2800, 2, variant="mnist-skewed",
        what="Ngo et al. 2024, Fig. 4: the same with skewed labels, two Dirichlet partitions",
        size="reduced (MNIST, 600 images per client, in place of EMNIST digits, 2,800)",
        data=("mnist",), small_data=("mnist",)),
    "transcript-adult": Entry("ngo2024.transcript", 5, 650, 4,
        what="Beyond the papers: ten rounds of a client in one test against the best single round",
        data=("adult",), distributes=True),
    "ldp-curves": Entry("ngo2024.ldp_curves", 3, 6, 10,
        what="Ngo et al. 2024, Fig. 1: optimal LDP curves of a secure sum without noise",
        size="as published where stated (n and d are ours)"),
    "dlg-users": Entry("elkordy2023.dlg", 7, 630, 54,
        what="Elkordy et al. 2023, Fig. 15: what gradient inversion recovers from a secure sum",
        size="reduced (information along 20 directions; 4 attacks per point with B = 32)",
        data=("mnist", "cifar10")),
    "mi-users": _sweep(14, 620, 38, variant="users",
        what="Elkordy et al. 2023, Fig. 3 to 5: information in a secure sum over the number of "
        "users",
        size="reduced (40 of 7,065 free directions; the linear model on MNIST only)"),
    "mi-models": _sweep(6, 900, 48, variant="models",
        what="Elkordy et al. 2023, Fig. 3 to 5: information over data sets, models and algorithms",
        size="reduced (9 to 40 directions of each model; N = 2, 10 and 20; 4,000 pictures of "
        "CIFAR-10)",
        data=("mnist", "cifar10")),
    "mi-batch": _sweep(6, 120, 33, variant="batch",
        what="Elkordy et al. 2023, Fig. 6 to 8: the same over the batch size",
        size="reduced (40 of 7,065 free directions; the linear model on MNIST in place of an MLP, "
        "and of a CNN on CIFAR-10)"),
    "mi-epochs": _sweep(8, 505, 34, variant="epochs",
        what="Elkordy et al. 2023, Fig. 11 and 12: the same over local epochs",
        size="reduced (40 of 7,065 free directions; the linear model on MNIST in place of an MLP, "
        "and of a CNN on CIFAR-10)"),
    "mi-rounds": Entry("elkordy2023.rounds", 15, 470, 5, variant="rounds",
        what="Elkordy et al. 2023, Fig. 9: what all rounds together reveal about a client's data",
        size="reduced (4 directions per round; ten rounds of 5 users; MNIST without CIFAR-10)",
        data=("mnist",)),
    "mi-heterogeneity": _sweep(6, 900, 56, variant="heterogeneity",
        what="Elkordy et al. 2023, Fig. 13: information in a secure sum of heterogeneous clients",
        size="reduced (40 directions; MNIST and the linear model in place of CIFAR-10 and a CNN)"),
    "mi-dp": _sweep(5, 400, 73, variant="noise",
        what="Elkordy et al. 2023, Fig. 16: information in a sum with noise after it",
        size="reduced (40 of 7,065 free directions)"),
    "mi-accuracy": Entry("elkordy2023.rounds", 4, 270, 6, variant="accuracy",
        what="Elkordy et al. 2023, Fig. 10: what all rounds reveal, against the model's accuracy",
        size="reduced (2 directions per round; a target of 80 % in place of 85 %)",
        data=("mnist",)),
    "mi-writers": _sweep(3, 70, 30, variant="writers",
        what="Elkordy et al. 2023, Fig. 14: information in a secure sum of writers",
        size="reduced (40 directions; 539 writers of MNIST and the linear model in place of 3,500 "
        "of FEMNIST and a CNN)",
        data=("mnist", "writers")),
    "mine-dimension": Entry("elkordy2023.mine", 5, 250, 5, variant="dimension",
        what="Elkordy et al. 2023, Appendix D: what the neural estimator finds where the truth is "
        "known",
        size="beyond the paper"),
    "mine-rounds": Entry("elkordy2023.mine", 8, 200, 9, variant="rounds",
        what="Elkordy et al. 2023, section 4.1: what the MINE audit finds after each round of a "
        "run",
        size="reduced (8 directions; K and steps varied, since the paper does not state K)",
        data=("mnist",)),
    "active-server": Entry("active_server.table", 4, 425, 45,
        what="Malicious server against a secure sum: ten attacks, before and after, and what "
        "remains"),
    "ring-noise": _by_writer("ring_noise.table", 5, 310, 45,
        what="Distributed noise as integers: accuracy at equal ε over bits per coordinate"),
    "low-bits": Entry("ring_noise.low_bits", 1, 4, 15,
        what="Low bits of a noised release: attack on float64, float32, ring and grid"),
    "coverage": Entry("coverage.table", 10, 600, 87,
        what="Every printed lower bound, and the published ones: how often above a known ε"),
    "anytime-refutes": Entry("coverage.waiting", 1, 6, 2,
        what="Bounds that hold at all rounds together: how soon they refute Flower's local noise"),
    "claims-zoo": Entry("claims_zoo.table", 6, 3600, 132,
        what="Privacy claims: twelve broken mechanisms that audits refute, six right ones"),
    "textbook-examples": Entry("textbook", 6, 60, 13,
        what="Textbook chapter on privacy: worked examples 1 and 2, clipped updates, DLG under "
        "noise",
        size="as published; the rows on clipping and inversion use a federation and digits of our "
        "own"),
    "wfna-mnist": Entry("zhang2024.noised_gradients", 15, 1050, 81, variant="linear",
        what="Zhang and Psounis 2024, Fig. 4 and 5: noised gradients at equal ε, linear model",
        size="reduced (600 records per user and 20 rounds of one step in place of 1,200 and 100 "
        "epochs)",
        data=("mnist",)),
    "wfna-mnist-cnn": Entry("zhang2024.noised_gradients", 15, 700, 26, variant="cnn",
        what="Zhang and Psounis 2024, Fig. 4 and 5: noised gradients at equal ε, CNN",
        size="reduced (60 records per user, 8 rounds and B = 8 in place of 1,200, 100 epochs and "
        "32; three runs of two mechanisms, one of the others)",
        data=("mnist",)),
    "wfna-table1": Entry("zhang2024.table1", 4, 10, 16,
        what="Zhang and Psounis 2024, Table 1: what a record is guaranteed, by the valid rows",
        size="as published where stated (N, B, C and δ of its Fig. 5; D = 1,200 is ours)"),
    "span-counterexample": Entry("zhang2024.span_counterexample", 2, 6, 6,
        what="Elkordy et al. 2023, Fig. 17; Zhang and Psounis 2024, Fig. 3: a sum that hides "
        "nothing",
        size="as published where stated (the updates are ours)"),
}
# fmt: on
