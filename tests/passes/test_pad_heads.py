"""Heads of any size are computed by the rules of attention, with zeros behind them."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
import torch
import tvm
from torch.nn import functional
from tvm import relax

from halo_tvm import import_torch
from halo_tvm.in_process import Program, compile_in_process
from halo_tvm.params import ParamTable
from halo_tvm.passes import PASSES
from halo_tvm.passes.graph_pass import Context
from halo_tvm.relay_ops import OPERATORS
from halo_tvm.targets import resolve


def module(size: int, kept: str = "float32", **attributes: object) -> tvm.IRModule:
    types = {"q": "float32", "k": kept, "v": kept}
    rows = [relax.Var(name, relax.TensorType([1, 6, 2, size], dtype)) for name, dtype in types.items()]
    rows += [relax.Var("lengths", relax.TensorType([1], "int32"))] * ("has_lengths" in attributes)
    attrs = {"num_heads": 2, "num_kv_heads": 2, "head_dim": size, "scale": 0.1, **attributes}
    builder = relax.BlockBuilder()
    with builder.function("main", rows, attrs={"num_input": len(rows)}):
        with builder.dataflow():
            out = builder.emit_output(OPERATORS["attention"].call(*rows, **attrs))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize(
    ("size", "target", "attributes", "padded"),
    [
        (40, "x86:avx2", {}, 1),
        (40, "cuda:sm_80", {}, 1),
        (48, "x86:avx2", {}, 0),  # served as it is
        (250, "x86:avx2", {}, 1),
        (260, "x86:avx2", {}, 0),  # too large for every rule
        (40, "x86:avx2", {"has_lengths": True}, 0),  # a whole cache would be copied
        (40, "x86:avx2", {"kept": "float16"}, 0),  # a cache's keys
        (40, "arm:neon", {}, 0),  # four lanes
    ],
)
def test_heads_that_no_rule_serves_are_padded(size: int, target: str, attributes: dict, padded: int) -> None:
    before = module(size, **attributes)
    after, report = PASSES["pad_heads"]()(before, Context(ParamTable(), resolve(target), {}, {}))
    assert report["padded"] == padded and (after is before or padded)
    assert after["main"].ret_ty.shape.values[-1] == size


def rules_of(program: Program) -> set[str]:
    return {f.rule for f in program.reports.schedule.functions if "attention" in f.function}


@pytest.mark.parametrize("size", [6, 26, 72])
def test_results_are_those_of_torch(size: int) -> None:
    class Attend(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    rows = torch.export.Dim("rows", max=64)
    given = [torch.randn(2, 3, 9, size, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    model = import_torch(Attend().eval(), tuple(given), dynamic_shapes=({2: rows}, {2: rows}, {2: rows}))
    program = compile_in_process(model)
    assert rules_of(program) == {"flash_attention"}
    for n in (9, 1):
        part = [x[:, :, :n].contiguous() for x in given]
        (found,) = program(*(x.numpy() for x in part)).values()
        np.testing.assert_allclose(found, Attend()(*part).numpy(), atol=1e-5)


def test_columns_of_one_projection_are_padded_head_by_head() -> None:
    """An encoder of twelve heads of 26, as small BERTs have: queries, keys and values stay one product."""
    from halo_tvm.importers.onnx import import_proto

    graph = """g (float[b, s, 312] x) => (float[b, s, 12, 26] y) {
        a = MatMul (x, wq)  c = MatMul (x, wk)  e = MatMul (x, wv)
        q4 = Reshape (a, heads)  k4 = Reshape (c, heads)  v4 = Reshape (e, heads)
        q = Transpose <perm = [0, 2, 1, 3]> (q4)  k = Transpose <perm = [0, 2, 3, 1]> (k4)
        v = Transpose <perm = [0, 2, 1, 3]> (v4)
        s = MatMul (q, k)  t = Mul (s, scale)  p = Softmax <axis = -1> (t)  o = MatMul (p, v)
        y = Transpose <perm = [0, 2, 1, 3]> (o)
    }"""
    net = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {graph}')
    random = np.random.default_rng(0)
    held = {f"w{n}": random.standard_normal((312, 312), np.float32) / 18 for n in "qkv"}
    held |= {"heads": np.int64([0, 0, 12, 26]), "scale": np.float32(26**-0.5)}
    net.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in held.items())
    program = compile_in_process(import_proto(net, name="net"))
    x = random.standard_normal((2, 7, 312), np.float32)
    q, k, v = ((x @ held[f"w{n}"]).reshape(2, 7, 12, 26).transpose(0, 2, 1, 3).astype(np.float64) for n in "qkv")
    weights = np.exp(q @ k.transpose(0, 1, 3, 2) * 26**-0.5)
    wanted = (weights / weights.sum(-1, keepdims=True)) @ v
    np.testing.assert_allclose(program(x=x)["y"], wanted.transpose(0, 2, 1, 3), atol=1e-5)
    assert rules_of(program) == {"flash_attention"}
    assert sum(f.rule == "gemm" for f in program.reports.schedule.functions) == 1
