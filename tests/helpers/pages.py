"""What every page of ours keeps to."""

from __future__ import annotations

import base64
import hashlib
import re
from html import unescape


def check_policy(page: str, *more: str) -> None:
    """Check that a page allows its own style and script by their hashes, and nothing else."""
    [policy] = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    allowed = ["default-src 'none'"]
    for kind in ("style", "script"):
        [text] = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        allowed.append(f"{kind}-src 'sha256-{digest}'")
    assert unescape(policy).split("; ") == [*allowed, "img-src data:", *more]
    # Neither is covered by a hash, so the browser would leave them out.
    assert not re.search(r"<[^>]+ (style|on[a-z]+)=", page.partition("<body>")[2])
