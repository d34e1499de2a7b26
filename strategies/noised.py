"""The place of the server's noise in the chain of strategies."""

from __future__ import annotations

from strategies.wrapper import Wrapper


class Noised(Wrapper):
    """Hands everything on; clipping and noise on the mean go here."""
