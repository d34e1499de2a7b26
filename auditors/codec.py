"""Our values in JSON and in checkpoints: annotations are the one statement of the fields.

`codec(type)` reads a parsed value into that type and describes the same values as JSON Schema
(draft 2020-12); `plain` writes them. An attribute annotated with `Kept` survives an interruption:
`Resumable` writes it into a state and reads it back; `pack` and `unpack` make one file of a state.
Ours differs from general mappers in four ways:

1. JSON has no infinities: a float may be the text "inf", "-inf" or "nan".
2. Fields that are not known here are left alone: a later release may write more.
3. Every known field must be there, also one with a default. A lower bound that lost its
   assumptions would read as unconditional.
4. A state may contain numpy arrays, whose type and shape are checked.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import cycle
from types import SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
_MARK: Final = "kept"
Kept = Annotated[T, _MARK]  # the type of an attribute that survives an interruption
_IS_KEPT: Final = re.compile(r"(\w+\.)*Kept\[")  # how such an annotation begins as text

_WORDS: Final = ("inf", "-inf", "nan")  # numbers that JSON lacks
_BITS: Final = 128  # of a whole number: enough for seeds, and far within floats
_ARRAY: Final = "__array__"  # stands for an array in the text of a packed state
_TEXT, _DIGEST = "state", "digest"  # beside the arrays of a packed state
# What the schemas of codecs refer to.
DEFINITIONS: Final[Mapping[str, Any]] = {
    "number": {"anyOf": [{"type": "number"}, {"enum": list(_WORDS)}]}
}


class CodecError(ValueError):
    """A value is not of its type. The text names the place, what is allowed and what came."""


@dataclass(frozen=True, eq=False)
class Codec:
    """How values of one type are read, and what is allowed.

    Attributes:
        allowed: What may be there, in words.
        schema: The same as JSON Schema.
        accepts: Whether a value may be of this type, without a look inside it.
        build: Returns an accepted value as ours, given its place.
    """

    allowed: str
    schema: Mapping[str, Any]
    accepts: Callable[[Any], bool]
    build: Callable[[Any, str], Any] = lambda value, _: value

    def read(self, value: Any, where: str = "") -> Any:
        """Return the value as ours.

        Raises:
            CodecError: It is not of this type, here or further inside.
        """
        if not self.accepts(value):
            place = where or "the content"
            raise CodecError(f"{place} must be {self.allowed}, got {short(value)}")
        return self.build(value, where)


def codec(hint: Any) -> Codec:
    """Return how values of a type are read.

    Known are float, int, bool, str, None, Any, Literal, tuple, list, set, Mapping, Counter, numpy
    arrays, dataclasses and unions of these. Several dataclasses in one union are distinguished by
    their field `type`.
    """
    if hint in _PLAIN:
        return _PLAIN[hint]
    if getattr(hint, "_is_protocol", False):
        return _PLAIN[Any]  # whoever knows its type has read it
    if isinstance(hint, type) and issubclass(hint, Resumable):
        return Codec(f"the state of a {hint.__name__}", {}, lambda _: False)  # only in place
    if isinstance(hint, type) and is_dataclass(hint):
        return _of_dataclass(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if hasattr(origin, "__value__"):  # `type` aliases, such as NDArray since numpy 2.5
        return codec(origin.__value__[arguments])
    if origin is Literal:
        return _of_words(arguments)
    if origin in (Union, UnionType):
        return _of_union(arguments)
    if origin is np.ndarray:
        return _of_array(arguments[1])
    if origin is Counter:
        return _of_mapping(arguments[0], int, Counter)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _of_mapping(arguments[0], arguments[1], dict)
    if origin in (tuple, list, set, frozenset):
        return _of_items([one for one in arguments if one is not Ellipsis], origin)
    raise TypeError(f"codec has no rule for {hint}")


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
        raise CodecError(f"{where} must be a whole number of {_BITS} bits, got {short(value)}")
    return int(value)


def _float(value: Any, where: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise CodecError(f"{where} must be a number within ±1.8e308, got {short(value)}") from None


_PLAIN: Final[Mapping[Any, Codec]] = {
    bool: Codec("true or false", {"type": "boolean"}, lambda value: isinstance(value, bool)),
    int: Codec("a whole number", {"type": "integer"}, _is_whole, _int),
    float: Codec(
        'a number, or "inf", "-inf", "nan"',
        {"$ref": "#/$defs/number"},
        _is_number,
        _float,
    ),
    str: Codec("a text", {"type": "string"}, lambda value: isinstance(value, str)),
    type(None): Codec("null", {"type": "null"}, lambda value: value is None),
    Any: Codec("anything", {}, lambda _: True),
}


def _of_words(words: Sequence[str]) -> Codec:
    """Return the codec of one of several texts."""
    return Codec(
        f"one of {', '.join(words)}" if len(words) > 1 else words[0],
        {"enum": list(words)},
        lambda value: isinstance(value, str) and value in words,
    )


def _of_union(hints: Sequence[Any]) -> Codec:
    """Return the codec of any of several types."""
    tagged = [hint for hint in hints if is_dataclass(hint)]
    if len(tagged) > 1:
        return _of_tagged([codec(hint) for hint in tagged])
    if str in hints:  # and any text, so words that are also suggested forbid nothing
        hints = [hint for hint in hints if get_origin(hint) is not Literal]
    members = [codec(hint) for hint in hints]
    first = [codec(hint) for hint in hints if hint in (bool, int)]

    def build(value: Any, where: str) -> Any:
        # 3 is a whole number before it is a number.
        fitting = next(one for one in [*first, *members] if one.accepts(value))
        return fitting.read(value, where)

    return Codec(
        ", or ".join(one.allowed for one in members),
        {"anyOf": [one.schema for one in members]} if len(members) > 1 else members[0].schema,
        lambda value: any(one.accepts(value) for one in members),
        build,
    )


def _of_tagged(members: Sequence[Codec]) -> Codec:
    """Return the codec of objects that say by `type` which they are."""
    by_tag = {one.schema["properties"]["type"]["enum"][0]: one for one in members}
    tags = _of_words(list(by_tag))

    def build(value: Any, where: str) -> Any:
        tag = tags.read(value.get("type"), _inside(where, "type"))
        return by_tag[tag].read(value, where)

    return Codec("an object", {"anyOf": [one.schema for one in members]}, _is_object, build)


def _of_items(hints: Sequence[Any], kind: Callable[[Iterable[Any]], Any]) -> Codec:
    """Return the codec of a list of any length, or for several types of as many items."""
    items, count = [codec(hint) for hint in hints], len(hints)
    described: dict[str, Any] = {"items": items[0].schema}
    if len(set(hints)) > 1:
        described = {"prefixItems": [one.schema for one in items]}
    if count > 1:
        described |= {"minItems": count, "maxItems": count}

    def accepts(value: Any) -> bool:
        return isinstance(value, list) and count in (1, len(value))

    def build(value: Any, where: str) -> Any:
        places = enumerate(zip(cycle(items), value, strict=False))
        return kind(item.read(one, f"{where}[{i}]") for i, (item, one) in places)

    allowed = f"a list of {count}" if count > 1 else "a list"
    return Codec(allowed, {"type": "array", **described}, accepts, build)


def _of_array(hint: Any) -> Codec:
    """Return the codec of a numpy array of one type of numbers; of any, if the hint says so."""
    wanted = np.dtype(kind) if issubclass(kind := get_args(hint)[0], np.generic) else None

    def build(value: Any, where: str) -> NDArray[Any]:
        fits = value.dtype.kind in "fiub" and wanted in (None, value.dtype)
        if not fits and (wanted is None or not np.can_cast(value.dtype, wanted, "same_kind")):
            allowed = f"an array of {wanted or 'numbers'}"
            raise CodecError(f"{where} must be {allowed}, got one of {value.dtype}")
        return np.array(value, dtype=wanted)  # a copy: whoever reads it may add to it

    schema = {"type": "array"}
    return Codec("an array", schema, lambda value: isinstance(value, np.ndarray), build)


def _of_mapping(key: Any, hint: Any, kind: Callable[[Any], Any]) -> Codec:
    """Return the codec of an object whose values are all of one type; keys are texts in JSON."""
    item = codec(hint)

    def build(value: Any, where: str) -> Any:
        items = value.items()
        return kind({_key(key, k, where): item.read(v, _inside(where, k)) for k, v in items})

    schema = {"type": "object", "additionalProperties": item.schema}
    return Codec("an object", schema, _is_object, build)


def _key(hint: Any, text: str, where: str) -> Any:
    """Return a name of an object as ours."""
    place = f"a name in {where or 'the content'}"
    if hint is not int:
        return codec(hint).read(text, place)
    if not re.fullmatch(r"-?\d{1,38}", text, re.ASCII):
        raise CodecError(f"{place} must be a whole number, got {short(text)}")
    return int(text)


@cache
def _of_dataclass(cls: Any) -> Codec:
    """Return the codec of an object with the fields of a dataclass."""
    hints, notes = get_type_hints(cls), _notes(cls)
    codecs = {spec.name: codec(hints[spec.name]) for spec in fields(cls) if spec.init}

    def build(value: Any, where: str) -> Any:
        _check_object(value, codecs, where or "the content")
        found = {name: one.read(value[name], _inside(where, name)) for name, one in codecs.items()}
        try:
            return cls(**found)
        except ValueError as error:  # what no single field shows
            raise CodecError(f"{where}: {error}" if where else str(error)) from None

    schema = {
        "title": cls.__name__,
        "description": (inspect.getdoc(cls) or "").partition("\n")[0],
        "type": "object",
        "properties": {
            name: {**one.schema, **({"description": notes[name]} if name in notes else {})}
            for name, one in codecs.items()
        },
        "required": list(codecs),
    }
    return Codec("an object", schema, _is_object, build)


def _notes(cls: type) -> dict[str, str]:
    """Return what the docstrings of a class and its bases say of each attribute."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        # Cleaned, since Python 3.13 strips what all lines are indented by.
        _, _, listed = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
        for name, text in re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", listed, re.MULTILINE):
            found[name] = re.sub(r"\s+", " ", text)
    return found


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _check_object(value: Any, names: Iterable[str], where: str) -> None:
    """Raise unless `value` is an object with these fields."""
    if not _is_object(value):
        raise CodecError(f"{where} must be an object, got {short(value)}")
    for name in names:
        if name not in value:
            got = short(sorted(value))
            raise CodecError(f"{where} must have a field {name!r}, got {got}")


