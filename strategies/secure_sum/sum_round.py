"""One secure sum between its train messages and its mean."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import Layout, shaped
from leakmeter.auditors.hook.wrapper import SumOpening
from leakmeter.auditors.values import Vector
from leakmeter.clients.secure_sum.keys import Instructions, Terms
from leakmeter.clients.secure_sum.masking import RingVector
from leakmeter.clients.secure_sum.quantise import BlankSumError, Quantiser, SecureMean
from leakmeter.strategies.secure_sum.exchange import Exchange, convinced
from leakmeter.strategies.secure_sum.topology import Plan
from leakmeter.strategies.secure_sum.unmasking import AbandonedError, MaskedCohort, RejectedError


@dataclass(frozen=True)
class SumRound:
    """What the server keeps between `configure_train` and `aggregate_train`.

    Attributes:
        exchange: Asks the clients.
        plan: Graph and threshold.
        cohort: Who takes part, with their keys.
        sharers: Those who were asked to train.
        quantiser: How updates are encoded.
        sent: The model that clients got.
        start: The same as a vector.
    """

    exchange: Exchange
    plan: Plan
    cohort: MaskedCohort
    sharers: set[int]
    quantiser: Quantiser
    sent: ArrayRecord
    start: Vector

    def uploads(self, replies: Iterable[Message]) -> dict[int, RingVector]:
        """Return the masked vectors of those whose sum can be opened.

        Raises:
            AbandonedError: They are too few.
        """
        found = self.exchange.uploads(replies, self.sharers, self.quantiser, len(self.start))
        self.cohort.check(found, self.sharers, self.seats)
        return found

    @property
    def seats(self) -> set[int]:
        """Numbers of those who were told to play a canary, as all were told."""
        # The audit, which is outermost, has put its orders into our messages by now.
        return set(wire.seat_numbers(self.exchange.messages[min(self.sharers)].content))

    def num_seats(self, survivors: Collection[int]) -> int:
        """Return how many of the survivors play a canary."""
        return len(self.seats & set(survivors))

    def total(self, uploads: Mapping[int, RingVector], charge: Callable[[], None]) -> SecureMean:
        """Take the masks off the sum.

        Args:
            uploads: The survivors' masked vectors.
            charge: Called before the server asks for the first share: from then on it may be able
                to open the sum, whatever happens next.

        Raises:
            AbandonedError: Too few clients help, or none of them has an update.
            RejectedError: The sum is none of honest clients.
        """
        digest = self._digest()
        if self.plan.server == "active":
            revealed = self._signed_shares(uploads, digest, charge)
        else:
            charge()
            revealed = self.exchange.shares(self.cohort, uploads, self.sharers)
        ring = self.quantiser.ring
        total = self.cohort.total(uploads, self.sharers, revealed, ring, digest)
        if (reason := self.quantiser.implausible(total, len(uploads))) is not None:
            raise RejectedError(f"some client has sent what no honest one can: {reason}")
        try:
            return self.quantiser.decode(total)
        except BlankSumError:
            raise AbandonedError(
                f"none of {len(uploads)} clients had an update to send; their own logs say why. "
                "Often training has diverged, or max_weight of Masked is below their weights"
            ) from None

    def _signed_shares(
        self, uploads: Mapping[int, RingVector], digest: bytes, charge: Callable[[], None]
    ) -> dict[int, dict[int, bytes]]:
        """Let the survivors sign who they are, then ask those who have for shares."""
        signatures = self.exchange.signatures(self.cohort, uploads, digest)
        asked = convinced(self.cohort, signatures)
        self.cohort.check_signed(asked, uploads, self.sharers)
        charge()
        about = (self.cohort, uploads, self.sharers, signatures)
        return self.exchange.signed_shares(*about)

    def _digest(self) -> bytes:
        """Return what all clients were told, from the messages as they were sent."""
        messages = [self.exchange.messages[n] for n in sorted(self.sharers)]
        instruction = Instructions().same(messages)
        if instruction is None:
            raise AbandonedError(
                "train messages were changed after Masked had made them, and not all in the same "
                "way, so the masks do not cancel: put Masked around what changes them"
            )
        return self.terms.digest(instruction)

    @property
    def terms(self) -> Terms:
        """What the clients agree on besides their train messages."""
        session, threshold = self.cohort.session, self.cohort.threshold
        exchange = self.exchange
        roster = exchange.roster if self.plan.is_drawn else exchange.announcements
        return Terms(session, threshold, self.exchange.settings, roster)

    def opening(self, uploads: Sequence[int], fixed_weight: float | None) -> SumOpening:
        """Return what the strategies inside charge for.

        Args:
            uploads: The survivors.
            fixed_weight: What every client weighs; None if that is open.
        """
        weight = len(uploads) * (fixed_weight or self.quantiser.max_weight)
        outcome = self._outcome(uploads, self.quantiser.quantum(len(uploads), weight), saturated=0)
        nodes = {n: m.metadata.dst_node_id for n, m in self.exchange.messages.items()}
        return SumOpening(
            asked=tuple(nodes[n] for n in sorted(self.sharers)),
            uploaded=tuple(nodes[n] for n in uploads),
            outcome=outcome,
        )

    def _outcome(self, survivors: Collection[int], step: float, saturated: int) -> wire.SumOutcome:
        """Return what strategies inside have to know of a sum with these clients."""
        colluders = self.plan.bearable(len(survivors) - self.num_seats(survivors))
        return wire.SumOutcome(step, saturated, colluders, self.plan.fewest(len(survivors)) or 0)

    def replies(
        self,
        survivors: Collection[int],
        mean: SecureMean,
        layout: Layout,
        weight_key: str,
        *,
        is_exact: bool,
    ) -> list[Message]:
        """Return one reply per survivor, each with the mean: their mean is the mean."""
        dtypes = ["float64"] * len(layout.names) if is_exact else None
        mean_arrays = layout.restore(self.start + mean.mean, self.sent, dtypes)
        arrays = ArrayRecord()
        for name, array in mean_arrays.items():
            arrays[name] = _Shared(array.dtype, array.shape, array.stype, array.data)
        metrics: dict[str, Any] = {
            weight_key: mean.total_weight / len(survivors),
            **mean.metrics,
        }
        # At equal weights the mean errs by at most the grid that each client rounds its update to.
        about = self._outcome(survivors, mean.quantum, mean.saturated).to_record()
        return [
            Message(
                RecordDict(
                    {"arrays": arrays, "metrics": MetricRecord(metrics), wire.SUM_OUTCOME: about}
                ),
                reply_to=self.exchange.messages[number],
            )
            for number in survivors
        ]


class _Shared(Array):
    """An array of all replies: Flower's strategies read it in each, and parse it each time."""

    def numpy(self) -> NDArray[Any]:
        """Return a copy of the numbers, without numpy's parser of file headers."""
        return shaped(self).copy()


def check_even(messages: Sequence[Message]) -> None:
    """Refuse messages that tell clients different things: their masks would not cancel.

    Raises:
        ValueError: Some do.
    """
    instructions = Instructions()
    if not messages or instructions.same(messages) is not None:
        return
    first = messages[0]
    other = next(m for m in messages if instructions.of(m) != instructions.of(first))
    names = ", ".join(map(repr, instructions.differing(first, other)))
    raise ValueError(
        "strategy must send all clients of a round the same train message inside Masked, got "
        f"messages that differ in {names}: clients mask with what they were told, so that a server "
        "cannot single one out; send the same to all, and let clients look up what is their own"
    )
