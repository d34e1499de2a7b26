"""The command line: `main.py` has the parser, the other modules one command each."""
