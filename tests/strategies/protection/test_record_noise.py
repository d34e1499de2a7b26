"""Water filling in whole rounds: what is released, what is refused, what it guarantees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Strategy
from scipy import stats
from torch import nn

from leakmeter.auditors import Audited, Auditor, canary_mod
from leakmeter.auditors.auditor import Canary
from leakmeter.auditors.hook import wire
from leakmeter.auditors.rng import stream
from leakmeter.clients import MaskMod, NoiseMod
from leakmeter.clients.node import add_identity
from leakmeter.clients.protection.noise_mod import filled_record
from leakmeter.clients.protection.record_rule import GaussianSampling, WaterFilling
from leakmeter.fl_app.engines.inline import InlineGrid
from leakmeter.papers.zhang2024.prices import gaussian_sampling_epsilon, water_filling_epsilon
from leakmeter.strategies import Central, Chosen, Masked, Noised, RecordNoise, Risks
from leakmeter.strategies.chosen import FixedSize
from leakmeter.strategies.protection.mechanism import FixedClip
from tests.helpers.federation import vanishing
from tests.helpers.refusals import refuses

pytestmark = pytest.mark.usefixtures("flower_task")

SEED, CLIENTS, EXAMPLES, LR = 3, 6, 8, 0.5
SETTING: dict[str, Any] = {"sigma2": 0.3, "clip_norm": 2.0, "batch_size": 4}
PRICE: dict[str, Any] = {"floor": 0.3, "clip": 2.0, "batch": 4, "examples": EXAMPLES}
MODS = (MaskMod(seed=SEED, outside=["lie", "vanish"]), NoiseMod(unit="record"))


def rule(sigma2: float = 0.3, steps: int = 1) -> GaussianSampling:
    return GaussianSampling(LR, 2.0, 4, noise=WaterFilling(sigma2), steps=steps, simulated=True)


def new_model() -> nn.Linear:
    model = nn.Linear(4, 3).double()
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def examples(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = stream(0, "examples", client)
    x = torch.from_numpy(rng.standard_normal((EXAMPLES, 4)))
    return x, torch.from_numpy(rng.integers(0, 3, EXAMPLES))


def grid(mods: Sequence[Any] = MODS, own: GaussianSampling | None = None) -> InlineGrid:
    """Return clients that train with Gaussian sampling and say what they did."""
    own = own or rule()
    app = ClientApp()
    add_identity(app)

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        model = new_model()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        server_round = int(message.content["config"]["server-round"])
        done = own(model, *examples(client), stream(SEED, "train", server_round, client))
        metrics = MetricRecord({"num-examples": done.num_examples, "train-loss": done.loss})
        arrays = ArrayRecord(model.state_dict())
        mark = filled_record(own, done.num_examples)
        content = RecordDict({"arrays": arrays, "metrics": metrics, wire.FILLED: mark})
        return Message(content, reply_to=message)

    return InlineGrid(app, CLIENTS)


def make(num: int = CLIENTS, evaluates: float = 0.0, **options: Any) -> Noised:
    inner = FedAvg(min_train_nodes=1, min_available_nodes=1)
    inner.fraction_evaluate = evaluates
    chosen = Chosen(inner, FixedSize(num), num_clients=CLIENTS, seed=SEED)
    delta = {"delta": options.pop("delta")} if "delta" in options else {}
    noise = RecordNoise(**{**SETTING, "examples": EXAMPLES, "lr": LR, **options})
    return Noised(chosen, noise=noise, **delta)


def masked(strategy: Noised, **options: Any) -> Masked:
    # Threshold 4 of 6: 2·4 − 6 − 1 = 1 may collude.
    given = {"max_weight": 1.0, "clip_range": strategy.mechanism.clip_range, **options}
    return Masked(strategy, **{"threshold": 4, **given})


def run(strategy: Strategy, rounds: int = 1, clients: InlineGrid | None = None) -> np.ndarray:
    arrays = ArrayRecord(new_model().state_dict())
    result = strategy.start(clients or grid(), arrays, num_rounds=rounds)
    return np.concatenate([a.numpy().ravel() for a in result.arrays.values()])


def epsilon(strategy: Noised) -> float:
    [finding] = strategy.findings()
    return finding.value


class Seats(Auditor):
    """Plays canaries in this many seats, every second of them left out."""

    def __init__(self, seats: int = 2) -> None:
        self._seats = seats

    def instruct(self, server_round: int, chosen: Sequence[int]) -> dict[int, Canary]:
        return {
            client: Canary(5 + i, 9, norm=1.0, included=i % 2 == 0)
            for i, client in enumerate(chosen[: self._seats])
        }


# What is released.


def test_the_model_moves_by_the_mean_of_the_filled_updates_and_nothing_saturates() -> None:
    one = make()
    # C + 10 sd of the largest variance: that of sampling is above the floor here.
    assert one.mechanism.clip_range == pytest.approx(LR * (2 + 10 * np.sqrt(2.0**2 / 4)))
    outer = masked(one)
    moved = run(outer)
    assert outer.facts().saturated == 0
    updates = []
    for client in range(CLIENTS):
        model = new_model()
        rule()(model, *examples(client), stream(SEED, "train", 1, client))
        updates.append([p.detach().numpy().ravel() for p in model.parameters()])
    expected = np.mean([np.concatenate(parts) for parts in updates], axis=0)
    np.testing.assert_allclose(moved, expected, atol=outer.facts().quantum)


def test_the_released_noise_reaches_the_floor_and_a_larger_one_is_rejected() -> None:
    # The weight rows sum to zero in the gradients, so along (1, 1, 1) only the floor is left.
    # Chance of failure by bad luck 2e-3, fixed seed; 12 rounds of 5 columns.
    released: list[np.ndarray] = []

    def keep(_: int, arrays: ArrayRecord) -> None:
        weight, bias = (a.numpy() for a in arrays.values())
        released.append(np.append(weight.sum(axis=0), bias.sum()) / np.sqrt(3))

    arrays = ArrayRecord(new_model().state_dict())
    masked(make()).start(grid(), arrays, num_rounds=12, evaluate_fn=keep)
    drawn = np.diff(released, axis=0).ravel()
    std = LR * np.sqrt(SETTING["sigma2"] / CLIENTS)
    assert stats.kstest(drawn, stats.norm(scale=std).cdf).pvalue > 1e-3
    low, high = stats.chi2.ppf([5e-4, 1 - 5e-4], drawn.size)
    for scale, is_right in ((1.0, True), (0.6, False), (1.6, False)):
        assert (low < ((drawn / (scale * std)) ** 2).sum() < high) == is_right


# What it guarantees.


def test_the_guarantee_is_the_corrected_bound_for_a_record_against_the_server() -> None:
    strategy = make(delta=1e-4)
    run(masked(strategy), rounds=3)
    [found] = strategy.findings()
    expected = water_filling_epsilon(users=CLIENTS - 1, delta=1e-4, rounds=3, **PRICE)
    assert found.value == pytest.approx(expected, rel=1e-9)
    assert (found.kind, found.observer, found.unit) == ("guarantee", "server", "record")
    assert (found.adjacency, found.delta, found.auditor) == ("replace", 1e-4, "accountant")
    # The price of isotropic noise would be a smaller number that this mechanism does not keep.
    isotropic = gaussian_sampling_epsilon(users=CLIENTS - 1, delta=1e-4, rounds=3, **PRICE)
    assert found.value > isotropic


@pytest.mark.parametrize("fails", [-1, 4])
@pytest.mark.parametrize(("declared", "counted"), [(None, 3), (0, 0), (2, 2)])
def test_only_honest_survivors_count(declared: int | None, counted: int, fails: int) -> None:
    # Threshold 5 of 6: 2·5 − 6 − 1 = 3 may collude, with five survivors too.
    strategy = make()
    risks = Risks(colluders=declared)
    mods = [vanishing(lambda _, client: client == fails), *MODS]
    run(masked(strategy, threshold=5, risks=risks), clients=grid(mods=mods))
    honest = CLIENTS - counted - (fails >= 0)
    expected = water_filling_epsilon(users=honest, delta=1e-5, **PRICE)
    [found] = strategy.findings()
    assert found.value == pytest.approx(expected, rel=1e-9)
    assert found.threat_model.colluders == counted
    assert found.facts["fewest honest"] == honest


def test_water_filling_and_the_secure_sum_name_the_same_colluders() -> None:
    # Once 0 colluders were counted here, beside a secure sum that named three.
    audited = Audited(masked(make(), threshold=5), [Seats(seats=1)])
    run(audited, clients=grid(mods=[*MODS, canary_mod]))
    found = audited.findings()
    [hidden] = [f for f in found if f.quantity == "honest clients in the smallest sum"]
    [filled] = [f for f in found if f.auditor == "accountant"]
    assert hidden.threat_model.colluders == filled.threat_model.colluders == 3
    assert hidden.value == filled.facts["fewest honest"] == CLIENTS - 1 - 3


def test_rounds_without_a_client_cost_it_nothing() -> None:
    strategy = make(num=3)
    run(masked(strategy, threshold=2), rounds=5)
    most = strategy.findings()[0].threat_model.participations
    assert 2 <= most < 5
    # Threshold 2 of 3 bears no colluder.
    expected = water_filling_epsilon(users=3, delta=1e-5, rounds=most, **PRICE)
    assert epsilon(strategy) == pytest.approx(expected, rel=1e-9)


def test_canary_seats_add_no_noise_and_are_not_counted() -> None:
    strategy = make()
    audited = Audited(masked(strategy, risks=Risks(colluders=0)), [Seats()])
    run(audited, clients=grid(mods=[*MODS, canary_mod]))
    assert audited.failures == []
    expected = water_filling_epsilon(users=CLIENTS - 2, delta=1e-5, **PRICE)
    assert epsilon(strategy) == pytest.approx(expected, rel=1e-9)
    assert strategy.findings()[0].facts["fewest honest"] == CLIENTS - 2


def test_a_sum_of_canary_seats_alone_is_never_opened() -> None:
    strategy = make()
    audited = Audited(masked(strategy), [Seats(seats=CLIENTS)])
    arrays = ArrayRecord(new_model().state_dict())
    result = audited.start(grid(mods=[*MODS, canary_mod]), arrays, num_rounds=2)
    assert not result.arrays  # clients count seats as colluders and take no part
    assert audited.failures == []
    assert not strategy.findings()


def test_coarse_rounding_is_an_approximation_and_saturation_or_steps_guarantee_nothing() -> None:
    on_the_grid, in_the_model = make(), make()
    run(masked(on_the_grid, bits=8, clip_range=30.0))
    huge = {name: torch.full_like(p, 1e16) for name, p in new_model().state_dict().items()}
    masked(in_the_model).start(grid(), ArrayRecord(huge), num_rounds=1)
    for strategy in (on_the_grid, in_the_model):
        assert strategy.findings()[0].kind == "approximation"
    saturated, twice = make(), make(steps=2)
    run(masked(saturated, clip_range=0.05))
    assert epsilon(saturated) == np.inf
    assert "saturated" in saturated.findings()[0].rule
    run(masked(twice), rounds=2, clients=grid(own=rule(steps=2)))
    assert epsilon(twice) == np.inf  # no theorem covers several local steps
    assert twice.findings()[0].threat_model.participations == 2


def test_state_goes_on_where_it_stopped() -> None:
    whole, first, second = make(), make(), make()
    clients = grid()
    run(masked(whole), rounds=3, clients=clients)
    run(masked(first), rounds=2, clients=grid())
    second.restore(first.state())
    assert second.findings() == first.findings()
    run(masked(second), rounds=1, clients=grid())
    assert epsilon(second) == pytest.approx(epsilon(whole), rel=1e-9)


# What is refused.


def test_what_would_break_the_guarantee_is_refused() -> None:
    assert make().findings() == ()
    with pytest.raises(ValueError, match="needs Masked"):
        run(make(), clients=grid(mods=[MODS[1]]))
    with pytest.raises(ValueError, match="fraction_evaluate"):
        run(masked(make(evaluates=1.0)))
    noised = Noised(FedAvg(), noise=Central(1.0), clipping=FixedClip(1.0))
    with pytest.raises(TypeError, match="Noised"):
        Noised(noised, noise=make().mechanism)


def test_a_client_without_the_mod_is_noticed_by_its_weight() -> None:
    outer = masked(make(), max_weight=8.0)
    outer.start(grid(mods=[MODS[0]]), ArrayRecord(new_model().state_dict()), num_rounds=1)
    assert "list noise_mod directly behind mask_mod" in str(outer.facts().abandoned)


def test_a_loss_inside_the_sum_is_refused() -> None:
    class Careless(NoiseMod):
        def __call__(self, message: Message, context: Context, call_next: Any) -> Message:
            reply = call_next(message, context)
            reply.content["metrics"]["num-examples"] = 1
            return reply

    outer = masked(make(), metrics={"train-loss": (0.0, 9.0)})
    with refuses("metrics"):
        run(outer, clients=grid(mods=[MODS[0], Careless()]))


def test_clients_that_fill_less_send_their_noise_alone_and_the_guarantee_stays() -> None:
    honest, strategy = make(), make()
    trained = run(masked(honest))
    noise = run(masked(strategy), clients=grid(own=rule(sigma2=0.2)))
    assert epsilon(strategy) == epsilon(honest)
    # Six clients' noise of variance lr²·σ² in each coordinate, in their mean.
    std = LR * np.sqrt(SETTING["sigma2"] / CLIENTS)
    assert 0 < np.abs(noise).max() < 6 * std
    assert not np.array_equal(noise, trained)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"sigma2": 0.0}, "floor"),
        ({"clip_norm": -1.0}, "clip"),
        ({"batch_size": 0}, "batch"),
        ({"examples": 0}, "examples"),
        ({"lr": 0.0}, "lr"),
        ({"steps": 0}, "steps"),
        ({"kind": "sampling"}, "kind"),
        ({"kind": "minibatch", "batch_size": EXAMPLES + 1}, "batch_size"),
        ({"delta": 1.0}, "delta"),
    ],
)
def test_what_cannot_be_is_refused_at_once(options: dict[str, Any], field: str) -> None:
    with refuses(field):
        make(**options)


def test_a_sum_without_an_honest_contributor_guarantees_nothing() -> None:
    # Clients refuse to open such a sum, so the test plants one.
    strategy = make()
    run(masked(strategy, risks=Risks(colluders=0)))
    [opened] = strategy.spending.charges
    assert epsilon(strategy) < np.inf
    strategy.spending.charges[0] = replace(opened, contributors=0)
    [found] = strategy.findings()
    assert (found.value, found.rule) == (np.inf, "a sum without any honest contributor")
