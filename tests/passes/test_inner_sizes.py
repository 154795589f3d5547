"""Functions that are fused although sizes of what they read are spelled in several ways."""

from __future__ import annotations

import numpy as np
import tvm
from executables import executable_of
from tvm import relax, te, tirx

from halo_tvm.params import ParamTable
from halo_tvm.passes import PASSES
from halo_tvm.passes.graph_pass import Context
from halo_tvm.targets import resolve


def test_products_in_another_order_do_not_swap_their_factors() -> None:
    """x [n * m] of a function that is given x [m * n], and numbers n and m apart."""
    builder = relax.BlockBuilder()
    n, m = (tirx.Var(name, "int64") for name in "nm")
    x, turned = (relax.Var("x", relax.TensorType([size], "float32")) for size in (n * m, m * n))
    sizes = relax.Var("sizes", relax.ShapeType([n, m]))

    def rows(a: te.Tensor, columns: tirx.Var) -> te.Tensor:
        return te.compute(a.shape, lambda i: a[i] + (i // columns).astype("float32"), name="rows")

    def doubled(a: te.Tensor) -> te.Tensor:
        return te.compute(a.shape, lambda i: a[i] * tirx.const(2, "float32"), name="doubled")

    with builder.function("main", [turned, sizes]):
        with builder.dataflow():
            call = builder.call_te(rows, x, m, primfunc_name_hint="rows")
            args = relax.Tuple([turned if arg.same_as(x) else arg for arg in call.args[1].fields])
            y = builder.emit(relax.Call(call.op, [call.args[0], args], call.attrs, call.ty_args))
            out = builder.emit_output(builder.call_te(doubled, y, primfunc_name_hint="doubled"))
        builder.emit_func_output(out)
    before = relax.transform.AnnotateTIROpPattern()(builder.get())
    target = resolve("cpu")
    after, _ = PASSES["fuse"]()(before, Context(ParamTable(), target, {}, {}))
    machine = relax.VirtualMachine(executable_of(after, target, False), tvm.cpu())
    values = np.arange(12, dtype=np.float32)
    found = machine["main"](tvm.runtime.tensor(values), tvm.runtime.ShapeTuple([3, 4]))
    np.testing.assert_array_equal(found.numpy(), 2 * (values + np.arange(12) // 4))
