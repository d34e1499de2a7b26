"""The client: one pass over its own digits."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from leakmeter import canary_mod

from logistic_sklearn.task import CLASSES, create_model, get_arrays, load_data, set_arrays

app = ClientApp(mods=[canary_mod])


def _load(msg: Message, context: Context):
    model = create_model(context.run_config["learning-rate"])
    set_arrays(model, msg.content["arrays"])
    data = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    return model, *data


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    model, x, y = _load(msg, context)
    model.partial_fit(x, y, classes=CLASSES)
    metrics = MetricRecord({"train_accuracy": model.score(x, y), "num-examples": len(y)})
    content = RecordDict({"arrays": get_arrays(model), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on local data."""
    model, x, y = _load(msg, context)
    metrics = MetricRecord({"accuracy": model.score(x, y), "num-examples": len(y)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
