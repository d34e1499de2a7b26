"""Calls the auditors of a run: one that fails is left out, and the training continues."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import MetricRecord

from leakmeter.auditors.auditor import (
    Auditor,
    Canary,
    DamagedError,
    DivergedError,
    Project,
    RoundMessages,
    RoundView,
    Schedule,
    UnableError,
    share_confidence,
)
from leakmeter.auditors.codec import Kept, Resumable, codec
from leakmeter.auditors.finding import Finding, Limitation, RunWarning
from leakmeter.auditors.hook.planting import order_of
from leakmeter.auditors.verdict.claim import Claim
from leakmeter.auditors.wording import counted

_log = logging.getLogger("flwr")
BEFORE = "before round 1"
_MOST_LIMITATIONS = 60  # far more than a project has; one client must not fill a report
_LONG = 60.0  # seconds of an audit that are worth a line beforehand
_UNPLAYED = "no canary was played"
_SILENT = "produced no findings; this is not evidence of privacy"
_PLANTED = "{} plants records already, and a run has one such audit: use one generator for each run"


def _restore(auditor: Auditor, state: Any) -> None:
    """Restore an auditor's state of an interrupted run; raise if it does not fit."""
    try:
        auditor.restore(state)
    except DamagedError:
        raise
    except Exception as error:  # foreign content can make a restore raise anything
        raise DamagedError(
            f"the state of the auditor {auditor.name} is not one that it has written "
            f"({type(error).__name__}: {error})"
        ) from error


