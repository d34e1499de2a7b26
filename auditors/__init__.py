"""Everything a Flower project needs to have its aggregates audited; stands alone.

Names are imported on first use, so that the pure mathematics (`auditors.gaussian`,
`auditors.bounds`) can be had without Flower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import alias, lazy

if TYPE_CHECKING:
    from leakmeter.auditors.base import (
        Auditor,
        Bound,
        Canary,
        Finding,
        RoundFacts,
        RoundView,
        UpdateSampler,
    )
    from leakmeter.auditors.checks import check_auditor
    from leakmeter.auditors.duel import Effort
    from leakmeter.auditors.hook import Audited
    from leakmeter.auditors.lrt import LikelihoodRatio
    from leakmeter.auditors.membership import Membership
    from leakmeter.auditors.mods import canary_mod, tap_mod
    from leakmeter.auditors.mutual import MutualInformation
    from leakmeter.auditors.one_shot import OneShotCanaries
    from leakmeter.auditors.plug_in import passive
    from leakmeter.auditors.recorder import AggregateRecorder, replay
    from leakmeter.auditors.replay_sampler import ReplaySampler

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

_HOME |= dict.fromkeys(set(__all__) - set(_HOME), "base")

__getattr__ = lazy(__name__, _HOME)
alias(__name__)
