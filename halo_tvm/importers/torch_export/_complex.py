"""Complex numbers as pairs: a complex tensor of the program is two real ones of its shape, or one with an axis of two.

Most operators do the same to both parts: they are converted twice, as if the program computed the one and the other.
What mixes them has converters of its own (`families.complex`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from tvm import relax

from ..meaning.builder import Refused
from ._call import Call, Number, constant, dtype_name
from ._registry import CONVERTERS, target_name

COMPONENTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
# Arguments that a real tensor, or a number, may stand for.
_OPERANDS = frozenset(
    """
    self other tensor tensors vec vec2 mat1 mat2 batch1 batch2 input weight bias
    src source value values fill_value s
    """.split()
)
_BROADCAST = frozenset(("add", "sub", "rsub", "where"))


@dataclass
class Pair:
    """A complex tensor: `parts`, real and imaginary, or `together`, both along a last axis, or all."""

    parts: tuple[relax.Expr, relax.Expr] | None = None
    together: relax.Expr | None = None

    @staticmethod
    def of(real: relax.Expr, imaginary: relax.Expr) -> Pair:
        return Pair((real, imaginary))

    def joined(self, emit: Callable[[relax.Expr], relax.Var]) -> relax.Expr:
        """The tensor with both parts along a last axis, which all parts have the shape for."""
        if self.together is None:
            assert self.parts is not None, "a pair has its parts, or has them together"
            shape = relax.ShapeExpr([*self.parts[0].ty.shape.values, 1])
            self.together = emit(
                relax.op.concat([emit(relax.op.reshape(part, shape)) for part in self.parts], len(shape.values) - 1)
            )
        return self.together

    def mapped(self, check: Callable[[relax.Expr, torch.Tensor], relax.Expr], meta: torch.Tensor) -> Pair:
        """Itself, with what it has checked against the example value of the complex tensor."""
        if self.parts is not None:
            self.parts = tuple(check(part, example) for part, example in zip(self.parts, parts_of(meta)))
        if self.together is not None:
            self.together = check(self.together, torch.view_as_real(meta.resolve_conj()))
        return self


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Real and imaginary part, dense."""
    both = torch.view_as_real(tensor.resolve_conj())
    return both[..., 0].clone(), both[..., 1].clone()


def is_complex(node: fx.Node) -> bool:
    """Whether an operator takes or gives complex numbers."""
    values = [node.meta.get("val"), *(argument.meta.get("val") for argument in node.all_input_nodes)]
    tensors = [t for v in values for t in (v if isinstance(v, tuple | list) else [v])]
    return any(isinstance(t, torch.Tensor) and t.dtype in COMPONENTS for t in tensors)


def _component(c: Call) -> torch.dtype:
    """The type that a call computes in: of its result, or of what a question is asked about."""
    if c.out.dtype.is_floating_point or c.out.dtype.is_complex:
        return COMPONENTS.get(c.out.dtype, c.out.dtype)
    asked = [node.meta["val"].dtype for node in c.node.all_input_nodes if isinstance(node.meta["val"], torch.Tensor)]
    return COMPONENTS[next(dtype for dtype in asked if dtype in COMPONENTS)]


class ComplexCall:
    """What a converter of complex numbers sees of a call: its arguments as pairs."""

    def __init__(self, c: Call) -> None:
        self.c = c
        self.dtype = dtype_name(_component(c))

    def pair(self, name: str) -> tuple[relax.Expr, relax.Expr]:
        """Real and imaginary part of the argument `name`, in the result's precision; of a real one the second is 0."""
        return self.split(self.c[name])

    def split(self, value: object) -> tuple[relax.Expr, relax.Expr]:
        c = self.c
        if isinstance(value, complex):
            return constant(value.real, self.dtype), constant(value.imag, self.dtype)
        if not isinstance(value, Pair):
            return c.as_tensor(value, self.dtype), constant(0, self.dtype)
        if value.parts is None:
            assert value.together is not None, "a pair has its parts, or has them together"
            *shape, _ = value.together.ty.shape.values
            axis = len(shape)
            cut = (c.emit(relax.op.strided_slice(value.together, [axis], [i], [i + 1])) for i in (0, 1))
            real, imaginary = (c.reshape(part, shape) for part in cut)
            value.parts = real, imaginary
        real, imaginary = (c.cast(part, self.dtype) for part in value.parts)
        return real, imaginary

    def joined(self, value: Pair | relax.Expr) -> relax.Expr:
        """The tensor with both parts along a last axis."""
        if isinstance(value, Pair) and value.together is not None:
            return self.c.cast(value.together, self.dtype)
        if (known := self.split(value)[0].ty.shape) is None:
            raise Refused("complex numbers whose count depends on values")
        shape = known.values
        parts = [self.c.reshape(self.c.broadcast(part, shape), [*shape, 1]) for part in self.split(value)]
        together = self.c.emit(relax.op.concat(parts, len(shape)))
        if isinstance(value, Pair):
            value.together = together
        return together

    def is_real(self, name: str) -> bool:
        value = self.c[name]
        return isinstance(value, Number) or isinstance(value, relax.Expr)


class PartCall(Call):
    """The same call of real numbers: each complex argument is replaced by its real or its imaginary part."""

    def __init__(self, c: Call, every: int = 0, **which: int) -> None:
        """The part `every`, 0 or 1, of each argument, or `which` of those named (`self_` for `self`)."""
        self.__dict__.update(c.__dict__)
        self._pairs, self._every = ComplexCall(c), every
        self._which = {name.rstrip("_"): part for name, part in which.items()}

    def __getitem__(self, name: str) -> object:
        def part(value: object) -> object:
            index = self._which.get(name, self._every)
            if isinstance(value, Pair) or name in _OPERANDS and isinstance(value, relax.Expr):
                return self._pairs.split(value)[index]
            if name in _OPERANDS and isinstance(value, int | float | complex):
                return (complex(value).real, complex(value).imag)[index]
            return value

        value = super().__getitem__(name)
        return [part(v) for v in value] if isinstance(value, list | tuple) else part(value)

    @property
    def dtype(self) -> str:
        return self._pairs.dtype


def converted(call: Call) -> Any:
    """What the operator makes of real numbers."""
    return CONVERTERS[target_name(call.node.target)](call)


def of_both(c: Call, **which: int) -> list[Any]:
    """What the operator makes of the real parts, and of the imaginary ones, but for those arguments named."""
    return [converted(PartCall(c, every=i, **which)) for i in (0, 1)]


def by_parts(c: Call) -> Any:
    """An operator that does the same to both parts."""
    real, imaginary = of_both(c)
    if isinstance(real, tuple) and isinstance(imaginary, tuple):
        return tuple(map(Pair.of, real, imaginary))
    if c.op in _BROADCAST:  # of a real operand the imaginary part is a number
        real, imaginary = (c.broadcast(part, c.shape) for part in (real, imaginary))
    return Pair.of(real, imaginary)
