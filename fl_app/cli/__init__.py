"""The command line: `main.py` has parser and completion, `commands.py` the small commands."""
