"""Every finding of a run with all of its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leakmeter.auditors.assumptions import sentence_of
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.wording import KINDS, condition, counted, percent, quantity, remark
from leakmeter.fl_app.report.markup import Markup, exact, exact_value, joined, tag
from leakmeter.fl_app.report.read.run import Run

_HEADS = (
    "finding",
    "kind",
    "value",
    "δ",
    "confidence",
    "cap",
    "90 % null band",
    "attacker",
    "how and on what samples",
    "assumptions",
)
_DASH = tag("span", "–", class_="none")


def tables(run: Run) -> Markup:
    """Return the findings of the run, then those of its rounds, folded one auditor at a time."""
    of_rounds: dict[str, list[Finding]] = {}
    for f in run.findings:
        if f.server_round is not None:
            of_rounds.setdefault(f.auditor, []).append(f)
    parts = []
    if run.of_the_run:
        parts.append(_table(run.of_the_run, "Findings about the run as a whole"))
    for auditor, found in of_rounds.items():
        rounds = counted(len({f.server_round for f in found}), "round")
        summary = f"{auditor}: {counted(len(found), 'finding')} about {rounds}, each alone"
        parts.append(
            tag("details", tag("summary", summary), _table(found, f"{auditor}, round by round"))
        )
    return joined(*parts) if parts else tag("p", "There are no findings.")


def _table(findings: Sequence[Finding], caption: str) -> Markup:
    with_rounds = any(f.server_round is not None for f in findings)
    heads = (("round",) if with_rounds else ()) + _HEADS
    # Attackers and assumptions repeat: each text is once below the table.
    texts = dict.fromkeys(_attacker(f) for f in findings)
    attackers = {words: f"A{i}" for i, words in enumerate(texts, start=1)}
    assumed = dict.fromkeys(name for f in findings for name in f.assumptions)
    assumptions = {name: f"{i}" for i, name in enumerate(assumed, start=1)}
    sentences = {key: sentence_of(name) for name, key in assumptions.items()}
    table = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *(tag("th", head, scope="col") for head in heads))),
        tag("tbody", *(_row(f, with_rounds, attackers, assumptions) for f in findings)),
        class_="findings",
    )
    region = tag("div", table, class_="scroll", tabindex=0, role="group", aria_label=caption)
    who = {key: words for words, key in attackers.items()}
    return joined(region, _keys("Attackers", who), _keys("Assumptions", sentences))


def _row(
    f: Finding, with_rounds: bool, attackers: Mapping[str, str], assumptions: Mapping[str, str]
) -> Markup:
    cap = _DASH if f.cap is None else exact(f.cap)
    saturated = tag("span", "saturated", class_="tag") if f.saturated else None
    band = f.null_band
    return tag(
        "tr",
        tag("td", exact(f.server_round or 0)) if with_rounds else None,
        tag("th", quantity(f.quantity), tag("small", f.auditor), scope="row"),
        tag("td", KINDS[f.kind][0], _small(condition(f))),
        tag("td", exact_value(f), _small(remark(f)), class_="value"),
        tag("td", _DASH if f.delta is None else exact(f.delta)),
        tag("td", _DASH if f.confidence is None else _share(f.confidence)),
        tag("td", cap, saturated),
        tag("td", _DASH if band is None else joined(exact(band[0]), " to ", exact(band[1]))),
        tag("td", attackers[_attacker(f)]),
        tag("td", f.rule, _samples(f), _facts(f), class_="how"),
        tag("td", ", ".join(assumptions[name] for name in f.assumptions) or _DASH),
    )


def _share(confidence: float) -> Markup:
    return tag("data", percent(confidence), value=repr(confidence))


def _small(words: str) -> Markup | None:
    return tag("small", words) if words else None


def _attacker(f: Finding) -> str:
    adjacency = f", {f.adjacency}" if f.adjacency else ""
    return f"{f.threat_model.sentence()} [{f.unit}{adjacency}]"


def _samples(f: Finding) -> Markup | None:
    pieces: list[Markup] = []
    for name, count in f.sample_sizes.items():
        pieces.append(joined(exact(count), f" {name}"))
    if f.seed is not None:
        pieces.append(joined("seed ", exact(f.seed)))
    return tag("small", *_listed(pieces)) if pieces else None


def _listed(pieces: Sequence[Markup]) -> list[Markup]:
    """Return pieces with a semicolon between each two."""
    return [joined("; " if i else "", piece) for i, piece in enumerate(pieces)]


def _facts(f: Finding) -> Markup | None:
    """Return single numbers and words; what figures draw is in report.json."""
    pieces = []
    for name, value in f.facts.items():
        words = name.replace("_", " ")
        if isinstance(value, bool):
            pieces.append(joined(f"{words}: {'yes' if value else 'no'}"))
        elif isinstance(value, int | float):
            pieces.append(joined(f"{words}: ", exact(value)))
        elif value is not None:
            pieces.append(joined(f"{words}: {value}"))
    return tag("small", *_listed(pieces)) if pieces else None


def _keys(title: str, keys: Mapping[str, str]) -> Markup | None:
    if not keys:
        return None
    entries = [joined(tag("dt", key), tag("dd", words)) for key, words in keys.items()]
    return tag("div", tag("h3", title), tag("dl", *entries), class_="keys")
