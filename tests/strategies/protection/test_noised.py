"""DP-FedAvg in whole rounds: what is summed, noised, divided, released and accounted for."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedAvgM, Strategy
from scipy import stats

from leakmeter.auditors import Audited, Auditor, RoundView, canary_mod, noise, tap_mod
from leakmeter.auditors.auditor import Canary
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.canary_draws import canary_vector
from leakmeter.auditors.hook import wire
from leakmeter.auditors.rng import stream
from leakmeter.auditors.verdict.claim import is_weaker
from leakmeter.clients import MaskMod, NoiseMod
from leakmeter.clients.node import add_identity
from leakmeter.clients.protection.noise_mod import clip
from leakmeter.fl_app.engines.inline import InlineGrid
from leakmeter.strategies import Central, Chosen, Distributed, Local, Masked, Noised
from leakmeter.strategies.chosen import EachOnce, FixedSize, Participation, Poisson
from leakmeter.strategies.protection.mechanism import AdaptiveClip, FixedClip
from tests.helpers.federation import vanishing
from tests.helpers.refusals import refuses

pytestmark = pytest.mark.usefixtures("flower_task")

DIM = 150
SEED = 3
OUTSIDE = ("mod", "count", "watch", "vanish")  # mods of tests, before masks
MASK = MaskMod(required=False, allow_tap=True, seed=SEED, outside=OUTSIDE)
MODS = (MASK, NoiseMod(seed=SEED), canary_mod)
Update = Callable[[int, int], np.ndarray]  # of client and round


def spread(client: int, _: int) -> np.ndarray:
    """Return an update of norm client + 1 in a direction of its own."""
    direction = stream(0, "direction", client).standard_normal(DIM)
    return (client + 1) * direction / np.linalg.norm(direction)


def nothing(_client: int, _round: int) -> np.ndarray:
    return np.zeros(DIM)


def grid(
    num: int = 6, update: Update = spread, mods: Sequence[Any] = MODS, weight: float = 7.0
) -> InlineGrid:
    """Return clients that add their update to the model."""
    app = ClientApp()
    add_identity(app)

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        server_round = int(message.content["config"]["server-round"])
        model = message.content["arrays"]["w"].numpy()
        moved = ArrayRecord({"w": Array(model + update(client, server_round))})
        metrics = MetricRecord({"num-examples": weight, "train-loss": 1.0})
        return Message(RecordDict({"arrays": moved, "metrics": metrics}), reply_to=message)

    return InlineGrid(app, num)


def model(dim: int = DIM) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(dim))})


def make(
    noise: Any,
    clipping: Any = None,
    *,
    inner: FedAvg | None = None,
    who: Participation | None = None,
    num: int = 6,
    **options: Any,
) -> Noised:
    inner = inner or FedAvg(min_train_nodes=1, min_available_nodes=1)
    inner.fraction_evaluate = 0.0
    chosen = Chosen(inner, who or FixedSize(num), num_clients=num, seed=SEED)
    options = {"expected_clients": 10.0, "seed": SEED, **options}
    return Noised(chosen, noise=noise, clipping=clipping or FixedClip(2.0), **options)


def masked(strategy: Strategy, **options: Any) -> Masked:
    return Masked(strategy, **{"max_weight": 1.0, "threshold": 4, **options})


def run(strategy: Strategy, rounds: int = 1, clients: InlineGrid | None = None) -> np.ndarray:
    result = strategy.start(clients or grid(), model(), num_rounds=rounds)
    return result.arrays["w"].numpy()


def clipped_sum(clients: Sequence[int] = range(6), norm: float = 2.0) -> np.ndarray:
    return np.sum([clip(spread(c, 1), norm) for c in clients], axis=0)


def server_noise(std: float, server_round: int = 1) -> np.ndarray:
    return std * stream(SEED, "server-noise", server_round).standard_normal(DIM)


# Sum, noise, division.


def test_the_released_mean_is_the_clipped_sum_plus_noise_over_the_public_number() -> None:
    strategy = make(Central(0.5))
    released = run(strategy)
    expected = (clipped_sum() + server_noise(0.5 * 2.0)) / 10
    np.testing.assert_allclose(strategy.facts().noised, expected, atol=1e-12)
    np.testing.assert_allclose(released, expected, atol=1e-12)
    assert strategy.facts().noise_std == 0.5 * 2.0 / 10
    assert strategy.facts().clip_norm == 2.0


def test_the_server_clips_what_a_client_has_not_also_one_that_passes_for_a_secure_sum() -> None:
    def forge(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        if wire.CONFIG in message.content:
            reply.content[wire.SUM_OUTCOME] = wire.SumOutcome(1e-12, 0).to_record()
        return reply

    for mods in ([MODS[0]], [MODS[0], forge]):
        strategy = make(Central(0.0))
        run(strategy, clients=grid(mods=mods, weight=1.0))
        np.testing.assert_allclose(strategy.facts().noised, clipped_sum() / 10, atol=1e-12)
    with pytest.raises(ValueError, match="needs Masked around Noised"):
        run(make(Distributed(1.0, min_honest=2)), clients=grid(mods=[*MODS[:2], forge]))


def test_those_who_drop_out_count_as_zero() -> None:
    mods = [vanishing(lambda _, client: client == 2), *MODS]
    strategy = make(Central(0.0))
    run(strategy, clients=grid(mods=mods))
    others = clipped_sum([0, 1, 3, 4, 5])
    np.testing.assert_allclose(strategy.facts().noised, others / 10, atol=1e-12)
    assert dict(strategy.spending.times) == dict.fromkeys([0, 1, 3, 4, 5], 1)


def test_a_secure_sum_is_noised_alike_and_its_rounding_is_paid_for() -> None:
    strategy = make(Central(0.5))
    outer = masked(strategy, bits=24)
    run(outer)
    expected = (clipped_sum() + server_noise(1.0)) / 10
    quantum = outer.facts().quantum
    np.testing.assert_allclose(strategy.facts().noised, expected, atol=quantum)
    [release] = strategy.spending.releases
    assert release.sensitivity == pytest.approx(2.0 + quantum * math.sqrt(DIM), rel=1e-12)
    assert (release.noise_std, strategy.spending.charges[0].is_masked) == (1.0, True)
    # The grid is as coarse as the weight limit makes it.
    coarse = make(Central(0.5))
    run(masked(coarse, bits=24, max_weight=1000.0))
    extra = [s.spending.releases[0].sensitivity - 2.0 for s in (strategy, coarse)]
    assert extra[1] == pytest.approx(1000 * extra[0], rel=1e-3)


def noise_of(outer: Strategy, rounds: int) -> np.ndarray:
    """Return the noise on the released means of rounds in which nobody moves the model."""
    released: list[np.ndarray] = []
    arrays, clients = model(), grid(update=nothing)

    def keep(_: int, after: ArrayRecord) -> None:
        released.append(after["w"].numpy())

    outer.start(clients, arrays, num_rounds=rounds, evaluate_fn=keep)
    return np.diff(released, axis=0).ravel()


@pytest.mark.parametrize(
    ("noise", "secure", "std"),
    [
        (Central(0.8), False, 0.8 * 2 / 10),
        (Central(0.8), True, 0.8 * 2 / 10),
        # Shares of variance target / 4 from all six.
        (Distributed(0.8, min_honest=4), True, 0.8 * 2 * math.sqrt(6 / 4) / 10),
        (Local(0.8), False, 0.8 * 2 * math.sqrt(6) / 10),
        (Local(0.8), True, 0.8 * 2 * math.sqrt(6) / 10),
    ],
)
def test_noise_on_the_mean_has_the_stated_scale_and_no_other(
    noise: Any, secure: bool, std: float
) -> None:
    # Chance of failure by bad luck: 2e-3 (fixed seed), 5 rounds of 150 coordinates.
    strategy = make(noise)
    drawn = noise_of(masked(strategy) if secure else strategy, 5)
    assert strategy.facts().noise_std == pytest.approx(std)
    assert stats.kstest(drawn, stats.norm(scale=std).cdf).pvalue > 1e-3
    low, high = stats.chi2.ppf([5e-4, 1 - 5e-4], drawn.size)
    for scale, is_right in ((1.0, True), (0.85, False), (1.15, False)):
        assert (low < ((drawn / (scale * std)) ** 2).sum() < high) == is_right


def test_the_systems_noise_differs_from_run_to_run_and_seeded_noise_does_not() -> None:
    assert np.array_equal(run(make(Central(1.0))), run(make(Central(1.0))))
    drawn = [run(make(Central(1.0), seed=None)) for _ in "ab"]
    assert not np.array_equal(*drawn)


def test_momentum_does_not_change_what_a_contributor_shows(monkeypatch: Any) -> None:
    """One contributor of norm 1 in round 1, FedAvgM, 16 models seen: joint separation 1/σ.

    The models depend linearly on noise and contribution: put in one unit of noise at a time.
    """
    std, rounds = 2.5, 16

    def models(impulse: int, contributes: bool) -> np.ndarray:
        def drawn(dim: int, scale: float, _: Any) -> np.ndarray:
            calls.append(scale)
            return np.full(dim, scale * (len(calls) == impulse))

        def update(client: int, server_round: int) -> np.ndarray:
            return np.eye(1, DIM)[0] * (contributes and client == 0 and server_round == 1)

        calls: list[float] = []
        seen: list[float] = []
        monkeypatch.setattr(noise, "gaussian", drawn)
        inner = FedAvgM(min_train_nodes=1, min_available_nodes=1, server_momentum=0.9)
        strategy = make(Central(std), FixedClip(1.0), inner=inner, num=2)
        strategy.start(
            grid(2, update),
            model(),
            num_rounds=rounds,
            evaluate_fn=lambda _, after: seen.append(float(after["w"].numpy()[0])),
        )
        assert calls == [std] * rounds
        return np.array(seen[1:])

    still = models(0, False)
    response = {t: models(t, False) - still for t in (1, 2, 9)}
    for t in (2, 9):  # a later unit of noise does the same later
        np.testing.assert_allclose(response[t][t - 1 :], response[1][: rounds - t + 1], atol=1e-12)
    mixing = np.zeros((rounds, rounds))  # models by rounds of noise, per standard deviation
    for t in range(rounds):
        mixing[t:, t] = response[1][: rounds - t]
    moved = models(0, True) - still
    separation = np.linalg.norm(np.linalg.solve(mixing, moved))
    assert separation == pytest.approx(1 / std, rel=1e-9)
    # Noise of the same size behind the momentum would show more: the contribution lives on.
    outside = np.linalg.norm(np.diff(moved, prepend=0.0)) / (std / 10)
    assert outside > 2 / std


# Rounds without anybody.


@pytest.mark.parametrize("inner", [FedAvg, FedAvgM])
def test_an_empty_poisson_round_is_noised_like_any_other(inner: type[FedAvg]) -> None:
    strategy = make(
        Central(1.0),
        inner=inner(min_train_nodes=1, min_available_nodes=1),
        who=Poisson(1e-9),
    )
    released = run(strategy, rounds=1)
    np.testing.assert_allclose(released, server_noise(2.0) / 10, atol=1e-12)
    assert len(strategy.spending.releases) == 1
    assert strategy.spending.participations == 0
    assert not any(math.isnan(f.value) for f in strategy.findings())


def test_a_random_first_round_is_no_public_number() -> None:
    strategy = make(Central(1.0), who=Poisson(0.5), expected_clients=None)
    with pytest.raises(ValueError, match="expected_clients must be given with Poisson"):
        run(strategy)
    fixed = make(Central(0.0), expected_clients=None)
    run(fixed)
    np.testing.assert_allclose(fixed.facts().noised, clipped_sum() / 6, atol=1e-12)


def test_a_round_in_which_everybody_fails_releases_nothing() -> None:
    strategy = make(Central(1.0))
    gone = grid(mods=[vanishing(lambda *_: True), *MODS])
    strategy.start(gone, model(), num_rounds=1)
    assert strategy.spending.releases == ()
    assert strategy.findings() == ()


@pytest.mark.parametrize("secure", [True, False])
def test_clients_whose_training_fails_are_charged_like_any_other(secure: bool) -> None:
    def failing(client: int, server_round: int) -> np.ndarray:
        update = spread(client, server_round)
        return update * math.nan if client == 2 else update

    strategy = make(Central(0.5))
    run(masked(strategy) if secure else strategy, clients=grid(update=failing))
    expected = (clipped_sum([0, 1, 3, 4, 5]) + server_noise(1.0)) / 10
    np.testing.assert_allclose(strategy.facts().noised, expected, atol=1e-6)
    assert dict(strategy.spending.times) == dict.fromkeys(range(6), 1)


# Clients without the mod.


def test_a_client_without_the_mod_is_noticed_by_its_weight() -> None:
    with pytest.raises(ValueError, match=r"num-examples must be 1 .* got 7 from node 1: list noi"):
        run(make(Central(1.0)), clients=grid(mods=[MODS[0]]))
    outer = masked(make(Central(1.0)), max_weight=10.0)
    outer.start(grid(mods=[MODS[0]]), model(), num_rounds=1)
    assert "list noise_mod directly behind mask_mod" in str(outer.facts().abandoned)
    assert not outer.facts().rejected  # clients have refused it before they trained


def test_a_client_of_weight_one_without_noise_is_noticed_too() -> None:
    with pytest.raises(ValueError, match="must say that it carries noise"):
        run(make(Local(1.0)), clients=grid(mods=[MODS[0]], weight=1.0))


# Adaptive clipping.


@pytest.mark.parametrize(("initial", "is_larger"), [(0.1, True), (50.0, False)])
def test_the_clip_norm_moves_towards_the_quantile(initial: float, is_larger: bool) -> None:
    strategy = make(Central(0.1), AdaptiveClip(initial), expected_clients=6.0)
    run(strategy, rounds=3)
    assert (strategy.facts().clip_norm > initial) == is_larger


def test_the_clip_norm_settles_at_the_quantile_also_behind_masks() -> None:
    norms = []
    for secure in (False, True):
        strategy = make(Central(0.1), AdaptiveClip(1.0, rate=0.5), expected_clients=6.0)
        outer = masked(strategy, metrics={"below-clip": (0.0, 1.0)}) if secure else strategy
        run(outer, rounds=9)
        norms.append(strategy.facts().clip_norm)
    with pytest.raises(ValueError, match="among the metrics of Masked"):
        run(masked(make(Central(0.1), AdaptiveClip(2.0), expected_clients=6.0)))
    assert 2.5 < norms[0] < 4.5  # the norms are 1 to 6
    assert norms[1] == pytest.approx(norms[0], rel=1e-6)


def test_vector_noise_grows_by_the_price_of_the_bit() -> None:
    strategy = make(Central(0.4), AdaptiveClip(2.0, bit_std=0.3), expected_clients=6.0)
    run(strategy, rounds=2)
    vector = (0.4**-2 - 0.6**-2) ** -0.5
    assert strategy.spending.releases[0].noise_std == pytest.approx(vector * 2.0)
    assert strategy.facts().noise_std == pytest.approx(vector * strategy.facts().clip_norm / 6)
    for release in strategy.spending.releases:
        assert release.separation("add-remove") == pytest.approx(1 / 0.4)
    found = [f for f in strategy.findings() if f.observer == "outsider"]
    assert [f.adjacency for f in found] == ["add-remove"]
    assert found[0].value == pytest.approx(epsilon_gaussian(1e-5, math.sqrt(2) / 0.4))


def test_an_absent_clients_bit_moves_nothing() -> None:
    # Ten expected, nobody there, no noise on the bit to speak of: half counts as below.
    strategy = make(Central(0.0), AdaptiveClip(2.0, bit_std=1e-9), who=Poisson(1e-9))
    run(strategy, rounds=4)
    assert strategy.facts().clip_norm == pytest.approx(2.0, rel=1e-6)


# What is claimed.


def test_distributed_noise_is_priced_for_the_survivors() -> None:
    mods = [vanishing(lambda number, client: client < number - 1), *MODS]
    strategy = make(Distributed(1.0, min_honest=3, colluders=1))
    outer = masked(strategy)
    run(outer, rounds=3, clients=grid(mods=mods))
    stds = [r.noise_std for r in strategy.guarantees().releases]
    assert stds == pytest.approx([2 * math.sqrt(n / 3) for n in (5, 4, 3)])
    assert dict(strategy.spending.times) == {0: 1, 1: 2, 2: 3, 3: 3, 4: 3, 5: 3}
    server = next(f for f in strategy.findings() if f.observer == "server")
    assert server.kind == "guarantee"
    assert server.value == pytest.approx(
        epsilon_gaussian(1e-5, math.sqrt(3 * sum(1 / n for n in (5, 4, 3))))
    )


def test_no_metric_travels_beside_the_clients_noise() -> None:
    result = make(Local(1.0)).start(grid(), model(), num_rounds=1)
    assert "train-loss" not in result.train_metrics_clientapp[1]
    result = make(Central(1.0)).start(grid(), model(), num_rounds=1)
    assert dict(result.train_metrics_clientapp[1]) == {"train-loss": pytest.approx(1.0)}


def test_a_large_delta_and_running_statistics_are_warned_of(caplog: Any) -> None:
    arrays = ArrayRecord({"w": Array(np.zeros(DIM)), "bn.running_var": Array(np.ones(2))})
    with caplog.at_level(logging.WARNING, "flwr"):
        make(Central(1.0), delta=0.2).start(grid(), arrays, num_rounds=1)
    assert "delta 0.2 is not below 1 / 6 clients" in caplog.text
    assert "running statistics are clipped and noised like weights" in caplog.text


# Together with canaries.


class Seats(Auditor):
    """Plays one canary and one empty seat, and keeps what it sees."""

    name = "seats"

    def __init__(self) -> None:
        self.views: list[RoundView] = []

    def instruct(self, server_round: int, chosen: Sequence[int]) -> dict[int, Canary]:
        return {chosen[0]: Canary(5, 9), chosen[1]: Canary(6, 9, included=False)}

    def observe(self, view: RoundView) -> Sequence[Any]:
        self.views.append(view)
        return ()


@pytest.mark.parametrize("noise", [Central(1e-3), Distributed(1e-3, 4), Local(1e-3)])
def test_canaries_have_the_clip_norm_behind_masks_and_noise(noise: Any) -> None:
    seats, strategy = Seats(), make(noise)
    mods = (*MODS[:2], tap_mod, canary_mod)
    audited = Audited(masked(strategy), [seats])
    audited.start(grid(mods=mods), model(), num_rounds=2)
    assert audited.failures == []
    others = clipped_sum([2, 3, 4, 5])
    for view in seats.views:
        expected = (others + 2.0 * canary_vector(9, 5, DIM)) / 10
        std = view.facts.noise_std
        assert std is not None
        np.testing.assert_allclose(view.facts.noised, expected, atol=5 * std)
        assert sorted(view.instructed) == [0, 1]
    assert {f.observer for f in audited.findings()} >= {"server", "outsider"}


@pytest.mark.parametrize("is_masked", [False, True])
def test_a_canary_that_plays_every_round_is_priced_for_all_of_them(is_masked: bool) -> None:
    # Each client takes part once, as with --participation once; the canary moves along.
    strategy = make(Central(0.1), who=EachOnce(5), num=20)
    audited = Audited(masked(strategy, threshold=4) if is_masked else strategy, [Seats()])
    audited.start(grid(num=20), model(), num_rounds=4)
    assert audited.failures == []
    assert strategy.spending.participations == 1
    known = [
        f.threat_model
        for f in strategy.findings()
        if f.threat_model.knows_cohort and f.observer == "outsider" and f.quantity == "epsilon"
    ]
    assert [t.participations for t in known] == [1, 4, 1, 4]  # zero-out, then replace
    shown = replace(known[1], holds="canary", sees="final model")
    assert [is_weaker(shown, t) for t in known[:2]] == [False, True]
    assert not is_weaker(replace(shown, participations=5), known[1])


def test_distributed_noise_and_the_secure_sum_name_the_same_colluders() -> None:
    # Twelve clients, threshold 8: 2·8 − 12 − 1 = 3 may collude.
    strategy = make(Distributed(1.0, min_honest=5), num=12)
    audited = Audited(masked(strategy, threshold=8), [Seats()])
    audited.start(grid(num=12), model(), num_rounds=1)
    found = audited.findings()
    [hidden] = [f for f in found if f.quantity == "honest clients in the smallest sum"]
    assert {f.threat_model.colluders for f in found if f.observer == "server"} == {3}
    assert hidden.value == 12 - 2 - 3
    # A seat adds its share of noise to the canary; what it sends is known all the same.
    [release] = strategy.guarantees().releases
    assert release.noise_std == pytest.approx(2.0 * math.sqrt((12 - 3) / 5))


# What cannot be.


@pytest.mark.parametrize(
    ("name", "make_it"),
    [
        ("delta", lambda: make(Central(1.0), delta=0.0)),
        ("delta", lambda: make(Central(1.0), delta=1.0)),
        ("expected_clients", lambda: make(Central(1.0), expected_clients=0.0)),
        ("noise", lambda: make(Local(1.0), clipping=AdaptiveClip(1.0))),
        ("bit_std", lambda: make(Central(9.0), clipping=AdaptiveClip(1.0))),
        ("noise_multiplier", lambda: Central(-1.0)),
        ("noise_multiplier", lambda: Central(math.nan)),
        ("noise_multiplier", lambda: Local(0.0)),
        ("noise_multiplier", lambda: Distributed(0.0, 3)),
        ("min_honest", lambda: Distributed(1.0, 0)),
        ("colluders", lambda: Distributed(1.0, 3, -1)),
        ("norm", lambda: FixedClip(0.0)),
        ("clipping", lambda: make(Central(1.0), clipping=-0.5)),
        ("norm", lambda: FixedClip(math.inf)),
        ("quantile", lambda: AdaptiveClip(1.0, quantile=1.0)),
        ("rate", lambda: AdaptiveClip(1.0, rate=0.0)),
        ("bit_std", lambda: AdaptiveClip(1.0, bit_std=0.0)),
        ("initial", lambda: AdaptiveClip(math.nan)),
    ],
)
def test_impossible_settings_are_refused_at_once(name: str, make_it: Callable[[], Any]) -> None:
    with refuses(name):
        make_it()


def test_a_number_is_a_fixed_clip_norm() -> None:
    assert make(Central(1.0), clipping=0.5)._clipping == FixedClip(0.5)


def test_wrong_nesting_is_refused() -> None:
    with pytest.raises(TypeError, match=r"write Masked\(Noised"):
        Noised(Masked(FedAvg()), noise=Central(1.0), clipping=FixedClip(1.0))
    with pytest.raises(ValueError, match="needs Masked around Noised"):
        run(make(Distributed(1.0, 3)))


def test_a_range_below_the_clip_norm_is_refused_where_clients_add_noise() -> None:
    with refuses("clip_range"):
        run(masked(make(Local(1.0)), clip_range=1.0))
    run(masked(make(Central(1.0)), clip_range=1.0))
