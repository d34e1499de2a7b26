"""The hook for Flower's legacy API: a strategy around one of `flwr.server.strategy`.

The legacy loop tells a strategy neither how many rounds there will be nor when they are over, and
sends to each client from a thread of its own. So the audit is told its length, sees a round in
`configure_fit` and `aggregate_fit`, and ends with the evaluation of the last one.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters, Scalar
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg, Strategy
from flwr.serverapp import Grid, ServerApp

from leakmeter.auditors.auditor import Auditor
from leakmeter.auditors.finding import Limitation
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.canary_order import Choice
from leakmeter.auditors.hook.grid import TIMEOUT
from leakmeter.auditors.hook.mods import canary_mod
from leakmeter.auditors.hook.run_audit import RunAudit, scalars
from leakmeter.auditors.hook.wire import as_scalars, from_scalars, record_of, without_our_scalars
from leakmeter.auditors.hook.wrapper import EndedError
from leakmeter.auditors.run_log import Callback
from leakmeter.auditors.verdict.claim import Claim

_log = logging.getLogger("flwr")

_CLIENT_APP_RAISED: Final = 2  # Flower's error code for a client that failed
_RUN_AS_APP: Final = "Run the strategy in a ServerApp, not by start_server or start_simulation"

Instructions: TypeAlias = list[tuple[ClientProxy, FitIns]]
Results: TypeAlias = list[tuple[ClientProxy, FitRes]]
Failures: TypeAlias = list[tuple[ClientProxy, FitRes] | BaseException]
Evaluations: TypeAlias = list[tuple[ClientProxy, EvaluateRes]]
EvaluationFailures: TypeAlias = list[tuple[ClientProxy, EvaluateRes] | BaseException]


class LegacyAudited(Strategy):
    """Runs a strategy of `flwr.server.strategy` as it is and shows every round to the auditors.

    The client app lists `canary_mod`: `ClientApp(client_fn=client_fn, mods=[canary_mod])`. Whatever
    goes wrong with the audit, the training continues. Attributes of the strategy can be read here.

    Args:
        strategy: Any legacy strategy, also one that wraps others.
        auditors: The auditors to run. Their names must differ.
        num_rounds: Rounds of the server's config; the legacy API does not tell a strategy.
        out: Folder for `rounds.jsonl` and `report.json`; nothing is written without it.
        name: What the report calls the run; None takes the folder's name.
        sends: What clients reply with, as for `Audited`.
        config: What to note in the report about how the run was made.
        callbacks: Told of the start, of each round and of the end. After a `StopAbove` no client is
            asked to train, though the server counts to its last round.
        claims: What is claimed about the privacy of the run, as for `Audited`.

    Attributes:
        strategy: The strategy inside.
        audit: The audit itself, with `verdict`, `findings`, `warnings` and `limitations`.

    Example:
        strategy = LegacyAudited(FedAvg(), [OneShotCanaries(seats=2)], num_rounds=20, out="runs/x")
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=20))
    """

    def __init__(
        self,
        strategy: Strategy,
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
        if not isinstance(strategy, Strategy):
            raise TypeError(
                f"strategy must be one of flwr.server.strategy, got {strategy!r}; for strategies "
                "of flwr.serverapp use leakmeter.Audited"
            )
        self.strategy, self._num_rounds = strategy, num_rounds
        known: Any = strategy  # the audit reads what its class is called, and calls nothing
        self.audit = RunAudit(
            known,
            auditors,
            out=out,
            name=name,
            sends=sends,
            config=config,
            callbacks=callbacks,
            claims=claims,
        )
        self._sent = _Sent()
        self._is_over = False
        # A server may skip evaluation, or fail: what was measured is reported when it is gone.
        weakref.finalize(self, _finish, self.audit, num_rounds)

    def __getattr__(self, name: str) -> Any:
        if name == "strategy":  # not there yet, of a copy that is being made
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        """Begin a new run."""
        self._is_over = False
        return self.strategy.initialize_parameters(client_manager=client_manager)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> Instructions:
        """Let the inner strategy choose, then hand out orders."""
        asked: dict[str, Any] = {"parameters": parameters, "client_manager": client_manager}
        if self._is_over:
            _log.warning(
                "round %d is not audited: num_rounds is %d", server_round, self._num_rounds
            )
            return self.strategy.configure_fit(server_round=server_round, **asked)
        if self.audit.has_begun and self.audit.stop_rule.reason is not None:
            return []  # the run was stopped; the server counts on
        model = record_of(parameters)
        try:
            if not self.audit.has_begun:
                self.audit.begin(model, self._num_rounds, TIMEOUT)
            self.audit.before_round(model)
        except EndedError:
            return []
        made = self.strategy.configure_fit(server_round=server_round, **asked)
        return self._opened(server_round, model, made, client_manager) if made else made

    def _opened(
        self, server_round: int, model: ArrayRecord, made: Instructions, manager: ClientManager
    ) -> Instructions:
        """Return the instructions of a round with the orders of the auditors."""
        try:
            self._sent = _Sent.of(server_round, made, manager)
        except Exception as error:  # such as a server outside of any run of Flower's
            self._sent = _Sent()
            self._note(wire.one_line(str(error)))
            return made
        # Auditors ask for no more of a grid than who there is, and to send a message.
        clients = cast(Grid, self._sent)
        self.audit.opened(server_round, model, self._sent.messages, clients)
        return self._sent.instructions()

    def _note(self, reason: str) -> None:
        """Say, once, that the instructions of a round could not be translated."""
        text = f"rounds could not be audited: {reason} {_RUN_AS_APP}"
        if (found := Limitation("audit", text)) not in self.audit.limitations:
            _log.warning("%s", text)
            self.audit.add_limitations(found)

    def aggregate_fit(
        self, server_round: int, results: Results, failures: Failures
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Let the inner strategy aggregate, then look."""
        if self._is_over:
            return self.strategy.aggregate_fit(server_round, results, failures)
        self.audit.replied(server_round, self._sent.replies(results))
        plain = [(proxy, _plain(res)) for proxy, res in results]
        failed = [f if isinstance(f, BaseException) else (f[0], _plain(f[1])) for f in failures]
        made = self.strategy.aggregate_fit(server_round, plain, failed)
        model = None if made[0] is None else record_of(made[0])
        self.audit.closed(server_round, model, MetricRecord(dict(scalars(made[1]))))
        return made

    def evaluate(
        self, server_round: int, parameters: Parameters
    ) -> tuple[float, dict[str, Scalar]] | None:
        """Note what the server measured."""
        made = self.strategy.evaluate(server_round, parameters=parameters)
        self._evaluated(made)
        return made

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Let the inner strategy choose; if it chooses nobody, the round is over."""
        made = self.strategy.configure_evaluate(
            server_round=server_round, parameters=parameters, client_manager=client_manager
        )
        if not made:
            self._finish_after(server_round)
        return made

    def aggregate_evaluate(
        self, server_round: int, results: Evaluations, failures: EvaluationFailures
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Note what the clients measured; the round is over."""
        made = self.strategy.aggregate_evaluate(server_round, results, failures)
        self._evaluated(made)
        self._finish_after(server_round)
        return made

    def _evaluated(self, made: tuple[float | None, Mapping[str, Scalar]] | None) -> None:
        if made is not None:
            measured = scalars({"loss": made[0], **(made[1] or {})})
            self.audit.evaluated(MetricRecord(dict(measured)))

    def _finish_after(self, server_round: int) -> None:
        if server_round >= self._num_rounds:
            self.finish()

    def finish(self) -> None:
        """Let the auditors report; for a server with its own loop, which may end otherwise."""
        self._is_over = True
        _finish(self.audit, self._num_rounds)


