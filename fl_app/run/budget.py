"""The privacy budget of a data set: checked, reserved for a run, settled at its end.

Also: which run of the ledger a folder belongs to, and whether it is a copy.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from flwr.serverapp.strategy import Strategy

from leakmeter.auditors import wording
from leakmeter.auditors.codec import CodecError, codec
from leakmeter.auditors.finding import Adjacency, Bound
from leakmeter.auditors.hook.wrapper import link
from leakmeter.auditors.run_log import REPORT, HeldError, write_atomically
from leakmeter.clients.secure_sum.quantise import CoarseError
from leakmeter.fl_app.build.strategy import planned, planned_cohorts
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.run.folder import Checkpoint
from leakmeter.strategies import Noised
from leakmeter.strategies.accounting.accountant import separation_of
from leakmeter.strategies.accounting.ledger import (
    Entry,
    Head,
    Ledger,
    latest,
    spent,
    spent_amplified,
)

_log = logging.getLogger("flwr")

_ANY: Adjacency = "add-remove"  # every release can be priced for it
_WRITABLE = "make it a file that can be written, or name another with --ledger ledger.jsonl"
_RUN = "ledger-run"  # the file of a run with its name in the ledger
_MAX_REPORTS = 20  # reports that are compared with the ledger, the newest ones
_SAME = 1 + 1e-9  # a cost that grew by more than this factor did not grow by rounding


def check_budget(config: Config, strategy: Strategy, folder: Path | None = None) -> None:
    """Raise if the planned run would exceed the budget; nothing is reserved yet.

    `folder` is that of an interrupted run, whose own entry does not count twice.
    """
    if not config.ledger:
        return
    run = known_name(folder) if folder else ""
    plan = _planned(config, strategy, run or "planned")
    with _ledger_of(config) as ledger:
        ledger.check_writable()
    _check_reports(config, folder)
    _check_excess(config, _entries(config, run), plan)


def reserve(config: Config, strategy: Strategy, folder: Path) -> LedgerAccount | None:
    """Write the planned run into the ledger, before it starts; None without a ledger.

    No other run can write between our reading and writing. So of two runs that start at once and
    exceed the budget together, the second is refused.

    Raises:
        ConfigError: The run would exceed the budget, the seed is used, the ledger is damaged or
            lacks lines that the report of an earlier run knows, or the folder is a copy of another
            one.
    """
    if not config.ledger:
        return None
    _check_reports(config, folder)
    run = run_name(folder)
    # A mark that differs between copies of a folder and stays the same for each.
    place = f"{(folder / _RUN).stat().st_ino}:{folder.resolve()}"
    planned = replace(_planned(config, strategy, run), is_planned=True, place=place)

    def plan(history: Sequence[Entry]) -> Entry:
        own = [e for e in history if e.run == run]
        check_place(own, folder, place)
        # An interrupted run may have spent more than it had planned.
        entry = replace(max([planned, *own[-1:]], key=_cost), is_planned=True, place=place)
        if words := _check_excess(config, latest(history, config.dataset, but=run), entry):
            _log.warning(words)
        return entry

    with _ledger_of(config) as ledger:
        return LedgerAccount(config, planned, ledger.update(plan))


@dataclass
class LedgerAccount:
    """A run's entry in the ledger: the plan while it runs, what it has released at its end.

    Attributes:
        config: Settings with ledger, data set and budget.
        planned: What a whole run without dropouts would release.
        entry: The latest line of the run.
    """

    config: Config
    planned: Entry
    entry: Entry

    def note(self, strategy: Strategy, rounds_done: int) -> None:
        """Raise the reservation if the rounds so far cost more than planned."""
        if (done := self._released(strategy)).releases:
            projected = self._projected(done, rounds_done)
            if _is_above(projected, self.entry):
                self._record(projected)

    def settle(self, strategy: Strategy) -> None:
        """Replace the plan by what was released."""
        if (released := self._released(strategy)) != self.entry:
            self._record(released)

    def head(self, strategy: Strategy) -> Head | None:
        """Settle and return the ledger's head for the report; None if it cannot be written."""
        try:
            self.settle(strategy)
            with _ledger_of(self.config) as ledger:
                return ledger.head()
        except (OSError, ConfigError):  # `close` says why
            return None

    def close(self, strategy: Strategy) -> str:
        """Settle and describe the ledger; a ledger that cannot be written keeps the plan."""
        try:
            self.settle(strategy)
            return statement(self.config)
        except (OSError, ConfigError) as error:
            return (
                f"{self.config.ledger} could not be written: {error}. The whole plan of this run "
                "counts there until the run is resumed"
            )

    def _record(self, entry: Entry) -> None:
        with _ledger_of(self.config) as ledger:
            ledger.record(entry)
        self.entry = entry

    def _released(self, strategy: Strategy) -> Entry:
        """Return the entry of what was released so far, possibly nothing."""
        noised = link(strategy, Noised)
        assert noised is not None
        if (guarantees := noised.guarantees()) is None:
            return replace(self.planned, participations=0, releases=(), is_planned=False)
        names = {"run": self.planned.run, "data": self.planned.data}
        entry = guarantees.entry(**names, seed=self.config.seed)
        return replace(entry, place=self.planned.place)

    def _projected(self, done: Entry, rounds_done: int) -> Entry:
        """Return what the run would release if every remaining round cost as much as the worst."""
        worst = max((*self.planned.releases, *done.releases), key=lambda r: r.separation(_ANY))
        releases = done.releases + (worst,) * max(self.config.rounds - rounds_done, 0)
        # Sums that were opened and rejected come on top of the rounds.
        more = max(len(done.releases) - rounds_done, 0)
        most = max(self.planned.participations, done.participations) + more
        return replace(
            done,
            releases=releases,
            participations=min(most, len(releases)),
            dropout_delta=done.dropout_delta * len(releases) / len(done.releases),
            is_planned=True,
        )


