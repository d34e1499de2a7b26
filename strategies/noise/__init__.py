"""DP-FedAvg on the server: `noised` (the wrapper) and `reply` (what it reads from replies)."""
