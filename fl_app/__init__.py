"""Puts a run together: settings, data, models, the two apps, engines, run folder, report.

Names are imported on first use, so that `--help` answers at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import alias, front_page

if TYPE_CHECKING:
    from leakmeter.fl_app.client_app import client_app_of as client_app_of
    from leakmeter.fl_app.config.config import Config as Config
    from leakmeter.fl_app.report.page import Page as Page
    from leakmeter.fl_app.run.folder import RunFolder as RunFolder
    from leakmeter.fl_app.run.progress import Progress as Progress
    from leakmeter.fl_app.run.run import run_on as run_on
else:
    __all__, __getattr__ = front_page(__spec__)

alias(__name__)
