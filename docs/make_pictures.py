"""Makes the pictures of the pages in `docs/`, from the default run and two that noise protects.

`python docs/make_pictures.py` makes all of them in about two CPU minutes, `python
docs/make_pictures.py light dark` those alone. It needs Chromium and poppler-utils, as Debian's
packages have them. Run it whenever the look of a page or what it says has changed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from leakmeter.auditors.codec import plain
from leakmeter.auditors.run_log import PROGRESS, ROUNDS, RunProgress
from leakmeter.fl_app.report.live import open_server, serving

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).parent
MAX_BYTES = 300_000
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--virtual-time-budget=4000"),
)
_DARK = "--blink-settings=preferredColorScheme=0"
_PHONE = (390, 844)  # pixels
_PROTECTED = (
    *("--model", "linear", "--sample", "50", "--rounds", "20"),
    *("--clip-norm", "0.5", "--target-epsilon", "8", "--noise"),
)
_NOISES = ("central", "distributed")
_SHOWN_ROUNDS = 12  # of the run that is shown while it is going on


class Studio:
    """Runs what pictures show, once each, and takes them."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        found = (path for name in _BROWSERS if (path := shutil.which(name)))
        self._browser = next(found, None)
        if self._browser is None or shutil.which("pdftoppm") is None:
            raise SystemExit(
                "pictures need Chromium and pdftoppm: apt-get install chromium poppler-utils"
            )
        self.run = cache(self._run)

    def _run(self, name: str, *options: str) -> Path:
        """Return the folder of a finished run."""
        program = [sys.executable, str(ROOT / "run_sim.py"), *options, "--out", name]
        subprocess.run(program, cwd=self._scratch, check=True, stdout=subprocess.DEVNULL)
        return self._scratch / name

    def report(self, *arguments: str) -> None:
        """Run `report` where the runs are."""
        program = [sys.executable, str(ROOT / "run_sim.py"), "report", *arguments]
        subprocess.run(program, cwd=self._scratch, check=True, stdout=subprocess.DEVNULL)

    def browse(self, address: str, *options: str) -> None:
        """Open an address in a browser that is new each time."""
        with tempfile.TemporaryDirectory() as profile:
            command = [str(self._browser), *_FLAGS, f"--user-data-dir={profile}", *options, address]
            subprocess.run(command, check=True, capture_output=True, timeout=120)

    def shoot(self, address: str, path: Path, width: int, height: int, *options: str) -> None:
        """Take a picture of a window."""
        size = f"--window-size={width},{height}"
        self.browse(address, size, f"--screenshot={path}", *options)

    def framed(self, page: Path) -> str:
        """Return the address of a page in a frame as wide as a phone: no window is that narrow."""
        wide, high = _PHONE
        frame = self._scratch / "phone.html"
        frame.write_text(
            f'<body style="margin:0"><iframe src="{page.as_uri()}" '
            f'style="width:{wide}px;height:{high}px;border:0"></iframe>'
        )
        return frame.as_uri()

    def sheet(self, page: Path, path: Path) -> None:
        """Take a picture of the first sheet of paper."""
        pdf = self._scratch / "page.pdf"
        self.browse(page.as_uri(), "--no-pdf-header-footer", f"--print-to-pdf={pdf}")
        first = ("-f", "1", "-l", "1", "-singlefile", "-r", "72", "-png")
        subprocess.run(["pdftoppm", *first, str(pdf), str(path.with_suffix(""))], check=True)


def light(studio: Studio, path: Path) -> None:
    """Take the first screen of the default run."""
    studio.shoot((studio.run("demo") / "report.html").as_uri(), path, 1280, 700)


def dark(studio: Studio, path: Path) -> None:
    """Take the same, dark."""
    studio.shoot((studio.run("demo") / "report.html").as_uri(), path, 1280, 700, _DARK)


def phone(studio: Studio, path: Path) -> None:
    """Take the same, on a phone."""
    studio.shoot(studio.framed(studio.run("demo") / "report.html"), path, *_PHONE)


def paper(studio: Studio, path: Path) -> None:
    """Take the same, on paper."""
    studio.sheet(studio.run("demo") / "report.html", path)


def summary(studio: Studio, path: Path) -> None:
    """Take the sheet for data-protection readers, of a run that noise protects."""
    folder = studio.run("distributed", *_PROTECTED, "distributed")
    studio.report("--summary", folder.name)
    studio.sheet(folder / "summary.html", path)


def compare(studio: Studio, path: Path) -> None:
    """Take the default run beside those that noise protects."""
    runs = [studio.run("demo"), *(studio.run(one, *_PROTECTED, one) for one in _NOISES)]
    studio.report(*(one.name for one in runs), "--out", "compared.html")
    studio.shoot((runs[0].parent / "compared.html").as_uri(), path, 1280, 900)


def live(studio: Studio, path: Path) -> None:
    """Take the page of the default run as it is after some of its rounds."""
    whole = studio.run("demo")
    lines = (whole / ROUNDS).read_text(encoding="utf-8").splitlines(keepends=True)
    folder = whole.parent / "live" / whole.name
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(whole / "config.toml", folder)
    (folder / ROUNDS).write_text("".join(lines[:_SHOWN_ROUNDS]), encoding="utf-8")
    now = time.time()
    progress = RunProgress(len(lines), _SHOWN_ROUNDS, 0, now - _SHOWN_ROUNDS, now)
    (folder / PROGRESS).write_text(json.dumps(plain(progress)), encoding="utf-8")
    with open_server() as server, serving(server, folder):
        studio.shoot(server.url, path, 1280, 900)


PICTURES: Mapping[str, Callable[[Studio, Path], None]] = {
    "light": light,
    "dark": dark,
    "phone": phone,
    "print": paper,
    "summary": summary,
    "compare": compare,
    "live": live,
}


def main(names: list[str]) -> int:
    """Make the named pictures, or all of them."""
    if unknown := [name for name in names if name not in PICTURES]:
        print(f"unknown picture {unknown[0]}; there are: {', '.join(PICTURES)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        studio = Studio(Path(scratch))
        for name in names or PICTURES:
            path = FOLDER / f"report-{name}.png"
            PICTURES[name](studio, path)
            if path.stat().st_size > MAX_BYTES:
                print(f"{path.name} has more than {MAX_BYTES} bytes", file=sys.stderr)
                return 1
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
