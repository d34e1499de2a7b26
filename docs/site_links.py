"""A hook of mkdocs: links that leave the site become the path in the repository.

The Markdown pages are read in the repository too, where `../examples/own_loop` is a folder. The
site has no such page, so the path is shown as text. A link to a file that is nowhere would become
text as well; `tests/test_docs.py` finds those.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s:]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, files: Any, **_: Any) -> str:
    """Return the page with such links replaced, and those to folders of results too."""
    here = posixpath.dirname(page.file.src_uri)

    def replaced(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = posixpath.normpath(posixpath.join("docs", here, target))
        if files.get_file_from_path(path.removeprefix("docs/")) is not None:
            return link[0]
        return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"

    return _LINK.sub(replaced, markdown)
