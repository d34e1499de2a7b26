"""A headless Chromium that tests can drive: sizes, keys, colours, paper. Standard library only."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for name in _NAMES if (found := shutil.which(name))), None)
DRIVER = shutil.which("chromedriver")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--disable-dev-shm-usage"),
)
KEYS = {"Tab": "\ue004", "ArrowRight": "\ue014", "Enter": "\ue007"}


def axe() -> Path | None:
    """Return axe-core's script, if somebody has installed it: AXE_CORE names it, or npm -g."""
    places = [os.environ.get("AXE_CORE", "")]
    if npm := shutil.which("npm"):
        root = subprocess.run([npm, "root", "-g"], capture_output=True, text=True, check=False)
        places.append(f"{root.stdout.strip()}/axe-core/axe.min.js")
    return next((Path(place) for place in places if place and Path(place).is_file()), None)


class Browser:
    """One window."""

    def __init__(self, address: str) -> None:
        self._address = address
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": BROWSER, "args": list(_FLAGS)},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._address += f"/session/{made['sessionId']}"
        self._ask("POST", "/timeouts", {"script": 110_000})  # milliseconds

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def open(
        self,
        page: Path | str,
        width: int = 1280,
        height: int = 700,
        *,
        dark: bool = False,
        media: str = "",
    ) -> None:
        """Show a page in a window of this size; with the media "print" as on paper so wide."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._tool("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._tool("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})
        address = page.as_uri() if isinstance(page, Path) else page
        self._ask("POST", "/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a script in the page returns."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait_for(self, script: str, *arguments: Any) -> Any:
        """Return what a script passes to the function that is its last argument."""
        return self._ask("POST", "/execute/async", {"script": script, "args": list(arguments)})

    def press(self, *keys: str) -> None:
        """Press keys one after the other: names of `KEYS`, or characters."""
        pressed = [
            {"type": kind, "value": KEYS.get(key, key)}
            for key in keys
            for kind in ("keyDown", "keyUp")
        ]
        board = {"type": "key", "id": "keyboard", "actions": pressed}
        self._ask("POST", "/actions", {"actions": [board]})

    def errors(self) -> list[str]:
        """Return what the page has logged since the last call."""
        found = self._ask("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in found]

    def picture(self) -> bytes:
        """Return the window as PNG."""
        return base64.b64decode(self._ask("GET", "/screenshot"))

    def paper(self) -> bytes:
        """Return the page as PDF, on A4."""
        size = {"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": True}
        return base64.b64decode(self._tool("Page.printToPDF", size)["data"])

    def _tool(self, name: str, values: dict[str, Any]) -> Any:
        return self._ask("POST", "/goog/cdp/execute", {"cmd": name, "params": values})

    def close(self) -> None:
        """End the browser."""
        self._ask("DELETE", "")


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser and end it, whatever happens."""
    assert DRIVER is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    quiet = subprocess.DEVNULL
    driver = subprocess.Popen([DRIVER, f"--port={port}"], stdout=quiet, stderr=quiet)
    try:
        address = f"http://127.0.0.1:{port}"
        _wait(address)
        window = Browser(address)
        try:
            yield window
        finally:
            window.close()
    finally:
        driver.terminate()
        driver.wait(timeout=30)


def _wait(address: str) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(f"{address}/status", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError("chromedriver does not answer")
