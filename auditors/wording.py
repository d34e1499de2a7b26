"""Puts numbers, attackers, kinds and warnings into words, never stronger than they are.

The only place that makes sentences from the fields of a finding, for terminal, page and CSV, with
one rounding rule. Of our modules it imports only `assumptions`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from leakmeter.auditors.assumptions import conditions, is_known, sentence_of

if TYPE_CHECKING:
    from leakmeter.auditors.auditor import Schedule
    from leakmeter.auditors.finding import (
        Finding,
        Game,
        Kind,
        Observer,
        Sees,
        ThreatModel,
        WarningKind,
    )

KINDS: Final[Mapping[Kind, tuple[str, str]]] = {
    "guarantee": ("guarantee", "a proven upper bound, if its assumptions hold"),
    "lower_bound": (
        "lower bound",
        "at least this much leaks, with the stated confidence; one that begins with “if” is a "
        "bound only under that condition, which nobody has checked",
    ),
    "estimate": ("estimate", "a point estimate; compare it with its null band"),
    "approximation": ("approximation", "what a model of the sum says: no bound on either side"),
    "diagnostic": ("diagnostic", "observed, no claim"),
}
SIGNS: Final[Mapping[str, str]] = {"guarantee": "≤", "lower_bound": "≥"}
TOLD_FROM_ZERO: Final = "told_from_zero"  # a fact: whether a figure is above its null band
CERTAIN: Final = 20.0  # an ε above which an attacker is practically certain
_DIGITS: Final = 3  # significant digits, in every number for people
# What each game resamples.
GAMES: Final[Mapping[Game, str]] = {
    "rerun": "each trial keeps the clients' data and resamples batches or weights",
    "partition": "each trial partitions one known data set among all clients",
    "independent": "each trial draws the data of every other client independently",
    "independent-held-out": (
        "each trial draws the data of every other client independently, never the records of the "
        "client under attack"
    ),
    "worst-data": "the other clients have the worst data, which add only their noise floor",
}
_OBSERVERS: Final[Mapping[Observer, str]] = {
    "server": "server",
    "outsider": "outsider",
    "wire": "eavesdropper on the network",
}
_SEES: Final[Mapping[Sees, tuple[str, str]]] = {  # in one round, in all rounds
    "updates": ("every update of a round", "every update"),
    "round sum": ("the sum of a round", "the sum of every round"),
    "noised sum": ("the noised sum of a round", "the noised sum of every round"),
    "frozen sums": (
        "the sum of a round at the model of this run",
        "the sum of every round, each at the model of this run",
    ),
    "all models": ("the model after every round", "the model after every round"),
    "round model": ("the model before and after a round", "the model before and after a round"),
    "final model": ("the initial and the final model", "the initial and the final model"),
}
_HOLDS: Final = {
    "canary": "a canary update",
    "two updates": "two candidate updates of a client",
    "two data sets": "two candidate data sets of a client",
    "record": "a data record",
}
_QUANTITIES: Final = {
    "epsilon": "ε",
    "epsilon over initial models": "largest ε over initial models",
}
INFORMATION: Final = (  # quantities in bits
    "mutual information",
    "mutual information of all coordinates",
    "mutual information by critics",
    "information about the data over all rounds",
)
# Diagnostics whose number is worth printing; for others the rule says everything.
OBSERVED: Final = ("share outside the span", "reconstruction PSNR in dB")


def attacker(model: ThreatModel, *, is_sized: bool = True) -> str:
    """Return who attacks, with what, in one sentence.

    Args:
        model: The attacker.
        is_sized: Whether to include the numbers of a run, participations and colluders. Without
            them the sentences of two runs are equal, and `size` has the numbers.
    """
    if model.sees is None:
        return f"{capital(_OBSERVERS[model.observer])} (what it sees is not stated)."
    many = model.participations is not None
    acts = [f"sees {_SEES[model.sees][many]}"]
    if model.knows_cohort and model.holds != "canary":
        acts.append("knows who takes part")
    if model.holds is not None:
        acts.append(f"holds {_HOLDS[model.holds]}")
    if model.colluders and is_sized:
        acts.append(f"colludes with {counted(model.colluders, 'client')}")
    if model.conduct == "active":
        acts.append("may break the protocol")
    listed = acts[0] if len(acts) == 1 else f"{', '.join(acts[:-1])} and {acts[-1]}"
    hidden = "" if model.knows_cohort else ", without knowing who takes part"
    played = "" if model.game is None else f"; {GAMES[model.game]}"
    priced = (
        f". The {'record' if model.holds == 'record' else 'client'} takes part in at most "
        f"{counted(model.participations, 'round')}"
        if model.participations is not None and is_sized
        else ""
    )
    return f"{capital(_OBSERVERS[model.observer])} that {listed}{hidden}{played}{priced}."


def size(finding: Finding) -> str:
    """Return the numbers of a run in a threat model, such as "at most 3 rounds per client"."""
    model, most = finding.threat_model, "at most " if finding.kind == "guarantee" else ""
    words = []
    if finding.quantity in INFORMATION:
        words.append(added(finding))
    elif model.participations is not None:
        words.append(f"{most}{counted(model.participations, 'round')} per {finding.unit}")
    if model.colluders:
        words.append(f"{most}{counted(model.colluders, 'colluding client')}")
    if finding.server_round is not None and not finding.is_anytime:
        words.append(f"this round ({finding.server_round})")
    return ", ".join(words)


def added(finding: Finding) -> str:
    """Return of which rounds a figure in bits is: one, several added up, or several together."""
    rounds = finding.threat_model.participations
    if rounds is None:
        return "per round"
    if finding.quantity == "information about the data over all rounds":
        return f"{counted(rounds, 'round')} together"
    return f"sum of {counted(rounds, 'round')}"


def quantity(name: str) -> str:
    """Return a quantity as it is printed; unknown ones unchanged."""
    return _QUANTITIES.get(name, name)


# How the reader of an advice sets something: by lines of Python around a strategy, by options of
# our command line, by `--run-config` of `flwr run`, or by options of `leakmeter audit`.
Spelling: TypeAlias = Literal["python", "flags", "run-config", "audit"]
# Settings of our own app as lines of Python; what is not listed is the business of the project.
_PYTHON: Final = {
    "canary-seats": "OneShotCanaries(seats=…)",
    "clip-norm": "FixedClip(…)",
    "delta": "delta=…",
    "lrt-trials": "SampleBudget(trials=…)",
    "rounds": "num_rounds",
    "stop-above": "StopAbove",
}
# The same as options of `leakmeter audit`, whose app stays as it is.
_AUDIT: Final = {"canary-seats": "--seats", "rounds": "--run-config"}
# Settings are in braces; each becomes an aside such as " (--lr)", or nothing.
_WARNINGS: Final[Mapping[WarningKind, str]] = {
    "clipped-coordinates": (
        "{share} of all coordinates ({count} of {total}) were clipped to fit the secure sum, so "
        "the model is distorted. Lower the clients' learning rate{lr} or raise the clip range."
    ),
    "clipped-updates": (
        "{count} of the {total} updates that the audit saw in clear were clipped to the clip norm. "
        "Raise the clip norm{clip-norm}, or lower the clients' learning rate{lr}."
    ),
    "abandoned-rounds": (
        "{count} of {total} rounds gave no aggregate; the model did not change. The log has the "
        "reason."
    ),
    "dropouts": (
        "{share} of the requested updates ({count} of {total}) did not arrive. Bounds hold for "
        "those that did; look for client errors in the log."
    ),
    "non-finite-updates": (
        "{count} of {total} updates contained values that are not finite. Training diverged: "
        "lower the clients' learning rate{lr}."
    ),
    "blank-updates": (
        "{count} of {total} clients had no update to send: their training failed or diverged, or "
        "their weight was too large for the secure sum. Their own logs say which; lower the "
        "learning rate{lr} if it diverged."
    ),
    "few-canaries": (
        "Canaries that took part: {count} ({total} planned). Results from so few vary widely: use "
        "more canary seats{canary-seats} or more rounds{rounds}."
    ),
    "trained-on-canaries": (
        "The model has been trained on canaries: {count} of {total} records that nobody has were "
        "planted in the clients' data. Train again without them before you use the model."
    ),
    "untaken-canaries": (
        "{count} of {total} clients that hold canaries never took them, so bounds are lower than "
        "they could be. List plant_mod in the client app, and let its training function take them: "
        "with leakmeter.planted(message, context) as canaries."
    ),
    "rejected-sums": (
        "{count} of {total} rounds opened a secure sum that honest clients cannot produce, and "
        "rejected it. The server has seen these sums, so they are charged like any other. Some "
        "client lies or has other settings: the log has the reason."
    ),
    "stopped-above": (
        "The run stopped {count} of {total} rounds early, as asked: the proven ε has passed the "
        "limit{stop-above}. Model and report are those of the rounds played."
    ),
    "ended-early": (
        "The run ended {count} of {total} rounds early: three secure sums in a row were opened and "
        "rejected, and each further one would cost privacy. Masks hide whose update was wrong: "
        "check that all clients list the same mods, then start again with other clients."
    ),
}


def setting(name: str, spelling: Spelling) -> str:
    """Return what the reader calls a setting of our own app; "" if it is no word of theirs.

    >>> [setting("canary-seats", one) for one in ("python", "flags", "run-config", "audit")]
    ['OneShotCanaries(seats=…)', '--canary-seats', 'canary-seats', '--seats']
    """
    ours = {"flags": f"--{name}", "run-config": name, "audit": _AUDIT.get(name, "")}
    return ours.get(spelling, _PYTHON.get(name, ""))


def aside(name: str, spelling: Spelling, now: str = "") -> str:
    """Return a setting in brackets, with its present value if given; "" if it has no name."""
    words = setting(name, spelling)
    return f" ({words}{f', now {now}' if now else ''})" if words else ""


def assigned(spelling: Spelling, settings: Mapping[str, object]) -> str:
    """Return settings with values as one of our own runs is given them.

    >>> assigned("flags", {"noise": "local", "clip-norm": 1.0})
    '--noise local --clip-norm 1'
    >>> assigned("run-config", {"noise": "local", "clip-norm": 1.0})
    'noise="local" clip-norm=1.0'
    """
    if spelling == "run-config":  # JSON's printable strings, numbers and truth values are TOML's
        pairs = settings.items()
        return " ".join(f"{name}={json.dumps(v, ensure_ascii=False)}" for name, v in pairs)
    shown = ((name, f"{v:g}" if isinstance(v, float) else v) for name, v in settings.items())
    return " ".join(f"--{name} {value}" for name, value in shown)


def warning(kind: WarningKind, count: int, total: int, spelling: Spelling = "python") -> str:
    """Return what happened, to how much of a run, and what to do, in the reader's language."""
    numbers = {"share": f"{number(100 * count / total, 2)} %", "count": f"{count:,}"}
    settings = {name: aside(name, spelling) for name in ("lr", *_PYTHON)}
    return _WARNINGS[kind].format_map({**numbers, "total": f"{total:,}", **settings})


