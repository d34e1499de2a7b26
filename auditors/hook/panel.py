"""The auditors of a run: called one by one, with the damage of its rounds and the stop rule.

An auditor that fails is left out, and the training continues.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Result

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
from leakmeter.auditors.finding import Finding, Limitation, RunWarning, WarningKind
from leakmeter.auditors.hook.canary_order import Answer, bypasses_noise, may_be_longer, may_bypass
from leakmeter.auditors.hook.mods import planting_order
from leakmeter.auditors.hook.wrapper import EndedError, after_first_round
from leakmeter.auditors.run_log import Callback, StopAbove
from leakmeter.auditors.values import Vector
from leakmeter.auditors.verdict import sentences
from leakmeter.auditors.verdict.claim import CANARY_TIMES, Claim
from leakmeter.auditors.wording import Assumption, counted, is_epsilon, number, plain_spaces

_log = logging.getLogger("flwr")
BEFORE = "before round 1"
_MAX_LIMITATIONS = 60  # far more than a project has; one client must not fill a report
_LONG = 60.0  # seconds of an audit that are worth a line beforehand
_UNPLAYED = "no canary was played"
_SILENT = "produced no findings; this is not evidence of privacy"
_PLANTED = "{} plants records already, and a run has one such audit: use one generator for each run"


def plays_canaries(auditor: Auditor) -> bool:
    """Whether an auditor plays any: what was seen of canaries concerns no other."""
    return auditor.canaries_played is not None


def wants_truth(auditor: Auditor) -> bool:
    """Whether an auditor needs plain updates."""
    return auditor.wants_truth


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
        is_list = isinstance(auditors, Iterable) and not isinstance(auditors, str)
        given: list[object] = list(auditors) if is_list else [auditors]
        wrong = [one for one in given if not isinstance(one, Auditor)]
        if wrong or not isinstance(auditors, Sequence):
            raise TypeError(
                f"auditors must be a list of Auditor objects, got {(wrong or [auditors])[0]!r}; "
                "for example auditors=[OneShotCanaries(seats=2)]"
            )
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
        self._project: Project | None = None
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

    def concerns_any(self, concerns: Callable[[Auditor], bool]) -> bool:
        """Whether something concerns any of the auditors."""
        return any(map(concerns, self.auditors))

    def truth_of(self, server_round: int, honest: Sequence[int]) -> set[int]:
        """Return the honest clients whose plain updates any auditor needs."""
        return {c for a in self.auditors for c in a.truth_of(server_round, honest)}

    def begin(
        self,
        dim: int,
        num_rounds: int,
        folder: Path | None = None,
        *,
        claims: tuple[Claim, ...] = (),
    ) -> None:
        """Start the auditors, each with its state of an interrupted run if there is one."""
        self._project = None
        for auditor in list(self.auditors):
            auditor.claims = claims
            with self._leave_out_on_error(auditor, BEFORE):
                auditor.join([other for other in self.auditors if other is not auditor])
        share_confidence(self.auditors)
        for auditor in list(self.auditors):
            auditor.folder = folder
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
        self._project = project
        if self._restored:
            return
        for auditor in list(self.auditors):
            with self._leave_out_on_error(auditor, BEFORE):
                for words in auditor.limits(project):
                    self._note(auditor, words)
        if project.clients is not None:
            with self.keep_training_on_error("the cost of the audit is not known"):
                self._note_cost(project.clients * project.num_rounds, project)

    def consider_round(self, messages: Sequence[Message], seats: int) -> None:
        """Consider the project again, once it is known who takes part in its first round."""
        if self._project is not None and self._project.clients is None and messages:
            self.consider(after_first_round(self._project, messages, seats))

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

    def note(self, words: str, concerns: Callable[[Auditor], bool] = lambda _: True) -> None:
        """Note what applies to every auditor, or to those that it concerns."""
        for auditor in filter(concerns, self.auditors):
            self._note(auditor, words)

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
            with self._leave_out_on_error(auditor, f"round {server_round}"):
                wanted = auditor.instruct(server_round, free)
                if not set(wanted) <= set(free):
                    raise ValueError(f"may instruct only clients in {free}, got {sorted(wanted)}")
                orders |= wanted
        return orders

    def plant(self, server_round: int, chosen: Sequence[int]) -> dict[int, MetricRecord]:
        """Return orders to plant; the first auditor that asks is the only one of the run."""
        asked: dict[int, MetricRecord] = {}
        for auditor in list(self.auditors):
            with self._leave_out_on_error(auditor, f"round {server_round}"):
                wanted = auditor.plant(server_round, chosen)
                if wanted and (self._planter or auditor.name) != auditor.name:
                    raise UnableError(_PLANTED.format(self._planter))
                self._planter = auditor.name if wanted else self._planter
                asked |= {c: planting_order(*wanted[c]) for c in wanted if c in chosen}
        return asked

    @property
    def warnings(self) -> list[RunWarning]:
        """What the audits themselves have done to the run, those that were left out as well."""
        found = [one for auditor in self.auditors for one in auditor.warnings]
        return [*self._warned, *found]

    def bind(self, server_round: int, messages: RoundMessages) -> None:
        """Show each auditor the messages of a round before they are sent."""
        for auditor in list(self.auditors):
            with self._leave_out_on_error(auditor, f"round {server_round}"):
                auditor.bind(messages)

    def observe(self, view: RoundView) -> list[Finding]:
        """Show a round to each auditor and return what they find in it."""
        self._has_observed = True
        findings: list[Finding] = []
        for auditor in list(self.auditors):
            with self._leave_out_on_error(auditor, f"round {view.server_round}"):
                try:
                    findings += self._timed(auditor, view)
                except DivergedError as error:  # the next round may be better
                    self._note(auditor, str(error))
        return findings

    def _timed(self, auditor: Auditor, view: RoundView) -> Sequence[Finding]:
        """Show a round to an auditor; say once how long its rounds take, if that is long.

        It is said before its first round where that is known, else after it, of the others.
        """
        due, left = auditor.due, 0
        if due is not None and view.server_round in due and auditor.name not in self._estimated:
            left = sum(later >= view.server_round for later in due.rounds())
        expected = auditor.seconds(view) if left else None
        if expected is not None and self._warn_of(auditor, left, "round", expected):
            self._estimated.add(auditor.name)
            left = 0
        begin = time.monotonic()
        found = auditor.observe(view)
        if left:
            self._estimated.add(auditor.name)
            self._warn_of(auditor, left - 1, "more round", time.monotonic() - begin)
        self._spoke |= {auditor.name} if found else set()
        return found

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
            with self._leave_out_on_error(auditor, "report"):
                found = auditor.report()
                findings += found
                for words in auditor.noticed:
                    self._note(auditor, words)
                if not found and auditor.name not in self._spoke:
                    self._note(auditor, _SILENT)
                if (why := auditor.unplayed) is not None:
                    self._note_unplayed(auditor, why)
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
    def _leave_out_on_error(self, auditor: Auditor, when: str) -> Iterator[None]:
        """Leave an auditor out if it fails in the block, and continue after it."""
        try:
            yield
        except Exception as error:
            self._drop(auditor, when, error)

    @contextmanager
    def keep_training_on_error(self, what: str) -> Iterator[None]:
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

    def _note(self, auditor: Auditor, words: str) -> None:
        """Log once what an auditor cannot measure, and keep it for the report."""
        if (noted := Limitation(auditor.name, words)) in self._limitations:
            return
        if len(self._limitations) >= _MAX_LIMITATIONS:  # clients have a part in some of them
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
        with self.keep_training_on_error(f"warnings of {auditor.name} are not known"):
            self._warned += auditor.warnings  # what it has planted stays in the model
        self._left_out.append(auditor)
        if not self.keeps_files:
            self.tidy()

    def _close(self, auditor: Auditor) -> None:
        try:
            auditor.close()
        except Exception:
            _log.exception("auditor %s cannot remove its working files", auditor.name)


# Fields of Flower's result.
Metrics = Literal[
    "train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"
]


class StopRule(Resumable):
    """The largest proven ε at which a run continues.

    Only bounds that hold at all rounds together count: looking at others after every round, and
    stopping at the first large one, would break their confidence.

    Args:
        callbacks: Those of the run; without a `StopAbove` it is never stopped.
        auditors: Those of the run.

    Attributes:
        proven: The largest such bound so far.
        result: What Flower's loop would have returned, as far as it came.
        reason: Why the run was stopped; None if it was not.
    """

    proven: Kept[float]

    def __init__(self, callbacks: Sequence[Callback], auditors: Sequence[Auditor]) -> None:
        limits = [one.epsilon for one in callbacks if isinstance(one, StopAbove)]
        if limits and not any(auditor.is_anytime for auditor in auditors):
            names = [auditor.name for auditor in auditors]
            raise ValueError(
                "StopAbove needs an auditor whose bounds hold at all rounds together, got "
                f"{names}: try OneShotCanaries(seats=2, confidence=Anytime(0.95))"
            )
        self.above = min(limits, default=None)
        self.begin()

    def begin(self) -> None:
        """Forget an earlier run."""
        self.proven, self.result = 0.0, Result()
        self.reason: str | None = None

    def note(self, findings: Iterable[Finding]) -> None:
        """Note what a round has proven; a bound under a condition proves nothing."""
        together = (f for f in findings if f.is_anytime and not f.is_conditional)
        shown = (f.value for f in together if is_epsilon(f))
        self.proven = max(self.proven, *shown, 0.0)

    def keep(self, name: Metrics, server_round: int, metrics: MetricRecord | None) -> None:
        """Keep metrics of a round for the result of a run that may stop."""
        if self.above is not None and metrics is not None:
            getattr(self.result, name)[server_round] = metrics

    def check(self, arrays: ArrayRecord) -> None:
        """Stop before a round if more than the limit is proven.

        Args:
            arrays: The model that the round would start from.

        Raises:
            EndedError: The run stops here.
        """
        if self.above is None or self.proven <= self.above:
            return
        shown = number(self.proven, kind="lower_bound")
        self.reason = f"ε ≥ {shown} is proven, above the limit of {self.above:g}"
        self.result.arrays = arrays
        _log.warning("the run stops before its last round, as asked: %s", self.reason)
        raise EndedError(self.reason, self.result)

    def with_conditions(self, findings: Iterable[Finding]) -> list[Finding]:
        """Return the findings of the run; after a stop, other bounds than those are conditional.

        What stopped the run depends on the same scores as they do.
        """
        if self.reason is None:
            return list(findings)
        return _assuming(findings, (Assumption.FIXED_END,), lambda bound: not bound.is_anytime)


EarlyEnd = Literal["ended-early", "stopped-above"]
# Least share that causes a warning; 0 for any. Under differential privacy most updates may be
# clipped, and a few dropouts are usual.
_MIN_SHARE: Final[Mapping[WarningKind, float]] = {
    "stopped-above": 0.0,
    "ended-early": 0.0,
    "rejected-sums": 0.0,
    "non-finite-updates": 0.0,
    "blank-updates": 0.0,
    "clipped-coordinates": 0.0,
    "abandoned-rounds": 0.0,
    "dropouts": 0.05,
    "clipped-updates": 0.9,
}
_ENOUGH_CANARIES: Final = 8
# A clipped update has the clip norm up to the rounding of a float32 model.
_AT_THE_NORM: Final = 1 - 1e-4


class Health(Resumable):
    """What happened to the updates of a run, and out of how many."""

    _counts: Kept[dict[WarningKind, tuple[int, int]]]

    def __init__(self) -> None:
        self._counts = dict.fromkeys(_MIN_SHARE, (0, 0))

    def note(
        self,
        view: RoundView,
        *,
        asked: int,
        silent: Mapping[int, bool],
        diverged: int,
        lost: int = 0,
        plain: Mapping[int, Vector],
    ) -> None:
        """Count one round.

        Args:
            view: What the round showed.
            asked: Clients that got a train message.
            silent: Node to whether its update was not finite, of those that say that they have sent
                none. Simulated clients say so; others are counted inside a secure sum, if at all.
            diverged: Replies with a value that is not finite.
            lost: Those of them that the strategy left out; they are not among the view's replies.
            plain: Updates that neither masks nor noise hide; empty where there are none.
        """
        facts = view.facts
        is_abandoned = facts.abandoned is not None
        arrived = len(view.replies) if is_abandoned else facts.num_clients
        blank, refused = len(silent), sum(silent.values())
        if facts.blank is not None:
            blank = facts.blank
        elif facts.coordinates is not None:  # under noise they are in a secure sum like others
            arrived -= blank
        asked = asked if facts.asked is None else facts.asked
        self._add("abandoned-rounds", int(is_abandoned), 1)
        self._add("rejected-sums", int(facts.rejected is True), 1)
        self._add("dropouts", max(asked - arrived - blank - lost, 0), asked)
        total = arrived + blank + lost
        self._add("blank-updates", max(blank - refused, 0), total)
        self._add("non-finite-updates", refused + diverged, total)
        if facts.saturated is not None and facts.coordinates is not None:
            self._add("clipped-coordinates", facts.saturated, facts.coordinates)
        if facts.clip_norm is not None:
            norms = [_norm(u) for client, u in plain.items() if client not in view.instructed]
            clipped = sum(norm >= _AT_THE_NORM * facts.clip_norm for norm in norms)
            self._add("clipped-updates", clipped, len(norms))

    def note_end(self, played: int, planned: int, kind: EarlyEnd) -> None:
        """Count the rounds of a run that has ended before its last."""
        self._counts[kind] = (planned - played, planned)

    def warnings(self, canaries: Collection[tuple[int, int]]) -> tuple[RunWarning, ...]:
        """Return the warnings, the worst first.

        Args:
            canaries: Of each auditor that plays canaries: those that took part, those planned.
        """
        found = [
            # Facts of a foreign strategy need not fit together.
            RunWarning.of(kind, min(count, total), total)
            for kind, (count, total) in self._counts.items()
            if count and total and count >= _MIN_SHARE[kind] * total
        ]
        kinds = {one.kind for one in found}
        # More canaries would not help, or nobody wants to see more.
        if kinds & {"non-finite-updates", "blank-updates", "stopped-above"}:
            return tuple(found)
        # If rounds were lost, a plan with enough canaries does not need more of them.
        most = _ENOUGH_CANARIES if "abandoned-rounds" in kinds else math.inf
        found += [
            RunWarning.of("few-canaries", min(played, planned), planned)
            for played, planned in canaries
            if 0 < planned < most and played < _ENOUGH_CANARIES
        ]
        return tuple(found)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned, with every kind of count."""
        super().restore(state)
        self._counts = {kind: self._counts.get(kind, (0, 0)) for kind in _MIN_SHARE}

    def _add(self, kind: WarningKind, count: int, total: int) -> None:
        before, of = self._counts[kind]
        self._counts[kind] = (before + count, of + total)


