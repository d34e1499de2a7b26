"""Sends a run to Weights & Biases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leakmeter.auditors.callback import Callback, RunEnd, RunStart
from leakmeter.auditors.finding import RunWarning
from leakmeter.auditors.run_log import RoundLine
from leakmeter.fl_app.loggers.series import of_round, of_run, tool, verdict, with_page


class WandB(Callback):
    """Logs numbers per round to a Weights & Biases run, and the page as an artefact of it.

    A run that is already active (`wandb.init` in your own code) is used and left open.
    Otherwise one is begun and finished.

    Args:
        project: Where a new run goes.
        init: Further arguments of `wandb.init`, such as `mode="offline"`.

    Example:
        strategy = Audited(FedAvg(), auditors=[...], out="runs/mine", callbacks=[WandB("privacy")])
    """

    def __init__(self, project: str = "leakmeter", **init: Any) -> None:
        self._wandb = tool("wandb", "wandb")
        self._init = {"project": project, **init}
        self._run: Any = None
        self._is_ours = False

    def on_start(self, start: RunStart) -> None:
        """Take the active run, or begin one."""
        self._is_ours = self._wandb.run is None
        if self._is_ours:
            self._run = self._wandb.init(**{"name": start.name, **self._init})
        else:
            self._run = self._wandb.run
        self._run.config.update({"leakmeter": dict(start.config)}, allow_val_change=True)
        self._run.define_metric("leakmeter/round")
        # The step of a run that is not ours is not ours to set: rounds are an axis of their own.
        self._run.define_metric("leakmeter*", step_metric="leakmeter/round")

    def on_round(self, line: RoundLine, warnings: Sequence[RunWarning]) -> None:
        """Log the numbers of a round."""
        self._run.log({"leakmeter/round": line.server_round, **of_round(line, warnings)})

    def on_end(self, end: RunEnd) -> None:
        """Put the findings about the run into its summary, and the page next to them."""
        self._run.summary.update({**of_run(end), "leakmeter verdict": verdict(end)})
        with_page(end, lambda page: self._keep(page, end))
        if self._is_ours:
            self._run.finish()

    def _keep(self, page: Path, end: RunEnd) -> None:
        self._run.log({"leakmeter/page": self._wandb.Html(page.read_text(encoding="utf-8"))})
        artifact = self._wandb.Artifact(f"leakmeter-{self._run.id}", type="privacy-audit")
        artifact.add_file(str(page), name=page.name)
        if end.folder is not None:
            artifact.add_file(str(end.folder / "report.json"), name="report.json")
        self._run.log_artifact(artifact)
