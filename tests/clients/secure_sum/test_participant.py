"""One client's steps: in order, once, and within its own policy."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.auditors.hook.wire import RefusedError
from leakmeter.clients.secure_sum.keys import Session, agree, seal
from leakmeter.clients.secure_sum.mask_mod import MaskMod
from leakmeter.clients.secure_sum.participant import Participant, Policy
from leakmeter.clients.secure_sum.quantise import Ring
from leakmeter.clients.secure_sum.sharing import SHARE_BYTES
from leakmeter.clients.secure_sum.signing import PublicKeys
from leakmeter.clients.secure_sum.wire import get_participant, put_participant
from tests.helpers.refusals import refuses

SESSION = Session(run=11, server_round=4)
RING = Ring(32)
POLICY = Policy()
DIGEST = bytes(range(32))
ZEROS = np.zeros(6, np.uint32)

Clients = dict[int, Participant]
Boxes = dict[int, dict[int, bytes]]


def announced(count: int, session: Session = SESSION) -> Clients:
    return {n: Participant.announce(session, n) for n in range(1, count + 1)}


def keys_of(clients: Mapping[int, Participant], without: int) -> dict[int, PublicKeys]:
    return {n: p.public for n, p in clients.items() if n != without}


def shared(count: int, threshold: int, session: Session = SESSION) -> tuple[Clients, Boxes]:
    """Return clients that have shared, and sender to receiver to box."""
    before = announced(count, session)
    after, boxes = {}, {}
    for n, client in before.items():
        after[n], boxes[n] = client.share(n, keys_of(before, n), threshold, POLICY)
    return after, boxes


def boxes_for(receiver: int, boxes: Boxes) -> dict[int, bytes]:
    return {sender: to[receiver] for sender, to in boxes.items() if sender != receiver}


def opened(count: int, threshold: int, session: Session = SESSION) -> Clients:
    clients, boxes = shared(count, threshold, session)
    return {n: c.open(boxes_for(n, boxes), POLICY) for n, c in clients.items()}


def uploaded(count: int, threshold: int) -> Clients:
    return {n: c.upload(ZEROS, RING, DIGEST)[0] for n, c in opened(count, threshold).items()}


STEPS: dict[str, Callable[[Participant], Any]] = {
    "announced": lambda c: c.share(1, keys_of(announced(4), 1), 3, POLICY),
    "shared": lambda c: c.open({}, Policy(min_peers=1)),
    "opened": lambda c: c.upload(ZEROS, RING, DIGEST),
    "uploaded": lambda c: c.reveal([1, 2, 3, 4], []),
}


@pytest.mark.parametrize("step", STEPS)
def test_no_step_is_taken_out_of_order_or_twice(step: str) -> None:
    last = uploaded(4, 3)[1]
    revealed = last.reveal([1, 2, 3, 4], [])[0]
    others = [announced(4)[1], shared(4, 3)[0][1], opened(4, 3)[1], last, revealed]
    for client in others:
        if client.step != step:
            with pytest.raises(RefusedError, match=f"after '{step}', the last was"):
                STEPS[step](client)


@pytest.mark.parametrize(
    ("policy", "peers", "threshold", "reason"),
    [
        (Policy(), 1, 2, "peers must be at least 2"),
        (Policy(min_peers=5), 4, 4, "peers must be at least 5"),
        (Policy(), 3, 1, "threshold must be at least 2"),
        (Policy(min_threshold=4), 4, 3, "threshold must be at least 4"),
        (Policy(), 3, 2, r"threshold must be in \[3, 4\]"),  # two halves of four could differ
        (Policy(), 4, 6, r"threshold must be in \[3, 5\]"),
        (Policy(colluders=1), 3, 2, "threshold must be at least 3"),
        (Policy(colluders=1), 4, 3, r"threshold must be in \[4, 5\]"),
        (Policy(colluders=3), 3, 4, "threshold must be at least 5"),
    ],
)
def test_a_round_that_hides_too_little_is_refused(
    policy: Policy, peers: int, threshold: int, reason: str
) -> None:
    clients = announced(peers + 1)
    with pytest.raises(RefusedError, match=reason):
        clients[1].share(1, keys_of(clients, 1), threshold, policy)


@given(st.integers(1, 40), st.integers(0, 41), st.integers(0, 6))
def test_a_policy_never_lets_colluders_and_two_honest_halves_open_both_secrets(
    peers: int, threshold: int, colluders: int
) -> None:
    try:
        Policy(min_peers=1, colluders=colluders).check(peers, threshold)
    except RefusedError:
        return
    holders = peers + 1
    honest = holders - colluders
    # Every honest holder gives one kind of share, the colluders give both: one kind falls short.
    assert all(colluders + min(a, honest - a) < threshold for a in range(honest + 1))
    assert colluders < threshold <= holders
    assert threshold - colluders >= 2  # this many honest clients are in any sum


@pytest.mark.parametrize(
    ("name", "value"), [("min_peers", 0), ("min_threshold", 1), ("colluders", -1)]
)
def test_a_policy_that_protects_nothing_is_a_mistake(name: str, value: int) -> None:
    with refuses(name):
        Policy(**{name: value})
    with refuses(name):
        MaskMod(**{name: value})


def test_another_number_than_the_one_committed_to_is_refused() -> None:
    clients = announced(4)
    with pytest.raises(RefusedError, match="number must be 1"):
        clients[1].share(5, keys_of(clients, 1), 3, POLICY)
    with pytest.raises(RefusedError, match="number must be 1"):
        clients[1].share(1, {n: c.public for n, c in clients.items()}, 3, POLICY)


Keys = dict[int, PublicKeys]
EQUAL: dict[str, Callable[[Keys, PublicKeys], PublicKeys]] = {
    "one mask key for two peers": lambda peers, _: replace(peers[3], mask=peers[2].mask),
    "a mask key as a share key": lambda peers, _: replace(peers[3], share=peers[2].mask),
    "one key for both purposes": lambda peers, _: replace(peers[3], share=peers[3].mask),
    "the client's own key": lambda peers, own: replace(peers[3], mask=own.share),
}


@pytest.mark.parametrize("change", EQUAL)
def test_equal_keys_are_refused(change: str) -> None:
    clients = announced(4)
    peers = keys_of(clients, 1)
    peers[3] = EQUAL[change](peers, clients[1].public)
    with pytest.raises(RefusedError, match="some are equal"):
        clients[1].share(1, peers, 3, POLICY)


MOVED: dict[str, Callable[[Boxes, Boxes], bytes]] = {
    "of another sender": lambda boxes, _: boxes[3][1],
    "for another receiver": lambda boxes, _: boxes[2][3],
    "my own, sent back": lambda boxes, _: boxes[1][2],
    "of an earlier round": lambda _, earlier: earlier[2][1],
    "changed": lambda boxes, _: boxes[2][1][:-1] + bytes([boxes[2][1][-1] ^ 1]),
    "cut": lambda boxes, _: boxes[2][1][:5],
    "empty": lambda *_: b"",
}


@pytest.mark.parametrize("how", MOVED)
def test_a_box_opens_in_its_own_place_only(how: str) -> None:
    clients, boxes = shared(4, 3)
    _, earlier = shared(4, 3, Session(SESSION.run, SESSION.server_round - 1))
    mine = boxes_for(1, boxes)
    clients[1].open(mine, POLICY)
    with pytest.raises(ValueError, match="box must be sealed by 2 for 1"):
        clients[1].open({**mine, 2: MOVED[how](boxes, earlier)}, POLICY)
    with pytest.raises(RefusedError, match="peers must be among"):
        clients[1].open({**mine, 9: mine[2]}, POLICY)


def test_a_box_that_holds_something_else_is_refused() -> None:
    start = announced(3)
    client, _ = start[1].share(1, keys_of(start, 1), 2, POLICY)
    liar = start[2].secrets
    assert liar is not None
    key = agree(SESSION, "share", 2, liar.share, {1: start[1].public.share})[1]
    box = seal(key, bytes(2 * SHARE_BYTES - 1), SESSION, "shares", 2, 1)
    good = start[3].share(3, keys_of(start, 3), 2, POLICY)[1][1]
    with pytest.raises(RefusedError, match="must contain two shares"):
        client.open({2: box, 3: good}, POLICY)


@pytest.mark.parametrize(
    ("survivors", "dropped", "reason"),
    [
        ([2, 3, 4], [5], "with 1 among them"),
        ([1, 2], [3, 4, 5], "survivors must be at least 3"),
        ([1, 2, 3], [3, 4, 5], "survived and dropped"),
        ([1, 2, 3], [1, 4], "survived and dropped"),
        ([1, 2, 3, 9], [4], "not for"),
        ([1, 2, 3], [9], "not for"),
        ([], [], "survivors must be at least 3"),
    ],
)
def test_lists_of_survivors_that_cannot_be_honest_are_refused(
    survivors: Sequence[int], dropped: Sequence[int], reason: str
) -> None:
    with pytest.raises(RefusedError, match=reason):
        uploaded(5, 3)[1].reveal(survivors, dropped)


def test_no_share_is_revealed_of_a_peer_that_was_not_masked_with() -> None:
    clients, boxes = shared(5, 3)
    mine = boxes_for(1, boxes)
    without_five = clients[1].open({n: mine[n] for n in (2, 3, 4)}, POLICY)
    after, _ = without_five.upload(ZEROS, RING, DIGEST)
    with pytest.raises(RefusedError, match="not for"):
        after.reveal([1, 2, 3, 4], [5])
    with pytest.raises(RefusedError, match=r"threshold must be in \[2, 2\]"):
        clients[1].open({2: mine[2]}, Policy(min_peers=1))


UPLOADED = uploaded(6, 4)[1]


@given(st.sets(st.integers(1, 6)), st.sets(st.integers(1, 6)))
def test_whatever_is_asked_one_share_of_a_peer_at_most_is_revealed(
    survivors: set[int], dropped: set[int]
) -> None:
    try:
        after, revealed = UPLOADED.reveal(survivors, dropped)
    except RefusedError:
        return
    both = {**UPLOADED.held, 1: UPLOADED.own_shares}
    for peer, share in revealed.items():
        of_mask, of_seed = both[peer][:SHARE_BYTES], both[peer][SHARE_BYTES:]
        assert share == (of_seed if peer in survivors else of_mask)
    assert UPLOADED.own_shares[:SHARE_BYTES] not in revealed.values()
    for again in (survivors, {1, 2, 3, 4}):
        with pytest.raises(RefusedError, match="once"):
            after.reveal(again, dropped)


def test_what_a_step_no_longer_needs_is_forgotten() -> None:
    client = opened(4, 3)[1]
    assert not client.locks
    after, _ = client.upload(ZEROS, RING, DIGEST)
    assert after.secrets is None
    done, _ = after.reveal([1, 2, 3, 4], [])
    assert not done.held
    assert not done.own_shares
    with pytest.raises(RefusedError, match="forgotten"):
        _ = done.public


def test_nothing_secret_is_printed() -> None:
    clients, _ = shared(4, 3)
    for client in (announced(4)[1], clients[1], opened(4, 3)[1], uploaded(4, 3)[1]):
        secrets = client.secrets
        hidden = [client.own_shares, *client.locks.values(), *client.held.values()]
        if secrets is not None:
            hidden += [secrets.share.secret, secrets.mask.secret, secrets.seed]
        text = repr(client)
        for value in filter(None, hidden):
            assert repr(value)[2:-1] not in text
            assert value.hex() not in text


def test_the_state_between_two_stages_survives_flowers_records() -> None:
    huge = Participant.announce(Session(2**64 - 1, 2**62), 1)
    for client in (huge, announced(4)[1], shared(4, 3)[0][1], uploaded(4, 3)[1]):
        assert get_participant(put_participant(client)) == client
    with pytest.raises(RefusedError, match="start the run again"):
        get_participant(ConfigRecord({"run": "7"}))


def with_part(data: bytes, place: int, part: bytes) -> bytes:
    """A client's kept state with another part in this place, its sizes as they then are."""
    sizes = list(struct.unpack_from("<15Q", data))
    start = 15 * 8 + sum(sizes[:place])
    rest = data[start + sizes[place] :]
    sizes[place] = len(part)
    return struct.pack("<15Q", *sizes) + data[15 * 8 : start] + part + rest