def _inside(where: str, name: str) -> str:
    name = name if name.isprintable() else repr(name)  # an error is one line
    return f"{where}.{name}" if where else name


def plain(value: Any, array: Callable[[NDArray[Any]], Any] | None = None) -> Any:
    """Return `value` in types that every JSON reader knows.

    Args:
        value: Numbers, texts, containers and dataclasses.
        array: What becomes of an array, for a state, which may contain them and infinities; None
            makes lists of arrays and texts of infinities.
    """
    if isinstance(value, Mapping):
        return {str(k): plain(v, array) for k, v in value.items()}
    if isinstance(value, np.ndarray) and array is not None:
        return array(value)
    if isinstance(value, np.ndarray) and value.dtype == np.float64 and np.isfinite(value).all():
        return value.tolist()  # as below, in a hundredth of the time
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(v, array) for v in value]
    if isinstance(value, AbstractSet):
        return [plain(v, array) for v in sorted(value)]
    if isinstance(value, np.generic):
        return plain(value.item(), array)
    if isinstance(value, float) and not math.isfinite(value) and array is None:
        return str(value)
    if isinstance(value, str):  # a member of an enumeration as its text
        return str(value)
    if is_dataclass(value):
        return {spec.name: plain(getattr(value, spec.name), array) for spec in fields(value)}
    return value


