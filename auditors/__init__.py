"""Everything a Flower project needs to have its aggregates audited; stands alone.

Names are imported on first use, so that the pure mathematics (`auditors.gaussian`,
`auditors.bounds`) can be had without Flower.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from auditors.base import Auditor, Bound, Canary, Finding, RoundFacts, RoundView, UpdateSampler
    from auditors.checks import check_auditor
    from auditors.duel import Effort
    from auditors.hook import Audited
    from auditors.lrt import LikelihoodRatio
    from auditors.membership import Membership
    from auditors.mods import canary_mod, tap_mod
    from auditors.mutual import MutualInformation
    from auditors.one_shot import OneShotCanaries
    from auditors.plug_in import passive
    from auditors.recorder import AggregateRecorder, replay
    from auditors.replay_sampler import ReplaySampler

__all__ = [
    "AggregateRecorder",
    "Audited",
    "Auditor",
    "Bound",
    "Canary",
    "Effort",
    "Finding",
    "LikelihoodRatio",
    "Membership",
    "MutualInformation",
    "OneShotCanaries",
    "ReplaySampler",
    "RoundFacts",
    "RoundView",
    "UpdateSampler",
    "canary_mod",
    "check_auditor",
    "passive",
    "replay",
    "tap_mod",
]

_HOME = {
    "AggregateRecorder": "recorder",
    "Audited": "hook",
    "Effort": "duel",
    "LikelihoodRatio": "lrt",
    "Membership": "membership",
    "MutualInformation": "mutual",
    "OneShotCanaries": "one_shot",
    "ReplaySampler": "replay_sampler",
    "canary_mod": "mods",
    "check_auditor": "checks",
    "passive": "plug_in",
    "replay": "recorder",
    "tap_mod": "mods",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"auditors.{_HOME.get(name, 'base')}"), name)
