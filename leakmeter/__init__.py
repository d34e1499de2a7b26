"""Measures what federated learning leaks: privacy auditors around any Flower strategy.

The four rooms (`auditors`, `clients`, `strategies`, `fl_app`) are at the top of the repository, and
this package is the one name that an installation offers: `from leakmeter import Audited`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from leakmeter._rooms import ROOMS, find_rooms, homes, version

if TYPE_CHECKING:
    from leakmeter.auditors import *  # noqa: F403
    from leakmeter.clients import *  # noqa: F403
    from leakmeter.fl_app.job import read_result as read_result
    from leakmeter.fl_app.job import run as run
    from leakmeter.strategies import *  # noqa: F403

__version__: str  # what the project file says

find_rooms(__file__)

# The rooms whose public names are also found here, such as `leakmeter.Audited`.
_DOORS = ("auditors", "clients", "strategies")
_MODULES = (*ROOMS, "loggers")
# Single names, such as `leakmeter.run`, with their modules: those imported above by name.
_SINGLE = {name: home for name, home in homes(__spec__).items() if name != "*"}


def __getattr__(name: str) -> Any:
    if name == "__all__":  # which a star asks for
        return _public()
    if name == "__version__":
        return version()
    if name in _MODULES:
        return import_module(f"leakmeter.{name}")
    if name in _SINGLE:
        return getattr(import_module(_SINGLE[name]), name)
    for door in _DOORS if not name.startswith("_") else ():
        room = import_module(f"leakmeter.{door}")
        if name in room.__all__:
            return getattr(room, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _public() -> list[str]:
    doors = [import_module(f"leakmeter.{door}") for door in _DOORS]
    return sorted({*_SINGLE, *(name for door in doors for name in door.__all__)})


def __dir__() -> list[str]:
    return sorted({"__version__", *_MODULES, *_public()})
