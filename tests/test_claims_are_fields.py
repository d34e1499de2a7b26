"""No code searches in sentences: what a claim means is in its fields.

A comparison once asked whether "knows who" was in a threat model; other words for the same attacker
made it compare what must not be compared, and all tests passed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("auditors", "strategies", "clients", "fl_app")
# What holds prose, or once did, and what looks into a text.
PROSE = {"rule", "text", "threat_model", "assumptions"}
SEARCHES = {
    *("split", "rsplit", "partition", "rpartition", "startswith", "endswith", "splitlines"),
    *("find", "rfind", "index", "rindex", "count", "replace", "removeprefix", "removesuffix"),
}
REGEX = {"search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"}


def searches(tree: ast.AST) -> list[int]:
    """Return the lines that look into prose."""
    known = _names_of_prose(tree)
    return sorted({n.lineno for n in ast.walk(tree) if isinstance(n, ast.expr) and _is(n, known)})


def _is(node: ast.expr, known: set[str]) -> bool:
    match node:
        case ast.Compare(left, operators, others):
            pairs = zip([left, *others[:-1]], operators, others, strict=True)
            return any(_compares(*pair, known) for pair in pairs)
        case ast.Call(ast.Attribute(ast.Name("re"), _), arguments):
            return any(_is_prose(a, known) for a in arguments)
        case ast.Call(ast.Attribute(owner, name), arguments) if name in SEARCHES:
            # An identifier may be counted among the assumptions; a text may not be looked for.
            return _is_prose(owner, known) and not (_is_list(owner) and not _has_text(arguments))
        case ast.Call(ast.Attribute(_, name), arguments) if name in REGEX:
            return any(_is_prose(a, known) for a in arguments)
    return False


def _compares(left: ast.expr, operator: ast.cmpop, right: ast.expr, known: set[str]) -> bool:
    if isinstance(operator, ast.In | ast.NotIn):
        return _is_prose(right, known) and (not _is_list(right) or _has_text([left]))
    is_equality = isinstance(operator, ast.Eq | ast.NotEq)
    sides = (left, right)
    return is_equality and any(_is_prose(s, known) for s in sides) and _has_text(sides)


def _has_text(nodes: list[ast.expr] | tuple[ast.expr, ...]) -> bool:
    return any(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in nodes)


def _is_list(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "assumptions"


def _is_prose(node: ast.expr, known: set[str]) -> bool:
    match node:
        case ast.Name(name):
            return name in known
        case ast.Attribute(owner, name):
            # `self.rule` of a class that is no claim is no prose; those of claims have no methods
            # that search, and `f.threat_model.sees` is a field again.
            return name in PROSE and not (isinstance(owner, ast.Name) and owner.id == "self")
        case ast.Call(ast.Attribute(owner, name), _):
            return name == "sentence" or _is_prose(owner, known)
        case ast.Call(ast.Name(name), arguments):
            return name in ("sentence_of", "str", "attacker") and (
                name != "str" or any(_is_prose(a, known) for a in arguments)
            )
        case ast.Subscript(owner) | ast.NamedExpr(_, owner):
            return _is_prose(owner, known)
        case ast.JoinedStr(parts):
            inner = [p.value for p in parts if isinstance(p, ast.FormattedValue)]
            return any(_is_prose(p, known) for p in inner)
        case ast.BinOp(left, ast.Add(), right):
            return _is_prose(left, known) or _is_prose(right, known)
    return False


def _names_of_prose(tree: ast.AST) -> set[str]:
    """Return variables that are given prose, or run over a list of it."""
    known: set[str] = set()
    pairs = list(_given(tree))
    for _ in range(3):  # a name may get it from a name
        known |= {name for name, value in pairs if _is_prose(value, known)}
    return known


def _given(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign([ast.Name(name)], value):
                yield name, value
            case ast.NamedExpr(ast.Name(name), value):
                yield name, value
            case ast.For(ast.Name(name), value) | ast.comprehension(ast.Name(name), value):
                yield name, value


@pytest.mark.parametrize("room", ROOMS)
def test_no_code_searches_in_sentences(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for line in _of_file(path)
    ]
    assert found == []


def _of_file(path: Path) -> list[int]:
    """Return lines of a file; names count as prose within one function only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bodies: list[ast.AST] = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    bodies += [n for n in tree.body if not isinstance(n, ast.FunctionDef | ast.ClassDef)]
    return sorted({line for body in bodies for line in searches(body)})


@pytest.mark.parametrize(
    "code",
    [
        '"knows who" in measured.threat_model',
        'any("does not learn who took part" in a for a in guarantee.assumptions)',
        '"a sentence" in guarantee.assumptions',
        'findings[0].threat_model.split(" (game ")[0]',
        '_, found, rest = finding.threat_model.partition(" (game ")',
        'words = f.threat_model\nwords.startswith(("learns ", "sees "))',
        're.sub(r" \\([^)]*\\)", "", finding.rule)',
        "_PATTERN.search(finding.rule)",
        '"every round" not in lead.threat_model.sentence()',
        'limitation.text.endswith("clients")',
        'for words in f.assumptions:\n    words.find("independent")',
        'f.rule == "too few canaries"',
        'f"{f.rule}.".replace("a", "b")',
        '"if" in sentence_of(name)',
    ],
)
def test_the_search_finds_searches(code: str) -> None:
    assert searches(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "Assumption.FAIR_COINS in f.assumptions",
        'f.threat_model.sees == "final model"',
        'f.threat_model.game in ("partition", None)',
        "own = [a for a in f.assumptions if a not in bound.assumptions]",
        "replace(bound, rule=other.rule)",
        '"; ".join([f.rule, f.auditor])',
        'self.rule == "band"',
    ],
)
def test_fields_and_identifiers_may_be_compared(code: str) -> None:
    assert not searches(ast.parse(code))
