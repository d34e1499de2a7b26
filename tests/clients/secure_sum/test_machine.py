"""No server learns more than is claimed, whatever it tells whom: all of it is tried.

`tests.helpers.machine.local` tries every order on the library's own client and notes what it
accepts. `product` and `compiled` combine that over all clients, and follow which secrets open and
which sums can be read. `replay` plays a round with real keys, masks and signatures.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import combinations, islice, permutations, product
from typing import Any

import pytest

from leakmeter.clients.secure_sum import keys
from leakmeter.clients.secure_sum.participant import Participant, Policy
from tests.helpers.machine.compiled import Found, has_compiler, search
from tests.helpers.machine.local import Group, Part, Reveal, Setting, explored
from tests.helpers.machine.product import breaches, knowledge, products
from tests.helpers.machine.replay import Round, Story, story
from tests.helpers.numbers import first_fast
from tests.helpers.project import ROOT

Choices = Mapping[int, Collection[Part]]
MAX_SAMPLES = 100_000
compiled = pytest.mark.skipif(not has_compiler(), reason="the search is in C, and there is no cc")


def world(size: int, colluders: int = 0, **more: Any) -> Setting:
    """Return a setting whose clients expect as many colluders as there are."""
    return Setting(size, colluders, Policy(colluders=colluders), **more)


# By the name of its row in docs/secure-aggregation.md.
SMALL = {
    "3 clients": world(3, instructions=2),
    "3 clients, 1 colludes": world(3, 1, instructions=2, disguise=True),
}
MIDDLE = {
    "4 clients": world(4, instructions=2),
    "4 clients, 1 colludes": world(4, 1, instructions=2, disguise=True),
    "4 clients, 2 collude": world(4, 2, instructions=2, disguise=True),
    "4 clients draw 2": world(4, draws=2),
    "4 clients draw 2, 1 colludes": world(4, 1, draws=2, instructions=2, disguise=True),
    "5 clients, one message": world(5),
    "5 clients, 1 colludes": world(5, 1, instructions=2, disguise=True),
    "5 clients, 2 collude": world(5, 2, instructions=2, disguise=True),
    "5 clients, 3 collude": world(5, 3, instructions=2, disguise=True),
    "5 clients draw 3, 2 collude": world(5, 2, draws=3, instructions=2, disguise=True),
}
FULL = {  # without silence between training and unmasking, see the test of that
    "5 clients, full": world(5, instructions=2),
    "5 clients draw 3, 1 colludes, full": world(5, 1, draws=3, disguise=True),
}
DRAWN = {"5 clients draw 3, full": world(5, draws=3)}


@cache
def documented() -> dict[str, tuple[int, int]]:
    """Return the table of the documentation: name to histories of a client, and rounds."""
    text = (ROOT / "docs" / "secure-aggregation.md").read_text(encoding="utf-8")
    section = text.split("### What was tried")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+?) \| ([\d,]+) \| ([\d,]+) \|", section, re.M)
    return {name: (_number(parts), _number(rounds)) for name, parts, rounds in rows}


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def counted(choices: Choices, rounds: int) -> tuple[int, int]:
    """Return the two numbers of a row."""
    return len(choices[1]), rounds


def full(choices: Choices) -> dict[int, list[Part]]:
    """Return the parts without those of clients that fall silent after training."""
    return {one: [part for part in parts if part.is_full] for one, parts in choices.items()}


def is_safe(found: Found) -> bool:
    """Whether no round breaks a claim."""
    return not (found.both or found.small or found.mixed or found.breach)


# Every round of a few clients


@pytest.mark.parametrize("name", SMALL)
def test_no_server_opens_more_than_is_claimed_whatever_it_tells_three_clients(name: str) -> None:
    setting, rounds = SMALL[name], 0
    choices = explored(setting)
    for parts in products(choices):
        rounds += 1
        assert not breaches(parts, knowledge(parts), setting.colluders), parts
    assert counted(choices, rounds) == documented()[name]


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("name", MIDDLE | FULL)
def test_no_server_opens_more_than_is_claimed_whatever_it_tells_whom(name: str) -> None:
    setting = (MIDDLE | FULL)[name]
    choices = full(explored(setting)) if name in FULL else explored(setting)
    found = search(setting, choices)
    assert is_safe(found), found
    assert counted(choices, found.products) == documented()[name]


@compiled
@pytest.mark.slow
def test_nor_does_it_for_any_draws_of_five_clients() -> None:
    """Draws that differ only in names are looked at once."""
    (name, setting), rounds = next(iter(DRAWN.items())), 0
    choices = {
        one: [part for part in parts if part.is_drawn or not part.peers]
        for one, parts in full(explored(setting)).items()
    }
    for drawn, times in graphs(setting.size, setting.draws).items():
        own = {
            one: [p for p in parts if not p.peers or p.holders == drawn[one - 1] | {one}]
            for one, parts in choices.items()
        }
        found = search(setting, own, is_symmetric=False)
        assert is_safe(found), (drawn, found)
        rounds += times * found.products
    assert counted(choices, rounds) == documented()[name]


def graphs(size: int, draws: int) -> dict[tuple[Group, ...], int]:
    """Return all draws but for names, and how often each occurs with other names."""
    numbers = range(1, size + 1)
    own = [[frozenset(c) for c in combinations(set(numbers) - {n}, draws)] for n in numbers]
    found: dict[tuple[Group, ...], int] = {}
    seen: set[tuple[Group, ...]] = set()
    for drawn in product(*own):
        if drawn not in seen:
            renamed = {_renamed(drawn, names) for names in permutations(numbers)}
            seen |= renamed
            found[drawn] = len(renamed)
    return found


def _renamed(drawn: tuple[Group, ...], names: tuple[int, ...]) -> tuple[Group, ...]:
    after = dict(zip(names, drawn, strict=True))
    return tuple(frozenset(names[n - 1] for n in after[own]) for own in sorted(after))


def test_each_name_of_the_documented_table_is_explored() -> None:
    assert documented().keys() == SMALL.keys() | MIDDLE.keys() | FULL.keys() | DRAWN.keys()


# What the search relies on


def swapped(part: Part, other: int) -> Part:
    """Return the part with client 1 and another one exchanged, and without digests."""
    names = {1: other, other: 1}

    def new(number: int) -> int:
        return names.get(number, number)

    def those(group: Group) -> Group:
        return frozenset(map(new, group))

    reveals = tuple(
        replace(
            r,
            digest=b"",
            alive=those(r.alive),
            seeds=those(r.seeds),
            keys=those(r.keys),
            enough=frozenset(map(those, r.enough)),
        )
        for r in part.reveals
    )
    return replace(
        part,
        owner=new(part.owner),
        number=new(part.number),
        peers=frozenset((new(n), new(of)) for n, of in part.peers),
        holders=those(part.holders),
        boxes=those(part.boxes),
        uploads=(),
        lists=tuple((b"", those(alive)) for _, alive in part.lists),
        reveals=reveals,
    )


@pytest.mark.parametrize(
    "setting",
    first_fast(
        1,
        [
            world(3, instructions=2),
            world(4, 1, disguise=True),
            world(4, draws=2),
            world(5),
            world(5, 1, draws=3, disguise=True),
        ],
    ),
)
def test_every_client_has_the_same_rules_but_for_names(setting: Setting) -> None:
    choices = explored(setting)
    for other in setting.honest:
        as_other = {swapped(part, other) for part in choices[1]}
        assert as_other == {swapped(part, 1) for part in choices[other]}


@compiled
@pytest.mark.parametrize(
    "setting",
    first_fast(
        1,
        [
            *list(SMALL.values())[::-1],
            world(4, 1, disguise=True),
            world(4, 1, draws=2),
            world(4, is_signed=False),
        ],
    ),
)
def test_the_compiled_search_counts_what_the_plain_one_does(setting: Setting) -> None:
    choices, rounds = explored(setting), 0
    sums: dict[tuple[int, int], int] = {}
    for parts in products(choices):
        rounds += 1
        for group in knowledge(parts).groups:
            place = (max(parts[one].threshold for one in group), len(group))
            sums[place] = sums.get(place, 0) + 1
    found = search(setting, choices)
    assert (found.products, found.sums) == (rounds, sums)


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("setting", [world(4, instructions=2), world(5, 1, disguise=True)])
def test_a_client_that_falls_silent_after_training_opens_no_other_sums(setting: Setting) -> None:
    """The server has less then. So five clients and two messages are searched without it."""
    choices = explored(setting)
    assert set(search(setting, choices).sums) == set(search(setting, full(choices)).sums)


# With real keys, masks and signatures


def sample(setting: Setting, choices: Choices, seed: int) -> Iterator[dict[int, Part]]:
    """Yield rounds at random, for ever; half of them with one threshold and message for all."""
    rng = random.Random(seed)
    pools = full(choices)
    told = sorted({(p.threshold, p.instruction) for p in pools[1] if p.reveals})
    while True:
        own = pools
        if rng.random() < 0.5:
            common = rng.choice(told)
            own = {
                one: [p for p in parts if (p.threshold, p.instruction) == common or not p.uploads]
                for one, parts in pools.items()
            }
        parts = {one: rng.choice(own[one]) for one in setting.honest}
        if next(products({one: [part] for one, part in parts.items()}), None):
            yield parts


def check_replays(setting: Setting, readable: int, others: int) -> None:
    """Play rounds in which sums can be read, and others, and compare with what was predicted."""
    left = {True: readable, False: others}
    for parts in islice(sample(setting, explored(setting), seed=37), MAX_SAMPLES):
        is_readable = bool(knowledge(parts).groups)
        if left[is_readable]:
            left[is_readable] -= 1
            check_replay(setting, parts)
        if not any(left.values()):
            return
    pytest.fail(f"in {MAX_SAMPLES} rounds too few had sums that can be read")


def check_replay(setting: Setting, parts: Mapping[int, Part]) -> None:
    known = knowledge(parts)
    stories = {one: story(part) for one, part in parts.items()}
    reading = Round(stories, setting.policy, setting.size).play()
    assert reading.seeds == known.seeds
    assert reading.keys == known.keys
    assert reading.revealed == known.revealed
    assert reading.sums == unions(known.groups)


def unions(groups: Collection[Group]) -> frozenset[Group]:
    """Return all sums that follow from those over disjoint groups."""
    found = {frozenset[int]()}
    for group in groups:
        found |= {group | other for other in found}
    return frozenset(found - {frozenset()})


@pytest.mark.parametrize(
    ("setting", "rounds"),
    first_fast(
        2,
        [
            *((setting, 4) for setting in SMALL.values()),
            (world(4, instructions=2), 25),
            (world(4, 1, instructions=2, disguise=True), 25),
            (world(4, draws=2), 25),
            (world(5), 25),
            (world(5, 1, instructions=2, disguise=True), 25),
            (world(5, 2, draws=3), 25),
        ],
    ),
)
def test_real_masks_come_off_exactly_where_the_search_says_so(
    setting: Setting, rounds: int
) -> None:
    check_replays(setting, readable=rounds, others=rounds)


# Clients that forget a rule


def first_breach(setting: Setting) -> list[str]:
    """Return the first breach that a plain search finds."""
    for parts in products(explored(setting)):
        if found := breaches(parts, knowledge(parts), setting.colluders):
            return found
    return []


def test_a_client_that_reveals_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    once = Participant._revealed

    def again(self: Participant, alive: set[int], gone: set[int]) -> Any:
        return replace(self, step="uploaded", alive=()), once(self, alive, gone)[1]

    monkeypatch.setattr(Participant, "_revealed", again)
    assert any("both secrets" in one for one in first_breach(world(3)))


def test_a_client_that_takes_any_threshold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Policy, "check", lambda *_: None)
    assert first_breach(world(3))


def test_masks_that_are_not_bound_to_the_message_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keys, "binding", lambda *_: bytes(32))
    assert any("different things" in one for one in first_breach(world(3, instructions=2)))


def test_a_client_that_uploads_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, once = Participant.open, Participant.upload

    def open_again(self: Participant, *given: Any) -> Any:
        return replace(opened(self, *given), locks=self.locks)

    def upload_again(self: Participant, *given: Any) -> Any:
        return replace(self, step="shared"), once(self, *given)[1]

    monkeypatch.setattr(Participant, "open", open_again)
    monkeypatch.setattr(Participant, "upload", upload_again)
    assert any("twice" in one for one in first_breach(world(3)))


@compiled
@pytest.mark.slow
def test_a_threshold_that_two_halves_reach_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four clients with threshold 2: two call the others dropped, and the others them."""
    monkeypatch.setattr("leakmeter.clients.secure_sum.participant.check_threshold", lambda *_: None)
    setting = world(4)
    assert search(setting, explored(setting)).both


