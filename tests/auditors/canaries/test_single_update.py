"""A server that sees single updates: what is shown of it is right, whatever clients send."""

from __future__ import annotations

import tracemalloc
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kstest

from leakmeter.auditors import (
    Anytime,
    Claim,
    Finding,
    OneShotCanaries,
    RoundView,
    SingleUpdates,
    check_auditor,
)
from leakmeter.auditors.auditor import Canary, Project, RoundFacts
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.canaries import single_update
from leakmeter.auditors.canary_draws import MAX_SCORE, canary_vector, cosine_logsf
from leakmeter.auditors.hook.panel import Panel
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import Assumption
from tests.helpers.numbers import few_or_many, first_fast, most_allowed
from tests.helpers.refusals import refuses

DELTA = 1e-6
DIM = 200
# What reaches the server of an update, given client, round and a generator of this reply.
Mechanism = Callable[[np.ndarray, int, int, np.random.Generator], np.ndarray]


def plain(update: np.ndarray, *_: Any) -> np.ndarray:
    return update


def noised(sigma: float) -> Mechanism:
    """Return independent Gaussian noise on every reply."""

    def mechanism(update: np.ndarray, *about: Any) -> np.ndarray:
        noise: np.ndarray = about[-1].standard_normal(update.size)
        return update + sigma * noise

    return mechanism


def shown(
    server_round: int,
    orders: Mapping[int, Canary],
    mechanism: Mechanism,
    *,
    dim: int = DIM,
    clients: int = 12,
    seed: int = 0,
    leak: bool = True,
) -> RoundView:
    """Return a round whose clients send unit updates, seats their canary or a nudge."""
    sent, replies = np.zeros(dim), {}
    for client in range(clients):
        rng = stream(seed, "client", client, server_round)
        update = rng.standard_normal(dim)
        update /= np.linalg.norm(update)
        if client in orders:
            update = 1e-7 * np.eye(dim)[0]
            if orders[client].included and leak:
                update = canary_vector(orders[client].seed, orders[client].id, dim)
        replies[client] = mechanism(update, client, server_round, rng)
    facts = RoundFacts(num_clients=clients, total_weight=float(clients))
    return RoundView(server_round, sent, replies, sent, facts, instructed=dict(orders))


def play(
    auditor: SingleUpdates,
    mechanism: Mechanism = plain,
    *,
    rounds: int = 5,
    change: Callable[[RoundView], RoundView] = lambda view: view,
    **about: Any,
) -> list[Finding]:
    """Return the findings on rounds of this mechanism, each changed before it is shown."""
    auditor.begin(about.get("dim", DIM), rounds)
    findings: list[Finding] = []
    for server_round in range(1, rounds + 1):
        orders = auditor.instruct(server_round, range(about.get("clients", 12)))
        findings += auditor.observe(change(shown(server_round, orders, mechanism, **about)))
    return [*findings, *auditor.report()]


def bounds(findings: list[Finding]) -> list[Finding]:
    return [f for f in findings if f.kind == "lower_bound"]


@pytest.mark.parametrize("has_folder", [False, True])
@pytest.mark.parametrize(
    "settings",
    first_fast(
        2,
        [
            {"seats": 4, "repetitions": 2},
            {"seats": 3, "excluded": "full"},
            {"seats": 3},
            {},
            {"seats": 3, "include": "all"},
            {"seats": 3, "excluded": "honest"},
            {"seats": 1, "canaries": 5, "seed": 5},
        ],
    ),
)
def test_it_keeps_the_contract_of_auditors(
    settings: dict[str, Any], has_folder: bool, tmp_path: Path
) -> None:
    def made() -> SingleUpdates:
        auditor = SingleUpdates(**settings)
        auditor.folder = tmp_path if has_folder else None
        return auditor

    check_auditor(made)
    files = [path.name for path in tmp_path.iterdir()]
    assert files == ["single-update-replies.f32"] * has_folder


def test_a_reply_without_noise_shows_all_that_the_seed_of_a_canary_can() -> None:
    [bound] = bounds(play(SingleUpdates(seats=4, delta=DELTA)))
    assert 80 < bound.value < MAX_SCORE
    assert (bound.value, bound.saturated) == (bound.cap, True)
    assert bound.facts["threshold"] == bound.facts["median_score"] == MAX_SCORE
    assert bound.facts["share_at_threshold"] == 1.0
    assert (bound.adjacency, bound.delta, bound.confidence) == ("zero-out", DELTA, 0.95)
    attacker = bound.threat_model
    assert (attacker.observer, attacker.sees, attacker.holds) == ("server", "updates", "canary")
    assert (attacker.knows_cohort, attacker.participations) == (True, 1)
    assert not bound.is_conditional
    assert Assumption.SEAT_SENDS_ZERO in bound.assumptions


