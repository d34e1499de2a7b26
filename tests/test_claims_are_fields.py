"""No code searches in sentences: what a claim means is in its fields.

A comparison once asked whether "knows who" was in a threat model; other words for the same attacker
made it compare what must not be compared, and all tests passed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("auditors", "strategies", "clients", "fl_app")
# What holds prose, or once did, what makes it, and what looks into a text.
PROSE = {"rule", "text", "threat_model", "assumptions"}
FREE = {"rule", "text"}  # of these nothing is an identifier
MAKERS = {
    *(
        "attacker",
        "claim",
        "condition",
        "sentence_of",
        "sentence",
        "evidence",
        "remark",
        "remarked",
    ),
    *("signed", "size", "terms", "null_band"),
}
# Modules all of whose functions return words: cells of a verdict's table, and its sentences.
WORDY = {"labels", "sentences"}
SEARCHES = {
    *("split", "rsplit", "partition", "rpartition", "startswith", "endswith", "splitlines"),
    *("find", "rfind", "index", "rindex", "count", "replace", "removeprefix", "removesuffix"),
}
REGEX = {"search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"}


def searches(tree: ast.AST, makers: frozenset[str] | None = None) -> list[int]:
    """Return the lines that look into prose.

    Args:
        tree: Of a function, or of statements.
        makers: Helpers that return prose; by default those in the tree itself.
    """
    known = _names_of_prose(tree, _helpers([tree]) if makers is None else makers)
    found = (n for n in _nodes(tree) if isinstance(n, ast.expr | ast.Match))
    return sorted({n.lineno for n in found if _is(n, known)})


@cache
def _nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return what `ast.walk` does, without contexts such as `Load`, in half the time."""
    found = [tree]
    for node in found:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                found += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST) and name != "ctx":
                found.append(value)
    return tuple(found)


def _is(node: ast.expr | ast.Match, known: set[str]) -> bool:
    match node:
        case ast.Match(subject):
            return _is_prose(subject, known)
        case ast.Subscript(_, key):
            return _is_free(key, known)
        case ast.Dict(keys):
            return any(key is not None and _is_free(key, known) for key in keys)
        case ast.DictComp(key):
            return _is_free(key, known)
        case ast.Call(ast.Attribute(_, "get" | "setdefault" | "pop"), [key, *_]):
            return _is_free(key, known)
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
        is_one_of = _is_prose(left, known) and isinstance(right, ast.Tuple | ast.List | ast.Set)
        inside = _is_prose(right, known) and (not _is_list(right) or _has_text([left]))
        return inside or (is_one_of and _has_text([right]))
    is_equality = isinstance(operator, ast.Eq | ast.NotEq)
    sides = (left, right)
    if is_equality and any(_is_free(side, known) for side in sides):
        return True
    return is_equality and any(_is_prose(s, known) for s in sides) and _has_text(sides)


def _has_text(nodes: list[ast.expr] | tuple[ast.expr, ...]) -> bool:
    return any(
        isinstance(inner, ast.Constant) and isinstance(inner.value, str)
        for node in nodes
        for inner in (node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node])
    )


def _is_free(node: ast.expr, known: set[str]) -> bool:
    """Whether it is a text without any form: not even equality of two means anything."""
    match node:
        case ast.Attribute(_, name) if name in FREE:
            return _is_prose(node, known)
        case ast.Name(name):
            return f"free {name}" in known
        case ast.Call(ast.Name("getattr"), [_, ast.Constant(name), *_]):
            return name in FREE
        case ast.NamedExpr(_, value):
            return _is_free(value, known)
    return False


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
        case ast.Call(ast.Name("getattr"), [_, ast.Constant(name), *_]):
            return name in PROSE
        case ast.Call(ast.Attribute(ast.Name("wording" | "assumptions"), name), _):
            return name in MAKERS
        case ast.Call(ast.Attribute(ast.Name(module), _), _) if module in WORDY:
            return True
        case ast.Call(ast.Attribute(owner, name), _):
            return name == "sentence" or _is_prose(owner, known)
        case ast.Call(ast.Name("str" | "len" | "hash" | "set" | "list" | "sorted"), arguments):
            return any(_is_prose(a, known) for a in arguments)
        case ast.Call(ast.Name(name), _):
            return name in MAKERS or f"{name}()" in known
        case ast.Subscript(_, ast.Constant(name)) if name in FREE:
            return True
        case ast.Subscript(owner) | ast.NamedExpr(_, owner):
            return _is_prose(owner, known)
        case ast.JoinedStr(parts):
            inner = [p.value for p in parts if isinstance(p, ast.FormattedValue)]
            return any(_is_prose(p, known) for p in inner)
        case ast.BinOp(left, ast.Add(), right):
            return _is_prose(left, known) or _is_prose(right, known)
    return False


