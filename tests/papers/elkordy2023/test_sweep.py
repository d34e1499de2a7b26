"""The sweeps of the published experiments on mutual information, in small: their shapes."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors.finding import PerClient
from leakmeter.auditors.information.draws import DrawPlan, Draws, measure
from leakmeter.auditors.information.theory import gaussian_information
from leakmeter.papers.base import audited_run
from leakmeter.papers.elkordy2023 import page
from leakmeter.papers.elkordy2023.measure import (
    DIGITS,
    FEDERATION,
    NAMES,
    Point,
    cell_of,
    critics,
    look,
    noised_accuracies,
    sampler_of,
)
from leakmeter.papers.elkordy2023.mine_estimator import estimator as mine
from leakmeter.papers.elkordy2023.sweep import others
from tests.papers.small import Reproduced, scales_of

TINY = replace(
    DIGITS, dataset="synthetic", synthetic_examples=600, mi_draws=40, mi_rank=5
)  # 30 records per client


def values(sweep: page.Sweep, name: str) -> list[Any]:
    """Return the values that something takes in a sweep, in order."""
    return list(dict.fromkeys(at[name] for at in sweep.points()))


def test_information_falls_with_the_users_like_one_over_n(reproduced: Reproduced) -> None:
    small, asked = reproduced("mi-users"), reproduced.scale("mi-users")
    table, cells = small.table, small.cells
    for algorithm, game in product(NAMES, ("independent", "rerun")):
        config = replace(asked.config, algorithm=algorithm, lrt_game=game)
        found = [cells[f"{cell_of(config)}-N{n}"] for n in (2, 5, 10, 20)]
        bits = [f["bits"] for f in found]
        assert bits == sorted(bits, reverse=True)
        # In a large sum the mean over users hardly depends on anything but N.
        few, many = found[1]["mean"], found[3]["mean"]
        assert few / many == pytest.approx(math.log(5 / 4) / math.log(20 / 19), rel=0.06)
        if game == "independent":
            assert all(abs(f["bits"] - f["gaussian"]) < 4 * f["error"] for f in found)
    # Ten of twenty collude: the others hide as well as ten do.
    helped = cells[f"{cell_of(asked.config)}-N20-colluding10"]
    truth = gaussian_information(asked.config.mi_rank, 10).bits
    assert helped["mean"] == pytest.approx(truth, rel=0.05)
    assert len(table.rows) == 6 * 4 + 3
    # FedSGD uses 8 of 1,433 records: two users were said to reveal up to 292 bits about a batch.
    column = table.columns.index("all coordinates")
    assert table.rows[0][:5] == ("FedSGD", "digits", "linear", "independent", 2)
    assert float(table.rows[0][column]) == pytest.approx(math.log2(math.comb(1440, 8)), rel=0.01)
    assert len(table.figures["users.svg"][0].lines) == 7


def test_critics_find_as_much_where_there_is_nothing_and_little_held_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mine, "Training", partial(mine.Training, steps=80))
    found = critics(replace(TINY, lrt_game="rerun"), 2, draws=40, count=2)
    assert found["trained"] < 1.5 * found["shuffled"]
    assert found["held_out"] < found["log_draws"] == pytest.approx(math.log2(40))


def test_information_per_record_falls_with_the_batch_and_so_it_does_under_noise(
    reproduced: Reproduced,
) -> None:
    small, sweep = reproduced("mi-batch"), reproduced.scale("mi-batch")
    cells = small.cells
    for algorithm in NAMES:
        config = replace(sweep.config, algorithm=algorithm)
        keys = [
            f"{cell_of(replace(config, batch_size=b))}-N10" for b in values(sweep, "batch_size")
        ]
        noised = [cells[f"{key}-noise"]["mean"] for key in keys]
        assert noised == sorted(noised, reverse=True)
        if algorithm != "fedprox":  # it holds updates near the model whatever the batch
            assert noised[-1] < 0.5 * noised[0]
        for key in keys:  # without noise scaling an update changes nothing
            assert abs(cells[key]["bits"] - cells[key]["gaussian"]) < 4 * cells[key]["error"]
    per_record = [float(row[5]) for row in small.table.rows if row[0] == "FedSGD"]
    assert per_record[0] / per_record[-1] == pytest.approx(8, rel=0.35)  # batches of 4 and 32


def test_information_grows_with_epochs_less_than_in_proportion(reproduced: Reproduced) -> None:
    cells, sweep = reproduced("mi-epochs").cells, reproduced.scale("mi-epochs")
    epochs = values(sweep, "epochs")
    for algorithm in ("fedavg", "fedprox"):
        config = replace(sweep.config, algorithm=algorithm)
        means = [cells[f"{cell_of(replace(config, epochs=e))}-N10-noise"]["mean"] for e in epochs]
        for (few, less), (many, more) in pairwise(zip(epochs, means, strict=True)):
            assert less < more < many / few * less
        assert means[-1] < gaussian_information(config.mi_rank, 10).bits


def test_unlike_clients_stand_out_and_are_hidden_by_more_users(reproduced: Reproduced) -> None:
    small, asked = reproduced("mi-heterogeneity"), reproduced.scale("mi-heterogeneity")
    table, cells, config = small.table, small.cells, asked.config
    key = f"digits{{}}-fedavg-B8-E1-rerun-{config.mi_draws}x{config.mi_rank}-N{{}}"
    skews = {"-dirichlet0.5": 2.0, "-clients-dirichlet0.5": 1.2}  # by label sizes differ too
    for users, (skew, times) in product((5, 10, 20), skews.items()):
        skewed, even = (cells[key.format(name, users)] for name in (skew, ""))
        assert skewed["largest"] > times * even["largest"]
        assert skewed["largest"] / skewed["smallest"] > times * even["largest"] / even["smallest"]
    for skew in (*skews, ""):
        means = [cells[key.format(skew, users)]["mean"] for users in (2, 5, 10, 20)]
        assert means == sorted(means, reverse=True)
    alphas = [page.number(alpha) for alpha in values(asked, "dirichlet")]
    assert [row[2] for row in table.rows[::4]] == [*alphas, *alphas]
    # By client all have as many records, as in the paper.
    held = {cells[key.format("-clients-dirichlet0.5", users)]["records"] for users in (2, 20)}
    assert held == {cells[key.format("", 2)]["records"]}


def test_noise_after_the_sum_hides_the_more_the_larger_it_is(reproduced: Reproduced) -> None:
    small, asked = reproduced("mi-dp"), reproduced.scale("mi-dp")
    table, cells, name, users = small.table, small.cells, cell_of(asked.config), (2, 20)
    epsilons = ("10", "500", "inf")
    grid = np.array([[cells[f"{name}-N{n}-eps{e}"]["mean"] for n in users] for e in epsilons])
    assert (np.diff(grid, axis=0) > 0).all()
    assert (np.diff(grid, axis=1) < 0).all()
    # Where noise drowns the sum, a client's share of it falls as 1/N².
    assert grid[0, 0] / grid[0, -1] == pytest.approx(100, rel=0.15)
    assert cells[f"{name}-norm"] < 1  # clipping the aggregate to 1 would change nothing
    # The axis says how many of the directions it has.
    free = cells[f"{name}-N2-epsinf"]["free"]
    axis = table.figures["noise.svg"][0].y_label
    assert axis == f"bits along {asked.config.mi_rank} of {free} directions"
    # And it costs accuracy, whoever takes part.
    for n in users:
        drowned, _, clear = (
            np.mean(cells[f"digits-fedsgd-B8-E1-independent-N{n}-eps{e}-accuracy-30x1"])
            for e in epsilons
        )
        assert clear > 0.5 > drowned


def test_noise_ends_learning() -> None:
    config = replace(TINY, lr=0.5)
    calm, drowned = (
        noised_accuracies(config, 3, std, 1.0, rounds=30, plays=1)[0] for std in (0.0, 5.0)
    )
    assert calm > 0.5 > 0.3 > drowned


@pytest.mark.slow
def test_models_differ_by_their_directions_alone(reproduced: Reproduced) -> None:
    small = reproduced("mi-models")
    table = small.table
    models = ["linear", "slp", "mlp", "slp", "mlp"]
    assert [row[2] for row in table.rows] == [model for model in models for _ in range(2)]
    assert [row[0] for row in table.rows] == ["FedSGD"] * 6 + ["FedAvg"] * 4
    for name, found in small.cells.items():
        users = int(name.rpartition("N")[2])
        truth = gaussian_information(found["rank"], users).bits
        assert abs(found["bits"] - truth) < 4 * found["error"]
    # Free coordinates grow with the model, and with them what all of them would tell.
    free = {row[2]: row[table.columns.index("free coordinates")] for row in table.rows}
    assert free["linear"] < free["mlp"]


def test_a_writer_is_hidden_by_more_writers(reproduced: Reproduced) -> None:
    small = reproduced("mi-writers")
    assert [row[1] for row in small.table.rows] == [2, 5, 20]
    means = [float(row[3]) for row in small.table.rows]
    assert means == sorted(means, reverse=True)
    assert len({cell["records"] for cell in small.cells.values()}) == 1  # always the same target
    two, other = (others(5, 40, i) for i in (0, 1))
    assert two != other
    assert 0 not in two
    assert len(set(two)) == 4


def test_critics_find_little_in_many_dimensions_and_as_much_where_there_is_nothing(
    reproduced: Reproduced,
) -> None:
    small, asked = reproduced("mine-dimension"), reproduced.scale("mine-dimension")
    dims, size = values(asked, "d"), asked.fixed
    own = f"{size['pairs']}x{size['critics']}x{size['steps']}-rank{size['most']}"
    one, many = (small.cells[f"d{d}-{own}"] for d in dims)
    assert (one["truth"], many["truth"]) == pytest.approx((0.5, dims[1] / 2))
    # One coordinate: it finds something, and more than where pairs are shuffled.
    assert one["held_out"] > 0.1
    assert one["trained"] > one["shuffled"]
    # Many: next to nothing of all bits, as much on shuffled pairs, and nothing held out.
    assert many["trained"] < 1.5 * many["shuffled"]
    assert many["trained"] < 0.2 * many["truth"]
    assert many["held_out"] < 1.0 < math.log2(size["pairs"])
    for found in (one, many):  # the log-determinant is right along its coordinates
        assert abs(found["bits"] - found["truth_there"]) < 4 * found["error"]
    assert [row[0] for row in small.table.rows] == dims


@pytest.mark.slow
def test_critics_look_at_every_round_of_a_run(reproduced: Reproduced) -> None:
    small, asked = reproduced("mine-rounds"), reproduced.scale("mine-rounds")
    for steps in values(asked, "mine_steps"):
        found = small.cells[f"digits-N5-T3-K8-steps{steps}"]
        assert len(found["mine"]) == len(found["logdet"]) == 3
        assert found["mean"] == pytest.approx(np.mean(found["mine"]))
        assert found["pairs"] == 8 * 5
        assert found["gaussian"] == pytest.approx(gaussian_information(2, 5).bits)
        assert np.mean(found["logdet"]) == pytest.approx(found["gaussian"], rel=0.2)
        assert found["free"] == 9 * 65  # the last class follows from the others


def test_a_run_of_the_command_line_and_the_experiments_measure_the_same() -> None:
    config = replace(scales_of("mine-rounds")["small"].config, rounds=1, mi_draws=8)
    outcome, _ = audited_run(replace(config, auditors="mutual-information"))
    audited = next(one for one in outcome.findings if one.quantity == "mutual information")
    (per_client,) = audited.details
    assert isinstance(per_client, PerClient)
    # The same federation as `look` has it, at the initial model, with the auditor's own stream.
    sampler, model = sampler_of(DIGITS)
    measured = measure(
        Draws(sampler, model, per_client.clients),
        target=None,
        plan=DrawPlan(draws=8, rank=2),
        stream=("mutual-information", config.seed, 1),
        seed=config.seed,
    )
    assert audited.value == pytest.approx(measured.figure.bits, rel=1e-6)


def test_a_figure_is_a_function_of_the_federation_alone() -> None:
    assert look(TINY, 3) == look(TINY, 3) == look(TINY, 3, others=[1, 2])
    assert look(TINY, 3) != look(replace(TINY, lr=0.2, algorithm="fedavg"), 3)
    assert look(TINY, 3) != look(TINY, 3, others=[5, 9])


@pytest.mark.parametrize(
    ("changed", "bits", "share"),
    [
        ({}, 18144.0, 1.0),  # a batch of 32 at 567 bits
        ({"algorithm": "fedavg"}, 567.0, 1 / 1200),
        ({"dataset": "cifar10"}, 1403.0, 1 / 32),
    ],
)
def test_the_papers_axis_is_for_images_it_has_an_entropy_of(
    changed: dict[str, Any], bits: float, share: float
) -> None:
    found = {"records": 1200}
    assert Point(replace(FEDERATION, **changed), found).share(bits) == pytest.approx(share)
    unknown = Point(TINY, found).share(bits)
    assert math.isnan(unknown)
    assert page.percent(unknown) == ""


def test_numbers_are_short_and_infinity_survives_a_cell() -> None:
    assert [page.number(v) for v in (0.12345, 5000.0, "inf")] == ["0.123", "5,000", "∞"]
    points = [Point(TINY, {"users": n}) | {"bits": b} for n, b in ((1, 1.0), (2, "inf"), (3, 2.0))]
    assert page.line("a", points, lambda at: at["bits"]).x == [1, 3]
