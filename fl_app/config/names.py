"""The names a user may choose from; a light module, so that `--help` answers at once."""

from __future__ import annotations

from typing import Final

PARTITIONS: Final = ("iid", "dirichlet", "dirichlet-labels", "natural")
ALGORITHMS: Final = ("fedavg", "fedsgd", "fedprox", "gd")
SERVERS: Final = ("fedavg", "fedavgm", "fedadam", "fedyogi")
# An adaptive server's step is the length of a coordinate's move, not a multiple of the mean update.
USUAL_STEP: Final = {"fedavg": 1.0, "fedavgm": 1.0, "fedadam": 0.1, "fedyogi": 0.1}
ENGINES: Final = ("inline", "ray")
SECAGG: Final = ("on", "active", "off")
NOISE_DISTRIBUTIONS: Final = ("gaussian", "skellam", "discrete-gaussian")
CLIPPINGS: Final = ("fixed", "adaptive")
OVER_BUDGET: Final = ("refuse", "warn")
PATTERNS: Final = ("fixed", "poisson", "once", "epochs")
