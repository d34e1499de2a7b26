"""What a person sees of a run: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from leakmeter.auditors.run_log import RoundLine
from leakmeter.auditors.verdict.claim import Claim, claims_of
from leakmeter.auditors.verdict.labels import glimpse, short_name
from leakmeter.auditors.verdict.lines import Ending, steps, summary
from leakmeter.auditors.verdict.sentences import claim_sentence
from leakmeter.auditors.verdict.verdict import Verdict
from leakmeter.auditors.wording import counted, in_ascii, plain_spaces, share
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.data.partition import Sizes

_WIDTH = 80  # of an ordinary terminal
# Lines that are bold in a terminal.
_HEADS = ("VERDICT", "CLAIM ", "ATTACKER", "IN BITS", "NEXT", "POINT", "FRONTIER")


class _Once(logging.Filter):
    """Lets each line pass once: forty clients that fail for one reason say so forty times."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is new."""
        words = record.getMessage()
        is_new = words not in self._seen
        self._seen.add(words)
        return is_new


def set_flower_log(*, verbose: bool) -> None:
    """Show all of Flower's log, or each of its warnings once; colours only in a terminal."""
    log = logging.getLogger("flwr")
    log.setLevel(logging.INFO if verbose else logging.WARNING)
    for handler in log.handlers:
        # Flower colours its lines in pipes and files too. Where its handler is defined differs
        # between releases, the name of this field does not.
        if isinstance(handler, logging.StreamHandler) and "colored" in vars(handler):
            is_open = not getattr(handler.stream, "closed", False)
            vars(handler)["colored"] = is_open and handler.stream.isatty()
            kept = [one for one in handler.filters if not isinstance(one, _Once)]
            handler.filters = kept if verbose else [*kept, _Once()]


class _AboveBar(logging.Handler):
    """Prints lines of a log above a bar, in whole words; written past it they would cross it."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._replaced: list[logging.Handler] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        self._console.print(self.format(record), markup=False, soft_wrap=False)

    def attach(self) -> None:
        """Take the place of the handlers with which Flower writes to the terminal."""
        log = logging.getLogger("flwr")
        self.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        self._replaced = [one for one in log.handlers if "colored" in vars(one)]
        self.filters = [rule for one in self._replaced for rule in one.filters]
        log.handlers = [*(one for one in log.handlers if one not in self._replaced), self]

    def detach(self) -> None:
        """Give them their place back."""
        log = logging.getLogger("flwr")
        log.handlers = [*(one for one in log.handlers if one is not self), *self._replaced]


class Progress:
    """Shows rounds as they end and the findings at the end."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._is_ascii = not _can_print("ε ≥ ≤ ≈ δ …", self._console.encoding)
        self._bar: Bar | None = None
        self._log = _AboveBar(self._console)

    def say(self, text: str) -> None:
        """Print one line."""
        spelled = in_ascii(text) if self._is_ascii else plain_spaces(text)
        # Rich leaves styles out where the output is no terminal.
        style = "bold" if text.startswith(_HEADS) else None
        self._console.print(spelled, markup=False, style=style)

    def begin(self, config: Config, dim: int, sizes: Sizes, rounds_done: int) -> None:
        """Say what is about to run."""
        seats = f" + {counted(config.seats, 'canary seat')}" if config.seats else ""
        for line in (
            f"model     {config.dataset}, {config.model} with {dim:,} parameters",
            f"clients   {config.clients:,} ({sizes}); {config.sample}{seats} per round",
            f"training  {config.algorithm} clients, {config.server} server, {_noise(config)}",
            *_calibration(config),
            *_measured(config),
            f"audit     {', '.join(map(short_name, config.auditor_names)) or 'none'}",
        ):
            self.say(line)
        self.claims(claims_of(config.claim))
        last = [f"log       {', '.join(config.loggers)}"] if config.loggers else []
        last += [f"resuming after round {rounds_done} of {config.rounds}"] if rounds_done else []
        self.begin_with(last, config.rounds, rounds_done)

    def claims(self, claims: Iterable[Claim]) -> None:
        """Say what is claimed, and what the claims' own parameters deliver."""
        for claim in claims:
            self.say(f"claim     {claim_sentence(claim)}")

    def begin_with(
        self, lines: Sequence[str], total: int, done: int = 0, name: str = "rounds"
    ) -> None:
        """Say what is about to run; in a terminal, show a bar of its rounds or other steps."""
        for line in lines:
            self.say(line)
        self._total = total
        if self._console.is_terminal:
            self._bar = Bar(
                TextColumn(name),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("left"),
                TextColumn("{task.fields[audit]}"),
                console=self._console,
                speed_estimate_period=math.inf,  # a round may take minutes, and the next seconds
            )
            self._task = self._bar.add_task(name, total=total, completed=done, audit="")
            self._bar.start()
            self._log.attach()

    def step(self, text: str, done: int) -> None:
        """Show a finished step."""
        self.say(text)
        if self._bar is not None:
            self._bar.update(self._task, completed=done)

    def round(self, line: RoundLine) -> None:
        """Show a finished round."""
        self.say(_round(line, self._total))
        if self._bar is not None:
            self._bar.update(self._task, completed=line.server_round, audit="")

    def audit(self, stage: str, share: float) -> None:
        """Show how far a long audit of the round is."""
        if self._bar is not None:
            self._bar.update(self._task, audit=f"audit: {stage} {share:.0%}")

    def stop(self) -> None:
        """Remove the bar; for a run that ends early as well."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            self._log.detach()

    def summary(
        self, verdict: Verdict, failures: Sequence[str] = (), ending: Ending | None = None
    ) -> None:
        """Print the end of a run: verdict, attackers, upper bound and next steps.

        Args:
            verdict: On the run.
            failures: Which auditors were left out, and why.
            ending: What to do next, and where the page is.
        """
        self.stop()
        self.say("")
        for line in summary(verdict, failures, self.fitted(ending or Ending(steps(verdict)))):
            self.say(line)

    def fitted(self, ending: Ending) -> Ending:
        """Return an ending in the width and the letters of the terminal."""
        ending = replace(ending, is_ascii=self._is_ascii)
        if not self._console.is_terminal:
            return ending
        return replace(ending, width=min(max(self._console.width, 60), 120))


def _can_print(text: str, encoding: str) -> bool:
    """Whether a terminal of this encoding has all letters of a text."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _round(line: RoundLine, total: int) -> str:
    """Return a round in at most 80 columns; what does not fit is in the report."""
    width = len(str(total))
    pieces = [f"round {line.server_round:>{width}}/{total}"]
    if line.accuracy is not None:
        pieces.append(f"accuracy {share(line.accuracy)}")
    first = {f.auditor: f for f in reversed(line.findings)}
    pieces += _one_unit([words for f in reversed(first.values()) if (words := glimpse(f))])
    for gap in ("  ", " "):
        if len(text := gap.join(pieces)) <= _WIDTH:
            return text
    text = pieces[0]
    for piece in pieces[1:]:
        if len(text) + len(piece) + 2 > _WIDTH - 2:
            break
        text += f"  {piece}"
    return f"{text} …"


