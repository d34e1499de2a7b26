"""Sends a run to Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leakmeter.auditors.callback import Callback, RunEnd, RunStart
from leakmeter.auditors.finding import RunWarning
from leakmeter.auditors.run_log import RoundLine
from leakmeter.fl_app.loggers.series import of_round, of_run, tool, verdict, with_page


class WandB(Callback):
    """Logs numbers per round to a Weights & Biases run, and the page as an artefact of it.

    A run that is active after the first round (`wandb.init` in your own code, before `start` or in
    your strategy's own) is used and left open; its steps stay as your code counts them. Otherwise
    one is begun and finished.

    Args:
        project: Where a new run goes.
        init: Further arguments of `wandb.init`, such as `mode="offline"`.

    Example:
        strategy = Audited(FedAvg(), auditors=[...], out="runs/mine", callbacks=[WandB("privacy")])
    """

    def __init__(self, project: str = "leakmeter", **init: Any) -> None:
        self._wandb = tool("wandb", "wandb")
        self._init = {"project": project, **init}
        self._start = RunStart(0)
        self._run: Any = None
        self._is_ours = False
        self._step = -1

    def on_start(self, start: RunStart) -> None:
        """Note the settings; which run they belong to is known after the first round."""
        self._start, self._run = start, None

    def on_round(self, line: RoundLine, warnings: Sequence[RunWarning]) -> None:
        """Log the numbers of a round."""
        self._log({"leakmeter/round": line.server_round, **of_round(line, warnings)})

    def on_end(self, end: RunEnd) -> None:
        """Put the findings about the run into its summary, and the page next to them."""
        self._open().summary.update({**of_run(end), "leakmeter verdict": verdict(end)})
        with_page(end, lambda page: self._keep(page, end))
        if self._is_ours:
            self._run.finish()

    def _open(self) -> Any:
        """Return the run; at the first call take the active one, or begin one."""
        if self._run is not None:
            return self._run
        self._is_ours, self._step = self._wandb.run is None, -1
        new = {"name": self._start.name, **self._init}
        self._run = self._wandb.init(**new) if self._is_ours else self._wandb.run
        self._run.config.update({"leakmeter": dict(self._start.config)}, allow_val_change=True)
        self._run.define_metric("leakmeter/round")
        # The step of a run that is not ours is not ours to set: rounds are an axis of their own.
        self._run.define_metric("leakmeter*", step_metric="leakmeter/round")
        return self._run

    def _log(self, values: Mapping[str, Any]) -> None:
        run = self._open()
        if not self._is_ours and run.step == self._step:
            run.log({})  # nobody has logged since the last round, which this one would overwrite
        # An ended step refuses what others log at it later: in their run it stays open for them.
        run.log(values, commit=self._is_ours)
        self._step = run.step

    def _keep(self, page: Path, end: RunEnd) -> None:
        html = self._wandb.Html(page.read_text(encoding="utf-8"))
        self._run.log({"leakmeter/page": html}, commit=self._is_ours)
        artifact = self._wandb.Artifact(f"leakmeter-{self._run.id}", type="privacy-audit")
        artifact.add_file(str(page), name=page.name)
        if end.folder is not None:
            artifact.add_file(str(end.folder / "report.json"), name="report.json")
        self._run.log_artifact(artifact)
