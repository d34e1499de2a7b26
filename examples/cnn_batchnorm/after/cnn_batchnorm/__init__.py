"""A small CNN with BatchNorm learns handwritten digits with FedAvg."""
