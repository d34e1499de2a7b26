"""The server's app as Flower's launches find it."""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from leakmeter.fl_app.build.calibrate import calibrated
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import out_of_range, two_multipliers
from leakmeter.fl_app.config.from_flower import OUT, RESUME, from_context
from leakmeter.fl_app.deployment import check_deployed
from leakmeter.fl_app.report import leave_page
from leakmeter.fl_app.run.folder import RunFolder, default_path
from leakmeter.fl_app.run.preflight import preflight
from leakmeter.fl_app.run.progress import Progress
from leakmeter.fl_app.run.run import run_on

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Do the run that the configuration describes and leave its folder."""
    # Flower runs the app in a folder of its own, so every path must be absolute.
    if resume := str(context.run_config.get(RESUME, "")):
        folder = RunFolder.open(_absolute(resume, RESUME))
        check_deployed(folder.config)
        preflight(folder.config, folder.path)
    else:
        config = from_context(context)
        # Flower fills in the default of every setting that was not given.
        if config.target_epsilon and config.noise_multiplier != Config.noise_multiplier:
            raise two_multipliers(config.noise_multiplier, config.target_epsilon)
        if config.ledger:
            _absolute(config.ledger, "ledger")
        check_deployed(config)
        config = calibrated(config)
        preflight(config)
        out = str(context.run_config.get(OUT, ""))
        path = _absolute(out, OUT) if out else default_path(config, _home())
        folder = RunFolder.create(path, config)
    progress = Progress()
    progress.say(f"run folder: {folder.path}")
    outcome = run_on(grid, folder, progress)
    progress.summary(outcome.findings, outcome.failures, outcome.limitations, outcome.warnings)
    leave_page(folder.path, progress.say)


def _absolute(path: str, name: str) -> Path:
    found = Path(path).expanduser()
    if not found.is_absolute():
        raise out_of_range(name, "an absolute path under Flower's runtime", path)
    return found


def _home() -> Path:
    """Return where runs go that were not told where: LEAKMETER_RUNS, or the home folder."""
    return Path(os.environ.get("LEAKMETER_RUNS") or Path.home() / "leakmeter-runs")
