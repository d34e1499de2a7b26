"""The audit at the grid: for strategies and loops of which nothing else can be seen.

Everything that an audit needs crosses the grid. A round is a send of train messages with a model;
its outcome is the first model that is known after it: of the server's evaluation, of the next train
or evaluate message, or of the end.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from leakmeter.auditors.auditor import Auditor
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.hook.canary_order import Choice, take_answer
from leakmeter.auditors.hook.open_round import are_equal
from leakmeter.auditors.hook.run_audit import AuditReader, RunAudit
from leakmeter.auditors.hook.wrapper import EndedError
from leakmeter.auditors.run_log import Callback
from leakmeter.auditors.verdict.claim import Claim

TIMEOUT = 3600.0  # seconds, as Flower's strategies wait
IN_PARTS: Final = (
    "the loop sends one model in several goes. Each go is taken for a round of its own, so the "
    "numbers are about parts of rounds: send to all clients of a round at once"
)


class GridWrapper(Grid):
    """Hands every call on to `grid`."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def set_run(self, run: Any) -> None:
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        return self.grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        return self.grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        return self.grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self.grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.grid.send_and_receive(messages, timeout=timeout)


class AuditedGrid(AuditReader, GridWrapper):
    """Hands every call on to `grid` and shows each round to the auditors.

    For a loop without a strategy, or one that nobody can wrap. Leave the block, or call `finish`,
    for the report.

    Args:
        grid: Delivers the messages.
        auditors: The auditors to run. Their names must differ.
        num_rounds: Rounds that the loop will play; canaries are planned for them.
        out: Folder for `rounds.jsonl` and `report.json`; nothing is written without it.
        name: What the report calls the run; None takes the folder's name.
        sends: What clients reply with, as for `Audited`.
        config: What to note in the report about how the run was made.
        callbacks: Told of the start, of each round and of the end.
        claims: What is claimed about the privacy of the run, as for `Audited`.

    Attributes:
        audit: The audit itself.

    Example:
        with AuditedGrid(grid, [OneShotCanaries(seats=2)], num_rounds=20, out="runs/mine") as grid:
            model = my_loop(grid)
            grid.finish(model)
    """

    def __init__(
        self,
        grid: Grid,
        auditors: Sequence[Auditor],
        *,
        num_rounds: int,
        out: str | Path | None = None,
        name: str | None = None,
        sends: Choice = "auto",
        config: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] = (),
        claims: str | Iterable[Claim | str] = (),
    ) -> None:
        audit = RunAudit(
            None,
            auditors,
            out=out,
            name=name,
            sends=sends,
            config=config,
            callbacks=callbacks,
            claims=claims,
        )
        self._set_up(grid, audit, num_rounds)

    @classmethod
    def around(cls, grid: Grid, audit: RunAudit, num_rounds: int) -> Self:
        """Return a grid that tells an audit which is there already."""
        made = cls.__new__(cls)
        made._set_up(grid, audit, num_rounds)
        return made

    def _set_up(self, grid: Grid, audit: RunAudit, num_rounds: int) -> None:
        super().__init__(grid)
        self.audit, self._num_rounds = audit, num_rounds
        self._rounds = 0
        self._last: tuple[ArrayRecord, set[int]] | None = None  # what was sent in it, and to whom
        self._asked: set[str] = set()  # ids of pushed messages of the round

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send with orders, and return the replies without our answers."""
        sent = list(messages)
        if not self._open_round(sent):
            return self.grid.send_and_receive(sent, timeout=timeout)
        replies = list(self.grid.send_and_receive(sent, timeout=timeout))
        self.audit.replied(self._rounds, replies)
        return replies

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send with orders; the messages of one call are a round."""
        sent = list(messages)
        is_round = self._open_round(sent)
        ids = list(self.grid.push_messages(sent))
        self._asked = set(ids) if is_round else self._asked
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have come, without our answers."""
        replies = list(self.grid.pull_messages(message_ids))
        ours = [r for r in replies if r.metadata.reply_to_message_id in self._asked]
        if ours:
            self.audit.replied(self._rounds, ours)
        for reply in replies:  # also of a round that another push has ended
            take_answer(reply)
        return replies

    def _open_round(self, messages: Sequence[Message]) -> bool:
        """Give messages their orders if they are a round; any model is the one after the last."""
        model = next((r for m in messages for r in m.content.array_records.values()), None)
        if model is None:
            return False
        kinds = {m.metadata.message_type.split(".")[0] for m in messages}
        kept = ArrayRecord(dict(model))  # a loop may change the record
        self.audit.released(kept)
        if kinds != {"train"}:
            return False
        if not self.audit.has_begun:
            self.audit.begin(kept, self._num_rounds, TIMEOUT)
        nodes = {m.metadata.dst_node_id for m in messages}
        if self._last is not None and are_equal(kept, self._last[0]) and not nodes & self._last[1]:
            self.audit.note(IN_PARTS)
        self._last = (kept, nodes)
        self.audit.before_round(kept)
        self._rounds += 1
        self.audit.opened(self._rounds, kept, messages, self.grid)
        return True

    def complete(self, model: ArrayRecord | None) -> None:
        """Close the last round with the model after it; None if nobody knows it."""
        if model is not None:
            self.audit.released(model)
        self.audit.abandon()

    def finish(self, model: ArrayRecord | None = None) -> None:
        """Close the last round and let the auditors report.

        Args:
            model: The model after the last round; without it that round is not audited.
        """
        if self.audit.has_begun:
            self.complete(model)
            self.audit.finish(self._num_rounds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self.finish()  # also after an exception: what was measured is not lost
        return isinstance(error, EndedError)  # as asked, by `StopAbove`


class StartArguments:
    """Arguments of a loop's `start`, which gets them in the way in which they were given."""

    def __init__(self, loop: Callable[..., Any], args: Sequence[Any], more: dict[str, Any]) -> None:
        self.parameters = inspect.signature(loop).parameters
        self.args, self.more = list(args), more
        rest = inspect.Parameter.VAR_POSITIONAL  # kinds are in the order of a signature
        self._names = [name for name, p in self.parameters.items() if p.kind < rest]
        if any(p.kind == rest for p in self.parameters.values()):
            # As a rule handed on to Flower's `start`, so the rest is in its order.
            usual = list(inspect.signature(Strategy.start).parameters)[1:]
            self._names += usual[len(self._names) :]

    @property
    def by_name(self) -> dict[str, Any]:
        """All arguments whose names are known."""
        return {**dict(zip(self._names, self.args, strict=False)), **self.more}

    def takes(self, name: str) -> bool:
        """Whether the loop has an argument of this name, as far as it is known."""
        return name in self.parameters or name in self.by_name

    def place(self, kind: type) -> str | None:
        """Return the name of the first argument of a type; None if there is none."""
        return next((name for name, one in self.by_name.items() if isinstance(one, kind)), None)

    def begin(self, audit: RunAudit, num_rounds: int) -> None:
        """Begin an audit with the model that is among the arguments, if one is."""
        if (place := self.place(ArrayRecord)) is not None:
            audit.begin(self.by_name[place], num_rounds, self.by_name.get("timeout", TIMEOUT))

    def put(self, name: str, value: Any) -> None:
        """Give the loop another value, where it had one in its place."""
        if name in self._names[: len(self.args)]:
            self.args[self._names.index(name)] = value
        else:
            self.more[name] = value


def run_own_loop(
    strategy: Strategy, arguments: StartArguments, audit: RunAudit, num_rounds: int
) -> Result:
    """Run a strategy's own `start` with a grid that looks on.

    Args:
        strategy: It overrides `start`.
        arguments: Of its `start`.
        audit: Sees the rounds.
        num_rounds: Length of the run.
    """
    name = type(strategy).__name__
    if audit.offset:
        allowed = f"0 with {name}, whose start is its own and counts rounds from 1"
        raise BadValueError("rounds_done", allowed, audit.offset)
    if (place := arguments.place(Grid)) is None:
        raise TypeError(f"{name}.start must be given a Grid, got {list(arguments.by_name)}")
    arguments.begin(audit, num_rounds)
    watched = AuditedGrid.around(arguments.by_name[place], audit, num_rounds)
    arguments.put(place, watched)
    try:
        result = strategy.start(*arguments.args, **arguments.more)
    except EndedError as early:
        result = early.result
    after = getattr(result, "arrays", None)  # a loop of its own may return anything
    watched.complete(after if isinstance(after, ArrayRecord) and len(after) else None)
    return result
