"""Whether the answers of clients depend on their data: a server that reads answers needs no sum.

Bleichenbacher 1998, Chosen Ciphertext Attacks against Protocols Based on RSA (CRYPTO), and AlFardan
and Paterson 2013, Lucky Thirteen (S&P): protocols whose mathematics held were read by whether and
how the other side complains. Here the server bisects limits, names metrics as weights, and crafts
models that overflow for some data. Every question is put to the same client with two data sets,
and the answers are compared: whether there is one, its code, text, records, types and sizes. The
bytes of keys, boxes and masked vectors are random, and time is not compared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from leakmeter.auditors.auditor import Canary
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.canary_order import Order
from leakmeter.auditors.rng import stream
from leakmeter.papers.active_server.federation import SEED, Federation, Shape, to_record
from leakmeter.papers.active_server.perceptron import CLASSES, Batch, Weights
from leakmeter.papers.active_server.server import TARGET, Attack, Ending, Server
from leakmeter.papers.base import within_a_run

# Four clients, the least that a threshold of three leaves a choice.
SHAPE = Shape(clients=4, threshold=3)
_MAX_IMAGES = 12
_LOSS = "train-loss"

Form = tuple[object, ...]
Values = dict[str, Any]  # of a record
# Records of a train message to what a question puts in their place.
Question = Callable[[np.random.Generator, Federation, RecordDict], Mapping[str, Any]]


class Talkative(Federation):
    """Clients whose training depends on their data in every way that a server could ask for.

    They state their number of images and their loss, and fail where they lack a class or have many.
    """

    def hold(self, trial: int, world: int) -> None:
        """Give the target other images in each world, and the others the same in both."""
        for node in self.shape.honest:
            rng = stream(SEED, "oracle", trial, node, world if node == TARGET else 0)
            size = int(rng.integers(1, _MAX_IMAGES + 1))
            own = rng.choice(len(self._images), size, replace=False)
            self.batches[node] = Batch(self._images[own], self._labels[own])

    def _train(self, message: Message, context: Context) -> Message:
        batch = self.batches[context.node_id]
        config = message.content.config_records[wire.CONFIG]
        wanted = config.get("class")
        if wanted is not None and wanted not in batch.labels:
            raise KeyError(f"no image of class {wanted!r} among {len(batch.labels)}")
        if "most" in config and len(batch.labels) > wire.get_int(config, "most"):
            raise MemoryError(f"{len(batch.labels)} images are too many")
        (sent,) = wire.arrays(message.content).to_numpy_ndarrays()
        with np.errstate(all="ignore"):
            trained = self.network.step(sent, batch, wire.get_float(config, "lr"))
            loss = float(np.abs(trained.astype(np.float64) - sent).sum())
        metrics = MetricRecord({wire.WEIGHT: len(batch.labels), _LOSS: loss})
        return Message(
            RecordDict({"arrays": to_record(trained), "metrics": metrics}), reply_to=message
        )


def _limits(rng: np.random.Generator, _: Federation, content: RecordDict) -> Mapping[str, Any]:
    """Ask the sum and the app how many images a client has, and how far its update reaches."""
    order, config = (content.config_records[key] for key in (wire.SUM_ORDER, wire.CONFIG))
    most = int(rng.integers(3, _MAX_IMAGES - 2))
    largest, reach = {"max-weight": most + 0.0}, {"clip-range": float(10.0 ** rng.uniform(-9, 9))}
    summed = ConfigRecord({**order, **(largest if rng.random() < 0.7 else reach)})
    return {wire.SUM_ORDER: summed, wire.CONFIG: ConfigRecord({**config, "most": most})}


def _weights(rng: np.random.Generator, _: Federation, content: RecordDict) -> Mapping[str, Any]:
    """Name another metric as the weight, or one that may not be there as part of the sum."""
    order = content.config_records[wire.SUM_ORDER]
    key = str(rng.choice([_LOSS, "nothing", wire.WEIGHT]))
    name = str(rng.choice([_LOSS, "accuracy"]))
    inside: Values = {
        "metric-names": [name],
        "metric-lows": [0.0],
        "metric-highs": [float(rng.random())],
    }
    return {wire.SUM_ORDER: ConfigRecord({**order, "weight-key": key, **inside})}


def _models(rng: np.random.Generator, of: Federation, _: RecordDict) -> Mapping[str, Any]:
    """Send a model that overflows where a pixel is bright, or everywhere, or is not finite."""
    crafted: dict[str, Callable[[], Weights]] = {
        "bright": lambda: _bright(of, int(rng.integers(of.network.pixels))),
        "large": lambda: of.weights * np.float32(10.0 ** rng.uniform(0, 37)),
        "odd": lambda: np.full_like(of.weights, rng.choice([np.nan, np.inf, 3e38])),
    }
    return {"arrays": to_record(crafted[str(rng.choice(list(crafted)))]())}


def _bright(of: Federation, pixel: int) -> Weights:
    """Return a model whose first unit overflows for an image with this pixel, and for no other."""
    crafted = np.zeros_like(of.weights)
    crafted[pixel] = np.float32(3e38)
    second = of.network.parts(crafted)[2]
    second[:, 0] = np.linspace(-1e38, 1e38, CLASSES)
    return crafted


def _settings(rng: np.random.Generator, _: Federation, content: RecordDict) -> Mapping[str, Any]:
    """Ask for a class, or for a step that may diverge."""
    config: Values = dict(content.config_records[wire.CONFIG])
    if rng.random() < 0.5:
        config["class"] = int(rng.integers(CLASSES))
    else:
        config["lr"] = float(rng.choice([1e30, 1e300, -1.0, 0.0]))
    return {wire.CONFIG: ConfigRecord(config)}


def _noises(rng: np.random.Generator, _: Federation, content: RecordDict) -> Mapping[str, Any]:
    """Order noise, so little that clipping shows, or noise for more records than there are."""
    order = content.config_records[wire.SUM_ORDER]
    std = float(10.0 ** rng.uniform(-6, 1))
    about: Values = {"round": 1, "weight-key": wire.WEIGHT}
    if rng.random() < 0.3:
        promised: Values = {
            "mechanism": "water-filling",
            "sigma2": std,
            "batch-size": 1,
            "steps": 1,
        }
        promised |= {"examples": int(rng.integers(1, _MAX_IMAGES)), "clip-norm": 1.0, "lr": 0.1}
        return {wire.FILLED: ConfigRecord({**about, **promised})}
    kind = str(rng.choice(["gaussian", "skellam", "discrete-gaussian"]))
    whole = {} if kind == "gaussian" else {"noise-distribution": kind}
    summed = {"noise-std": std, "max-weight": 1.0, "clip-range": float(10.0 ** rng.uniform(-3, 3))}
    clip: Values = {
        "clip-norm": float(10.0 ** rng.uniform(-3, 3)),
        "share-std": std,
        "distribution": kind,
    }
    return {
        wire.NOISE: ConfigRecord({**about, **clip}),
        wire.SUM_ORDER: ConfigRecord({**order, **summed, **whole}),
    }


def _instruments(rng: np.random.Generator, of: Federation, _: RecordDict) -> Mapping[str, Any]:
    """Let seats play canaries of the length of their update, ask for an answer, mark a replay."""
    canary = Canary(1, seed=int(rng.integers(2**62)), included=bool(rng.integers(2)))
    order = Order(canary if rng.random() < 0.7 else None)
    found: dict[str, Any] = {wire.CANARY: order.to_record()}
    if order.canary is not None:
        found[wire.SEATS] = wire.seats_record(of.shape.honest)
    if rng.random() < 0.3:
        found[wire.REPLAY] = wire.replay_record(1)
    return found


QUESTIONS: tuple[Question, ...] = (_limits, _weights, _models, _settings, _noises, _instruments)


def asked(trial: int, of: Federation, content: RecordDict) -> Mapping[str, Any]:
    """Return what a round asks, the same for all clients and in both worlds."""
    rng = stream(SEED, "question", trial)
    # Often two at once: a limit on a model that was crafted for it.
    chosen = rng.choice(len(QUESTIONS), size=int(rng.integers(1, 3)), replace=False)
    found: dict[str, Any] = {}
    for number in sorted(chosen):
        found |= QUESTIONS[number](rng, of, RecordDict({**content, **found}))
    return found


def form(reply: Message) -> Form:
    """Return all of an answer that is not random."""
    if reply.has_error():
        return ("error", reply.error.code, reply.error.reason)
    return tuple(
        (key, type(record).__name__, *_shape(record)) for key, record in reply.content.items()
    )


def _shape(record: Any) -> Iterator[object]:
    """Yield names, types and sizes; texts and truth values as they are."""
    for name, value in record.items():
        if isinstance(record, ArrayRecord):
            yield name, value.dtype, tuple(value.shape), len(value.data)
        elif isinstance(value, str | bool):
            yield name, value
        else:
            size = len(value) if isinstance(value, bytes | list) else None
            yield name, type(value).__name__, size


class Questioner(Server):
    """A server that asks one question a round; the clients' other data stay the same."""

    def __init__(self, federation: Talkative) -> None:
        super().__init__(federation, Attack("oracle", "reads answers", self._bent, self._end))
        self.trial = 0

    def _bent(self, _: Server, message: Message) -> Message:
        if wire.SUM_ORDER in message.content:
            changes = asked(self.trial, self.federation, message.content)
            message = Message(
                RecordDict({**message.content, **changes}), message.metadata.dst_node_id, "train"
            )
        return self.deliver(message)

    @staticmethod
    def _end(ending: Ending) -> None:
        """Go through the stages that follow, whatever the sum would be."""
        ending.ask(dict.fromkeys(ending.clients, ending.clients))

    def answers_of(self, trial: int) -> list[tuple[str, Form]]:
        """Return stage and form of all that the target has answered."""
        self.trial = trial
        self.play()
        own = [(s, r) for s, m, r in self.answers if m.metadata.dst_node_id == TARGET]
        return [(stage, form(reply)) for stage, reply in own]


