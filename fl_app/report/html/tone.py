"""How severity looks: a colour and an icon, always next to the words that say the same."""

from __future__ import annotations

from typing import Final, Literal

from leakmeter.auditors.judge.standing import SEVERITIES, Severity, Standing
from leakmeter.auditors.wording import is_epsilon
from leakmeter.fl_app.report.markup import Markup, tag

Tone = Literal["alarm", "warn", "mild", "calm", "good", "grey"]

_TONES: Final[dict[Severity, Tone]] = {
    "certain": "alarm",
    "severe": "alarm",
    "clear": "warn",
    "slight": "mild",
    "suspected": "mild",
    "unbounded": "warn",
    "model": "calm",
    "unable": "calm",
    "none": "calm",
    "bounded": "calm",
    "observed": "grey",
    "protocol": "grey",
}
_STRONG: Final = 1.0  # a guaranteed ε up to which an attacker is at most 73 % sure
_OCTAGON = "M5.300 1.500h5.400l3.800 3.800v5.400l-3.800 3.800h-5.400l-3.800-3.800v-5.400z"
_TRIANGLE = "M8 1.500L15 14H1z"
_ICONS: Final[dict[Severity, str]] = {
    "certain": f"{_OCTAGON}M8 4.500v4.200M8 11v.3",
    "severe": f"{_TRIANGLE}M8 6v4M8 11.800v.3",
    "clear": f"{_TRIANGLE}M8 6v4M8 11.800v.3",
    "slight": "M8 1.500L14.500 8L8 14.500L1.500 8zM8 5v3.500M8 10.800v.3",
    "suspected": "M8 1.500L14.500 8L8 14.500L1.500 8zM8 5v3.500M8 10.800v.3",
    "unbounded": f"{_TRIANGLE}M8 6v4M8 11.800v.3",
    "model": "M1 13C5 13 5 3 8 3s3 10 7 10",
    "unable": "M7 2a5 5 0 1 1 0 10A5 5 0 0 1 7 2zM10.500 10.500L15 15",
    "none": "M7 2a5 5 0 1 1 0 10A5 5 0 0 1 7 2zM10.500 10.500L15 15",
    "bounded": "M8 1.500l6 2.500v4c0 3.500-2.500 5.500-6 7c-3.500-1.500-6-3.500-6-7v-4z",
    "observed": "M1 8s2.500-5 7-5s7 5 7 5s-2.500 5-7 5s-7-5-7-5zM8 6a2 2 0 1 1 0 4a2 2 0 0 1 0-4z",
    "protocol": "M3 5h10M3 8h10M3 11h10",
}


def tone(one: Standing) -> Tone:
    """Return the colour of a line: by what the bound implies, grey for a statement."""
    is_strong = is_epsilon(one.lead) and one.lead.value <= _STRONG
    return "good" if one.severity == "bounded" and is_strong else _TONES[one.severity]


def icon(severity: Severity) -> Markup:
    """Return the icon; the words next to it say the same, so it has no name."""
    path = tag("path", d=_ICONS[severity])
    return tag("svg", path, viewBox="0 0 16 16", class_="icon", aria_hidden="true")


def badge(one: Standing) -> Markup:
    """Return icon and words of a severity."""
    return tag("span", icon(one.severity), SEVERITIES[one.severity], class_=f"badge {tone(one)}")
