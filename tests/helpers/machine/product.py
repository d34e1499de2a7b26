"""What a server learns that tells every client something else.

Any choice of one `Part` for each honest client is one such server, provided that the boxes that it
delivers exist. From the parts follow the shares that it gets, the secrets that these open, and the
sums that it can read: masks that it does not know must cancel, so a sum is over whole closed groups
of the graph of unknown masks. Colluders sign every list and hand out all shares that they hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from tests.helpers.machine.local import Group, Part, Reveal

Parts = Mapping[int, Part]


@dataclass(frozen=True)
class Knowledge:
    """What a server has after a round.

    Attributes:
        seeds: Whose self-mask seed opens.
        keys: Whose mask secret opens.
        revealed: Who has revealed shares.
        groups: Smallest sets of honest clients whose sums can be read; they are disjoint.
    """

    seeds: Group
    keys: Group
    revealed: Group
    groups: frozenset[Group]


def knowledge(parts: Parts) -> Knowledge:
    """Return what a server has that lets clients play these parts."""
    seeds: dict[int, set[int]] = {one: set() for one in parts}
    keys: dict[int, set[int]] = {one: set() for one in parts}
    revealed = set()
    for one, part in parts.items():
        view = {**dict(part.peers), part.number: one}
        for reveal in part.reveals:
            if not _is_convinced(parts, part, reveal):
                continue
            revealed.add(one)
            for found, numbers in ((seeds, reveal.seeds), (keys, reveal.keys)):
                for owner in (view[n] for n in numbers):
                    if owner in parts and part.number in parts[owner].holders:
                        found[owner].add(part.number)
    for one, part in parts.items():
        hired = {n for n, of in part.peers if of not in parts and n in part.holders}
        seeds[one] |= hired
        keys[one] |= hired
    of_seed, of_key = (
        frozenset(one for one, part in parts.items() if 0 < part.threshold <= len(found[one]))
        for found in (seeds, keys)
    )
    groups = _groups(parts, of_seed, of_key)
    return Knowledge(of_seed, of_key, frozenset(revealed), groups)


def _is_convinced(parts: Parts, part: Part, reveal: Reveal) -> bool:
    """Whether enough of its peers have signed for a client to reveal."""
    view = dict(part.peers)
    signers = {n for n in part.boxes if _has_signed(parts, view[n], part, reveal)}
    return any(needed <= signers for needed in reveal.enough)


def _has_signed(parts: Parts, of: int, part: Part, reveal: Reveal) -> bool:
    """Whether somebody gives a signature that counts for this client."""
    if of not in parts:
        return True
    return any(
        digest == reveal.digest
        and (part.number in alive if part.is_drawn else alive == reveal.alive)
        for digest, alive in parts[of].lists
    )


def _groups(parts: Parts, seeds: Group, keys: Group) -> frozenset[Group]:
    """Return the closed groups: no unknown mask leads out of them, and all seeds are open."""
    joined: dict[int, set[int]] = {one: set() for one in parts}
    dangling = {one for one, part in parts.items() if not part.uploads or one not in seeds}
    for one, part in parts.items():
        view = dict(part.peers)
        for peer in (view[n] for n in part.boxes):
            if peer not in parts or one in keys or peer in keys:
                continue  # the server knows this mask
            other = parts[peer]
            if part.number in other.boxes and other.uploads == part.uploads:
                joined[one].add(peer)
                joined[peer].add(one)
            else:
                dangling.add(one)
    return frozenset(group for group in _components(joined) if not group & dangling)


def _components(joined: Mapping[int, Collection[int]]) -> Iterator[Group]:
    """Yield the connected components of a graph."""
    left = set(joined)
    while left:
        near = {left.pop()}
        group: set[int] = set()
        while near:
            group |= near
            near = {peer for one in near for peer in joined[one]} - group
        left -= group
        yield frozenset(group)


def breaches(parts: Parts, known: Knowledge, colluders: int) -> list[str]:
    """Return how a round breaks what is claimed; empty if it does not."""
    found = [f"both secrets of {one} open" for one in sorted(known.seeds & known.keys)]
    found += [f"{one} has uploaded twice" for one, part in parts.items() if len(part.uploads) > 1]
    for group in known.groups:
        if any(_is_small(parts, parts[one], group, colluders) for one in group):
            found.append(f"the sum of {sorted(group)} is read")
        if len({(parts[one].instruction, parts[one].threshold) for one in group}) > 1:
            found.append(f"{sorted(group)} are in one sum and were told different things")
    return found


def _is_small(parts: Parts, part: Part, group: Group, colluders: int) -> bool:
    """Whether a sum that can be read has fewer clients than one of them may count on."""
    if not part.is_drawn:
        return len(group) < max(2, part.threshold - colluders)
    # `graph`, condition 2: so many of a client's draws are in the group or collude.
    drawn = {of for n, of in part.peers if n in part.holders}
    inside = {of for of in drawn if of in group or of not in parts}
    return len(inside) < 2 * part.threshold - len(drawn) - 2


def products(choices: Mapping[int, Collection[Part]]) -> Iterator[dict[int, Part]]:
    """Yield every choice of one part for each client whose boxes exist."""
    yield from _extended(list(choices), choices, {})


def _extended(
    left: list[int], choices: Mapping[int, Collection[Part]], chosen: dict[int, Part]
) -> Iterator[dict[int, Part]]:
    if not left:
        yield chosen
        return
    for part in choices[left[0]]:
        more = {**chosen, left[0]: part}
        if _fits(part, chosen):
            yield from _extended(left[1:], choices, more)


def _fits(part: Part, chosen: Parts) -> bool:
    """Whether all boxes between a client and those before it exist."""
    own = (part.number, part.owner)
    for other in chosen.values():
        place = (other.number, other.owner)
        if place in part.peers and other.number in part.boxes and own not in other.peers:
            return False
        if own in other.peers and part.number in other.boxes and place not in part.peers:
            return False
    return True