def statement(config: Config) -> str:
    """Return in words what the ledger has for the data set of this run."""
    entries = _entries(config, "")
    bound = spent(entries, config.delta)
    text = (
        f"ledger: {wording.counted(len(entries), 'run')} on {config.dataset}, {_epsilon(bound)} at "
        f"δ = {config.delta:g} for all released models together{_reserved(entries)}"
    )
    if (better := spent_amplified(entries, config.delta)) is not None:
        text += f" ({_epsilon(better)} against those who never learn who took part)"
    if config.budget and bound.value > config.budget:
        text += f"; this exceeds the budget of {config.budget:g}"
    return text


def _epsilon(bound: Bound) -> str:
    """Return ε with the sign of its kind: "≤" for a guarantee, which is rounded up, else "≈"."""
    sign = wording.SIGNS.get(bound.kind, "≈")
    return f"ε {sign} {wording.number(bound.value, kind=bound.kind)}"


def _planned(config: Config, strategy: Strategy, run: str) -> Entry:
    """Return the entry of a complete run without dropouts.

    Rounding is left out with Gaussian noise.
    """
    is_integer = config.noise_distribution != "gaussian"
    cohorts = planned_cohorts(config, strategy)
    try:
        guarantees = planned(config, strategy, cohorts, rounds_off=is_integer)
    except CoarseError as error:
        fix = f"Try --secagg-bits {min(2 * config.secagg_bits, 64)}"
        allowed = f"more for --noise-distribution {config.noise_distribution}: {error}"
        raise config.refused("secagg_bits", allowed, fix) from None
    if guarantees is None:
        allowed = "enough for a secure sum of three clients in one of the planned rounds"
        raise config.refused("sample", allowed)
    return guarantees.entry(run=run, data=config.dataset, seed=config.seed)


def _cost(entry: Entry) -> float:
    return separation_of(entry.releases, entry.participations, _ANY)


def _is_above(new: Entry, old: Entry) -> bool:
    """Whether an entry claims less than another one, or costs more."""
    costs_more = _cost(new) > _cost(old) * _SAME or new.dropout_delta > old.dropout_delta * _SAME
    claims_less = (new.is_coarse and not old.is_coarse) or (old.amplifies and not new.amplifies)
    return costs_more or claims_less


def _check_excess(config: Config, before: Sequence[Entry], planned: Entry) -> str:
    """Return in words why the planned run does not fit the budget; nothing if it does.

    Raises:
        ConfigError: It does not, and such runs are refused; or the seed is that of another run.
    """
    if any(e.seed == config.seed and e.releases for e in before):
        raise config.refused("seed", "one that no run in the ledger has used: it names the noise")
    after = spent([*before, planned], config.delta)
    if not config.budget or after.value <= config.budget:
        return ""
    so_far = _epsilon(spent(before, config.delta)) if before else "nothing"
    words = (
        f"--budget of ε = {config.budget:g} at δ = {config.delta:g} would be exceeded: {so_far} is "
        f"spent on {config.dataset}{_reserved(before)}, {_epsilon(after)} after this run; use "
        "more noise or fewer rounds"
    )
    if config.over_budget == "refuse":
        raise ConfigError(words)
    return words


def _reserved(entries: Sequence[Entry]) -> str:
    """Return in words how many entries are plans of runs that have not ended."""
    count = sum(e.is_planned for e in entries)
    return f" ({wording.counted(count, 'run')} not ended, counted as planned)" if count else ""


