"""What lowering is told about sizes: which integers are some, and that no element is lost by it."""

from __future__ import annotations

import numpy as np
import tvm
from executables import executable_of
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from halo_tvm.known_sizes import KnownSizes
from halo_tvm.targets import resolve


@I.ir_module
class Before:
    @T.prim_func(private=True, s_tir=True)
    def halves(x: T.handle, n: T.int64, start: T.int64, y: T.handle):
        m = T.int64()
        X = T.match_buffer(x, (m, (n - 1) // 2 + 1))
        Y = T.match_buffer(y, (m, (n - 1) // 2 + 1 - start))
        with T.sblock("root"):
            T.reads()
            T.writes()
            for i, j in T.grid(m, (n - 1) // 2 + 1 - start):
                Y[i, j] = X[i, T.max(j + start, T.int64(0))] + T.float32(1)

    @R.function
    def main(
        x: R.Tensor(("m", "(n - 1) // 2 + 1"), "float32"), z: R.Tensor(("n",), "float32"), s: R.Shape(["start"])
    ) -> R.Tensor(("m", "(n - 1) // 2 + 1 - start"), "float32"):
        m, n, start = T.int64(), T.int64(), T.int64()
        with R.dataflow():
            y = R.call_tir(Before.halves, (x, n, start), out_ty=R.Tensor((m, (n - 1) // 2 + 1 - start), "float32"))
            R.output(y)
        return y


def conditions(mod: tvm.IRModule) -> list[str]:
    body = mod["halves"].body.block.body
    return str(body.condition).split(" and ") if isinstance(body, tirx.IfThenElse) else []


def test_sizes_are_those_of_tensors_and_what_callers_give_as_such() -> None:
    """`start` makes a dimension, too, but no tensor of the caller is as long. Computed sizes have names."""
    assert conditions(Before) == []
    sizes = ["m", "n", "size0", "size1"]
    assert sorted(conditions(KnownSizes()(Before))) == [f"{size} >= T.int64(0)" for size in sizes]


def test_every_element_is_written_at_every_size() -> None:
    vm = relax.VirtualMachine(executable_of(Before, resolve("cpu", cores=1), plan_memory=True), tvm.cpu())
    for m, n, start in [(3, 7, 0), (3, 7, 2), (2, 4, -2), (0, 5, 0)]:
        width = (n - 1) // 2 + 1
        x = np.arange(m * width, dtype=np.float32).reshape(m, width)
        given = (tvm.runtime.tensor(x), tvm.runtime.tensor(np.zeros(n, np.float32)), tvm.runtime.ShapeTuple([start]))
        columns = np.maximum(np.arange(width - start) + start, 0)
        np.testing.assert_array_equal(vm["main"](*given).numpy(), x[:, columns] + 1)
