"""Whatever a signed client's app does, its answer has the form that it has after good training."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from leakmeter.auditors import canary_mod, tap_mod
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.canary_order import Order
from leakmeter.clients import MaskMod, NoiseMod
from leakmeter.clients.secure_sum.signing import Identity
from leakmeter.fl_app.engines.inline import run_inline
from leakmeter.papers.active_server import oracle
from leakmeter.papers.active_server.attacks import changed
from leakmeter.papers.active_server.federation import Federation
from leakmeter.papers.active_server.oracle import SHAPE
from leakmeter.papers.active_server.server import TARGET, Attack, Ending, Opened, Server
from leakmeter.papers.base import within_a_run

Behaviour = Callable[[Message, Context], Message]
LOSS: dict[str, Any] = {
    "metric-names": ["train-loss"],
    "metric-lows": [0.0],
    "metric-highs": [1.0],
}
ORDER: dict[str, Any] = {"round": 1, "weight-key": wire.WEIGHT}
LARGEST = float(np.finfo(np.float64).max)
PROMISED: dict[str, Any] = {
    "mechanism": "full",
    "clip-norm": 1.0,
    "batch-size": 1,
    "examples": 4,
    "lr": 1e-200,
    "sigma2": 1e308,
    "steps": 10,
}


class _Panic(BaseException):
    """Like what libraries in Rust raise, which is no `Exception`."""


def good(message: Message, _: Context) -> Message:
    arrays = {n: Array(a.numpy()) for n, a in wire.arrays(message.content).items()}
    metrics = MetricRecord({wire.WEIGHT: 4, "train-loss": 0.5})
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    return Message(content, reply_to=message)


def failing(*_: Any) -> Message:
    raise ValueError("no such class among 41 images")


def panicking(*_: Any) -> Message:
    raise _Panic


def huge_metric(message: Message, context: Context) -> Message:
    reply = good(message, context)
    reply.content.metric_records["metrics"]["train-loss"] = 10**400
    return reply


def odd_state(message: Message, context: Context) -> Message:
    context.state = None  # type: ignore[assignment]
    return good(message, context)


def speaking(message: Message, context: Context) -> Message:
    reply = good(message, context)
    reply.content[wire.CANARY] = ConfigRecord({"outcome": "played", "outer": "is_ill"})
    return reply


def upwards(message: Message, context: Context) -> Message:
    reply = good(message, context)
    moved = {n: Array(a.numpy() + 1e300) for n, a in wire.arrays(message.content).items()}
    reply.content["arrays"] = ArrayRecord(moved)
    return reply


def filling(message: Message, context: Context) -> Message:
    reply = good(message, context)
    reply.content[wire.FILLED] = ConfigRecord(PROMISED)
    return reply


def nothing(_: RecordDict) -> Mapping[str, Any]:
    return {}


def greeted(_: RecordDict) -> Mapping[str, Any]:
    return {wire.CANARY: Order(None).to_record()}


def clipped(content: RecordDict) -> Mapping[str, Any]:
    order: dict[str, Any] = {**ORDER, "clip-norm": 1.0, "share-std": 0.0}
    summed: dict[str, Any] = {**content.config_records[wire.SUM_ORDER], **LOSS}
    return {wire.NOISE: ConfigRecord(order), wire.SUM_ORDER: ConfigRecord(summed)}


def at_the_end_of_float64(content: RecordDict) -> Mapping[str, Any]:
    model = {n: Array(np.full(a.shape, LARGEST - 1e300)) for n, a in wire.arrays(content).items()}
    order: dict[str, Any] = {**ORDER, "clip-norm": 1e307, "share-std": 1e293}
    summed: dict[str, Any] = {**content.config_records[wire.SUM_ORDER], "max-weight": 1.0}
    return {
        "arrays": ArrayRecord(model),
        wire.NOISE: ConfigRecord(order),
        wire.SUM_ORDER: ConfigRecord(summed),
    }


def filled(_: RecordDict) -> Mapping[str, Any]:
    return {wire.FILLED: ConfigRecord({**ORDER, **PROMISED})}


def inside_another(message: Message, context: Context, call_next: Any) -> Message:
    return canary_mod(message, context, call_next)


class _Behaving(oracle.Talkative):
    """Its target's app does what a test says."""

    behaviour: Behaviour = staticmethod(good)

    def _train(self, message: Message, context: Context) -> Message:
        chosen = self.behaviour if context.node_id == TARGET else good
        return chosen(message, context)


