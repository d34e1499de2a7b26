"""Runs federated learning and measures what its aggregates leak; see --help."""

import sys

from leakmeter.fl_app.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
