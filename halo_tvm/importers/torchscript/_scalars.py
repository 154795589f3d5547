"""What TorchScript computes with Python values: numbers, strings, lists. No tensor is computed on.

Sizes may be symbolic (`torch.SymInt`); Python's own operators work on them and record what they decide.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

import torch

from ...errors import UnsupportedModel
from ._values import to_number

_LARGEST_LIST = 1 << 20


def _item(values: Sequence[object], index: int) -> object:
    return values[index]


def _slice(values: Sequence[object], start: int | None = None, end: int | None = None, step: int = 1) -> object:
    return values[slice(start, end, step)]


def _set(values: list[object], index: int, value: object) -> list[object]:
    values[index] = value
    return values


def _call(method: str) -> Callable[..., object]:
    def run(values: object, *args: object) -> object:
        return getattr(values, method)(*args)

    return run


def _changed(method: str) -> Callable[..., object]:
    """A method that changes a list; TorchScript returns the list where Python returns nothing."""

    def run(values: list[object], *args: object) -> list[object]:
        if len(values) > _LARGEST_LIST:
            raise UnsupportedModel(
                f"expected lists of at most {_LARGEST_LIST} elements, found a longer one: export the model as ONNX"
            )
        getattr(values, method)(*args)
        return values

    return run


def _delete(values: list[object] | dict[object, object], key: object) -> None:
    del values[key]


def _sort(values: list[object], reverse: bool = False) -> None:
    values.sort(reverse=reverse)


def _text(value: object) -> str:
    """As TorchScript writes it: of whole floats only the point."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e10:
        return f"{int(value)}."
    return str(value)


def _format(text: str, *args: object) -> str:
    """{} in order; TorchScript knows no other braces."""
    head, *parts = text.split("{}")
    if len(args) < len(parts):
        raise UnsupportedModel(f"expected {len(parts)} values for {text[:80]!r}, found {len(args)}: give one for each")
    return head + "".join(_text(value) + part for value, part in zip(args, parts))


def leaves(data: object) -> list[object]:
    """Numbers in nested lists, in order."""
    return [n for d in data for n in leaves(d)] if isinstance(data, list) else [to_number(data)]


def _from(a: object, b: object, times: object = 1) -> object:
    """aten::rsub"""
    return b - a * times


def _multiply(a: object, b: object) -> object:
    longest = max((len(x) * y for x, y in ((a, b), (b, a)) if isinstance(x, list) and isinstance(y, int)), default=0)
    if longest > _LARGEST_LIST:
        raise UnsupportedModel(
            f"expected lists of at most {_LARGEST_LIST} elements, found one of {longest}: export it as ONNX"
        )
    return a * b


def _power(a: object, b: object) -> object:
    if isinstance(a, int) and isinstance(b, int) and b > 64:
        return math.pow(a, b)
    return a**b


def _min(*args: object) -> object:
    return _extreme(args, torch.sym_min)


def _max(*args: object) -> object:
    return _extreme(args, torch.sym_max)


def _extreme(args: tuple[object, ...], pick: Callable[[object, object], object]) -> object:
    values = args[0] if len(args) == 1 else args
    result = values[0]
    for value in values[1:]:
        result = pick(result, value)
    return result


def _to_bool(x: object) -> bool:
    return bool(x)


def _float(x: object) -> object:
    return torch.sym_float(x) if isinstance(x, int | torch.SymInt) else float(x)


def _integer(x: object) -> object:
    return torch.sym_int(x) if isinstance(x, float | torch.SymFloat) else int(x) if isinstance(x, str | bool) else x


