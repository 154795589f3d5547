"""A pickle of tensors as plain values: the opcodes are followed on a stack, but nothing that they name is ever called.

torch's functions that rebuild a tensor make a `Strided` here, an ordered dictionary is a dictionary; whatever else is
named, made or called is a `Foreign`, which says no more than its name.
References
    the opcodes of the standard library's pickletools; torch/_utils.py (_rebuild_tensor_v2), torch/serialization.py
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

_MOST = 4_000_000  # opcodes: a model of ten thousand tensors has 300,000
_BITS = 128  # of an integer
_AXES = 64
_STORAGES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "UntypedStorage": "",  # the function that rebuilds a tensor says it
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
}
_PLAIN = {
    *("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], object]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


@dataclass(frozen=True)
class Foreign:
    """Something that a pickle names or makes, and that is not made here."""

    name: str


@dataclass(frozen=True)
class Storage:
    """Elements of one type under a key of the file."""

    key: str
    dtype: str


@dataclass(frozen=True)
class Strided:
    """A tensor: elements of a storage from `offset` on, so many elements apart along each axis."""

    key: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def reach(self) -> int:
        """Elements from the first to the last one."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.strides))

    @property
    def elements(self) -> int:
        """Elements of the storage up to the last one of the tensor."""
        return self.offset + self.reach

    def check(self, name: str) -> None:
        """`ValueError` for sizes and strides that no tensor has."""
        numbers = (self.offset, *self.shape, *self.strides)
        axes = len(self.shape)
        if axes != len(self.strides) or axes > _AXES or min(numbers) < 0 or math.prod(self.shape) >= 1 << 62:
            raise ValueError(f"{name!r:.60} of shape {list(self.shape)!s:.60} and strides {list(self.strides)!s:.60}")


def load(stream: BinaryIO) -> tuple[object, Mapping[str, Storage]]:
    """The value of the pickle at which `stream` stands, which is behind it then, and all storages by key.

    `ValueError` for what is no pickle, or none of a state dict.
    """
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
            if count > _MOST:
                raise ValueError(f"a pickle of more than {_MOST} opcodes")
            machine.step(opcode.name, argument)
        (result,) = machine.stack
    except (IndexError, KeyError, TypeError, OverflowError, UnicodeDecodeError, AttributeError) as reason:
        raise ValueError(f"a pickle that makes no sense ({type(reason).__name__})") from reason
    return result, machine.storages


class _Machine:
    def __init__(self) -> None:
        self.stack: list[object] = []
        self.storages: dict[str, Storage] = {}
        self._memo: dict[int, object] = {}

    def step(self, name: str, argument: object) -> None:
        stack = self.stack
        if name in _PLAIN:
            if isinstance(argument, int) and argument.bit_length() > _BITS:
                raise ValueError(f"an integer of {argument.bit_length()} bits")
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            parts = str(argument).split(" ") if name == "GLOBAL" else self._pop(2)
            stack.append(Foreign(".".join(part for part in parts if isinstance(part, str))))
        elif name in ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"):
            self._memo[len(self._memo) if name == "MEMOIZE" else int(argument)] = stack[-1]  # type: ignore[call-overload]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self._memo[int(argument)])  # type: ignore[call-overload]
        elif name == "BINPERSID":
            stack.append(found := _storage(stack.pop()))
            if isinstance(found, Storage):
                self.storages[found.key] = found
        elif name in ("REDUCE", "NEWOBJ"):
            made, given = self._pop(2)
            stack.append(_called(made, given))
        elif name == "BUILD":
            stack.pop()  # the state of an object: of a dictionary, its metadata
        elif name not in ("PROTO", "FRAME", "STOP"):
            self._collect(name)

    def _collect(self, name: str) -> None:
        stack = self.stack
        if name == "MARK":
            stack.append(_MARK)
        elif name in ("TUPLE", "LIST", "DICT"):
            items = self._marked()
            made = {"TUPLE": tuple, "LIST": list}.get(name)
            stack.append(made(items) if made else _filled({}, items))
        elif name in ("APPEND", "APPENDS"):
            items = self._marked() if name == "APPENDS" else [stack.pop()]
            if isinstance(target := stack[-1], list):
                target.extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._marked() if name == "SETITEMS" else self._pop(2)
            if isinstance(target := stack[-1], dict):
                _filled(target, items)
        elif name in ("POP", "POP_MARK"):
            stack.pop() if name == "POP" else self._marked()
        elif name == "DUP":
            stack.append(stack[-1])
        else:
            raise ValueError(f"the opcode {name}, which no state dict has")

    def _pop(self, count: int) -> list[object]:
        if len(self.stack) < count:
            raise IndexError
        found = self.stack[-count:]
        del self.stack[-count:]
        return found

    def _marked(self) -> list[object]:
        """What lies above the last mark, which goes as well."""
        at = next(i for i in range(len(self.stack) - 1, -2, -1) if i < 0 or self.stack[i] is _MARK)
        if at < 0:
            raise IndexError
        found = self.stack[at + 1 :]
        del self.stack[at:]
        return found


def _filled(target: dict[object, object], items: list[object]) -> dict[object, object]:
    """`target` with keys and values that follow each other; keys that are no texts or integers are left out."""
    for key, value in zip(items[::2], items[1::2]):
        if isinstance(key, str | int):
            target[key] = value
    return target


def _storage(about: object) -> object:
    """What a persistent id names: ("storage", type, key, place, elements, ...)."""
    if not isinstance(about, tuple) or len(about) < 5 or about[0] != "storage":
        return Foreign("a persistent id")
    named, key = about[1:3]
    dtype = _STORAGES.get(named.name.rpartition(".")[2]) if isinstance(named, Foreign) else None
    return Foreign("a storage") if dtype is None or not isinstance(key, str) else Storage(key, dtype)


def _called(made: object, given: object) -> object:
    """What a call would make, if it is a tensor, a parameter or a dictionary."""
    if not isinstance(made, Foreign) or not isinstance(given, tuple):
        return Foreign("an object")
    if made.name == "collections.OrderedDict":
        return {}
    if made.name in ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state") and given:
        return given[0]
    if made.name in (
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3",
    ):
        return _tensor(*given)
    return Foreign(made.name)


def _tensor(storage: object, offset: object, shape: object, strides: object, *more: object) -> object:
    if not isinstance(storage, Storage):
        return storage
    named = more[2] if len(more) > 2 else None  # of an untyped storage
    dtype = storage.dtype or (_STORAGES.get(named.name.rpartition(".")[2], "") if isinstance(named, Foreign) else "")
    numbers = (offset, *shape, *strides)  # type: ignore[misc]
    if not dtype or not all(isinstance(number, int) for number in numbers):
        return Foreign("a tensor of another type")
    return Strided(storage.key, dtype, offset, tuple(shape), tuple(strides))  # type: ignore[arg-type]
