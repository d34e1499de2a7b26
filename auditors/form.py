"""How our dataclasses look in JSON: their annotations are the one statement of the fields.

`form(cls)` reads a parsed JSON value into `cls` and describes the same values as JSON Schema
(draft 2020-12). Ours differs from general mappers in three ways:

1. JSON has no infinities: a float may be the text "inf", "-inf" or "nan".
2. Fields that are not known here are left alone: a later release may write more.
3. Every known field must be there, also one with a default. A lower bound that lost its
   assumptions would read as unconditional.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from inspect import getdoc
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

_WORDS: Final = ("inf", "-inf", "nan")  # numbers that JSON lacks
_BITS: Final = 128  # of a whole number: enough for seeds, and far within floats
# What the schemas of forms refer to.
DEFINITIONS: Final[Mapping[str, Any]] = {
    "number": {"anyOf": [{"type": "number"}, {"enum": list(_WORDS)}]}
}


class FormError(ValueError):
    """A value does not have its form. The text names the place, what is allowed and what came."""


@dataclass(frozen=True, eq=False)
class Form:
    """The form of one type in JSON.

    Attributes:
        allowed: What may be there, in words.
        schema: The same as JSON Schema.
        accepts: Whether a value is of this form, without a look inside it.
        build: Returns an accepted value as ours, given its place.
    """

    allowed: str
    schema: Mapping[str, Any]
    accepts: Callable[[Any], bool]
    build: Callable[[Any, str], Any] = lambda value, _: value

    def read(self, value: Any, where: str = "") -> Any:
        """Return the value as ours.

        Raises:
            FormError: It has another form, here or further inside.
        """
        if not self.accepts(value):
            place = where or "the content"
            raise FormError(f"{place} must be {self.allowed}, got {short(value)}")
        return self.build(value, where)


def form(hint: Any) -> Form:
    """Return the form of a type.

    Known are float, int, bool, str, None, Any, Literal, tuple, Mapping, dataclasses and unions of
    these. Several dataclasses in one union are distinguished by their field `type`.
    """
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, type) and is_dataclass(hint):
        return _of_dataclass(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _of_words(arguments)
    if origin in (Union, UnionType):
        return _of_union(arguments)
    if origin is tuple:
        return _of_tuple(arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _of_mapping(form(arguments[1]))
    raise TypeError(f"form has no rule for {hint}")


def short(value: Any) -> str:
    """Return a value as an error shows it."""
    words = repr(value)
    return words if len(words) <= 80 else words[:77] + "..."


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or isinstance(value, float) or value in _WORDS


def _int(value: Any, where: str) -> int:
    if abs(value) >= 2**_BITS:
        raise FormError(f"{where} must be a whole number of {_BITS} bits, got {short(value)}")
    return int(value)


def _float(value: Any, where: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise FormError(f"{where} must be a number within ±1.8e308, got {short(value)}") from None


_PLAIN: Final[Mapping[Any, Form]] = {
    bool: Form("true or false", {"type": "boolean"}, lambda value: isinstance(value, bool)),
    int: Form("a whole number", {"type": "integer"}, _is_whole, _int),
    float: Form(
        'a number, or "inf", "-inf", "nan"',
        {"$ref": "#/$defs/number"},
        _is_number,
        _float,
    ),
    str: Form("a text", {"type": "string"}, lambda value: isinstance(value, str)),
    type(None): Form("null", {"type": "null"}, lambda value: value is None),
    Any: Form("anything", {}, lambda _: True),
}


def _of_words(words: Sequence[str]) -> Form:
    """Return the form of one of several texts."""
    return Form(
        f"one of {', '.join(words)}" if len(words) > 1 else words[0],
        {"enum": list(words)},
        lambda value: isinstance(value, str) and value in words,
    )


def _of_union(hints: Sequence[Any]) -> Form:
    """Return the form of any of several types."""
    tagged = [hint for hint in hints if is_dataclass(hint)]
    if len(tagged) > 1:
        return _of_tagged([form(hint) for hint in tagged])
    if str in hints:  # and any text, so words that are also suggested forbid nothing
        hints = [hint for hint in hints if get_origin(hint) is not Literal]
    members = [form(hint) for hint in hints]
    first = [form(hint) for hint in hints if hint in (bool, int)]

    def build(value: Any, where: str) -> Any:
        # 3 is a whole number before it is a number.
        fitting = next(one for one in [*first, *members] if one.accepts(value))
        return fitting.read(value, where)

    return Form(
        ", or ".join(one.allowed for one in members),
        {"anyOf": [one.schema for one in members]} if len(members) > 1 else members[0].schema,
        lambda value: any(one.accepts(value) for one in members),
        build,
    )


def _of_tagged(members: Sequence[Form]) -> Form:
    """Return the form of objects that say by `type` which they are."""
    by_tag = {one.schema["properties"]["type"]["enum"][0]: one for one in members}
    tags = _of_words(list(by_tag))

    def build(value: Any, where: str) -> Any:
        tag = tags.read(value.get("type"), _inside(where, "type"))
        return by_tag[tag].read(value, where)

    return Form("an object", {"anyOf": [one.schema for one in members]}, _is_object, build)


def _of_tuple(hints: Sequence[Any]) -> Form:
    """Return the form of a list, whose items all have one form."""
    item = form(hints[0])
    count = None if hints[-1] is Ellipsis else len(hints)
    size = {} if count is None else {"minItems": count, "maxItems": count}

    def build(value: Any, where: str) -> tuple[Any, ...]:
        return tuple(item.read(one, f"{where}[{i}]") for i, one in enumerate(value))

    return Form(
        "a list" + ("" if count is None else f" of {count}"),
        {"type": "array", "items": item.schema, **size},
        lambda value: isinstance(value, list) and count in (None, len(value)),
        build,
    )


def _of_mapping(item: Form) -> Form:
    """Return the form of an object whose values all have one form."""

    def build(value: Any, where: str) -> dict[str, Any]:
        return {name: item.read(one, _inside(where, name)) for name, one in value.items()}

    schema = {"type": "object", "additionalProperties": item.schema}
    return Form("an object", schema, _is_object, build)


@cache
def _of_dataclass(cls: Any) -> Form:
    """Return the form of an object with the fields of a dataclass."""
    hints, notes = get_type_hints(cls), _notes(cls)
    forms = {spec.name: form(hints[spec.name]) for spec in fields(cls)}

    def build(value: Any, where: str) -> Any:
        for name in forms:
            if name not in value:
                got = short(sorted(value))
                raise FormError(f"{where or 'the content'} must have a field {name!r}, got {got}")
        found = {name: one.read(value[name], _inside(where, name)) for name, one in forms.items()}
        try:
            return cls(**found)
        except ValueError as error:  # what no single field shows
            raise FormError(f"{where}: {error}" if where else str(error)) from None

    schema = {
        "title": cls.__name__,
        "description": (getdoc(cls) or "").partition("\n")[0],
        "type": "object",
        "properties": {
            name: {**one.schema, **({"description": notes[name]} if name in notes else {})}
            for name, one in forms.items()
        },
        "required": list(forms),
    }
    return Form("an object", schema, _is_object, build)


def _notes(cls: type) -> dict[str, str]:
    """Return what the docstrings of a class and its bases say of each attribute."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        _, _, listed = (base.__doc__ or "").partition("Attributes:\n")
        for name, text in re.findall(r"^ {8}(\w+): (.+(?:\n {12}.+)*)", listed, re.MULTILINE):
            found[name] = re.sub(r"\s+", " ", text)
    return found


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _inside(where: str, name: str) -> str:
    name = name if name.isprintable() else repr(name)  # an error is one line
    return f"{where}.{name}" if where else name
