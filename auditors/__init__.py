"""Everything a Flower project needs to have its aggregates audited; depends on no other room.

What is listed here is public; everything else is internal. Names are imported on first use, so that
the mathematics can be had without Flower and torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import alias, front_page

if TYPE_CHECKING:
    from leakmeter.auditors.auditor import Auditor as Auditor
    from leakmeter.auditors.auditor import Project as Project
    from leakmeter.auditors.auditor import RoundView as RoundView
    from leakmeter.auditors.auditor import UnableError as UnableError
    from leakmeter.auditors.bounds.anytime import Anytime as Anytime
    from leakmeter.auditors.bounds.gaussian import epsilon_gaussian as epsilon_gaussian
    from leakmeter.auditors.bounds.lower_bound import epsilon_lower_bound as epsilon_lower_bound
    from leakmeter.auditors.canaries.one_shot import OneShotCanaries as OneShotCanaries
    from leakmeter.auditors.canaries.single_update import SingleUpdates as SingleUpdates
    from leakmeter.auditors.checks import check_auditor as check_auditor
    from leakmeter.auditors.codec import Kept as Kept
    from leakmeter.auditors.finding import Finding as Finding
    from leakmeter.auditors.finding import ThreatModel as ThreatModel
    from leakmeter.auditors.hook.audited import Audited as Audited
    from leakmeter.auditors.hook.grid import AuditedGrid as AuditedGrid
    from leakmeter.auditors.hook.legacy import LegacyAudited as LegacyAudited
    from leakmeter.auditors.hook.mods import canary_mod as canary_mod
    from leakmeter.auditors.hook.mods import plant_mod as plant_mod
    from leakmeter.auditors.hook.mods import planted as planted
    from leakmeter.auditors.hook.mods import tap_mod as tap_mod
    from leakmeter.auditors.hook.wire import replay_number as replay_number
    from leakmeter.auditors.information.draws import DrawPlan as DrawPlan
    from leakmeter.auditors.information.mutual_information import (
        MutualInformation as MutualInformation,
    )
    from leakmeter.auditors.information.neural import Critics as Critics
    from leakmeter.auditors.information.neural import NeuralInformation as NeuralInformation
    from leakmeter.auditors.likelihood_ratio.auditor import LikelihoodRatio as LikelihoodRatio
    from leakmeter.auditors.likelihood_ratio.game import SampleBudget as SampleBudget
    from leakmeter.auditors.likelihood_ratio.span import SpanCondition as SpanCondition
    from leakmeter.auditors.likelihood_ratio.transcript import (
        TranscriptLikelihoodRatio as TranscriptLikelihoodRatio,
    )
    from leakmeter.auditors.likelihood_ratio.transcript_runs import (
        TranscriptBudget as TranscriptBudget,
    )
    from leakmeter.auditors.planting.plan import FromFile as FromFile
    from leakmeter.auditors.planting.plan import PlantPlan as PlantPlan
    from leakmeter.auditors.planting.plan import RandomLabel as RandomLabel
    from leakmeter.auditors.planting.plan import RandomPattern as RandomPattern
    from leakmeter.auditors.planting.plan import Secrets as Secrets
    from leakmeter.auditors.planting.planted_records import PlantedRecords as PlantedRecords
    from leakmeter.auditors.planting.scores import TorchScores as TorchScores
    from leakmeter.auditors.presets import passive as passive
    from leakmeter.auditors.reconstruction.inversion import Inversion as Inversion
    from leakmeter.auditors.reconstruction.tokens import TokenInversion as TokenInversion
    from leakmeter.auditors.records.membership import Membership as Membership
    from leakmeter.auditors.records.own_models import keep_models as keep_models
    from leakmeter.auditors.replay_log import AggregateRecorder as AggregateRecorder
    from leakmeter.auditors.replay_log import replay as replay
    from leakmeter.auditors.rng import stream as stream
    from leakmeter.auditors.run_log import Callback as Callback
    from leakmeter.auditors.run_log import StopAbove as StopAbove
    from leakmeter.auditors.sampling.replay import ReplaySampler as ReplaySampler
    from leakmeter.auditors.verdict.claim import Claim as Claim
    from leakmeter.auditors.verdict.gate import assert_private as assert_private
    from leakmeter.auditors.verdict.result import AuditResult as AuditResult
    from leakmeter.auditors.verdict.verdict import Verdict as Verdict
    from leakmeter.auditors.wording import Assumption as Assumption
else:
    __all__, __getattr__ = front_page(__spec__)

alias(__name__)
