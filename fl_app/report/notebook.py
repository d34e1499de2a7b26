"""The page of a run inside a notebook."""

from __future__ import annotations

from html import escape
from pathlib import Path

from leakmeter.auditors.run_log import write_atomically
from leakmeter.fl_app.report import NAME

_HEIGHT = 760  # pixels: the first screen


class Page:
    """Writes the page of a run to `report.html` in its folder, and shows it at the end of a cell.

    Args:
        folder: Folder of a run.

    Attributes:
        path: The file.

    Example:
        Page("runs/mine")
    """

    def __init__(self, folder: str | Path) -> None:
        from leakmeter.fl_app.report.html.page import page
        from leakmeter.fl_app.report.read.run import read_runs

        self._html = page(read_runs([Path(folder)]))
        self.path = Path(folder).expanduser() / NAME
        write_atomically(self.path, self._html)

    def _repr_html_(self) -> str:
        """Return a frame with the page, whose style cannot reach the notebook."""
        frame = f'sandbox="allow-scripts" style="width:100%;height:{_HEIGHT}px;border:0"'
        return f'<iframe title="Leakmeter report" {frame} srcdoc="{escape(self._html)}"></iframe>'

    def __repr__(self) -> str:
        return f"Page({str(self.path)!r})"
