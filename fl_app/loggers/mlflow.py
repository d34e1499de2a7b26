"""Sends a run to MLflow."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from leakmeter.auditors.callback import Callback, RunEnd, RunStart
from leakmeter.auditors.finding import RunWarning
from leakmeter.auditors.run_log import RoundLine
from leakmeter.fl_app.loggers.series import of_round, of_run, tool, verdict, with_page

_LONGEST = 500  # characters of a parameter that every store of MLflow takes


class MLflow(Callback):
    """Logs settings, numbers per round and the page to an MLflow run.

    A run that is active after the first round (`mlflow.start_run` in your own code, before `start`
    or in your strategy's own) is used and left open. Otherwise one is begun and ended.

    Args:
        experiment: Where a new run goes.
        tracking_uri: Where MLflow keeps runs; None takes MLflow's own choice.

    Example:
        strategy = Audited(FedAvg(), auditors=[...], out="runs/mine", callbacks=[MLflow("privacy")])
    """

    def __init__(self, experiment: str = "leakmeter", tracking_uri: str | None = None) -> None:
        self._mlflow = tool("mlflow", "mlflow")
        self._experiment, self._uri = experiment, tracking_uri
        self._start = RunStart(0)
        self._client: Any = None
        self._run = ""
        self._is_ours = False
        self._last = 0

    def on_start(self, start: RunStart) -> None:
        """Note the settings; which run they belong to is known after the first round."""
        self._start, self._run = start, ""

    def on_round(self, line: RoundLine, warnings: Sequence[RunWarning]) -> None:
        """Log the numbers of a round."""
        self._last = line.server_round
        self._log(of_round(line, warnings))

    def on_end(self, end: RunEnd) -> None:
        """Log the findings about the run, the verdict and the page."""
        self._log(of_run(end))
        self._client.log_text(self._run, verdict(end), "verdict.txt")
        with_page(end, lambda page: self._client.log_artifact(self._run, str(page)))
        if end.folder is not None:
            self._client.log_artifact(self._run, str(end.folder / "report.json"))
        if self._is_ours:
            self._client.set_terminated(self._run)

    def _open(self) -> None:
        """Take the active run, or begin one."""
        # A client of our own: MLflow's usual functions would change what the user's calls refer to.
        self._client = self._mlflow.MlflowClient(self._uri)
        active = self._mlflow.active_run()
        self._is_ours = active is None
        self._run = self._begin(self._start.name) if active is None else active.info.run_id
        for name, value in self._start.config.items():
            self._client.log_param(self._run, f"leakmeter.{name}", str(value)[:_LONGEST])

    def _begin(self, name: str) -> str:
        """Return the id of a new run in the experiment, which is made if it is not there."""
        known = self._client.get_experiment_by_name(self._experiment)
        home = known.experiment_id if known else self._client.create_experiment(self._experiment)
        run_id: str = self._client.create_run(home, run_name=name).info.run_id
        return run_id

    def _log(self, values: Mapping[str, float]) -> None:
        if not self._run:
            self._open()
        for name, value in values.items():
            # MLflow takes letters, digits and a few signs in a name.
            plain = re.sub(r"[^\w\-. :/]", "-", name)
            self._client.log_metric(self._run, plain, value, step=self._last)
