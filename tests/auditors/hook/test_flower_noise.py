"""Flower's own noise as claims: what it says, what it delivers, and who is believed."""

from __future__ import annotations

import itertools
import logging
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.client.mod import LocalDpMod as LegacyLocalDpMod
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.server.strategy import (
    DifferentialPrivacyServerSideFixedClipping as LegacyServerSideFixedClipping,
)
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.strategy import FedMedian as LegacyFedMedian
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedProx,
    Strategy,
)
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.auditors import (
    Audited,
    AuditedGrid,
    Auditor,
    Claim,
    LegacyAudited,
    OneShotCanaries,
    Project,
    SingleUpdates,
    canary_mod,
)
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.finding import Bound, Finding, ThreatModel
from leakmeter.auditors.hook.canary_order import Answer
from leakmeter.auditors.hook.guest_noise import LocalNoise, claims_of_mods, claims_of_strategy
from leakmeter.auditors.hook.run_audit import RunAudit
from leakmeter.auditors.verdict import sentences
from leakmeter.auditors.wording import Assumption
from tests.helpers.flower import NO_DIMENSIONS

SHIPPED = LocalDpMod(clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0, delta=1e-5)
DELTA = 1e-5


def claim_of(strategy: Any, delta: float = DELTA) -> Claim:
    [claim] = claims_of_strategy(strategy, delta)
    return claim


# LocalDpMod.


@pytest.mark.parametrize("kind", [LocalDpMod, LegacyLocalDpMod])
def test_the_mod_that_a_platform_ships_claims_10_and_delivers_two_hundred_million(
    kind: Any,
) -> None:
    [claim] = claims_of_mods([fixedclipping_mod, kind(1.0, 1e-4, 10.0, 1e-5)])
    assert (claim.epsilon, claim.delta, claim.against, claim.per) == (10.0, 1e-5, "server", "round")
    assert (claim.source, claim.clip_norm) == ("LocalDpMod", 1.0)
    assert claim.delivered == pytest.approx(2.131e8, rel=1e-3)
    said = sentences.claim_sentence(claim)
    assert "by the exact formula its parameters deliver ε = 2.1e+08 (noise std 4.84e-05" in said


def test_the_classical_formula_delivers_what_the_exact_one_says() -> None:
    """A request for 10 gives 10.39, and one for 50 gives 96.4, as the mathematics page lists."""
    for asked, given_ in ((10.0, 10.39), (50.0, 96.4)):
        [claim] = claims_of_mods([LocalDpMod(2.0, 2.0, asked, 1e-5)])
        assert claim.delivered == pytest.approx(given_, abs=0.05)


@NO_DIMENSIONS
def test_the_noise_that_is_priced_is_the_noise_that_the_mod_adds(federation: Any) -> None:
    """Over 132 parameters of 6 clients the std is known to 2.5 %; 5 of these are allowed."""
    mod = LocalDpMod(clipping_norm=1e-9, sensitivity=3.0, epsilon=7.0, delta=1e-4)
    of = federation(mods=[mod])
    messages = FedAvg(fraction_evaluate=0.0, min_available_nodes=6).configure_train(
        1, of.arrays(), ConfigRecord(), of.grid
    )
    sent = {name: array.numpy() for name, array in of.arrays().items()}
    noise = [
        (reply.content["arrays"][name].numpy() - sent[name]).ravel()
        for reply in of.grid.send_and_receive(messages)
        for name in "wb"
    ]
    found = LocalNoise.of([mod])
    assert found is not None
    assert np.concatenate(noise).std() == pytest.approx(found.std, rel=0.125)


def test_no_noise_and_no_epsilon_have_their_limits() -> None:
    assert claims_of_mods([LocalDpMod(1.0, 0.0, 5.0, 1e-5)])[0].delivered == math.inf
    assert claims_of_mods([LocalDpMod(1.0, 1.0, 0.0, 1e-5)])[0].delivered == 0.0


def test_parameters_that_mean_nothing_and_mods_of_others_claim_nothing() -> None:
    class Own(LocalDpMod):
        """May do anything."""

    named = type("LocalDpMod", (), {"clipping_norm": 1.0})()
    assert claims_of_mods([LocalDpMod(1.0, 1.0, 5.0, 0.0)]) == []
    assert claims_of_mods([LocalDpMod(1.0, 1.0, 5.0, 2.0)]) == []
    assert claims_of_mods([Own(1.0, 1.0, 5.0, 1e-5), named, fixedclipping_mod]) == []


# Flower's wrappers.