def answers(
    behaviour: Behaviour,
    asked: Callable[[RecordDict], Mapping[str, Any]],
    mods: list[Any] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> list[Any]:
    monkeypatch.setattr(oracle, "asked", lambda _trial, _of, content: asked(content))

    def play() -> list[Any]:
        clients = _Behaving(oracle.SHAPE, "active")
        clients.behaviour = behaviour
        if mods is not None:
            clients.app = ClientApp(mods=[clients.app._mods[0], *mods])
            clients.app.train()(clients._train)
        return oracle.Questioner(clients).answers_of(0)

    return within_a_run(play)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize(
    ("behaviour", "asked", "mods"),
    [
        (panicking, nothing, None),
        (panicking, clipped, None),
        (odd_state, nothing, None),
        (huge_metric, clipped, None),
        (upwards, at_the_end_of_float64, None),
        (filling, filled, None),
        (speaking, nothing, []),
        (failing, greeted, [functools.partial(canary_mod)]),
        (failing, greeted, [inside_another]),
    ],
)
def test_what_the_app_does_cannot_be_read_from_the_answers(
    behaviour: Behaviour,
    asked: Callable[[RecordDict], Mapping[str, Any]],
    mods: list[Any] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, found = (answers(one, asked, mods, monkeypatch) for one in (good, behaviour))
    assert dict(found)["train"][0][0] == "arrays"
    assert found == expected


# A server that could choose who sends nothing would read the update of who is left.


def _kept(server: Server, message: Message) -> Message:
    """Order all others to keep their update, in a form that their tap_mod refuses."""
    if wire.SUM_ORDER in message.content and message.metadata.dst_node_id != TARGET:
        message = changed(message, {wire.TAP: MetricRecord({"round": 0.5})})
    return server.deliver(message)


def _limited(largest: float, server: Server, message: Message) -> Message:
    """Let a sum have room for the weight of the target and of no other."""
    if wire.SUM_ORDER in message.content:
        order: dict[str, Any] = dict(message.content.config_records[wire.SUM_ORDER])
        changes = {wire.SUM_ORDER: ConfigRecord({**order, "max-weight": largest})}
        message = changed(message, changes)
    return server.deliver(message)


class _Weighted(Federation):
    """Its target has another weight than all others."""

    def __init__(self, own: int, other: int) -> None:
        super().__init__(SHAPE, "active")
        self._weights = {TARGET: own}, other
        self.deal(0)
        tapped: list[Any] = [self.app._mods[0], NoiseMod(required=False), tap_mod, canary_mod]
        self.app = ClientApp(mods=tapped)
        self.app.train()(self._train)

    def _train(self, message: Message, context: Context) -> Message:
        reply, (known, other) = super()._train(message, context), self._weights
        weight = known.get(context.node_id, other)
        reply.content["metrics"] = MetricRecord({wire.WEIGHT: weight})
        return reply


@pytest.mark.parametrize(
    ("bend", "own", "other", "largest"),
    [
        (_kept, 4, 4, 4.0),
        (functools.partial(_limited, 1.0), 1, 9, 1.0),
    ],
)
def test_a_server_cannot_choose_who_sends_nothing(
    bend: Callable[[Server, Message], Message], own: int, other: int, largest: float
) -> None:
    def end(ending: Ending) -> Opened | None:
        quantiser = replace(ending._current.quantiser, max_weight=largest)
        ending._current = replace(ending._current, quantiser=quantiser)
        return ending.open_all()

    def play() -> list[float]:
        clients = _Weighted(own, other)
        opened, _ = Server(clients, Attack("choice", "chooses", bend, end)).play()
        if opened is None:
            return []
        length = float(np.linalg.norm(opened.vector)) or 1.0
        update = clients.truth[TARGET]
        return [float(opened.vector @ update / length / np.linalg.norm(update))]

    assert not [cosine for cosine in within_a_run(play) if abs(cosine) > 0.99]


class _Keeps(NumPyClient):
    """Hands its local model to whoever asks."""

    def get_parameters(self, config: Any) -> Any:
        return [np.ones(3)]

    def get_properties(self, config: Any) -> Any:
        return {"patients": 41}


@pytest.mark.parametrize(
    ("is_signed", "kind"),
    [(True, "get_parameters"), (True, "get_properties"), (False, "get_parameters")],
)
def test_a_client_that_masks_hands_out_no_model_by_messages_of_older_releases(
    tmp_path: Path, is_signed: bool, kind: str
) -> None:
    keys = [Identity.create(tmp_path / str(i)) for i in range(3)]
    lines = [key.line for key in keys]
    mod = MaskMod(identity=keys[0], trusted=lines) if is_signed else MaskMod()
    app, server = ClientApp(lambda _: _Keeps().to_client(), mods=[mod]), ServerApp()
    reasons: list[str] = []

    @server.main()
    def _main(grid: Grid, _: Context) -> None:
        name = f"{kind.replace('_', '')}ins.config"
        content = RecordDict({name: ConfigRecord()})
        for reply in grid.send_and_receive([Message(content, 1, kind)]):
            reasons.append(str(reply.error.reason) if reply.has_error() else "answered")

    run_inline(server, app, 1)
    assert "RefusedError: this client" in reasons[0]
