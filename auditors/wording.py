"""Puts numbers, attackers, kinds and assumptions into words, never stronger than they are.

The only place that makes sentences from the fields of a finding, for terminal, page and CSV, with
one rounding rule.

A finding lists names of assumptions; everything that prints a finding takes the sentence from here.
An assumption is either part of how the audit is run, or a *condition*: a property of the mechanism
or of the scores that nobody has checked. A lower bound that needs a condition is conditional: it is
never printed without "if", and never compared with a guarantee. Your own auditor may use sentences
in place of names. They count as conditions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from leakmeter.auditors.auditor import Schedule
    from leakmeter.auditors.finding import (
        Finding,
        Game,
        Kind,
        Observer,
        Sees,
        ThreatModel,
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
_FEW: Final = 10  # of which a share is said as counts
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


class ObserverWords(NamedTuple):
    """What an observer is called."""

    name: str  # in a sentence about an attacker
    cell: str  # of a table
    subject: str  # of a sentence
    against: str  # whom something is claimed or guaranteed against
    reader: str  # for whoever does not know the word


class SeenWords(NamedTuple):
    """What is seen, each in one round and in all rounds."""

    sentence: tuple[str, str]
    clause: tuple[str, str]
    cell: tuple[str, str]


OBSERVERS: Final[Mapping[Observer, ObserverWords]] = {
    "server": ObserverWords("server", "server", "A server that", "the server", "the server"),
    "outsider": ObserverWords(
        "outsider", "outsider", "Anyone who", "outsiders", "outsiders who get a model"
    ),
    "wire": ObserverWords(
        "eavesdropper on the network",
        "wiretap",
        "An eavesdropper who",
        "eavesdroppers",
        "eavesdroppers on the network",
    ),
}
SEEN: Final[Mapping[Sees, SeenWords]] = {
    "updates": SeenWords(
        ("every update of a round", "every update"),
        ("the updates of a round", "every update"),
        ("all updates",) * 2,
    ),
    "round sum": SeenWords(
        ("the sum of a round", "the sum of every round"),
        ("the sum of a round", "the sums of all rounds"),
        ("a round's sum", "all sums"),
    ),
    "noised sum": SeenWords(
        ("the noised sum of a round", "the noised sum of every round"),
        ("the noised sum of a round", "the noised sums of all rounds"),
        ("a noised sum", "noised sums"),
    ),
    "frozen sums": SeenWords(
        (
            "the sum of a round at the model of this run",
            "the sum of every round, each at the model of this run",
        ),
        (
            "the sum of a round at this run's model",
            "the sums of all rounds at this run's models",
        ),
        ("sum, given model", "sums, given models"),
    ),
    "all models": SeenWords(
        ("the model after every round",) * 2, ("every model",) * 2, ("every model",) * 2
    ),
    "round model": SeenWords(
        ("the model before and after a round",) * 2,
        ("the models before and after a round",) * 2,
        ("one model",) * 2,
    ),
    "final model": SeenWords(
        ("the initial and the final model",) * 2, ("the final model",) * 2, ("final model",) * 2
    ),
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
        return f"{capital(OBSERVERS[model.observer].name)} (what it sees is not stated)."
    many = model.participations is not None
    acts = [f"sees {SEEN[model.sees].sentence[many]}"]
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
    return f"{capital(OBSERVERS[model.observer].name)} that {listed}{hidden}{played}{priced}."


def size(finding: Finding) -> str:
    """Return the numbers of a run in a threat model, such as "at most 3 rounds per client"."""
    model, most = finding.threat_model, "at most " if finding.kind == "guarantee" else ""
    words = []
    if finding.quantity in INFORMATION:
        words.append(rounds_of_bits(finding))
    elif model.participations is not None:
        words.append(f"{most}{counted(model.participations, 'round')} per {finding.unit}")
    if model.colluders:
        words.append(f"{most}{counted(model.colluders, 'colluding client')}")
    if finding.server_round is not None and not finding.is_anytime:
        words.append(f"this round ({finding.server_round})")
    return ", ".join(words)


def rounds_of_bits(finding: Finding) -> str:
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


def assignments(spelling: Spelling, settings: Mapping[str, object]) -> str:
    """Return settings with values as one of our own runs is given them.

    >>> assignments("flags", {"noise": "local", "clip-norm": 1.0})
    '--noise local --clip-norm 1'
    >>> assignments("run-config", {"noise": "local", "clip-norm": 1.0})
    'noise="local" clip-norm=1.0'
    """
    if spelling == "run-config":  # JSON's printable strings, numbers and truth values are TOML's
        pairs = settings.items()
        return " ".join(f"{name}={json.dumps(v, ensure_ascii=False)}" for name, v in pairs)
    shown = ((name, f"{v:g}" if isinstance(v, float) else v) for name, v in settings.items())
    return " ".join(f"--{name} {value}" for name, value in shown)


def asides(spelling: Spelling) -> dict[str, str]:
    """Return the aside of every setting that the text of a warning may name."""
    return {name: aside(name, spelling) for name in ("lr", *_PYTHON)}


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


def digits_of(epsilon: float) -> int:
    """Return with how many digits an ε is printed: of a large one, few have a meaning."""
    return 2 if CERTAIN < epsilon < math.inf else _DIGITS


def value(finding: Finding) -> str:
    """Return the value as it is printed everywhere."""
    if is_epsilon(finding):
        return number(finding.value, digits_of(finding.value), finding.kind)
    if finding.quantity in INFORMATION:
        return f"{number(finding.value, kind=finding.kind)} bits (log₂)"
    # A count is exact: rounding up a number of clients would promise clients that do not exist.
    is_count = math.isfinite(finding.value) and finding.value.is_integer()
    return f"{finding.value:,.0f}" if is_count else number(finding.value, kind=finding.kind)


def signed_number(finding: Finding) -> str:
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


def observed_number(finding: Finding) -> str:
    """Return a diagnostic in a few words: its number, or its rule where that is enough."""
    if finding.quantity not in OBSERVED:
        return f"{quantity(finding.quantity)}: {finding.rule}"
    band = f" ({words})" if (words := null_band(finding)) else ""
    return signed_number(finding) + band


def observation(finding: Finding) -> str:
    """Return what a diagnostic says, in sentences."""
    if finding.quantity not in OBSERVED:
        return finding.rule
    return f"{signed_number(finding)}. {sentence(finding.rule)}"


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


def number_with_remark(finding: Finding) -> str:
    """Return the number with its sign and, above ε = 20, with what that means."""
    aside = f" ({words})" if (words := remark(finding)) else ""
    return signed_number(finding) + aside


def claim(finding: Finding) -> str:
    """Return the number as strongly as it may be read: with its condition, sign and remark."""
    if_ = f"{words}: " if (words := condition(finding)) else ""
    return if_ + number_with_remark(finding)


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
    few = few_of(share, finding.sample_sizes.get("in"))
    many = f"{number(100 * share)} % of the" if few is None else f"{few[0]} of {few[1]}"
    return (
        f"{many} included canaries have a p-value of at most "
        f"e^−{number(threshold, kind='lower_bound')}{middle}"
    )


def few_of(share: float, total: int | None) -> tuple[int, int] | None:
    """Return a share of few as counts, since 50 % may be 1 of 2; None of ten or more."""
    return (round(share * total), total) if total is not None and 0 < total < _FEW else None


def how_many(share: float, total: int | None, noun: str) -> str:
    """Return a share that a bound rests on, as counts where it is of few.

    >>> how_many(0.5, 2, "update"), how_many(1.0, 1, "update"), how_many(1.0, 5, "update")
    ('1 of 2 updates', 'the only update', 'all 5 updates')
    """
    few = few_of(share, total)
    if few == (1, 1):
        return f"the only {noun}"
    if few is not None:
        return f"all {few[1]} {noun}s" if few[0] == few[1] else f"{few[0]} of {few[1]} {noun}s"
    many = "all" if share == 1 else f"at least {number(100 * share, 2, 'lower_bound')} % of the"
    return f"{many} {noun}s"


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


def at_most_sure(epsilon: float) -> str:
    """Return how confident an attacker who starts at 50:50 may become, rounded up.

    >>> at_most_sure(1.0), at_most_sure(8.0), at_most_sure(19.2), at_most_sure(30.0)
    ('up to 73.2 % sure', 'up to 99.97 % sure', 'up to 99.9999996 % sure', 'practically certain')
    """
    if epsilon > CERTAIN:
        return "practically certain"
    doubt = 100 / (1 + math.exp(epsilon))
    digits = Decimal(1).scaleb(min(math.floor(math.log10(doubt)), -1))
    left = Decimal(repr(doubt)).quantize(digits, ROUND_FLOOR)
    return f"up to {(100 - left).normalize():f} % sure"


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


def list_of(numbers: Sequence[int], most: int = 12) -> str:
    """Return numbers with commas; of a long list the first, and the last.

    >>> list_of([1, 2, 4]), list_of(range(1, 100, 3), most=4)
    ('1, 2, 4', '1, 4, 7, …, 97')
    """
    words = [str(n) for n in numbers]
    if len(words) > most:
        words = [*words[: most - 1], "…", words[-1]]
    return ", ".join(words)


def skipped_rounds(schedule: Schedule, setting: str) -> str:
    """Return which rounds were audited, and why others were skipped.

    Args:
        schedule: The auditor's rounds.
        setting: The setting behind it, with its value.
    """
    count = len(schedule.audited)
    return (
        f"audited {'round' if count == 1 else 'rounds'} {list_of(schedule.audited)} of "
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


# The sentences in the order of their names, and whether each is a condition.
_SAID: Final[list[tuple[str, bool]]] = []


def given(sentence: str) -> auto:
    """Note what is part of how the audit is run; the enumeration gives it its name."""
    _SAID.append((sentence, False))
    return auto()


def unchecked(sentence: str) -> auto:
    """Note what nobody has checked: a bound that needs it is conditional."""
    _SAID.append((sentence, True))
    return auto()


class Assumption(StrEnum):
    """Names of assumptions; their text in report.json is the name in small letters, with hyphens.

    A sentence follows "assuming that".
    """

    @staticmethod
    def _generate_next_value_(name: str, *_: object) -> str:
        return name.lower().replace("_", "-")

    # Bounds from scores
    SEPARATE_TRIALS = given("each score comes from a separate run or trial")
    INDEPENDENT_SCORES = unchecked(
        "the scores of one run are independent although they share its noise"
    )
    FIXED_THRESHOLD = given("the threshold was fixed before the scores were seen")
    KNOWN_NULL = given("the distribution of the scores of excluded samples is known exactly")
    GAUSSIAN_MECHANISM = unchecked("the mechanism is Gaussian (μ-GDP for some μ)")
    FAIR_COINS = given("a fair and independent coin decided whether each canary takes part")
    FIXED_GUESSES = given("the number of guesses was fixed before their success was seen")
    ALL_ROUNDS_TOGETHER = given(
        "the bound holds at all rounds together: each coin and trial is bet on once, and "
        "stopping at any round keeps the confidence"
    )
    FIXED_END = unchecked("the run would have ended at this round whatever the audit had shown")
    # Canaries
    UNIFORM_CANARIES = given("canaries are uniform on the sphere and used nowhere else")
    SIGN_CANARIES = given("canaries have fair and independent signs and are used nowhere else")
    BOUNDED_NULL = given(
        "p-values are those of excluded canaries or larger: 3.18 times the Gaussian tail"
    )
    GAUSSIAN_COSINES_NULL_STD = unchecked(
        "cosines of included canaries are Gaussian with the standard deviation of excluded ones"
    )
    GAUSSIAN_COSINES = unchecked("cosines of included canaries are Gaussian")
    GAUSSIAN_MAXIMA = unchecked(
        "the largest cosines are Gaussian, although largest values are skewed"
    )
    SEAT_SENDS_ZERO = given("the seat of an excluded canary sends a zero update of the same weight")
    SEAT_STAYS_HONEST = given(
        "the seat of an excluded canary trains as usual, a weaker test than zero"
    )
    SEAT_SENDS_OTHER = given(
        "the seat of an excluded canary sends another update of the same norm and weight"
    )
    ALL_CANARIES_PLAY = given(
        "all canaries take part; the null, that of canaries that nobody sent, needs no coins"
    )
    DECOYS_ALIKE = given(
        "planted records and decoys are drawn in the same way, and nobody trains on a decoy"
    )
    STAND_IN = given(
        "the place of a record that is left out has another one, drawn in the same way, which is "
        "never scored"
    )
    PLACE_IS_EMPTY = given("the place of a record that is left out is empty")
    GAUSSIAN_RANKS = unchecked(
        "scores of planted records are Gaussian, with the standard deviation of decoys, where "
        "those of decoys are"
    )
    CLIENTS_SAY = given(
        "clients train as their canary_mod says, on batches that their engine draws"
    )
    ONE_BATCH_A_PASS = given("passes over the data are whole, with each record in one batch")
    BYPASSED_TRAINING = given(
        "canaries bypass what the training, or a mod behind canary_mod, may do to protect a client"
    )
    BYPASSED_NOISE = unchecked(
        "the noise of mods behind canary_mod, which canaries bypass, hides nothing"
    )
    # Likelihood ratio and span
    FROZEN_UPDATES = given(
        "the client's own randomness is frozen in its two candidate updates: updates are "
        "distinguished, not data"
    )
    KNOWN_SEATS = given("the attacker knows what canary seats send")
    KNOWN_REST = given(
        "the attacker knows what all other clients contribute, except the noise of honest ones"
    )
    GAUSSIAN_ROUNDING = given("the trials model the rounding of the sum as Gaussian")
    GAUSSIAN_TRIALS = unchecked(
        "Gaussian noise, which the trials draw, acts like the integer noise of the run"
    )
    GAUSSIAN_SUM = unchecked("the aggregate of the other clients is Gaussian along the test")
    THIS_ROUND_ONLY = given("only this round is attacked")
    ANY_WEIGHTS = given("the other clients' updates may enter the sum with any weights")
    # Records
    TRIALS_BY_FORMULA = given("trials follow the stated Gaussian distribution, not the code")
    TRIALS_BY_CODE = given("trials run the code of the mechanism")
    OTHERS_ADD_FLOOR_ONLY = given(
        "the other clients add only their noise floor: the worst case of their data"
    )
    OTHERS_ADD_OWN_NOISE = given("the other clients have the data and add the noise of this run")
    MEASURED_EIGENVALUES = given("eigenvalues are those of these data and this model only")
    RECORDS_ALIKE = unchecked("members and held-out records come from the same distribution")
    DEALT_AT_RANDOM = given(
        "chance alone decided which records of a label were used, and which are compared with them"
    )
    # Mutual information
    GAUSSIAN_UPDATES = unchecked("updates are Gaussian")
    ALIKE_GAUSSIAN_UPDATES = unchecked(
        "updates are independent, identically distributed and Gaussian"
    )
    GOOD_CRITIC = unchecked("the critic approximates the density ratio")
    FRESH_EVERY_ROUND = unchecked("what a round reveals was not revealed by earlier rounds")
    ALIKE_GRADIENTS = unchecked(
        "gradients of the clients are independent and identically distributed"
    )
    WHITENED_INDEPENDENT = unchecked(
        "whitened gradients have independent entries and the stated C₀"
    )
    WHITENED_LOG_CONCAVE = unchecked("whitened gradients are log-concave with the stated constants")
    FEDSGD = given("each client sends one gradient per round")
    RANDOM_BATCH_ONLY = given(
        "local data are fixed and known; only the choice of the batch is random"
    )
    NOTHING_ELSE_RANDOM = given(
        "only the client's records, which it keeps, and their split into batches are random in "
        "an update"
    )
    ALL_COORDINATES_VARY = unchecked(
        "updates vary in every coordinate that the others do not determine"
    )
    MODELS_AS_SENT = given(
        "every draw starts each round from the model that the run had there: what the models "
        "themselves reveal is not counted"
    )
    POOLED_CLIENTS = unchecked(
        "clients are identically distributed: their pairs are pooled, and the figure is too low "
        "where they differ"
    )
    INDEPENDENT_CLIENTS = given("clients draw independently, so that their draws can be recombined")
    # Noise and accounting
    EQUAL_WEIGHTS = given(
        "every client has weight 1 and clips to the stated norm; sums are divided by a public "
        "number"
    )
    REAL_GAUSSIAN = given(
        "noise is Gaussian over the real numbers: nobody attacks the lowest bits of its float64 "
        "samples"
    )
    UNIFORM_BITS = given(
        "the bits that integer noise is drawn from are uniform, independent and secret: those of "
        "the operating system are, those of a simulation's seed stand for them"
    )
    HONEST_NOISE = given("contributors other than the colluders add their noise and keep it secret")
    COARSE_ROUNDING = unchecked(
        "rounding is coarse: a client's noise is below two rounding steps, so the Gaussian "
        "distribution is approximate"
    )
    MODELS_ONLY = given("only models are released: training and evaluation metrics carry no noise")
    INDEPENDENT_DROPOUTS = given("dropouts do not depend on the updates")
    FRESH_RUNS = given("every run draws its noise and its cohorts independently")
    SAME_CLIENT_EVERYWHERE = given(
        "the same client may have taken part in every run, as often as anyone did"
    )
    PUBLIC_CLIP_NORM = given(
        "the clip norm reveals nothing: it was measured on the clients' data without noise, and "
        "the guarantee does not cover that look (adaptive clipping would)"
    )
    # Water filling
    PUBLIC_SETTINGS = given(
        "record counts, clip norms, weights, batch sizes and noise floors are public and fixed "
        "beforehand"
    )
    HONEST_CONTRIBUTORS = given(
        "the counted clients are honest, are in the sum and keep their noise secret"
    )
    HIDDEN_UPDATES = given("a secure sum hides single updates from the server")
    ONE_STEP = given("each client takes one step from the model it received and sends nothing else")
    GAUSSIAN_WEIGHTS = given(
        "every client weights its examples with Gaussians that it draws again in every round"
    )
    LASTING_FLOOR = given(
        "the stated smallest eigenvalue of every client's sampling covariance holds, whichever "
        "record is replaced"
    )
    ISOTROPIC_FLOOR = given("every client adds at least its noise floor to each coordinate")
    FILLED_FLOOR = given(
        "every client fills its covariance to its noise floor; blocks are sampled independently"
    )
    FULL_GRADIENT = given("every client takes its full gradient and adds its noise floor to it")
    SECRET_BATCHES = given(
        "every client draws a new batch without replacement in every round, and keeps it secret"
    )
    # Secure sums
    HONEST_RELAY = given(
        "the server relays keys, draws the graph and reports dropouts honestly: keys and "
        "survivor lists are not signed"
    )
    TRUSTED_KEYS = given(
        "clients' owners have installed each other's public keys, which the server has not "
        "chosen, and Ed25519 signatures cannot be forged"
    )
    OWN_APP = given("clients run the code that their owners have checked, whoever delivers it")
    OWN_THRESHOLD = given(
        "clients refuse smaller sums: their owners have set colluders and min_threshold of MaskMod"
    )
    OWN_NOISE = given(
        "clients refuse weaker orders: their owners have set max_clip_norm and min_noise_std of "
        "NoiseMod"
    )
    COMPUTATIONAL = given("X25519, HKDF-SHA256 and AES are secure")
    SUM_NOT_JUDGED = given("only single updates are to be hidden, not what their sum reveals")
    RATES_FIXED_BEFOREHAND = given(
        "at most the stated shares of clients drop out and collude, fixed before the graphs are "
        "drawn"
    )
    COLLUDERS_FIXED_BEFOREHAND = given(
        "at most the stated number of clients collude, fixed before clients draw their neighbours"
    )

    @property
    def sentence(self) -> str:
        """What is assumed, as half a sentence that follows "assuming that"."""
        return _TABLE[self][0]


_TABLE: Final = dict(zip(Assumption, _SAID, strict=True))


def is_known(assumption: str) -> bool:
    """Whether it is one of our names."""
    return assumption in _TABLE


def sentence_of(assumption: str) -> str:
    """Return the sentence of an assumption; text that names none of ours is its own sentence."""
    return Assumption(assumption).sentence if assumption in _TABLE else assumption


def is_condition(assumption: str) -> bool:
    """Whether nobody has checked it. Text that names none of ours counts as unchecked."""
    return assumption not in _TABLE or _TABLE[Assumption(assumption)][1]


def conditions(assumptions: Iterable[str]) -> tuple[str, ...]:
    """Return those of the assumptions that are conditions."""
    return tuple(a for a in assumptions if is_condition(a))