@pytest.mark.parametrize("kind", ["message", "legacy"])
def test_a_noise_multiplier_claims_one_release_and_delivers_it_for_equal_weights(kind: str) -> None:
    of = {
        "message": DifferentialPrivacyServerSideFixedClipping(FedProx(), 0.8, 3.0, 20),
        "legacy": LegacyServerSideFixedClipping(LegacyFedAvg(), 0.8, 3.0, 20),
    }[kind]
    claim = claim_of(of)
    assert claim.epsilon == pytest.approx(epsilon_gaussian(DELTA, 1 / 0.8))
    assert (claim.against, claim.per, claim.adjacency) == ("outsider", "round", "zero-out")
    assert (claim.clip_norm, claim.source) == (3.0, "DifferentialPrivacyServerSideFixedClipping")
    # One client with all the weight moves the mean by C, and the noise is z·C/n.
    assert claim.delivered == pytest.approx(epsilon_gaussian(DELTA, 20 / 0.8))
    assert "clients state their own weights" in claim.rule


@pytest.mark.parametrize(("weight", "moves"), [(1.0, 0.5 / 6), (1e12, 0.5)])
def test_the_weights_that_clients_state_undo_the_clip_as_priced(
    federation: Any, weight: float, moves: float
) -> None:
    """One update of clip norm C moves the mean by C/n at equal weights, by C if it has them all."""

    class OneMoves(federation):  # type: ignore[misc]
        def weight(self, client: int) -> float:
            return weight if client == 0 else 1.0

        def trained(self, client: int, arrays: Any) -> Any:
            same = {name: array.numpy() for name, array in arrays.items()}
            moved = {**super().trained(client, arrays), "n": same["n"]}
            # Flower divides by the norm of an update, so nobody may send none at all.
            return moved if client == 0 else {**same, "b": same["b"] + 1e-9}

    of, inner = OneMoves(), FedAvg(fraction_evaluate=0.0, min_available_nodes=6)
    wrapper = DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 0.5, 6)
    start = of.arrays()
    sent = wrapper.configure_train(1, start, ConfigRecord(), of.grid)
    after, _ = wrapper.aggregate_train(1, of.grid.send_and_receive(sent))
    assert after is not None
    moved = [np.linalg.norm(after[name].numpy() - start[name].numpy()) for name in "wb"]
    assert math.hypot(*moved) == pytest.approx(moves, rel=1e-3)


def test_an_accountant_of_flowers_checks_weights_and_states_a_budget() -> None:
    flower = pytest.importorskip("flwr.supercore.privacy_accounting", reason="an older Flower")
    from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

    no_sampling = flower.SamplingMethod.NO_AMPLIFICATION
    known = (flower.NeighboringRelation.ADD_OR_REMOVE_ONE, no_sampling)
    accountant = RdpAccountant(flower.PrivacyConfig(1e-6, 100, *known, max_epsilon=8.0))
    of = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 2.0, 10, accountant=accountant)
    each, budget = claims_of_strategy(of, DELTA)
    assert each.delivered == each.epsilon == pytest.approx(4.377178, abs=1e-6)
    assert (budget.epsilon, budget.delta, budget.per) == (8.0, 1e-6, "run")


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (DifferentialPrivacyServerSideFixedClipping(FedAdam(), 1.0, 1.0, 10), "FedAdam makes"),
        (LegacyServerSideFixedClipping(LegacyFedMedian(), 1.0, 1.0, 10), "FedMedian makes"),
        (DifferentialPrivacyClientSideFixedClipping(FedAvg(), 1.0, 1.0, 10), "clip themselves"),
        (DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 0.5, 20), "of the next one"),
        (DifferentialPrivacyClientSideAdaptiveClipping(FedAvg(), 0.5, 20), "of the next one"),
    ],
)
def test_what_parameters_do_not_say_is_not_delivered_and_has_its_reason(
    strategy: Any, why: str
) -> None:
    claim = claim_of(strategy)
    assert claim.delivered is None
    assert why in claim.rule
    assert "what it delivers is not known (" in sentences.claim_sentence(claim)


def test_an_adaptive_wrapper_claims_the_multiplier_that_its_user_typed() -> None:
    """It keeps a larger one for the updates, and spends the rest on the count of clipped ones."""
    claim = claim_of(DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 0.5, 20))
    assert claim.epsilon == pytest.approx(epsilon_gaussian(DELTA, 1 / 0.5))


def test_wrappers_without_noise_and_plain_strategies_claim_nothing() -> None:
    silent = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 1.0, 10)
    for strategy in (silent, FedAvg(), LegacyFedAvg(), None):
        assert list(claims_of_strategy(strategy, DELTA)) == []  # type: ignore[arg-type]


def test_a_wrapper_that_lost_its_attributes_ends_nothing() -> None:
    broken = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 10)
    del broken.clipping_norm
    assert list(claims_of_strategy(broken, DELTA)) == []
    exact = DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 0.5, 40)
    exact.clipped_count_stddev = 0.0
    assert list(claims_of_strategy(exact, DELTA)) == []


