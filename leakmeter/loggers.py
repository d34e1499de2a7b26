"""Loggers for `Audited(..., callbacks=[...])`: TensorBoard, Weights & Biases, MLflow.

Each imports its tool when it is made: `pip install "leakmeter[tensorboard]"`, `[wandb]` or
`[mlflow]`. All write the same: named numbers of a round, then those of the run, the verdict in
words, and the page. To write another, subclass `leakmeter.Callback`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

from leakmeter.auditors.finding import Finding, RunWarning
from leakmeter.auditors.run_log import REPORT, Callback, RoundLine, RunEnd, RunStart
from leakmeter.auditors.verdict.lines import summary
from leakmeter.auditors.verdict.verdict import judge
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.report import NAME

__all__ = ["MLflow", "TensorBoard", "WandB"]

_PREFIX = "leakmeter"
_LONGEST = 500  # characters of a parameter that every store of MLflow takes


class TensorBoard(Callback):
    """Writes scalars per round, and the verdict as text, for `tensorboard --logdir DIR`.

    The page of the run is put next to the event files, since TensorBoard shows no HTML.

    Args:
        folder: Where event files go; each run gets a folder of its own in it.

    Example:
        strategy = Audited(FedAvg(), auditors=[...], out="runs/mine", callbacks=[TensorBoard()])
    """

    def __init__(self, folder: str | Path = "tensorboard") -> None:
        self._writers = _tool("torch.utils.tensorboard", "tensorboard")
        self._folder = Path(folder).expanduser()

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
        text = "\n".join(f"    {line}" for line in _verdict(end).splitlines())  # a block of code
        self._writer.add_text("leakmeter verdict", text, self._last)
        self._writer.close()
        with _files(end) as files:
            for page in files[:1]:
                copyfile(page, self._own / NAME)

    def _add(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, self._last)
        self._writer.flush()


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
        self._wandb = _tool("wandb", "wandb")
        self._init = {"project": project, **init}
        self._start = RunStart(0)
        self._run: Any = None

    def on_start(self, start: RunStart) -> None:
        """Note the settings; which run they belong to is known after the first round."""
        self._start, self._run = start, None

    def on_round(self, line: RoundLine, warnings: Sequence[RunWarning]) -> None:
        """Log the numbers of a round."""
        self._log({"leakmeter/round": line.server_round, **of_round(line, warnings)})

    def on_end(self, end: RunEnd) -> None:
        """Put the findings about the run into its summary, and the page next to them."""
        self._open().summary.update({**of_run(end), "leakmeter verdict": _verdict(end)})
        with _files(end) as files:
            if files:
                self._keep(files)
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

    def _keep(self, files: Sequence[Path]) -> None:
        html = self._wandb.Html(files[0].read_text(encoding="utf-8"))
        self._run.log({"leakmeter/page": html}, commit=self._is_ours)
        artifact = self._wandb.Artifact(f"leakmeter-{self._run.id}", type="privacy-audit")
        for path in files:
            artifact.add_file(str(path), name=path.name)
        self._run.log_artifact(artifact)


class MLflow(Callback):
    """Logs settings, numbers per round and the page to an MLflow run.

    A run that is active after the first round (`mlflow.start_run` in your own code, before `start`
    or in your strategy's own) is used and left open. Otherwise one is begun and ended.

    Args:
        experiment: Where a new run goes.
        tracking_uri: Where MLflow keeps runs; None takes MLflow's own choice.
        artifacts: Folder for the files of a new experiment; None takes MLflow's own choice.

    Example:
        strategy = Audited(FedAvg(), auditors=[...], out="runs/mine", callbacks=[MLflow("privacy")])
    """

    def __init__(
        self,
        experiment: str = "leakmeter",
        tracking_uri: str | None = None,
        artifacts: Path | None = None,
    ) -> None:
        self._mlflow = _tool("mlflow", "mlflow")
        self._artifacts = None if artifacts is None else artifacts.absolute().as_uri()
        self._experiment, self._uri = experiment, tracking_uri
        self._start, self._run, self._last = RunStart(0), "", 0

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
        self._client.log_text(self._run, _verdict(end), "verdict.txt")
        with _files(end) as files:
            for path in files:
                self._client.log_artifact(self._run, str(path))
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
        home = (
            known.experiment_id
            if known
            else self._client.create_experiment(self._experiment, self._artifacts)
        )
        run_id: str = self._client.create_run(home, run_name=name).info.run_id
        return run_id

    def _log(self, values: Mapping[str, float]) -> None:
        if not self._run:
            self._open()
        for name, value in values.items():
            # MLflow takes letters, digits and a few signs in a name.
            plain = re.sub(r"[^\w\-. :/]", "-", name)
            self._client.log_metric(self._run, plain, value, step=self._last)


def loggers_of(names: Iterable[str], home: Path) -> list[Callback]:
    """Return the loggers of `--log`, with the files of all runs in a folder next to theirs.

    Raises:
        ConfigError: A tool cannot be imported.
    """
    usual = {"tracking_uri": f"sqlite:///{home / 'mlflow.db'}", "artifacts": home / "mlruns"}
    store: dict[str, Any] = {} if os.environ.get("MLFLOW_TRACKING_URI") else usual
    makers: dict[str, Callable[[], Callback]] = {
        "tensorboard": lambda: TensorBoard(home / "tensorboard"),
        "wandb": lambda: WandB(dir=str(home)),
        "mlflow": lambda: MLflow(**store),
    }
    try:
        return [makers[name]() for name in names]
    except ImportError as error:
        raise ConfigError(f"--log must be a tool that works: {error}") from None


def of_round(line: RoundLine, warnings: Sequence[RunWarning]) -> dict[str, float]:
    """Return a round's metrics, findings and warnings by name."""
    metrics = {f"{_PREFIX}/{name}": value for name, value in line.metrics.items()}
    clients = {f"{_PREFIX}/clients": float(line.num_clients)}
    return _finite(metrics | clients | _found("round", line.findings) | _shares(warnings))


def of_run(end: RunEnd) -> dict[str, float]:
    """Return the findings about the whole run, and its warnings, by name."""
    return _finite(_found("run", end.findings) | _shares(end.warnings))


def _tool(module: str, extra: str) -> Any:
    """Return a tool's module; if it is missing, say how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this logger needs {extra}, which cannot be imported ({error}); "
            f'install it with pip install "leakmeter[{extra}]"'
        ) from error


def _verdict(end: RunEnd) -> str:
    """Return the verdict and the attackers, as a terminal shows them."""
    return "\n".join(summary(judge(end.findings, end.warnings, claims=end.claims), end.failures))


@contextmanager
def _files(end: RunEnd) -> Iterator[list[Path]]:
    """Yield the page and the report of a run as files; without a run folder there are none."""
    if end.folder is None:
        yield []
        return
    from leakmeter.fl_app.report.page import page
    from leakmeter.fl_app.report.read import read_runs

    with TemporaryDirectory() as folder:
        path = Path(folder) / NAME
        path.write_text(page(read_runs([end.folder])), encoding="utf-8")
        yield [path, end.folder / REPORT]


def _found(scope: str, findings: Iterable[Finding]) -> dict[str, float]:
    """Return value and null band of each finding.

    The name says how strong a number is and about which attacker, so that an estimate never passes
    for a bound. Of several findings with one name, the later ones are numbered.
    """
    said: dict[str, float] = {}
    for finding in findings:
        name = first = _name(scope, finding)
        count = 1
        while name in said:
            count += 1
            name = f"{first}.{count}"
        said[name] = float(finding.value)
        if finding.null_band is not None:
            low, high = finding.null_band
            said |= {f"{name}.null-low": float(low), f"{name}.null-high": float(high)}
    return said


def _name(scope: str, finding: Finding) -> str:
    model = finding.threat_model
    strength = "conditional-" if finding.is_conditional else "anytime-" * finding.is_anytime
    kind = strength + finding.kind
    parts = (finding.auditor, finding.quantity, kind, model.observer, model.sees or "unknown view")
    return f"{_PREFIX} {scope}/" + ".".join(part.replace("/", "-") for part in parts)


def _shares(warnings: Sequence[RunWarning]) -> dict[str, float]:
    return {f"{_PREFIX} warnings/{warning.kind}": warning.value for warning in warnings}


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers that every tool can draw; report.json has the infinite ones."""
    return {name: value for name, value in values.items() if math.isfinite(value)}
