"""The server clips the mean update before its optimiser, as a wrapper.

Elkordy, Zhang, Ezzeldin, Psounis, Avestimehr (2023), How Much Privacy Does Federated Learning with
Secure Aggregation Guarantee?, arXiv:2208.02304, section 5.7: the aggregate is clipped to a norm C,
then noised. Ours differs in two points:
1. The paper uses C as the sensitivity of the clipped aggregate to one client. It is up to 2C, and
   nothing here relies on it: without noise clipping guarantees nothing, and under noise `Noised`
   accounts by the clip norm of single updates. It clips the sum itself (`clip_mean`).
2. The server sees the mean before it clips it. Only outsiders see the clipped one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from leakmeter.auditors.codec import Kept
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.hook.wrapper import Wrapper, weight_key
from leakmeter.auditors.values import require
from leakmeter.clients.protection.clipping import clip
from leakmeter.strategies.flower import left_out, trained
from leakmeter.strategies.secure_sum.mean_only import check_mean_only


class Clipped(Wrapper):
    """Clips the weighted mean of the updates to an L2 norm and passes it on.

    A mean within the norm passes unchanged.

    Args:
        strategy: Gets the clipped mean in place of every reply.
        norm: Largest L2 norm of the mean update, over all float parameters.

    Example:
        strategy = Masked(Clipped(FedAvg(), 1.0))
    """

    clips_mean = True

    _layout: Kept[Layout | None]

    def __init__(self, strategy: Strategy, norm: float) -> None:
        super().__init__(strategy)
        require("(0, inf)", norm=norm)
        check_mean_only(strategy)
        self._norm = norm
        self._weight_key = weight_key(strategy)
        self._layout = None
        self._sent = ArrayRecord()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keep the model that is sent: updates are differences from it."""
        self._layout = self._layout or Layout.of(arrays)
        self._sent, self.unused = arrays, frozenset()
        return self._inner_configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Clip the mean update of the round."""
        if self._layout is None:
            return self._inner_aggregate_train(server_round, replies)
        come = wire.distinct(replies)
        replies = trained(come, self._weight_key, self._layout.fits)
        self.unused = left_out(come, replies)
        if good := [m for m in replies if m.has_content()]:
            start = self._layout.flatten(self._sent)
            weights = [wire.weight(m.content, self._weight_key) for m in good]
            total = np.zeros(start.size)
            for message, weight in zip(good, weights, strict=True):
                total += weight * (self._layout.flatten(wire.arrays(message.content)) - start)
            mean = total / (sum(weights) or 1.0)
            if self._norm < np.linalg.norm(mean) < math.inf:  # never where it is not finite
                arrays = self._layout.restore(start + clip(mean, self._norm), self._sent)
                # Copies, in which weight and metrics stay: what came is never changed.
                replies = [copy.copy(m) for m in good]
                for other in replies:
                    key = wire.arrays_key(other.content)
                    other.content = RecordDict({**other.content, key: arrays})
        return self._inner_aggregate_train(server_round, replies)
