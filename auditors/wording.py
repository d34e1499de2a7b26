"""Numbers and kinds in words, never stronger than they are."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context

from leakmeter.auditors.finding import Finding, Kind

KINDS: dict[Kind, tuple[str, str]] = {
    "guarantee": ("guarantee", "a proven upper bound, if its assumptions hold"),
    "lower_bound": ("lower bound", "at least this much leaks, with the stated confidence"),
    "estimate": ("estimate", "a point estimate; compare it with its null band"),
    "approximation": ("approximation", "what a model of the sum says: no bound on either side"),
    "diagnostic": ("diagnostic", "observed, no claim"),
}
SIGNS = {"guarantee": "≤", "lower_bound": "≥"}


def number(value: float, digits: int = 4, kind: Kind | None = None) -> str:
    """Return a number with so many digits that count.

    A lower bound is rounded down and a guarantee up: rounding must not make them stronger.

    >>> [number(x) for x in (586.0321, 0.00001, 7713.6, 1234567.0, float("inf"), 40.0, -0.5)]
    ['586', '1e-05', '7,714', '1.235e+06', '∞', '40', '−0.5']
    >>> number(0.6257, 3, "lower_bound"), number(1.248, 3, "guarantee")
    ('0.625', '1.25')
    """
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "−∞"}.get(value, "nan")
    mode = {"lower_bound": ROUND_FLOOR, "guarantee": ROUND_CEILING}.get(kind or "", ROUND_HALF_EVEN)
    near = float(Context(prec=digits, rounding=mode).create_decimal(repr(value)))
    text = f"{near:,.0f}" if 1000 <= abs(near) < 1e6 else f"{near:.{digits}g}"
    return text.replace("-", "−", 1) if value < 0 else text


def is_epsilon(finding: Finding) -> bool:
    """Whether the value is an ε."""
    return finding.quantity == "epsilon"


def claim(finding: Finding) -> str:
    """Return the number with the sign of its kind, such as "ε ≥ 1.67"."""
    name = "ε" if is_epsilon(finding) else finding.quantity
    if finding.kind == "guarantee" and not is_epsilon(finding):
        return f"{name}: {number(finding.value)}, guaranteed"
    if finding.kind == "guarantee" and math.isinf(finding.value):
        return "no finite ε is guaranteed"
    if finding.kind == "diagnostic":
        return f"{name}: {number(finding.value)}, observed"
    # Hard spaces: a sign without its number says nothing.
    sign, value = SIGNS.get(finding.kind, "≈"), number(finding.value, 3, finding.kind)
    return f"{name}\N{NO-BREAK SPACE}{sign}\N{NO-BREAK SPACE}{value}"


def terms(finding: Finding) -> str:
    """Return what the number belongs to, such as " at δ = 1e-05, 95 % confidence"."""
    words = [] if finding.delta is None else [f"at δ = {number(finding.delta)}"]
    if finding.confidence is not None:
        words.append(f"{percent(finding.confidence)} confidence")
    return " " + ", ".join(words) if words else ""


def percent(share: float) -> str:
    """Return a share in per cent, with as many digits as it needs.

    >>> percent(0.95), percent(0.9983)
    ('95 %', '99.83 %')
    """
    return f"{100 * share:.4g} %"


def capital(text: str) -> str:
    """Return the text with a capital at its beginning; a Greek letter there is a symbol.

    >>> capital("server who sees"), capital("ε ≥ 1")
    ('Server who sees', 'ε ≥ 1')
    """
    return text[:1].upper() + text[1:] if text[:1].isascii() else text


def sentence(text: str) -> str:
    """Return the text with a capital and a full stop, unless it ends by itself.

    >>> sentence("which of two?"), sentence("two of them")
    ('Which of two?', 'Two of them.')
    """
    return capital(text) if text.endswith((".", "?", "!")) else capital(text) + "."


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "round"), counted(3, "round")
    ('1 round', '3 rounds')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def slug(name: str) -> str:
    """Return a name that may be an identifier in a page.

    >>> slug("mine & <yours>")
    'mine----yours-'
    """
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in name)
