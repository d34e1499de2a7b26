"""The page's words with one meaning, each explained where it is first used."""

from __future__ import annotations

from typing import Final

from leakmeter.auditors.wording import CERTAIN
from leakmeter.fl_app.report.markup import Markup, joined, tag

_WORDS: Final = {
    "ε": "Compares two worlds: an event with probability q in one has probability at most "
    f"e^ε·q + δ in the other. 0 is perfect privacy; above {CERTAIN:g} an attacker can be "
    "practically certain.",
    "% sure": "An attacker that starts at 50:50 and sees some outcome is at least this sure: "
    "e^ε / (1 + e^ε). 50 % is a guess.",
    "proven": "A lower bound: at least this much leaks, with the stated confidence. More may leak.",
    "conditional": "A lower bound only under a condition that nobody has checked.",
    "estimate": "A point estimate without confidence; compare it with its null band.",
    "model only": "What a model of the sum says. It bounds the leak from neither side.",
    "not shown": "The audit looked and proved nothing. This is not evidence of privacy.",
    "cannot show": "With these settings the audit can prove nothing, whatever leaks.",
    "theorem": "A guarantee: proven from above, if its assumptions hold.",
    "observed": "Seen in this run; it bounds nothing.",
    "Upper bound": "What noise guarantees: no attacker of this kind can learn more, if the "
    "assumptions hold. Without noise there is none.",
    "Protection": "Secure aggregation hides single updates from the server. Only noise bounds what "
    "their sum gives away.",
    "Accuracy": "Share of test records that the last model gets right.",
}


class Glossary:
    """Explains each word at its first use, so that the tab key stops there once."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def term(self, text: str, word: str | None = None) -> Markup:
        """Return text with the explanation of a word, of the text itself by default."""
        word = text if word is None else word
        if word not in _WORDS or word in self._used:
            return joined(text)
        self._used.add(word)
        return tag("button", text, type="button", class_="term", data_tip=_WORDS[word])