def _names_of_prose(tree: ast.AST, makers: frozenset[str]) -> set[str]:
    """Return variables that are given prose, or run over a list of it, and makers with "()"."""
    known = {f"{name}()" for name in makers}
    pairs = _pairs(tree)
    for _ in range(3):  # a name may get it from a name
        found = {name for name, value in pairs if _is_prose(value, known)}
        found |= {f"free {name}" for name, value in pairs if _is_free(value, known)}
        if found <= known:
            break
        known |= found
    return known


def _helpers(trees: Sequence[ast.AST]) -> frozenset[str]:
    """Return functions that return prose, and names that stand for one that does."""
    functions = [n for t in trees for n in _nodes(t) if isinstance(n, ast.FunctionDef)]
    found: frozenset[str] = frozenset()
    for _ in range(3):  # a helper may call a helper
        found |= {f.name for f in functions if _returns_prose(f, found)}
    return found


def _returns_prose(function: ast.FunctionDef, makers: frozenset[str]) -> bool:
    returned = _returned(function)
    known = _names_of_prose(function, makers) if returned else set()
    return any(_is_prose(value, known) for value in returned)


@cache
def _returned(function: ast.FunctionDef) -> tuple[ast.expr, ...]:
    return tuple(n.value for n in _nodes(function) if isinstance(n, ast.Return) and n.value)


@cache
def _pairs(tree: ast.AST) -> tuple[tuple[str, ast.expr], ...]:
    return tuple(_given(tree))


def _given(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in _nodes(tree):
        match node:
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, value):
                if value is not None:
                    yield name, value
            case ast.Assign([ast.Tuple(names)], ast.Tuple(values)):
                for one, value in zip(names, values, strict=False):
                    if isinstance(one, ast.Name):
                        yield one.id, value
            case ast.NamedExpr(ast.Name(name), value):
                yield name, value
            case ast.For(ast.Name(name), value) | ast.comprehension(ast.Name(name), value):
                yield name, value


def test_no_code_searches_in_sentences() -> None:
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    assert len(paths) > 150
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    makers = _helpers(list(trees.values()))
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, tree in trees.items()
        for line in _of_file(tree, makers)
    ]
    assert found == []


def _of_file(tree: ast.Module, makers: frozenset[str]) -> list[int]:
    """Return lines of a file; names count as prose within one function only."""
    bodies: list[ast.AST] = [n for n in _nodes(tree) if isinstance(n, ast.FunctionDef)]
    bodies += [n for n in tree.body if not isinstance(n, ast.FunctionDef | ast.ClassDef)]
    return sorted({line for body in bodies for line in searches(body, makers)})


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
        '"canary" in getattr(lead, "rule")',
        'def who(f):\n    return wording.attacker(f.threat_model)\n"sees" in who(lead)',
        'def covers(g, bound):\n    return not condition(bound).startswith("if ")',
        'def words(w):\n    return w.text\n"clipped" in words(warning)',
        "_LEVELS[f.rule]",
        "{f.rule: f for f in findings}",
        "_LEVELS.get(f.rule)",
        'x = f.rule\n"coins" in x',
        'x: str = f.rule\n"coins" in x',
        'name, x = f.auditor, f.rule\n"coins" in x',
        'match f.rule:\n    case "too few canaries":\n        pass',
        'f.rule in ("too few canaries", "too few trials")',
        "f.rule == g.rule",
        'report["findings"][0]["rule"].startswith("too few")',
        '"if" in claim(f)',
        'wording.claim(f).startswith("if")',
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
        "value(bound) != value(f)",
        "seen = dict.fromkeys(f.rule for f in findings)",
        'def who(f):\n    return f.auditor\n"one" in who(lead)',
    ],
)
def test_fields_and_identifiers_may_be_compared(code: str) -> None:
    assert not searches(ast.parse(code))
