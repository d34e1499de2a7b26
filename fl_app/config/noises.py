"""The table of noises: where the mechanism of each is made, and what a run must know before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True)
class NoiseKind:
    """What a run must know of a noise before its mechanism is made.

    Attributes:
        make: What makes the mechanism of a `Config`, as `module:function`. The module is imported
            when the run is built, so it may import what it needs.
        unit: Whose data it hides; None if it hides nobody's.
        added_by: Who adds it: all `clients`, each a share, or the `server`; None if nobody does.
        needs_sums: Why only a secure sum makes it strong enough; empty if it is so by itself.
        has_integers: Whether --noise-distribution may be one over integers.
        can_adapt: Whether --clipping may be adaptive.
    """

    make: str = ""
    unit: Literal["client", "record"] | None = "client"
    added_by: Literal["clients", "server"] | None = "clients"
    needs_sums: str = ""
    has_integers: bool = False
    can_adapt: bool = False


NO_NOISE: Final = NoiseKind(unit=None, added_by=None)
_HOME: Final = "leakmeter.fl_app.build.noise"
# On the clipped gradients of a client's examples.
_RECORDS: Final = NoiseKind(
    f"{_HOME}:records", unit="record", needs_sums="one client's noise floor is weak"
)
NOISES: Final[Mapping[str, NoiseKind]] = {
    "none": NO_NOISE,
    "central": NoiseKind(f"{_HOME}:central", added_by="server", has_integers=True, can_adapt=True),
    "distributed": NoiseKind(
        f"{_HOME}:distributed",
        needs_sums="one client's share of the noise is weak",
        has_integers=True,
    ),
    "local": NoiseKind(f"{_HOME}:local"),
    "wfna": _RECORDS,
    "record-sgd": _RECORDS,
    "record-gd": _RECORDS,
    "record-isotropic": _RECORDS,
}
CLIENT_NOISES: Final = tuple(name for name, kind in NOISES.items() if kind.unit == "client")
RECORD_NOISES: Final = tuple(name for name, kind in NOISES.items() if kind.unit == "record")
