"""Everything a Flower project needs to have its aggregates audited; stands alone.

Names are imported on first use, so that the pure mathematics (`auditors.gaussian.pair`,
`auditors.bounds.lower_bound`) can be had without Flower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import alias, lazy

if TYPE_CHECKING:
    from leakmeter.auditors.auditor import Auditor, Canary, RoundFacts, RoundView
    from leakmeter.auditors.canaries.auditor import OneShotCanaries
    from leakmeter.auditors.checks import check_auditor
    from leakmeter.auditors.finding import Bound, Finding
    from leakmeter.auditors.hook.audited import Audited
    from leakmeter.auditors.hook.mods import canary_mod, tap_mod
    from leakmeter.auditors.information.auditor import MutualInformation
    from leakmeter.auditors.information.measure import Look
    from leakmeter.auditors.likelihood_ratio.auditor import LikelihoodRatio
    from leakmeter.auditors.likelihood_ratio.game import Effort
    from leakmeter.auditors.presets import passive
    from leakmeter.auditors.records.membership import Membership
    from leakmeter.auditors.replay_log import AggregateRecorder, replay
    from leakmeter.auditors.sampler import UpdateSampler
    from leakmeter.auditors.sampling.replay import ReplaySampler

__all__ = [
    "AggregateRecorder",
    "Audited",
    "Auditor",
    "Bound",
    "Canary",
    "Effort",
    "Finding",
    "LikelihoodRatio",
    "Look",
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
    "Auditor": "auditor",
    "Bound": "finding",
    "Canary": "auditor",
    "Finding": "finding",
    "RoundFacts": "auditor",
    "RoundView": "auditor",
    "UpdateSampler": "sampler",
    "AggregateRecorder": "replay_log",
    "Audited": "hook.audited",
    "Effort": "likelihood_ratio.game",
    "LikelihoodRatio": "likelihood_ratio.auditor",
    "Look": "information.measure",
    "Membership": "records.membership",
    "MutualInformation": "information.auditor",
    "OneShotCanaries": "canaries.auditor",
    "ReplaySampler": "sampling.replay",
    "canary_mod": "hook.mods",
    "check_auditor": "checks",
    "passive": "presets",
    "replay": "replay_log",
    "tap_mod": "hook.mods",
}

__getattr__ = lazy(__name__, _HOME)
alias(__name__)
