"""Shares are revealed after enough holders have signed the same, and for nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from leakmeter.auditors.hook.wire import RefusedError
from leakmeter.clients.secure_sum.keys import Session
from leakmeter.clients.secure_sum.participant import Participant, Policy
from leakmeter.clients.secure_sum.quantise import Ring
from leakmeter.clients.secure_sum.signing import Identity
from leakmeter.clients.secure_sum.wire import get_participant, put_participant

RING, POLICY, DIGEST = Ring(32), Policy(), bytes(range(32))
NUM, THRESHOLD = 5, 4
SESSION = Session(2**63 + 1, 6)
IDS = {
    n: Identity(Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32)) for n in range(1, NUM + 1)
}


def uploaded(session: Session = SESSION, digest: bytes = DIGEST) -> dict[int, Participant]:
    """Return five clients that have uploaded, each after a journey through its state."""
    start = {n: Participant.announce(session, n) for n in IDS}
    signed = {n: start[n].signed(IDS[n]) for n in IDS}
    clients, boxes = {}, {}
    for n, client in start.items():
        keys = {p: own for p, own in signed.items() if p != n}
        clients[n], boxes[n] = client.share(n, keys, THRESHOLD, POLICY)
    after = {}
    for n, client in clients.items():
        mine = {p: boxes[p][n] for p in IDS if p != n}
        opened = get_participant(put_participant(client)).open(mine, POLICY)
        after[n], _ = opened.upload(np.zeros(2, RING.dtype), RING, digest)
    return {n: get_participant(put_participant(client)) for n, client in after.items()}


def signatures(
    clients: Mapping[int, Participant], lists: Mapping[int, list[int]] | None = None
) -> tuple[dict[int, Participant], dict[int, bytes]]:
    everybody = list(IDS)
    made = {n: c.sign((lists or {}).get(n, everybody), IDS[n]) for n, c in clients.items()}
    return {n: c for n, (c, _) in made.items()}, {n: s for n, (_, s) in made.items()}


CLIENTS = uploaded()
AFTER, SIGNATURES = signatures(CLIENTS)


def test_enough_signatures_over_the_same_list_reveal_one_share_of_each() -> None:
    others = {n: s for n, s in SIGNATURES.items() if n in (2, 3, 4)}
    after, shares = get_participant(put_participant(AFTER[1])).reveal_signed(others, {})
    assert set(shares) == set(IDS)
    assert after.step == "revealed"
    with pytest.raises(RefusedError, match="comes once and after 'signed'"):
        after.reveal_signed(others, {})


def refuses(given: Mapping[int, bytes]) -> None:
    with pytest.raises(RefusedError, match="at least 4 holders must have signed"):
        AFTER[1].reveal_signed(given, {})


def test_a_signature_of_another_round_run_or_instruction_does_not_count() -> None:
    others: list[Any] = [
        uploaded(Session(SESSION.run, 7)),
        uploaded(Session(5, SESSION.server_round)),
        uploaded(digest=bytes(32)),
        uploaded(),  # run and round used again: the keys are others
    ]
    refuses({n: SIGNATURES[n] for n in (2, 3)})  # one too few
    refuses({n: SIGNATURES[n] for n in (1, 2, 3)})  # its own counts once
    for clients in others:
        _, foreign = signatures(clients)
        refuses({2: SIGNATURES[2], 3: SIGNATURES[3], 4: foreign[4]})


def test_a_signature_over_another_list_or_of_somebody_else_does_not_count() -> None:
    _, other = signatures({4: CLIENTS[4]}, {4: [1, 2, 3, 4]})
    refuses({2: SIGNATURES[2], 3: SIGNATURES[3], 4: other[4]})
    refuses({2: SIGNATURES[2], 3: SIGNATURES[3], 4: SIGNATURES[5]})
    refuses({2: SIGNATURES[2], 3: SIGNATURES[3], 9: SIGNATURES[4]})
    refuses({2: SIGNATURES[2], 3: SIGNATURES[3], 4: bytes(64)})


@pytest.mark.parametrize("survivors", [[1, 2, 3], [2, 3, 4, 5], [1, 2, 3, 9], []])
def test_a_list_that_is_too_short_or_lacks_the_client_is_not_signed(survivors: list[int]) -> None:
    with pytest.raises(RefusedError):
        CLIENTS[1].sign(survivors, IDS[1])


def test_a_client_signs_once_where_it_signs_and_then_reveals_for_signed_lists_alone() -> None:
    # Each honest client signs once, so 2·4 > 5 + 2 leaves room for one list only.
    with pytest.raises(RefusedError, match="after 'uploaded'"):
        AFTER[1].sign([1, 2, 3, 4], IDS[1])
    with pytest.raises(RefusedError, match="must be signed first"):
        CLIENTS[1].reveal([1, 2, 3, 4, 5], [])
    with pytest.raises(RefusedError):
        Participant.announce(SESSION, 1).sign([1, 2], IDS[1])


def test_what_was_drawn_must_have_announced_with_the_key_on_the_roster() -> None:
    roster = {n: IDS[n].public for n in IDS}
    client = Participant.announce(SESSION, 1)
    drawn = get_participant(put_participant(client.draw(1, roster, IDS[1].public, (3, 3))))
    assert len(drawn.drawn) == 3
    keys = {n: Participant.announce(SESSION, n).signed(IDS[n]) for n in IDS if n != 1}
    drawn.share(1, keys, 3, POLICY)
    one = next(iter(drawn.drawn))
    swapped = {**keys, one: replace(keys[one], signer=IDS[1].public)}
    missing = {n: own for n, own in keys.items() if n != one}
    for given in (swapped, missing):
        with pytest.raises(RefusedError, match="all neighbours that were drawn"):
            drawn.share(1, given, 3, POLICY)
    with pytest.raises(RefusedError, match="threshold must stay 3"):
        drawn.share(1, keys, 4, POLICY)


def test_a_roster_must_have_the_client_itself_and_nobody_twice() -> None:
    client = Participant.announce(SESSION, 1)
    roster = {n: IDS[n].public for n in IDS}
    with pytest.raises(RefusedError, match="on the roster with its own key"):
        client.draw(1, {**roster, 1: IDS[2].public}, IDS[1].public, (3, 3))
    with pytest.raises(RefusedError, match="some are equal"):
        client.draw(1, {**roster, 3: IDS[2].public}, IDS[1].public, (3, 3))
