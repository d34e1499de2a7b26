"""Everything a Flower project needs to have its aggregates audited; depends on no other room.

This table is what is public. The mathematics has front pages of its own, which need neither Flower
nor torch: `auditors.bounds`, `auditors.gaussian`, `auditors.ldp`; then `auditors.information`,
`auditors.likelihood_ratio` and `auditors.records`. Everything else is internal.

Names are imported on first use, so that the mathematics can be had without Flower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import alias, lazy

if TYPE_CHECKING:
    from leakmeter.auditors.assumptions import Assumption
    from leakmeter.auditors.auditor import (
        Auditor,
        Canary,
        Project,
        RoundFacts,
        RoundView,
        UnableError,
    )
    from leakmeter.auditors.bounds.anytime import Anytime
    from leakmeter.auditors.callback import Callback, RunEnd, RunStart, StopAbove
    from leakmeter.auditors.canaries.auditor import OneShotCanaries
    from leakmeter.auditors.checks import check_auditor
    from leakmeter.auditors.finding import Bound, Finding, Limitation, RunWarning, ThreatModel
    from leakmeter.auditors.hook.audited import Audited
    from leakmeter.auditors.hook.mods import canary_mod, tap_mod
    from leakmeter.auditors.hook.wire import replay_number
    from leakmeter.auditors.hook.wrapper import Wrapper
    from leakmeter.auditors.information.auditor import MutualInformation
    from leakmeter.auditors.information.measure import Look
    from leakmeter.auditors.information.mine.recombined import Critics
    from leakmeter.auditors.information.neural import NeuralInformation
    from leakmeter.auditors.inversion import Inversion, RoundImages
    from leakmeter.auditors.likelihood_ratio.auditor import LikelihoodRatio
    from leakmeter.auditors.likelihood_ratio.game import Effort
    from leakmeter.auditors.likelihood_ratio.span_condition import SpanCondition
    from leakmeter.auditors.likelihood_ratio.transcript.auditor import TranscriptLikelihoodRatio
    from leakmeter.auditors.likelihood_ratio.transcript.case import HiddenCohorts, TranscriptEffort
    from leakmeter.auditors.presets import passive
    from leakmeter.auditors.records.auditor import RecordLikelihoodRatio
    from leakmeter.auditors.records.membership import Membership
    from leakmeter.auditors.replay_log import AggregateRecorder, replay
    from leakmeter.auditors.run_log import RoundLine
    from leakmeter.auditors.sampler import PerRound, UpdateSampler
    from leakmeter.auditors.sampling.replay import ReplaySampler

__all__ = [
    "AggregateRecorder",
    "Anytime",
    "Assumption",
    "Audited",
    "Auditor",
    "Bound",
    "Callback",
    "Canary",
    "Critics",
    "Effort",
    "Finding",
    "HiddenCohorts",
    "Inversion",
    "LikelihoodRatio",
    "Limitation",
    "Look",
    "Membership",
    "MutualInformation",
    "NeuralInformation",
    "OneShotCanaries",
    "PerRound",
    "Project",
    "RecordLikelihoodRatio",
    "ReplaySampler",
    "RoundFacts",
    "RoundImages",
    "RoundLine",
    "RoundView",
    "RunEnd",
    "RunStart",
    "RunWarning",
    "SpanCondition",
    "StopAbove",
    "ThreatModel",
    "TranscriptEffort",
    "TranscriptLikelihoodRatio",
    "UnableError",
    "UpdateSampler",
    "Wrapper",
    "canary_mod",
    "check_auditor",
    "passive",
    "replay",
    "replay_number",
    "tap_mod",
]

_HOME = {
    "AggregateRecorder": "replay_log",
    "Anytime": "bounds.anytime",
    "Assumption": "assumptions",
    "Audited": "hook.audited",
    "Auditor": "auditor",
    "Bound": "finding",
    "Callback": "callback",
    "Canary": "auditor",
    "Critics": "information.mine.recombined",
    "Effort": "likelihood_ratio.game",
    "Finding": "finding",
    "HiddenCohorts": "likelihood_ratio.transcript.case",
    "Inversion": "inversion",
    "LikelihoodRatio": "likelihood_ratio.auditor",
    "Limitation": "finding",
    "Look": "information.measure",
    "Membership": "records.membership",
    "MutualInformation": "information.auditor",
    "NeuralInformation": "information.neural",
    "OneShotCanaries": "canaries.auditor",
    "PerRound": "sampler",
    "Project": "auditor",
    "RecordLikelihoodRatio": "records.auditor",
    "ReplaySampler": "sampling.replay",
    "RoundFacts": "auditor",
    "RoundImages": "inversion",
    "RoundLine": "run_log",
    "RoundView": "auditor",
    "RunEnd": "callback",
    "RunStart": "callback",
    "RunWarning": "finding",
    "SpanCondition": "likelihood_ratio.span_condition",
    "StopAbove": "callback",
    "ThreatModel": "finding",
    "TranscriptEffort": "likelihood_ratio.transcript.case",
    "TranscriptLikelihoodRatio": "likelihood_ratio.transcript.auditor",
    "UnableError": "auditor",
    "UpdateSampler": "sampler",
    "Wrapper": "hook.wrapper",
    "canary_mod": "hook.mods",
    "check_auditor": "checks",
    "passive": "presets",
    "replay": "replay_log",
    "replay_number": "hook.wire",
    "tap_mod": "hook.mods",
}

__getattr__ = lazy(__name__, _HOME)
alias(__name__)
