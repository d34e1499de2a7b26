"""The page of a run while it goes on, served on this machine: `--live` and `leakmeter watch`."""
