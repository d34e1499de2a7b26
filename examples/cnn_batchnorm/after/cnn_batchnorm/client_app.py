"""The client: trains and evaluates on its own images."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from leakmeter import canary_mod

from cnn_batchnorm.task import Net, load_data
from cnn_batchnorm.task import test as test_fn
from cnn_batchnorm.task import train as train_fn

app = ClientApp(mods=[canary_mod])


def _load(msg: Message, context: Context):
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    partition_id = context.node_config["partition-id"]
    num_partitions = context.node_config["num-partitions"]
    return net, *load_data(partition_id, num_partitions, context.run_config["batch-size"])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    net, trainloader, _ = _load(msg, context)
    lr = msg.content["config"]["lr"]
    loss = train_fn(net, trainloader, context.run_config["local-epochs"], lr)
    metrics = {"train_loss": loss, "num-examples": len(trainloader.dataset)}
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on local data."""
    net, _, testloader = _load(msg, context)
    loss, accuracy = test_fn(net, testloader)
    metrics = {
        "eval_loss": loss,
        "accuracy": accuracy,
        "num-examples": len(testloader.dataset),
    }
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
