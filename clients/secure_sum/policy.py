"""What a client insists on, whatever the server proposes."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from leakmeter.auditors.hook.wire import WEIGHT, RefusedError, one_line
from leakmeter.clients.secure_sum.drawn import LEAST_SUM, smallest_sum
from leakmeter.clients.secure_sum.graph import check_threshold
from leakmeter.clients.secure_sum.quantise import Quantiser


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
        for name, least in (("min_peers", 1), ("min_threshold", 2), ("colluders", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for low, high in (("min_clip_range", "max_clip_range"), ("min_max_weight", "max_weight")):
            least, most = getattr(self, low), getattr(self, high)
            if not most > 0:
                raise ValueError(f"{high} must be above 0, got {most}")
            if not 0 <= least <= most:
                raise ValueError(f"{low} must be in [0, {high}], here {most:g}, got {least}")

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
        wanted = max(LEAST_SUM, self.min_threshold - self.colluders)
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
