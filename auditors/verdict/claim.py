"""A privacy claim: what somebody says a run guarantees, for an audit to refute or not.

A claim is no guarantee. Nothing is derived from it, no row takes it for its upper end, and an audit
that does not refute it has not confirmed it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, Self, get_args

from leakmeter.auditors._types import require
from leakmeter.auditors.finding import Adjacency, Observer, Unit

Per = Literal["round", "run"]
_PERS: Final = get_args(Per)
_AGAINST: Final = get_args(Observer)
_EXAMPLE: Final = "10@1e-5 server round"


@dataclass(frozen=True)
class Claim:
    """(ε, δ)-differential privacy against somebody, as it is claimed.

    Attributes:
        epsilon: At least 0.
        delta: In [0, 1).
        against: Who should not be able to tell. The server sees whatever reaches it: single
            updates, or their sum where clients mask them. An outsider sees all released models.
        per: Whether the claim is about each round, or about the run as a whole.
        unit: Whose participation is at stake.
        adjacency: How the two worlds differ.
        source: Who makes it: "user", or the name of the mod, the strategy or the mechanism that it
            was read from.
        clip_norm: Norm that updates are clipped to, where the source says it.
        delivered: ε that the source's own parameters give by the exact formula; None if they are
            not known.

    >>> Claim.parse("10@1e-5 server round")
    Claim(epsilon=10.0, delta=1e-05, against='server', per='round')
    """

    epsilon: float
    delta: float = 1e-5
    against: Observer = "server"
    per: Per = "run"
    unit: Unit = field(default="client", repr=False)
    adjacency: Adjacency = field(default="zero-out", repr=False)
    source: str = field(default="user", repr=False)
    clip_norm: float | None = field(default=None, repr=False)
    delivered: float | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require("at least 0", epsilon=self.epsilon)
        require("[0, 1)", delta=self.delta)
        require("(0, inf)", is_optional=True, clip_norm=self.clip_norm)
        require("at least 0", is_optional=True, delivered=self.delivered)
        for name, allowed in (
            ("against", Observer),
            ("per", Per),
            ("unit", Unit),
            ("adjacency", Adjacency),
        ):
            if getattr(self, name) not in get_args(allowed):
                value = getattr(self, name)
                raise ValueError(f"{name} must be one of {get_args(allowed)}, got {value!r}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the claim that a text states, such as "10@1e-5 server round".

        Args:
            text: ε, "@" and δ; then, in any order, against whom (server) and per what (run).
        """
        allowed = f"a claim must read like {_EXAMPLE!r}: ε@δ, {'|'.join(_AGAINST)}, "
        allowed += f"{'|'.join(_PERS)}; got {text!r}"
        amount, *words = text.split() or [""]
        epsilon, _, delta = amount.partition("@")
        found: dict[str, str] = {}
        for word in words:
            name = "against" if word in _AGAINST else "per" if word in _PERS else None
            if name is None or name in found:
                raise ValueError(allowed)
            found[name] = word
        try:
            numbers = float(epsilon), float(delta) if delta else cls.delta
        except ValueError:
            raise ValueError(allowed) from None
        return cls(*numbers, **found)  # type: ignore[arg-type]
