"""Writes the API reference, `docs/api.md`, from signatures and docstrings.

`python docs/make_api.py` rewrites the page, `--check` only says whether it is up to date.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("api.md")
# What is public: the front doors of the rooms, then modules with a table of names of their own.
DOORS = ("leakmeter.auditors", "leakmeter.strategies", "leakmeter.clients")
MODULES = (
    "leakmeter.auditors.gaussian",
    "leakmeter.auditors.bounds",
    "leakmeter.auditors.ldp",
    "leakmeter.auditors.likelihood_ratio",
    "leakmeter.auditors.information",
    "leakmeter.auditors.information.mine",
    "leakmeter.auditors.records",
    "leakmeter.auditors.reconstruction",
    "leakmeter.auditors.canary",
    "leakmeter.auditors.rng",
    "leakmeter.clients.water_filling",
)
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Example):$")


def page() -> str:
    """Return the whole reference."""
    lines = [
        "# API reference",
        "",
        "Made from the docstrings by `python docs/make_api.py`. A foreign project needs `auditors`",
        "only; `strategies` and `clients` are the mechanisms that it audits.",
        "",
    ]
    for name in (*DOORS, *MODULES):
        lines += _module(name)
    return "\n".join(lines).rstrip() + "\n"


def _module(name: str) -> Iterator[str]:
    module = import_module(name)
    yield from (f"## `{name}`", "", *_prose(module), "")
    for public in _public(module):
        yield from _entry(public, getattr(module, public))


def _public(module: Any) -> list[str]:
    """Return the names in the module's table."""
    return sorted(module.__all__)


def _entry(name: str, value: Any) -> Iterator[str]:
    yield from (f"### `{name}`", "")
    if inspect.isclass(value):
        yield from _class(name, value)
    elif not inspect.isfunction(value):
        yield from (f"A `{type(value).__name__}` with its default settings.", "")
    else:
        yield from ("```text", _signature(name, value, 96), "```", "", *_prose(value), "")


def _class(name: str, value: type) -> Iterator[str]:
    if not getattr(value, "_is_protocol", False):
        yield from ("```text", _signature(name, value, 96), "```", "")
    yield from (*_prose(value), "")
    for method, code in vars(value).items():
        if not inspect.isfunction(code) or method.startswith("_") or code.__name__[0] == "_":
            continue
        summary = (inspect.getdoc(code) or "").split("\n")[0]
        yield f"- `{_signature(method, code)}`" + (f": {summary}" if summary else "")
    yield ""


def _signature(name: str, value: Any, width: int = 0) -> str:
    """Return a call as it stands in the code, without `self`; a long one over several lines."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    words: list[str] = []
    has_star = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            words.append("*")
        has_star |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        words.append(_parameter(parameter))
    returns = "" if inspect.isclass(value) else f" -> {_annotation(signature.return_annotation)}"
    line = f"{name}({', '.join(words)}){returns}"
    if not width or len(line) <= width:
        return line
    return "\n".join([f"{name}(", *(f"    {word}," for word in words), f"){returns}"])


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = f"{stars}{parameter.name}: {_annotation(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return text
    shown = repr(parameter.default)
    return f"{text} = {'...' if shown.startswith('<') else shown}"


def _annotation(hint: Any) -> str:
    return hint if isinstance(hint, str) else inspect.formatannotation(hint)


def _prose(value: Any) -> list[str]:
    """Return a docstring as Markdown: its sections become lists."""
    text = inspect.getdoc(value) or ""
    if is_dataclass(value) and text.startswith(f"{value.__name__}("):  # made by dataclass itself
        text = "Fields: " + ", ".join(f"`{f.name}`" for f in fields(value)) + "."
    lines: list[str] = []
    in_section = False
    for line in text.splitlines():
        if found := _SECTION.match(line):
            lines += [f"**{found[1]}**", ""]
            in_section = found[1] != "Example"  # whose lines are code: indented already
        elif in_section and (item := re.match(r"^    (\*{0,2}[\w.]+)(?: \([^)]*\))?: (.*)$", line)):
            lines.append(f"- `{item[1]}`: {item[2]}")
        elif in_section and line.startswith("    "):
            lines.append(f"  {line.strip()}")
        else:
            lines.append(line)
    return lines


def main() -> int:
    """Write the page, or compare it."""
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
