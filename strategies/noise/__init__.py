"""DP-FedAvg on the server: `mechanism` (who adds noise), `noised` (the wrapper), `reply`."""
