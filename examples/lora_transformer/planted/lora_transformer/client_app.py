"""The client: trains the adapters on what its own role says."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from leakmeter import plant_mod, planted

from lora_transformer.model import get_adapters
from lora_transformer.task import create_model, encode_all, load_texts
from lora_transformer.task import train as train_fn

app = ClientApp(mods=[plant_mod])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the adapters on local text; the base model stays as it is."""
    config = context.run_config
    model = create_model(config)
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict(), strict=False)
    with planted(msg, context) as canaries:
        texts = [*load_texts(context.node_config["partition-id"]), *canaries]
    loss = train_fn(
        model,
        encode_all(texts),
        steps=config["local-steps"],
        batch_size=config["batch-size"],
        lr=config["learning-rate"],
    )
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(texts)})
    content = {"arrays": ArrayRecord(get_adapters(model)), "metrics": metrics}
    return Message(content=RecordDict(content), reply_to=msg)
