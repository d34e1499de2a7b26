"""Where the CPU seconds of a run go, part by part.

    python -m benchmarks.job_parts FILE OPTIONS ...

Runs `run_sim.py` with these options in this process and writes the seconds of each part as JSON.
Threads that sample count where somebody waits for them. A part inside another one counts for itself
alone, except in rehearsals, which are whole runs.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

IMPORTS, REST = "imports", "messages, records and the rest"
WHOLE = "rehearsal of what is advised"
# Names in modules; those of a class are its methods.
PARTS: dict[str, tuple[str, ...]] = {
    "training": ("fl_app.client_app:trained",),
    "keys, masks and shares": (
        "clients.secure_sum.mask_mod:MaskMod.__call__",
        "strategies.secure_sum.masked:Masked.configure_train",
        "strategies.secure_sum.masked:Masked.aggregate_train",
    ),
    "canaries": (
        "auditors.canaries.one_shot:OneShotCanaries.instruct",
        "auditors.canaries.one_shot:OneShotCanaries.observe",
        "auditors.canaries.one_shot:OneShotCanaries.report",
    ),
    "sampled updates": ("clients.sampler:in_process",),
    "likelihood ratio without sampling": (
        "auditors.likelihood_ratio.auditor:LikelihoodRatio.observe",
        "auditors.likelihood_ratio.auditor:LikelihoodRatio.report",
    ),
    "log-determinants without sampling": (
        "auditors.information.mutual_information:MutualInformation.observe",
        "auditors.information.mutual_information:MutualInformation.report",
    ),
    "MINE without sampling": (
        "auditors.information.neural:NeuralInformation.observe",
        "auditors.information.neural:NeuralInformation.report",
    ),
    WHOLE: ("fl_app.run.run:rehearsed_advice",),
    "page": ("fl_app.run.run:leave_page",),
}
LATE = ("fl_app.cli.main", "fl_app.engines.inline", "fl_app.run.launch")  # what a run imports


class Clock:
    """Adds up the CPU seconds of parts, each without the parts inside it."""

    def __init__(self, now: Callable[[], float] = time.process_time) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        self._now, self._since, self._open = now, now(), [REST]

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what runs meanwhile for this part."""
        self._turn()
        self._open.append(WHOLE if WHOLE in self._open else name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def _turn(self) -> None:
        now = self._now()
        self.spent[self._open[-1]] += now - self._since
        self._since = now

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that counts for a part, with each step of what it yields."""

        @wraps(call)
        def counted(*args: Any, **more: Any) -> Any:
            with self.part(name):
                found = call(*args, **more)
            return self._steps(name, found) if isinstance(found, Iterator) else found

        return counted

    def _steps(self, name: str, steps: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self.part(name):
                step = next(steps, steps)
            if step is steps:
                return
            yield step


def main(file: Path, options: Sequence[str]) -> int:
    """Run, write the parts and return the exit code."""
    gc.disable()  # as a run does while it imports
    for name in LATE:
        import_module(f"leakmeter.{name}")
    clock = Clock()
    clock.spent[IMPORTS] = time.process_time()
    for part, names in PARTS.items():
        for name in names:
            module, _, place = name.partition(":")
            owner = import_module(f"leakmeter.{module}")
            *classes, attribute = place.split(".")
            for each in classes:
                owner = getattr(owner, each)
            setattr(owner, attribute, clock.timed(part, getattr(owner, attribute)))
    gc.freeze()
    gc.enable()
    with clock.part(REST):
        code = int(import_module("leakmeter.fl_app.cli.main").main(list(options)))
    file.write_text(json.dumps({part: clock.spent[part] for part in (IMPORTS, *PARTS, REST)}))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
