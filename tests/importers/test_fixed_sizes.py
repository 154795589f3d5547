"""Kernels of importers once sizes are fixed: Before -> After, and a model whose kernels join their neighbours then."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from halo_tvm.importers._fixed_sizes import with_fixed_sizes
from halo_tvm.importers.shapes import apply_shapes
from halo_tvm.importers.torch_export import import_program
from halo_tvm.in_process import compile_in_process


@I.ir_module(s_tir=True)
class Before:
    @T.prim_func(private=True, s_tir=True)
    def doubled(a: T.handle, n: T.int64, b: T.handle):
        m = T.int64()
        A = T.match_buffer(a, (m, n * T.int64(2)), "float32")
        B = T.match_buffer(b, (m, n * T.int64(2)), "float32")
        for i, j in T.grid(m, n * T.int64(2)):
            with T.sblock("doubled"):
                v, w = T.axis.remap("SS", [i, j])
                B[v, w] = A[v, w] * T.float32(2)

    @R.function
    def main(x: R.Tensor((3, 8), "float32"), y: R.Tensor(("rows", 8), "float32")):
        rows = T.int64()
        cls = Before
        with R.dataflow():
            a = R.call_tir(cls.doubled, (x, R.prim_value(4)), out_ty=R.Tensor((3, 8), "float32"))
            b = R.call_tir(cls.doubled, (a, R.prim_value(4)), out_ty=R.Tensor((3, 8), "float32"))
            c = R.call_tir(cls.doubled, (y, R.prim_value(4)), out_ty=R.Tensor((rows, 8), "float32"))
            d = (b, c)
            R.output(d)
        return d


def test_each_call_has_the_kernel_of_its_sizes() -> None:
    after = with_fixed_sizes(Before)
    kernels = {g.name_hint: f for g, f in after.functions_items() if isinstance(f, tvm.tirx.PrimFunc)}
    shapes = sorted(str([list(p.shape) for p in f.params]) for f in kernels.values())
    assert len(kernels) == 2  # one of both equal calls, one of open rows; the general one is gone
    assert shapes[0].count("3") == 2 and shapes[1].count("m") == 2
    assert all(len(f.params) == 2 for f in kernels.values())  # the number is written into them


class Between(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        spectrum = torch.fft.rfft(torch.sigmoid(x) * x)
        return torch.log1p(spectrum.real**2 + spectrum.imag**2) * 2, torch.cumsum(x.relu(), 0).tanh()


@pytest.mark.slow
def test_kernels_of_the_importer_join_neighbours_of_fixed_sizes() -> None:
    x = torch.randn(3, 5, 16)
    batch = torch.export.Dim("batch", max=64)
    program = torch.export.export(Between().eval(), (x,), dynamic_shapes=({0: batch},))
    model = apply_shapes(import_program(program, name="between"), ("x=3x5x16",))
    found = compile_in_process(model)(x.numpy())
    for got, want in zip(found.values() if isinstance(found, dict) else found, Between()(x)):
        np.testing.assert_allclose(np.asarray(got), want.numpy(), rtol=1e-5, atol=1e-5)
