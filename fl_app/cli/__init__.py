"""The command line: `main.py` has the parser, each other module one command."""