def _entries(config: Config, but: str) -> list[Entry]:
    with _ledger_of(config) as ledger:
        return ledger.entries(config.dataset, but=but)


@contextmanager
def _ledger_of(config: Config) -> Iterator[Ledger]:
    """Yield the ledger; turn errors of its file into a `ConfigError`."""
    try:
        yield Ledger(Path(config.ledger))
    except ConfigError:
        raise
    except HeldError as held:
        raise ConfigError(
            f"--ledger must be free, but {config.ledger} has been locked by {held} for a minute: "
            "end that process, or let it continue if it was stopped"
        ) from None
    except OSError as error:
        raise ConfigError(
            "--ledger must be a readable ledger that can be written, got "
            f"{error.filename or config.ledger}: {error.strerror}; {_WRITABLE}"
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"--ledger must be a readable ledger, got {config.ledger}: {error}"
        ) from None


def _check_reports(config: Config, folder: Path | None) -> None:
    """Raise if the ledger lacks lines that the report of an earlier run knows.

    A ledger that lost its end does not name the runs that it has lost. So reports are searched next
    to the new run's folder and next to those that the ledger still names.
    """
    with _ledger_of(config) as ledger:
        places = {entry.place.partition(":")[2] for entry in ledger.history() if entry.place}
        known = [Path(place) for place in places] + ([] if folder is None else [folder.resolve()])
        ledger.check(_heads_in_reports(ledger, {one.parent for one in known}))


def _heads_in_reports(ledger: Ledger, homes: Collection[Path]) -> dict[str, Head]:
    """Return what reports of runs in these folders know of the ledger, by the report's file."""
    # Only runs with a ledger have this file, so other reports are not even opened.
    reports = [
        run.with_name(REPORT)
        for home in homes
        for run in home.glob(f"*/{_RUN}")
        if run.with_name(REPORT).is_file()
    ]
    newest = sorted(reports, key=lambda one: one.stat().st_mtime)[-_MAX_REPORTS:]
    heads = {str(report): _head_in(report, ledger) for report in newest}
    return {source: head for source, head in heads.items() if head is not None}


def _head_in(report: Path, ledger: Ledger) -> Head | None:
    """Return what a report knows of this ledger; None if it is of another, or cannot be read."""
    try:
        values = json.loads(report.read_bytes())
        if Path(values["config"]["ledger"]).resolve() != ledger.path:
            return None
        found: Head = codec(Head).read(values["ledger"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, CodecError):
        return None  # a damaged report says nothing about the ledger
    return found


def known_name(folder: Path) -> str:
    """Return the run's name in the ledger; nothing if it has none yet."""
    path = folder / _RUN
    if not path.exists():
        return ""
    name = path.read_bytes()[:100].decode(errors="replace").strip()
    if len(name) != 32 or not set(name) <= set("0123456789abcdef"):
        raise ConfigError(
            f"--resume needs the run's name in the ledger, but {path} has none; take the line of "
            f"the run in the ledger whose place is {folder}, and write its run into {path}"
        )
    return name


def run_name(folder: Path) -> str:
    """Return the run's own name, drawn once: a folder may be deleted and its path used again."""
    if not (name := known_name(folder)):
        write_atomically(folder / _RUN, name := uuid.uuid4().hex)
    return name


def check_place(own: Sequence[Entry], folder: Path, place: str) -> None:
    """Raise if a run's folder is a copy: both would replace each other's entries in the ledger.

    Args:
        own: The run's entries, from first to last.
        folder: The folder that is to be run.
        place: Its place.
    """
    places = [e.place for e in own if e.place]
    if not places or places[-1] == place:
        return
    inode, _, other = places[-1].partition(":")
    if place in places:
        raise ConfigError(
            f"{folder} was copied or moved to {other}, where its run has continued; resume that one"
        )
    there = Path(other) / _RUN
    if (
        there.exists()
        and str(there.stat().st_ino) == inode
        and known_name(there.parent) == own[-1].run
    ):
        raise ConfigError(
            f"{folder} is a copy of {other}, and the ledger counts them as one run; resume "
            f"{other}, or delete it first"
        )
    if not own[-1].is_planned and len(own[-1].releases) > _releases_kept(folder) + 1:
        raise ConfigError(
            f"{folder} is an older copy of {other}: the ledger has {len(own[-1].releases)} "
            f"releases of this run; resume the folder with the most rounds"
        )
    _log.warning("the run of %s continues in %s; do not resume a copy of it", other, folder)


def _releases_kept(folder: Path) -> int:
    """Return how many releases the checkpoint of a folder contains."""
    path = folder / "checkpoint.npz"
    if not path.exists():
        return 0
    states = Checkpoint.read(path).strategy
    return max((len(s["spending"]["charges"]) for s in states if "spending" in s), default=0)