def _range_length(low: int, high: int, step: int) -> int:
    return max(0, (high - low + step - (1 if step > 0 else -1)) // step)


def _absolute(x: object) -> object:
    return torch.sym_max(x, -x) if isinstance(x, torch.SymInt) else abs(x)


def _floor_divide(a: object, b: object) -> object:
    if isinstance(a, torch.SymFloat) or isinstance(b, torch.SymFloat):
        return torch.sym_float(math.floor(a / b))
    return a // b


def _round(x: object) -> object:
    """A float, also of an integer."""
    return torch.sym_float(x if isinstance(x, int | torch.SymInt) else round(x))


def _same(a: object, b: object) -> bool:
    if a is None or b is None or isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is b
    return a is b or type(a) is type(b) and a == b


SCALARS: dict[str, Callable[..., object]] = {
    "aten::add": operator.add,
    "aten::sub": operator.sub,
    "aten::mul": _multiply,
    "aten::div": operator.truediv,
    "aten::rsub": _from,
    "aten::true_divide": operator.truediv,
    "aten::minimum": _min,
    "aten::maximum": _max,
    "aten::floordiv": _floor_divide,
    "aten::floor_divide": _floor_divide,
    "aten::remainder": operator.mod,
    "aten::fmod": math.fmod,
    "aten::pow": _power,
    "aten::neg": operator.neg,
    "aten::abs": _absolute,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
    "aten::__not__": operator.not_,
    "aten::__is__": _same,
    "aten::__isnot__": lambda a, b: not _same(a, b),
    "aten::__and__": operator.and_,
    "aten::__or__": operator.or_,
    "aten::__xor__": operator.xor,
    "aten::__lshift__": lambda a, b: a << min(b, 64),
    "aten::__rshift__": operator.rshift,
    "aten::floor": lambda x: torch.sym_int(x) if isinstance(x, torch.SymFloat) else math.floor(x),
    "aten::ceil": math.ceil,
    "aten::round": _round,
    "aten::sqrt": lambda x: torch.sym_float(x) ** 0.5,
    "aten::exp": math.exp,
    "aten::log": math.log,
    "aten::sin": math.sin,
    "aten::cos": math.cos,
    "aten::trunc": math.trunc,
    "aten::Bool": _to_bool,
    "aten::Int": _integer,
    "aten::Float": _float,
    "aten::IntImplicit": _integer,
    "aten::FloatImplicit": _float,
    **dict.fromkeys(("aten::ScalarImplicit", "aten::item"), lambda x: x),
    "aten::str": _text,
    "aten::format": _format,
    "aten::percentFormat": lambda text, *args: text % args,
    "aten::len": len,
    "aten::__getitem__": _item,
    "aten::_set_item": _set,
    "aten::slice": _slice,
    "aten::__contains__": lambda values, x: x in values,
    "aten::append": _changed("append"),
    "aten::extend": _changed("extend"),
    "aten::insert": _changed("insert"),
    "aten::reverse": _changed("reverse"),
    "aten::clear": _changed("clear"),
    "aten::remove": _changed("remove"),
    "aten::sort": _sort,
    "aten::Delete": _delete,
    "aten::add_": _changed("extend"),
    "aten::pop": _call("pop"),
    "aten::copy": _call("copy"),
    "aten::index": _call("index"),
    "aten::count": _call("count"),
    "aten::keys": lambda d: list(d),
    "aten::values": lambda d: list(d.values()),
    "aten::items": lambda d: list(d.items()),
    "aten::get": _call("get"),
    "aten::list": list,
    "aten::lower": _call("lower"),
    "aten::upper": _call("upper"),
    "aten::startswith": _call("startswith"),
    "aten::endswith": _call("endswith"),
    "aten::join": _call("join"),
    "aten::replace": _call("replace"),
    "aten::__range_length": _range_length,
    "aten::__derive_index": lambda index, start, step: start + index * step,
    "prim::min": _min,
    "prim::max": _max,
    "prim::abs": _absolute,
    "aten::warn": lambda *_: None,
    "prim::Print": lambda *_: None,
    "prim::AutogradAllNonZero": lambda *_: True,
    "prim::rangelist": lambda n: list(range(n)),
    "aten::is_autocast_enabled": lambda *_: False,
    "aten::is_autocast_cpu_enabled": lambda *_: False,
    "aten::is_scripting": lambda *_: True,
    "aten::has_torch_function": lambda *_: False,
    "aten::is_grad_enabled": lambda *_: False,
    "aten::set_grad_enabled": lambda *_: None,
    "aten::manual_seed": lambda *_: None,
    "aten::all": all,
    "aten::any": any,
    "aten::sum": sum,
    "aten::Complex": complex,
}