# On the wire.

NUMBERS = st.one_of(
    st.floats(), st.integers(), st.booleans(), st.none(), st.text(max_size=3), st.binary(max_size=3)
)


@given(st.one_of(NUMBERS, st.lists(NUMBERS, max_size=6)))
def test_whatever_a_client_sends_as_its_noise_is_read_as_parameters_or_as_nothing(
    sent: Any,
) -> None:
    found = LocalNoise.read(sent)
    if found is not None:
        assert found.values == sent
        assert math.isfinite(found.claim.epsilon)
        assert found.claim.delivered is not None
        assert found.claim.delivered >= 0


EXTREMES = (0.0, 5e-324, 1e-5, 1.0, 1.7e308)


def test_parameters_at_the_ends_of_floats_are_priced_and_end_no_run() -> None:
    read = [LocalNoise.read(list(four)) for four in itertools.product(EXTREMES, repeat=4)]
    claims = [noise.claim for noise in read if noise is not None]
    assert len(claims) > 100
    for claim in claims:
        assert claim.delivered is not None
        assert claim.delivered >= 0
        assert sentences.claim_sentence(claim)


def heard(answers: list[Answer]) -> tuple[Claim, ...]:
    audit = RunAudit(None, [])
    audit._claims.note_answers(dict(enumerate(answers)))
    return audit.claims


def test_most_clients_make_a_claim_and_one_does_not() -> None:
    noise = LocalNoise.of([SHIPPED])
    assert noise is not None
    lie = replace(noise, epsilon=1e-9)
    honest, liar, silent = (Answer(local_noise=one) for one in (noise, lie, None))
    assert heard([honest] * 3 + [liar]) == (noise.claim,)
    assert heard([honest, liar]) == heard([silent] * 3 + [liar]) == heard([liar, silent]) == ()


def test_a_liar_that_is_the_only_seat_of_a_round_neither_makes_a_claim_nor_hides_one() -> None:
    noise = LocalNoise.of([SHIPPED])
    assert noise is not None
    audit = RunAudit(None, [])
    audit._claims.note_answers(dict.fromkeys(range(5), Answer()))
    audit._claims.note_answers({4: Answer("played", inner=("LocalDpMod",), local_noise=noise)})
    assert audit.claims == ()
    assert not audit._claims._is_bypassed


# In a run.


class Looking(Auditor):
    """Notes what is claimed before anybody trains."""

    name = "looking"

    def __init__(self) -> None:
        self.known: list[tuple[Claim, ...]] = []

    def limits(self, project: Project) -> Any:
        self.known.append(project.claims)
        return ()


def audited(of: Any, strategy: Strategy | None = None, **more: Any) -> Audited:
    plain = FedAvg(fraction_evaluate=0.0, min_train_nodes=6, min_available_nodes=6)
    auditors = more.pop("auditors", None) or [OneShotCanaries(seats=2), SingleUpdates()]
    made = Audited(strategy or plain, auditors, **more)
    made.start(of.grid, of.arrays(), num_rounds=more.pop("rounds", 6))
    return made