@compiled
@pytest.mark.slow
def test_a_client_that_checks_no_signatures_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes five clients; the round that is found opens one update, and does so for real."""
    monkeypatch.setattr(Participant, "_agrees", lambda *_: True)
    setting = world(5)
    choices = full(explored(setting))
    found = search(setting, choices)
    assert found.small
    assert not found.both
    assert found.sums[3, 1]
    assert found.breach is not None
    assert breaches(found.breach, knowledge(found.breach), 0)
    stories = {one: story(part) for one, part in found.breach.items()}
    assert min(map(len, Round(stories, setting.policy).play().sums)) < 3


@compiled
@pytest.mark.slow
def test_without_signing_keys_five_clients_are_not_safe_from_an_active_server() -> None:
    """As documented: lists of survivors that differ open single updates.

    Clients that are asked about all peers are enough; others give the server less.
    """
    setting = world(5, is_signed=False)
    choices = {
        one: [part for part in parts if all(_names_all(part, r) for r in part.reveals)]
        for one, parts in full(explored(setting)).items()
    }
    found = search(setting, choices)
    assert found.small
    assert found.sums[3, 1]
    assert not found.both


def _names_all(part: Part, reveal: Reveal) -> bool:
    return part.boxes <= reveal.seeds | reveal.keys


# A number that two clients have


def nine_helpers() -> dict[int, Story]:
    """Return what a server tells ten honest clients to read the update of the first.

    It hands out each number from 1 to 5 twice, which no client can see. Client 1 is shown 2 to 5
    and gets boxes of 2 and 3 alone. These three sign the list 1, 2, 3, so client 1 reveals its
    share of its own seed. By "3" client 2 means identity 8, and by "2" client 3 means identity 7.
    Identities 4, 5 and 7 sign 1, 2, 4, 5 and reveal: two shares of client 1's seed, three of the
    mask key of client 3. Identities 8, 9 and 10 sign 3, 4, 5 and reveal three shares of the mask
    key of client 2. So client 1's own seed is open, and both masks come off its upload.
    """

    def told(number: int, peers: dict[int, int], boxes: set[int], alive: set[int]) -> Story:
        return Story(number, peers, 3, frozenset(boxes), 0, frozenset(alive))

    return {
        1: told(1, {2: 2, 3: 3, 4: 4, 5: 5}, {2, 3}, {1, 2, 3}),
        2: told(2, {1: 1, 3: 8, 4: 9, 5: 10}, {1, 3}, {1, 2, 3}),
        3: told(3, {1: 1, 2: 7, 4: 4, 5: 5}, {1, 2}, {1, 2, 3}),
        4: told(4, {1: 1, 2: 7, 3: 3, 5: 5}, {1, 2, 3, 5}, {1, 2, 4, 5}),
        5: told(5, {1: 1, 2: 7, 3: 3, 4: 4}, {1, 2, 3, 4}, {1, 2, 4, 5}),
        6: Story(1, {2: 7, 3: 8}, 3),
        7: told(2, {1: 6, 3: 3, 4: 4, 5: 5}, {1, 3, 4, 5}, {1, 2, 4, 5}),
        8: told(3, {2: 2, 4: 9, 5: 10}, {2, 4, 5}, {3, 4, 5}),
        9: told(4, {2: 2, 3: 8, 5: 10}, {2, 3, 5}, {3, 4, 5}),
        10: told(5, {2: 2, 3: 8, 4: 9}, {2, 3, 4}, {3, 4, 5}),
    }


def test_a_server_that_hands_out_numbers_twice_reads_no_update() -> None:
    reading = Round(nine_helpers(), Policy()).play()
    assert all(len(group) >= 3 for group in reading.sums), sorted(map(sorted, reading.sums))
