"""One tab of a headless Chromium, driven over its pipe (the DevTools protocol)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSER = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--window-size=1200,700", "--remote-debugging-pipe"),
)


class Tab:
    """A tab that can be asked to evaluate JavaScript; `errors` has what its pages complained of."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive, self._rest = send, receive, b""
        self._last, self._session = 0, None
        self.errors: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Go to a page and wait until it is there."""
        self._call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def ask(self, expression: str) -> Any:
        """Return the value of an expression on the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 120.0) -> Any:
        """Ask until the answer is true, and return it."""
        until = time.monotonic() + seconds
        while not (found := self.ask(expression)):
            assert time.monotonic() < until, f"never true: {expression}; {self.errors}"
            time.sleep(0.1)
        return found

    def screenshot(self, path: Path) -> None:
        """Keep what the window shows."""
        import base64

        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        order = {"id": self._last, "method": method, "params": parameters}
        if self._session is not None:
            order["sessionId"] = self._session
        os.write(self._send, json.dumps(order).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == self._last:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        about = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(about["exceptionDetails"]))
        if message.get("method") == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.errors.append(about["entry"]["text"])

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._receive, 1 << 16)
            assert data, "the browser has gone"
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found


@contextmanager
def tab(profile: Path) -> Iterator[Tab]:
    """Start a browser with an empty profile; it ends with the block."""
    assert BROWSER is not None
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()

    def keep() -> None:  # the browser reads from 3 and writes to 4
        low, high = os.dup(theirs_in), os.dup(theirs_out)
        os.dup2(low, 3)
        os.dup2(high, 4)

    process = subprocess.Popen(
        [BROWSER, *_FLAGS, f"--user-data-dir={profile}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(3, 4, theirs_in, theirs_out),
        preexec_fn=keep,
    )
    for theirs in (theirs_in, theirs_out):
        os.close(theirs)
    try:
        yield Tab(ours_out, ours_in)
    finally:
        process.kill()
        process.wait()
        for ours in (ours_in, ours_out):
            os.close(ours)