def _one_unit(pieces: Sequence[str]) -> list[str]:
    """Return pieces of which those in bits are one list, with one unit, at the end.

    >>> _one_unit(["MI≈0.20 bit", "LRT ε≥2.15", "MINE≈1.40 bits"])
    ['LRT ε≥2.15', 'MI≈0.20, MINE≈1.40 bits']
    """
    bits = [words for words in pieces if words.endswith((" bit", " bits"))]
    if not bits:
        return list(pieces)
    *others, last = bits
    listed = ", ".join([*(words.rpartition(" ")[0] for words in others), last])
    return [*(words for words in pieces if words not in bits), listed]


def _noise(config: Config) -> str:
    """Return what protects the updates."""
    sums = "secure aggregation" if config.has_sums else "no secure aggregation"
    kind = "" if config.noise_distribution == "gaussian" else f" ({config.noise_distribution})"
    return f"{sums}, {'no' if config.noise == 'none' else config.noise} noise{kind}"


def _measured(config: Config) -> tuple[str, ...]:
    """Return what a clip norm was measured on, and what that costs; nothing for another one."""
    if config.clipping != "measured":
        return ()
    return (
        f"clipping  to norm {config.clip_norm:g}, measured on the clients' data without noise:",
        "          no guarantee covers this choice (--clipping adaptive has one)",
    )


def _calibration(config: Config) -> tuple[str, ...]:
    """Return the calibrated noise multiplier, and what it is calibrated for; nothing if none is."""
    if not config.target_epsilon:
        return ()
    is_central = config.noise_kind.added_by == "server"
    observer = "outsiders that see every model and" if is_central else "a server that"
    is_replaced = config.target_adjacency == "replace"
    known = "with another update" if is_replaced else "zeroed out"
    world = "added or removed" if config.clipping == "adaptive" else known
    return (
        f"noise     multiplier {config.noise_multiplier:g}, calibrated: the planned run guarantees "
        f"ε ≤ {config.target_epsilon:g} at δ = {config.delta:g}",
        f"          for one client {world}, against {observer} may know every cohort",
    )
