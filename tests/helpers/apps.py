"""Tiny Flower apps in a folder, as somebody else might write them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

PYPROJECT = """
[project]
name = "tiny"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = ["flwr"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "somebody"

[tool.flwr.app.components]
serverapp = "tiny.server_app:app"
clientapp = "tiny.client_app:app"

[tool.flwr.app.config]
num-server-rounds = 3
train.lr = 0.1
name = "plain"
"""
CLIENT = """
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def trained(message, context, rng):
    [model] = message.content["arrays"].to_numpy_ndarrays()
    new = model + context.run_config["train.lr"] * rng.normal(size=model.shape)
    metrics = MetricRecord({"num-examples": 1, "drawn": float(new[0])})
    content = RecordDict({"arrays": ArrayRecord([new]), "metrics": metrics})
    return Message(content, reply_to=message)


@app.train()
def train(message, context):
    return trained(message, context, np.random)
"""
FEDAVG = """
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = FedAvg(fraction_evaluate=0.0)
    rounds = context.run_config["num-server-rounds"]
    result = strategy.start(grid, ArrayRecord([np.zeros(300)]), num_rounds=rounds)
    np.save("final.npy", result.arrays.to_numpy_ndarrays()[0])
"""
OWN_LOOP = """
import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    model = np.zeros(300)
    for number in range(context.run_config["num-server-rounds"]):
        content = lambda: RecordDict({"arrays": ArrayRecord([model])})
        messages = [Message(content(), node, "train") for node in grid.get_node_ids()]
        replies = [r.content["arrays"] for r in grid.send_and_receive(messages)]
        model = np.mean([one.to_numpy_ndarrays()[0] for one in replies], axis=0)
"""
OWN_START = """
import pickle

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg, Result

app = ServerApp()


class Saving(FedAvg):
    def start(self, grid, initial_arrays, num_rounds, folder):
        arrays = initial_arrays
        for number in range(1, num_rounds + 1):
            sent = self.configure_train(number, arrays, ConfigRecord(), grid)
            arrays, _ = self.aggregate_train(number, grid.send_and_receive(sent, timeout=9))
            with open(f"{folder}-{number}", "wb") as file:
                pickle.dump(self, file)
        return Result(arrays=arrays)


@app.main()
def main(grid, context):
    rounds = context.run_config["num-server-rounds"]
    Saving(fraction_evaluate=0.0).start(grid, ArrayRecord([np.zeros(300)]), rounds, "strategy")
"""

LEGACY_CLIENT = """
import numpy as np
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp


class Client(NumPyClient):
    def fit(self, parameters, config):
        rng = np.random.default_rng(int(1e6 * abs(parameters[0][0])) % 97)
        return [parameters[0] + rng.normal(size=300)], 1, {}

    def evaluate(self, parameters, config):
        return 0.5, 1, {}


app = ClientApp(client_fn=lambda context: Client().to_client())
"""
LEGACY_SERVER = """
import numpy as np
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg


def server_fn(context):
    start = ndarrays_to_parameters([np.zeros(300)])
    strategy = FedAvg(initial_parameters=start, min_available_clients=6)
    rounds = context.run_config["num-server-rounds"]
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))


app = ServerApp(server_fn=server_fn)
"""


def app_in(folder: Path, client: str = CLIENT, server: str = FEDAVG, toml: str = PYPROJECT) -> Path:
    """Write an app into a folder and return it."""
    package = folder / "tiny"
    package.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(toml)
    (package / "__init__.py").write_text("")
    (package / "client_app.py").write_text(dedent(client))
    (package / "server_app.py").write_text(dedent(server))
    return folder
