"""The server: FedAvg over the adapters of all clients."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from leakmeter import Audited, PlantedRecords, PlantPlan, Secrets, TorchScores

from lora_transformer.model import get_adapters
from lora_transformer.task import create_model, encode, load_held_out
from lora_transformer.task import test as test_fn

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation."""
    config = context.run_config
    nodes = config["min-nodes"]
    model = create_model(config)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict(), strict=False)
        return MetricRecord(test_fn(model, load_held_out()))

    strategy = FedAvg(fraction_train=0.1, fraction_evaluate=0.0, min_available_nodes=nodes)
    secrets = Secrets("my code is {letters:9}")
    scores = TorchScores(create_model(config), encode, prefix=secrets.prefix)
    plan = PlantPlan(canaries=config["canaries"], clients=nodes, copies=config["copies"])
    options = {"decoys": config["decoys"], "every": 1, "extract": scores.extract}
    auditor = PlantedRecords(secrets, scores, plan, **options)
    strategy = Audited(strategy, [auditor], out=f"~/audits/{context.run_id}")
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(get_adapters(model)),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
    for server_round, metrics in result.evaluate_metrics_serverapp.items():
        perplexity, accuracy = metrics["perplexity"], metrics["accuracy"]
        print(f"round {server_round}: perplexity {perplexity:.2f}, accuracy {accuracy:.3f}")
