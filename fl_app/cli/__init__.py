"""The command line: `main.py` has the parser and its completion, each other module one command."""
