"""One client's part in one secure sum: what it insists on, and a few steps, each taken once.

Bonawitz et al. 2017, Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS),
Figure 4; Bell et al. 2020 for sparse graphs. Steps: announce keys, share secrets, open the peers'
shares, upload the masked vector, reveal one share of each peer. Every step returns a new value, so
a step that fails changes nothing.

Towards a server that may do anything there are two more. In a sparse graph the client draws its
own neighbours before it shares. After the upload it signs the list of survivors, and reveals once
`threshold` holders of its secrets have signed that it is one of them, in a complete graph that they
have the same list. Such a client takes keys only with a signature that it trusts.

What every client refuses on its own: fewer peers or a lower threshold than its own policy, another
number than the one it has committed to, equal keys, a set of survivors that is too small or lacks
itself, and to reveal both secrets of one peer. Texts of refusals travel to the server: they hold no
secrets.

Neighbours that clients draw themselves, for a server that may do anything (Bell et al., §4): every
client draws k others from the roster; two clients mask with each other if one has drawn the other.
A client's secrets are shared among those that it has drawn, and itself: k + 1 holders.

What such a server can do, with T clients of the roster that work for it and were fixed before the
draws. It sees all draws, then withholds boxes and names survivors as it likes, and learns sums over
closed groups: sets C of honest clients whose masks towards the outside it can all take off. Let t
be the threshold. Clients that follow `Participant` give:
1. Nobody's two secrets are both opened, nor is one opened whose owner has revealed shares as a
   survivor, while 2·t > k + 1 + (colluders that it has drawn).
2. A client in C masks with at least t − 1 of its draws. Its own seed was opened, so at least t of
   its holders have revealed; those of them that are honest are survivors (by 1), hence in C if it
   masks with them. So at least 2·t − k − 2 of its draws are in C or collude.
The draws are independent, so the chance that some C of size c exists is at most
(n − T choose c)·p_c^c, p_c the chance that a uniform k-subset of n − 1 has at least 2·t − k − 2 of
c − 1 + T marked ones. This covers every choice that the server makes after the draws, dropouts that
it invents included. Summed over c = 1 … m − 1 it is the chance that a sum has fewer than m honest
clients. (1) fails only where a group of one is possible, so the case c = 1 covers it. A group has
one roster, which is part of its digest: a server that uses several has these chances for each.
Different from the paper: the size of the smallest sum is a result, not an assumption.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import SystemRandom
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.hook.wire import WEIGHT, RefusedError, one_line
from leakmeter.auditors.values import require
from leakmeter.clients.secure_sum.keys import (
    KEY_BYTES,
    SEAL_BYTES,
    ClientSecrets,
    Session,
    agree,
    commit,
    seal,
    self_mask_key,
    unseal,
)
from leakmeter.clients.secure_sum.quantise import Quantiser, Ring, RingVector, mask
from leakmeter.clients.secure_sum.sharing import SHARE_BYTES, split
from leakmeter.clients.secure_sum.signing import (
    Identity,
    PublicKeys,
    announcement_text,
    is_signed,
    roster,
    survivors_text,
)

Step = Literal["announced", "drawn", "shared", "opened", "uploaded", "signed", "revealed"]
_STAGE = "shares"
_NOTHING = bytes(2 * SHARE_BYTES)
BOX_BYTES = 2 * SHARE_BYTES + SEAL_BYTES

MAX_EXPOSURE = 2.0**-40
MIN_SUM = 2  # honest clients; with one, the sum is its update


@dataclass(frozen=True)
class Policy:
    """What a client insists on, whatever the server proposes.

    Attributes:
        min_peers: Fewest peers it masks with.
        min_threshold: Fewest shares that may open a secret, and fewest clients in a sum, the
            colluders among them. As many clients of its neighbourhood must survive before it
            reveals anything.
        colluders: Peers that it assumes may collude with the server.
        max_clip_range: Largest clip range of a sum that it takes part in.
        max_weight: Largest weight that such a sum may allow for.
        min_clip_range: Smallest clip range; a small one shows only the signs of updates.
        min_max_weight: Least weight that such a sum must allow for.
        weight_key: The metric that weights it.
        metrics: Names of metrics that a sum may contain; None for any.
    """

    min_peers: int = 2
    min_threshold: int = 2
    colluders: int = 0
    max_clip_range: float = math.inf
    max_weight: float = math.inf
    min_clip_range: float = 0.0
    min_max_weight: float = 0.0
    weight_key: str = WEIGHT
    metrics: frozenset[str] | None = None

    def __post_init__(self) -> None:
        require("at least 1", min_peers=self.min_peers)
        require("at least 2", min_threshold=self.min_threshold)
        require("at least 0", colluders=self.colluders)
        require("(0, inf]", max_clip_range=self.max_clip_range, max_weight=self.max_weight)
        require(f"[0, {self.max_clip_range}]", min_clip_range=self.min_clip_range)
        require(f"[0, {self.max_weight}]", min_max_weight=self.min_max_weight)

    def check(self, num_peers: int, threshold: int) -> None:
        """Refuse a round that hides the client less well than it wants."""
        if num_peers < self.min_peers:
            raise RefusedError(f"peers must be at least {self.min_peers}, got {num_peers}")
        # With fewer honest survivors than two, the sum would be the client's own update.
        least = max(self.min_threshold, self.colluders + 2)
        if threshold < least:
            raise RefusedError(f"threshold must be at least {least}, got {threshold}")
        try:
            check_threshold(num_peers + 1, threshold, self.colluders)
        except ValueError as error:
            raise RefusedError(str(error)) from None

    def check_draws(self, num_clients: int, draws: int, threshold: int) -> None:
        """Refuse draws by which a server may open sums of too few clients."""
        self.check(draws, threshold)
        try:
            least, _ = smallest_sum(num_clients, draws, threshold, self.colluders)
        except ValueError as error:
            raise RefusedError(str(error)) from None
        # The server chooses draws and threshold, so the threshold alone does not limit the sum.
        wanted = max(MIN_SUM, self.min_threshold - self.colluders)
        if least < wanted:
            raise RefusedError(
                f"sums must have at least {wanted} honest clients; {draws} neighbours drawn among "
                f"{num_clients} clients with threshold {threshold} and {self.colluders} colluders "
                f"give {least}"
            )

    def check_sum(self, quantiser: Quantiser, weight_keys: Collection[str]) -> None:
        """Refuse a sum that takes more of this client than its owner allows, or other things.

        Args:
            quantiser: How the sum encodes updates.
            weight_keys: The metrics that orders name as the client's weight.
        """
        limits = {
            "clip_range": (self.min_clip_range, self.max_clip_range),
            "max_weight": (self.min_max_weight, self.max_weight),
        }
        for name, (least, most) in limits.items():
            value, label = getattr(quantiser, name), name.replace("_", "-")
            if not value <= most:
                raise RefusedError(f"{label} must be at most {most:g} here, got {value:g}")
            # Integer noise goes with weights of 1, whatever the client has.
            if not (least <= value or (name == "max_weight" and quantiser.has_integers)):
                raise RefusedError(f"{label} must be at least {least:g} here, got {value:g}")
        if others := set(weight_keys) - {self.weight_key}:
            raise RefusedError(
                f"weight-key must be {self.weight_key!r} here, got {one_line(min(others), 40)!r}: "
                "the client's owner sets it, MaskMod(weight_key=...)"
            )
        if self.metrics is not None and (others := set(quantiser.metrics) - self.metrics):
            named = one_line(", ".join(sorted(others)), 80)
            raise RefusedError(
                f"metrics must be among {sorted(self.metrics)} here, got {named} besides"
            )


@dataclass(frozen=True)
class Participant:
    """A client between two steps of one round.

    Attributes:
        session: Run and round.
        number: Its number in the cohort, from 1.
        step: The last step taken.
        secrets: This round's key pairs and seed; forgotten once the vector is uploaded.
        threshold: Shares that open a secret.
        locks: Peer number to the key of the boxes between the two, until they are opened.
        masks: Peer number to its public mask key, until the vector is uploaded.
        own_shares: Its shares of its own mask secret and seed: it is one of its holders.
        held: Peer number to that peer's two shares, once they have come. Zeros come from a peer
            that has not drawn this client.
        drawn: Neighbours that it has drawn, and their public signing keys. They hold its shares;
            empty where all peers do.
        roster: Fingerprint of those among whom it has drawn; in a complete graph, where things are
            signed, of who has announced which keys under which number.
        signers: Peer number to what that peer's signatures are checked against: its signing key
            and the fingerprint of its announcement. Empty where nothing is signed.
        announced: Fingerprint of its own announcement, where things are signed.
        digest: What it was told, once the vector is uploaded.
        seats: Those who were told to play a canary: they hide nobody.
        least: Fewest survivors without a canary.
        alive: The survivors that it has signed.
    """

    session: Session
    number: int
    step: Step
    secrets: ClientSecrets | None = field(repr=False)
    threshold: int = 0
    locks: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    masks: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    own_shares: bytes = field(default=b"", repr=False)
    held: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    drawn: Mapping[int, bytes] = field(default_factory=dict)
    roster: bytes = b""
    signers: Mapping[int, bytes] = field(default_factory=dict)
    announced: bytes = b""
    digest: bytes = b""
    seats: tuple[int, ...] = ()
    least: int = 0
    alive: tuple[int, ...] = ()

    @classmethod
    def announce(cls, session: Session, number: int) -> Self:
        """Draw this round's secrets; `public` is what to send."""
        return cls(session, number, "announced", ClientSecrets.generate())

    @property
    def public(self) -> PublicKeys:
        """The keys to announce."""
        secrets = self._secrets()
        commitment = commit(self.session, self.number, secrets.seed)
        return PublicKeys(secrets.share.public, secrets.mask.public, commitment)

    def signed(self, identity: Identity) -> PublicKeys:
        """Return the announcement with this client's signature."""
        public = self.public
        text = announcement_text(self.session, self.number, public.keys)
        return replace(public, signer=identity.public, signature=identity.sign(text))

    def draw(
        self, number: int, clients: Mapping[int, bytes], own: bytes, shape: tuple[int, int]
    ) -> Self:
        """Draw neighbours among all clients of the round.

        Args:
            number: This client's.
            clients: Number to public signing key of everybody, this client included.
            own: This client's public signing key.
            shape: How many to draw, and the threshold.
        """
        self._after("announced")
        if number != self.number or clients.get(number) != own:
            raise RefusedError(f"client {self.number} must be on the roster with its own key")
        if len(set(clients.values())) < len(clients):
            raise RefusedError(f"keys must differ between {len(clients)} clients, some are equal")
        draws, threshold = shape
        chosen = {peer: clients[peer] for peer in draw(number, clients, draws)}
        listed = roster(clients)
        return replace(self, step="drawn", drawn=chosen, roster=listed, threshold=threshold)

    def share(
        self, number: int, peers: Mapping[int, PublicKeys], threshold: int, policy: Policy
    ) -> tuple[Self, dict[int, bytes]]:
        """Share mask secret and seed; return a sealed box for each peer.

        Args:
            number: This client's.
            peers: Number to what that peer has announced; all are signed, or none.
            threshold: Shares that open a secret.
            policy: What this client insists on.
        """
        self._after("drawn" if self.drawn else "announced")
        if number != self.number or number in peers:
            raise RefusedError(f"number must be {self.number} and no peer's, got {number}")
        holders = self._drawn_among(peers, threshold) if self.drawn else {*peers}
        policy.check(len(holders), threshold)
        secrets = self._secrets()
        own = [secrets.share.public, secrets.mask.public]
        keys = [*own, *(key for peer in peers.values() for key in (peer.share, peer.mask))]
        if len(set(keys)) < len(keys):
            raise RefusedError(f"keys must differ between {len(peers) + 1} clients, some are equal")
        of_mask, of_seed = split(
            [secrets.mask.secret, secrets.seed], threshold, sorted({number, *holders})
        )
        shares = {peer: keys.share for peer, keys in peers.items()}
        locks = agree(self.session, "share", number, secrets.share, shares)
        # Peers that hold nothing get a box too: it shows that this client is there.
        texts = {p: of_mask[p] + of_seed[p] if p in holders else _NOTHING for p in peers}
        boxes = {
            peer: seal(locks[peer], text, self.session, _STAGE, number, peer)
            for peer, text in texts.items()
        }
        signers = {
            peer: keys.signer + keys.announced for peer, keys in peers.items() if keys.signer
        }
        announced = self.public.announced if signers else b""
        listed = self.roster
        if signers and not self.drawn:
            # Lists of survivors have numbers, which the server hands out. Whoever signs the same
            # list must mean the same clients: with two clients of one number a server read updates.
            shown = {peer: keys.announced for peer, keys in peers.items()}
            listed = roster({number: announced, **shown})
        after = replace(
            self,
            step="shared",
            roster=listed,
            threshold=threshold,
            locks=locks,
            masks={peer: keys.mask for peer, keys in peers.items()},
            own_shares=of_mask[number] + of_seed[number],
            signers=signers,
            announced=announced,
        )
        return after, boxes

    def open(self, boxes: Mapping[int, bytes], policy: Policy, seats: Iterable[int] = ()) -> Self:
        """Open the boxes of the peers that are still there; these it will mask with.

        A box that does not open is refused as a whole round: the server relayed it wrongly, or
        the peer lied, and the client cannot tell which.

        Args:
            boxes: Peer number to its box.
            policy: What this client insists on.
            seats: Clients that play a canary.
        """
        self._after("shared")
        if strangers := set(boxes) - set(self.locks):
            raise RefusedError(f"peers must be among {sorted(self.locks)}, got {sorted(strangers)}")
        policy.check(len(self._holders(boxes)), self.threshold)
        held = {
            peer: unseal(self.locks[peer], box, self.session, _STAGE, peer, self.number)
            for peer, box in boxes.items()
        }
        if any(len(shares) != 2 * SHARE_BYTES for shares in held.values()):
            raise RefusedError(f"a box must contain two shares of {SHARE_BYTES} bytes")
        return replace(
            self,
            step="opened",
            locks={},
            masks={peer: self.masks[peer] for peer in boxes},
            held=held,
            signers={peer: self.signers[peer] for peer in boxes if peer in self.signers},
            seats=tuple(sorted(seats)),
            least=policy.colluders + 2,
        )

    def upload(self, vector: RingVector, ring: Ring, digest: bytes) -> tuple[Self, RingVector]:
        """Mask the vector with every peer whose box was opened, and forget the secrets.

        Args:
            vector: What to hide.
            ring: Its ring.
            digest: What this client was told; peers that were told something else have other masks.
        """
        self._after("opened")
        secrets = self._secrets()
        own_key = self_mask_key(self.session, self.number, secrets.seed)
        pairs = agree(self.session, "mask", self.number, secrets.mask, self.masks, digest)
        masked = mask(vector, self.number, own_key, pairs, ring)
        return replace(self, step="uploaded", secrets=None, masks={}, digest=digest), masked

    def sign(self, survivors: Iterable[int], identity: Identity) -> tuple[Self, bytes]:
        """Sign the survivors among the peers, itself included; this binds it."""
        self._after("uploaded")
        if not self.announced:
            raise RefusedError("survivors are signed where keys were signed, these were not")
        alive = self._checked_survivors(survivors)
        text = survivors_text(self.session, self.number, self.announced, self.digest, alive)
        after = replace(self, step="signed", alive=tuple(sorted(alive)))
        return after, identity.sign(text)

    def reveal_signed(
        self, signatures: Mapping[int, bytes], lists: Mapping[int, Iterable[int]]
    ) -> tuple[Participant, dict[int, bytes]]:
        """Return one share of each peer, if enough holders have signed as this client has.

        Args:
            signatures: Holder to its signature.
            lists: Holder to the survivors that it has signed, in a sparse graph; in a complete one
                they must be the same as this client's.
        """
        self._after("signed")
        agreed = sum(
            self._agrees(holder, signatures[holder], lists)
            for holder in self._holders(signatures)
            if holder in self.signers
        )
        if agreed + 1 < self.threshold:
            raise RefusedError(
                f"at least {self.threshold} holders must have signed these survivors, "
                f"got {agreed + 1} with this client"
            )
        return self._revealed(set(self.alive), set(self.held) - set(self.alive))

    def reveal(
        self, survivors: Iterable[int], dropped: Iterable[int]
    ) -> tuple[Participant, dict[int, bytes]]:
        """Return one share of each peer: of the seed if it survived, of the mask secret if not."""
        self._after("uploaded")
        if self.announced:
            raise RefusedError("survivors must be signed first: this client signs")
        gone = set(dropped)
        alive = self._checked_survivors(survivors, gone)
        return self._revealed(alive, gone)

    def _checked_survivors(
        self, survivors: Iterable[int], dropped: Collection[int] = ()
    ) -> set[int]:
        """Return the survivors, if they are such that this client may reveal shares."""
        alive, gone = set(survivors), set(dropped)
        if alive & gone:
            raise RefusedError(f"a client cannot have survived and dropped: {sorted(alive & gone)}")
        holders = {self.number, *self._holders(alive)} & alive
        if self.number not in alive or len(holders) < self.threshold:
            raise RefusedError(
                f"survivors must be at least {self.threshold} with {self.number} among them, "
                f"got {sorted(alive)}"
            )
        known = {self.number, *self.held}
        if missing := (alive | gone) - known:
            raise RefusedError(f"shares are held for {sorted(known)}, not for {sorted(missing)}")
        if len(alive - set(self.seats)) < self.least:
            raise RefusedError(
                f"survivors without a canary must be at least {self.least}, got "
                f"{len(alive - set(self.seats))}"
            )
        return alive

    def _revealed(self, alive: set[int], gone: set[int]) -> tuple[Participant, dict[int, bytes]]:
        """Return one share of each, and forget everything else."""
        shares = {**self.held, self.number: self.own_shares}
        revealed = {peer: shares[peer][SHARE_BYTES:] for peer in alive}
        revealed |= {peer: shares[peer][:SHARE_BYTES] for peer in gone}
        after = Participant(self.session, self.number, "revealed", None, self.threshold)
        return after, revealed

    def _agrees(self, holder: int, signature: bytes, lists: Mapping[int, Iterable[int]]) -> bool:
        """Whether a holder has signed that this client survived."""
        signed = set(lists.get(holder, ())) if self.drawn else set(self.alive)
        if self.number not in signed:
            return False
        signer, announced = self.signers[holder][:KEY_BYTES], self.signers[holder][KEY_BYTES:]
        text = survivors_text(self.session, holder, announced, self.digest, signed)
        return is_signed(signer, signature, text)

    def _drawn_among(self, peers: Mapping[int, PublicKeys], threshold: int) -> set[int]:
        """Return the neighbours that were drawn, if all of them have announced keys."""
        if threshold != self.threshold:
            raise RefusedError(f"threshold must stay {self.threshold}, got {threshold}")
        if any(n not in peers or peers[n].signer != key for n, key in self.drawn.items()):
            raise RefusedError("keys must come from all neighbours that were drawn, some do not")
        return set(self.drawn)

    def _holders(self, among: Iterable[int]) -> set[int]:
        """Return those of some peers that hold shares of this client's secrets."""
        return set(among) & set(self.drawn) if self.drawn else set(among) - {self.number}

    def _secrets(self) -> ClientSecrets:
        if self.secrets is None:
            raise RefusedError(f"secrets are forgotten after {self.step!r}")
        return self.secrets

    def _after(self, step: Step) -> None:
        if self.step != step:
            raise RefusedError(
                f"this step comes once and after {step!r}, the last was {self.step!r}"
            )


