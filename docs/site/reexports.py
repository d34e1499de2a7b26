"""Tells the reference which names are public: those imported `as` themselves.

The rooms list their names like this under TYPE_CHECKING and import them on first use, so a tool
that only reads the code finds no `__all__`.
"""

from __future__ import annotations

import ast
from typing import Any

import griffe


class ReExports(griffe.Extension):
    """Marks `from a import Name as Name`, the convention of type checkers."""

    def on_module_members(self, *, node: ast.AST, mod: griffe.Module, **_: Any) -> None:
        """Mark the names of one module."""
        if isinstance(node, ast.Module):
            imports = (one for one in ast.walk(node) if isinstance(one, ast.ImportFrom))
            for name in (name for one in imports for name in one.names):
                if name.name == name.asname and name.name in mod.members:
                    mod.members[name.name].public = True
