"""DP-SGD inside clients: what was watched, what it guarantees over rounds, and five mistakes."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from leakmeter import Audited, DpSgdAccountant, Masked, MaskMod, canary_mod
from leakmeter.auditors import check_auditor
from leakmeter.auditors.auditor import Auditor, RoundFacts, RoundView
from leakmeter.auditors.hook.canary_order import Answer
from leakmeter.auditors.hook.guest_noise import Engine, Steps, watch_training
from leakmeter.auditors.planting.plan import PlantPlan, RandomPattern
from leakmeter.auditors.planting.planted_records import PlantedRecords
from leakmeter.auditors.rng import stream
from leakmeter.auditors.verdict.claim import Claim
from leakmeter.auditors.verdict.verdict import judge
from leakmeter.strategies.accounting.accountant import Release, amplified, unamplified

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(find_spec("opacus") is None, reason="needs opacus"),
]
_loaded: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _with_opacus() -> Iterator[None]:
    """Opacus is loaded here alone: canary_mod tells apps that have loaded it from others."""
    sys.modules.update(_loaded)
    import opacus  # noqa: F401

    yield
    ours = [name for name in sys.modules if name.partition(".")[0] == "opacus"]
    _loaded.update({name: sys.modules.pop(name) for name in ours})


RECORDS, BATCH, PASSES, DELTA = 64, 16, 2, 1e-5
WIDE = 300  # numbers in a planted record
RATE, STEPS = BATCH / RECORDS, PASSES * RECORDS // BATCH


class Client:
    """Trains a small network with Opacus, as it is told, right or wrong."""

    lr, noise = 0.1, 1.0

    def __init__(
        self,
        *,
        poisson: bool = True,
        keeps_loader: bool = False,
        keeps_accountant: bool = True,
        noise_off_after: int | None = None,
        skips_noise_after: int | None = None,
        has_batch_norm: bool = False,
        layers_as_flat: bool = False,
    ) -> None:
        self.poisson, self.keeps = poisson, keeps_accountant
        self.keeps_loader = keeps_loader
        self.off, self.skips = noise_off_after, skips_noise_after
        self.has_batch_norm, self.layers_as_flat = has_batch_norm, layers_as_flat
        self.accountant: Any = None

    def network(self) -> torch.nn.Sequential:
        torch.manual_seed(0)
        layers: list[torch.nn.Module] = [torch.nn.Linear(5, 4), torch.nn.ReLU()]
        if self.has_batch_norm:
            layers.append(torch.nn.BatchNorm1d(4, affine=False))
        return torch.nn.Sequential(*layers, torch.nn.Linear(4, 2))

    def records(self) -> tuple[np.ndarray, np.ndarray]:
        rng = stream(0, "records")
        return rng.standard_normal((RECORDS, 5), dtype=np.float32), rng.integers(0, 2, RECORDS)

    def train(self) -> tuple[torch.nn.Sequential, float | None]:
        """Return the trained network and the ε that the engine states."""
        network = self.network()
        x, y = (torch.from_numpy(part) for part in self.records())
        from opacus import PrivacyEngine

        engine = PrivacyEngine(accountant="rdp")
        if self.accountant is not None:
            engine.accountant = self.accountant
        count = len(list(network.parameters()))
        layered: dict[str, Any] = {"clipping": "per_layer", "max_grad_norm": [1.0] * count}
        own = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, optimizer, loader = engine.make_private(
                module=network,
                optimizer=torch.optim.SGD(network.parameters(), lr=self.lr),
                data_loader=own,
                noise_multiplier=self.noise,
                poisson_sampling=self.poisson,
                **(layered if self.layers_as_flat else {"max_grad_norm": 1.0}),
            )
        if self.layers_as_flat:
            optimizer.max_grad_norm = 1.0  # the norm of one layer, not of all together
        for number in range(PASSES):
            if self.off == number:
                optimizer.attach_step_hook(None)
                optimizer.noise_multiplier = 0.0
            for a, b in own if self.keeps_loader else loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(a), b).backward()
                skips = self.skips is not None and number >= self.skips
                (optimizer.original_optimizer if skips else optimizer).step()
        if self.keeps:
            self.accountant = engine.accountant
        return network, engine.get_epsilon(DELTA)


@cache
def engine_of(**mistake: Any) -> Engine:
    with watch_training() as seen:
        Client(**mistake).train()
    found = seen()
    assert found is not None
    return found


def answered(*engines: Engine | None) -> DpSgdAccountant:
    """Return the accountant after rounds in which one client has answered this."""
    auditor = DpSgdAccountant()
    auditor.begin(3, len(engines))
    for number, engine in enumerate(engines, start=1):
        view = RoundView(number, np.zeros(3), {0: np.zeros(3)}, np.zeros(3), RoundFacts())
        answer = replace(Answer(), engine=engine)
        auditor.observe(replace(view, answers={0: answer}))
    return auditor


@cache
def poisson(steps: int, noise: float = 1.0) -> float:
    releases = [Release(noise, 1.0, "poisson", RATE)] * steps
    return amplified(releases, DELTA, adjacency="add-remove").value


def test_a_training_is_watched_as_it_was() -> None:
    found = engine_of()
    assert found.steps == (Steps(1.0, RATE, STEPS),)
    assert (found.unnoised, found.per_pass) == (0, RECORDS // BATCH)
    assert found.is_poisson
    assert not found.has_batch_norm
    assert found.stated is not None
    assert found.stated[1] == DELTA


def test_nothing_is_watched_outside_a_call_or_without_an_engine() -> None:
    with watch_training() as seen:
        pass
    Client().train()
    assert seen() is None


def test_the_guarantee_composes_all_rounds_for_both_questions() -> None:
    found = answered(engine_of(), engine_of(), engine_of()).report()
    by_world = {f.adjacency: f for f in found}
    assert by_world["add-remove"].value == pytest.approx(poisson(3 * STEPS))
    assert by_world["replace"].value > by_world["add-remove"].value
    one = by_world["add-remove"]
    assert (one.kind, one.unit, one.observer) == ("guarantee", "record", "server")
    assert one.threat_model.participations == 3
    assert "Poisson samples at rate 0.25" in one.rule


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no Poisson samples": ({"poisson": False}, "batches are no Poisson samples"),
    "another loader": ({"keeps_loader": True}, "batches are no Poisson samples"),
    "noise off in later passes": ({"noise_off_after": 1}, "4 steps of the optimiser had no noise"),
    "optimiser without noise": ({"skips_noise_after": 1}, "4 steps of the optimiser had no noise"),
    "clip per layer as flat": ({"layers_as_flat": True}, "noise is smaller than the clip"),
    "batch norm left in": ({"has_batch_norm": True}, "a batch normalisation mixes"),
}


@pytest.fixture
def _silenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opacus refuses a batch norm; some projects silence that."""
    from opacus.grad_sample import GradSampleModule
    from opacus.validators import ModuleValidator

    monkeypatch.setattr(ModuleValidator, "validate", classmethod(lambda *_, **__: []))
    monkeypatch.setattr(GradSampleModule, "validate", classmethod(lambda *_, **__: []))


