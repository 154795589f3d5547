"""Values of a TorchScript graph that are neither tensors nor plain Python, and how operators take them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ...errors import UnsupportedModel


@dataclass(frozen=True)
class Object:
    """A module inside the file, by its path."""

    path: str


@dataclass(frozen=True)
class Made:
    """An object that the graph makes while running, as that of `with torch.no_grad()`."""

    attributes: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Number:
    """A tensor of rank 0 whose value is known while importing: a size that a trace turned into a tensor."""

    value: object
    tensor: torch.Tensor | None = None

    def as_tensor(self) -> torch.Tensor:
        """The tensor, where an operator insists on one."""
        if self.tensor is not None:
            return self.tensor
        floating = isinstance(self.value, float | torch.SymFloat)
        kind = torch.float32 if floating else torch.bool if isinstance(self.value, bool) else torch.int64
        return torch.full((), self.value, dtype=kind)


def to_number(value: object) -> object:
    """The number behind a `Number`; any other value as it is."""
    return value.value if isinstance(value, Number) else value


def check_whole(number: object) -> None:
    """`UnsupportedModel` of a fraction or a comparison of open sizes, of which no tensor can be made."""
    if isinstance(number, torch.SymFloat | torch.SymBool):
        found = "fraction" if isinstance(number, torch.SymFloat) else "comparison"
        raise UnsupportedModel(
            f"expected tensors made of whole numbers where sizes are open, found a {found} of a size: "
            "give fixed shapes, or leave it out"
        )


# The numbers by which TorchScript knows dtypes.
DTYPES = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    None,
    torch.complex64,
    torch.complex128,
    torch.bool,
    torch.qint8,
    torch.quint8,
    torch.qint32,
    torch.bfloat16,
)
_LAYOUTS = (torch.strided,)
_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)


def to_native(value: object, argument: object) -> object:
    """`value` as the ATen operator's `argument` takes it."""
    real = str(argument.real_type).removeprefix("Optional[").removesuffix("]")
    if isinstance(value, Number):
        return value.as_tensor() if str(argument.type) in ("Tensor", "Optional[Tensor]") else value.value
    if isinstance(value, list) and any(isinstance(v, Number) for v in value):
        tensors = "Tensor" in str(argument.type)
        return [(v.as_tensor() if tensors else v.value) if isinstance(v, Number) else v for v in value]
    if isinstance(value, int) and not isinstance(value, bool):
        if real == "ScalarType":
            return DTYPES[value]
        if real == "Layout":
            return _LAYOUTS[0]
        if real == "MemoryFormat":
            return _FORMATS[value]
    if isinstance(value, (int, float)) and str(argument.type) == "Tensor":
        return Number(value).as_tensor()
    if real == "Device" and value is not None:
        return torch.device("cpu")  # a file traced elsewhere runs here
    return value


def _size(x: torch.Tensor, dim: int | Number | None = None) -> object:
    if dim is None:
        return list(x.shape)
    return x.shape[dim.value if isinstance(dim, Number) else dim]


# What the graph asks of a tensor without computing on it.
ATTRIBUTES: dict[str, Callable[..., object]] = {
    "aten::size": _size,
    "prim::shape": lambda x: list(x.shape),
    "aten::dim": lambda x: x.dim(),
    "aten::numel": lambda x: x.numel(),
    "aten::stride": lambda x, *dim: x.stride(*dim) if dim else list(x.stride()),
    "prim::dtype": lambda x: DTYPES.index(x.dtype),
    "prim::device": lambda x: torch.device("cpu"),
    "prim::layout": lambda x: 0,
    "prim::is_cuda": lambda x: False,
    "prim::is_quantized": lambda x: False,
    "prim::is_sparse": lambda x: False,
    "prim::requires_grad": lambda x: False,
    "prim::data": lambda x: x.detach(),
    "aten::is_floating_point": lambda x: x.dtype.is_floating_point,
    "aten::is_complex": lambda x: x.dtype.is_complex,
    "aten::cpu": lambda x: x,
    "aten::detach": lambda x: x,
    "aten::requires_grad_": lambda x, *_: x,
    "aten::is_contiguous": lambda x, *_: True,
}
