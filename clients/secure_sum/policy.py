"""What a client insists on, whatever the server proposes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from leakmeter.clients.secure_sum.drawn import LEAST_SUM, smallest_sum
from leakmeter.clients.secure_sum.graph import check_threshold
from leakmeter.clients.secure_sum.quantise import Quantiser


class RefusedError(ValueError):
    """The client does not take this step; nothing of its has been sent."""


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
    """

    min_peers: int = 2
    min_threshold: int = 2
    colluders: int = 0
    max_clip_range: float = math.inf
    max_weight: float = math.inf

    def __post_init__(self) -> None:
        for name, least in (("min_peers", 1), ("min_threshold", 2), ("colluders", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("max_clip_range", "max_weight"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")

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

    def check_sum(self, quantiser: Quantiser) -> None:
        """Refuse a sum that would round this client's update coarser than it wants."""
        for name, most in (("clip_range", self.max_clip_range), ("max_weight", self.max_weight)):
            if not (value := getattr(quantiser, name)) <= most:
                label = name.replace("_", "-")
                raise RefusedError(f"{label} must be at most {most:g} here, got {value:g}")
