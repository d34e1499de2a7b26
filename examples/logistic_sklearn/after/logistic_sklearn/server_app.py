"""The server: FedAvg over all clients."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from leakmeter import Audited, passive

from logistic_sklearn.task import create_model, get_arrays

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation."""
    config = context.run_config
    nodes = config["min-nodes"]
    strategy = FedAvg(min_train_nodes=nodes, min_available_nodes=nodes)
    strategy = Audited(strategy, passive(seats=3), out=f"~/audits/{context.run_id}")
    result = strategy.start(
        grid=grid,
        initial_arrays=get_arrays(create_model(config["learning-rate"])),
        num_rounds=config["num-server-rounds"],
    )
    print(f"accuracy on clients: {result.evaluate_metrics_clientapp}")
