"""The mutual-information auditor: the contract, the rounds it audits, and what it may claim."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from leakmeter.auditors import MutualInformation, check_auditor
from leakmeter.auditors.auditor import Canary, RoundFacts, RoundView
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.information import (
    IndependentWhitened,
    Look,
    Theory,
    batch_entropy,
    gaussian_information,
)
from leakmeter.auditors.information.findings import QUANTITY, WHOLE
from leakmeter.auditors.sampler import PerRound

DIM, CLIENTS = 20, 6
EYE = np.eye(DIM)


def view_of(server_round: int = 1, *, clients: int = CLIENTS, dim: int = DIM, **facts) -> RoundView:
    """Return a round of so many clients with equal weights."""
    known = {"num_clients": clients, "total_weight": float(clients)}
    sent = np.zeros(dim)
    replies = dict.fromkeys(range(clients), sent)
    return RoundView(server_round, sent, replies, sent, RoundFacts(**(known | facts)))


def made(sampler, **settings) -> MutualInformation:
    """Return the auditor with settings of all its values side by side."""
    grouped = {
        name: value(**{f.name: settings.pop(f.name) for f in fields(value) if f.name in settings})
        for name, value in (("look", Look), ("theory", Theory))
    }
    return MutualInformation(sampler, **grouped, **settings)


def audited(sampler, *views: RoundView, **settings) -> tuple[list[Finding], list[Finding]]:
    """Return the findings of the last round and of the run."""
    watch = settings.pop("watch", None)
    auditor = made(sampler, **({"draws": 30, "rank": 5} | settings))
    auditor.watch = watch
    auditor.begin(DIM, len(views))
    *_, last = [list(auditor.observe(view)) for view in views]
    return last, list(auditor.report())


def test_it_keeps_the_contract_of_auditors(gaussian_sampler) -> None:
    sampler = gaussian_sampler(np.eye(128))
    check_auditor(lambda: made(sampler, every=2, cases=[IndependentWhitened(1.0)]))
    check_auditor(lambda: MutualInformation(sampler, target=3, colluding=(5,)))


@pytest.mark.parametrize("clients", [2, 6, 30])
def test_gaussian_clients_follow_the_closed_form(gaussian_sampler, clients) -> None:
    found, _ = audited(gaussian_sampler(EYE), view_of(clients=clients), draws=60)
    truth = gaussian_information(5, clients)
    assert found[0].kind == "approximation"
    assert found[0].value == pytest.approx(truth.bits, rel=0.05)
    assert found[0].details["nats"] == pytest.approx(found[0].value * math.log(2))
    assert found[0].details["share_of_gaussian"] == pytest.approx(1, rel=0.05)
    # In all 20 coordinates Gaussians of one law would give four times as much.
    assert found[1].value == pytest.approx(4 * truth.bits)


def test_one_client_in_all_coordinates_with_enough_draws(gaussian_sampler) -> None:
    for target in (None, 2):
        found, _ = audited(gaussian_sampler(EYE), view_of(), draws=400, rank=None, target=target)
        truth = gaussian_information(DIM, CLIENTS).bits
        assert found[0].value == pytest.approx(truth, abs=4 * found[0].details["std_error_bits"])
        assert found[0].details["std_error_bits"] < 0.15 * truth
        assert target in (None, found[0].details["target"])
        assert len(found[0].details["each"]) == 1


def test_too_few_draws_for_all_coordinates_are_refused_in_words(gaussian_sampler) -> None:
    with pytest.raises(ValueError, match=r"draws must be above 20 .* got 20: take more, or give a"):
        audited(gaussian_sampler(EYE), view_of(), draws=20, rank=None)
    dealt = gaussian_sampler(EYE, game="partition")
    with pytest.raises(ValueError, match=r"draws must be above 40 .* game partition, got 30"):
        audited(dealt, view_of(), draws=30, rank=None)


def test_shares_of_one_deal_are_measured_by_their_joint_law(gaussian_sampler) -> None:
    # This sampler's clients are independent all the same, so the closed form holds.
    dealt = gaussian_sampler(EYE, game="partition")
    found, _ = audited(dealt, view_of(), draws=300)
    truth = gaussian_information(5, CLIENTS).bits
    assert found[0].value == pytest.approx(truth, rel=0.15)
    assert "joint Gaussian" in found[0].rule
    assert "game partition" in found[0].threat_model
    single, _ = audited(dealt, view_of(), draws=300, target=1)
    assert single[0].value == pytest.approx(truth, abs=4 * single[0].details["std_error_bits"])


def test_directions_come_from_other_draws_and_their_share_is_not_flattered(
    gaussian_sampler,
) -> None:
    # 8 of 20 equal directions hold 40 %; on the draws that chose them it would look like more.
    found, _ = audited(gaussian_sampler(EYE), view_of(), rank=8, fit=6)
    assert found[0].details["variance_kept"] == pytest.approx(0.4, abs=0.06)
    # Fewer directions than asked for are all there are.
    flat = gaussian_sampler(EYE[:, :3])
    found, _ = audited(flat, view_of(), rank=8)
    assert found[0].details["rank"] == 3
    assert found[0].value == pytest.approx(gaussian_information(3, CLIENTS).bits, rel=0.05)


def test_few_draws_of_few_clients_are_looked_at_along_fewer_directions(gaussian_sampler) -> None:
    found, _ = audited(gaussian_sampler(EYE), view_of(clients=3), draws=8, rank=8)
    assert found[0].details["rank"] == 3
    dealt = gaussian_sampler(EYE, game="partition")
    found, _ = audited(dealt, view_of(clients=3), draws=8, rank=8)
    assert found[0].details["rank"] == 2
    with pytest.raises(ValueError, match=r"draws must be more for 2 clients .* rerun, got 5"):
        audited(gaussian_sampler(EYE, game="rerun"), view_of(clients=2), draws=5)


def test_noise_of_the_mechanism_hides_from_those_who_see_it(gaussian_sampler) -> None:
    facts = {"noise_std": 2.0, "divisor": float(CLIENTS)}
    variance = (2.0 * CLIENTS) ** 2
    for observer, hides in (("server", 0.0), ("outsider", variance)):
        found, _ = audited(gaussian_sampler(EYE), view_of(**facts), draws=60, observer=observer)
        exact = 2.5 * math.log2(1 + 1 / (CLIENTS - 1 + hides))
        assert found[0].value == pytest.approx(exact, rel=0.1)
        assert found[0].observer == observer
    shares = {"share_std": 2.0}
    found, _ = audited(gaussian_sampler(EYE), view_of(**shares), draws=60)
    exact = 2.5 * math.log2(1 + 1 / (CLIENTS - 1 + CLIENTS * 4.0))
    assert found[0].value == pytest.approx(exact, rel=0.1)


def test_who_colludes_is_taken_off_the_sum_with_its_share_of_the_noise(gaussian_sampler) -> None:
    found, _ = audited(gaussian_sampler(EYE), view_of(), draws=80, colluding=(0, 3, 4))
    assert found[0].value == pytest.approx(gaussian_information(5, 3).bits, rel=0.05)
    assert (found[0].details["hidden"], found[0].details["colluding"]) == (3, 3)
    assert "3 colluding clients" in found[0].threat_model
    noisy = view_of(share_std=1.0)
    found, _ = audited(gaussian_sampler(EYE), noisy, draws=80, colluding=(0, 3, 4))
    assert found[0].value == pytest.approx(2.5 * math.log2(1 + 1 / (2 + 3.0)), rel=0.05)
    few, _ = audited(gaussian_sampler(EYE), view_of(), cases=[IndependentWhitened(0.0)])
    more, _ = audited(
        gaussian_sampler(EYE), view_of(), cases=[IndependentWhitened(0.0)], colluding=(0, 3, 4)
    )
    assert more[-1].kind == few[-1].kind == "guarantee"
    assert more[-1].value == pytest.approx(gaussian_information(DIM, 3).bits)
    assert more[-1].value > few[-1].value


def test_canary_seats_do_not_hide_anybody(gaussian_sampler) -> None:
    view = replace(view_of(), instructed={1: Canary(0, 0), 4: Canary(1, 0)})
    found, _ = audited(gaussian_sampler(EYE), view)
    assert found[0].details["hidden"] == CLIENTS - 2
    assert set(found[0].details["each"]) == {0, 2, 3, 5}


def test_a_sum_of_one_update_is_that_update_unless_noised(gaussian_sampler) -> None:
    (finding,), (total, alike) = audited(gaussian_sampler(EYE), view_of(clients=1))
    assert finding.value == total.value == alike.value == math.inf
    assert finding.kind == "diagnostic"
    assert "in the clear" in finding.rule
    (noised,), _ = audited(gaussian_sampler(EYE), view_of(clients=1, share_std=2.0), draws=100)
    assert noised.value == pytest.approx(2.5 * math.log2(1 + 1 / 4), rel=0.2)


def test_updates_that_never_vary_give_an_honest_zero(gaussian_sampler) -> None:
    (finding,), (total, _) = audited(gaussian_sampler(EYE, frozen=True), view_of())
    assert finding.value == total.value == 0.0
    assert "nothing is random" in finding.rule


@pytest.mark.parametrize(("every", "rounds"), [(0, [1]), (2, [1, 3, 5]), (1, [1, 2, 3, 4, 5])])
def test_it_audits_the_rounds_that_are_due_and_sums_them(gaussian_sampler, every, rounds) -> None:
    auditor = made(gaussian_sampler(EYE), every=every, rank=3)
    auditor.begin(DIM, 5)
    single = [auditor.observe(view_of(r)) for r in range(1, 6)]
    assert [r for r in range(1, 6) if single[r - 1]] == rounds
    total, alike = auditor.report()
    assert total.details["rounds"] == rounds
    assert "sum over the audited rounds" in total.rule
    assert "along at most 3 directions; not that of the run" in total.rule
    assert alike.value == pytest.approx(len(rounds) * gaussian_information(DIM, CLIENTS).bits)
    per_client = [sum(found[0].details["each"][c] for found in single if found) for c in range(6)]
    assert total.value == pytest.approx(max(per_client))
    assert total.details["each"] == pytest.approx(dict(enumerate(per_client)))


def test_a_clients_rounds_are_its_own(gaussian_sampler) -> None:
    views = [view_of(r) for r in range(1, 5)]
    views[2] = replace(views[2], replies=dict.fromkeys(range(5), views[2].sent))  # without 5
    cases = [IndependentWhitened(0.0)]
    _, (total, _, bound) = audited(gaussian_sampler(EYE), *views, target=5, cases=cases, every=3)
    assert total.sample_sizes == {"audited rounds": 2}  # rounds 1 and 4; 3 was not due
    assert bound.kind == "guarantee"
    assert "Corollary 1 over 3 rounds" in bound.rule
    assert bound.value == pytest.approx(3 * gaussian_information(DIM, CLIENTS).bits)


def test_a_target_that_never_takes_part_has_nothing_to_fear(gaussian_sampler) -> None:
    found, (total,) = audited(gaussian_sampler(EYE), view_of(), target=17)
    assert found == []
    assert total.value == 0.0
    assert "client 17 took part in no round" in total.rule


def test_the_entropy_of_the_batch_caps_the_figure(gaussian_sampler) -> None:
    limit = batch_entropy(5, 2)  # 3.3 bits
    found, _ = audited(
        gaussian_sampler(EYE, game="rerun"),
        view_of(clients=2),
        draws=90,
        rank=19,
        limit=lambda _: limit,
    )
    assert found[0].cap == pytest.approx(math.log2(10))
    assert found[0].saturated
    assert found[0].details["share_of_limit"] > 1
    free, _ = audited(gaussian_sampler(EYE, game="rerun"), view_of(), limit=lambda _: None)
    assert free[0].cap is None


def test_the_share_of_an_entropy_is_given_to_those_who_ask(gaussian_sampler) -> None:
    plain, _ = audited(gaussian_sampler(EYE), view_of())
    asked, _ = audited(gaussian_sampler(EYE), view_of(), entropy_bits=32 * 567)
    assert "share_of_entropy" not in plain[0].details
    assert asked[0].details["share_of_entropy"] == pytest.approx(asked[0].value / 18144)


def test_critics_are_asked_only_if_wanted(gaussian_sampler, monkeypatch) -> None:
    from leakmeter.auditors.information.mine import estimator as mine

    seen = []

    def quick(x, z, *, seed, **_):
        seen.append((x.shape, z.shape))
        short = mine.Training(steps=2, hidden=5)
        return real(x, z, seed=seed, training=short, seeds=2, nulls=2)

    real = mine.estimate
    monkeypatch.setattr(mine, "estimate", quick)
    audited(gaussian_sampler(EYE), view_of())
    assert not seen
    found, _ = audited(gaussian_sampler(EYE), view_of(), draws=60, estimators=("log-det", "mine"))
    assert seen == [((60, 5), (60, 5))]
    assert [f.kind for f in found] == ["approximation", "estimate", "approximation"]
    critics = found[1]
    assert critics.null_band is not None
    assert critics.cap == pytest.approx(math.log2(60))
    assert {"trained", "held_out_nwj", "null_trained"} <= set(critics.details)
    (only, _), run = audited(gaussian_sampler(EYE), view_of(), draws=60, estimators=("mine",))
    assert only.kind == "estimate"
    assert run == []


def test_progress_is_told(gaussian_sampler) -> None:
    told = []
    audited(
        gaussian_sampler(EYE), view_of(), watch=lambda stage, share: told.append((stage, share))
    )
    assert told[0] == ("directions", 0.0)
    assert told[-1] == ("draws", 1.0)


def test_a_mechanism_that_changes_has_a_sampler_for_each_round(gaussian_sampler) -> None:
    asked = []

    def of(view: RoundView):
        asked.append(view.server_round)
        return gaussian_sampler(EYE)

    audited(PerRound(of), *[view_of(r) for r in range(1, 5)], every=2)
    assert asked == [1, 3]


def test_a_sampler_that_does_not_fit_the_mechanism_is_refused(gaussian_sampler) -> None:
    class Noisy(gaussian_sampler):
        has_noise = True

    with pytest.raises(ValueError, match="sampler must leave the clients' noise out"):
        audited(Noisy(EYE), view_of())
    with pytest.raises(ValueError, match=r"weigh all clients 1 .* got a scale of 3"):
        audited(gaussian_sampler(EYE, scale=3.0), view_of(divisor=6.0))


def test_all_figures_are_in_bits_and_of_clients(gaussian_sampler) -> None:
    found, run = audited(gaussian_sampler(EYE), view_of(), cases=[IndependentWhitened(2.0)])
    assert [f.quantity for f in found] == [QUANTITY, WHOLE, WHOLE]
    for finding in (*found, *run):
        assert finding.quantity.startswith(QUANTITY)
        assert (finding.unit, finding.adjacency) == ("client", None)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"every": -1}, r"every must be in \[0, inf\), got -1"),
        ({"draws": 3}, r"draws must be in \[4, inf\), got 3"),
        ({"draws": 10, "estimators": ("mine",)}, r"draws must be in \[20, inf\), got 10"),
        ({"rank": 0}, r"rank must be in \[1, inf\), got 0"),
        ({"fit": 1}, r"fit must be in \[4, inf\), got 1"),
        ({"estimators": ()}, r"estimators must be one or more of log-det, mine, got \(\)"),
        ({"estimators": ("knn",)}, "estimators must be one or more of log-det, mine"),
        ({"observer": "wire"}, "observer must be 'server' or 'outsider', got 'wire'"),
        ({"target": -1}, "target must be None or a client, 0 or more .* got -1"),
        ({"target": 2, "colluding": (2,)}, "not colluding, got 2"),
        ({"entropy_bits": 0.0}, r"entropy_bits must be in \(0, inf\), got 0"),
        ({"batch_size": 0}, r"batch_size must be in \[1, inf\), got 0"),
    ],
)
def test_wrong_arguments_are_named(gaussian_sampler, wrong, words) -> None:
    with pytest.raises(ValueError, match=words):
        made(gaussian_sampler(EYE), **wrong)


def test_a_function_in_place_of_a_sampler_is_refused_at_once() -> None:
    words = "sampler must be an UpdateSampler, got function; wrap .* in PerRound"
    with pytest.raises(TypeError, match=words):
        MutualInformation(lambda _: None)  # type: ignore[arg-type]
