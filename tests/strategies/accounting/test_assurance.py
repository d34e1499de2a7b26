"""Guarantees name their observer, and none says more than its noise allows."""

from __future__ import annotations

import math

import pytest

from leakmeter.auditors.finding import Finding
from leakmeter.auditors.gaussian.pair import epsilon_gaussian
from leakmeter.strategies.accounting.accountant import Release
from leakmeter.strategies.accounting.assurance import Assurance
from leakmeter.strategies.accounting.spending import Spending
from leakmeter.strategies.mechanism import Central, Distributed, Local, Noise

DELTA = 1e-5


def plain(std: float = 2.0, **more: object) -> Release:
    return Release(std, 1.0, **more)


def fixed(std: float = 2.0) -> Release:
    return plain(std, sampling="fixed", cohort=5, population=500)


def poisson(std: float = 2.0, rate: float = 0.1, population: int = 500) -> Release:
    return plain(std, sampling="poisson", rate=rate, population=population)


def by_observer(found: list[Finding] | tuple[Finding, ...]) -> dict[str, list[Finding]]:
    return {o: [f for f in found if f.observer == o] for o in ("server", "outsider", "wire")}


def test_central_noise_protects_from_outsiders_not_from_the_server() -> None:
    found = by_observer(Assurance(Central(2.0), (plain(),) * 4, 4).findings(DELTA))
    assert [f.value for f in found["server"]] == [math.inf]
    [outsider] = found["outsider"]
    assert outsider.value == pytest.approx(epsilon_gaussian(DELTA, 1.0))
    assert (outsider.kind, outsider.adjacency, outsider.unit) == ("guarantee", "zero-out", "client")
    assert found["wire"] == []


def test_distributed_noise_protects_from_the_server_too() -> None:
    found = by_observer(Assurance(Distributed(2.0, 3), (plain(),) * 4, 4).findings(DELTA))
    [server], [outsider] = found["server"], found["outsider"]
    assert server.value == outsider.value == pytest.approx(epsilon_gaussian(DELTA, 1.0))
    assert any("colluders" in text for text in server.assumptions)


def test_local_noise_protects_on_the_wire_and_the_sum_even_more() -> None:
    spending = Spending(Local(2.0))
    for _ in range(4):
        spending.add(Release(0.0, 1.0), range(9), share_std=2.0, step=0.0)
    found = by_observer(spending.assurance().findings(DELTA))
    [server], [wire], [outsider] = found["server"], found["wire"], found["outsider"]
    assert server.value == wire.value == pytest.approx(epsilon_gaussian(DELTA, 1.0))
    assert outsider.value == pytest.approx(epsilon_gaussian(DELTA, 1 / 3))
    assert not any("colluders" in text for text in wire.assumptions)
    assert any("colluders" in text for text in outsider.assumptions)


def test_amplification_is_claimed_only_for_those_who_do_not_learn_the_cohort() -> None:
    for release, kinds in ((poisson(), {"zero-out", "replace"}), (fixed(), {"replace"})):
        found = Assurance(Central(2.0), (release,) * 4, 3).findings(DELTA)
        sampled = [f for f in found if "not who took part" in f.threat_model]
        assert {f.adjacency for f in sampled} == kinds
        for finding in sampled:
            assert finding.observer == "outsider"
            assert any("does not learn who took part" in text for text in finding.assumptions)
        [known] = [f for f in found if f.observer == "outsider" and f not in sampled]
        assert known.value == pytest.approx(epsilon_gaussian(DELTA, math.sqrt(3) / 2))


def test_clients_that_take_their_noise_away_are_not_amplified() -> None:
    for noise in (Distributed(2.0, 3), Local(2.0)):
        found = Assurance(noise, (poisson(),), 1, (poisson(),)).findings(DELTA)
        assert not [f for f in found if "not who took part" in f.threat_model]


