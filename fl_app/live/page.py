"""The page of a run folder as it is now, with a bar on top that keeps it up to date.

The page itself is that of `leakmeter report`. A short script asks once a second whether the folder
has changed, and then exchanges the content of `main`. Place, open folds and focus stay.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from leakmeter.auditors.callback import PROGRESS, RunProgress
from leakmeter.auditors.codec import CodecError, codec
from leakmeter.auditors.run_log import REPORT, ROUNDS
from leakmeter.auditors.wording import counted
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.report.html import Live, document, page
from leakmeter.fl_app.report.read import FILES, Run, read_run, runs_in

_BAR = Markup(  # with the stamp of the folder as the page has it
    '<div id="live" data-stamp="{}" role="status" aria-live="off">'
    '<progress max="1" value="0" aria-label="rounds done"></progress> '
    '<span id="live-text">connecting …</span>'
    '<ul id="live-warnings" aria-label="warnings of the run"></ul></div>'
)
FIRST = "The numbers of the first round will appear here as soon as it has ended."
_STYLE = """
#live { position: sticky; top: 0; z-index: 3; margin-bottom: .7rem;
  padding: .4rem max(1.5rem, (100% - 1160px) / 2 + 1.5rem); background: Canvas;
  color: CanvasText; border-bottom: 1px solid GrayText; font-size: .9rem; }