def _finish(audit: RunAudit, num_rounds: int) -> None:
    """Report, once."""
    if audit.has_begun:
        audit.finish(num_rounds)


def _plain(res: FitRes) -> FitRes:
    """Return a result without our answers."""
    return replace(res, metrics=without_our_scalars(res.metrics))


@dataclass(frozen=True)
class _Sent:
    """The instructions of a round, and the same as messages; delivers messages of auditors.

    Attributes:
        server_round: Its number.
        made: What the strategy instructs.
        messages: The same in our records.
        nodes: All clients that are known, whether they take part or not.
    """

    server_round: int = 0
    made: Sequence[tuple[ClientProxy, FitIns]] = ()
    messages: Sequence[Message] = ()
    nodes: Sequence[int] = ()

    @classmethod
    def of(cls, server_round: int, made: Instructions, manager: ClientManager) -> _Sent:
        """Translate the instructions of a round."""
        nodes = _node_ids([*manager.all(), *(proxy.cid for proxy, _ in made)])
        records = {id(ins.parameters): record_of(ins.parameters) for _, ins in made}
        messages = [
            Message(
                RecordDict({"arrays": records[id(ins.parameters)]}),
                dst_node_id=nodes[proxy.cid],
                message_type="train",
            )
            for proxy, ins in made
        ]
        return cls(server_round, made, messages, tuple(nodes.values()))

    def instructions(self) -> Instructions:
        """Return the instructions with the orders; those without one are the same objects."""
        pairs = zip(self.made, self.messages, strict=True)
        return [(proxy, _with_orders(ins, message)) for (proxy, ins), message in pairs]

    def replies(self, results: Iterable[tuple[ClientProxy, FitRes]]) -> list[Message]:
        """Return results as messages."""
        asked = {proxy.cid: m for (proxy, _), m in zip(self.made, self.messages, strict=True)}
        return [_reply(asked[proxy.cid], res) for proxy, res in results if proxy.cid in asked]

    def get_node_ids(self) -> list[int]:
        """Return all clients."""
        return list(self.nodes)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Let clients of the round train once more."""
        return [self._send(message, timeout) for message in messages]

    def _send(self, message: Message, timeout: float | None) -> Message:
        to, pairs = message.metadata.dst_node_id, zip(self.made, self.messages, strict=True)
        proxy, ins = next(made for made, sent in pairs if sent.metadata.dst_node_id == to)
        arrays = wire.arrays(message.content).values()
        tensors = Parameters([array.data for array in arrays], ins.parameters.tensor_type)
        again = replace(ins, parameters=tensors)
        try:
            res = proxy.fit(_with_orders(again, message), timeout, self.server_round)
        except Exception as error:  # as in Flower, whatever a client raises is a failure
            return Message(Error(_CLIENT_APP_RAISED, str(error)), reply_to=message)
        return _reply(message, res)


def _node_ids(cids: Iterable[str]) -> dict[str, int]:
    """Return a number for each client: its node id, where Flower names clients by that."""
    known = sorted(set(cids))
    return {cid: int(cid) if cid.isdecimal() else place for place, cid in enumerate(known, 1)}


def _with_orders(ins: FitIns, message: Message) -> FitIns:
    """Return the instructions of one client with our records of its message.

    Strategies share one `FitIns` among all clients, so it is copied.
    """
    orders = as_scalars(message.content)
    return replace(ins, config={**ins.config, **orders}) if orders else ins


def _reply(message: Message, res: FitRes) -> Message:
    """Return the reply that a result stands for."""
    weight = MetricRecord({wire.WEIGHT: wire.as_float(res.num_examples)})
    content = RecordDict({"arrays": record_of(res.parameters), "metrics": weight})
    content.update(from_scalars(res.metrics, ConfigRecord))
    return Message(content, reply_to=message)


# Apps that nobody has changed.

# Given a strategy and the number of rounds, the same with an audit around it.
Audit: TypeAlias = Callable[[Strategy, int], LegacyAudited]


def audited_components(components: ServerAppComponents, audit: Audit) -> ServerAppComponents:
    """Return what a `server_fn` has returned, with the strategy audited.

    Args:
        components: A server of its own keeps its loop and gets the audited strategy.
        audit: Makes the audit.
    """
    num_rounds = (components.config or ServerConfig()).num_rounds
    if (server := components.server) is not None:
        server.set_strategy(_audited(server.strategy, num_rounds, audit))
        return components
    strategy = components.strategy or FedAvg()  # as Flower does
    return replace(components, strategy=_audited(strategy, num_rounds, audit))


def _audited(strategy: Strategy, num_rounds: int, audit: Audit) -> Strategy:
    return strategy if isinstance(strategy, LegacyAudited) else audit(strategy, num_rounds)


@contextmanager
def legacy_apps_audited(audit: Audit) -> Iterator[None]:
    """Audit the legacy apps that are made in this block, by importing their modules.

    `ClientApp(client_fn=…)` gets `canary_mod` behind its own mods; the strategy of
    `ServerApp(server_fn=…)` is audited when the app runs. Other apps stay as they are.

    Args:
        audit: Makes the audit.

    Example:
        made = []
        def audit(strategy, num_rounds):
            made.append(LegacyAudited(strategy, auditors, num_rounds=num_rounds, out=out))
            return made[-1]
        with legacy_apps_audited(audit):
            apps = import_module("mine.server_app").app, import_module("mine.client_app").app
        run_inline(*apps, 10)
        made[0].finish()
    """
    of_client, of_server = ClientApp.__init__, ServerApp.__init__

    @wraps(of_client)
    def make_client(self: ClientApp, client_fn: Any = None, mods: list[Any] | None = None) -> None:
        listed = list(mods or [])
        is_new = client_fn is not None and canary_mod not in listed
        of_client(self, client_fn, [*listed, canary_mod] if is_new else mods)

    @wraps(of_server)
    def make_server(
        self: ServerApp,
        server: Any = None,
        config: Any = None,
        strategy: Any = None,
        client_manager: Any = None,
        server_fn: Any = None,
    ) -> None:
        parts = (server, config, strategy, client_manager)
        if server_fn is not None:
            of_server(self, *parts, server_fn=_audited_fn(server_fn, audit))
        elif any(parts):  # as apps were written before there was a server_fn
            of_server(self, server_fn=_audited_fn(lambda _: ServerAppComponents(*parts), audit))
        else:
            of_server(self)

    ClientApp.__init__, ServerApp.__init__ = make_client, make_server  # type: ignore[method-assign]
    try:
        yield
    finally:
        ClientApp.__init__, ServerApp.__init__ = of_client, of_server  # type: ignore[method-assign]


def _audited_fn(
    server_fn: Callable[[Context], ServerAppComponents], audit: Audit
) -> Callable[[Context], ServerAppComponents]:
    return lambda context: audited_components(server_fn(context), audit)