@pytest.mark.usefixtures("_silenced")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_and_the_stated_epsilon_is_not_what_is_delivered(name: str) -> None:
    mistake, words = MISTAKES[name]
    auditor = answered(engine_of(**mistake))
    assert any(words in said for said in auditor.noticed)
    [claim] = auditor.claimed
    assert (claim.source, claim.unit, claim.adjacency) == ("Opacus", "record", "add-remove")
    assert claim.delivered is None or claim.delivered > 1.3 * claim.epsilon
    assert words in claim.rule
    found = {f.adjacency: f.value for f in auditor.report()}
    # What is guaranteed nevertheless: a record is in one batch of each pass, and nobody is added.
    least = unamplified([Release(1.0, 1.0)] * 2, DELTA, participations=2, adjacency="zero-out")
    if name in ("no Poisson samples", "another loader"):
        assert found["zero-out"] == pytest.approx(least.value)
        assert "add-remove" not in found
    elif name == "clip per layer as flat":
        assert found["add-remove"] == pytest.approx(poisson(STEPS, 0.5))
    else:
        assert not found


def test_an_accountant_that_is_reset_each_round_is_named_and_one_that_is_kept_is_not() -> None:
    reset, kept = Client(keeps_accountant=False), Client()
    engines: dict[Client, list[Engine | None]] = {reset: [], kept: []}
    for client, seen in engines.items():
        for _ in range(2):
            with watch_training() as engine:
                client.train()
            seen.append(engine())
    wrong, right = answered(*engines[reset]), answered(*engines[kept])
    assert any("took part in 2 rounds" in said for said in wrong.noticed)
    assert not right.noticed
    [claim], [honest] = wrong.claimed, right.claimed
    assert claim.delivered == pytest.approx(poisson(2 * STEPS))
    assert claim.delivered > 1.1 * claim.epsilon
    assert honest.delivered is not None
    assert honest.delivered <= honest.epsilon * 1.02


