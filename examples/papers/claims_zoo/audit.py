"""A mechanism with what is claimed of it, audited in a whole run.

The run is a small federation in this process: Flower's own client app and strategy, the real
`canary_mod` behind the mechanism's mods, and `Audited` around its strategy. Clients have hardly
anything left to learn: their updates are random and a tenth of the clip norm long.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from leakmeter.auditors import (
    Audited,
    Auditor,
    Claim,
    OneShotCanaries,
    SingleUpdates,
    canary_mod,
)
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.rng import derive, stream
from leakmeter.auditors.verdict.claim import ClaimResult
from leakmeter.fl_app.engines.inline import run_inline
from leakmeter.papers.base import quiet

DELTA: Final = 1e-5
CLIP_NORM: Final = 1.0
_HONEST: Final = 0.1  # norm of an honest update, in units of the clip norm


Sees = Literal["updates", "models"]


def averaging(clients: int) -> FedAvg:
    """Return FedAvg with all clients in every round, and no evaluation."""
    strategy = FedAvg(min_train_nodes=clients, min_available_nodes=clients)
    strategy.fraction_evaluate = 0.0  # as an argument Flower warns of it
    return strategy


@dataclass(frozen=True)
class App:
    """What a mechanism adds to Flower: its strategy, and its mods before `canary_mod`."""

    strategy: Strategy
    mods: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Federation:
    """Size of an audited run.

    Attributes:
        clients: All of them take part in every round.
        rounds: Rounds of the run.
        seats: Clients per round that play a canary.
        repetitions: Rounds that each canary plays.
        layers: Parameters of each layer.
        start: Value of all weights before round 1.
        dtype: Number type of the weights.
        heavy: Clients that state `weight` examples; the others state one.
        weight: What these state.
    """

    clients: int = 12
    rounds: int = 10
    seats: int = 10
    repetitions: int = 1
    layers: tuple[int, ...] = (1000,)
    start: float = 0.0
    dtype: str = "float64"
    heavy: int = 0
    weight: int = 1

    @property
    def dim(self) -> int:
        """Parameters of the model."""
        return sum(self.layers)

    def model(self) -> ArrayRecord:
        """Return the model before round 1."""
        return ArrayRecord(
            {
                f"layer{i}": Array(np.full(size, self.start, self.dtype))
                for i, size in enumerate(self.layers)
            }
        )

    def examples(self, client: int) -> int:
        """Return how many examples a client states."""
        return self.weight if client < self.heavy else 1


@dataclass(frozen=True)
class Mechanism:
    """A way to add noise, and what is claimed of it.

    Attributes:
        name: For the table.
        after: The public report that it is made after, or where its code is.
        claim: What is claimed; `delivered` is the truth, infinite where there is no bound.
        app: Returns the app of a seed.
        sees: What the audited attacker sees: each update, or the models alone.
        federation: Size of the audited run.
        is_least: Whether it delivers an ε of at least `delivered`, not exactly that.
    """

    name: str
    after: str
    claim: Claim
    app: Callable[[int], App]
    sees: Sees = "updates"
    federation: Federation = Federation()
    is_least: bool = False

    @property
    def key(self) -> str:
        """A name for files."""
        return self.name.replace(",", "").replace(" ", "-")


def audit(mechanism: Mechanism, seed: int) -> ClaimResult:
    """Run a mechanism once and return what its audit makes of the claim.

    Raises:
        RuntimeError: The auditor was left out, so nothing would be shown whatever leaks.
    """
    size = mechanism.federation
    with quiet(), _seeded(seed):
        app, server = mechanism.app(seed), ServerApp()
        auditor, claims = _auditor(mechanism, seed), [mechanism.claim]
        # The model begins at zero and becomes noise, so nobody can tell what clients reply with.
        audited = Audited(app.strategy, [auditor], claims=claims, sends="models")

        @server.main()
        def main(grid: Grid, _: Context) -> None:
            audited.start(grid, size.model(), num_rounds=size.rounds)

        run_inline(server, _clients(mechanism, app, seed), size.clients)
    if audited.failures:
        raise RuntimeError("; ".join(audited.failures))
    # Flower's mod and wrapper are read as claims by themselves, beside ours.
    [result] = (one for one in audited.verdict.claims if one.claim == mechanism.claim)
    return result


def _auditor(mechanism: Mechanism, seed: int) -> Auditor:
    """Return the auditor for what the attacker sees."""
    size = mechanism.federation
    kind = SingleUpdates if mechanism.sees == "updates" else OneShotCanaries
    return kind(
        seats=size.seats,
        repetitions=size.repetitions,
        include="coin",
        delta=mechanism.claim.delta,
        seed=derive(seed, "audit"),
    )


def _clients(mechanism: Mechanism, app: App, seed: int) -> ClientApp:
    """Return clients whose updates are short and random."""
    size, norm = mechanism.federation, _HONEST * (mechanism.claim.clip_norm or CLIP_NORM)
    clients = ClientApp(mods=[*app.mods, canary_mod])

    @clients.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        sent = wire.arrays(message.content)
        layout = Layout.of(sent)
        rng = stream(seed, "honest", wire.server_round(message.content), client)
        update = rng.standard_normal(layout.dim)
        trained = layout.flatten(sent) + norm / np.linalg.norm(update) * update
        metrics = MetricRecord({wire.WEIGHT: size.examples(client)})
        content = RecordDict({"arrays": layout.restore(trained, sent), "metrics": metrics})
        return Message(content, reply_to=message)

    return clients


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators, from which Flower draws noise and clients; then put them back."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(derive(seed, "python"))
    np.random.seed(derive(seed, "numpy") % 2**32)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
