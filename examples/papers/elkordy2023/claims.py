"""What the paper says of single rounds, beside what was found in them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import itemgetter

from leakmeter.auditors.information.theory import gaussian_information
from leakmeter.papers.base import Comparison
from leakmeter.papers.elkordy2023 import page
from leakmeter.papers.elkordy2023.measure import Point
from leakmeter.papers.elkordy2023.page import SOURCE, Points, number, plus_minus

# Figure, what the paper says of it, and of more than 20 users over all models, on its own axis.
_OVER_USERS = {
    "FedSGD": (
        "Fig. 3",
        "falls as N grows; below 2 % of a batch's entropy for more than 20 users",
        "CIFAR-10 above MNIST, below 5 % and 2 %",
    ),
    "FedAvg": (
        "Fig. 4",
        "falls about as 1/N; below 0.1 % of the client's data, more than 20 users",
        "below 0.1 % on both",
    ),
    "FedProx": (
        "Fig. 5",
        "falls about as 1/N; below 0.12 %, more than 20 users",
        "below 0.12 % on both",
    ),
}
# The same over batches and local epochs: figure, and what it shows.
_OVER_VALUES = {
    ("batch_size", "FedSGD"): (
        "Fig. 6",
        "as 1/B: around 4 % of a batch's entropy at B = 16, below 1 % at 256, more than 20 users",
    ),
    ("batch_size", "FedAvg"): ("Fig. 7", "0.8 % of the client's data at B = 16, 0.3 % at 256"),
    ("batch_size", "FedProx"): ("Fig. 8", "0.09 % of the client's data at B = 16, 0.04 % at 256"),
    ("epochs", "FedAvg"): ("Fig. 11", "grows with E, less than in proportion"),
    ("epochs", "FedProx"): ("Fig. 12", "grows with E, less than in proportion"),
}
_WHY = {
    "batch_size": "No fall in bits is shown: without noise, a smaller update of the same shape is "
    "as easy to recognise. FedSGD's axis falls because it is divided by B. Under a fixed noise the "
    "bits fall for all three",
    "epochs": "No growth without noise is shown: there the bits do not depend on the length of "
    "updates. Under a fixed noise longer updates reveal more",
}


def over_users(points: Points) -> Iterator[Comparison]:
    """Compare how information falls, and what critics read off."""
    fresh = [at for at in points if at["game"] == "independent" and not at["colluding"]]
    for name, own in page.grouped(fresh, page.ALGORITHM).items():
        first, last = own[0], own[-1]
        at = next(at for at in own if at["users"] == 20)
        yield Comparison(
            f"{SOURCE}{_OVER_USERS[name][0]}",
            f"information in the sum over N = {first['users']} to {last['users']} users, {name}, "
            "linear model on MNIST, game independent",
            _OVER_USERS[name][1],
            f"falls from {plus_minus(first)} to {plus_minus(last)} bits along "
            f"{at['mi_rank']} directions, as log(N/(N - 1)); if all {at['free']:,} free "
            f"coordinates were Gaussian, {at.whole_bits:.0f} bits at N = 20, "
            f"{100 * at.share(at.whole_bits):.2g} % of the paper's entropy",
            "The paper estimates its bits by MINE, and also the entropy that divides them",
        )
    neural = [at for at in points if "trained" in at.found]
    read, null, held = (
        ", ".join(f"{at[name]:.1f}" for at in neural)
        for name in ("trained", "shuffled", "held_out")
    )
    yield Comparison(
        f"{SOURCE}Fig. 3",
        f"a MINE of the paper's size, 1,000 steps of Adam on {points[0]['pairs']:,} pairs, "
        f"game rerun, N = {page.joined(neural, page.USERS)}",
        "its MINE estimate falls with N; the text states neither K nor the optimiser",
        f"{read} bits on training pairs; {null} on shuffled pairs, which share nothing; {held} "
        "held out",
        "On training pairs MINE mostly memorises. Held out, it finds a few bits for two users and "
        "nothing from ten on. The true information is the entropy of the batch for every N",
    )


def over_models(points: Points) -> Iterator[Comparison]:
    """Compare bits per direction in the largest sums."""
    users = points[-1]["users"]
    truth = gaussian_information(1, users).bits
    largest = [at for at in points if at["users"] == users]
    for name, own in page.grouped(largest, page.ALGORITHM).items():
        source, _, share = _OVER_USERS[name]
        each = [at["bits"] / at["rank"] for at in own]
        error = max(at["error"] / at["rank"] for at in own)
        free = [at["free"] for at in own]
        yield Comparison(
            f"{SOURCE}{source}",
            f"over models and data sets, {name}, N = {users}, game independent",
            f"grows with the model, less than in proportion; {share}, more than 20 users",
            f"{min(each):.4f} to {max(each):.4f} bits per direction in {len(own)} models "
            f"(± {error:.4f}; Gaussian truth {truth:.4f}); only the number of directions grows, "
            f"with {min(free):,} to {max(free):,} free coordinates",
            "Our samples cannot show how many coordinates of a large model vary independently",
        )


def over_values(field: str, what: str, points: Points) -> Iterator[Comparison]:
    """Compare the first and the last value of what is swept."""
    groups = page.grouped(points, lambda at: (at.algorithm, at["users"]))
    for (name, users), (first, *_, last) in groups.items():
        source, published = _OVER_VALUES[field, name]
        less, more = (at["noised"]["bits"] for at in (first, last))
        yield Comparison(
            f"{SOURCE}{source}",
            f"information over {what} of {first[field]} to {last[field]}, {name}, N = {users}, "
            "game independent",
            published,
            f"{plus_minus(first)} and {plus_minus(last)} bits without noise; per record used "
            f"{number(first.per_record)} and {number(last.per_record)}; under a fixed noise "
            f"{number(less)} and {number(more)}, {more / less:.2g} times as much",
            _WHY[field],
        )


def alpha(at: Point) -> str:
    """Return the concentration of the clients' label shares."""
    return f"α = {number(at['dirichlet'])}"


