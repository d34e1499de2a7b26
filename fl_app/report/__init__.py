"""The page about a run; `leave_page` is what a run calls at its end.

Read it in this order: `read/` (what a run has left), `judge/` (what follows from it), `draw/` (the
figures), `html/` (the page). Each imports only from those before it, from `wording` and `markup`.
Nothing here needs Flower.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

NAME = "report.html"


def leave_page(folder: Path, say: Callable[[str], None]) -> bool:
    """Write the page of a finished run into its folder and say where it is.

    A page that cannot be made must not cost the run: its numbers are on disk already.

    Returns:
        Whether there is a page.
    """
    from leakmeter.auditors.run_log import write_atomically
    from leakmeter.fl_app.report.html.page import page
    from leakmeter.fl_app.report.read.run import read_runs

    try:
        write_atomically(folder / NAME, page(read_runs([folder])))
    except Exception as error:
        say(f"no page was made, {type(error).__name__}: {error}; all numbers are in report.json")
        return False
    say(f"page: {folder / NAME}")
    return True