def once_per_client(update: np.ndarray, client: int, *_: Any) -> np.ndarray:
    """Add noise whose generator is seeded by the client, the same in every round."""
    return update + 5 * stream(1, "noise", client).standard_normal(update.size)


def once_per_round(update: np.ndarray, _: int, server_round: int, *__: Any) -> np.ndarray:
    """Add noise whose generator is seeded by the round, the same for all clients."""
    return update + 5 * stream(1, "noise", server_round).standard_normal(update.size)


@pytest.mark.parametrize("mechanism", [once_per_client, once_per_round])
def test_noise_that_repeats_is_seen_through_and_fresh_noise_is_not(mechanism: Mechanism) -> None:
    repeated, fresh = (
        SingleUpdates(seats=6, delta=DELTA, include="coin", seed=3) for _ in range(2)
    )
    [bound] = bounds(play(repeated, mechanism, rounds=6))
    assert bound.value > 60
    assert np.nanmax(np.abs(repeated._cosines)) < 0.4  # nothing in the replies themselves
    [other] = bounds(play(fresh, noised(5.0), rounds=6))
    assert other.value < 2


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("settings", [{}, {"repetitions": 2}, {"excluded": "full"}], ids=str)
def test_it_takes_no_further_seat_beside_one_shot(settings: dict[str, Any], is_first: bool) -> None:
    def orders(auditors: list[Any]) -> list[Any]:
        panel = Panel(auditors)
        panel.begin(DIM, 6)
        return [panel.instruct(r, list(range(12))) for r in range(1, 7)]

    alone = orders([OneShotCanaries(seats=3, seed=4, **settings)])
    both = [OneShotCanaries(seats=3, seed=4, **settings), SingleUpdates(seats=5, seed=9)]
    assert orders(both[:: 1 if is_first else -1]) == alone
    assert both[1].canaries_played is None  # told by the other
    assert any(alone)


# Closed forms, and what a score is when nothing leaks.


def test_scores_under_gaussian_noise_have_their_distribution() -> None:
    # √d·cos is about N(1/√(σ² + 1/d), 1): chance of failure 1e-3; a wrong scale is rejected.
    dim, sigma = 2000, 0.3
    auditor = SingleUpdates(seats=60, include="all", delta=DELTA)
    play(auditor, noised(sigma), dim=dim, clients=62, rounds=5)
    centred = np.sqrt(dim) * auditor._cosines - 1 / np.sqrt(sigma**2 + 1 / dim)
    assert kstest(centred, "norm").pvalue > 1e-3
    assert kstest(1.4 * centred, "norm").pvalue < 1e-3


@pytest.mark.parametrize("runs", few_or_many(10, 200))
@pytest.mark.parametrize("sigma", first_fast(1, [0.5, 2.0, 0.1]))
@pytest.mark.parametrize("settings", [{}, {"include": "all"}, {"excluded": "full"}], ids=str)
def test_the_bound_stays_below_the_epsilon_of_local_noise(
    settings: dict[str, Any], sigma: float, runs: int
) -> None:
    # Violations at most nominal and three standard errors, over fixed seeds.
    distance = np.sqrt(2) if "excluded" in settings else 1.0  # of two orthogonal updates
    truth, values = epsilon_gaussian(DELTA, distance / sigma), []
    for seed in range(runs):
        auditor = SingleUpdates(seats=10, delta=DELTA, seed=seed, **settings)
        [bound] = bounds(play(auditor, noised(sigma), rounds=4, seed=seed))
        values.append(bound.value)
    assert sum(value > truth for value in values) <= most_allowed(runs)
    assert np.mean(values) > {2.0: -1.0, 0.5: 0.1, 0.1: 20.0}[sigma]


def clipped(update: np.ndarray, *about: Any) -> np.ndarray:
    noisy = noised(1.0)(update, *about)
    return np.asarray(noisy / np.linalg.norm(noisy))


def coarse(update: np.ndarray, *about: Any) -> np.ndarray:
    """Round to few values, most of them 0."""
    return np.asarray(np.round(0.4 * noised(1.0)(update, *about)))


