"""The mutual-information auditor: the contract, the rounds it audits, and what it may claim."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest

from leakmeter.auditors import MutualInformation, check_auditor
from leakmeter.auditors.auditor import (
    Canary,
    Project,
    RoundView,
    UnableError,
)
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.information.draws import DrawPlan
from leakmeter.auditors.information.mutual_information import QUANTITY, WHOLE
from leakmeter.auditors.information.theory import (
    IndependentWhitened,
    LogConcaveWhitened,
    Theory,
    gaussian_information,
    update_entropy,
)
from leakmeter.auditors.wording import Assumption, claim
from tests.helpers.refusals import refuses
from tests.helpers.rounds import round_of

DIM, CLIENTS = 20, 6
EYE = np.eye(DIM)


view_of = partial(round_of, clients=CLIENTS, dim=DIM)


def made(sampler, **settings) -> MutualInformation:
    """Return the auditor with settings of all its values side by side."""
    grouped = {
        name: value(**{f.name: settings.pop(f.name) for f in fields(value) if f.name in settings})
        for name, value in (("plan", DrawPlan), ("theory", Theory))
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


def each_of(finding: Finding) -> dict[int, float]:
    """Return the bits of each client."""
    (spread,) = finding.details
    return dict(zip(spread.clients, spread.values, strict=True))


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
    assert found[0].facts["nats"] == pytest.approx(found[0].value * math.log(2))
    assert found[0].facts["share_of_gaussian"] == pytest.approx(1, rel=0.05)
    # In all 20 coordinates alike Gaussian clients would give four times as much.
    assert found[1].value == pytest.approx(4 * truth.bits)


def test_one_client_in_all_coordinates_with_enough_draws(gaussian_sampler) -> None:
    for target in (None, 2):
        found, _ = audited(gaussian_sampler(EYE), view_of(), draws=400, rank=None, target=target)
        truth = gaussian_information(DIM, CLIENTS).bits
        assert found[0].value == pytest.approx(truth, abs=4 * found[0].facts["std_error_bits"])
        assert found[0].facts["std_error_bits"] < 0.15 * truth
        assert target in (None, found[0].facts["target"])
        assert len(each_of(found[0])) == 1


def test_too_few_draws_for_all_coordinates_are_refused_in_words(gaussian_sampler) -> None:
    with pytest.raises(UnableError, match=r"above 20 .* got 20: use more, or give a"):
        audited(gaussian_sampler(EYE), view_of(), draws=20, rank=None)
    dealt = gaussian_sampler(EYE, game="partition")
    with pytest.raises(UnableError, match=r"above 40 .* game partition, got 30"):
        audited(dealt, view_of(), draws=30, rank=None)


def test_shares_of_one_deal_are_measured_by_their_joint_law(gaussian_sampler) -> None:
    # This sampler's clients are independent all the same, so the closed form holds.
    dealt = gaussian_sampler(EYE, game="partition")
    found, _ = audited(dealt, view_of(), draws=300)
    truth = gaussian_information(5, CLIENTS).bits
    assert found[0].value == pytest.approx(truth, rel=0.15)
    assert found[0].threat_model.game == "partition"
    assert found[0].sample_sizes == {"pairs": 300}
    # Shares of one partition are not independent, so no figure of independent clients is printed.
    assert [f.quantity for f in found] == [QUANTITY]
    assert "gaussian_nats" not in found[0].facts
    single, _ = audited(dealt, view_of(), draws=300, target=1)
    assert single[0].value == pytest.approx(truth, abs=4 * single[0].facts["std_error_bits"])


def test_directions_come_from_other_draws_and_their_share_is_not_flattered(
    gaussian_sampler,
) -> None:
    # 8 of 20 equal directions hold 40 %; on the draws that chose them it would look like more.
    found, _ = audited(gaussian_sampler(EYE), view_of(), rank=8, fit=6)
    assert found[0].facts["variance_kept"] == pytest.approx(0.4, abs=0.06)
    # Fewer directions than asked for are all there are.
    flat = gaussian_sampler(EYE[:, :3])
    found, _ = audited(flat, view_of(), rank=8)
    assert found[0].facts["rank"] == 3
    assert found[0].value == pytest.approx(gaussian_information(3, CLIENTS).bits, rel=0.05)


def test_few_draws_of_few_clients_are_looked_at_along_fewer_directions(gaussian_sampler) -> None:
    found, _ = audited(gaussian_sampler(EYE), view_of(clients=3), draws=8, rank=8)
    assert found[0].facts["rank"] == 3
    dealt = gaussian_sampler(EYE, game="partition")
    found, _ = audited(dealt, view_of(clients=3), draws=8, rank=8)
    assert found[0].facts["rank"] == 2
    with refuses("draws"):
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
    assert (found[0].facts["hidden"], found[0].facts["colluding"]) == (3, 3)
    assert found[0].threat_model.colluders == 3
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
    assert found[0].facts["hidden"] == CLIENTS - 2
    assert set(each_of(found[0])) == {0, 2, 3, 5}


def test_a_sum_of_one_update_is_that_update_unless_noised(gaussian_sampler) -> None:
    (finding,), (total,) = audited(gaussian_sampler(EYE), view_of(clients=1))
    assert finding.value == total.value == math.inf
    assert finding.kind == "diagnostic"
    # It reveals no more than there is to know.
    entropy = update_entropy(50, 5, [2, 2, 1])
    (finding,), (total, whole) = audited(
        gaussian_sampler(EYE), view_of(clients=1), limit=lambda _: entropy
    )
    bits = entropy.over(1) / math.log(2)
    assert finding.value == total.value == whole.value == pytest.approx(bits)
    assert finding.saturated
    assert total.saturated
    (noised,), _ = audited(gaussian_sampler(EYE), view_of(clients=1, share_std=2.0), draws=100)
    assert noised.value == pytest.approx(2.5 * math.log2(1 + 1 / 4), rel=0.2)


def test_updates_that_never_vary_give_an_honest_zero(gaussian_sampler) -> None:
    entropy = update_entropy(1433, 24, [8, 8, 8], epochs=2)
    for limit in (None, lambda _: entropy):
        (finding,), run = audited(gaussian_sampler(EYE, frozen=True), view_of(), limit=limit)
        # The figure for all coordinates too: 5.26 bits were printed for the run.
        assert [f.value for f in (finding, *run)] == [0.0] * (2 if limit is None else 3)
        assert finding.kind == "diagnostic"


@pytest.mark.parametrize(
    ("every", "rounds"), [(0, [1]), (2, [1, 3, 5]), (-1, [1, 2, 4, 5]), (1, [1, 2, 3, 4, 5])]
)
def test_it_audits_the_rounds_that_are_due_and_sums_them(gaussian_sampler, every, rounds) -> None:
    auditor = made(gaussian_sampler(EYE), every=every, rank=3)
    auditor.begin(DIM, 5)
    single = [auditor.observe(view_of(r)) for r in range(1, 6)]
    assert [r for r in range(1, 6) if single[r - 1]] == rounds
    (total,) = auditor.report()
    assert total.sample_sizes == {"audited rounds": len(rounds)}
    assert total.threat_model.participations == len(rounds)
    assert single[0][0].threat_model.participations is None
    assert Assumption.FRESH_EVERY_ROUND in total.assumptions
    per_client = [sum(each_of(found[0])[c] for found in single if found) for c in range(6)]
    assert total.value == pytest.approx(np.mean(per_client))
    assert each_of(total) == pytest.approx(dict(enumerate(per_client)))


def test_a_clients_rounds_are_its_own(gaussian_sampler) -> None:
    views = [view_of(r) for r in range(1, 5)]
    views[2] = replace(views[2], replies=dict.fromkeys(range(5), views[2].sent))  # without 5
    cases = [IndependentWhitened(0.0)]
    _, (total, bound) = audited(gaussian_sampler(EYE), *views, target=5, cases=cases, every=3)
    assert total.sample_sizes == {"audited rounds": 2}  # rounds 1 and 4; 3 was not due
    assert total.threat_model.participations == 2
    assert bound.kind == "guarantee"
    assert bound.threat_model.participations == 3
    assert bound.value == pytest.approx(3 * gaussian_information(DIM, CLIENTS).bits)


def test_a_target_that_never_takes_part_has_nothing_to_fear(gaussian_sampler) -> None:
    found, (total,) = audited(gaussian_sampler(EYE), view_of(), target=17)
    assert found == []
    assert (total.value, total.kind) == (0.0, "diagnostic")
    assert total.threat_model.participations == 0
    nobody = made(gaussian_sampler(EYE))
    nobody.begin(DIM, 1)
    assert list(nobody.report()) == []  # of a run without an audited round


def test_no_figure_exceeds_the_entropy_of_what_is_random(gaussian_sampler) -> None:
    entropy = update_entropy(5, 5, [2])  # C(5, 2) = 10 batches
    rerun = gaussian_sampler(EYE, game="rerun")
    settings = {"draws": 90, "rank": 19, "limit": lambda _: entropy}
    # The model's 9.5 and 10 bits were printed.
    found, run = audited(rerun, view_of(clients=2), **settings)
    for finding in (*found, *run):
        assert finding.value == pytest.approx(math.log2(10))
        assert finding.cap == finding.value
        assert finding.saturated
        assert Assumption.NOTHING_ELSE_RANDOM in finding.assumptions
        assert "std_error_bits" not in finding.facts
    assert found[0].facts["share_of_limit"] == 1
    assert max(each_of(found[0]).values()) == pytest.approx(math.log2(10))
    wide, _ = audited(rerun, view_of(clients=30), **settings)
    assert wide[0].value < wide[0].cap == pytest.approx(math.log2(10))
    assert not wide[0].saturated
    free, run = audited(rerun, view_of(), limit=lambda _: None)
    assert free[0].cap is None
    # Once 1,686 bits were printed of clients with 94 records: without an entropy no formula.
    assert [f.quantity for f in (*free, *run)] == [QUANTITY, QUANTITY]


def test_over_rounds_the_records_count_once_and_the_batches_every_time(gaussian_sampler) -> None:
    entropy = update_entropy(8, 4, [2, 2])
    views = [view_of(r, clients=2) for r in range(1, 6)]
    settings = {"draws": 90, "rank": 19, "limit": lambda _: entropy}
    found, run = audited(gaussian_sampler(EYE), *views, **settings)
    for finding in found:
        assert finding.value == pytest.approx(math.log2(math.comb(8, 4) * 6))
    for finding in run:
        assert finding.value == pytest.approx(math.log2(math.comb(8, 4) * 6**5))
        assert finding.saturated
    assert set(each_of(run[0]).values()) == {run[0].value}


def test_clients_of_different_entropy_are_limited_by_their_mean(gaussian_sampler) -> None:
    def limit(client: int):
        return update_entropy(4, 4, [1]) if client else None

    found, _ = audited(gaussian_sampler(EYE), view_of(), limit=limit)
    assert found[0].cap is None  # one of them is not known
    found, _ = audited(gaussian_sampler(EYE), view_of(), limit=limit, target=3)
    assert found[0].cap == pytest.approx(2)
    found, _ = audited(
        gaussian_sampler(EYE), view_of(), limit=lambda c: update_entropy(2**c, 2**c, [1])
    )
    assert found[0].cap == pytest.approx(np.mean(range(CLIENTS)))


def test_the_luckiest_of_many_alike_clients_is_not_the_figure_of_the_run(gaussian_sampler) -> None:
    """60 alike clients over 5 rounds.

    The figure is within 4 standard errors of the truth and 1 % for what the jackknife leaves of
    the bias. That fails for fewer than 1 seed in 10,000.
    """
    views = [view_of(r, clients=60) for r in range(1, 6)]
    _, (total,) = audited(gaussian_sampler(EYE), *views, draws=8, rank=8)
    truth = 5 * gaussian_information(8, 60).bits
    error = total.facts["std_error_bits"]
    assert abs(total.value - truth) < 4 * error + 0.01 * truth < 0.03 * truth
    # The largest of the clients' sums was printed.
    assert max(each_of(total).values()) > 1.2 * truth


def test_clients_of_unequal_participation_are_averaged_per_round(gaussian_sampler) -> None:
    views = [view_of(1), view_of(2), view_of(3, clients=3)]
    _, (total,) = audited(gaussian_sampler(EYE), *views)
    (spread,) = total.details
    assert spread.audited == (3, 3, 3, 2, 2, 2)
    assert total.value == pytest.approx(3 * sum(spread.values) / 15)
    assert total.threat_model.participations == 3
    _, (own,) = audited(gaussian_sampler(EYE), *views, target=4)
    assert own.value == each_of(own)[4]
    assert (own.facts["target"], own.threat_model.participations) == (4, 2)


def test_a_run_with_noise_has_no_figure_without_it(gaussian_sampler) -> None:
    entropy = update_entropy(1433, 24, [8, 8, 8], epochs=2)
    noised = view_of(noise_std=2.0, divisor=float(CLIENTS))
    settings = {"observer": "outsider", "limit": lambda _: entropy}
    found, run = audited(gaussian_sampler(EYE), noised, **settings)
    # 5.3 bits for all coordinates were printed beside 0.02, in the round and for the run.
    assert [f.quantity for f in (*found, *run)] == [QUANTITY, QUANTITY]
    assert not {"gaussian_nats", "share_of_gaussian"} & set(found[0].facts)
    # The server sees this sum before the noise.
    found, run = audited(gaussian_sampler(EYE), noised, limit=lambda _: entropy)
    assert [f.quantity for f in (*found, *run)] == [QUANTITY, WHOLE] * 2
    # One round with noise is enough.
    _, run = audited(gaussian_sampler(EYE), noised, view_of(2), **settings)
    assert [f.quantity for f in run] == [QUANTITY]


def test_the_figure_for_all_coordinates_says_what_it_assumes(gaussian_sampler) -> None:
    found, run = audited(
        gaussian_sampler(EYE), view_of(), limit=lambda _: update_entropy(1433, 24, [24])
    )
    needed = {Assumption.ALIKE_GAUSSIAN_UPDATES, Assumption.ALL_COORDINATES_VARY}
    for finding in (found[1], run[1]):
        assert finding.quantity == WHOLE
        assert needed <= set(finding.assumptions)
        assert len(set(finding.assumptions)) == len(finding.assumptions)
    assert Assumption.FRESH_EVERY_ROUND in run[1].assumptions


def test_the_attacker_is_the_same_in_every_round_and_over_the_run(gaussian_sampler) -> None:
    views = [view_of(1), view_of(2, clients=4)]  # client 4, who colludes, is absent from round 2
    (last, _), (total,) = audited(gaussian_sampler(EYE), *views, colluding=(0, 4))
    assert last.facts["colluding"] == 1
    attacker = last.threat_model
    assert (attacker.observer, attacker.sees, attacker.holds) == ("server", "round sum", None)
    assert (attacker.knows_cohort, attacker.game, attacker.colluders) == (True, "independent", 2)
    assert total.threat_model == replace(attacker, participations=2)
    outside, _ = audited(gaussian_sampler(EYE), view_of(), observer="outsider")
    assert outside[0].threat_model.sees == "noised sum"


def test_a_figure_along_few_directions_does_not_look_like_the_total(gaussian_sampler) -> None:
    found, run = audited(gaussian_sampler(EYE), view_of(), rank=3)
    said = {f.quantity: claim(f).replace("\N{NO-BREAK SPACE}", " ") for f in (*found, *run)}
    assert said[QUANTITY].startswith("mutual information along at most 3 directions ≈ ")
    assert said[WHOLE].startswith("mutual information of all coordinates ≈ ")
    every, _ = audited(gaussian_sampler(EYE), view_of(), rank=None)
    assert "directions" not in every[0].facts


def test_the_bound_of_theorem_1_states_its_constants(gaussian_sampler) -> None:
    for case, constants in (
        (IndependentWhitened(2.0), {"c_0": 2.0}),
        (LogConcaveWhitened(0.5, 10.0), {"sigma": 0.5, "entropy_nats": 10.0}),
    ):
        # The second raised an error at the end of the run: its entropy needs more than one rank.
        found, run = audited(gaussian_sampler(EYE), view_of(), cases=[case], batch_size=4)
        for bound in (found[-1], run[-1]):
            assert bound.kind == "guarantee"
            assert (constants | {"batch_size": 4}).items() <= bound.facts.items()
            assert case.assumption in bound.assumptions


def test_the_bound_of_the_run_names_the_case_that_it_uses(gaussian_sampler) -> None:
    # In 20 coordinates the second is the smaller bound; in a single one it would be the first.
    gaussian = DIM / 2 * math.log(2 * math.pi * math.e)
    cases = [IndependentWhitened(3.0), LogConcaveWhitened(1.0, gaussian)]
    assert cases[0].excess(DIM) > cases[1].excess(DIM)
    found, run = audited(gaussian_sampler(EYE), view_of(), cases=cases)
    assert Assumption.WHITENED_LOG_CONCAVE in found[-1].assumptions
    assert run[-1].assumptions == found[-1].assumptions


@pytest.mark.parametrize("steps", [True, None, False])
def test_theorem_1_is_printed_for_fedsgd_with_independent_clients_only(
    gaussian_sampler, steps
) -> None:
    class Sampler(gaussian_sampler):
        sends_gradient = steps

    cases = [IndependentWhitened(1.0)]
    for game in ("independent", "partition"):
        sampler = Sampler(EYE, game=game)
        found, run = audited(sampler, view_of(), cases=cases)
        is_covered = steps is not False and game == "independent"
        assert [f.kind == "guarantee" for f in (found[-1], run[-1])] == [is_covered] * 2
        auditor = made(sampler, cases=cases, draws=30)
        assert bool(auditor.limits(Project(DIM, 1, clients=CLIENTS))) is not is_covered


def test_the_share_of_an_entropy_is_given_to_those_who_ask(gaussian_sampler) -> None:
    plain, _ = audited(gaussian_sampler(EYE), view_of())
    asked, _ = audited(gaussian_sampler(EYE), view_of(), entropy_bits=32 * 567)
    assert "share_of_entropy" not in plain[0].facts
    assert asked[0].facts["share_of_entropy"] == pytest.approx(asked[0].value / 18144)


def test_progress_is_told(gaussian_sampler) -> None:
    told = []
    audited(
        gaussian_sampler(EYE), view_of(), watch=lambda stage, share: told.append((stage, share))
    )
    assert told[0] == ("directions", 0.0)
    assert told[-1] == ("draws", 1.0)


def test_a_sampler_that_does_not_fit_the_mechanism_is_refused(gaussian_sampler) -> None:
    class Noisy(gaussian_sampler):
        has_noise = True

    with pytest.raises(ValueError, match="sampler must leave the clients' noise out"):
        audited(Noisy(EYE), view_of())
    with pytest.raises(ValueError, match=r"weigh all clients 1 .* got a scale of 3"):
        audited(gaussian_sampler(EYE, scale=3.0), view_of(divisor=6.0))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"every": -2}, "every"),
        ({"draws": 3}, "draws"),
        ({"rank": 0}, "rank"),
        ({"fit": 1}, "fit"),
        ({"target": -1}, "target"),
        ({"target": 2, "colluding": (2,)}, "target"),
        ({"entropy_bits": 0.0}, "entropy_bits"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_wrong_arguments_are_named(gaussian_sampler, wrong, words) -> None:
    with refuses(words):
        made(gaussian_sampler(EYE), **wrong)
