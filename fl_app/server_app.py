"""The server's app as Flower's launches find it."""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from leakmeter.fl_app.config.config import OUT, RESUME, adapted_context
from leakmeter.fl_app.config.field import expanded, out_of_range
from leakmeter.fl_app.deployment import check_deployed, is_deployed, with_possible_auditors
from leakmeter.fl_app.report.read import DEPLOYMENT, FLOWER
from leakmeter.fl_app.run.folder import RunFolder, default_path
from leakmeter.fl_app.run.progress import Progress
from leakmeter.fl_app.run.run import end, new_run, preflight, run_on

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Do the run that the configuration describes and leave its folder."""
    said: list[str] = []
    # Flower runs the app in a folder of its own, so every path must be absolute.
    if resume := str(context.run_config.get(RESUME, "")):
        folder = RunFolder.open(_allowed(resume, RESUME))
        check_deployed(folder.config)
        if folder.config.ledger:
            _allowed(folder.config.ledger, "ledger")
        preflight(folder.config, folder.path)
    else:
        config, adapted = adapted_context(context)
        config, left_out = with_possible_auditors(config)
        said += [adapted, left_out]
        if config.ledger:
            _allowed(config.ledger, "ledger")
        check_deployed(config)
        out = str(context.run_config.get(OUT, ""))
        folder = new_run(config, _allowed(out, OUT) if out else default_path(config, _home()))
    progress = Progress()
    for words in filter(None, said):
        progress.say(words)
    progress.say(f"run folder: {folder.path}")
    launch = DEPLOYMENT if is_deployed() else FLOWER
    end(run_on(grid, folder, progress, launch=launch), progress)


def _allowed(path: str, name: str) -> Path:
    """Return a path of the run's configuration, if the server's owner lets runs write there.

    In a deployment whoever starts a run may be somebody else than who owns the server.
    """
    if not Path(path).is_absolute() and not path.startswith("~"):
        raise out_of_range(name, "an absolute path under Flower's runtime", path)
    found = expanded(name, path)
    if not is_deployed():
        return found
    # With links and ".." followed: the path must not leave the folder in the end.
    home, real = _home().expanduser().resolve(), found.resolve()
    if home not in real.parents:
        allowed = f"below {home} in a deployment (the server's LEAKMETER_RUNS)"
        raise out_of_range(name, allowed, path)
    return real


def _home() -> Path:
    """Return where runs go that were not told where: LEAKMETER_RUNS, or the home folder."""
    return Path(os.environ.get("LEAKMETER_RUNS") or Path.home() / "leakmeter-runs")