def half_precision(update: np.ndarray, *about: Any) -> np.ndarray:
    return noised(1e-3)(update, *about).astype(np.float16).astype(np.float64)


def skewed(update: np.ndarray, *about: Any) -> np.ndarray:
    """Send noise of one coordinate, and a constant."""
    return np.asarray(update + about[-1].standard_cauchy() * np.eye(update.size)[3] + 0.1)


@pytest.mark.parametrize(
    "mechanism", first_fast(2, [coarse, skewed, noised(1.0), clipped, half_precision])
)
def test_p_values_of_canaries_that_nobody_sent_are_uniform_or_above(mechanism: Mechanism) -> None:
    # Chance of failure 1e-3, and three standard errors, over fixed seeds.
    auditor = SingleUpdates(seats=60, include="all", repetitions=2)
    play(auditor, mechanism, clients=64, rounds=10, leak=False)
    for cosines in (auditor._cosines, auditor._together):
        assert kstest(np.exp(cosine_logsf(cosines, DIM)), "uniform").pvalue > 1e-3
    assert auditor._log_p.max() <= 0
    for level in (0.5, 0.1, 0.02):  # of the smallest of three
        share, n = (auditor._log_p <= np.log(level)).mean(), len(auditor._log_p)
        assert share <= level + 3 * np.sqrt(level * (1 - level) / n)
        assert share >= level / 3 - 3 * np.sqrt(level / n)  # the choice costs no more than three


@pytest.mark.parametrize("runs", few_or_many(10, 200))
def test_no_leak_is_claimed_without_one_too_often(runs: int) -> None:
    claimed = np.zeros(2)
    for seed in range(runs):
        auditor = SingleUpdates(seats=8, repetitions=2, delta=DELTA, seed=seed)
        found = bounds(play(auditor, noised(1.0), rounds=6, seed=seed, leak=False))
        claimed += [bound.value > 0 for bound in found]
    assert claimed.max() <= most_allowed(runs)


def test_all_rounds_of_a_canary_show_more_than_its_first() -> None:
    auditor = SingleUpdates(seats=10, repetitions=9, delta=DELTA)
    first, every = bounds(play(auditor, noised(0.5), rounds=36, dim=1000))
    assert [f.threat_model.participations for f in (first, every)] == [1, 9]
    assert every.value > 3 * first.value > 0
    assert epsilon_gaussian(DELTA, 1 / 0.5) < every.value < epsilon_gaussian(DELTA, 3 / 0.5)
    # The sums of canaries that are done are dropped.
    assert all(name.startswith("client-") for name in auditor._replies._rows.names)


def test_replies_of_one_canary_add_up_as_vectors_do() -> None:
    auditor = SingleUpdates(seats=4, repetitions=3, include="all")
    sums: dict[int, np.ndarray] = {}

    def added(view: RoundView) -> RoundView:
        for client, order in view.instructed.items():
            reply = view.replies[client] / np.linalg.norm(view.replies[client])
            sums[order.id] = sums.get(order.id, 0.0) + reply
        return view

    play(auditor, noised(1.0), rounds=6, change=added)
    for canary, total in sums.items():
        vector = canary_vector(auditor.plan.canary_seed, canary, DIM)
        cosine = vector @ total / np.linalg.norm(total)
        assert auditor._together[canary] == pytest.approx(cosine, abs=1e-6)


# What clients do.


ANYTHING = {
    **{str(number): np.full(DIM, number) for number in (np.nan, np.inf, 1e300, 0.0)},
    "short": np.ones(DIM - 1),
    "twice": np.ones((2, DIM)),
    "empty": np.empty(0),
}