def test_rounds_too_thin_for_a_secure_sum_cost_delta() -> None:
    def sampled(assurance: Assurance) -> list[Finding]:
        found = assurance.findings(DELTA)
        return [f for f in found if f.adjacency == "zero-out" and "not who" in f.threat_model]

    # Thirty expected of 300: fewer than three with chance 1e-11; then five of 50: 0.1.
    many, few = poisson(population=300), poisson(population=50)
    [open_sum] = sampled(Assurance(Central(2.0), (many,), 1))
    [masked] = sampled(Assurance(Central(2.0), (many,), 1, is_masked=True))
    assert masked.value == pytest.approx(open_sum.value, rel=1e-3)
    assert masked.value >= open_sum.value
    assert masked.delta == DELTA
    assert len(sampled(Assurance(Central(2.0), (few,), 1))) == 1
    assert sampled(Assurance(Central(2.0), (few,), 1, is_masked=True)) == []


def test_a_clip_bit_leaves_add_remove_only() -> None:
    release = plain(sampling="poisson", rate=0.1, population=500, bit_std=3.0)
    found = Assurance(Central(2.0), (release,) * 2, 1).findings(DELTA)
    assert {f.adjacency for f in found} == {"add-remove"}
    assert len(found) == 3


@pytest.mark.parametrize("noise", [Central(0.0), Central(1e-9), Distributed(1e-9, 1), Local(1e-9)])
def test_hardly_any_noise_is_a_huge_epsilon_never_nan(noise: Noise) -> None:
    spending = Spending(noise)
    spending.add(Release(noise.noise_multiplier, 1.0), [1, 2], share_std=1e-9, step=0.0)
    values = [f.value for f in spending.assurance().findings(DELTA)]
    assert not any(map(math.isnan, values))
    assert min(values) > 1e6


def test_nobody_in_any_round_is_no_loss() -> None:
    spending = Spending(Central(1.0))
    spending.add(Release(1.0, 1.0), [], share_std=0.0, step=0.0)
    assert min(f.value for f in spending.assurance().findings(DELTA)) == 0.0


# What is noted of a round.


def test_participations_are_counted_for_each_client_as_they_happened() -> None:
    spending = Spending(Central(1.0))
    for cohort in ([1, 2], [2, 3], [2, 1], []):
        spending.add(Release(1.0, 1.0), cohort, share_std=0.0, step=0.0)
    assert spending.participations == 3
    assert dict(spending.times) == {1: 2, 2: 3, 3: 1}
    assert len(spending.releases) == 4


def test_distributed_noise_counts_the_rounds_honest_survivors() -> None:
    noise = Distributed(1.0, min_honest=4, colluders=2)
    spending = Spending(noise)
    for survivors in (6, 10, 2):
        spending.add(Release(0.0, 1.0), range(survivors), share_std=0.5, step=0.1)
    stds = [r.noise_std for r in spending.releases]
    assert stds == pytest.approx([1.0, math.sqrt(2), 0.0])  # target, more, only colluders
    assert not spending.is_rough


def test_noise_below_two_rounding_steps_is_an_approximation() -> None:
    spending = Spending(Distributed(1.0, 4))
    spending.add(Release(0.0, 1.0), range(6), share_std=0.5, step=0.25)
    assert {f.kind for f in spending.assurance().findings(DELTA)} == {"guarantee"}
    spending.add(Release(0.0, 1.0), range(6), share_std=0.5, step=0.26)
    found = spending.assurance().findings(DELTA)
    assert {f.kind for f in found} == {"approximation"}
    assert all(any("two rounding steps" in a for a in f.assumptions) for f in found)


def test_local_noise_counts_the_others_only_if_rounding_is_fine() -> None:
    spending = Spending(Local(1.0))
    spending.add(Release(0.0, 1.0), range(4), share_std=0.5, step=0.3)
    assert (spending.releases[0].noise_std, spending.single[0].noise_std) == (0.5, 0.5)
    assert {f.kind for f in spending.assurance().findings(DELTA)} == {"guarantee"}


def test_spending_comes_back_from_its_state() -> None:
    import json

    spending = Spending(Local(1.0))
    spending.add(fixed(0.1 + 0.2), [3, 4], share_std=1 / 3, step=0.2)
    again = Spending(Local(1.0))
    again.restore(json.loads(json.dumps(spending.state())))
    assert again == spending
    assert Spending(Local(1.0)).assurance() is None