def test_what_is_known_beforehand_reaches_auditors_and_log_before_round_1(
    federation: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flwr")
    looking, plain = Looking(), FedAvg(fraction_evaluate=0.0, min_available_nodes=6)
    wrapper = DifferentialPrivacyServerSideFixedClipping(plain, 1.0, 1.0, 6)
    audited(federation(mods=[canary_mod]), wrapper, auditors=[looking], claims="3 server; 4")
    first, after_first_round = looking.known
    assert first == after_first_round
    assert [claim.epsilon for claim in first] == pytest.approx([3.0, 4.0, 4.377], abs=1e-3)
    lines = [record.getMessage() for record in caplog.records]
    begin = next(i for i, line in enumerate(lines) if "[ROUND 1/" in line)
    said = [i for i, line in enumerate(lines) if " claims ε ≤ " in line]
    assert len(said) == 3
    assert max(said) < begin


@NO_DIMENSIONS
def test_local_noise_of_a_client_app_is_heard_from_the_clients_and_refuted(federation: Any) -> None:
    made = audited(federation(mods=[SHIPPED, canary_mod]))
    [result] = made.verdict.claims
    assert result.claim == claims_of_mods([SHIPPED])[0]
    assert result.is_refuted
    assert made.verdict.headline[0] == "claim"
    assert sentences.headline(made.verdict).startswith("A claim of LocalDpMod is refuted: ε ≤ 10")


@NO_DIMENSIONS
def test_local_noise_that_canaries_bypass_is_no_claim_and_its_bounds_have_a_condition(
    federation: Any,
) -> None:
    """Behind `canary_mod` the noise is on clients' own updates alone: ε of canaries is another."""
    made = audited(federation(mods=[canary_mod, SHIPPED]), claims=[Claim(1.0, against="server")])
    [result] = made.verdict.claims
    assert result.claim.source == "user"
    assert not result.is_refuted
    bounds = [f for f in made.findings() if f.kind == "lower_bound" and f.server_round is None]
    assert bounds
    assert all(f.is_conditional for f in bounds)


class Shown:
    """A mod of the user's own, which may add noise."""

    def __call__(self, message: Any, context: Any, call_next: Any) -> Any:
        return call_next(message, context)


def test_a_user_s_claim_is_not_tested_by_canaries_that_bypass_a_mod_of_their_own(
    federation: Any,
) -> None:
    """Nobody knows whether it protects clients. What canaries leak is shown all the same."""
    inside, outside = (
        audited(federation(mods=mods), claims=[Claim(1.0, against="server")]).verdict
        for mods in ([canary_mod, Shown()], [Shown(), canary_mod])
    )
    assert [v.claims[0].is_refuted for v in (inside, outside)] == [False, True]
    said = sentences.headline(outside)  # where a mod may have clipped, seats refuse to send more
    assert "test updates 10 times as long as clients' own" in said
    assert "times as long" not in sentences.headline(inside)
    assert inside.claims[0].audit is None
    assert inside.rows[0].low == outside.rows[0].low > 20


def test_a_claim_of_flowers_own_noise_is_about_that_noise_alone() -> None:
    bound = Finding.of(
        Bound(30.0, "lower_bound", "", 1e-5, 0.95, assumptions=(Assumption.BYPASSED_TRAINING,)),
        auditor="single-update",
        quantity="epsilon",
        adjacency="zero-out",
        threat_model=ThreatModel(
            observer="server", sees="updates", holds="canary", knows_cohort=True, participations=1
        ),
    )
    assert claims_of_mods([SHIPPED])[0].is_tested_by(bound)
    assert not Claim(10, per="round").is_tested_by(bound)


@NO_DIMENSIONS
def test_a_canary_is_no_longer_than_an_update_that_a_mod_behind_it_has_clipped(
    federation: Any,
) -> None:
    """Ten times as long, it would refute what a wrapper with this clip claims, though it holds."""

    def lengths(mods: list[Any]) -> list[float]:
        class Lengths(OneShotCanaries):
            def observe(self, view: Any) -> Any:
                played = [c for c, order in view.instructed.items() if order.included]
                found.extend(float(np.linalg.norm(view.replies[c])) for c in played)
                return super().observe(view)

        found: list[float] = []
        plain = FedAvg(fraction_evaluate=0.0, min_train_nodes=6, min_available_nodes=6)
        wrapper = DifferentialPrivacyClientSideFixedClipping(plain, 1.0, 0.01, 6)
        audited(
            federation(mods=mods),
            wrapper,
            auditors=[Lengths(seats=2, include="all")],
            claims=[Claim(5.0, against="outsider")],
        )
        assert found
        return found

    assert 0.005 < max(lengths([canary_mod, fixedclipping_mod])) < 0.0101
    assert max(lengths([canary_mod])) > 0.05


@NO_DIMENSIONS
def test_what_clients_said_before_an_interruption_does_not_change_what_auditors_plan(
    federation: Any,
) -> None:
    large = LocalDpMod(1.0, 1e-4, 10.0, 1e-3)
    fed = federation(mods=[large, canary_mod])
    first = audited(fed, auditors=[SingleUpdates(seats=2)])
    assert [claim.delta for claim in first.audit.claims] == [1e-3]
    again = SingleUpdates(seats=2)
    plain = FedAvg(fraction_evaluate=0.0, min_train_nodes=6, min_available_nodes=6)
    audit = RunAudit(plain, [again])
    audit.restore(first.audit.state())
    audit.begin(fed.arrays(), 6, 1.0)
    assert audit.claims == first.audit.claims
    assert audit.auditors == [again]
    assert again.num_bounds == first.audit.auditors[0].num_bounds == 1


def test_every_hook_takes_claims(federation: Any) -> None:
    grid = federation(mods=[canary_mod]).grid
    hooks = (
        Audited(FedAvg(), [], claims="3"),
        AuditedGrid(grid, [], num_rounds=1, claims=[Claim(3)]),
        LegacyAudited(LegacyFedAvg(), [], num_rounds=1, claims=["3@1e-5 server run"]),
    )
    assert [hook.audit.claims for hook in hooks] == [(Claim(3),)] * 3


def test_wrong_claims_are_refused_before_any_work() -> None:
    for wrong, kind in (("ten", ValueError), ([3], TypeError), (["10 sever"], ValueError)):
        with pytest.raises(kind, match="claims must be "):
            Audited(FedAvg(), [], claims=wrong)
