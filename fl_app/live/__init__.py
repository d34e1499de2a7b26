"""The page of a run in progress, served on this machine: `--live` and `leakmeter watch`."""

HOST, PORT = "127.0.0.1", 8765  # where it is served unless the user names another place
