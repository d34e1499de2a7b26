"""The MINE auditor: the closed form, no leak, shared draws, and how its critics are trained."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from statistics import mean

import numpy as np
import pytest
import torch

from leakmeter.auditors import (
    Critics,
    DrawPlan,
    MutualInformation,
    NeuralInformation,
    check_auditor,
)
from leakmeter.auditors.auditor import Project, RoundView
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.information.mutual_information import NEURAL
from leakmeter.auditors.information.neural import Adam, GuidedCritic, held_out_values, log_mean_exp
from leakmeter.auditors.information.theory import gaussian_information, update_entropy
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.sampler import UpdateSampler
from leakmeter.auditors.wording import Assumption, claim
from tests.helpers.numbers import few_or_many
from tests.helpers.refusals import refuses
from tests.helpers.rounds import round_of

pytest.importorskip("torch")

DIM, CLIENTS = 4, 6
EYE = np.eye(DIM)
QUICK = Critics(count=2, steps=1, hidden=4)
view_of = partial(round_of, clients=CLIENTS, dim=DIM)


def audited(sampler, *views: RoundView, **settings) -> tuple[list[Finding], list[Finding]]:
    """Return the findings of all rounds and of the run."""
    plan = DrawPlan(draws=settings.pop("draws", 8), rank=settings.pop("rank", DIM))
    auditor = NeuralInformation(sampler, plan=plan, **({"critics": QUICK} | settings))
    auditor.begin(DIM, len(views))
    rounds = [f for view in views for f in auditor.observe(view)]
    return rounds, list(auditor.report())


def test_it_keeps_the_contract_of_auditors(gaussian_sampler) -> None:
    sampler = gaussian_sampler(np.eye(128))
    check_auditor(lambda: NeuralInformation(sampler, every=2, critics=QUICK, colluding=(5,)))


@pytest.mark.parametrize(("clients", "draws"), [(3, 300), (12, 60)])
def test_gaussian_clients_follow_the_closed_form(gaussian_sampler, clients, draws) -> None:
    found, run = audited(
        gaussian_sampler(EYE),
        *(view_of(r, clients=clients) for r in (1, 2, 3)),
        draws=draws,
        critics=Critics(),
    )
    truth = gaussian_information(DIM, clients).bits
    # Held-out critics are below the truth on average, here by less than a sixth of it.
    assert 0.84 * truth < mean(f.value for f in found) < 1.08 * truth
    assert run[0].value == pytest.approx(mean(f.value for f in found))
    for f in (*found, *run):
        assert (f.auditor, f.kind, f.quantity) == ("mine", "estimate", NEURAL)
        assert f.value > f.null_band[1] > f.null_band[0]
        assert f.cap == pytest.approx(math.log2(draws * clients))
    assert found[0].facts["gaussian_nats"] == pytest.approx(truth * math.log(2))


def test_without_a_leak_it_stays_in_its_null_band(gaussian_sampler) -> None:
    # The noise hides a client completely: 1e-9 bits are left.
    views = [view_of(r, noise_std=1e4) for r in (1, 2, 3)]
    found, run = audited(gaussian_sampler(EYE), *views, observer="outsider", critics=Critics())
    for f in (*found, *run):
        assert f.null_band[0] <= f.value <= f.null_band[1] + 1e-12
        assert abs(f.value) < 1e-4


@pytest.mark.parametrize("repeats", few_or_many(16, 60))
def test_the_mean_held_out_value_is_not_above_the_truth(repeats: int) -> None:
    """Few draws are used again and again, and critics start at the right answer."""
    truth, values = gaussian_information(3, 10).nats, []
    for repeat in range(repeats):
        drawn = stream(0, "few", repeat).standard_normal((12, 10, 3))
        found = held_out_values(drawn[:8], drawn[8:], critics=QUICK, path=(repeat,), seed=0)
        values.append(found.mean)
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    assert 0.5 * truth < np.mean(values) < truth + 3 * error
    assert error < 0.15 * truth


def test_it_looks_along_the_directions_of_log_det(gaussian_sampler) -> None:
    spectrum = np.diag(np.linspace(3.0, 1.0, 20))
    seen = {}
    for cls in (MutualInformation, NeuralInformation):
        more = {"critics": QUICK} if cls is NeuralInformation else {}
        auditor = cls(gaussian_sampler(spectrum), plan=DrawPlan(draws=8, rank=5), seed=3, **more)
        auditor.begin(20, 1)
        auditor.observe(view_of(dim=20))
        seen[cls] = auditor.drawing._found
    log_det, mine = seen.values()
    np.testing.assert_array_equal(log_det.subspace.directions, mine.subspace.directions)
    np.testing.assert_array_equal(log_det.rows, mine.rows)


class Counted(UpdateSampler):
    """A sampler that counts what it draws."""

    def __init__(self, inner: UpdateSampler) -> None:
        self.inner, self.drawn = inner, 0

    @property
    def game(self):
        return self.inner.game

    def sample(self, model, clients, draws, stream, *, project=None):
        self.drawn += draws
        return self.inner.sample(model, clients, draws, stream, project=project)

    def moments(self, model, clients, draws, stream):
        return self.inner.moments(model, clients, draws, stream)


def test_two_auditors_that_share_their_draws_train_nobody_twice(gaussian_sampler) -> None:
    alone = audited(gaussian_sampler(EYE), view_of(), view_of(2))
    sampler = Counted(gaussian_sampler(EYE))
    plan = DrawPlan(draws=8, rank=DIM)
    information = MutualInformation(sampler, plan=plan)
    mine = NeuralInformation(sampler, plan=plan, critics=QUICK)
    mine.drawing = information.drawing
    found = []
    for auditor in (information, mine):
        auditor.begin(DIM, 2)
    for view in (view_of(), view_of(2)):
        information.observe(view)
        before = sampler.drawn
        found += mine.observe(view)
        assert sampler.drawn == before
    assert (found, list(mine.report())) == alone
    # Another model, or another number of draws, is drawn again.
    before = sampler.drawn
    mine.observe(replace(view_of(2), sent=np.ones(DIM)))
    assert sampler.drawn > before


def test_shares_of_one_partition_are_not_recombined(gaussian_sampler) -> None:
    # This sampler's clients are independent all the same, so the closed form holds.
    dealt = gaussian_sampler(EYE, game="partition")
    found, _ = audited(dealt, view_of(), draws=200, critics=Critics())
    truth = gaussian_information(DIM, CLIENTS).bits
    assert 0.7 * truth < found[0].value < 1.2 * truth
    assert Assumption.INDEPENDENT_CLIENTS not in found[0].assumptions
    free, _ = audited(gaussian_sampler(EYE), view_of())
    assert Assumption.INDEPENDENT_CLIENTS in free[0].assumptions
    assert Assumption.POOLED_CLIENTS in free[0].assumptions


def test_clients_that_keep_their_data_have_means_of_their_own(gaussian_sampler) -> None:
    class Apart(Counted):
        """Clients whose updates vary around means that are far apart."""

        def sample(self, model, clients, draws, stream, *, project=None):
            means = 100.0 * np.array(clients, dtype=float)[:, None] * np.ones(DIM)
            means = means if project is None else means @ project
            for chunk in super().sample(model, clients, draws, stream, project=project):
                yield chunk + means

    apart = Apart(gaussian_sampler(EYE, game="rerun"))
    found, _ = audited(apart, view_of(), draws=60, critics=Critics())
    assert found[0].value == pytest.approx(gaussian_information(DIM, CLIENTS).bits, rel=0.25)


def test_a_lone_update_and_constant_ones_need_no_critics(gaussian_sampler) -> None:
    (alone,), run = audited(gaussian_sampler(EYE), view_of(clients=1))
    assert (alone.value, alone.kind, alone.auditor, run) == (math.inf, "diagnostic", "mine", [])
    entropy = update_entropy(50, 5, [2, 2, 1])
    (alone,), _ = audited(gaussian_sampler(EYE), view_of(clients=1), limit=lambda _: entropy)
    assert alone.value == pytest.approx(entropy.over(1) / math.log(2))
    (constant,), _ = audited(gaussian_sampler(EYE, frozen=True), view_of())
    assert (constant.value, constant.kind) == (0.0, "diagnostic")


def test_no_figure_exceeds_the_entropy_of_what_is_random(gaussian_sampler) -> None:
    tiny = update_entropy(2, 2, [1, 1])  # one bit
    found, _ = audited(
        gaussian_sampler(EYE), view_of(clients=2), draws=200, limit=lambda _: tiny, rank=4
    )
    assert found[0].value <= 1.0 == found[0].cap


def test_nothing_says_what_critics_find_in_their_training_draws(gaussian_sampler) -> None:
    found, run = audited(gaussian_sampler(EYE), view_of())
    for f in (*found, *run):
        assert "train" not in f.rule
        assert not [name for name in f.facts if "train" in name]
        assert (
            claim(f)
            .replace("\N{NO-BREAK SPACE}", " ")
            .startswith("mutual information by critics along at most 4 directions ≈ ")
        )


def test_it_says_before_training_where_critics_say_nothing(gaussian_sampler) -> None:
    sampler = gaussian_sampler(np.eye(300))
    many = NeuralInformation(sampler, plan=DrawPlan(draws=8, rank=250))
    [words] = many.limits(Project(dim=300, num_rounds=2))
    assert words.startswith("critics find nothing along 250 directions")
    few = NeuralInformation(sampler, plan=DrawPlan(draws=8, rank=4))
    assert few.limits(Project(dim=300, num_rounds=2, clients=12)) == []
    [words] = few.limits(Project(dim=300, num_rounds=2, clients=2))
    assert words.endswith("critics need 20: use at least 10 draws")
    assert audited(gaussian_sampler(EYE), view_of(clients=2)) == ([], [])


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"every": -2}, "every"),
        ({"plan": DrawPlan(draws=7)}, "plan.draws"),
        ({"plan": DrawPlan(rank=None)}, "plan.rank"),
        ({"count": 1}, "count"),
        ({"steps": -1}, "steps"),
        ({"hidden": 0}, "hidden"),
        ({"rate": 0.0}, "rate"),
    ],
)
def test_wrong_arguments_are_named(gaussian_sampler, wrong, name) -> None:
    with refuses(name):
        Critics(**wrong) if name in vars(QUICK) else NeuralInformation(
            gaussian_sampler(EYE), **wrong
        )


MODELS, PAIRS, WIDTH, HIDDEN = 3, 16, 5, 7


def critic(most: float) -> GuidedCritic:
    """Return critics with all weights away from 0."""
    rho = np.linspace(0.1, 0.8, MODELS * WIDTH).reshape(MODELS, WIDTH)
    made = GuidedCritic.drawn(rho, HIDDEN, most, [stream(0, i) for i in range(MODELS)])
    noise = stream(0, "weights").standard_normal(made.flat.shape, dtype=np.float32)
    made.flat.add_(torch.from_numpy(noise), alpha=0.3)
    return made


def samples() -> list[torch.Tensor]:
    """Return x, z and strangers."""
    rows = stream(0, "rows").standard_normal((3, MODELS, PAIRS, WIDTH), dtype=np.float32)
    return list(torch.from_numpy(rows))


def plain(parts: list[torch.Tensor], x: torch.Tensor, z: torch.Tensor, most: float) -> torch.Tensor:
    """Return scores (models, pairs) as the formula has them, in a form that autograd follows."""
    w_x, w_z, b_first, w_second, b_second, last, product, x_square, z_square = parts
    first = (x @ w_x + z @ w_z + b_first).relu()
    network = ((first @ w_second + b_second).relu() * last).sum(-1)
    crossed = ((x @ product) * z).sum(-1)
    squared = (x_square * x**2 + z_square * z**2).sum(-1)
    return (network + crossed + squared).clamp(-most, most)


def test_the_gradient_is_that_of_autograd_with_and_without_clipped_scores() -> None:
    x, z, strangers = samples()
    for most in (math.inf, 1.0):
        ours = critic(most)
        parts = [part.detach().clone().requires_grad_() for part in ours.parts]
        joint, others = (plain(parts, x, one, most) for one in (z, strangers))
        for found, expected in zip(ours.matched(x, z, strangers), (joint, others), strict=True):
            np.testing.assert_allclose(found, expected.detach(), rtol=1e-5, atol=1e-5)
        assert bool((others.abs() == most).any()) == (most == 1.0)  # the clip is put to the test
        (joint.mean(1) - log_mean_exp(others)).sum().backward()  # Donsker-Varadhan
        expected = torch.cat([part.grad.flatten(1) for part in parts], dim=1)
        np.testing.assert_allclose(ours.gradient(x, z, strangers), expected, rtol=1e-4, atol=1e-5)


def test_parts_are_views_of_all_weights_and_the_network_starts_at_nothing() -> None:
    rho = np.full((MODELS, WIDTH), 0.5)
    ours = GuidedCritic.drawn(rho, HIDDEN, 9.0, [stream(0, i) for i in range(MODELS)])
    assert not ours.parts[5].any()
    x, z, _ = samples()
    # Of standard normals with correlation ρ: (ρ x z - ρ² (x² + z²) / 2) / (1 - ρ²).
    ratio = ((0.5 * x * z - 0.125 * (x**2 + z**2)) / 0.75).sum(-1)
    found = ours.matched(x, z, z)[0]
    np.testing.assert_allclose(found, ratio.clamp(-9, 9), rtol=1e-5, atol=1e-5)
    ours.flat.zero_()
    assert not any(part.any() for part in ours.parts)


@pytest.mark.slow
def test_adam_takes_the_steps_of_torchs() -> None:
    ours = torch.linspace(-1, 1, 12).view(3, 4)
    theirs = ours.clone().requires_grad_()
    adam, twin = Adam(ours, 1e-2), torch.optim.Adam([theirs], lr=1e-2, maximize=True)
    for _ in range(4):
        (theirs.sin() * theirs).sum().backward()
        assert theirs.grad is not None
        adam.step(theirs.grad)
        twin.step()
        twin.zero_grad()
    assert torch.equal(ours, theirs)