def number(value: float, digits: int = _DIGITS, kind: Kind | None = None) -> str:
    """Return a number with this many significant digits.

    A lower bound is rounded down and a guarantee up: rounding must not make them stronger.

    >>> [number(x) for x in (586.0321, 0.00001, 7713.6, 1234567.0, float("inf"), 40.0, -0.5)]
    ['586', '1e-05', '7,710', '1.23e+06', '∞', '40', '−0.5']
    >>> number(0.6257, 3, "lower_bound"), number(1.248, 3, "guarantee")
    ('0.625', '1.25')
    """
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "−∞"}.get(value, "nan")
    mode = {"lower_bound": ROUND_FLOOR, "guarantee": ROUND_CEILING}.get(kind or "", ROUND_HALF_EVEN)
    near = float(Context(prec=digits, rounding=mode).create_decimal(repr(float(value))))
    is_long = min(1000, 10**digits) <= abs(near) < 1e6
    text = f"{near:,.0f}" if is_long else f"{near:.{digits}g}"
    return text.replace("-", "−", 1) if value < 0 else text


def share(value: float) -> str:
    """Return a share such as an accuracy with three decimals, so that lines below each other align.

    >>> share(0.92), share(1.0)
    ('0.920', '1.000')
    """
    return f"{value:.3f}" if math.isfinite(value) else number(value)