class Resumable:
    """Survives an interruption with the attributes that are annotated with `Kept`.

    An attribute may itself be `Resumable`: it is restored in place. In a state, names have no
    underscore in front. Override `state` and `restore` for what annotations cannot say.
    """

    def state(self) -> dict[str, Any]:
        """Return everything needed to resume: JSON types with text keys, and numpy arrays."""
        kept = {
            key: getattr(self, name) for key, (name, _) in _kept_by(cast(Any, type(self))).items()
        }
        return {
            key: one.state() if isinstance(one, Resumable) else plain(one, np.copy)
            for key, one in kept.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned.

        Raises:
            CodecError: The state is not of this class. An array must have the shape of the array
                that is there now, unless that is empty.
        """
        declared = _kept_by(cast(Any, type(self)))
        _check_object(state, declared, "the state")
        found = {}
        for key, (name, hint) in declared.items():
            now = getattr(self, name)
            if isinstance(now, Resumable):
                try:
                    now.restore(state[key])
                except CodecError as error:
                    raise CodecError(f"{key}: {error}") from None
                continue
            found[name] = codec(hint).read(state[key], key)
            if isinstance(now, np.ndarray) and now.size and now.shape != found[name].shape:
                raise CodecError(
                    f"{key} must have shape {now.shape}, got {found[name].shape} of {now.dtype}"
                )
        for name, value in found.items():
            setattr(self, name, value)


@cache
def _kept_by(cls: Any) -> Mapping[str, tuple[str, Any]]:
    """Return what a class and its bases keep: name in a state to attribute and type."""
    found = {}
    for base in reversed(cls.__mro__):
        # Others may name what is imported for a type checker alone.
        texts = {
            name: hint
            for name, hint in _annotations(base).items()
            if (_IS_KEPT.match(hint) if isinstance(hint, str) else get_origin(hint) is Annotated)
        }
        hints = get_type_hints(
            SimpleNamespace(__annotations__=texts),
            vars(sys.modules.get(base.__module__, sys)),
            _names_around(base),
            include_extras=True,
        )
        for name, hint in hints.items():
            if get_origin(hint) is Annotated and _MARK in hint.__metadata__:
                found[name.lstrip("_")] = name, hint.__origin__
    return found


def _names_around(cls: type) -> dict[str, Any]:
    """Return what the code of a class can name, also where it is run as text, in no module."""
    methods = (one for one in vars(cls).values() if inspect.isfunction(one))
    return {name: value for one in methods for name, value in one.__globals__.items()}


def _annotations(cls: type) -> Mapping[str, Any]:
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        return get_annotations(cls, format=Format.FORWARDREF)
    return inspect.get_annotations(cls)


def pack(state: Any) -> bytes:
    """Return a state (dictionaries, lists, scalars, arrays) as the content of one file."""
    text, arrays = _split(state)
    buffer = io.BytesIO()
    named: dict[str, Any] = {f"a{i}": array for i, array in enumerate(arrays)}
    named[_DIGEST] = np.array(_digest(text, arrays))
    named[_TEXT] = np.array(text)
    np.savez(buffer, **named)
    return buffer.getvalue()


def unpack(content: bytes) -> Any:
    """Return what `pack` was given, tuples as lists.

    Raises:
        CodecError: The content is damaged.
    """
    try:
        # From memory: numpy leaves a file open if it is not a complete archive.
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        text, digest = str(arrays.pop(_TEXT)), str(arrays.pop(_DIGEST))
        state = json.loads(
            text, object_hook=lambda one: arrays[one[_ARRAY]] if set(one) == {_ARRAY} else one
        )
    except Exception as error:  # a damaged archive can make numpy and zipfile raise anything
        raise CodecError(str(error) or type(error).__name__) from None
    if _digest(text, arrays.values()) != digest:
        raise CodecError("the content is not what was written there")
    return state


def _split(state: Any) -> tuple[str, list[NDArray[Any]]]:
    """Return a state as text, in which numbers stand for its arrays, and the arrays."""
    _check_names(state)
    arrays: list[NDArray[Any]] = []

    def replaced(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, np.ndarray) or value.dtype.hasobject:
            kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
            raise TypeError(f"a state contains JSON types and arrays of numbers only, got {kind}")
        arrays.append(value)
        return {_ARRAY: f"a{len(arrays) - 1}"}

    return json.dumps(state, default=replaced), arrays


def _check_names(value: Any) -> None:
    """Raise if a key is no text, which JSON would make one, or one that stands for an array."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value) or set(value) == {_ARRAY}:
            raise TypeError(f"keys of a state must be texts, got {short(list(value))}")
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            _check_names(one)


def _digest(text: str, arrays: Iterable[NDArray[Any]]) -> str:
    """Return a hash of everything in a state."""
    found = hashlib.sha256(text.encode())
    for array in arrays:
        found.update(f"{array.dtype.str}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return found.hexdigest()
