"""Records to plain JSON values and back: the one reader of files and messages that anyone may have written.

A frozen dataclass declares the form. The type of a field says what may stand there, `Annotated` what more must hold
(under a name of the module, for a function in an annotation sees no others):

    Size = Annotated[int, Must(lambda n: n >= 0, "a size")]

Types are bool, int, float, str, None, `Literal`, records, `tuple[T, ...]`, `tuple[A, B]`, `Mapping[str, T]`, unions of
these, and `object` for a value whose form is not declared. A field `from_` is the key "from"; a field with the metadata
`REST` holds all keys without a field of their own. Sizes, depths and numbers are bounded everywhere.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

REST = {"rest": True}
T = TypeVar("T")
_LARGEST = 1 << 63
_NOT_FINITE = ("inf", "-inf", "nan")
_NAMES = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    tuple: "a list",
    dict: "an object",
    type(None): "null",
}


class Unfit(ValueError):
    """A value that is not as declared. Whoever reads the file says what to do about it."""

    def __init__(self, expected: str, found: str, where: str = "") -> None:
        self.expected, self.found, self.where = expected, found, where
        super().__init__(f"expected {expected}{' at ' if where else ''}{where}, found {found}")

    def inside(self, outer: str) -> Unfit:
        """The same, seen from further out."""
        return Unfit(self.expected, self.found, outer + self.where)


@dataclass(frozen=True)
class Form:
    """What is taken beyond what types declare, and the bounds of everything."""

    other_fields: bool = False  # fields that are not declared are passed over
    salvage: bool = False  # what is not as declared counts as absent
    lowest: int = -_LARGEST  # of a declared integer; none is larger than int64 holds
    longest: int = 1 << 20  # characters of a text
    most: int = 1 << 20  # items of a list
    deepest: int = 16  # of a value whose form is not declared
    any_number: bool = False  # in such a value: whoever reads it with a form of its own bounds them


@dataclass(frozen=True)
class Must:
    """In `Annotated`: what a value must satisfy, and how that is called."""

    holds: Callable[[Any], object]
    expected: str


STRICT = Form()


def plain(value: object, nulls: bool = True) -> Any:
    """Records, and what is in them, as JSON values; numbers that JSON lacks become words. `nulls`: fields that are None
    are kept."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        out: dict[str, object] = {}
        for f in dataclasses.fields(value):
            found = getattr(value, f.name)
            if f.metadata == REST:
                out |= plain(found, nulls)
            elif nulls or found is not None:
                out[_key(f)] = plain(found, nulls)
        return out
    if isinstance(value, Mapping):
        return {str(key): plain(item, nulls) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, nulls) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item, nulls) for item in value)
    if not isinstance(value, (str, int, float)) and hasattr(value, "item"):
        value = value.item()  # one of NumPy's
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def parse(text: str | bytes, unique: bool = True) -> Any:
    """The JSON value; `Unfit` for anything else, for numbers that are none, and (`unique`) for a key that occurs twice
    in one object."""
    try:
        return json.loads(text, object_pairs_hook=_unique if unique else None, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Unfit("JSON in UTF-8", f"{type(error).__name__} ({str(error)[:200]})") from error


def parse_file(path: Path, most_bytes: int) -> Any:
    """The JSON value in a file of at most so many bytes; `Unfit` for anything else, `OSError` as reading raises it."""
    size = path.stat().st_size
    if size > most_bytes:
        raise Unfit(f"at most {most_bytes} bytes", f"{size}")
    return parse(path.read_bytes())


def read(kind: type[T], value: object, where: str = "", form: Form = STRICT) -> T:
    """`value`, of JSON, as a `kind`; `Unfit` names the place from `where` on."""
    try:
        found: T = _read(kind, value, form)
    except Unfit as unfit:
        raise Unfit(unfit.expected, unfit.found, (where + unfit.where).removeprefix(".")) from None
    return found


def _read(kind: Any, value: Any, form: Form) -> Any:
    origin, args = _parts(kind)
    if origin is None:
        is_record = isinstance(kind, type) and dataclasses.is_dataclass(kind)
        return _record(kind, value, form) if is_record else _simple(kind, value, form)
    if origin is typing.Annotated:
        found = _read(args[0], value, form)
        for must in args[1:]:
            if not must.holds(found):
                raise Unfit(must.expected, _said(value))
        return found
    if origin is typing.Literal:
        if any(type(value) is type(one) and value == one for one in args):
            return value
    elif origin is types.UnionType:
        return _any_of(args, value, form)
    elif origin is tuple and isinstance(value, (list, tuple)):
        return _tuple(args, value, form)
    elif origin in (Mapping, dict) and isinstance(value, Mapping):
        return _mapping(args, value, form)
    raise Unfit(_name(kind), _said(value))


def _record(kind: type, value: object, form: Form) -> Any:
    if not isinstance(value, Mapping):
        raise Unfit("an object", _said(value))
    fields, required, rest = _fields(kind)
    beyond = {key: item for key, item in value.items() if key not in fields}
    missing = sorted(required - value.keys())
    if missing or (beyond and rest is None and not form.other_fields):
        words = (", ".join(map(str, sorted(beyond)))[:200], ", ".join(missing))
        found = f"{words[0] or 'nothing'} beyond them and {words[1] or 'nothing'} missing"
        raise Unfit(f"the fields {', '.join(fields)}", found)
    known: dict[str, object] = {} if rest is None else {rest[0]: _read(rest[1], beyond, form)}
    for key, (name, hint, fixed) in fields.items():
        if key not in value or (fixed is not dataclasses.MISSING and value[key] == fixed):
            continue
        if fixed is not dataclasses.MISSING:
            raise Unfit(repr(fixed), _said(value[key]), f".{key}")
        try:
            known[name] = _read(hint, value[key], form)
        except Unfit as unfit:
            if form.salvage and key not in required:
                continue
            raise unfit.inside(f".{key}") from None
    return kind(**known)


def _tuple(args: tuple[Any, ...], value: Sequence[Any], form: Form) -> tuple[Any, ...]:
    if len(value) > form.most:
        raise Unfit(f"at most {form.most} items", f"{len(value)}")
    if args[-1] is not ...:
        if len(value) != len(args):
            raise Unfit(f"a list of {len(args)}", f"{len(value)} items")
        return tuple(_item(hint, item, i, form) for i, (hint, item) in enumerate(zip(args, value, strict=True)))
    if args[0] is float and set(map(type, value)) <= {float} and math.isfinite(sum(map(abs, value))):
        return tuple(value)  # thousands of samples
    found = []
    for i, item in enumerate(value):
        try:
            found.append(_item(args[0], item, i, form))
        except Unfit:
            if not form.salvage:
                raise
    return tuple(found)


def _item(hint: Any, value: object, index: int, form: Form) -> Any:
    try:
        return _read(hint, value, form)
    except Unfit as unfit:
        raise unfit.inside(f"[{index}]") from None


def _mapping(args: tuple[Any, ...], value: Mapping[object, Any], form: Form) -> dict[Any, Any]:
    found = {}
    for key, item in value.items():
        try:
            found[_mapping_key(args[0], key)] = _read(args[1], item, form)
        except Unfit as unfit:
            if not form.salvage:
                raise unfit.inside(f".{str(key)[:80]}") from None
    return found


def _mapping_key(kind: type, key: object) -> object:
    """JSON's keys are strings; numbers among them are written as Python writes them."""
    text = str(key)
    if kind is not int:
        return text
    if not text.isdecimal() or len(text) > 18:
        raise Unfit("a number as key", repr(text[:40]))
    return int(text)


def _any_of(kinds: tuple[Any, ...], value: object, form: Form) -> Any:
    others = [kind for kind in kinds if kind is not type(None)]
    if value is None and len(others) < len(kinds):
        return None
    if len(others) == 1:
        return _read(others[0], value, form)
    for kind in others:
        try:
            return _read(kind, value, form)
        except Unfit:
            continue
    raise Unfit(" or ".join(_name(kind) for kind in kinds), _said(value))


def _simple(kind: Any, value: Any, form: Form) -> Any:
    if kind in (object, Any):
        _check_free(value, form, 0)
        return value
    if kind is float:
        if type(value) in (int, float) and abs(value) < 2**1023 and math.isfinite(value):
            return float(value)
        if isinstance(value, str) and value in _NOT_FINITE:
            return float(value)
    elif type(value) is kind:
        _check_size(value, form, form.lowest)
        return value
    elif kind is str and isinstance(value, str):  # TVM's own strings, as names of functions are
        _check_size(value, form)
        return str(value)
    raise Unfit(_name(kind), _said(value))


def _check_free(value: Any, form: Form, depth: int) -> None:
    """`Unfit` for nesting, numbers and texts that whatever reads files should not have to think of."""
    if depth > form.deepest:
        raise Unfit(f"at most {form.deepest} levels", "more")
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_size(key, form)
            _check_free(item, form, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_free(item, form, depth + 1)
    elif not (form.any_number and isinstance(value, (int, float))):
        _check_size(value, form)


def _check_size(value: Any, form: Form, lowest: int = -_LARGEST) -> None:
    if isinstance(value, bool):
        return
    if isinstance(value, int) and not lowest <= value < _LARGEST:
        raise Unfit("an integer of at most 64 bits" if lowest else "an integer from 0", _said(value))
    if isinstance(value, float) and not math.isfinite(value):
        raise Unfit("a finite number", str(value))
    if isinstance(value, str):
        if len(value) > form.longest:
            raise Unfit(f"a string of at most {form.longest} characters", f"{len(value)}")
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise Unfit("a text", "half a surrogate pair, which no file takes")


def _said(value: object) -> str:
    """What a sentence calls a value."""
    if isinstance(value, str) or (isinstance(value, float) and not isinstance(value, bool)):
        return repr(value)[:80]
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < 1 << 64 else "an integer of more than 64 bits"
    return _NAMES.get(type(value), f"a {type(value).__name__}")


def _name(kind: Any) -> str:
    """What a sentence calls a type."""
    origin, args = _parts(kind)
    if origin is typing.Literal:
        return " or ".join(map(repr, args))
    if origin is types.UnionType:
        return " or ".join(map(_name, args))
    if origin is typing.Annotated:
        return str(args[1].expected)
    return _NAMES.get(origin or kind, "an object")


@functools.cache
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """What a type is made from, with one spelling of unions and of mappings."""
    if metadata := getattr(kind, "__metadata__", None):
        return typing.Annotated, (kind.__origin__, *metadata)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    return (types.UnionType if origin is typing.Union else origin), args


@functools.cache
def _fields(kind: type) -> tuple[dict[str, tuple[str, Any, object]], frozenset[str], tuple[str, Any] | None]:
    """Of a record: key -> (field, type, its value where that is fixed), required keys, the field of the rest."""
    hints = typing.get_type_hints(kind, include_extras=True)
    fields, required, rest = {}, set(), None
    for f in dataclasses.fields(kind):
        if f.metadata == REST:
            rest = (f.name, hints[f.name])
            continue
        fields[_key(f)] = (f.name, hints[f.name], dataclasses.MISSING if f.init else f.default)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            required.add(_key(f))
    return fields, frozenset(required), rest


def _key(f: dataclasses.Field[Any]) -> str:
    return f.name.removesuffix("_")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return out


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")