def is_epsilon(finding: Finding) -> bool:
    """Whether the value is an ε."""
    return finding.quantity == "epsilon"


def is_certain(finding: Finding) -> bool:
    """Whether the value is an ε so large that its digits have no meaning."""
    return is_epsilon(finding) and CERTAIN < finding.value < math.inf


def value(finding: Finding) -> str:
    """Return the value as it is printed everywhere."""
    if is_epsilon(finding):
        return number(finding.value, 2 if is_certain(finding) else _DIGITS, finding.kind)
    if finding.quantity in INFORMATION:
        return f"{number(finding.value, kind=finding.kind)} bits (log₂)"
    # A count is exact: rounding up a number of clients would promise clients that do not exist.
    is_count = math.isfinite(finding.value) and finding.value.is_integer()
    return f"{finding.value:,.0f}" if is_count else number(finding.value, kind=finding.kind)


def signed(finding: Finding) -> str:
    """Return the number with only the sign of its kind, such as "ε ≥ 1.67"."""
    name = quantity(finding.quantity) + _along(finding)
    if finding.kind == "guarantee" and is_epsilon(finding) and math.isinf(finding.value):
        return "no finite ε is guaranteed"
    if finding.kind == "diagnostic":
        return f"{name}: {value(finding)}, observed"
    if finding.kind == "guarantee" and finding.quantity not in ("epsilon", *INFORMATION):
        return f"{name}: {value(finding)}, guaranteed"  # which side is safe depends on what it is
    # No-break spaces, so that a line never ends between sign and number.
    sign = SIGNS.get(finding.kind, "≈")
    return f"{name}\N{NO-BREAK SPACE}{sign}\N{NO-BREAK SPACE}{value(finding)}"


