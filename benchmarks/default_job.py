"""How many CPU seconds does the default job take?

`python run_sim.py` as it is, from its start to its page: user and system time of its process and of
all that it starts. The likelihood-ratio audit plays rounds 1, 2, 4, 8, 16 and 30; the others look
at every round. One row audits with all of them after every round, one with the two estimators of
information in these six rounds as well. Then the parts of the default job, in a run of their own
with a clock around each (`job_parts`).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.cpu import cpu_seconds
from benchmarks.measure import Row, Scale, Timer, interleave

CASES = {  # options, and the most seconds that they may take
    "as it is": ((), 22),
    "three rounds": (("--rounds", "3"), 6),
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


def parts(options: Sequence[str]) -> dict[str, float]:
    """Return the CPU seconds of each part of a run with these options."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "parts.json")
        run = [*options, "--out", str(Path(folder, "run"))]
        cpu_seconds([sys.executable, "-m", "benchmarks.job_parts", str(file), *run])
        return {str(part): float(spent) for part, spent in json.loads(file.read_text()).items()}


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row for each set of options."""
    few = ["--rounds", "2"] if scale == "quick" else []
    timers: dict[str, Timer] = {
        case: partial(job, (*options, *few)) for case, (options, _) in CASES.items()
    }
    repetitions = 1 if scale == "quick" else 2
    times = interleave(timers, repetitions, warm_up=False)
    for case, (_, most) in CASES.items():
        yield Row(f"default job, {case}", times[case], target=most)
    found = [parts(few) for _ in range(repetitions)]
    for part in sorted(found[0], key=lambda name: -found[0][name]):
        yield Row(f"default job, of which {part}", [one[part] for one in found])