def test_one_client_that_says_nothing_leaves_no_guarantee() -> None:
    auditor = answered(engine_of(), None)
    assert not auditor.report()
    assert any("1 client said nothing of DP-SGD" in said for said in auditor.noticed)
    assert not answered(None).noticed  # a project without Opacus


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20))
def test_whatever_a_client_answers_is_an_engine_or_nothing(values: list[float]) -> None:
    found = Engine.read(values)
    if found is not None:
        auditor = answered(replace(found, steps=found.steps[:1]))
        assert all(f.value >= 0 for f in auditor.report())


def test_engines_travel_as_they_are_and_what_is_none_is_nothing() -> None:
    engine = Engine((Steps(1.0, 0.25, 8), Steps(0.5, 0.1, 3)), 2, 4, False, True, (1.5, 1e-6))
    for one in (engine, Engine()):
        assert Engine.read(one.values) == one
    huge = [0.0, 1e99, 1.0, 0.0, 1.0, 1e-5]
    for wrong in (None, "x", [1], [1.0], [0.0, 1.0, 1.0, 0.0, 1.0], huge):
        assert Engine.read(wrong) is None
    with pytest.raises(AssertionError, match="must report at least one finding"):
        check_auditor(DpSgdAccountant)  # nobody answers there


@pytest.mark.parametrize("is_masked", [False, True])
def test_a_project_of_flower_gets_the_guarantee_of_its_rounds(
    federation: Callable[..., Any], is_masked: bool
) -> None:
    trainer = Client()

    class Private(federation):  # type: ignore[misc, valid-type]
        def arrays(self) -> ArrayRecord:
            return ArrayRecord(Client().network().state_dict())

        def trained(self, client: int, arrays: ArrayRecord) -> dict[str, np.ndarray]:
            trainer.accountant = None
            network, _ = trainer.train()
            return {name: t.numpy() for name, t in network.state_dict().items()}

        def weight(self, client: int) -> float:
            return 1

    mods = [MaskMod(seed=0), canary_mod] if is_masked else [canary_mod]
    clients, accountant = Private(3 if is_masked else 2, mods=mods), DpSgdAccountant()
    strategy = FedAvg(fraction_evaluate=0.0)
    audited = Audited(Masked(strategy) if is_masked else strategy, [accountant])
    audited.start(clients.grid, clients.arrays(), 1 if is_masked else 2)
    rows = {row.question.adjacency: row for row in audited.verdict.rows}
    if is_masked:  # what a client did would show through the masks
        assert not rows
        return
    assert rows["add-remove"].high == pytest.approx(poisson(2 * STEPS))
    [result] = audited.verdict.claims
    assert result.claim.source == "Opacus"
    assert result.claim.delivered == pytest.approx(poisson(2 * STEPS))
    assert math.isfinite(rows["replace"].high)


class Holder(Client):
    """Trains a linear model on planted records alone."""

    lr, noise = 4.0, 4.0

    def __init__(self, x: np.ndarray, y: np.ndarray, **mistake: Any) -> None:
        super().__init__(**mistake)
        self.own = x, y

    def network(self) -> torch.nn.Sequential:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(WIDE, 2))

    def records(self) -> tuple[np.ndarray, np.ndarray]:
        return self.own


def is_refuted(seed: int, **mistake: Any) -> bool:
    """Return whether planted records refute the ε that an engine states."""
    plan = PlantPlan(canaries=80, clients=1, out="nothing", seed=seed)
    generator = RandomPattern((WIDE,), 2, low=-1.0)
    x, y = (np.stack(part) for part in zip(*generator.draw(seed, plan.planted(0)), strict=True))
    holder = Holder(x.astype(np.float32), y, **mistake)
    network, epsilon = holder.train()

    def score(model: np.ndarray, records: Any) -> np.ndarray:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(model).float(), network.parameters())
        x, y = (torch.from_numpy(np.asarray(part)) for part in records)
        with torch.no_grad():
            scores = network(x.float())
        return torch.nn.functional.cross_entropy(scores, y, reduction="none").numpy()

    start, end = (
        torch.nn.utils.parameters_to_vector(net.parameters()).detach().double().numpy()
        for net in (holder.network(), network)
    )
    auditor = PlantedRecords(generator, score, plan, decoys=2000)
    auditor.begin(start.size, 1)
    auditor.observe(RoundView(1, start, {}, end, RoundFacts()))
    assert epsilon is not None
    claim = Claim(epsilon, DELTA, unit="record", adjacency="add-remove")
    [result] = judge(auditor.report(), claims=[claim]).claims
    assert result.bound is not None
    assert (result.bound.cap or 0) > 1.5 * epsilon  # it could have been refuted
    return result.is_refuted


