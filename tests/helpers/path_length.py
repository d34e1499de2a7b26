"""Which files one update passes: run with the arguments of a run, prints them one a line."""

from __future__ import annotations

import inspect
import sys
import threading
from types import CodeType, FrameType
from typing import Any

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.run import run
from tests.helpers.project import ROOMS, ROOT

_TRAIN = (str(ROOT / "fl_app/client_app.py"), "train")


class Path:
    """The code that runs from the first client's training on."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self.has_trained = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        self.has_trained = self.has_trained or (code.co_filename, code.co_name) == _TRAIN
        # The body of a module or class runs when it is imported, not when an update passes.
        if self.has_trained and code.co_flags & inspect.CO_OPTIMIZED:
            self.codes.add(code)

    def files(self) -> set[str]:
        """Return the files of the rooms in which a function ran, relative to the project."""
        rooms = tuple(f"{ROOT / room}/" for room in ROOMS)
        names = {code.co_filename for code in self.codes}
        return {name.removeprefix(f"{ROOT}/") for name in names if name.startswith(rooms)}


if __name__ == "__main__":
    path = Path()
    run.rehearsed_advice = lambda *_: ()  # a rehearsal is a run of its own, without this update
    threading.setprofile(path)
    sys.setprofile(path)
    code = main(sys.argv[1:])
    sys.setprofile(None)
    print("", *sorted(path.files()), sep="\n")
    sys.exit(code)