def observed(finding: Finding) -> str:
    """Return a diagnostic in a few words: its number, or its rule where that is enough."""
    if finding.quantity not in OBSERVED:
        return f"{quantity(finding.quantity)}: {finding.rule}"
    band = f" ({words})" if (words := null_band(finding)) else ""
    return signed(finding) + band


def observation(finding: Finding) -> str:
    """Return what a diagnostic says, in sentences."""
    if finding.quantity not in OBSERVED:
        return finding.rule
    return f"{signed(finding)}. {sentence(finding.rule)}"


def _along(finding: Finding) -> str:
    """Return along how many directions a figure in bits was measured, if not along all."""
    most = finding.facts.get("directions")
    if finding.quantity not in INFORMATION or not isinstance(most, int):
        return ""
    return f" along at most {counted(most, 'direction')}"


def remark(finding: Finding) -> str:
    """Return what an ε above 20 means, or that a figure may be zero; nothing for other numbers."""
    if finding.facts.get(TOLD_FROM_ZERO) is False:
        return "may be zero"
    if not is_certain(finding):
        return ""
    match finding.kind:
        case "lower_bound":
            return "practically certain"
        case "guarantee":
            return "promises practically nothing"
        case _:
            return "practically certain if right"


def condition(finding: Finding) -> str:
    """Return what a conditional bound depends on, such as "if the scores are independent"."""
    if not finding.is_conditional:
        return ""
    names = conditions(finding.assumptions)
    # Sentences of another project, or of an earlier format, would make the claim many lines long.
    if finding.threat_model.sees is None or sum(not is_known(a) for a in names) > 1:
        return "if its assumptions hold"
    return "if " + " and if ".join(sentence_of(a).rstrip(".") for a in names)


def remarked(finding: Finding) -> str:
    """Return the number with its sign and, above ε = 20, with what that means."""
    aside = f" ({words})" if (words := remark(finding)) else ""
    return signed(finding) + aside


def claim(finding: Finding) -> str:
    """Return the number as strongly as it may be read: with its condition, sign and remark."""
    if_ = f"{words}: " if (words := condition(finding)) else ""
    return if_ + remarked(finding)


def terms(finding: Finding) -> str:
    """Return δ and confidence of a number, such as " at δ = 1e-05, 95 % confidence"."""
    words = [] if finding.delta is None else [f"at δ = {number(finding.delta)}"]
    if finding.confidence is not None:
        together = " at all rounds together" if finding.is_anytime else ""
        words.append(f"{percent(finding.confidence)} confidence{together}")
    start = ", " if finding.delta is None else " "
    return start + ", ".join(words) if words else ""


def null_band(finding: Finding) -> str:
    """Return what the method says without a leak; quantiles of 5 % and 95 % make a 90 % band."""
    if finding.null_band is None:
        return ""
    low, high = (number(edge) for edge in finding.null_band)
    return f"without a leak, 90 % of audits say {low} to {high}"