class Panel(Resumable):
    """Calls each auditor in turn and keeps the reason if one fails.

    A wrong setting that `begin` finds, before anything is sent, is an error. What an auditor cannot
    measure in this project is logged before training starts, and is a limitation in the report. An
    auditor that can measure nothing, or fails later, is left out, and the report names the reason.

    Args:
        auditors: The auditors of the run.

    Attributes:
        keeps_files: Whether a state is saved after each round. The last saved state may need the
            files of an auditor that is left out, until the next one is saved.
    """

    failures: Kept[list[str]]
    _limitations: Kept[list[Limitation]]
    _spoke: Kept[set[str]]
    _planter: Kept[str]  # the auditor that plants records; empty before
    _warned: Kept[list[RunWarning]]  # by auditors that were left out

    def __init__(self, auditors: Sequence[Auditor]) -> None:
        names = [a.name for a in auditors]
        if len(set(names)) < len(names):
            raise ValueError(f"auditors must have different names, got {names}")
        self.auditors = list(auditors)
        self.failures = []
        self._limitations = []
        self._estimated: set[str] = set()
        self._spoke = set()  # auditors that have found anything
        self._planter, self._warned = "", []
        self._restored: Mapping[str, Any] = {}
        self._has_observed = False
        self.keeps_files = False
        self._left_out: list[Auditor] = []  # whose files are still there

    @property
    def limitations(self) -> tuple[Limitation, ...]:
        """What auditors cannot measure in this project."""
        return tuple(self._limitations)

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """Which rounds auditors were to audit, for those that may skip some."""
        found = ((auditor.name, auditor.due) for auditor in self.auditors)
        return tuple(Schedule.of(name, due) for name, due in found if due is not None)

    @property
    def canaries(self) -> list[tuple[int, int]]:
        """Canaries that took part and that were planned, of each auditor that plays any."""
        played = (auditor.canaries_played for auditor in self.auditors)
        return [counts for counts in played if counts is not None]

    @property
    def wants_truth(self) -> bool:
        """Whether any auditor needs the plain updates."""
        return any(a.wants_truth for a in self.auditors)

    @property
    def wants_mean(self) -> bool:
        """Whether any auditor needs the mean of the updates."""
        return any(a.wants_mean for a in self.auditors)

    def replays(self, server_round: int) -> bool:
        """Whether any auditor sends messages of this round again."""
        return any(a.replays(server_round) for a in self.auditors)

    @property
    def wants_answers(self) -> bool:
        """Whether an auditor needs what all clients say in every round."""
        return any(a.wants_answers for a in self.auditors)

    def truth_of(self, server_round: int, honest: Sequence[int]) -> set[int]:
        """Return the honest clients whose plain updates any auditor needs."""
        return {c for a in self.auditors for c in a.truth_of(server_round, honest)}

    def begin(
        self,
        dim: int,
        num_rounds: int,
        folder: Path | None = None,
        *,
        first_round: int = 1,
        claims: tuple[Claim, ...] = (),
    ) -> None:
        """Start the auditors, each with its state of an interrupted run if there is one."""
        for auditor in list(self.auditors):
            auditor.claims = claims
            try:
                auditor.join([other for other in self.auditors if other is not auditor])
            except Exception as error:
                self._drop(auditor, BEFORE, error)
        share_confidence(self.auditors)
        for auditor in list(self.auditors):
            auditor.folder, auditor.first_round = folder, first_round
            try:
                auditor.begin(dim, num_rounds)
            except Exception as error:
                if isinstance(error, ValueError) and not isinstance(error, UnableError):
                    raise  # a setting that the user typed for us
                self._drop(auditor, BEFORE, error)
                continue
            if auditor.name in self._restored:
                _restore(auditor, self._restored[auditor.name])

    def consider(self, project: Project) -> None:
        """Log what each auditor cannot measure in this project; a resumed run has logged it."""
        if self._restored:
            return
        for auditor in list(self.auditors):
            try:
                for words in auditor.limits(project):
                    self._note(auditor, words)
            except Exception as error:
                self._drop(auditor, BEFORE, error)
        if project.clients is not None:
            with self.guarded("the cost of the audit is not known"):
                self._note_cost(project.clients * project.num_rounds, project)

    def _note_cost(self, own: int, project: Project) -> None:
        """Warn if the audit takes longer than the run's own trainings."""
        asked = {auditor: auditor.trainings(project) for auditor in self.auditors}
        if (total := sum(asked.values())) > own:
            words = (
                f"the audit trains clients {total:,} times, the run itself {own:,} times: it will "
                f"take about {total / own:.1f} times as long as the training. Fewer trials "
                "(passive(trials=20)) or more rounds between audits (every=…) cost less"
            )
            self._note(max(asked, key=lambda auditor: asked[auditor]), words)

    def note_canaries(self, words: str) -> None:
        """Note what was seen of canaries, for the auditors that play any."""
        self._note_all(words, [a for a in self.auditors if a.canaries_played is not None])

    def note_truth(self, words: str) -> None:
        """Note why there are no plain updates, for the auditors that want them."""
        self._note_all(words, [a for a in self.auditors if a.wants_truth])

    def note_replays(self, server_round: int, words: str) -> None:
        """Note what replays of a round do, for the auditors that send its messages again."""
        self._note_all(words, [a for a in self.auditors if a.replays(server_round)])

    def note(self, words: str) -> None:
        """Note what applies to every auditor."""
        self._note_all(words, self.auditors)

    def stop(self, when: str, error: Exception) -> None:
        """Note that nothing more can be audited; auditors that have seen no round are left out."""
        if self._has_observed:
            self.fail(f"nothing is audited from {when} on", error)
            return
        for auditor in list(self.auditors):
            self._drop(auditor, when, error)

    def instruct(
        self, server_round: int, chosen: Sequence[int], population: int | None = None
    ) -> dict[int, Canary]:
        """Ask each auditor for its canaries among the clients that are still free.

        Args:
            server_round: The round.
            chosen: Its clients.
            population: Clients of the whole project, if they can be counted.
        """
        orders: dict[int, Canary] = {}
        for auditor in list(self.auditors):
            auditor.population = population
            free = [c for c in chosen if c not in orders]
            try:
                wanted = auditor.instruct(server_round, free)
                if not set(wanted) <= set(free):
                    raise ValueError(f"may instruct only clients in {free}, got {sorted(wanted)}")
                orders |= wanted
            except Exception as error:
                self._drop(auditor, f"round {server_round}", error)
        return orders

    def plant(self, server_round: int, chosen: Sequence[int]) -> dict[int, MetricRecord]:
        """Return orders to plant; the first auditor that asks is the only one of the run."""
        asked: dict[int, MetricRecord] = {}
        for auditor in list(self.auditors):
            try:
                wanted = auditor.plant(server_round, chosen)
                if wanted and (self._planter or auditor.name) != auditor.name:
                    raise UnableError(_PLANTED.format(self._planter))
                self._planter = auditor.name if wanted else self._planter
                asked |= {c: order_of(*wanted[c]) for c in wanted if c in chosen}
            except Exception as error:
                self._drop(auditor, f"round {server_round}", error)
        return asked

    @property
    def warnings(self) -> list[RunWarning]:
        """What the audits themselves have done to the run, those that were left out as well."""
        found = [one for auditor in self.auditors for one in auditor.warnings]
        return [*self._warned, *found]

    def bind(self, server_round: int, messages: RoundMessages) -> None:
        """Show each auditor the messages of a round before they are sent."""
        for auditor in list(self.auditors):
            try:
                auditor.bind(messages)
            except Exception as error:
                self._drop(auditor, f"round {server_round}", error)

    def observe(self, view: RoundView) -> list[Finding]:
        """Show a round to each auditor and return what they find in it."""
        self._has_observed = True
        findings: list[Finding] = []
        for auditor in list(self.auditors):
            begin = time.monotonic()
            try:
                self._announce(auditor, view)
                found = auditor.observe(view)
                findings += found
                self._estimate(auditor, view.server_round, time.monotonic() - begin)
                self._spoke |= {auditor.name} if found else set()
            except DivergedError as error:  # the next round may be better
                self._note(auditor, str(error))
            except Exception as error:
                self._drop(auditor, f"round {view.server_round}", error)
        return findings

    def _estimate(self, auditor: Auditor, server_round: int, took: float) -> None:
        """Say after its first round how long an auditor needs for the others, if that is long."""
        due = auditor.due
        if due is None or server_round not in due or auditor.name in self._estimated:
            return
        self._estimated.add(auditor.name)
        left = sum(later > server_round for later in due.rounds())
        self._warn_of(auditor, left, "more round", took)

    def _announce(self, auditor: Auditor, view: RoundView) -> None:
        """Say before its first round how long an auditor will take, if that is known and long."""
        due = auditor.due
        if due is None or view.server_round not in due or auditor.name in self._estimated:
            return
        left = sum(later >= view.server_round for later in due.rounds())
        took = auditor.seconds(view)
        if took is not None and self._warn_of(auditor, left, "round", took):
            self._estimated.add(auditor.name)

    @staticmethod
    def _warn_of(auditor: Auditor, left: int, unit: str, each: float) -> bool:
        """Log how long an auditor needs for some rounds, if that is long; return whether it is."""
        if left * each <= _LONG:
            return False
        _log.warning(
            "%s: %s to audit, about %s; %s",
            auditor.name,
            counted(left, unit),
            counted(round(left * each / 60), "minute"),
            f"{auditor.fewer} audits fewer" if left > 1 else "fewer trials or draws take less",
        )
        return True

    def report(self) -> list[Finding]:
        """Return what each auditor finds in the run."""
        findings: list[Finding] = []
        for auditor in list(self.auditors):
            try:
                found = auditor.report()
                findings += found
                for words in auditor.noticed:
                    self._note(auditor, words)
                if not found and auditor.name not in self._spoke:
                    self._note(auditor, _SILENT)
                if (why := auditor.unplayed) is not None:
                    self._note_unplayed(auditor, why)
            except Exception as error:
                self._drop(auditor, "report", error)
        return findings

    def _note_unplayed(self, auditor: Auditor, why: str) -> None:
        """Note that nothing was searched for, unless a reason was noted before."""
        before = [one.text for one in self._limitations if one.auditor == auditor.name]
        if not any(_UNPLAYED in text or why in text for text in before):
            self._note(auditor, f"{_UNPLAYED}: {why}")

    def close(self) -> None:
        """Let the auditors remove their working files."""
        for auditor in self.auditors:
            self._close(auditor)
        self.tidy()

    def tidy(self) -> None:
        """Let auditors that were left out remove their files: the last round is over."""
        while self._left_out:
            self._close(self._left_out.pop())

    def state(self) -> dict[str, Any]:
        """Return the auditors' states by name, and who has failed."""
        return {**super().state(), "auditors": {a.name: a.state() for a in self.auditors}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned; it reaches the auditors in `begin`."""
        super().restore(state)
        self._restored = codec(dict[str, dict[str, Any]]).read(state.get("auditors"), "auditors")
        self._has_observed = True
        # An auditor without a state had failed, and stays out.
        self.auditors = [a for a in self.auditors if a.name in self._restored]

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Note an exception of the hook itself as a failure and continue after the block."""
        try:
            yield
        except Exception as error:
            self.fail(what, error)

    def fail(self, what: str, error: Exception) -> None:
        """Note that the hook itself has failed; the training continues."""
        is_ours = not isinstance(error, UnableError)
        # Some have no text, such as a MemoryError.
        words = str(error) or type(error).__name__
        _log.error("%s: %s", what, words, exc_info=error if is_ours else None)
        self.failures.append(f"{what}: {type(error).__name__}: {error}")

    def _note_all(self, words: str, auditors: Sequence[Auditor]) -> None:
        for auditor in auditors:
            self._note(auditor, words)

    def _note(self, auditor: Auditor, words: str) -> None:
        """Log once what an auditor cannot measure, and keep it for the report."""
        if (noted := Limitation(auditor.name, words)) in self._limitations:
            return
        if len(self._limitations) >= _MOST_LIMITATIONS:  # clients have a part in some of them
            return
        _log.warning("auditor %s: %s", auditor.name, words)
        self._limitations.append(noted)

    def _drop(self, auditor: Auditor, when: str, error: Exception) -> None:
        if isinstance(error, UnableError):  # in words of its own; where in our code is of no use
            _log.warning("auditor %s is left out, %s: %s", auditor.name, when, error)
        else:
            _log.exception("auditor %s failed in %s and is left out", auditor.name, when)
        self.failures.append(f"{auditor.name}, {when}: {type(error).__name__}: {error}")
        self.auditors.remove(auditor)
        with self.guarded(f"warnings of {auditor.name} are not known"):
            self._warned += auditor.warnings  # what it has planted stays in the model
        self._left_out.append(auditor)
        if not self.keeps_files:
            self.tidy()

    def _close(self, auditor: Auditor) -> None:
        try:
            auditor.close()
        except Exception:
            _log.exception("auditor %s cannot remove its working files", auditor.name)
