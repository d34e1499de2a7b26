"""The sweeps of the published experiments on mutual information, in small: their shapes."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors.details import PerClient
from leakmeter.auditors.information import gaussian_information
from leakmeter.auditors.information.measure import Look, measure
from leakmeter.auditors.information.mine import estimator as mine
from leakmeter.fl_app.experiments.base import audited_run
from leakmeter.fl_app.experiments.elkordy2023 import dp as mi_dp
from leakmeter.fl_app.experiments.elkordy2023 import page as mi_page
from leakmeter.fl_app.experiments.elkordy2023 import writers as mi_writers
from leakmeter.fl_app.experiments.elkordy2023.accumulated import Run, accumulated, accuracies
from leakmeter.fl_app.experiments.elkordy2023.measure import (
    NAMES,
    SEED,
    Setting,
    critics,
    look,
    paper_share,
    sampler_of,
)
from leakmeter.fl_app.experiments.elkordy2023.rounds import growth
from tests.fl_app.experiments.small import Reproduced, scales_of

TINY = Setting("synthetic", clients=20, batch_size=8, draws=40, rank=5, synthetic_examples=600)


def test_information_falls_with_the_users_like_one_over_n(reproduced: Reproduced) -> None:
    small, asked = reproduced("mi-users"), reproduced.scale("mi-users")
    table, cells, first = small.table, small.cells, asked.settings[0]
    assert {(s.algorithm, s.game) for s in asked.settings} == set(
        product(NAMES, ("independent", "rerun"))
    )
    for setting in asked.settings:
        found = [cells[f"{setting.cell}-N{n}"] for n in asked.users]
        bits = [f["bits"] for f in found]
        assert bits == sorted(bits, reverse=True)
        # In a large sum the mean over users hardly depends on anything but N.
        few, many = found[1]["mean"], found[3]["mean"]
        assert few / many == pytest.approx(math.log(5 / 4) / math.log(20 / 19), rel=0.06)
        if setting.game == "independent":
            for f in found:
                assert abs(f["bits"] - f["gaussian"]) < 4 * f["error"]
    # Ten of twenty collude: the others hide as well as ten do.
    helped = cells[f"{first.cell}-N20-colluding10"]
    assert helped["mean"] == pytest.approx(gaussian_information(first.rank, 10).bits, rel=0.05)
    assert len(table.rows) == 6 * 4 + 2
    # FedSGD uses 8 of 1,433 records: two users were said to reveal up to 292 bits about a batch.
    column = table.columns.index("all coordinates")
    assert table.rows[0][:5] == ("FedSGD", "digits", "linear", "independent", 2)
    assert float(table.rows[0][column]) == pytest.approx(math.log2(math.comb(1440, 8)), rel=0.01)
    assert len(table.figures["users.svg"][0].lines) == 7


def test_critics_find_as_much_where_there_is_nothing_and_little_held_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mine, "Training", partial(mine.Training, steps=80))
    found = critics(replace(TINY, game="rerun"), 2, draws=40, count=2)
    assert found["trained"] < 1.5 * found["shuffled"]
    assert found["held_out"] < found["log_draws"] == pytest.approx(math.log2(40))


def test_information_per_record_falls_with_the_batch_and_so_it_does_under_noise(
    reproduced: Reproduced,
) -> None:
    small = reproduced("mi-batch")
    table, cells = small.table, small.cells
    sweep = reproduced.scale("mi-batch")
    for algorithm in sweep.algorithms:
        setting = replace(sweep.setting, algorithm=algorithm)
        keys = [f"{replace(setting, batch_size=b).cell}-N10" for b in sweep.values]
        noised = [cells[f"{key}-noise"]["mean"] for key in keys]
        assert noised == sorted(noised, reverse=True)
        assert noised[-1] < 0.5 * noised[0]
        for key in keys:  # without noise scaling an update changes nothing
            assert abs(cells[key]["bits"] - cells[key]["gaussian"]) < 4 * cells[key]["error"]
    per_record = [float(row[5]) for row in table.rows if row[0] == "FedSGD"]
    assert per_record[0] / per_record[-1] == pytest.approx(8, rel=0.35)  # batches of 4 and 32


def test_information_grows_with_epochs_less_than_in_proportion(reproduced: Reproduced) -> None:
    cells, sweep = reproduced("mi-epochs").cells, reproduced.scale("mi-epochs")
    for algorithm in ("fedavg", "fedprox"):
        setting = replace(sweep.setting, algorithm=algorithm)
        means = [
            cells[f"{replace(setting, epochs=e).cell}-N10-noise"]["mean"] for e in sweep.values
        ]
        for (few, less), (many, more) in pairwise(zip(sweep.values, means, strict=True)):
            assert less < more < many / few * less
        assert means[-1] < gaussian_information(setting.rank, 10).bits


def test_unlike_clients_stand_out_and_are_hidden_by_more_users(reproduced: Reproduced) -> None:
    small, asked = reproduced("mi-heterogeneity"), reproduced.scale("mi-heterogeneity")
    table, cells = small.table, small.cells
    key = f"digits{{}}-fedavg-B8-E1-rerun-{asked.setting.draws}x{asked.setting.rank}-N{{}}"
    skews = {"-dirichlet0.5": 2.0, "-clients-dirichlet0.5": 1.2}  # by label sizes differ too
    for users, (skew, times) in product((5, 10, 20), skews.items()):
        skewed, even = (cells[key.format(name, users)] for name in (skew, ""))
        assert skewed["largest"] > times * even["largest"]
        assert skewed["largest"] / skewed["smallest"] > times * even["largest"] / even["smallest"]
    for skew in (*skews, ""):
        means = [cells[key.format(skew, users)]["mean"] for users in (2, 5, 10, 20)]
        assert means == sorted(means, reverse=True)
    alphas = [mi_page.number(c) for c in asked.concentrations]
    assert [row[2] for row in table.rows[::4]] == [*alphas, *alphas]
    # By client all have as many records, as in the paper.
    held = {cells[key.format("-clients-dirichlet0.5", users)]["records"] for users in (2, 20)}
    assert held == {cells[key.format("", 2)]["records"]}


def test_noise_after_the_sum_hides_the_more_the_larger_it_is(reproduced: Reproduced) -> None:
    small, asked = reproduced("mi-dp"), reproduced.scale("mi-dp")
    table, cells = small.table, small.cells
    grid = np.array(
        [
            [cells[f"{asked.setting.cell}-N{n}-eps{e}"]["mean"] for n in asked.users]
            for e in ("10", "500", "inf")
        ]
    )
    assert (np.diff(grid, axis=0) > 0).all()
    assert (np.diff(grid, axis=1) < 0).all()
    # Where noise drowns the sum, a client's share of it falls as 1/N².
    assert grid[0, 0] / grid[0, -1] == pytest.approx(100, rel=0.15)
    assert "clipping the aggregate to 1 changes nothing" in table.notes[-1]
    # The axis says how many of the directions it has.
    free = cells[f"{asked.setting.cell}-N2-epsinf"]["free"]
    axis = table.figures["noise.svg"][0].y_label
    assert axis == f"bits along {asked.setting.rank} of {free} directions"
    # And it costs accuracy, whoever takes part.
    for users in asked.users:
        drowned, _, clear = (
            np.mean(cells[f"digits-fedsgd-B8-E1-independent-N{users}-eps{e}-accuracy-30x1"])
            for e in ("10", "500", "inf")
        )
        assert clear > 0.5 > drowned


def test_rounds_add_up_for_those_who_take_part(reproduced: Reproduced) -> None:
    small, asked = reproduced("mi-rounds"), reproduced.scale("mi-rounds")
    found = {
        name: small.cells[f"{replace(asked.setting, algorithm=algorithm).key}-{run.cell}"]
        for name, (algorithm, run) in asked.runs.items()
    }
    whole, sampled, helped = (
        found[name] for name in ("FedAvg", "FedAvg, sampled", "FedAvg, collusion")
    )
    for each in (whole, helped):
        assert each[-1]["bits"] > each[0]["bits"] + 2 * each[-1]["error"]
        assert each[-1]["bits"] < 4 * each[0]["bits"] + 2 * each[-1]["error"]
        assert all(f["bits"] < f["corollary"] for f in each)
        assert each[0]["bits"] == pytest.approx(each[0]["single"])
    assert helped[-1]["bits"] > whole[-1]["bits"] + whole[-1]["error"]
    assert whole[-1]["bits"] > found["FedSGD"][-1]["bits"]
    run = asked.runs["FedAvg"][1]
    assert [f["corollary"] for f in whole] == pytest.approx(
        [t * gaussian_information(run.rank, 3).bits for t in (1, 2, 3, 4)]
    )
    # With a cohort of two in three the target misses a round, which reveals nothing about it.
    taken = [0 in cohort for cohort in replace(run, cohort=2).cohorts()]
    assert sampled[-1]["participations"] == sum(taken) < 4
    assert sampled[-1]["expected"] == pytest.approx(
        4 * 2 / 3 * gaussian_information(run.rank, 2).bits
    )
    assert len(small.table.rows) == 4 * 4


def test_a_target_that_never_takes_part_is_not_revealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "cohorts", lambda _: [[1, 2]])
    (found,) = accumulated(TINY, Run(users=3, rounds=1, pairs=60, rank=2, cohort=2))
    assert (found["participations"], found["corollary"], found["bits"]) == (0, 0.0, 0.0)


def test_growth_is_named_only_where_it_is_shown() -> None:
    def after(rounds: int, bits: float, error: float, null: float = 0.1) -> dict[str, Any]:
        return {"rounds": rounds, "bits": bits, "error": error, "null": null}

    one = after(1, 0.5, 0.01)
    assert growth(one, after(10, 0.05, 0.03)).startswith("nothing is shown")
    assert growth(one, after(10, 0.52, 0.03)) == "no growth is shown"
    assert "and no departure from it is shown" in growth(one, after(10, 4.9, 0.05))
    assert growth(one, after(10, 2.0, 0.05)).startswith("grows less than in proportion")


def test_critics_look_at_every_round_of_a_run(reproduced: Reproduced) -> None:
    small, asked = reproduced("mine-rounds"), reproduced.scale("mine-rounds")
    for steps in asked.steps:
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
    sampler, model = sampler_of(Setting("digits", clients=20, batch_size=8, lr=0.1))
    measured = measure(
        sampler,
        model,
        per_client.clients,
        target=None,
        look=Look(draws=8, rank=2),
        stream=("mutual-information", config.seed, 1),
        seed=config.seed,
    )
    assert audited.value == pytest.approx(measured.figure.bits, rel=1e-6)
    assert config.seed == SEED


def test_a_figure_is_a_function_of_the_setting_alone() -> None:
    assert look(TINY, 3) == look(TINY, 3)
    assert look(TINY, 3) != look(replace(TINY, lr=0.2, algorithm="fedavg"), 3)


def test_the_papers_axis_is_for_images_it_has_an_entropy_of() -> None:
    mnist = Setting("mnist")
    assert paper_share(mnist, 18144.0, 1200) == 1.0  # a batch of 32 at 567 bits
    assert paper_share(replace(mnist, algorithm="fedavg"), 567.0, 1200) == pytest.approx(1 / 1200)
    assert paper_share(replace(mnist, dataset="cifar10"), 1403.0, 1000) == pytest.approx(1 / 32)
    assert paper_share(TINY, 1.0, 30) is None


def test_numbers_are_short_and_infinity_survives_a_cell() -> None:
    assert [mi_page.number(v) for v in (0.12345, 5000.0, "inf")] == ["0.123", "5,000", "∞"]
    assert mi_page.line("a", [1, 2, 3], [1.0, "inf", 2.0]).x == [1, 3]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"colluding": 2}, r"colluding must be in \[0, users - 2 = 1\], got 2"),
        ({"cohort": 1}, r"cohort must be in \[2, users = 3\], got 1"),
        ({"pairs": 19}, "pairs .* must be at least 20, got 19"),
        ({"pairs": 22}, "rank must be at most 2 for so many pairs, got 3"),
    ],
)
def test_runs_that_cannot_be_are_refused(wrong: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Run(**({"users": 3, "rounds": 4, "pairs": 40, "rank": 3} | wrong))


def test_more_colluding_users_than_leave_the_target_hidden_are_refused() -> None:
    with pytest.raises(ValueError, match=r"colluding must be in \[0, users - 2 = 1\], got 2"):
        look(TINY, 3, colluding=2)


def test_models_differ_by_their_directions_alone(reproduced: Reproduced) -> None:
    small = reproduced("mi-models")
    table, cells = small.table, small.cells
    models = ["linear", "slp", "mlp", "slp", "mlp"]
    assert [row[2] for row in table.rows] == [model for model in models for _ in range(2)]
    assert [row[0] for row in table.rows] == ["FedSGD"] * 6 + ["FedAvg"] * 4
    for name, found in cells.items():
        users = int(name.rpartition("N")[2])
        truth = gaussian_information(found["rank"], users).bits
        assert abs(found["bits"] - truth) < 4 * found["error"]
    # Free coordinates grow with the model, and with them what all of them would tell.
    free = {row[2]: row[table.columns.index("free coordinates")] for row in table.rows}
    assert free["linear"] < free["mlp"]


def test_a_slow_algorithm_needs_more_rounds_and_a_bound_counts_them(reproduced: Reproduced) -> None:
    small = reproduced("mi-accuracy")
    table, cells = small.table, small.cells
    what = reproduced.scale("mi-accuracy")
    assert [row[0] for row in table.rows] == ["FedSGD"] * 8 + ["FedAvg"] * 3
    reached: dict[str, tuple[Any, ...]] = {}
    for row in table.rows:
        if float(row[table.columns.index("accuracy")]) >= what.target:
            reached.setdefault(row[0], row)
    slow, fast = reached["FedSGD"], reached["FedAvg"]
    assert slow[4] > fast[4]
    each = gaussian_information(2, 3).bits
    assert (float(slow[9]), float(fast[9])) == pytest.approx(
        (slow[4] * each, fast[4] * each), rel=0.01
    )
    assert len(cells) == 4


def test_accuracy_is_that_of_the_model_after_each_round() -> None:
    run = Run(users=3, rounds=6, pairs=40, rank=2)
    setting = replace(TINY, algorithm="fedavg", lr=0.5)
    (found,) = accuracies(setting, run, 1)
    assert len(found) == 6
    assert found[-1] > found[0] + 0.1
    assert accuracies(setting, run, 1) == [found]


def test_noise_ends_learning() -> None:
    calm, drowned = (
        mi_dp.accuracies(replace(TINY, lr=0.5), 3, std, 30, 1)[0] for std in (0.0, 5.0)
    )
    assert calm > 0.5 > 0.3 > drowned


def test_a_writer_is_hidden_by_more_writers(reproduced: Reproduced) -> None:
    small = reproduced("mi-writers")
    table, cells = small.table, small.cells
    assert [row[1] for row in table.rows] == [2, 5, 20]
    means = [float(row[3]) for row in table.rows]
    assert means == sorted(means, reverse=True)
    assert len({cell["records"] for cell in cells.values()}) == 1  # always the same target
    two, other = (mi_writers.others(5, 40, i) for i in (0, 1))
    assert two != other
    assert 0 not in two
    assert len(set(two)) == 4


def test_others_are_as_many_as_the_sum_says_and_not_the_target() -> None:
    assert look(TINY, 3, others=[1, 2]) == look(TINY, 3)
    assert look(TINY, 3, others=[5, 9]) != look(TINY, 3)
    for wrong in ([1], [0, 1]):
        with pytest.raises(ValueError, match=r"others must be 2 users but the target, got"):
            look(TINY, 3, others=wrong)
