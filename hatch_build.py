"""Fills the wheel with the four rooms, below the one name that an installation offers.

Flower's bundles ask for `license = {file = …}`, package indexes for the SPDX name. A project file
can have one of them only, so it has the file, and what is built gets the name.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOMS = ("auditors", "clients", "strategies", "fl_app")
# An editable installation is this one file. A package with a file wins over a folder without one,
# so the clone may be called `leakmeter`, wherever Python starts.
_STUB = """\
import sys
from importlib.util import spec_from_file_location

__file__, __path__ = {file!r}, [{folder!r}]
__spec__ = spec_from_file_location(__name__, __file__, submodule_search_locations=__path__)
__loader__ = __spec__.loader
__loader__.exec_module(sys.modules[__name__])
"""


class Rooms(BuildHookInterface):  # type: ignore[type-arg]
    """Fills a wheel; an editable installation reads the rooms where they are."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the rooms to the files of the wheel, or the one file that points to them."""
        if version != "editable":
            build_data["force_include"].update({room: f"leakmeter/{room}" for room in ROOMS})
            return
        package = Path(self.root) / "leakmeter"
        stub = Path(tempfile.mkdtemp()) / "stub.py"
        text = _STUB.format(file=str(package / "__init__.py"), folder=str(package))
        stub.write_text(text, encoding="utf-8")
        build_data["force_include_editable"] = {str(stub): "leakmeter/__init__.py"}


class Metadata(MetadataHookInterface):
    """Names the licence by its SPDX expression, and the repository that the package came from."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Write the expression in place of the file, which is shipped as before, and the links."""
        metadata["license"] = "Apache-2.0"
        metadata["license-files"] = ["LICENSE"]
        if (home := repository(_origin(self.root))) and "urls" not in metadata:
            metadata["urls"] = {
                "Repository": home,
                "Documentation": f"{home}/tree/main/docs",
                "Changelog": f"{home}/blob/main/CHANGELOG.md",
                "Issues": f"{home}/issues",
            }


def repository(origin: str) -> str:
    """Return the page of a repository that git knows by this address; "" if it has none.

    A project that moves, or is forked, so names its own place. A user and a password are left out.

    >>> repository("git@example.org:team/leakmeter.git")
    'https://example.org/team/leakmeter'
    >>> repository("https://me:secret@example.org/team/leakmeter"), repository("../leakmeter")
    ('https://example.org/team/leakmeter', '')
    """
    scheme, user = r"(?:https?://|ssh://|(?=[^/]+@))", r"(?:[^@/]*@)?"
    form = rf"{scheme}{user}([\w-]+(?:\.[\w-]+)+)(?::\d+/|[:/])([\w./-]+?)"
    found = re.fullmatch(rf"{form}(?:\.git)?/?", origin)
    return f"https://{found[1]}/{found[2]}" if found else ""


def _origin(root: str) -> str:
    """Return the address of the repository: the workflow's, or where the clone came from."""
    if place := os.environ.get("GITHUB_REPOSITORY"):
        return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{place}"
    command = ["git", "-C", root, "config", "--get", "remote.origin.url"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if Path(root, ".git").exists() else ""
