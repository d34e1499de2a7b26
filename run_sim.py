"""Runs federated learning and measures what its aggregates leak; see --help."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - older releases cannot import the rest
    print(
        f"error: Leakmeter needs Python 3.11 or newer, got {sys.version_info[0]}."
        f"{sys.version_info[1]}; start it with a newer one, such as python3.11 run_sim.py",
        file=sys.stderr,
    )
    sys.exit(2)

from leakmeter.fl_app.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
