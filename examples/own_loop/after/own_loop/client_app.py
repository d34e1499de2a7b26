"""The client: one pass over its own records."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from leakmeter import canary_mod

from own_loop.task import load_data
from own_loop.task import train as train_fn

app = ClientApp(mods=[canary_mod])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    model = {name: array.numpy() for name, array in msg.content["arrays"].items()}
    x, y = load_data(context.node_config["partition-id"])
    lr = msg.content["config"]["lr"]
    trained = train_fn(model, x, y, lr, context.run_config["batch-size"])
    arrays = ArrayRecord({name: Array(array) for name, array in trained.items()})
    metrics = MetricRecord({"records": len(y)})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)
