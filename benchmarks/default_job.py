"""How many CPU seconds does the default job take?

`python run_sim.py` as it is, from its start to its report: user and system time of its process and
of all that it starts. The second row audits rounds 1, 2, 4, 8, 16 and 30 with the three
estimators that resample updates; the one-shot audit looks at every round in both.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.cpu import cpu_seconds
from benchmarks.measure import Row, Scale, Timer, interleave

CASES = {  # options, and the most seconds that they may take
    "the default job": ((), 30),
    "all four estimators after every round": (("--lrt-every", "1", "--lrt-trials", "60"), 30),
    "three of them at rounds 1, 2, 4, 8, … and the last": (
        ("--mi-every", "-1", "--mine-every", "-1"),
        20,
    ),
}


def job(options: Sequence[str]) -> float:
    """Run `run_sim.py` with these options and return its CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "run_sim.py", *options, "--out", str(Path(folder, "run"))]
        return cpu_seconds(command)


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row for each set of options."""
    few = ["--rounds", "2"] if scale == "quick" else []
    timers: dict[str, Timer] = {
        case: partial(job, (*options, *few)) for case, (options, _) in CASES.items()
    }
    times = interleave(timers, 1 if scale == "quick" else 2, warm_up=False)
    for case, (_, most) in CASES.items():
        yield Row(f"default job, {case}", times[case], target=most)
