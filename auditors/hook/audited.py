"""The hook: a strategy around any Flower strategy that lets auditors see each round.

`Audited` is an ordinary strategy that hands every call on, so Flower's own loop runs it and nothing
of the strategy inside is touched. A strategy that brings its own loop keeps it, with its own
arguments: the audit then looks on from the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MethodType
from typing import Any, Final

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from leakmeter.auditors.auditor import Auditor
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.finding import Limitation
from leakmeter.auditors.hook.canary_order import Choice
from leakmeter.auditors.hook.grid import TIMEOUT, StartArguments, run_own_loop
from leakmeter.auditors.hook.run_audit import AuditReader, RunAudit
from leakmeter.auditors.hook.wrapper import Wrapper, chain, has_own_loop
from leakmeter.auditors.run_log import Callback
from leakmeter.auditors.verdict.claim import Claim

_USUAL_ROUNDS: Final = 3  # of Flower's `start`
UNPLANNED: Final = (
    "the strategy's own start has no argument num_rounds, so canaries are planned for three "
    "rounds: say how many there are before it starts, audited.num_rounds = 20"
)
NOT_OUTERMOST: Final = (
    "Audited must be outermost: write Audited(Wrapper(strategy), ...), "
    "not Wrapper(Audited(strategy, ...)). A loop that calls its methods without start says how "
    "many rounds it has, audited.num_rounds = 20, and ends with audited.finish()"
)

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class Audited(AuditReader, Wrapper):
    """Runs `strategy` as it is and shows every round to the auditors.

    Before training starts, each auditor logs what it cannot measure in this project. Whatever goes
    wrong with the audit, the training continues; `failures` and `limitations` say what is missing.

    Args:
        strategy: Any Flower strategy, also one that wraps others. `Audited` must be outermost.
        auditors: The auditors to run. Their names must differ.
        out: Folder for `rounds.jsonl` and `report.json`, `~` is your home; nothing is written
            without it. If it already contains a run, the next free name is taken.
        name: What the report calls the run; None takes the folder's name.
        metrics: Whether findings also go into Flower's train metrics, as `auditor.quantity`; not
            those of a strategy with its own `start`, which makes them itself.
        sends: What clients reply with: "models", or "differences" such as gradients. "auto" lets
            the seats of round 1 tell, and decides from the honest replies.
        config: What to note in the report about how the run was made.
        rounds_done: Rounds of an interrupted run that are done; numbering continues after them.
        callbacks: Told of the start, of each round and of the end, such as a logger of
            `leakmeter.loggers`; what one raises is logged. `StopAbove(ε)` ends the run once more
            than ε is proven.
        claims: What is claimed about the privacy of the run, for the audit to refute or not, such
            as `[Claim(10, delta=1e-5, against="server", per="round")]` or the text "10@1e-5 server
            round". Flower's own noise adds its own claims.

    Attributes:
        audit: The audit itself.
        num_rounds: Length of a run whose loop calls the methods of this strategy without `start`,
            or whose `start` has no such argument; set it before the first round. A loop that calls
            the methods ends with `finish()`.

    Example:
        strategy = Audited(FedAvg(), auditors=[OneShotCanaries(seats=2)], out="runs/mine")
        result = strategy.start(grid, initial_arrays, num_rounds=20)
    """

    audit: Kept[RunAudit]

    def __init__(
        self,
        strategy: Strategy,
        auditors: Sequence[Auditor],
        *,
        out: str | Path | None = None,
        name: str | None = None,
        metrics: bool = False,
        sends: Choice = "auto",
        config: Mapping[str, Any] | None = None,
        rounds_done: int = 0,
        callbacks: Sequence[Callback] = (),
        claims: str | Iterable[Claim | str] = (),
    ) -> None:
        super().__init__(strategy)
        self.audit = RunAudit(
            strategy,
            auditors,
            out=out,
            name=name,
            metrics=metrics,
            sends=sends,
            config=config,
            rounds_done=rounds_done,
            callbacks=callbacks,
            claims=claims,
        )
        self.num_rounds: int | None = None

    def __repr__(self) -> str:
        """Return the strategies from the outside in, the auditors, and where the log is."""
        inner = " around ".join(type(one).__name__ for one in chain(self.strategy))
        names = ", ".join(auditor.name for auditor in self.auditors) or "none"
        out = "" if self.folder is None else f", out={str(self.folder)!r}"
        return f"Audited({inner}, auditors: {names}{out})"

    def start(self, *args: Any, **more: Any) -> Result:
        """Run the strategy, then let the auditors report.

        The arguments are those of the strategy's own `start`, as a rule `grid`, `initial_arrays`,
        `num_rounds`, `timeout`, `train_config`, `evaluate_config` and `evaluate_fn`. `num_rounds`
        is the length of the whole run; of an interrupted one the rest is run.
        """
        foreign = next(held for held in chain(self.strategy) if not isinstance(held, Wrapper))
        loop = foreign.start if has_own_loop(foreign) else MethodType(Strategy.start, self)
        call = StartArguments(loop, args, more)
        num_rounds = self._length(call)
        if (evaluate_fn := call.by_name.get("evaluate_fn")) is not None:
            call.put("evaluate_fn", self._watch_evaluation(evaluate_fn))
        if has_own_loop(self.strategy) and self.strategy is foreign:
            result = run_own_loop(self.strategy, call, self.audit, num_rounds)
        else:
            call.begin(self.audit, num_rounds)
            if call.takes("num_rounds"):
                call.put("num_rounds", max(num_rounds - self.audit.offset, 0))
            result = super().start(*call.args, **call.more)
        self.ended = self.audit.stop_rule.reason
        self.audit.finish(num_rounds)
        return result

    def _length(self, call: StartArguments) -> int:
        """Return how many rounds the run will have, as the arguments of its `start` say."""
        if self.num_rounds is not None:
            return self.num_rounds
        if (told := call.by_name.get("num_rounds")) is not None:
            return int(told)
        if not call.takes("num_rounds"):
            self.add_limitations(Limitation("audit", UNPLANNED))
            return _USUAL_ROUNDS
        usual = call.parameters["num_rounds"].default if "num_rounds" in call.parameters else None
        return int(usual) if isinstance(usual, int) else _USUAL_ROUNDS

    def finish(self) -> None:
        """End a run whose loop has called the methods of this strategy without `start`."""
        if self.num_rounds is not None and self.audit.has_begun:
            self.audit.finish(self.num_rounds)

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        *more: Any,
        **named: Any,
    ) -> Any:
        """Let the inner strategy choose, then hand out orders."""
        self._ensure_begun(arrays)
        self.audit.before_round(arrays)
        number = self.audit.number_in_run(server_round)
        kept = ArrayRecord(dict(arrays))  # the inner strategy may change the record
        made = self._inner_configure_train(number, arrays, config, grid, *more, **named)
        if made is None:  # so a loop of its own may skip a round
            return None
        messages = list(made)
        self.audit.opened(number, kept, messages, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message], *more: Any, **named: Any
    ) -> Any:
        """Let the inner strategy aggregate, then look."""
        number, received = self.audit.number_in_run(server_round), list(replies)
        self.audit.replied(number, received)
        # A strategy with a loop of its own may take and return more than Flower's do.
        made: tuple[Any, ...] = self._inner_aggregate_train(number, received, *more, **named)
        arrays, metrics, *rest = made
        return (arrays, self.audit.closed(number, arrays, metrics), *rest)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Count the rounds of the whole run."""
        return self._inner_configure_evaluate(
            self.audit.number_in_run(server_round), arrays, config, grid
        )

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Note what the clients measured."""
        metrics = self._inner_aggregate_evaluate(self.audit.number_in_run(server_round), replies)
        self.audit.stop_rule.keep("evaluate_metrics_clientapp", server_round, metrics)
        self.audit.evaluated(metrics)
        return metrics

    def _ensure_begun(self, arrays: ArrayRecord) -> None:
        """Begin a run whose loop is in `main`; refuse one that a wrapper around us has begun."""
        if self.audit.has_begun:
            return
        if self.num_rounds is None:
            raise RuntimeError(NOT_OUTERMOST)
        self.begin()
        self.audit.begin(arrays, self.num_rounds, TIMEOUT)

    def _watch_evaluation(self, evaluate_fn: EvaluateFn) -> EvaluateFn:
        """Return the server's evaluation, made to complete the round's line."""

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            number = self.audit.number_in_run(server_round)
            self.audit.released(arrays)
            metrics = evaluate_fn(number, arrays)
            self.audit.stop_rule.keep("evaluate_metrics_serverapp", server_round, metrics)
            self.audit.evaluated(metrics)
            self.audit.flush()
            return metrics

        return evaluate
