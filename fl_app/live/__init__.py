"""The page of a run in progress, served on this machine: `--live` and `leakmeter watch`."""
