"""Neural estimates: twins of the clever parts, Gaussian truth, its failures, and null data."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from leakmeter.auditors.information.theory import gaussian_information
from leakmeter.auditors.rng import stream
from leakmeter.papers.elkordy2023.mine_estimator.estimator import Spread, estimate, rotated
from leakmeter.papers.elkordy2023.mine_estimator.training import Training
from tests.helpers.numbers import first_fast

torch = pytest.importorskip("torch")

from leakmeter.auditors.information.neural import nwj  # noqa: E402
from leakmeter.papers.elkordy2023.mine_estimator.critics import (  # noqa: E402
    JointCritic,
    SeparableCritic,
    donsker_varadhan,
    info_nce,
    jensen_shannon,
    smile,
    split_table,
)
from leakmeter.papers.elkordy2023.mine_estimator.training import averaged_gain  # noqa: E402

Floats = NDArray[np.float64]
QUICK = Training(hidden=24, steps=200, rate=5e-3)


def gaussian_pairs(dim: int, users: int, draws: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Return draws of one user's update and of the sum over all."""
    rng = stream(seed, "pairs", dim, users)
    x = rng.standard_normal((draws, dim))
    return x, x + math.sqrt(users - 1) * rng.standard_normal((draws, dim))


def test_scores_equal_those_of_a_plain_concatenating_network() -> None:
    rngs = [stream(0, "weights", i) for i in range(2)]
    critic = JointCritic.drawn((3, 4), 8, 7, rngs)
    x, z = torch.randn(2, 6, 3), torch.randn(2, 6, 4)
    order = torch.stack([torch.randperm(6) for _ in range(2)])
    joint, strangers = critic.pairs(x, z, [order])
    table = critic.table(x, z)
    for model in range(2):
        w_x, w_z, b_1, w_2, b_2, w_3 = (w[model] for w in critic.weights)

        def plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            first = torch.relu(torch.cat([a, b], -1) @ torch.cat([w_x, w_z]) + b_1)  # noqa: B023
            return (torch.relu(first @ w_2 + b_2) @ w_3.T)[:, 0]  # noqa: B023

        assert torch.allclose(joint[model], plain(x[model], z[model]), atol=1e-5)
        assert torch.allclose(strangers[model], plain(x[model], z[model][order[model]]), atol=1e-5)
        for i in range(6):
            assert torch.allclose(table[model, i], plain(x[model][[i] * 6], z[model]), atol=1e-5)


def test_a_separable_critic_scores_each_pair_by_itself() -> None:
    critic = SeparableCritic.drawn((3, 4), 8, 7, [stream(0, "weights")])
    x, z = torch.randn(1, 5, 3), torch.randn(1, 5, 4)
    table = critic.table(x, z)
    moved = x.clone()
    moved[:, 0] += 1
    changed = critic.table(moved, z) != table
    assert changed[0, 0].all()
    assert not changed[0, 1:].any()


