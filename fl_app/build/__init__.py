"""Builds the server's side of a run from its configuration: a `strategy`, and its `audit`."""

from __future__ import annotations

from leakmeter.fl_app.build.audit import auditors as auditors
from leakmeter.fl_app.build.strategy import server_strategy as server_strategy
