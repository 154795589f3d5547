"""Default decisions for many cores give each of them work, where there is enough, and compute the same."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from attention_functions import attributes, check, normal
from attention_functions import compiled as scheduled_and_compiled
from attention_functions import function as attention
from fused_functions import functions, fused, here
from linear_functions import Case as Linear
from linear_functions import bfloat16_tensor, skip_unless_runs, x86
from linear_functions import fused as linear
from tvm import relax, te, tirx
from window_functions import Case as Window
from window_functions import fused as window

from halo_tvm.code_generation import compiled
from halo_tvm.errors import Declined
from halo_tvm.relay_ops import OPERATORS
from halo_tvm.tir_schedules import RULES
from halo_tvm.weight_windows import pack_winograd

CORES = 64
op = relax.op


def of_graph(graph, *shapes: tuple[int, ...]) -> tirx.PrimFunc:
    (func,) = functions(fused(graph, shapes))
    return func


def winograd() -> tirx.PrimFunc:
    packed = pack_winograd(np.zeros((64, 24, 3, 3), np.float32), axes=2, nr=16)
    attrs = {"strides": (1, 1), "dilations": (1, 1), "kernel": (3, 3), "pads": (1, 1, 1, 1), "n": 64}
    return window(Window(OPERATORS["convolution_winograd"], (1, 40, 36, 24), attrs, (packed,), "bias"))


def pooling() -> tirx.PrimFunc:
    sizes = {"kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
    attrs = {"layout": "last", "kind": "average", "ceil": False, "include_pad": False, "p": 2, **sizes}
    return window(Window(OPERATORS["pooling"], (1, 8, 7, 500), attrs))


def matmul(*shapes: tuple[int, ...]) -> tirx.PrimFunc:
    product = OPERATORS["matmul"]
    return of_graph(lambda emit, x, y: emit(product.call(x, y, transpose_a=False, transpose_b=False)), *shapes)


# Under the usual decisions all of these have fewer tasks than cores.
FUNCTIONS = {
    "gemm": lambda: linear(Linear(k=256, n=380, kc=256, nr=16, m=127)),
    "gemm of one row": lambda: linear(Linear(k=256, n=500, kc=128, nr=16, m=1)),
    "batched_matmul": lambda: matmul((3, 64, 64), (3, 64, 90)),
    "batched_matmul of few rows": lambda: matmul((8, 128), (128, 512)),
    "convolution_winograd": winograd,
    "channelwise": pooling,
    "elementwise": lambda: of_graph(lambda emit, x: emit(op.permute_dims(x)), (300, 250)),
    "flash_attention": lambda: attention([(1, 128, 6, 32), (1, 96, 3, 32), (1, 96, 3, 32)], attributes(6, 3, 32)),
}


def default(case: str, cores: int) -> tirx.PrimFunc:
    rule, func, target = RULES[case.split(" ")[0]], FUNCTIONS[case](), x86("avx2", cores)
    return rule.apply(func, target, rule.default(func, target))


def most_tasks(func: tirx.PrimFunc) -> int:
    found = []

    def visit(loop: tirx.For) -> None:
        if loop.kind == tirx.ForKind.PARALLEL:
            found.append(int(loop.extent))

    tvm_ffi.structural_walk(func.body, (tirx.For, visit), order="post")
    return max(found)


@pytest.mark.parametrize("case", FUNCTIONS)
def test_every_core_has_a_task(case: str) -> None:
    tasks = {cores: most_tasks(default(case, cores)) for cores in (2, CORES)}
    # One more than the cores would take as long as twice as many.
    rounds = -(-tasks[CORES] // CORES)
    assert tasks[2] < CORES and tasks[CORES] >= 0.75 * rounds * CORES, tasks


def test_parts_of_the_keys_are_as_many_as_cores() -> None:
    func = attention([(1, 1, 12, 64), (1, 2048, 12, 64), (1, 2048, 12, 64)], attributes(12, 12, 64))
    decisions = [RULES["decode_attention"].default(func, x86("avx2", cores)) for cores in (2, CORES)]
    assert [(d.splits, d.least_keys) for d in decisions] == [(16, 128), (CORES, 16)]
    if here("avx2"):
        arrays = normal((1, 1, 12, 64), (1, 2048, 12, 64), (1, 2048, 12, 64))
        executable = scheduled_and_compiled(RULES["decode_attention"], func, x86("avx2", CORES))
        check(executable, arrays, attributes(12, 12, 64))


@pytest.mark.slow
@pytest.mark.skipif(not here("avx2"), reason="this CPU lacks avx2")
def test_results_stay() -> None:
    made = {f"many{i}": default(case, CORES) for i, case in enumerate(FUNCTIONS)}
    for i, make in enumerate(FUNCTIONS.values()):
        func, target = make(), x86("avx2")
        made[f"plain{i}"] = RULES["fallback"].apply(func, target, RULES["fallback"].default(func, target))
    mod = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in made.items()})
    library, rng = compiled(mod, x86("avx2", CORES)), np.random.default_rng(0)
    for i, (case, make) in enumerate(FUNCTIONS.items()):
        *inputs, output = [tuple(map(int, buffer.shape)) for buffer in make().params]
        arrays = [tvm.runtime.tensor(rng.standard_normal(shape, dtype=np.float32)) for shape in inputs]
        results = [tvm.runtime.tensor(np.full(output, np.nan, np.float32)) for _ in range(2)]
        for name, out in zip((f"many{i}", f"plain{i}"), results):
            library[name](*arrays, out)
        np.testing.assert_allclose(*(out.numpy() for out in results), rtol=1e-3, atol=1e-3, err_msg=case)


@pytest.mark.parametrize(
    ("isa", "dtype", "inner", "pieces"),
    [
        ("avx2", "float16", (40, 16), 2),
        ("avx2", "bfloat16", (20, 16, 2), 2),
        ("avx512-bf16", "bfloat16", (20, 48, 2), 3),
    ],
)
def test_pieces_of_panels_of_half_the_bytes(isa: str, dtype: str, inner: tuple[int, ...], pieces: int) -> None:
    target, rule = x86(isa), RULES["gemm"]
    skip_unless_runs(target)
    n, panels = 70, -(-70 // inner[1])
    x = te.placeholder((5, 80), "float32", name="x")
    weight = te.placeholder((2, panels, *inner), dtype, name="weight")
    y = OPERATORS["linear"].compute(x, weight, layout="packed", n=n)
    func = te.create_prim_func([x, weight, y])
    usual = rule.default(func, target)
    cuts = {"whole": usual, "cut": replace(usual, split=pieces)}
    with pytest.raises(Declined, match="in 4 pieces is not served"):
        rule.apply(func, target, replace(usual, split=4))
    made = {name: rule.apply(func, target, cut).with_attr("global_symbol", name) for name, cut in cuts.items()}
    library, rng = compiled(tvm.IRModule(made), target), np.random.default_rng(0)
    packed = rng.standard_normal((2, panels, *inner)).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    tensor = bfloat16_tensor(packed) if dtype == "bfloat16" else tvm.runtime.tensor(packed)
    rows = tvm.runtime.tensor(rng.standard_normal((5, 80), dtype=np.float32))
    found = {name: tvm.runtime.tensor(np.full((5, n), np.nan, np.float32)) for name in cuts}
    for name, out in found.items():
        library[name](rows, tensor, out)
    np.testing.assert_allclose(found["cut"].numpy(), found["whole"].numpy(), rtol=1e-4, atol=1e-4)
