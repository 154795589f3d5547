"""Numbers that a graph makes of tensors, and tensors that it makes of numbers."""

from __future__ import annotations

import torch

from ...errors import UnsupportedModel
from ._scalars import SCALARS, leaves
from ._values import DTYPES, Number, check_whole, to_number

# An integer of a tensor's value is a symbol that is not negative, as sizes are. One that is no size is counted from
# here.
_LOWEST = -(1 << 48)
_ARITHMETIC = ("add", "sub", "mul", "neg", "floordiv", "remainder", "Int", "ScalarImplicit", "IntImplicit")
_SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)


def implicit(node: torch._C.Node, value: object) -> object:
    """The value of aten::Int and its like, aten::item."""
    if isinstance(value, torch.Tensor):
        return _of_tensor(node, value)
    return SCALARS[node.kind()](to_number(value))


def _of_tensor(node: torch._C.Node, value: torch.Tensor) -> object:
    kind = node.kind()
    if value.numel() == 1 and kind == "aten::Bool":
        return value
    if kind == "aten::Int" and value.is_floating_point():
        value = value.trunc().to(torch.int64)
    elif kind == "aten::Float" and not value.is_floating_point():
        value = value.to(torch.float64)
    try:
        if value.dtype in _SIGNED and _is_no_size(node.output()):
            return (value.to(torch.int64) - _LOWEST).item() + _LOWEST
        return value.item()
    except (RuntimeError, TypeError) as reason:
        raise UnsupportedModel(
            "expected sizes that follow from shapes and constants, found one that depends on the values of "
            "a tensor: export the model as ONNX"
        ) from reason


def _is_no_size(value: torch._C.Value) -> bool:
    """Whether a number only meets elements of tensors, at once or after arithmetic, so that it may be negative."""
    return all(_takes_any_number(use) for use in value.uses())


def _takes_any_number(use: torch._C.Use) -> bool:
    node = use.user
    if node.kind() == "prim::Return":
        return True
    if not node.kind().startswith("aten::") or node.outputsSize() != 1:
        return False
    if node.output().type().kind() == "TensorType":
        argument = torch._C.parse_schema(node.schema()).arguments[use.offset]
        return str(argument.type) in ("number", "Scalar")
    return node.kind().removeprefix("aten::") in _ARITHMETIC and _is_no_size(node.output())


def tensor_of(data: object, dtype: int | None = None, *_where: object) -> torch.Tensor:
    """aten::tensor of a number or of lists of numbers, which may be symbolic."""
    if isinstance(data, torch.Tensor):
        return data if dtype is None else data.to(DTYPES[dtype])
    numbers = leaves(data)
    if dtype is not None:
        kind = DTYPES[dtype]
    elif not numbers or any(isinstance(n, float | torch.SymFloat) for n in numbers):
        kind = torch.float32
    else:
        kind = torch.bool if all(isinstance(n, bool) for n in numbers) else torch.int64
    if any(isinstance(n, torch.SymInt | torch.SymFloat) for n in numbers):
        return _stacked(data, kind)
    return torch.tensor(_plain(data), dtype=kind)


def _plain(data: object) -> object:
    return [_plain(d) for d in data] if isinstance(data, list) else to_number(data)


def _stacked(data: object, dtype: torch.dtype | None) -> torch.Tensor:
    if isinstance(data, list):
        return torch.stack([_stacked(d, dtype) for d in data])
    check_whole(to_number(data))
    return Number(to_number(data)).as_tensor().to(dtype)
