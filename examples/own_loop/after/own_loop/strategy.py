"""FedAvg with its own loop: lower learning rates, the best model kept, an early stop."""

from collections.abc import Callable
from logging import INFO, getLogger

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

log = getLogger("flwr").log


class Patient(FedAvg):
    """Stops when the model has not become better for `patience` rounds."""

    def __init__(self, patience: int, learning_rate: float, **options) -> None:
        super().__init__(fraction_evaluate=0.0, **options)
        self.patience, self.learning_rate = patience, learning_rate
        self.best_accuracy, self.best_round = 0.0, 0

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int,
        evaluate_fn: Callable[[int, ArrayRecord], float],
    ) -> Result:
        """Run the rounds."""
        arrays, result = initial_arrays, Result(arrays=initial_arrays)
        for server_round in range(1, num_rounds + 1):
            config = ConfigRecord({"lr": self.learning_rate * 0.95**server_round})
            messages = self.configure_train(server_round, arrays, config, grid)
            replies = grid.send_and_receive(messages)
            new, metrics = self.aggregate_train(server_round, replies)
            if new is None:
                continue
            arrays = new
            result.train_metrics_clientapp[server_round] = metrics
            accuracy = evaluate_fn(server_round, arrays)
            log(INFO, "round %d: accuracy %.3f", server_round, accuracy)
            if accuracy > self.best_accuracy:
                self.best_accuracy, self.best_round = accuracy, server_round
                result.arrays = arrays
            elif server_round - self.best_round >= self.patience:
                break
        return result
