"""The server: FedAvg over all clients."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from leakmeter import Audited, OneShotCanaries

from cnn_batchnorm.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation."""
    config = context.run_config
    nodes = config["min-nodes"]
    strategy = FedAvg(
        fraction_evaluate=config["fraction-evaluate"],
        min_train_nodes=nodes,
        min_available_nodes=nodes,
    )
    strategy = Audited(strategy, [OneShotCanaries(seats=4)], out=f"~/audits/{context.run_id}")
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
    )
    print(f"accuracy on clients: {result.evaluate_metrics_clientapp}")
