"""Writes a run for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shutil import copyfile
from typing import Any

from leakmeter.auditors.callback import Callback, RunEnd, RunStart
from leakmeter.auditors.finding import RunWarning
from leakmeter.auditors.run_log import RoundLine
from leakmeter.fl_app.loggers.series import of_round, of_run, tool, verdict, with_page
from leakmeter.fl_app.report import NAME


class TensorBoard(Callback):
    """Writes scalars per round, and the verdict as text, for `tensorboard --logdir DIR`.

    The page of the run is put next to the event files, since TensorBoard shows no HTML.

    Args:
        folder: Where event files go; each run gets a folder of its own in it.

    Example:
        strategy = Audited(FedAvg(), auditors=[...], out="runs/mine", callbacks=[TensorBoard()])
    """

    def __init__(self, folder: str | Path = "tensorboard") -> None:
        self._writers = tool("torch.utils.tensorboard", "tensorboard")
        self._folder = Path(folder).expanduser()
        self._writer: Any = None
        self._last = 0

    def on_start(self, start: RunStart) -> None:
        """Open the event file."""
        self._own = self._folder / start.name
        # A resumed run continues after its last whole round: what was written later is void.
        purge = start.rounds_done + 1 if start.rounds_done else None
        self._writer = self._writers.SummaryWriter(str(self._own), purge_step=purge)
        self._last = start.rounds_done

    def on_round(self, line: RoundLine, warnings: Sequence[RunWarning]) -> None:
        """Write the numbers of a round."""
        self._last = line.server_round
        self._add(of_round(line, warnings))

    def on_end(self, end: RunEnd) -> None:
        """Write the findings about the run and the verdict, and leave the page."""
        self._add(of_run(end))
        text = "\n".join(f"    {line}" for line in verdict(end).splitlines())  # a block of code
        self._writer.add_text("leakmeter verdict", text, self._last)
        self._writer.close()
        with_page(end, lambda page: copyfile(page, self._own / NAME))

    def _add(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, self._last)
        self._writer.flush()
