"""What a GPU would compute and what it would do wrong, found without one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from emulated_functions import TARGET, assert_near, emulated, module_of, primitive, scheduled_file, scheduled_model
from emulation import KernelFault, _run, emulate
from emulation._matrices import registers
from gpu_code import machine_code
from reversing import reverse
from test_operators import CASES
from tvm import s_tir, te, tirx, topi
from tvm.s_tir import dlight
from tvm.script import tirx as T

from halo_tvm.cuda.sass import instructions
from halo_tvm.cuda.toolkit import find_nvcc, find_tool
from halo_tvm.errors import UnsupportedModel
from halo_tvm.passes.schedule import schedule_functions

WRITER = 17


def random(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def scheduled(func: tirx.PrimFunc, rule: object) -> tirx.PrimFunc:
    with TARGET.tvm:
        return next(iter(rule.apply(func, TARGET.tvm, False).mod.functions.values()))


@pytest.mark.parametrize("rule", [dlight.gpu.Fallback(), dlight.gpu.GeneralReduction()])
@pytest.mark.parametrize("rows", [1, 7])
def test_softmax(rule: object, rows: int) -> None:
    """Symbolic rows; the second rule has shared memory, shuffles, barriers and lanes beyond the row's end."""
    x = te.placeholder((tirx.Var("n", "int64"), 500), "float32", name="x")
    func = scheduled(te.create_prim_func([x, topi.nn.softmax(x, -1)]), rule)
    given, out = random(rows, 500), np.zeros((rows, 500), np.float32)
    done = emulate(func, TARGET, [given, out])
    e = np.exp(given - given.max(-1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(-1, keepdims=True), rtol=1e-5)
    assert done.launches[-1][1]["blockIdx.x"] >= 1
    assert (sum(barriers for *_, barriers in done.launches) > 0) == isinstance(rule, dlight.gpu.GeneralReduction)


def product(m: int, n: int, k: int, dtype: str) -> tirx.PrimFunc:
    a, b = te.placeholder((m, k), dtype, name="a"), te.placeholder((n, k), dtype, name="b")
    axis = te.reduce_axis((0, k), name="k")
    c = te.compute(
        (m, n), lambda i, j: te.sum(a[i, axis].astype("float32") * b[j, axis].astype("float32"), axis=axis), name="c"
    )
    return te.create_prim_func([a, b, te.compute((m, n), lambda i, j: c[i, j].astype(dtype), name="d")])


@pytest.mark.sweep  # TVM parses its tensor intrinsics for a minute and a half: more than any other test takes
def test_a_product_on_tensor_cores() -> None:
    """TVM's own rule: WMMA fragments, pipelined loads, vectors of four, one dynamic allocation under three types."""
    a, b, d = random(128, 128, dtype="float16"), random(128, 128, dtype="float16"), np.zeros((128, 128), np.float16)
    done = emulate(scheduled(product(128, 128, 128, "float16"), dlight.gpu.Matmul()), TARGET, [a, b, d])
    expected = a.astype(float) @ b.astype(float).T
    assert np.abs(d - expected).max() < 1e-3 * np.abs(expected).max()
    assert done.launches[0][1]["tirx.use_dyn_shared_memory"] > 48 << 10


def changed(change: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels as `change` makes them of what TVM lowered."""
    plain = _run.lowered
    monkeypatch.setattr(
        _run, "lowered", lambda func, target: {name: change(name, f) for name, f in plain(func, target).items()}
    )


def without_barriers(name: str, func: tirx.PrimFunc) -> tirx.PrimFunc:
    def drop(stmt: tirx.Evaluate) -> tirx.Stmt:
        is_sync = isinstance(stmt.value, tvm.ir.Call) and str(stmt.value.op.name) == "tirx.tvm_storage_sync"
        return tirx.Evaluate(tirx.IntImm("int32", 0)) if is_sync else stmt

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.Evaluate, drop)))


def test_a_missing_barrier_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    func, x, y = reverse(4, 64, "shared"), random(4, 64), np.zeros((4, 64), np.float32)
    assert emulate(func, TARGET, [x, y]).launches == (("main_kernel", {"blockIdx.x": 4, "threadIdx.x": 64}, 1),)
    np.testing.assert_array_equal(y, x[:, ::-1])
    changed(without_barriers, monkeypatch)
    with pytest.raises(KernelFault, match="reads what another wrote to kept .* with no barrier"):
        emulate(func, TARGET, [x, y])


@T.prim_func(s_tir=True)
def overwritten(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    for t in T.thread_binding(64, thread="threadIdx.x"):
        with T.sblock("block"):
            T.reads(x[0:64])
            T.writes(y[0:64])
            kept = T.sblock_alloc_buffer((64,), "float32", scope="shared")
            kept[t] = x[t]
            T.evaluate(T.tvm_storage_sync("shared"))
            y[t] = kept[0] + x[t]
            if t == WRITER:
                kept[0] = x[1]


@pytest.mark.parametrize("writer", [0, 31, 63])
def test_what_many_read_is_overwritten(writer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM puts a barrier in front of the write; without it, whichever of the readers writes is at fault."""
    barriers = []

    def late(stmt: tirx.Evaluate) -> tirx.Stmt:
        if not (isinstance(stmt.value, tvm.ir.Call) and str(stmt.value.op.name) == "tirx.tvm_storage_sync"):
            return stmt
        barriers.append(stmt)
        return stmt if len(barriers) == 1 else tirx.Evaluate(tirx.IntImm("int32", 0))

    def number(value: tirx.IntImm) -> tirx.IntImm:
        return tirx.IntImm(value.ty.dtype, writer) if int(value.value) == WRITER else value

    def by_writer(name: str, func: tirx.PrimFunc) -> tirx.PrimFunc:
        body = tvm_ffi.structural_map(func.body, (tirx.Evaluate, late))
        return func.with_body(tvm_ffi.structural_map(body, (tirx.IntImm, number)))

    changed(by_writer, monkeypatch)
    with pytest.raises(KernelFault, match="overwrites an element of kept .* that another reads, with no barrier"):
        emulate(overwritten, TARGET, [random(64), np.zeros(64, np.float32)])
    assert len(barriers) == 2


def test_a_product_without_barriers_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    func = scheduled(product(64, 64, 64, "float32"), dlight.gpu.Matmul())
    arrays = [random(64, 64), random(64, 64), np.zeros((64, 64), np.float32)]
    emulate(func, TARGET, arrays)
    changed(without_barriers, monkeypatch)
    with pytest.raises(KernelFault, match="no barrier"):
        emulate(func, TARGET, arrays)


@T.prim_func(s_tir=True)
def divergent(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    for t in T.thread_binding(64, thread="threadIdx.x"):
        if x[t] > T.float32(0):
            T.evaluate(T.tvm_storage_sync("shared"))
            y[t] = x[t]


@T.prim_func(s_tir=True)
def outside(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    for t in T.thread_binding(64, thread="threadIdx.x"):
        if t < 63:
            y[t] = x[t + 2]


@T.prim_func(s_tir=True)
def guarded(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    for t in T.thread_binding(64, thread="threadIdx.x"):
        y[t] = T.if_then_else(t < 62, x[t + 2], T.float32(5))


@T.prim_func(s_tir=True)
def quotients(x: T.Buffer((4,), "int64"), d: T.Buffer((4,), "int64"), y: T.Buffer((4,), "int64")):
    for t in T.thread_binding(4, thread="threadIdx.x"):
        y[t] = T.truncdiv(x[t], d[t])


@T.prim_func(s_tir=True)
def two_writers(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    for t in T.thread_binding(64, thread="threadIdx.x"):
        y[t // 2] = x[t]


@pytest.mark.parametrize(
    ("func", "message"),
    [
        (divergent, "a barrier is reached by only some threads"),
        (outside, "element 64 of x is touched, which has 64 of float32"),
        (two_writers, "two threads write different values to one element of y"),
    ],
    ids=["divergent", "outside", "two_writers"],
)
def test_faults(func: tirx.PrimFunc, message: str) -> None:
    with pytest.raises(KernelFault, match=message):
        emulate(func, TARGET, [random(64), np.zeros(64, np.float32)])


def test_what_a_guard_keeps_out_is_no_fault() -> None:
    x, y = random(64), np.zeros(64, np.float32)
    emulate(guarded, TARGET, [x, y])
    np.testing.assert_array_equal(y, [*x[2:], 5, 5])


def test_integers_are_divided_towards_zero_and_exactly() -> None:
    x, d = np.array([[-7, 7, 2**62 + 1, -(2**63)], [2, -2, 1, 3]], np.int64)
    y = np.zeros(4, np.int64)
    emulate(quotients, TARGET, [x, d, y])
    assert y.tolist() == [-3, -3, 2**62 + 1, -(2**63 // 3)]


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="a contiguous array of float32 with 1 axes was expected for x"):
        emulate(guarded, TARGET, [random(64, dtype="float64"), np.zeros(64, np.float32)])
    with pytest.raises(ValueError, match="x has an axis of 64"):
        emulate(guarded, TARGET, [random(65), np.zeros(64, np.float32)])
    x = te.placeholder((tirx.Var("n", "int64"), 500), "float32", name="x")
    func = scheduled(te.create_prim_func([x, topi.exp(x)]), dlight.gpu.Fallback())
    with pytest.raises(UnsupportedModel, match="emulate smaller shapes"):
        emulate(func, TARGET, [np.zeros((5000, 500), np.float32), np.zeros((5000, 500), np.float32)])


def test_registers_are_where_tvm_puts_them() -> None:
    """The layout of 16 x 16 halves by the formula of TVM's tensor intrinsics."""
    row, col = registers("a", "m16n8k16", 16)
    for lane in range(32):
        for i in range(8):
            r, c = row[lane, i], col[lane, i]
            assert (4 * (r % 8) + c % 8 // 2, 4 * (c // 8) + r // 8 * 2 + c % 2) == (lane, i)
    for matrix, shape, bits, size in (
        ("a", "m16n8k8", 16, (16, 8)),
        ("b", "m16n8k16", 16, (16, 8)),
        ("b", "m16n8k32", 8, (32, 8)),
        ("a", "m16n8k32", 8, (16, 32)),
        ("a", "m16n8k8", 32, (16, 8)),
        ("c", "m16n8k16", 32, (16, 8)),
    ):
        row, col = registers(matrix, shape, bits)
        assert sorted(zip(row.flat, np.broadcast_to(col, row.shape).flat)) == [
            (r, c) for r in range(size[0]) for c in range(size[1])
        ]


@T.prim_func(s_tir=True)
def one_tile(a: T.Buffer((16, 16), "float16"), b: T.Buffer((16, 16), "float16"), c: T.Buffer((16, 16), "float32")):
    for tx in T.thread_binding(32, thread="threadIdx.x"):
        with T.sblock("tile"):
            T.reads(a[0:16, 0:16], b[0:16, 0:16])
            T.writes(c[0:16, 0:16])
            a_shared = T.sblock_alloc_buffer((256,), "float16", scope="shared")
            b_shared = T.sblock_alloc_buffer((256,), "float16", scope="shared")
            a_local = T.sblock_alloc_buffer((8,), "float16", scope="local")
            b_local = T.sblock_alloc_buffer((8,), "float16", scope="local")
            c_local = T.sblock_alloc_buffer((8,), "float32", scope="local")
            for i in range(8):
                a_shared[tx * 8 + i] = a[tx // 2, tx % 2 * 8 + i]
                b_shared[tx * 8 + i] = b[tx // 2, tx % 2 * 8 + i]
                c_local[i] = T.float32(0)
            T.evaluate(T.tvm_storage_sync("shared"))
            T.evaluate(
                T.ptx_legacy.ldmatrix(
                    False,
                    4,
                    ".b16",
                    a_local.data,
                    0,
                    a_shared.access_ptr("r"),
                    tx % 16 * 16 + tx // 16 * 8,
                    dtype="float16",
                )
            )
            T.evaluate(
                T.ptx_legacy.ldmatrix(
                    True,
                    4,
                    ".b16",
                    b_local.data,
                    0,
                    b_shared.access_ptr("r"),
                    tx % 16 * 16 + tx // 16 * 8,
                    dtype="float16",
                )
            )
            for half in range(2):
                T.evaluate(
                    T.ptx_legacy.mma(
                        "m16n8k16",
                        "row",
                        "col",
                        "fp16",
                        "fp16",
                        "fp32",
                        a_local.data,
                        0,
                        b_local.data,
                        half * 4,
                        c_local.data,
                        half * 4,
                        False,
                        dtype="float32",
                    )
                )
            for i in range(8):
                c[i // 2 % 2 * 8 + tx // 4, i // 4 * 8 + tx % 4 * 2 + i % 2] = c_local[i]


def test_ldmatrix_and_mma() -> None:
    a, b, c = random(16, 16, dtype="float16"), random(16, 16, dtype="float16"), np.zeros((16, 16), np.float32)
    emulate(one_tile, TARGET, [a, b, c])
    np.testing.assert_allclose(c, a.astype(float) @ b.astype(float), rtol=1e-4, atol=1e-5)


def pipelined(stages: int) -> tirx.PrimFunc:
    """A product whose operands come to shared memory by asynchronous copies, `stages` steps ahead."""
    a, b = te.placeholder((64, 128), "float32", name="a"), te.placeholder((128, 64), "float32", name="b")
    axis = te.reduce_axis((0, 128), name="k")
    func = te.create_prim_func([a, b, te.compute((64, 64), lambda i, j: te.sum(a[i, axis] * b[axis, j], axis), "c")])
    sch = s_tir.Schedule(func)
    block = sch.get_sblock("c")
    i, j, k = sch.get_loops(block)
    (bi, ti), (bj, tj), (ko, ki) = sch.split(i, [4, 16]), sch.split(j, [4, 16]), sch.split(k, [8, 16])
    sch.reorder(bi, bj, ti, tj, ko, ki)
    for loop, tag in ((bi, "blockIdx.y"), (bj, "blockIdx.x"), (ti, "threadIdx.y"), (tj, "threadIdx.x")):
        sch.bind(loop, tag)
    sch.reverse_compute_at(sch.cache_write(block, 0, "local"), tj)
    for operand in range(2):
        copy = sch.cache_read(block, operand, "shared.dyn")
        sch.compute_at(copy, ko)
        fused = sch.fuse(*sch.get_loops(copy)[-2:])
        _, ty, tx = sch.split(fused, [None, 16, 16])
        sch.bind(tx, "threadIdx.x")
        sch.bind(ty, "threadIdx.y")
    sch.decompose_reduction(block, ko)
    sch.annotate(ko, "software_pipeline_stage", [0, 0, stages])
    sch.annotate(ko, "software_pipeline_order", [0, 1, 2])
    sch.annotate(ko, "software_pipeline_async_stages", [0])
    return sch.mod["main"]


def without_waiting(name: str, func: tirx.PrimFunc) -> tirx.PrimFunc:
    def drop(stmt: tirx.AttrStmt) -> tirx.Stmt:
        return stmt.body if stmt.attr_key == "async_wait_inflight_count" else stmt

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.AttrStmt, drop)))


@pytest.mark.parametrize("stages", [1, 3])
def test_asynchronous_copies_land_when_they_are_waited_for(stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    func = pipelined(stages)
    assert "cp_async_raw" in str(_run.lowered(func, TARGET)["main_kernel"])
    a, b, c = random(64, 128), random(128, 64), np.zeros((64, 64), np.float32)
    emulate(func, TARGET, [a, b, c])
    np.testing.assert_allclose(c, a.astype(float) @ b.astype(float), rtol=1e-4, atol=1e-4)
    changed(without_waiting, monkeypatch)
    with pytest.raises(KernelFault, match="may not have brought yet"):
        emulate(func, TARGET, [a, b, c])
    monkeypatch.undo()
    changed(without_barriers, monkeypatch)
    with pytest.raises(KernelFault, match="no barrier"):
        emulate(func, TARGET, [a, b, c])


@pytest.mark.skipif(find_nvcc() is None, reason="no nvcc: install NVIDIA's CUDA toolkit 13")
@pytest.mark.skipif(find_tool("nvdisasm") is None, reason="no nvdisasm: pip install nvidia-cuda-nvdisasm")
@pytest.mark.parametrize(
    ("func", "expected"),
    [
        (pipelined(2), ("LDGSTS", "LDGDEPBAR", "FFMA")),
        (one_tile, ("LDSM", "HMMA")),
    ],
    ids=["asynchronous", "tensor_cores"],
)
def test_instructions_are_in_the_machine_code(func: tirx.PrimFunc, expected: tuple[str, ...]) -> None:
    """What is emulated is what the assembler makes instructions of, without spills."""
    made = machine_code([func], TARGET.arch)
    (found,) = instructions(made.fatbin).values()
    for operation in expected:
        assert any(name.split(".")[0] == operation for name in found), f"no {operation} among {dict(found)}"
    assert all(k.spill_store_bytes == 0 for k in made.kernels)


def check_functions(before: dict[str, tirx.PrimFunc], after: tvm.IRModule, **sizes: int) -> None:
    """Every function on the CPU, and as it is scheduled on the GPU that is emulated."""
    for name, func in before.items():
        for array, wanted in emulated(func, after[name], **sizes):
            assert_near(array, wanted, name)


@pytest.mark.parametrize("width", [200, "w"])
def test_lanes_meet_before_an_operation_with_conditions(width: int | str, tmp_path: Path) -> None:
    """A maximum keeps NaN, by a condition that some lanes of a warp meet: no shuffle may stand under it."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        net (float[6, {width}] x) => (float[6, 1] y)
        {{
            axes = Constant <value_ints = [1]> ()
            y = ReduceMax (x, axes)
        }}"""
    )
    onnx.save(model, tmp_path / "max.onnx")
    net = scheduled_file(tmp_path / "max.onnx", "fp32")
    assert set(net.schedule.rules) == {"row_reduction_gpu"}
    check_functions(net.before, net.after, w=200)


def test_draws_of_fixed_sizes_are_those_of_a_cpu(tmp_path: Path) -> None:
    """Their indices fit 32 bits, which TVM gives them then, and have a high word all the same."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> net (float[10] x) => (float[10] y) { y = RandomUniformLike (x) }'
    )
    onnx.save(model, tmp_path / "draw.onnx")
    net = scheduled_file(tmp_path / "draw.onnx", "fp32")
    check_functions(net.before, net.after)


@pytest.mark.parametrize(
    ("length", "reason"),
    [
        ("length", "keeps a buffer of unknown size in shared"),
        (8204, "keeps 262432 bytes in shared memory, where 49152"),
    ],
)
def test_what_tvms_rule_cannot_keep_in_shared_memory_goes_elsewhere(length: int | str, reason: str) -> None:
    """A part of grouped windows: the rule would keep all of them."""
    n, size = tirx.Var("n", "int64"), tirx.Var(length, "int64") if isinstance(length, str) else length
    x = te.placeholder((n, 8, size), "float32", name="x")
    w = te.placeholder((8, 4, 4), "float32", name="w")
    c, k = te.reduce_axis((0, 4), "c"), te.reduce_axis((0, 4), "k")
    windows = te.compute(
        (n, 8, size - 3), lambda b, m, o: te.sum(x[b, m // 4 * 4 + c, o + k] * w[m, c, k], [c, k]), name="windows"
    )
    part = te.compute((n, 8, size - 4), lambda b, m, o: tirx.sigmoid(windows[b, m, o]), name="part")
    func = te.create_prim_func([x, w, part]).with_attr({"global_symbol": "part", "tirx.noalias": True})
    after, report = schedule_functions(tvm.IRModule({"part": func}), TARGET)
    (entry,) = report.functions
    assert entry.rule == "fallback_gpu" and any(reason in declined for declined in entry.declined)
    if isinstance(length, str):
        check_functions({"part": func}, after, n=2, length=21)


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
@pytest.mark.slow
@pytest.mark.sampled(2)
def test_every_function_of_a_model_is_right(kind: str, tmp_path: Path) -> None:
    # float32, because functions are compared that round nothing.
    model = scheduled_model(kind, "fp32", tmp_path)
    expected = {"flash_attention_gpu", "row_reduction_gpu", "elementwise_gpu"}
    assert expected <= set(model.schedule.rules) <= set(TARGET.spec.rules)
    check_functions(model.before, model.after, batch=2, sequence=3)


# One thread takes all steps of a recurrence, and a tile of Winograd is thousands of statements: most cases take half a
# minute to emulate, so that one is enough.
RECURRENT = {"gru", "lstm", "recurrence", "rnn"}
ONE_CASE = dict.fromkeys(RECURRENT, 0) | dict.fromkeys(
    ("gated_delta", "convolution_winograd", "convolution_integer_winograd"), 1
)
OPERATOR_CASES = [
    pytest.param(name, index, marks=[pytest.mark.slow] if index or name in RECURRENT - {"recurrence"} else [])
    for name, index in CASES
    if index == ONE_CASE.get(name, index)
]


@pytest.mark.parametrize(("name", "index"), OPERATOR_CASES)
@pytest.mark.sampled(12)
def test_every_operator_is_served_and_right(name: str, index: int) -> None:
    mod = module_of(name, index)
    check_functions(primitive(mod), schedule_functions(mod, TARGET)[0])
