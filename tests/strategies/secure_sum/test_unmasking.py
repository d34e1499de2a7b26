"""Whole secure sums without Flower: exact for all who uploaded, and nothing else comes out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2

from leakmeter.clients.secure_sum.keys import KeyPair, Session, agree, self_mask_key
from leakmeter.clients.secure_sum.participant import Participant, Policy
from leakmeter.clients.secure_sum.quantise import (
    Ring,
    RingVector,
    add_masks,
    add_vectors,
    pair_sign,
)
from leakmeter.clients.secure_sum.sharing import SHARE_BYTES, recover
from leakmeter.clients.secure_sum.signing import PublicKeys
from leakmeter.strategies.secure_sum.sum_round import AbandonedError, MaskedCohort
from leakmeter.strategies.secure_sum.topology import Graph, regular_graph
from tests.helpers.numbers import first_fast, num_examples

SESSION = Session(run=2**63 + 5, server_round=3)
RING = Ring(32)
DIGEST = bytes(range(32))
POLICY = Policy(min_peers=1)


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    return recover({0: shares}, threshold, lambda *_: True)[0]


@dataclass
class Transcript:
    """All that passes through the server in one round, and the clients behind it."""

    cohort: MaskedCohort
    ring: Ring
    announced: dict[int, Participant]
    sharers: set[int] = field(default_factory=set)
    boxes: dict[int, dict[int, bytes]] = field(default_factory=dict)
    uploads: dict[int, RingVector] = field(default_factory=dict)
    after: dict[int, Participant] = field(default_factory=dict)
    revealed: dict[int, dict[int, bytes]] = field(default_factory=dict)

    def total(self) -> RingVector:
        return self.cohort.total(self.uploads, self.sharers, self.revealed, self.ring, DIGEST)


def joined(clients: Collection[int]) -> Graph:
    """Return the graph in which all clients are neighbours."""
    return regular_graph(list(clients), len(clients) - 1, np.random.default_rng())


def play(
    vectors: Mapping[int, RingVector],
    threshold: int,
    *,
    graph: Graph | None = None,
    ring: Ring = RING,
    session: Session = SESSION,
    silent: Mapping[str, set[int]] | None = None,
    keys: Callable[[dict[int, PublicKeys]], dict[int, PublicKeys]] = lambda keys: keys,
) -> Transcript:
    """Play a round in which some clients fall silent before a stage: share, upload or reveal."""
    silent = {"share": set(), "upload": set(), "reveal": set(), **(silent or {})}
    start = {n: Participant.announce(session, n) for n in vectors}
    public = keys({n: c.public for n, c in start.items()})
    cohort = MaskedCohort(session, public, graph or joined(vectors), threshold)
    seen = Transcript(cohort, ring, start)
    shared = {}
    for n, client in start.items():
        if n not in silent["share"]:
            shared[n], seen.boxes[n] = client.share(
                n, {p: public[p] for p in cohort.graph[n]}, threshold, POLICY
            )
    seen.sharers = cohort.enough(shared)
    for n in seen.sharers - silent["upload"]:
        mine = {p: seen.boxes[p][n] for p in cohort.neighbourhood(n, seen.sharers)}
        client = shared[n].open(mine, POLICY)
        seen.after[n], seen.uploads[n] = client.upload(vectors[n], ring, DIGEST)
    cohort.check(seen.uploads, seen.sharers)
    for n in set(seen.uploads) - silent["reveal"]:
        alive = [n, *cohort.neighbourhood(n, seen.uploads)]
        gone = cohort.neighbourhood(n, seen.sharers - set(seen.uploads))
        seen.revealed[n] = seen.after[n].reveal(alive, gone)[1]
    return seen


def some_vectors(count: int, dim: int, ring: Ring = RING, seed: int = 0) -> dict[int, RingVector]:
    rng = np.random.default_rng(seed)
    high = (1 << ring.bits) - 1
    return {
        n: rng.integers(0, high, dim, dtype=np.uint64, endpoint=True).astype(ring.dtype)
        for n in range(1, count + 1)
    }


@st.composite
def rounds(draw: st.DrawFn) -> dict[str, object]:
    """Cohorts of 3 to 9 clients with any dropouts, complete and sparse, in rings of any size."""
    count = draw(st.integers(3, 9))
    degrees = [*range(2, count - 1, 2), count - 1]
    degree = draw(st.sampled_from(degrees))
    numbers = st.sets(st.integers(1, count), max_size=max(count // 3, 1))
    return {
        "count": count,
        "graph": regular_graph(range(1, count + 1), degree, np.random.default_rng(count)),
        "threshold": draw(st.integers((degree + 1) // 2 + 1, degree + 1)),
        "ring": Ring(draw(st.sampled_from([8, 13, 16, 24, 32, 40, 64]))),
        "dim": draw(st.sampled_from([0, 1, 2, 17])),
        "silent": {stage: draw(numbers) for stage in ("share", "upload", "reveal")},
    }


@settings(max_examples=num_examples(120), deadline=None)
@given(rounds())
def test_the_sum_is_exact_for_all_who_uploaded_or_there_is_none(case: dict[str, object]) -> None:
    ring, silent, threshold = case["ring"], case["silent"], case["threshold"]
    assert isinstance(ring, Ring)
    assert isinstance(silent, dict)
    vectors = some_vectors(case["count"], case["dim"], ring)  # type: ignore[arg-type]
    try:
        seen = play(vectors, threshold, graph=case["graph"], ring=ring, silent=silent)  # type: ignore[arg-type]
    except AbandonedError:
        return
    speaking = set(seen.uploads) - silent["reveal"]
    graph, alive = seen.cohort.graph, set(seen.uploads)
    relevant = alive | {n for n in seen.sharers if alive.intersection(graph[n])}
    enough = all(len(speaking & {n, *graph[n]}) >= threshold for n in relevant)  # type: ignore[operator]
    if not enough:
        with pytest.raises(AbandonedError, match="cannot be recovered"):
            seen.total()
        return
    plain = add_vectors([vectors[n] for n in seen.uploads], ring)
    assert seen.total().dtype == plain.dtype
    assert (seen.total() == plain).all()


def test_one_dropout_more_than_the_threshold_allows_ends_the_round() -> None:
    vectors = some_vectors(9, 4)
    with pytest.raises(AbandonedError, match="5 of 9 clients have uploaded, too few"):
        play(vectors, 6, silent={"upload": {1, 2, 3, 4}})
    seen = play(vectors, 6, silent={"reveal": {1, 2, 3, 4}})
    with pytest.raises(AbandonedError, match="5 clients with threshold 6"):
        seen.total()
    with pytest.raises(AbandonedError, match="0 clients have enough peers"):
        play(vectors, 6, silent={"share": {1, 2, 3, 4}})


def test_a_client_without_enough_holders_left_is_left_out_and_the_others_go_on() -> None:
    # A ring of eight with two neighbours each: 4 and 6 lose a holder when 5 does not share.
    graph = {n: tuple(sorted(((n - 2) % 8 + 1, n % 8 + 1))) for n in range(1, 9)}
    cohort = MaskedCohort(SESSION, {}, graph, 2)
    assert cohort.enough({1, 2, 3, 4, 6, 7, 8}) == {1, 2, 3, 4, 6, 7, 8}
    # With threshold 3 a gap eats its way around the ring: nobody has both neighbours in the end.
    with pytest.raises(AbandonedError):
        MaskedCohort(SESSION, {}, graph, 3).enough({1, 2, 3, 4, 6, 7, 8})


def test_survivors_that_fall_apart_are_not_unmasked_in_parts() -> None:
    graph = {n: tuple(sorted(((n - 2) % 8 + 1, n % 8 + 1))) for n in range(1, 9)}
    cohort = MaskedCohort(SESSION, {}, graph, 2)
    cohort.check({1, 2, 3, 4, 5, 6, 7}, range(1, 9))
    with pytest.raises(AbandonedError, match="fall apart"):
        cohort.check({1, 2, 3, 5, 6, 7}, range(1, 9))


def test_too_few_uploads_are_noticed_before_anything_is_revealed() -> None:
    cohort = MaskedCohort(SESSION, {}, joined(range(1, 6)), 3)
    cohort.check({1, 2, 3}, range(1, 6))
    with pytest.raises(AbandonedError, match="2 of 5 clients have uploaded, too few"):
        cohort.check({1, 2}, range(1, 6))
    with pytest.raises(AbandonedError, match="1 clients have uploaded, 2 are needed"):
        cohort.check({1}, range(1, 6))


def test_a_dropped_client_whose_masks_nobody_could_open_ends_the_round_at_once() -> None:
    # 1 to 4 know each other and survive; 5 has masked with 1, and its other holders are gone too.
    joined = {1: (2, 3, 4, 5), 2: (1, 3, 4), 3: (1, 2, 4), 4: (1, 2, 3)}
    cohort = MaskedCohort(SESSION, {}, {**joined, 5: (1, 6, 7), 6: (5, 7), 7: (5, 6)}, 3)
    cohort.check({1, 2, 3, 4}, {1, 2, 3, 4})
    with pytest.raises(AbandonedError, match="too few to open the masks of 1"):
        cohort.check({1, 2, 3, 4}, range(1, 8))


def test_a_wrong_share_is_noticed_and_done_without() -> None:
    # Each further subset lacks the liar with chance 2/7: 64 of them fail with chance 4e-10.
    vectors = some_vectors(8, 12)
    seen = play(vectors, 5, silent={"upload": {8}})
    for owner in seen.revealed[1]:  # the lowest number, so it is in the first subset tried
        seen.revealed[1][owner] = seen.revealed[2][owner]
    plain = add_vectors([vectors[n] for n in seen.uploads], RING)
    assert (seen.total() == plain).all()


def test_without_a_share_to_spare_a_wrong_one_ends_the_round() -> None:
    seen = play(some_vectors(5, 3), 5)
    seen.revealed[4][2] = seen.revealed[4][3]
    with pytest.raises(AbandonedError, match=r"secrets of clients \[2\] cannot be recovered"):
        seen.total()


def test_malformed_shares_count_as_absent() -> None:
    vectors = some_vectors(6, 3)
    seen = play(vectors, 4)
    seen.revealed[1] = dict.fromkeys(seen.revealed[1], b"short")
    seen.revealed[2] = {}
    assert (seen.total() == add_vectors(list(vectors.values()), RING)).all()


def test_a_share_from_somebody_who_was_given_none_is_ignored() -> None:
    graph = regular_graph(range(1, 10), 4, np.random.default_rng(1))
    vectors = some_vectors(9, 3)
    seen = play(vectors, 5, graph=graph)  # all five holders are needed
    strangers = {n: set(vectors) - {n, *graph[n]} for n in vectors}
    for owner, others in strangers.items():
        for stranger in others:
            seen.revealed[stranger][owner] = bytes(SHARE_BYTES)
    assert (seen.total() == add_vectors(list(vectors.values()), RING)).all()


def test_a_client_that_shared_another_seed_than_it_committed_to_ends_the_round() -> None:
    def forge(keys: dict[int, PublicKeys]) -> dict[int, PublicKeys]:
        two = keys[2]
        return {**keys, 2: PublicKeys(two.share, two.mask, keys[3].commitment)}

    seen = play(some_vectors(5, 3), 3, keys=forge)
    with pytest.raises(AbandonedError, match=r"clients \[2\]"):
        seen.total()


def test_a_dropped_clients_shares_of_another_key_end_the_round() -> None:
    seen = play(some_vectors(5, 3), 3, silent={"upload": {5}})
    for n, shares in seen.revealed.items():
        shares[5] = seen.after[n].held[5][SHARE_BYTES:]  # of its seed instead
    with pytest.raises(AbandonedError, match=r"clients \[5\]"):
        seen.total()


# What the server sees. All tests below use the operating system's randomness: the chance that a
# correct program fails them is stated.


def looks_uniform(vectors: NDArray[np.unsignedinteger], chance: float = 1e-6) -> bool:
    """Whether 32-bit words could be uniform and independent; wrong with at most `chance`.

    Chi-square over the values of each byte of a word, and over the four combinations of each bit
    with the same bit of the next word, which catches generators whose low bits cycle.
    """
    words = np.ascontiguousarray(vectors, "<u4")
    octets = words.view(np.uint8).reshape(-1, 4)
    statistics = []
    for place in range(4):
        counts = np.bincount(octets[:, place], minlength=256)
        mean = len(words) / 256
        statistics.append((((counts - mean) ** 2 / mean).sum(), 255))
    for bit in range(32):
        bits = (words >> bit) & 1
        counts = np.bincount(2 * bits[0::2] + bits[1::2], minlength=4)
        mean = len(words) / 8
        statistics.append((((counts - mean) ** 2 / mean).sum(), 3))
    share = chance / len(statistics)
    return all(value < chi2.isf(share, freedom) for value, freedom in statistics)


def congruential(length: int) -> NDArray[np.uint32]:
    """A weak generator: linear congruential modulo 2^32, whose low bits cycle."""
    values, state = np.empty(length, np.uint32), 12345
    for i in range(length):
        state = (1664525 * state + 1013904223) % 2**32
        values[i] = state
    return values


def test_uploads_look_uniform() -> None:
    # Fails by chance with probability 5e-6.
    plain = np.arange(20_000, dtype=np.uint32) % 7
    seen = play(dict.fromkeys(range(1, 6), plain), 3)
    for upload in seen.uploads.values():
        assert looks_uniform(upload)


def test_the_test_of_uniformity_rejects_plain_values_and_weak_masks() -> None:
    plain = np.arange(20_000, dtype=np.uint32) % 7
    weak = congruential(20_000)
    short = np.tile(np.random.default_rng(0).integers(0, 2**32, 500, np.uint32), 40)
    assert not looks_uniform(plain)
    assert not looks_uniform(plain + weak)
    assert not looks_uniform(short)  # a stream that repeats itself
    assert looks_uniform(np.random.default_rng(0).integers(0, 2**32, 20_000, np.uint32))


def test_two_rounds_and_two_clients_share_no_mask() -> None:
    # Two equal words among 2,000 have chance 1e-13 a pair, looks_uniform adds 28e-6.
    zero = np.zeros(2_000, np.uint32)
    masks = []
    for server_round in (1, 2):
        session = Session(SESSION.run, server_round)
        seen = play(dict.fromkeys(range(1, 5), zero), 3, session=session)
        masks += list(seen.uploads.values())
    for i, one in enumerate(masks):
        for other in masks[:i]:
            assert np.count_nonzero(one == other) < 2
            assert looks_uniform(one - other)


@dataclass
class Adversary:
    """The server's transcript and all that some clients know; it takes off every mask it can."""

    seen: Transcript
    colluders: set[int]

    def residue(self, target: int) -> RingVector:
        """Return the target's upload without the masks that the adversary can compute."""
        cohort, seen = self.seen.cohort, self.seen
        masks: list[tuple[bytes, int]] = []
        held = {h: s[target] for h, s in seen.revealed.items() if target in s}
        seed = combine(held, cohort.threshold)
        masks.append((self_mask_key(SESSION, target, seed), -1))
        for peer in cohort.neighbourhood(target, seen.sharers):
            if (own := self._mask_pair(peer)) is not None:
                key = agree(SESSION, "mask", peer, own, {target: cohort.keys[target].mask}, DIGEST)[
                    target
                ]
                masks.append((key, -pair_sign(target, peer)))
        if (own := self._mask_pair(target)) is not None:  # both secrets: nothing is hidden
            peers = {p: cohort.keys[p].mask for p in cohort.neighbourhood(target, seen.sharers)}
            unknown = {p: k for p, k in peers.items() if self._mask_pair(p) is None}
            keys = agree(SESSION, "mask", target, own, unknown, DIGEST)
            masks += [(key, -pair_sign(target, peer)) for peer, key in keys.items()]
        return add_masks(seen.uploads[target], masks, RING)

    def _mask_pair(self, owner: int) -> KeyPair | None:
        """Return a client's mask pair if the adversary knows it or has enough shares of it."""
        if owner in self.colluders:
            secrets = self.seen.announced[owner].secrets
            assert secrets is not None
            return secrets.mask
        shares = {c: self._share_at(c, owner) for c in self.colluders}
        if owner not in self.seen.uploads:
            shares |= {h: s[owner] for h, s in self.seen.revealed.items() if owner in s}
        if len(shares) < self.seen.cohort.threshold:
            return None
        return KeyPair.of(combine(shares, self.seen.cohort.threshold))

    def _share_at(self, colluder: int, owner: int) -> bytes:
        return self.seen.after[colluder].held[owner][:SHARE_BYTES]

    def guess(self, target: int, candidates: tuple[RingVector, RingVector]) -> int:
        """Return which of two updates the target has sent."""
        residue = self.residue(target)
        gaps = [
            float(np.abs(RING.signed(residue - c).astype(np.float64)).sum()) for c in candidates
        ]
        return int(gaps[1] < gaps[0])


