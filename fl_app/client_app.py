"""The client's app as Flower's launches find it, configured by the run's own configuration."""

from __future__ import annotations

from fl_app.build import client_app
from fl_app.settings import from_context

app = client_app(from_context)