WRONG: dict[str, Callable[[bytes], object]] = {
    "a text": lambda _: "text",
    "nothing": lambda _: b"",
    "its end is missing": lambda data: data[:-1],
    "more than there was": lambda data: data + b"x",
    "no numbers": lambda data: with_part(data, 0, b""),
    "an unknown step": lambda data: with_part(data, 0, data[120:160] + b"\x63"),
    "a secret that is too short": lambda data: with_part(data, 1, bytes(159)),
    "a part of a number": lambda data: with_part(data, 6, bytes(9)),
    "keys of nobody": lambda data: with_part(with_part(data, 6, b""), 10, bytes(64)),
    "uneven keys": lambda data: with_part(with_part(data, 6, bytes(16)), 10, bytes(3)),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_state_that_is_not_whole_is_refused_without_a_word_of_it(
    wrong: Callable[[bytes], Any],
) -> None:
    for client in (announced(4)[1], shared(4, 3)[0][1], uploaded(4, 3)[1]):
        ((name, data),) = put_participant(client).items()
        assert isinstance(data, bytes)
        assert (
            get_participant(ConfigRecord({name: with_part(data, 2, client.own_shares)})) == client
        )
        with pytest.raises(RefusedError, match="state of the secure sum is not whole") as caught:
            get_participant(ConfigRecord({name: wrong(data)}))
        assert str(caught.value).endswith("start the run again")