TRIALS = 30
PAIR = (np.full(8, 3, np.uint32), np.full(8, 900, np.uint32))


def hits(colluders: set[int], silent: dict[str, set[int]] | None = None) -> int:
    """Return how often the adversary tells which of clients 1 and 2 has sent which update."""
    found = 0
    coins = np.random.default_rng(7).integers(0, 2, TRIALS)
    for coin in coins:
        other = np.full(8, 5, np.uint32)
        vectors = dict.fromkeys(range(3, 8), other)
        vectors |= {1: PAIR[coin], 2: PAIR[1 - coin]}
        seen = play(vectors, 5, silent=silent)
        found += Adversary(seen, colluders).guess(1, PAIR) == coin
    return found


@pytest.mark.parametrize(
    ("colluders", "silent"),
    first_fast(
        1,
        [
            # One fewer than the threshold, all other masks known: 1 and 2 hide each other.
            ({3, 4, 5, 6}, {"upload": {7}}),
            ({3, 4, 5, 6}, {}),
            (set(), {}),
        ],
    ),
)
def test_with_fewer_colluders_than_the_threshold_swapped_updates_look_the_same(
    colluders: set[int], silent: dict[str, set[int]]
) -> None:
    # The number of hits is binomial(1/2); beyond 5 standard deviations with chance 2e-7.
    assert abs(hits(colluders, silent) - TRIALS / 2) < 5 * math.sqrt(TRIALS) / 2


def test_the_same_adversary_with_as_many_colluders_as_the_threshold_reads_everything() -> None:
    assert hits({3, 4, 5, 6, 7}) == TRIALS
