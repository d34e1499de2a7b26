"""DP-FedAvg on a client: `noise_mod` (the mod) and `clipping` (clip and noise one vector)."""
