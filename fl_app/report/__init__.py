"""The page about a run; `leave_page` is what a run calls at its end.

Read it in this order: `read` (what a run has left), `judge/` (what follows from it), `draw/` (the
figures), `html/` (the page). Each imports only from those before it. Nothing here needs Flower.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path

NAME = "report.html"
_HEIGHT = 760  # pixels of the first screen


def leave_page(folder: Path, say: Callable[[str], None]) -> bool:
    """Write the page of a finished run into its folder and say where it is.

    A page that cannot be made must not cost the run: its numbers are on disk already.

    Returns:
        Whether there is a page.
    """
    try:
        path = Page(folder).path
    except Exception as error:
        say(f"no page was made, {type(error).__name__}: {error}; all numbers are in report.json")
        return False
    say(f"page: {path}")
    return True


class Page:
    """Writes the page of a run to `report.html` in its folder.

    At the end of a cell of a notebook it also shows the page.

    Args:
        folder: Folder of a run.

    Attributes:
        path: The file.

    Example:
        Page("runs/mine")
    """

    def __init__(self, folder: str | Path) -> None:
        from leakmeter.auditors.run_log import write_atomically
        from leakmeter.fl_app.report.html.page import page
        from leakmeter.fl_app.report.read import read_runs

        self._html = page(read_runs([Path(folder)]))
        self.path = Path(folder).expanduser() / NAME
        write_atomically(self.path, self._html)

    def _repr_html_(self) -> str:
        """Return a frame with the page, whose style cannot reach the notebook."""
        frame = f'sandbox="allow-scripts" style="width:100%;height:{_HEIGHT}px;border:0"'
        return f'<iframe title="Leakmeter report" {frame} srcdoc="{escape(self._html)}"></iframe>'

    def __repr__(self) -> str:
        return f"Page({str(self.path)!r})"
