"""What the sum reveals about a client, over the number of users.

Elkordy et al. (2023), arXiv:2208.02304, Fig. 3 to 5: FedSGD, FedAvg and FedProx with batches of 32.
The variant "users" has the linear model on MNIST, 50 users of 1,200 images, in two games; beside it
what the server learns if some users collude (Corollary 2), and the neural estimate on training
pairs, on shuffled pairs and held out. The variant "models" has linear, SLP and MLP on MNIST and
linear, SLP and CNN on CIFAR-10. The paper's leakage grows with the model. In a Gaussian model it
does so by the number of directions in which updates vary, and not otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Literal

from leakmeter.auditors.finding import Game
from leakmeter.auditors.information import gaussian_information
from leakmeter.fl_app.experiments.base import Cells, Comparison, Table, filled
from leakmeter.fl_app.experiments.elkordy2023 import page
from leakmeter.fl_app.experiments.elkordy2023.measure import (
    NAMES,
    Algorithm,
    Found,
    Setting,
    batch_bits,
    critics,
    looked,
    paper_share,
    whole_bits,
)
from leakmeter.fl_app.experiments.plot import Panel

Variant = Literal["users", "models"]
Told = Sequence[tuple[Setting, Sequence[Found]]]  # what is found for every number of users


@dataclass(frozen=True)
class Scale:
    """What is looked at.

    Attributes:
        settings: The federations.
        users: Users in the sum.
        critics: Users for which critics are trained, where FedSGD plays the game rerun.
        pairs: That they are trained on.
        seeds: Critics of each kind.
        colluding: Users of FedSGD, and how many of them collude.
    """

    settings: tuple[Setting, ...]
    users: tuple[int, ...]
    critics: tuple[int, ...] = ()
    pairs: int = 1000
    seeds: int = 3
    colluding: tuple[int, tuple[int, ...]] = (0, ())


def _both_games(base: Setting) -> tuple[Setting, ...]:
    games: tuple[Game, ...] = ("independent", "rerun")
    return tuple(replace(base, algorithm=a, game=g) for a, g in product(NAMES, games))


def _settings(base: Setting, *models: str) -> tuple[Setting, ...]:
    return tuple(replace(base, model=model) for model in models)


_MNIST = Setting("mnist")
_WIDE = Setting("cifar10", draws=90, rank=20)
_DEEP = Setting("cifar10", draws=40, rank=10)
_DIGITS = Setting("digits", clients=20, batch_size=8, draws=60, rank=8)


def _whole_passes(algorithm: Algorithm) -> tuple[Setting, ...]:
    """Return the settings whose clients pass over all their data, with fewer draws for that."""
    return (
        *_settings(replace(_MNIST, algorithm=algorithm, draws=90, rank=20), "slp"),
        *_settings(replace(_MNIST, algorithm=algorithm, draws=40, rank=10), "mlp"),
        *_settings(replace(_WIDE, algorithm=algorithm), "linear", "slp"),
        *_settings(replace(_DEEP, algorithm=algorithm), "cnn"),
    )


_FIVE = (2, 5, 10, 20, 50)
_SCALES: dict[Variant, dict[str, Scale]] = {
    "users": {
        "paper": Scale(_both_games(_MNIST), _FIVE, _FIVE, colluding=(20, (5, 10, 15))),
        "small": Scale(_both_games(_DIGITS), _FIVE[:-1], (2,), 60, 2, (20, (10, 15))),
    },
    "models": {
        "paper": Scale(
            (
                *_settings(_MNIST, "linear", "slp", "mlp"),
                *_settings(_WIDE, "linear", "slp"),
                *_settings(_DEEP, "cnn"),
                *_whole_passes("fedavg"),
                *_whole_passes("fedprox"),
            ),
            (2, 10, 20),
        ),
        "small": Scale(
            (
                *_settings(_DIGITS, "linear", "slp", "mlp"),
                *_settings(replace(_DIGITS, algorithm="fedavg"), "slp", "mlp"),
            ),
            (2, 10),
        ),
    },
}
_SHOWN = (
    *("bits", "mean over users", "directions", "variance kept", "Gaussian truth"),
    "free coordinates",
)
_COLUMNS = (
    *("algorithm", "data", "model", "game", "users", "colluding", *_SHOWN, "all coordinates"),
    *("batch entropy", "paper's axis", "MINE trained", "MINE shuffled", "MINE held out", "log₂ K"),
)
_NOTE = (
    "All coordinates: the Gaussian truth for every free coordinate, or the entropy of a client's "
    "records and batches where that is less; no number of samples here could confirm it. "
)
_NOTES: dict[Variant, str] = {
    "users": _NOTE + page.GAMES + " MINE: two hidden layers of 100 and 1,000 steps as in the "
    "paper, which states neither K nor the optimiser; here K = {pairs:,} pairs of whole updates "
    "and Adam. Read off on its training pairs, as (38) has it; the same where pairs are shuffled "
    "and there is nothing to find; and the NWJ value on pairs that it has not seen. Nothing "
    "distribution-free can show more than about log₂ K. Colluding users are taken off the sum.",
    "models": _NOTE + "CIFAR-10 may be a part of the data set; the run says so.",
}


def run(scale: str, cells: Cells, variant: Variant) -> Table:
    """Measure every setting at every number of users."""
    what = _SCALES[variant][scale]
    told = [(s, [looked(cells, s, n) for n in what.users]) for s in what.settings]
    neural = {(s, n): _neural(cells, what, s, n) for s in what.settings for n in what.users}
    rows = [
        _row(setting, n, found, neural[setting, n])
        for setting, each in told
        for n, found in zip(what.users, each, strict=True)
    ]
    users, counts = what.colluding
    for count in counts:
        setting = what.settings[0]
        found = looked(cells, setting, users, f"-colluding{count}", colluding=count)
        rows.append(_row(setting, users, found, {}, count))
    compare = _compare_users if variant == "users" else _compare_models
    critics_found = [one for one in neural.values() if one]
    return Table(
        title=f"What a secure sum reveals about an update, over {variant}",
        **filled(_COLUMNS, rows),
        notes=(
            page.NOTE.format(rank="the stated number of") + page.PAPER.strip(),
            _NOTES[variant].format(pairs=what.pairs),
        ),
        figures={f"{variant}.svg": (_panel(variant, what, told),)},
        comparisons=compare(what, told, critics_found) if scale == "paper" else (),
    )


def _neural(cells: Cells, what: Scale, setting: Setting, users: int) -> Mapping[str, Any]:
    """Return what critics find, where they are asked."""
    if (setting.game, setting.algorithm) != ("rerun", "fedsgd") or users not in what.critics:
        return {}
    work = partial(critics, setting, users, draws=what.pairs, count=what.seeds)
    return dict(cells.get(f"{setting.key}-N{users}-mine-{what.pairs}x{what.seeds}", work))


def _panel(variant: Variant, what: Scale, told: Told) -> Panel:
    if variant == "models":
        lines = [
            page.line(_name(s), what.users, [f["bits"] / f["rank"] for f in found], color)
            for color, (s, found) in enumerate(told)
        ]
        return Panel("Bits a direction", "users", "bits", tuple(lines), True)
    lines = [
        page.line(
            f"{NAMES[s.algorithm]}, {s.game}",
            what.users,
            [f["bits"] for f in found],
            list(NAMES).index(s.algorithm),
            "o-" if s.game == "independent" else "x--",
        )
        for s, found in told
    ]
    truth = [f["gaussian"] for f in told[-1][1]]
    lines.append(page.line("Gaussian truth", what.users, truth, len(NAMES), ":"))
    return Panel("Information in the sum", "users", "bits", tuple(lines), True, True)


def _name(setting: Setting) -> str:
    return f"{NAMES[setting.algorithm]}, {setting.dataset}, {setting.model}"


def _row(
    setting: Setting, users: int, found: Found, neural: Mapping[str, Any], colluding: int = 0
) -> tuple[Any, ...]:
    is_fresh = setting.game == "independent"
    limited = not is_fresh and setting.algorithm == "fedsgd"
    return (
        *(NAMES[setting.algorithm], setting.dataset, setting.model, setting.game),
        *(users, colluding, *page.shown(setting, found, *_SHOWN)),
        page.number(whole_bits(setting, found, users - colluding)) if is_fresh else "",
        page.number(batch_bits(setting, found["records"])) if limited else "",
        page.share(setting, found),
        *(page.number(neural[name]) if neural else "" for name in ("trained", "shuffled")),
        f"{neural['held_out']:.2f} ± {neural['held_out_error']:.2f}" if neural else "",
        page.number(neural["log_draws"]) if neural else "",
    )


# Figure, what the paper says of it, and of more than 20 users over all models, on its own axis.
_PUBLISHED: dict[Algorithm, tuple[str, str, str]] = {
    "fedsgd": (
        "Fig. 3",
        "falls as N grows; below 2 % of a batch's entropy for more than 20 users",
        "CIFAR-10 above MNIST, below 5 % and 2 %",
    ),
    "fedavg": (
        "Fig. 4",
        "falls about as 1/N; below 0.1 % of the client's data, more than 20 users",
        "below 0.1 % on both",
    ),
    "fedprox": (
        "Fig. 5",
        "falls about as 1/N; below 0.12 %, more than 20 users",
        "below 0.12 % on both",
    ),
}


def _compare_users(
    what: Scale, told: Told, neural: Sequence[Mapping[str, Any]]
) -> tuple[Comparison, ...]:
    rows = [_falls(what, s, found) for s, found in told if s.game == "independent"]
    users = f"N = {', '.join(map(str, what.critics))}"
    read, null, held = (
        ", ".join(f"{float(one[name]):.1f}" for one in neural)
        for name in ("trained", "shuffled", "held_out")
    )
    claim = Comparison(
        f"{page.SOURCE}Fig. 3",
        f"a MINE of the paper's size, 1,000 steps of Adam on {what.pairs:,} pairs, {users}",
        "the reading of MINE falls with N; K and the optimiser are not stated",
        f"{read} bits; on shuffled pairs, which share nothing, {null}; held out {held}",
        "a reading on the training pairs is mostly what MINE has learnt by heart; held out it "
        "finds a few bits for two users and nothing from ten on",
    )
    return (*rows, claim)


def _falls(what: Scale, setting: Setting, found: Sequence[Found]) -> Comparison:
    """Return how the figure falls, and what all coordinates would reveal at 20 users."""
    figure, published, _ = _PUBLISHED[setting.algorithm]
    at = found[what.users.index(20)]
    whole = whole_bits(setting, at, 20)
    share = paper_share(setting, whole, at["records"])
    assert share is not None
    return Comparison(
        f"{page.SOURCE}{figure}",
        f"information in the sum over N = {what.users[0]} to {what.users[-1]} users, "
        f"{NAMES[setting.algorithm]}, linear model on MNIST",
        published,
        f"falls from {page.plus_minus(found[0])} to {page.plus_minus(found[-1])} bits along "
        f"{setting.rank} directions, as log(N/(N - 1)); if all {at['free']:,} free "
        f"coordinates were Gaussian, {whole:.0f} bits at N = 20, {100 * share:.2g} % of the "
        "paper's entropy",
        page.UNITS,
    )


def _compare_models(
    what: Scale, told: Told, _: Sequence[Mapping[str, Any]]
) -> tuple[Comparison, ...]:
    rows = []
    for algorithm, (figure, _published, share) in _PUBLISHED.items():
        own = [found[-1] for setting, found in told if setting.algorithm == algorithm]
        each = [float(got["bits"]) / got["rank"] for got in own]
        errors = [float(got["error"]) / got["rank"] for got in own]
        free = [got["free"] for got in own]
        truth = gaussian_information(1, what.users[-1]).bits
        rows.append(
            Comparison(
                f"{page.SOURCE}{figure}",
                f"over models and data sets, {NAMES[algorithm]}, N = {what.users[-1]}",
                f"grows with the model, less than in proportion; {share}, more than 20 users",
                f"{min(each):.4f} to {max(each):.4f} bits a direction for all "
                f"{len(own)} models (± {max(errors):.4f}; Gaussian truth {truth:.4f}): only the "
                f"number of directions grows, {min(free):,} to {max(free):,} free coordinates",
                f"{page.UNITS}. Which of a large model's coordinates vary independently decides, "
                "and no number of samples here could show it; CIFAR-10 is a part of the data set",
            )
        )
    return tuple(rows)