@contextmanager
def _failures() -> Iterator[list[str]]:
    """Collect what clients write into their own logs when they have no update to send."""
    found: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "sends no update" in record.msg:
                found.append(record.getMessage())

    logger = logging.getLogger("flwr")
    before = logger.level, logger.handlers
    logger.setLevel(logging.ERROR)
    logger.handlers = [Keep()]
    try:
        yield found
    finally:
        logger.level, logger.handlers = before


def questioned(trials: int, shape: Shape = SHAPE) -> dict[str, int]:
    """Ask many questions of one client with two data sets each, and compare the answers.

    Returns:
        The "rounds" asked; those in which some "answers differ"; those in which training "failed
        once", with one of the two data sets: there an error would have told them apart; and those
        in which the client has "uploaded" something.
    """

    def play() -> dict[str, int]:
        found = {"rounds": trials, "answers differ": 0, "failed once": 0, "uploaded": 0}
        worlds = [Talkative(shape, "active") for _ in range(2)]
        servers = [Questioner(federation) for federation in worlds]
        for trial in range(trials):
            answers, failed = [], []
            for world, (federation, server) in enumerate(zip(worlds, servers, strict=True)):
                federation.hold(trial, world)
                with _failures() as reasons:
                    answers.append(server.answers_of(trial))
                failed.append(len(reasons))
            found["answers differ"] += answers[0] != answers[1]
            # The others fail alike in both worlds, so a difference is the target's.
            found["failed once"] += failed[0] != failed[1]
            found["uploaded"] += any(s == "train" and f[0] != "error" for s, f in answers[0])
        return found

    return within_a_run(play)
