"""Puts a run together: settings, data, models, the two apps, engines, run folder, report.

Names are imported on first use, so that `--help` answers at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import alias, lazy

if TYPE_CHECKING:
    from leakmeter.fl_app.client_app import client_app_of
    from leakmeter.fl_app.config.config import Config
    from leakmeter.fl_app.config.errors import ConfigError
    from leakmeter.fl_app.engines.inline import run_inline
    from leakmeter.fl_app.report.notebook import Page
    from leakmeter.fl_app.run.folder import RunFolder
    from leakmeter.fl_app.run.launch import launch
    from leakmeter.fl_app.run.progress import Progress
    from leakmeter.fl_app.run.run import run_on

_HOME = {
    "Config": "config.config",
    "ConfigError": "config.errors",
    "Page": "report.notebook",
    "Progress": "run.progress",
    "RunFolder": "run.folder",
    "client_app_of": "client_app",
    "launch": "run.launch",
    "run_inline": "engines.inline",
    "run_on": "run.run",
}

__all__ = [
    "Config",
    "ConfigError",
    "Page",
    "Progress",
    "RunFolder",
    "client_app_of",
    "launch",
    "run_inline",
    "run_on",
]

__getattr__ = lazy(__name__, _HOME)
alias(__name__)