@pytest.mark.slow
def test_a_right_engine_is_refuted_in_few_of_two_hundred_runs() -> None:
    """5 % of 200 are 10; 20 or more would happen by chance once in 300."""
    assert sum(is_refuted(seed) for seed in range(200)) <= 19
    # The control that it can be refuted at all: noise is off, and so is the accountant.
    assert sum(is_refuted(seed, noise_off_after=0) for seed in range(5)) == 5


def test_passes_that_were_begun_add_up_over_rounds() -> None:
    begun = Engine((Steps(1.0, RATE, 5),), per_pass=4, is_poisson=False)  # 2 of a record's batches
    found = {f.adjacency: f.value for f in answered(begun, begun).report()}
    least = unamplified([Release(1.0, 1.0)] * 4, DELTA, participations=4, adjacency="zero-out")
    assert found["zero-out"] == pytest.approx(least.value)


def test_more_steps_than_can_be_priced_guarantee_nothing() -> None:
    many = Engine(tuple(Steps(1.0 + i / 10, 1e-4, 1_000_000) for i in range(3)))
    assert Engine.read(many.values) == many
    assert not answered(many).report()
    assert Engine.read(Engine((Steps(1.0, 1e-4, 1_000_001),)).values) is None


def test_one_client_s_small_claim_is_not_made_for_the_others() -> None:
    honest = Engine((Steps(1.0, RATE, 8),), stated=(40.0, DELTA))
    liar = Engine((), unnoised=1, stated=(0.0, DELTA))
    auditor = DpSgdAccountant()
    auditor.begin(3, 1)
    answers = {0: replace(Answer(), engine=honest), 1: replace(Answer(), engine=liar)}
    nothing = np.zeros(3)
    view = RoundView(1, nothing, dict.fromkeys(answers, nothing), nothing, RoundFacts())
    auditor.observe(replace(view, answers=answers))
    [claim] = auditor.claimed
    assert (claim.epsilon, claim.delivered) == (40.0, None)
    # Nobody claims anything for a client that says nothing.
    silent = {0: answers[0], 1: Answer()}
    auditor.observe(replace(view, answers=silent))
    assert not auditor.claimed


def test_a_reply_that_is_left_out_counts_and_replays_end_the_guarantee() -> None:
    class Replaying(Auditor):
        def replays(self, server_round: int) -> bool:
            return server_round == 2

    engine = Engine((Steps(1.0, RATE, 8),))
    auditor, nothing = DpSgdAccountant(), np.zeros(3)
    auditor.join([Replaying()])
    auditor.begin(3, 2)
    answers = {0: replace(Answer(), engine=engine)}
    left_out = RoundView(1, nothing, {}, nothing, RoundFacts(), answers=answers)
    auditor.observe(left_out)
    assert {f.adjacency for f in auditor.report()} == {"add-remove", "replace"}
    auditor.observe(replace(left_out, server_round=2))
    assert not auditor.report()
    assert any("train again" in said for said in auditor.noticed)


def played(network: Any, optimizer: Any, **kind: Any) -> tuple[Engine | None, Any]:
    """Return what was seen of a pass over the records, and the private model."""
    from opacus import PrivacyEngine

    x, y = (torch.from_numpy(part) for part in Client().records())
    with watch_training() as seen:
        model, private, *rest, loader = PrivacyEngine(accountant="rdp").make_private(
            module=network,
            optimizer=optimizer,
            criterion=torch.nn.CrossEntropyLoss(),
            data_loader=DataLoader(TensorDataset(x, y), batch_size=BATCH),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            **kind,
        )
        criterion = rest[0] if rest else torch.nn.CrossEntropyLoss()
        for a, b in loader:
            private.zero_grad()
            criterion(model(a), b).backward()
            private.step()
    return seen(), model


def test_ghost_clipping_is_watched_and_adaptive_clipping_is_not_understood() -> None:
    def watched(**kind: Any) -> Engine | None:
        network = Client().network()
        return played(network, torch.optim.SGD(network.parameters(), lr=0.1), **kind)[0]

    ghost = watched(grad_sample_mode="ghost")
    assert ghost is not None
    assert (ghost.steps, ghost.unnoised) == ((Steps(1.0, RATE, RECORDS // BATCH),), 0)
    adaptive = {
        "target_unclipped_quantile": 0.5,
        "clipbound_learning_rate": 0.2,
        "max_clipbound": 10.0,
        "min_clipbound": 0.1,
        "unclipped_num_std": 1.0,
    }
    assert watched(clipping="adaptive", **adaptive) is None


def test_an_optimiser_that_is_kept_over_rounds_is_followed_once() -> None:
    network = Client().network()
    kept = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(3):
        engine, model = played(network, kept)
        assert engine is not None
        assert engine.unnoised == 0
        model.remove_hooks()
        network = model._module
