"""Scale and zero point of a whole tensor, taken when it runs: the grid of ONNX's DynamicQuantizeLinear.

Shapes
    x [...] float32   ->   scale [] float32, zero [] uint8
Computation
    low = min(0, min x)   high = max(0, max x)
    scale = (high - low) / 255, 1 where that is 0
    zero = round(clip(-low / scale, 0, 255))
Lifts
    none: importers build it
Rejects
    none
Numerics
    every step is one float32 operation, rounded to nearest, ties to even; of zeros alone any scale will do
References
    https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, te, tirx

from .operator import Operator

_STEPS = 255.0


class QuantisationGrid(Operator):
    """The uint8 grid over the range of a tensor, which is made to include 0."""

    name = "quantisation_grid"
    semantic = True

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TupleType:
        x = call.args[0].ty
        if len(call.args) != 1 or str(x.dtype) != "float32" or not isinstance(x.shape, relax.ShapeExpr):
            raise ValueError(f"halo.quantisation_grid: expected one float32 tensor of known shape, got {x}")
        return relax.TupleType([relax.TensorType([], "float32"), relax.TensorType([], "uint8")])

    @classmethod
    def expand(cls, bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        """The ranges of rows, in parallel, then the grid over all of them."""
        x = call.args[0]
        *lead, depth = [1, 1, *x.ty.shape.values]
        rows = tvm.sym.Analyzer().simplify(_product(lead))
        x = bb.emit(relax.op.reshape(x, [rows, depth]))
        ranges = bb.emit_te(cls.ranges, x, primfunc_name_hint="value_ranges")
        low, high = (bb.emit(relax.op.reshape(bb.emit(relax.TupleGetItem(ranges, i)), [1, rows])) for i in range(2))
        grid = bb.emit_te(cls.grid, low, high, primfunc_name_hint="quantisation_grid")
        scale, zero = (bb.emit(relax.op.reshape(bb.emit(relax.TupleGetItem(grid, i)), [])) for i in range(2))
        return relax.Tuple([scale, zero])

    @staticmethod
    def ranges(x: te.Tensor) -> list[te.Tensor]:
        """Least and largest number of every row, 0 included."""
        return [_reduced(x, name) for name in ("low", "high")]

    @staticmethod
    def grid(low: te.Tensor, high: te.Tensor) -> list[te.Tensor]:
        """Scale and zero point [1] of the rows' ranges [1, rows]."""
        least, most = _reduced(low, "low"), _reduced(high, "high")

        def of(element, name):
            return te.compute([1], element, name=name)

        width = of(lambda i: (most[i] - least[i]) / tirx.const(_STEPS, "float32"), "width")
        one = tirx.const(1.0, "float32")
        scale = of(lambda i: tirx.Select(width[i] == tirx.const(0.0, "float32"), one, width[i]), "scale")

        def place(i):
            shift = (tirx.const(0.0, "float32") - least[i]) / scale[i]
            clipped = te.min(te.max(shift, tirx.const(0.0, "float32")), tirx.const(_STEPS, "float32"))
            return te.nearbyint(clipped).astype("uint8")

        return [scale, of(place, "zero")]

    @staticmethod
    def reference(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = x.astype(np.float32)
        low, high = np.float32(x.min(initial=0.0)), np.float32(x.max(initial=0.0))
        width = (high - low) / np.float32(_STEPS)
        scale = width if width else np.float32(1.0)
        return np.array(scale), np.rint(np.clip(-low / scale, 0, _STEPS)).astype(np.uint8)

    @staticmethod
    def flops(shapes: list[tuple[int, ...]]) -> int:
        return 2 * int(np.prod(shapes[0]))

    @staticmethod
    def cases():
        rng = np.random.default_rng(0)
        return (
            {"args": [(5, 64)], "attrs": {}},
            {"args": [rng.uniform(0.5, 3.0, (2, 3, 67)).astype("float32")], "attrs": {}},
            {"args": [rng.uniform(-3.0, -0.5, (7,)).astype("float32")], "attrs": {}},
            {"args": [np.zeros((3, 5), "float32")], "attrs": {}},
        )


def _reduced(x: te.Tensor, name: str) -> te.Tensor:
    """min or max of every row, 0 included."""
    combine = {"low": tirx.min, "high": tirx.max}[name]
    reducer = te.comm_reducer(lambda a, b: combine(a, b), lambda dtype: tirx.const(0.0, dtype), name=name)
    k = te.reduce_axis((0, x.shape[-1]), "k")
    return te.compute(x.shape[:-1], lambda *i: reducer(x[(*i, k)], axis=k), name=name)


def _product(dims: list) -> tvm.ir.Expr:
    product = dims[0]
    for dim in dims[1:]:
        product = product * dim
    return tirx.IntImm("int64", product) if isinstance(product, int) else product