def ascended(critic: JointCritic, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Return the table of scores after 30 steps of plain ascent on the first 8 rows."""
    ascent = torch.optim.SGD(critic.weights, lr=0.05, maximize=True)
    line = torch.arange(8)[None]
    for step in range(30):
        ascent.zero_grad()
        pair = critic.pairs(x[:, :8], z[:, :8], [line.roll(1 + step % 7)])
        donsker_varadhan(*pair).sum().backward()
        ascent.step()
    return critic.table(x, z).detach()


def test_rotation_changes_no_score_under_plain_ascent() -> None:
    rng = stream(1, "wide")
    wide = [rng.standard_normal((12, 40)) for _ in range(2)]
    narrow = [np.asarray(rotated(rows), dtype=np.float64) for rows in wide]
    assert [rows.shape for rows in narrow] == [(12, 12)] * 2
    turns = [np.linalg.pinv(few) @ many for few, many in zip(narrow, wide, strict=True)]  # Q
    plain = JointCritic.drawn((40, 40), 6, 80, [rng])
    own = [w.detach().double().requires_grad_() for w in plain.weights]
    w_x, w_z, *rest = [w.detach().clone() for w in own]
    first = [(torch.tensor(q) @ w).requires_grad_() for q, w in zip(turns, (w_x, w_z), strict=True)]
    b_1, w_2, b_2, w_3 = (w.requires_grad_() for w in rest)
    scores = [
        ascended(critic, *(torch.tensor(rows)[None] for rows in data))
        for critic, data in (
            (JointCritic((own[0], own[1], own[2]), (own[3], own[4]), own[5]), wide),
            (JointCritic((first[0], first[1], b_1), (w_2, b_2), w_3), narrow),
        )
    ]
    assert torch.allclose(scores[0], scores[1], rtol=1e-8, atol=1e-8)
    assert scores[0].std() > 0.1  # and something was learnt


def test_narrow_samples_are_left_as_they_are() -> None:
    rows = stream(0, "narrow").standard_normal((9, 9))
    assert rotated(rows) is rows


def test_values_equal_their_definitions() -> None:
    table = torch.randn(2, 5, 5, dtype=torch.float64)
    joint, strangers = split_table(table)
    for model in range(2):
        t = table[model].numpy()
        off = t[~np.eye(5, dtype=bool)]
        np.testing.assert_array_equal(strangers[model].numpy(), off)
        mean = np.diag(t).mean()
        expected = {
            "dv": mean - np.log(np.exp(off).mean()),
            "nwj": mean - 0.3 - np.exp(off - 0.3).mean() + 1,
            "nce": np.mean([np.log(5 * np.diag(e) / e.sum(1)) for e in (np.exp(t), np.exp(t.T))]),
            "smile": mean - np.log(np.exp(off).clip(np.exp(-1), np.exp(1)).mean()),
            "js": -np.log1p(np.exp(-np.diag(t))).mean() - np.log1p(np.exp(off)).mean(),
        }
        offset = torch.full((2,), 0.3, dtype=torch.float64)
        found = {
            "dv": donsker_varadhan(joint, strangers),
            "nwj": nwj(joint, strangers, offset),
            "nce": info_nce(table),
            "smile": smile(joint, strangers, 1.0),
            "js": jensen_shannon(joint, strangers),
        }
        for name, value in expected.items():
            assert float(found[name][model]) == pytest.approx(value), name


def test_the_averaged_gradient_is_plain_when_the_average_is_of_this_step() -> None:
    scores = torch.randn(1, 6, dtype=torch.float64, requires_grad=True)
    joint = torch.zeros(1, 6, dtype=torch.float64)
    (plain,) = torch.autograd.grad(donsker_varadhan(joint, scores).sum(), scores)
    here = torch.logsumexp(scores.detach(), 1) - math.log(6)
    (same,) = torch.autograd.grad(averaged_gain(joint, scores, here).sum(), scores)
    assert torch.allclose(same, plain, rtol=1e-7, atol=1e-7)
    (other,) = torch.autograd.grad(averaged_gain(joint, scores, here + 1).sum(), scores)
    assert torch.allclose(other, plain / math.e, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("objective", first_fast(1, ["mine", "infonce", "smile"]))
def test_small_gaussian_information_is_found(objective: str) -> None:
    x, z = gaussian_pairs(2, 2, 800)
    quick = Training(objective=objective, hidden=24, steps=120, rate=5e-3)  # type: ignore[arg-type]
    found = estimate(x, z, seed=1, training=quick, seeds=3, nulls=2)
    truth = gaussian_information(2, 2).nats  # 0.69
    assert found.nwj.mean == pytest.approx(truth, abs=0.25)
    assert found.held_out.mean == pytest.approx(truth, abs=0.25)
    assert found.nwj.mean > max(found.null_nwj.values) + 0.2


@pytest.mark.slow
def test_mean_held_out_nwj_is_not_above_the_truth() -> None:
    # Fresh samples per repetition, since seeds on the same ones share their luck.
    truth = gaussian_information(3, 3).nats  # 0.61, below half of ln 400
    short = Training(hidden=16, steps=80, rate=8e-3)
    values = [
        estimate(*gaussian_pairs(3, 3, 400, i), seed=i, training=short, seeds=2, nulls=2).nwj.mean
        for i in range(6)
    ]
    assert np.mean(values) < truth + 3 * np.std(values, ddof=1) / math.sqrt(6)
    assert np.mean(values) > 0.2 * truth


def test_nothing_is_found_in_independent_data_except_on_the_training_samples() -> None:
    rng = stream(0, "apart")
    x, z = rng.standard_normal((400, 20)), rng.standard_normal((400, 20))
    found = estimate(x, z, seed=2, training=QUICK, seeds=3, nulls=4)
    assert found.trained.mean > 1.0  # the paper's figure, of nothing
    low, high = min(found.null_trained.values), max(found.null_trained.values)
    assert low - 0.7 < found.trained.mean < high + 0.7  # and the null says so
    assert found.last.mean < -0.5
    assert abs(found.nwj.mean) < 0.1
    assert max(abs(v) for v in found.null_nwj.values) < 0.15


@pytest.mark.slow
def test_many_dimensions_defeat_it_and_the_null_tells() -> None:
    x, z = gaussian_pairs(400, 2, 300)
    found = estimate(x, z, seed=3, training=QUICK, seeds=2, nulls=2)
    truth = gaussian_information(400, 2).nats  # 139 nats
    assert found.trained.mean < 0.1 * truth
    assert found.nwj.mean < found.log_samples < 0.1 * truth
    assert max(found.null_trained.values) > 0.5 * found.trained.mean


def test_equal_seeds_give_equal_estimates_and_others_differ() -> None:
    x, z = gaussian_pairs(2, 2, 60)
    short = Training(hidden=8, steps=10)
    first, again, other = (
        estimate(x, z, seed=s, training=short, seeds=2, nulls=2) for s in (4, 4, 5)
    )
    assert first == again
    assert first.nwj != other.nwj


def test_a_seed_does_not_depend_on_how_many_there_are() -> None:
    x, z = gaussian_pairs(2, 2, 60)
    short = Training(hidden=8, steps=10)
    few, many = (estimate(x, z, seed=4, training=short, seeds=n, nulls=n) for n in (2, 4))
    np.testing.assert_allclose(few.trained.values, many.trained.values[:2], atol=1e-5)
    np.testing.assert_allclose(few.null_nwj.values, many.null_nwj.values[:2], atol=1e-5)


def test_scaling_and_shifting_change_nothing() -> None:
    x, z = gaussian_pairs(2, 2, 60)
    short = Training(hidden=8, steps=10)
    plain = estimate(x, z, seed=4, training=short, seeds=2, nulls=2)
    moved = estimate(x * 1024 + 3, z / 1024 - 1, seed=4, training=short, seeds=2, nulls=2)
    np.testing.assert_allclose(plain.nwj.values, moved.nwj.values, atol=1e-4)


def test_constant_updates_give_an_honest_zero() -> None:
    _, z = gaussian_pairs(2, 2, 60)
    found = estimate(np.full((60, 3), 0.1), z, seed=0)
    assert found.trained.mean == found.nwj.mean == 0


def test_what_is_reported_is_the_held_out_estimate_under_ln_k() -> None:
    x, z = gaussian_pairs(2, 2, 100)
    found = estimate(x, z, seed=0, training=Training(hidden=8, steps=10), seeds=2, nulls=2)
    said = found.information()
    assert (said.nats, said.kind, said.cap) == (found.nwj.mean, "estimate", math.log(100))
    assert said.sample_sizes == {"pairs": 100, "train": 60, "validation": 20, "test": 20}


def test_the_interval_is_students() -> None:
    spread = Spread((1.0, 2.0, 3.0))
    # t with 2 degrees of freedom at 97.5 %: 4.302653; standard error 1/√3.
    assert spread.interval == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-5)


X, Z = gaussian_pairs(2, 2, 30)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: estimate(X, Z[:20], seed=0), "with one K"),
        (lambda: estimate(X[:9], Z[:9], seed=0), "at least 20 rows, got 9"),
        (lambda: estimate(X, Z, seed=0, seeds=1), "seeds must be at least 2, got 1"),
        (lambda: estimate(X * math.nan, Z, seed=0), "x must be finite, got nan"),
        (lambda: Training(steps=0), r"steps must be in \[1, inf\), got 0"),
        (lambda: Training(objective="kl"), "objective must be in"),  # type: ignore[arg-type]
        (lambda: Training(optimizer="lion"), "optimizer must be"),  # type: ignore[arg-type]
        (lambda: Training(memory=0.0), r"memory must be in \(0, 1\], got 0"),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
