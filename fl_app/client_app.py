"""The client's app as Flower's launches find it, configured by the run's own configuration."""

from __future__ import annotations

import sys

from leakmeter.fl_app.build import client_app
from leakmeter.fl_app.config.from_flower import from_context

app = client_app(from_context)

# Flower's simulation loads this file before it starts its workers; a deployment has neither.
if "flwr.server.superlink.fleet.vce" in sys.modules:
    from leakmeter.fl_app.engines.pool import use_steady_pool

    use_steady_pool()
