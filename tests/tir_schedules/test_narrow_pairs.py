"""Sums of two byte products in 16 bits: exact whatever the weights, and used where few of them need more."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from assembly import k_loops
from linear_functions import build, fused_of, x86
from tvm import relax, tirx

from halo_tvm.params import ParamSource, ParamTable, pack_int8, sums_int8
from halo_tvm.passes.pack_integers import packed_integers
from halo_tvm.passes.weights import WeightEditor
from halo_tvm.relay_ops.linear_integer import LinearInteger
from halo_tvm.targets import read_host
from halo_tvm.tir_schedules import RULES
from halo_tvm.tir_schedules.products.gemm.narrow_pairs import marked_share

GEMM, AVX2 = RULES["gemm"], x86("avx2")
runs = pytest.mark.skipif(not AVX2.isa.requires <= read_host().flags, reason="this processor has no AVX2")


def product(k: int, n: int, narrow: bool) -> tirx.PrimFunc:
    """(q [m, k] - zero) @ weight in panels of 16 columns."""
    m, panels = tirx.Var("m", "int64"), -(-n // 16)
    shapes = {"q": ((m, k), "uint8"), "zero": ((), "uint8"), "w": ((1, panels, k // 4, 16, 4), "int8")}
    shapes["sums"] = ((n,), "int32")
    params = [relax.Var(name, relax.TensorType(list(s), dtype)) for name, (s, dtype) in shapes.items()]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(LinearInteger.call(*params, layout="packed", n=n, narrow=narrow))
        builder.emit_func_output(out)
    return fused_of(builder)


def bell(k: int, n: int, deviation: float) -> np.ndarray:
    return np.clip(np.random.default_rng(0).normal(0, deviation, (k, n)).round(), -128, 127).astype(np.int8)


WEIGHTS = {
    "few": bell(96, 40, 30.0),
    "none": bell(96, 40, 5.0),
    "all": np.random.default_rng(0).integers(-128, 128, (96, 40)).astype(np.int8),
    "lowest": np.full((96, 40), -128, np.int8),
    "highest": np.full((96, 40), 127, np.int8),
    "just fits": np.tile(np.array([[64], [64], [-128], [0]], np.int8), (24, 40)),
    "just not": np.tile(np.array([[65], [64], [-1], [-128]], np.int8), (24, 40)),
}


@runs
def test_integers_are_exact_whatever_the_weights() -> None:
    func = product(96, 40, narrow=True)
    executable = build(GEMM.apply(func, AVX2, GEMM.default(func, AVX2)), AVX2)
    rng = np.random.default_rng(1)
    for name, weight in WEIGHTS.items():
        for rows in (1, 2, 3, 6, 13, 70):
            low = rng.exponential(40, (rows, 96)).astype(int).clip(0, 255)
            for q in (rng.integers(0, 256, (rows, 96)), low, np.full((rows, 96), 255), np.full((rows, 96), 128)):
                operands = [q.astype(np.uint8), np.array(7, np.uint8), pack_int8(weight, nr=16), sums_int8(weight)]
                out = tvm.runtime.tensor(np.zeros((rows, 40), np.int32))
                executable["main"](*map(tvm.runtime.tensor, operands), out)
                np.testing.assert_array_equal(out.numpy(), (q - 7) @ weight.astype(np.int64), err_msg=f"{name} {rows}")


@runs
def test_a_step_without_a_mark_takes_three_instructions_for_32_products() -> None:
    func = product(96, 40, narrow=True)
    decision = GEMM.default(func, AVX2)
    assembly = build(GEMM.apply(func, AVX2, decision), AVX2).mod.inspect_source("asm")
    assert decision.mr == 5 and assembly.count("vpmaddubsw") >= 3 * 2 * 5 and assembly.count("vpmovmskb") >= 1
    wide = product(96, 40, narrow=False)
    assert not k_loops(build(GEMM.apply(wide, AVX2, GEMM.default(wide, AVX2)), AVX2), "vpmaddubsw")


def test_steps_are_marked_where_two_weights_of_one_sign_are_beyond_128() -> None:
    shares = {name: marked_share(pack_int8(weight, nr=16)) for name, weight in WEIGHTS.items()}
    assert shares["none"] == shares["just fits"] == 0.0 and 0.0 < shares["few"] < 0.3
    assert shares["all"] > 0.9 and shares["lowest"] == shares["highest"] == shares["just not"] > 0.9


@pytest.mark.parametrize(
    ("isa", "name", "zero", "narrow"),
    [
        ("avx2", "few", 128, True),
        ("avx2", "all", 128, False),
        ("avx2", "all", 0, True),  # rows behind a ReLU are low, mostly
        ("avx512", "few", 0, False),
    ],
)
def test_weights_are_looked_at_when_they_are_packed(isa: str, name: str, zero: int, narrow: bool) -> None:
    weight = WEIGHTS[name] if name == "all" else bell(96, 40, 22.0)
    params = ParamTable({"w": ParamSource(weight.shape, "int8", lambda: weight)})
    q = relax.Var("q", relax.TensorType([3, 96], "uint8"))
    w = relax.Var("w", relax.TensorType([96, 40], "int8"))
    func = relax.Function([q, w], q, q.ty).with_attrs({"num_input": 1, "halo.params": ["w"]})
    *_, attrs = packed_integers(WeightEditor(func, params), "w", relax.const(zero, "uint8"), x86(isa))
    assert attrs == ({"narrow": True} if narrow else {})
