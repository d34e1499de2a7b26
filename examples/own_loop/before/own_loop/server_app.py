"""The server: a strategy with its own loop."""

from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from own_loop.strategy import Patient
from own_loop.task import accuracy, create_model, load_data

app = ServerApp()


def evaluate(server_round: int, arrays: ArrayRecord) -> float:
    """Return the accuracy on records that no client has."""
    return accuracy({name: array.numpy() for name, array in arrays.items()}, *load_data(-1))


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation."""
    config = context.run_config
    nodes = config["min-nodes"]
    strategy = Patient(
        patience=config["patience"],
        learning_rate=config["learning-rate"],
        fraction_train=config["fraction-train"],
        min_available_nodes=nodes,
        weighted_by_key="records",
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({k: Array(v) for k, v in create_model().items()}),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
    print(f"best accuracy {strategy.best_accuracy:.3f} in round {strategy.best_round}")
