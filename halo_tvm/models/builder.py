"""Write a model down once: declare inputs and weights, call operators, get `main` and its parameters.

Weights come from a `Weights` object: seeded random numbers, or the tensors of a safetensors directory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import tvm
from tvm import relax, tirx

from ..params import ParamRecipe, ParamSource, ParamTable, seeded_normal
from ..relay_ops import OPERATORS


class Weights(Protocol):
    """Where the tensors of a definition come from."""

    def source(self, name: str, shape: tuple[int, ...], scale: float, offset: float) -> ParamSource:
        """The tensor `name`; random weights are `offset + scale * normal`."""

    def has(self, name: str) -> bool:
        """Whether the tensor exists; random weights have none of the optional ones."""


class RandomWeights:
    """Normal numbers, seeded per tensor name: the same model has the same weights in every process."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def has(self, name: str) -> bool:
        return False

    def source(self, name: str, shape: tuple[int, ...], scale: float, offset: float) -> ParamSource:
        return ParamSource(shape, "float32", lambda: seeded_normal(self.seed, name, shape, scale, offset))


class ModelBuilder:
    """Collects inputs, weights and operator calls of one `main` function.

    `layer` is the name that operator calls carry from then on, so that reports and overrides can
    speak of `h.0.attn`.
    """

    def __init__(self, weights: Weights, params: ParamTable | None = None) -> None:
        self.weights = weights
        self.params = ParamTable() if params is None else params  # that other functions of the model fill, too
        self.layer = ""
        self._bb = relax.BlockBuilder()
        self._dims: dict[str, tirx.Var] = {}
        self.inputs: dict[str, relax.Var] = {}
        self._weight_vars: dict[str, relax.Var] = {}

    def dim(self, name: str) -> tirx.Var:
        """The symbolic dimension `name`."""
        return self._dims.setdefault(name, tirx.Var(name, "int64"))

    def input(self, name: str, shape: Sequence[int | str], dtype: str) -> relax.Var:
        dims = [self.dim(d) if isinstance(d, str) else d for d in shape]
        self.inputs[name] = relax.Var(name, relax.TensorType(dims, dtype))
        return self.inputs[name]

    def weight(self, name: str, shape: tuple[int, ...], *, scale: float = 0.02, offset: float = 0.0) -> relax.Var:
        """The weight `name`. Asked for twice (tied weights), it is stored once."""
        return self.stored(self.source(name, shape, scale=scale, offset=offset))

    def source(self, name: str, shape: tuple[int, ...], *, scale: float = 0.02, offset: float = 0.0) -> str:
        """Record the tensor `name` of the checkpoint, of which recipes make what the function reads; its name."""
        if name not in self.params:
            self.params.add_source(name, self.weights.source(name, shape, scale, offset))
        return name

    def recipe(self, output: str, op: str, inputs: Sequence[str], shape: tuple[int, ...], **attrs: object) -> str:
        """Record that the tensor `output` is `op` of others; its name."""
        return self.params.add_recipe(ParamRecipe(output, op, tuple(inputs), attrs, shape, "float32"))

    def reshaped(self, output: str, stored: str, shape: tuple[int, ...]) -> str:
        """Record that the tensor `output` has the numbers of `stored` in another shape; its name."""
        return self.params.add_recipe(
            ParamRecipe(output, "reshape", (stored,), {"shape": list(shape)}, shape, "float32")
        )

    def derived(
        self, output: str, op: str, inputs: Sequence[str], shape: tuple[int, ...], **attrs: object
    ) -> relax.Var:
        """The weight that is `op` of other tensors, made once, when the artifact is written."""
        return self.stored(self.recipe(output, op, inputs, shape, **attrs))

    def table(self, name: str, values: np.ndarray) -> relax.Var:
        """A float32 table that the definition computes itself, kept with the weights."""
        return self.stored(self.kept(name, values))

    def kept(self, name: str, values: np.ndarray) -> str:
        """Record such a table, of which recipes make what the function reads; its name."""
        if name not in self.params:
            self.params.add_source(name, ParamSource(values.shape, "float32", lambda: values))
        return name

    def zeros(self, width: int) -> relax.Var:
        """The bias [width] of an operator that takes one where the model has none."""
        return self.table(f"zeros.{width}", np.zeros(width, np.float32))

    def ones(self, width: int) -> relax.Var:
        """The weight [width] of a norm where the model has none."""
        return self.table(f"ones.{width}", np.ones(width, np.float32))

    def stored(self, name: str) -> relax.Var:
        """The variable of a tensor that the table of parameters knows."""
        if name not in self._weight_vars:
            self._weight_vars[name] = relax.Var(
                re.sub(r"\W", "_", name), relax.TensorType(self.params.shape(name), "float32")
            )
        return self._weight_vars[name]

    def emit(self, expr: relax.Expr) -> relax.Var:
        return self._bb.emit(expr)

    def matched(self, x: relax.Expr, shape: Sequence[tvm.ir.Expr | int]) -> relax.Var:
        """`x`, whose shape is this one; a call with another is refused."""
        return self._bb.match_cast(x, relax.TensorType(shape, str(x.ty.dtype)))

    def op(self, operator: str, *args: relax.Expr, **attrs: object) -> relax.Var:
        """Emit `halo.<operator>` under the current layer name."""
        return self._bb.emit(OPERATORS[operator].call(*args, layer=self.layer or None, **attrs))

    def linear(
        self, x: relax.Expr, name: str, k: int, n: int, *, layout: str = "nk", bias: bool = True, gain: float = 1.0
    ) -> relax.Var:
        """x @ weight + bias; random weights keep the variance of x, times `gain` squared."""
        return self.op("linear", x, *self.linear_weights(name, k, n, layout, bias, gain), layout=layout, n=n)

    def linear_weights(
        self, name: str, k: int, n: int, layout: str = "nk", bias: bool = True, gain: float = 1.0
    ) -> list[relax.Var]:
        shape = (n, k) if layout == "nk" else (k, n)
        weights = [self.weight(f"{name}.weight", shape, scale=gain / float(np.sqrt(k)))]
        return [*weights, self.weight(f"{name}.bias", (n,), scale=0.1)] if bias else weights

    def layer_norm(self, x: relax.Expr, name: str, d: int, eps: float) -> relax.Var:
        weight = self.weight(f"{name}.weight", (d,), scale=0.1, offset=1.0)
        return self.op("layer_norm", x, weight, self.weight(f"{name}.bias", (d,), scale=0.1), eps=eps)

    def rms_norm(self, x: relax.Expr, name: str, d: int, eps: float) -> relax.Var:
        return self.op("rms_norm", x, self.weight(f"{name}.weight", (d,), scale=0.1, offset=1.0), eps=eps)

    def module(self, body: Callable[[ModelBuilder], Mapping[str, relax.Expr]]) -> tuple[tvm.IRModule, tuple[str, ...]]:
        """Trace `body` into `main(inputs..., weights...)`; returns the module and the output names."""
        with self._bb.function("main"):
            with self._bb.dataflow():
                outputs = body(self)
                results = [self._bb.emit_output(value) for value in outputs.values()]
            self._bb.emit_func_output(
                results[0] if len(results) == 1 else relax.Tuple(results),
                params=[*self.inputs.values(), *self._weight_vars.values()],
            )
        mod = self._bb.get()
        mod["main"] = mod["main"].with_attrs({"num_input": len(self.inputs), "halo.params": list(self._weight_vars)})
        return mod, tuple(outputs)


def rows_of(x: relax.Expr) -> tuple[tvm.ir.Expr, tvm.ir.Expr]:
    """Batch and length of x [batch, length, ...]."""
    batch, length, *_ = x.ty.shape.values
    return batch, length
