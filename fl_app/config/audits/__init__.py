"""The table of auditors: each is a class of settings that checks and builds its auditor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from leakmeter.fl_app.config.audits.rounds import (
    InversionSettings,
    MembershipSettings,
    OneShotSettings,
    PlantedRecordsSettings,
    RecorderSettings,
    RecordLikelihoodRatioSettings,
    SingleUpdateSettings,
    SpanSettings,
)
from leakmeter.fl_app.config.audits.sums import (
    LikelihoodRatioSettings,
    MineSettings,
    MutualInformationSettings,
    TranscriptSettings,
)
from leakmeter.fl_app.config.field import AuditorSettings


@dataclass(frozen=True)
class SettingsOfAuditors(  # one row for each auditor; fields come in reverse order
    RecorderSettings,
    SpanSettings,
    InversionSettings,
    PlantedRecordsSettings,
    MembershipSettings,
    RecordLikelihoodRatioSettings,
    TranscriptSettings,
    MineSettings,
    MutualInformationSettings,
    LikelihoodRatioSettings,
    SingleUpdateSettings,
    OneShotSettings,
):
    """The settings of all auditors together."""


AUDITORS: Final[Mapping[str, type[AuditorSettings]]] = {
    owner.auditor: owner
    for owner in reversed(SettingsOfAuditors.__bases__)
    if issubclass(owner, AuditorSettings)
}
