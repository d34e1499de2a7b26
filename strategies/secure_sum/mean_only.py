"""Which of Flower's strategies cannot do with the mean alone, and why."""

from __future__ import annotations

from flwr.serverapp.strategy import Strategy

from leakmeter.auditors.hook.wrapper import foreigners

# By name, since not every release has all of them.
_NEED_REPLIES = {
    "Bulyan": "it compares single updates",
    "DifferentialPrivacyClientSideAdaptiveClipping": "it reads a bit of each client in clear",
    "DifferentialPrivacyServerSideAdaptiveClipping": "it clips single updates on the server",
    "DifferentialPrivacyServerSideFixedClipping": "it clips single updates on the server",
    "FedMedian": "a median is no weighted mean",
    "FedTrimmedAvg": "trimming needs single updates",
    "FedXgbBagging": "trees are no vectors to be added",
    "FedXgbCyclic": "trees are no vectors to be added",
    "Krum": "it compares single updates",
    "MultiKrum": "it compares single updates",
    "QFedAvg": "its weights depend on each client's loss",
}


def check_mean_only(strategy: Strategy) -> None:
    """Raise with the reason if a strategy in the chain needs more than the weighted mean."""
    for held in foreigners(strategy):
        for name, reason in _NEED_REPLIES.items():
            if name in held.kinds:
                raise TypeError(
                    f"strategy must need only the weighted mean inside Masked, got {name}: {reason}"
                )