# How the sum weights clients.
_WEIGHTS = {
    "dirichlet": "All clients have as many records and weigh the same",
    "dirichlet-labels": "The sum weights clients by their records",
}


def over_skews(points: Points) -> Iterator[Comparison]:
    """Compare whether information falls with the users, and how far users differ."""
    for skew, own in page.grouped(points, itemgetter("partition")).items():
        cases = list(page.grouped(own, itemgetter("epochs", "dirichlet")).values())
        mean, largest = (sum(_falls(case, name) for case in cases) for name in ("mean", "largest"))
        few, many = own[0]["users"], own[-1]["users"]
        ends = [at for at in own if at["users"] == many and at["dirichlet"] in (1.0, math.inf)]
        yield Comparison(
            f"{SOURCE}Fig. 13",
            f"information over N = {few} to {many}, FedAvg, {page.SKEWS[skew]}: 1, 10, 100, ∞; "
            f"E = {', '.join(map(str, page.grouped(own, itemgetter('epochs'))))}, game rerun",
            "falls with N for every α, E = 1 and 5; no spread over users is given",
            f"falls at every step in {mean} of {len(cases)} cases on average over the users, and "
            f"in {largest} for the most exposed user. Most and least exposed of {many}: "
            f"{page.joined(ends, _extremes, '; ')} bits",
            "Users who differ from the others stand out, so one user cannot stand for all. At "
            f"α = ∞ much of the spread is estimation error. {_WEIGHTS[skew]}",
        )


def _extremes(at: Point) -> str:
    most, least = number(at["largest"]), number(at["smallest"])
    return f"{alpha(at)}, E = {at['epochs']}: {most} and {least}"


def _falls(points: Points, name: str) -> bool:
    """Return whether each figure is less than that of fewer users."""
    column = [at[name] for at in points]
    return column == sorted(column, reverse=True)


def over_writers(points: Points) -> Iterator[Comparison]:
    """Compare whether information falls, for one writer and for all on average."""
    told: dict[str, list[str]] = {"bits": [], "mean": []}
    for name, parts in told.items():
        for epochs, own in page.grouped(points, itemgetter("epochs")).items():
            falls = "falls at every step" if _falls(own, name) else "does not fall at every step"
            parts.append(f"E = {epochs}: {page.joined(own, page.figure(name))} bits, {falls}")
    rank, sums = points[0]["mi_rank"], page.grouped(points, itemgetter("users"))
    ranks = {users: min(at["rank"] for at in own) for users, own in sums.items()}
    fewer = "".join(f" ({r} for {users} users)" for users, r in ranks.items() if r < rank)
    yield Comparison(
        f"{SOURCE}Fig. 14",
        f"leakage of one writer, N = {', '.join(map(str, sums))} users, FedAvg, E = 1 and 5, game "
        "rerun",
        "falls as N grows",
        f"{'; '.join(told['bits'])}, along {rank} directions{fewer}, mean of "
        f"{points[0]['cohorts']} draws of the others. On average over all users in the sum: "
        f"{'; '.join(told['mean'])}",
        "The bits of one writer vary several-fold with the other writers in the sum, more than "
        "between some N. The sum weights writers by their images. The paper divides by "
        f"{176 * 678:,} bits, 176 images at its own neural estimate of 678",
    )


def over_noise(points: Points) -> Iterator[Comparison]:
    """Compare what small and large sums reveal under noise, and the accuracy that it leaves."""
    found = {(at["epsilon"], at["users"]): at for at in points}
    seen, last = points[0], points[-1]["users"]

    def shares(users: int) -> str:
        most, least = (found[epsilon, users] for epsilon in (5000.0, 5.0))
        parts = (f"{100 * at.share(at['mean']):.2g} %" for at in (most, least))
        return f"{' to '.join(parts)} along {seen['rank']} of {seen['free']:,} directions"

    def accuracy(epsilon: float) -> str:
        return f"{100 * found[epsilon, last]['accuracy']:.0f} %"

    yield Comparison(
        f"{SOURCE}Fig. 16 (a)",
        f"leakage from ε = 5,000 to ε = 5, N = {seen['users']} users, game independent",
        "0.234 % to 0.056 %",
        shares(seen["users"]),
        "At ε = 5 the noise is 0.76 per coordinate of a mean that varies by some thousandths, so "
        "next to nothing is left. On shuffled pairs, which share nothing, MINE finds 6 bits "
        "(0.034 %) in mi-users",
    )
    yield Comparison(
        f"{SOURCE}Fig. 16 (a)",
        f"the same in large sums, N = {last:,} users, game independent",
        "0.046 % to 0.034 %: the gain from more noise diminishes with the users",
        f"{shares(last)}: the gain grows with the users",
        "A client's part of the mean shrinks as 1/N while the noise stays, so the bits fall as "
        "1/N² where noise dominates. The paper's values are about as large as what MINE finds on "
        "shuffled pairs",
    )
    yield Comparison(
        f"{SOURCE}Fig. 16 (b)",
        f"accuracy with noise in every round, N = {last:,}, {seen['rounds']} rounds of FedSGD",
        "ε = 10: below 50 %; ε = 5,000: above 90 %",
        f"ε = 10: {accuracy(10.0)}; ε = 5,000: {accuracy(5000.0)}; without noise "
        f"{accuracy(math.inf)}",
        "Without noise our accuracy is no better. The paper does not state its number of rounds",
    )