def check_threshold(num_holders: int, threshold: int, num_colluders: int) -> None:
    """Refuse a threshold at which `num_colluders` of the holders could get both secrets.

    Every honest holder reveals one of a client's two secrets, never both, so with the colluders
    there are num_holders + num_colluders shares in all; two secrets need twice the threshold.
    """
    least = (num_holders + num_colluders) // 2 + 1
    if not least <= threshold <= num_holders:
        raise BadValueError(
            "threshold",
            f"in [{least}, {num_holders}] for {num_holders} holders, {num_colluders} colluding",
            threshold,
        )


def draw(own: int, roster: Collection[int], draws: int) -> tuple[int, ...]:
    """Return a client's own neighbours, from the operating system's random source."""
    others = sorted(set(roster) - {own})
    require(f"[1, {len(others)}]", draws=draws)
    return tuple(sorted(SystemRandom().sample(others, draws)))


@lru_cache(maxsize=256)
def smallest_sum(
    num_clients: int,
    draws: int,
    threshold: int,
    num_colluders: int,
    max_exposure: float = MAX_EXPOSURE,
) -> tuple[int, float]:
    """Return m and a bound on the chance that a server can open a sum of fewer than m clients.

    m is the largest for which the bound is at most `max_exposure`; m = 1 says nothing.

    Args:
        num_clients: Clients on the roster.
        draws: Neighbours that each draws.
        threshold: Shares that open a secret.
        num_colluders: Clients of the roster that work for the server.
        max_exposure: Largest chance.
    """
    require(f"[2, {num_clients - 2}]", draws=draws)
    require(f"[2, {draws + 1}]", threshold=threshold)
    honest = num_clients - num_colluders
    needed = 2 * threshold - draws - 2  # draws in the group or colluding, see above
    chance = 0.0
    for size in range(1, honest + 1):
        marked = min(size - 1 + num_colluders, num_clients - 1)
        one = float(tail(num_clients - 1, marked, draws)[max(needed, 0)])
        log_groups = float(log_choose(honest, size)) + size * math.log(one) if one else -math.inf
        more = math.exp(min(log_groups, 0.0))
        if chance + more > max_exposure:
            return size, chance
        chance += more
    return max(honest, 1), chance


def tail(population: int, marked: int, drawn: int) -> NDArray[np.float64]:
    """Return P(X ≥ x) for x = 0 … drawn + 1, X the marked among `drawn` of the population."""
    x = np.arange(max(0, drawn + marked - population), min(drawn, marked) + 1)
    log_mass = (
        log_choose(marked, x)
        + log_choose(population - marked, drawn - x)
        - log_choose(population, drawn)
    )
    # Summed from the far end in logs, so the smallest tails keep their digits.
    log_tail = np.logaddexp.accumulate(log_mass[::-1])[::-1]
    tail = np.zeros(drawn + 2)
    tail[: x[0]] = 1.0
    tail[x] = np.minimum(np.exp(log_tail), 1.0)
    return tail


def log_choose(n: NDArray[np.int64] | int, k: NDArray[np.int64] | int) -> NDArray[np.float64]:
    result: NDArray[np.float64] = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return result