def evidence(finding: Finding) -> str:
    """Return how many canaries a bound rests on: one of a hundred may give a large ε."""
    names = ("share_at_threshold", "threshold", "median_score")
    share, threshold, median = (finding.facts.get(name) for name in names)
    if not isinstance(share, float) or not isinstance(threshold, float):
        return ""
    # A score is −ln p. It is rounded down, so that p-values are no larger than what is printed.
    middle = f"; their median is e^−{number(median)}" if isinstance(median, float) else ""
    return (
        f"{number(100 * share)} % of the included canaries have a p-value of at most "
        f"e^−{number(threshold, kind='lower_bound')}{middle}"
    )


def sureness(epsilon: float) -> str:
    """Return how confident some outcome makes an attacker who starts at 50:50, rounded down.

    Where (ε, δ) is refuted, some set of outcomes has P(S) > e^ε·Q(S) + δ ≥ e^ε·Q(S), so its
    posterior is above e^ε/(1 + e^ε) for any δ.

    >>> sureness(0.6257), sureness(5.0), sureness(18.5), sureness(30.0)
    ('65.1 %', '99.33 %', '99.99 %', 'practically 100 %')
    """
    if epsilon > CERTAIN:
        return "practically 100 %"
    doubt = 100 / (1 + math.exp(epsilon))
    # Two digits of the doubt, but no more than 99.99: nobody reads eight nines.
    digits = Decimal(1).scaleb(max(min(math.floor(math.log10(doubt)) - 1, -1), -2))
    sure = Decimal(repr(100 - doubt)).quantize(digits, ROUND_FLOOR).normalize()
    return f"{sure:f} %"


def percent(share: float) -> str:
    """Return a share in per cent, with as many digits as it needs.

    >>> percent(0.95), percent(0.9983)
    ('95 %', '99.83 %')
    """
    return f"{100 * share:.4g} %"


def capital(text: str) -> str:
    """Return the text with a capital first letter; a Greek letter there is a symbol.

    >>> capital("server who sees"), capital("ε ≥ 1")
    ('Server who sees', 'ε ≥ 1')
    """
    return text[:1].upper() + text[1:] if text[:1].isascii() else text


def sentence(text: str) -> str:
    """Return the text with a capital and a full stop, unless it has an end mark.

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


def listed(numbers: Sequence[int], most: int = 12) -> str:
    """Return numbers with commas; of a long list the first, and the last.

    >>> listed([1, 2, 4]), listed(range(1, 100, 3), most=4)
    ('1, 2, 4', '1, 4, 7, …, 97')
    """
    words = [str(n) for n in numbers]
    if len(words) > most:
        words = [*words[: most - 1], "…", words[-1]]
    return ", ".join(words)


def skipped(schedule: Schedule, setting: str) -> str:
    """Return which rounds were audited, and why others were skipped.

    Args:
        schedule: The auditor's rounds.
        setting: The setting behind it, with its value.
    """
    count = len(schedule.audited)
    return (
        f"audited {'round' if count == 1 else 'rounds'} {listed(schedule.audited)} of "
        f"{schedule.num_rounds}; the others were skipped as {setting} asks"
    )


def plain_spaces(text: str) -> str:
    """Return text without no-break spaces, for terminals and tables that people search."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


# Signs that some terminals cannot print, in letters that all of them can.
_IN_ASCII: Final = str.maketrans(
    {
        "ε": "eps",
        "δ": "delta",
        "≥": ">=",
        "≤": "<=",
        "≈": "~",
        "…": "...",
        "–": "-",
        "−": "-",
        "×": "x",
        "∞": "inf",
        "“": '"',
        "”": '"',
        "₂": "2",
        "\N{NO-BREAK SPACE}": " ",
    }
)


def in_ascii(text: str) -> str:
    """Return text in letters that every terminal can print.

    >>> in_ascii("ε ≥ 2.04, ε ≈ 1.9")
    'eps >= 2.04, eps ~ 1.9'
    """
    return text.translate(_IN_ASCII).encode("ascii", "replace").decode()


def slug(name: str) -> str:
    """Return a name that may be an identifier in a page.

    >>> slug("mine & <yours>")
    'mine----yours-'
    """
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in name)