@pytest.mark.parametrize("sent", ANYTHING.values(), ids=ANYTHING)
def test_a_client_that_sends_anything_weakens_its_own_canaries_only(sent: np.ndarray) -> None:
    def hostile(update: np.ndarray, client: int, *_: Any) -> np.ndarray:
        return sent if client == 4 else update

    honest, attacked = (SingleUpdates(seats=6, include="all", repetitions=2) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = play(attacked, hostile, rounds=6)
    play(honest, rounds=6)
    is_hit = np.isnan(attacked._cosines)
    assert is_hit.any()
    assert not is_hit.all()
    assert (attacked._log_p[is_hit] == 0).all()
    assert (attacked._log_p[~is_hit] < -MAX_SCORE).all()
    assert bounds(found)[0].value > 60


def test_a_seat_that_fails_counts_as_one_that_shows_nothing() -> None:
    def dropping(view: RoundView) -> RoundView:
        left = {c: reply for c, reply in view.replies.items() if c % 3}
        return replace(view, replies=left, instructed={})

    [whole], [part] = (
        bounds(play(SingleUpdates(seats=6, delta=DELTA), change=change))
        for change in (lambda view: view, dropping)
    )
    assert whole.sample_sizes == part.sample_sizes
    assert 0 < part.value < whole.value


def test_a_canary_whose_first_seat_fails_is_not_looked_for_in_its_second() -> None:
    def failing(view: RoundView) -> RoundView:
        return replace(view, replies={}) if view.server_round <= 2 else view

    auditor = SingleUpdates(seats=4, repetitions=2, include="all")
    play(auditor, rounds=4, change=failing)
    assert (auditor._first <= 2).all()
    assert (auditor._log_p == 0).all()
    assert np.isfinite(auditor._together).all()


def test_a_run_without_a_plain_reply_says_so_and_proves_nothing() -> None:
    def masked(update: np.ndarray, *_: Any) -> np.ndarray:
        return np.concatenate([update, update])

    auditor = SingleUpdates(seats=4)
    assert play(auditor, masked) == []
    assert [words.partition(",")[0] for words in auditor.noticed] == [
        "the replies of all seats are no plain updates"
    ]
    nobody = SingleUpdates(seats=4)
    nobody.begin(DIM, 2)
    [finding] = nobody.report()
    assert (finding.kind, finding.quantity) == ("diagnostic", "canaries")
    assert str(nobody.unplayed).startswith("no seat delivered one")


def normalised(sigma: float) -> Mechanism:
    """Scale every update to length 1, then add noise."""

    def mechanism(update: np.ndarray, *about: Any) -> np.ndarray:
        return noised(sigma)(update / np.linalg.norm(update), *about)

    return mechanism


@pytest.mark.parametrize("sigma", [0.0, 0.3])
def test_a_mod_that_normalises_is_noticed_and_the_two_worlds_are_named(sigma: float) -> None:
    for mechanism, excluded, adjacency, is_told in (
        (noised(sigma), "zero", "zero-out", False),
        (normalised(sigma), "zero", "replace", True),
        (normalised(sigma), "full", "replace", False),
        (normalised(sigma), "honest", "honest-seat", False),
    ):
        auditor = SingleUpdates(seats=5, excluded=excluded)  # type: ignore[arg-type]
        [bound, *_] = bounds(play(auditor, mechanism, rounds=8))
        assert (bound.adjacency, bool(auditor.noticed)) == (adjacency, is_told)
        assert bound.value > 0
    assert "use excluded='full'" in single_update._NORMALISED


# Claims, limits and memory.


def test_claims_about_the_server_get_bounds_at_their_own_delta() -> None:
    claims = (
        Claim(10.0, delta=1e-3, per="round"),
        Claim(9.0, delta=1e-3),
        Claim(8.0, delta=1e-2, adjacency="replace"),
        Claim(7.0, delta=1e-9),  # the bound at 1e-6 is one at 1e-9
        Claim(6.0, delta=1e-4, against="outsider"),
        Claim(5.0, delta=1e-4, unit="record"),
        Claim(4.0, delta=1e-4, adjacency="add-remove"),
    )
    auditor = SingleUpdates(seats=5, repetitions=2, delta=DELTA)
    Panel([auditor]).begin(DIM, 10, claims=claims)
    assert auditor.num_bounds == 6  # three from first rounds, three from all rounds
    assert auditor.confidence == pytest.approx(1 - 0.05 / 6)
    found = bounds(play(auditor, rounds=10))
    asked = [(f.threat_model.participations, f.delta) for f in found]
    deltas = [DELTA, 1e-3, 1e-2]
    assert asked == [*((1, delta) for delta in deltas), *((2, delta) for delta in deltas)]
    assert [len(f.details) for f in found] == [1, 0, 0, 1, 0, 0]
    assert found[0].value > found[1].value > 60
    # Coins of 25 canaries are too expensive at 1e-3: the first four that are in are judged without.
    # At 1e-2 there is no confidence left.
    assert Assumption.FAIR_COINS in found[0].assumptions
    assert Assumption.FAIR_COINS not in found[1].assumptions
    assert found[1].sample_sizes == {"in": 4}
    assert (found[2].value, found[2].cap) == (0, 0)
    Panel([auditor]).begin(DIM, 10)
    assert (auditor.num_bounds, auditor.confidence) == (2, pytest.approx(0.975))


@pytest.mark.parametrize(
    ("settings", "about", "sizes", "assumed"),
    [
        # 125 of 240: 0.05 / (4·1e-4)
        ({"seats": 60, "delta": 1e-4}, {"clients": 62, "rounds": 4}, 125, Assumption.FAIR_COINS),
        ({"seats": 1}, {"rounds": 3}, 3, Assumption.ALL_CANARIES_PLAY),
    ],
    ids=["many", "few"],
)
def test_many_canaries_pay_for_some_coins_and_few_all_take_part(
    settings: dict[str, Any], about: dict[str, int], sizes: int, assumed: Assumption
) -> None:
    [bound] = bounds(play(SingleUpdates(**settings), **about))
    assert next(iter(bound.sample_sizes.values())) == sizes
    assert (bound.adjacency, bound.value > 80) == ("zero-out", True)
    assert assumed in bound.assumptions


def test_masks_leave_nothing_to_see_and_no_seat() -> None:
    auditor = SingleUpdates(seats=4)
    auditor.begin(DIM, 3)
    [words] = auditor.limits(Project(DIM, 3, is_masked=True))
    assert words.startswith("clients mask their updates, so the server sees none of them alone")
    assert auditor.instruct(1, range(12)) == {}
    assert (auditor.canaries_played, auditor.unplayed) == (None, None)
    auditor.observe(shown(1, {}, plain))
    assert auditor.report() == []
    again = SingleUpdates(seats=4)
    again.begin(DIM, 3)
    again.restore(auditor.state())  # a resumed run is not asked again
    assert again.instruct(2, range(12)) == {}


def test_what_it_cannot_show_is_said_once_in_a_run() -> None:
    project = Project(DIM, 5, clients=12, seats=2)
    alone, beside, other = SingleUpdates(seats=2), SingleUpdates(), OneShotCanaries(seats=2)
    Panel([alone]).begin(DIM, 5)
    assert list(alone.limits(project)) == [
        "10 canaries in 5 rounds, of which about 5 take part: results vary widely; use more seats "
        "or rounds"
    ]
    Panel([beside, other]).begin(DIM, 5)
    assert list(beside.limits(project)) == []
    Panel([beside]).begin(DIM, 5)  # the same object in another run
    [words] = beside.limits(replace(project, clients=2))
    assert words.startswith("no canary is played in rounds like the first")


def test_replies_of_few_clients_are_kept_and_of_no_more(tmp_path: Path) -> None:
    auditor = SingleUpdates(seats=20)
    auditor.folder = tmp_path
    play(auditor, rounds=6, clients=90)
    assert len(auditor._replies._rows.names) == 32
    size = (tmp_path / "single-update-replies.f32").stat().st_size
    assert size <= 4 * DIM * (32 + 2 * 20)
    auditor.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("clients", [3, 12])
def test_a_seat_alone_is_compared_with_a_client_without_a_canary(clients: int) -> None:
    auditor = SingleUpdates(seats=1, include="all", delta=DELTA)
    [bound] = bounds(play(auditor, once_per_round, rounds=9, clients=clients, dim=1000))
    assert bound.value > 60


def test_memory_does_not_grow_with_seats_or_canaries(tmp_path: Path) -> None:
    dim, peaks = 200_000, []
    for seats, rounds in ((2, 2), (8, 6)):
        auditor = SingleUpdates(seats=seats, repetitions=2, include="all")
        auditor.folder = tmp_path
        auditor.begin(dim, rounds)
        reply = stream(0).standard_normal(dim)
        fresh = Fresh.fromkeys(range(9), reply)
        tracemalloc.start()
        for server_round in range(1, rounds + 1):
            told, sent = auditor.instruct(server_round, range(9)), np.zeros(1)
            about = (server_round, sent, fresh, sent, RoundFacts())
            auditor.observe(RoundView(*about, instructed=told))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        auditor.close()
    assert max(peaks) < 6 * 8 * dim
    assert peaks[1] < 1.3 * peaks[0]


class Fresh(dict[int, np.ndarray]):
    """Replies that are made when somebody asks for them, as those of a run are."""

    def __getitem__(self, client: int) -> np.ndarray:
        return super().__getitem__(client) * (client + 1)


def test_bets_on_single_updates_are_refused() -> None:
    with refuses("confidence"):
        SingleUpdates(confidence=Anytime(0.95))
