"""Secure sums without masks, where one process plays both sides and so has nobody to hide from.

Masks cancel in the sum, whatever they are. So quantising, rounding, what is summed, charged and
reported are the same to the last bit, in a third of the time. A simulation only: nothing here
protects anybody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.mods import Call, mods_around, with_answer
from leakmeter.clients import MaskMod
from leakmeter.clients.secure_sum.masking import Ring, RingVector, add_vectors
from leakmeter.clients.secure_sum.signing import PublicKeys
from leakmeter.clients.secure_sum.wire import put_upload
from leakmeter.fl_app.config.config import Config
from leakmeter.strategies import Masked
from leakmeter.strategies.secure_sum.exchange import Exchange
from leakmeter.strategies.secure_sum.topology import Plan
from leakmeter.strategies.secure_sum.unmasking import MaskedCohort

_NO_KEYS = PublicKeys(b"", b"", b"")


def cheapest_sums(config: Config) -> tuple[type[Masked], type[MaskMod]]:
    """Return both halves of secure sums for a run in this process, without masks if possible.

    Clients that sign or drop out do more than to mask, so there the whole protocol is played.
    """
    can_open = config.engine == "inline" and config.secagg == "on" and not config.dropout
    return (OpenSums, OpenMod) if can_open else (Masked, MaskMod)


class OpenSums(Masked):
    """The server's half: sums what clients have encoded, and asks for no keys and shares."""

    def _exchange(self, grid: Grid, messages: Mapping[int, Message]) -> Exchange:
        return _OpenExchange(grid, messages, self._last, self._timeout)

    def _cohort(
        self, exchange: Exchange, keys: Mapping[int, PublicKeys], plan: Plan
    ) -> MaskedCohort:
        alone: dict[int, tuple[int, ...]] = dict.fromkeys(keys, ())
        return _OpenCohort(exchange.session, keys, alone, plan.threshold)


class OpenMod(MaskMod):
    """The client's half: encodes the update as all were told, and masks nothing."""

    def __call__(self, message: Message, context: Context, call_next: Call) -> Message:
        """Train, and answer with what is summed."""
        order = wire.config(message.content, wire.MASK)
        if order is None:
            return call_next(message, context)
        mods = mods_around(call_next)
        summed = self._accepted(0, message, mods)
        server_round = wire.get_int(order, "round")
        vector, trained, notes = self._encoded(summed, server_round, message, context, call_next)
        upload = RecordDict({**put_upload(vector, summed.quantiser.ring), **notes})
        return Message(with_answer(message, mods, trained, upload), reply_to=message)


class _OpenExchange(Exchange):
    def keys(self) -> dict[int, PublicKeys]:
        return dict.fromkeys(self.messages, _NO_KEYS)

    def boxes(self, cohort: MaskedCohort) -> dict[int, dict[int, bytes]]:
        return {number: {} for number in cohort.keys}

    def shares(self, *_: Any) -> dict[int, dict[int, bytes]]:
        return {}


class _OpenCohort(MaskedCohort):
    def enough(self, sharers: Iterable[int]) -> set[int]:
        return set(sharers)

    def check(
        self, uploads: Iterable[int], sharers: Iterable[int], seats: Collection[int] = ()
    ) -> None:
        """Nobody is missing."""

    def total(
        self,
        uploads: Mapping[int, RingVector],
        sharers: Iterable[int],
        revealed: Mapping[int, Mapping[int, bytes]],
        ring: Ring,
        digest: bytes,
    ) -> RingVector:
        return add_vectors(uploads.values(), ring)