#live progress { width: 12rem; max-width: 40%; vertical-align: middle; margin-right: .4rem; }
#live ul { margin: .2rem 0 0; padding-left: 1.2rem; }
#live ul:empty { display: none; }
@media print { #live { display: none; } }
"""
# Content is exchanged only when the folder has changed. What the reader has opened stays open,
# boxes stay scrolled, and the place is that of the last heading at the top of the window, since
# figures may grow above it. Most parts have no id: each is known by where it is and what it says,
# without the counts in it.
_SCRIPT = """
(() => {
  const live = document.getElementById("live");
  const bar = live.querySelector("progress");
  const text = document.getElementById("live-text");
  const list = document.getElementById("live-warnings");
  let seen = live.dataset.stamp, ended = false, rested = 0;
  const said = (one) => {
    if (one.matches(".pt")) return one.getAttribute("aria-label");
    const fold = one.matches("summary") ? one.parentElement : one;
    const inner = fold.matches("details, .scroll") ? fold.querySelector("caption") : one;
    return inner ? inner.textContent.replace(/[0-9]+/g, "") : "";
  };
  const key = (one) => {
    const home = one.closest("[id]"), figure = one.closest("figure");
    const head = figure && figure.querySelector("h2, h3");
    const words = one.id ? "" : said(one);
    return [home ? home.id : "", head ? head.textContent : "", one.localName, words].join("|");
  };
  const named = (selector) => {
    const found = new Map();
    for (const one of document.querySelectorAll(selector)) {
      let name = key(one);
      while (found.has(name)) name += "+";
      found.set(name, one);
    }
    return found;
  };
  const top = (one) => one.getBoundingClientRect().top;
  const PARTS = "main section[id], main h2, main h3, main summary, main caption";
  const FOCUS = "main summary, main .pt, main button, main a, main [tabindex]";
  const BOXES = "main .scroll";
  const place = () => [...named(PARTS)].filter(([, one]) => one.checkVisibility())
    .map(([name, one]) => [name, top(one)]).filter(([, height]) => height <= 80).reverse();
  const exchange = (fresh) => {
    const places = place();
    const open = [...named("main details")].map(([name, one]) => [name, one.open]);
    const boxes = [...named(BOXES)].map(([name, one]) => [name, one.scrollLeft, one.scrollTop]);
    const active = document.activeElement;
    const focus = [...named(FOCUS)].find(([, one]) => one === active);
    document.querySelector("main").innerHTML = fresh.querySelector("main").innerHTML;
    document.title = fresh.title;
    document.getElementById("tip").hidden = true;
    const folds = named("main details");
    for (const [name, state] of open) if (folds.has(name)) folds.get(name).open = state;
    const scrolled = named(BOXES);
    for (const [name, left, height] of boxes) {
      if (scrolled.has(name)) scrolled.get(name).scrollTo(left, height);
    }
    const parts = named(PARTS);
    const still = places.find(([name]) => parts.has(name) && parts.get(name).checkVisibility());
    if (still) scrollBy({ top: top(parts.get(still[0])) - still[1], behavior: "instant" });
    const again = focus && named(FOCUS).get(focus[0]);
    if (again) again.focus({ preventScroll: true });
  };
  const show = (state) => {
    bar.value = state.share;
    text.textContent = state.text;
    list.replaceChildren(...(state.warnings || []).map((words) => {
      const item = document.createElement("li");
      item.textContent = words;
      return item;
    }));
  };
  const update = async () => {
    const state = await (await fetch("state", { cache: "no-store" })).json();
    // Making a large page takes time from the run: at most a tenth of it.
    if (state.stamp !== seen && (state.finished || performance.now() > rested)) {
      const began = performance.now();
      const answer = await fetch("./", { cache: "no-store" });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      // A file that is only half there: the page stays, and the sentence says what is wrong.
      if (!answer.ok) return show({ ...state, text: fresh.querySelector("main").textContent });
      exchange(fresh);
      seen = fresh.getElementById("live").dataset.stamp;
      rested = performance.now() + 10 * (performance.now() - began);
    }
    show(state);
    ended = state.finished;
  };
  const ask = async () => {
    let wait = 1000;
    try {
      await update();
      if (ended) wait = 5000;
    } catch (error) {
      if (ended) return;  // the run has ended, and its server with it
      text.textContent = "no answer: the run has ended (see report.html) or was stopped";
      wait = 5000;
    }
    setTimeout(ask, wait);
  };
  ask();
})();
"""


@dataclass(frozen=True)
class LiveFolder:
    """A run folder that somebody watches."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> LiveFolder:
        """Return the folder that a user has named, perhaps by a file in it."""
        path = path.expanduser().absolute()
        return cls(path.parent if path.name in FILES else path)

    @property
    def is_finished(self) -> bool:
        """Whether the run has its report."""
        return (self.path / REPORT).is_file()

    def stamp(self) -> str:
        """Return a text that changes whenever the page would."""
        changed = [_changed(self.path / name) for name in FILES]
        return "-".join([*changed, "on" if self.is_running else "off"])

    def state(self, now: float | None = None) -> dict[str, Any]:
        """Return what the bar shows: progress, time left and warnings, in words."""
        if self.is_finished:
            return {"stamp": self.stamp(), "finished": True, "share": 1.0, "text": "finished"}
        progress = self._progress()
        if progress is None:
            text = "the rounds so far" if self.has_run else "waiting for the first file of a run"
            share, warnings = 0.0, []
        else:
            share = progress.rounds_done / max(progress.num_rounds, 1)
            text = _words(progress, time.time() if now is None else now)
            warnings = [warning.text for warning in progress.warnings]
        known = {"stamp": self.stamp(), "finished": False, "share": share, "text": text}
        return {**known, "warnings": warnings}

    def html(self) -> str:
        """Return the page with its bar.

        Raises:
            ConfigError: A file is damaged, or only half of it has arrived.
        """
        live = self._live()  # before the files are read: what changes meanwhile is asked for again
        run = self.run()
        if not (run.rounds or run.is_finished):
            return self._saying(FIRST, live)
        failures = tuple(map(self._without_place, run.failures))
        return page([replace(run, is_running=self.is_running, failures=failures)], live=live)

    def run(self) -> Run:
        """Return the run as it is now; before its first round, one that has nothing yet."""
        empty = Run(self.path.name, self.path, is_finished=False)
        return read_run(self.path) if self.has_run else empty

    def excuse(self, error: ConfigError) -> str:
        """Return a page that says why there is none yet, and asks again."""
        return self._saying(self._without_place(str(error)), self._live(""))

    def check(self) -> None:
        """Refuse what cannot become the folder of a run.

        Raises:
            ConfigError: It cannot.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"DIR must be the folder of a run, got {self.path}: it is a file")
        if (runs := runs_in(self.path)) and not self.has_run:
            raise ConfigError(
                f"DIR must be the folder of one run, got {self.path}; "
                f"the newest run in it is {runs[0]}"
            )

    @property
    def has_run(self) -> bool:
        """Whether anything of a run has arrived."""
        return any((self.path / name).is_file() for name in (REPORT, ROUNDS))

    @property
    def is_running(self) -> bool:
        """Whether a process seems to add to it: the next round is not long overdue."""
        progress = None if self.is_finished else self._progress()
        return progress is not None and not progress.is_overdue(time.time())

    def _without_place(self, words: str) -> str:
        """Return an error without where the folder is: whoever reads the page may be anybody."""
        for place in (self.path.absolute(), self.path.resolve()):
            words = words.replace(f"{place}{os.sep}", "").replace(str(place), place.name)
        return words

    def _saying(self, words: str, live: Live) -> str:
        return document(self.path.name, self.path.name, Markup("<p>{}</p>").format(words), live)

    def _live(self, stamp: str | None = None) -> Live:
        return Live(_BAR.format(self.stamp() if stamp is None else stamp), _STYLE, _SCRIPT)

    def _progress(self) -> RunProgress | None:
        """Return how far the run is; None if nothing says so, or nothing that can be read."""
        try:
            values = json.loads((self.path / PROGRESS).read_bytes())
            found: RunProgress = codec(RunProgress).read(values)
            return found
        except (OSError, ValueError, RecursionError, CodecError, ConfigError):
            return None


def _changed(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return "0"
    return f"{found.st_mtime_ns:x}.{found.st_size:x}"


def _words(progress: RunProgress, now: float) -> str:
    """Return round, time left and how old this is."""
    done = f"round {progress.rounds_done} of {progress.num_rounds}"
    if progress.rounds_done >= progress.num_rounds:
        return f"{done}; the report is being made"
    left = progress.seconds_left(now)
    if left is None:
        return f"{done}; started {_duration(max(now - progress.started, 0))} ago"
    if left <= 0:
        return f"{done}; last round ended {_duration(max(now - progress.updated, 0))} ago"
    return f"{done}; about {_duration(left)} left"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return counted(round(seconds), "second")
    if seconds < 5400:
        return counted(round(seconds / 60), "minute")
    return f"{seconds / 3600:.1f} hours"