def _norm(update: Vector) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.linalg.norm(update))


class RunClaims(Resumable):
    """What is claimed about the privacy of a run, and what keeps canaries from testing it.

    Args:
        given: Claims of the user.

    Attributes:
        claims: All that is claimed, as far as it is known.
    """

    claims: Kept[tuple[Claim, ...]]
    _is_bypassed: Kept[bool]  # whether canaries miss noise that clients' own updates get
    _may_bypass: Kept[bool]  # whether they may miss some: in training, or of an unknown mod

    def __init__(self, given: tuple[Claim, ...]) -> None:
        self.given = given
        self.begin()

    def begin(self) -> None:
        """Forget an earlier run."""
        self.claims = self.given
        self._is_bypassed = self._may_bypass = False
        self._answers: dict[int, Answer] = {}  # what each node has answered last

    def add(self, claims: Iterable[Claim]) -> None:
        """Log what is claimed, and keep it for auditors and report."""
        said = list(claims)
        for claim in said:
            _log.info("%s", plain_spaces(sentences.claim_sentence(claim)))
        self.claims = tuple(dict.fromkeys((*self.claims, *said)))

    def note_answers(self, answers: Mapping[int, Answer]) -> None:
        """Note what the mods of most clients claim, and whether canaries miss their noise.

        A client may answer anything, so none speaks for the others. In most rounds seats alone are
        asked, often a single one: what each node has answered last counts.
        """
        self._answers |= answers
        said = self._answers.values()
        most, known = len(said) / 2, {claim.source for claim in self.claims}
        noises = Counter(answer.local_noise for answer in said)
        found = (one.claim for one, count in noises.items() if one is not None and count > most)
        self.add(claim for claim in found if claim.source not in known)
        self._is_bypassed |= sum(map(bypasses_noise, said)) > most
        self._may_bypass |= sum(map(may_bypass, said)) > most

    def with_conditions(self, findings: Iterable[Finding], times: float) -> list[Finding]:
        """Return the findings of the run; a bound of canaries says what they bypass.

        Args:
            findings: Of the auditors.
            times: How many times as long canaries were asked to be as the updates they replace. A
                seat refuses where a mod may have clipped its update.
        """
        answers = self._answers.values()
        is_longer = times > 1 and 2 * sum(map(may_be_longer, answers)) >= len(answers)
        longer = {CANARY_TIMES: times} if is_longer else {}
        bypassed = (Assumption.BYPASSED_NOISE,) * self._is_bypassed
        bypassed += (Assumption.BYPASSED_TRAINING,) * self._may_bypass
        return _assuming(
            findings, bypassed, lambda bound: bound.threat_model.holds == "canary", longer
        )


def _assuming(
    findings: Iterable[Finding],
    added: Sequence[Assumption],
    concerns: Callable[[Finding], bool],
    facts: Mapping[str, float] | None = None,
) -> list[Finding]:
    """Return findings, with assumptions and facts added to the lower bounds that they concern."""
    return [
        replace(f, assumptions=(*f.assumptions, *added), facts={**f.facts, **(facts or {})})
        if f.kind == "lower_bound" and concerns(f)
        else f
        for f in findings
    ]
