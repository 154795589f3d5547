"""Grids of any number of blocks, and what is refused before a library is written that no GPU could run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm_ffi
from emulated_functions import TARGET
from emulation import emulate
from test_refused import by_rows
from tvm import ir, te, tirx, topi
from tvm.script import tirx as T

from halo_tvm.errors import UnsupportedModel
from halo_tvm.passes.schedule import scheduled_by
from halo_tvm.tir_schedules import RULES
from halo_tvm.tuning.measure.build import write_library

N = tirx.Var("n", "int64")


@pytest.mark.parametrize(
    ("batch", "given"), [(N, (5, 9, 4, 9)), (N, (2, 70, 9, 130)), (70000, None), (2, (2, 9, 4, 9))]
)
def test_batches_of_any_number(batch: int | tirx.Var, given: tuple[int, int, int, int] | None) -> None:
    """The second axis of a grid takes 65,535 blocks: a batch that may have more lies along the first."""
    _, rows, k, columns = given or (0, 9, 4, 9)
    x, y = te.placeholder((batch, rows, k), name="x"), te.placeholder((batch, k, columns), name="y")
    func, rule = te.create_prim_func([x, y, topi.nn.batch_matmul(x, y, transpose_b=False)]), RULES["dlight_matmul"]
    func = scheduled_by(rule, func, TARGET, rule.default(func, TARGET))
    assert ('thread="blockIdx.y"' in func.script()) == (isinstance(batch, int) and batch < 70000)
    if given:
        rng = np.random.default_rng(0)
        a = rng.standard_normal((given[0], rows, k), "float32")
        b = rng.standard_normal((given[0], k, columns), "float32")
        found = np.full((given[0], rows, columns), np.nan, "float32")
        emulate(func, TARGET, [a, b, found])
        np.testing.assert_allclose(found, a @ b, rtol=2e-5, atol=2e-5)


def test_a_grid_that_cuda_refuses(tmp_path: Path) -> None:
    func = by_rows("blockIdx.y")
    (rows, _) = func.params[0].ty.shape
    sized = tvm_ffi.structural_map(func, (ir.Var, lambda v: tirx.IntImm("int64", 70000) if v.same_as(rows) else v))
    with pytest.raises(UnsupportedModel, match="expected at most 65535 along blockIdx.y of a launch, found 70000"):
        write_library(sized, TARGET, tmp_path / "f.so")


def test_memory_of_threads_on_the_host(tmp_path: Path) -> None:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        with T.sblock("root"):
            kept = T.alloc_buffer((1,), "float32", scope="local")
            for t in T.thread_binding(64, thread="threadIdx.x"):
                kept[0] = x[t]
            for t in T.thread_binding(64, thread="threadIdx.x"):
                y[t] = kept[0]

    with pytest.raises(UnsupportedModel, match="expected local memory inside of kernels alone, found kept"):
        write_library(main, TARGET, tmp_path / "f.so")
