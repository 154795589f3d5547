"""Any Relax graph an importer may produce goes through every phase: ranks, dtypes, sizes, operators, outputs.

Each case is a small module compiled in this process and compared with NumPy, at level 3 and without any
optional pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.in_process import Program, compile_in_process
from halo_tvm.params import ParamTable

Arrays = Mapping[str, np.ndarray]
Build = Callable[..., relax.Expr]


def imported(
    inputs: Mapping[str, tuple[Sequence[int | str], str]],
    build: Build,
    outputs: Sequence[str] = ("y",),
    *,
    dataflow: bool = True,
) -> ImportedModel:
    """`build(builder, *inputs)` as the body of main; dimensions of equal names are one symbol."""
    symbols: dict[str, tirx.Var] = {}

    def size(dim: int | str) -> int | tirx.Var:
        return symbols.setdefault(dim, tirx.Var(dim, "int64")) if isinstance(dim, str) else dim

    bb = relax.BlockBuilder()
    params = [
        relax.Var(f"x{i}", relax.TensorType([size(d) for d in shape], dtype))
        for i, (shape, dtype) in enumerate(inputs.values())
    ]
    with bb.function("main", params):
        if dataflow:
            with bb.dataflow():
                result = bb.emit_output(build(bb, *params))
        else:
            result = build(bb, *params)
        bb.emit_func_output(result)
    return as_imported(bb.finalize(), inputs, outputs)


def as_imported(
    mod: tvm.IRModule, inputs: Mapping[str, tuple[Sequence[int | str], str]], outputs: Sequence[str]
) -> ImportedModel:
    mod = mod.clone()
    mod["main"] = mod["main"].with_attrs({"num_input": len(inputs), "halo.params": []})
    names = {d for shape, _ in inputs.values() for d in shape if isinstance(d, str)}
    specs = tuple(InputSpec(name, tuple(shape), dtype) for name, (shape, dtype) in inputs.items())
    return ImportedModel(
        "t", mod, ParamTable(), specs, tuple(outputs), dict.fromkeys(names, (0, 64)), dict.fromkeys(names, 8), {}, {}
    )


def program_of(model: ImportedModel, level: int = 3) -> Program:
    return compile_in_process(model, threads=1, level=level)


@dataclass(frozen=True)
class Case:
    name: str
    inputs: Mapping[str, tuple[Sequence[int | str], str]]
    build: Build
    expected: Callable[..., object]
    sizes: Mapping[str, int] = field(default_factory=lambda: {"n": 3, "m": 5})
    outputs: Sequence[str] = ("y",)
    dataflow: bool = True
    rtol: float = 1e-5

    def arrays(self) -> list[np.ndarray]:
        random = np.random.default_rng(0)
        made = []
        for shape, dtype in self.inputs.values():
            shape = [self.sizes[d] if isinstance(d, str) else d for d in shape]
            values = random.standard_normal(shape) * 4
            made.append(
                (values > 0 if dtype == "bool" else np.abs(values) if dtype[0] == "u" else values).astype(dtype)
            )
        return made


def unary(name: str, dtype: str, build: Build, expected: Callable[..., object], **more: object) -> Case:
    return Case(f"{name}-{dtype}", {"x": (("n", 4), dtype)}, build, expected, **more)


def _te_twice(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    return bb.emit_te(lambda a: te.compute(a.shape, lambda *i: a[i] * tirx.const(2, a.dtype)), x)


def _cast_nonzero(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    """int64 [rank, k] of unknown k, named by a match_cast."""
    count = tirx.Var("count", "int64")
    found = bb.emit(relax.op.nonzero(x))
    return bb.match_cast(found, relax.TensorType([x.ty.ndim, count], "int64"))


FLOATS = ("float16", "float32", "float64")
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
R = relax.op
CASES: list[Case] = [
    *(unary("identity", d, lambda bb, x: x, lambda x: x) for d in ("bool", *INTS, *FLOATS)),
    *(unary("add", d, lambda bb, x: R.add(x, x), lambda x: x + x) for d in (*INTS, *FLOATS)),
    *(unary("less", d, lambda bb, x: R.less(x, R.add(x, x)), lambda x: x < x + x) for d in (*INTS, *FLOATS)),
    *(
        unary("cast", d, lambda bb, x: R.astype(x, "int32"), lambda x: x.astype("int32"))
        for d in ("bool", "int8", *FLOATS)
    ),
    *(
        unary("sum", d, lambda bb, x: R.sum(x, [1]), lambda x: x.sum(1, dtype=x.dtype))
        for d in ("int32", "int64", "float32", "float64")
    ),
    *(
        unary(
            "softmax",
            d,
            lambda bb, x: R.nn.softmax(x),
            lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
            rtol=1e-2 if d == "float16" else 1e-5,
        )
        for d in FLOATS
    ),
    *(unary("te", d, _te_twice, lambda x: x * x.dtype.type(2)) for d in ("int8", "uint8", "int64", "float64")),
    unary("not", "bool", lambda bb, x: R.logical_not(x), np.logical_not),
    Case("rank0", {"x": ((), "float32")}, lambda bb, x: R.exp(R.add(x, x)), lambda x: np.exp(x + x)),
    Case("rank0-int", {"x": ((), "int64")}, lambda bb, x: R.multiply(x, relax.const(3, "int64")), lambda x: x * 3),
    Case("rank0-mixed", {"x": ((), "float32"), "y": (("n",), "float32")}, lambda bb, x, y: R.add(x, y), np.add),
    Case(
        "rank6", {"x": ((2, 3, "n", 1, 2, 2), "float32")}, lambda bb, x: R.permute_dims(R.exp(x)), lambda x: np.exp(x).T
    ),
    Case(
        "rank7-sum",
        {"x": ((2, 1, 2, "n", 1, 2, 2), "float32")},
        lambda bb, x: R.sum(x, [1, 3, 5]),
        lambda x: x.sum((1, 3, 5)),
    ),
    Case("empty", {"x": ((0, 4), "float32")}, lambda bb, x: R.exp(x), np.exp),
    Case("empty-symbolic", {"x": (("n", 4), "float32")}, lambda bb, x: R.exp(x), np.exp, {"n": 0}),
    Case("empty-sum", {"x": (("n", 4), "float32")}, lambda bb, x: R.sum(x, [0]), lambda x: x.sum(0), {"n": 0}),
    Case("empty-sum-static", {"x": ((0, 4), "float32")}, lambda bb, x: R.sum(x, [0]), lambda x: x.sum(0)),
    Case("empty-sum-last", {"x": ((4, "n"), "float32")}, lambda bb, x: R.sum(x, [1]), lambda x: x.sum(1), {"n": 0}),
    Case("empty-sum-all", {"x": (("n", 4), "float32")}, lambda bb, x: R.sum(x), lambda x: x.sum(), {"n": 0}),
    Case(
        "empty-sum-all-int",
        {"x": (("n", "m"), "int32")},
        lambda bb, x: R.sum(x, keepdims=True),
        lambda x: x.sum(dtype="int32").reshape(1, 1),
        {"n": 3, "m": 0},
    ),
    Case(
        "empty-mean-square",
        {"x": ((3, "n", 4), "float32")},
        lambda bb, x: R.add(R.sum(R.multiply(x, x), [1]), relax.const(1.0)),
        lambda x: (x * x).sum(1) + 1,
        {"n": 0},
    ),
    Case("empty-softmax", {"x": ((3, "n"), "float32")}, lambda bb, x: R.nn.softmax(x), lambda x: x, {"n": 0}),
    Case(
        "empty-concat",
        {"x": ((0, 4), "float32"), "z": (("n", 4), "float32")},
        lambda bb, x, z: R.concat([x, z], 0),
        lambda x, z: np.concatenate([x, z]),
    ),
    Case(
        "empty-matmul", {"x": ((3, 0), "float32"), "z": ((0, 4), "float32")}, lambda bb, x, z: R.matmul(x, z), np.matmul
    ),
    Case(
        "no-inputs", {}, lambda bb: relax.const(np.arange(6).reshape(2, 3), "int64"), lambda: np.arange(6).reshape(2, 3)
    ),
    Case("no-inputs-op", {}, lambda bb: R.arange(0, 5, 1, "int64"), lambda: np.arange(5)),
    Case(
        "constant-bool",
        {"x": ((3,), "bool")},
        lambda bb, x: R.logical_or(x, relax.const(np.array([True, False, True]))),
        lambda x: x | np.array([True, False, True]),
    ),
    Case(
        "constant-f16",
        {"x": ((3,), "float16")},
        lambda bb, x: R.add(x, relax.const(np.float16([1, 2, 3]))),
        lambda x: x + np.float16([1, 2, 3]),
        rtol=1e-3,
    ),
    Case(
        "constants-empty",
        {"x": ((2, 3), "float32")},
        lambda bb, x: relax.Tuple(
            [bb.emit(R.concat([relax.const(np.zeros((2, 0), "float32")), x], 1)), relax.const(np.zeros((3, 0), bool))]
        ),
        lambda x: (x, np.zeros((3, 0), bool)),
        outputs=("a", "b"),
    ),
    Case(
        "several",
        {"x": (("n",), "float32")},
        lambda bb, x: relax.Tuple([bb.emit(R.exp(x)), x, relax.const(np.int8([4])), x]),
        lambda x: (np.exp(x), x, np.int8([4]), x),
        outputs=("a.b", "c/d", "", "e:0"),
    ),
    Case(
        "twice-the-same",
        {"x": (("n",), "float32")},
        lambda bb, x: relax.Tuple([y := bb.emit(R.exp(x)), y]),
        lambda x: (np.exp(x), np.exp(x)),
        outputs=("a", "b"),
    ),
    Case(
        "nested-tuple",
        {"x": (("n",), "float32")},
        lambda bb, x: relax.Tuple([x, relax.Tuple([bb.emit(R.exp(x)), x])]),
        lambda x: (x, np.exp(x), x),
        outputs=("a", "b", "c"),
    ),
    Case(
        "split",
        {"x": (("n", 6), "float32")},
        lambda bb, x: R.split(x, 3, 1),
        lambda x: np.split(x, 3, 1),
        outputs=("a", "b", "c"),
    ),
    Case(
        "product-dim",
        {"x": (("n", "m", 4), "float32")},
        lambda bb, x: R.exp(R.reshape(x, (x.ty.shape[0] * x.ty.shape[1], 4))),
        lambda x: np.exp(x.reshape(-1, 4)),
    ),
    Case(
        "sum-dim",
        {"x": (("n", 4), "float32"), "z": (("m", 4), "float32")},
        lambda bb, x, z: R.exp(R.concat([x, z], 0)),
        lambda x, z: np.exp(np.concatenate([x, z])),
    ),
    Case(
        "half-dim",
        {"x": (("n", 4), "float32")},
        lambda bb, x: R.exp(R.strided_slice(x, [0], [0], [x.ty.shape[0]], [2])),
        lambda x: np.exp(x[::2]),
    ),
    Case(
        "shape",
        {"x": (("n", "m"), "float32")},
        lambda bb, x: R.shape_to_tensor(R.shape_of(x)),
        lambda x: np.array(x.shape),
    ),
    Case(
        "dynamic-reshape",
        {"x": (("n", 4), "float32"), "s": ((2,), "int64")},
        lambda bb, x, s: R.reshape(
            x,
            bb.match_cast(
                bb.emit(
                    R.tensor_to_shape(
                        R.multiply(R.abs(R.minimum(s, relax.const(-1, "int64"))), relax.const(0, "int64"))
                    )
                ),
                relax.ShapeType([tirx.Var("p", "int64"), tirx.Var("q", "int64")]),
            ),
        ),
        lambda x, s: x.reshape(0, 0),
        {"n": 0},
    ),
    Case(
        "nonzero",
        {"x": (("n", 4), "float32")},
        lambda bb, x: R.nonzero(R.astype(R.greater(x, relax.const(0.0)), "int32")),
        lambda x: np.array(np.nonzero(x > 0)),
    ),
    Case(
        "nonzero-cast",
        {"x": (("n", 4), "bool")},
        lambda bb, x: R.add(_cast_nonzero(bb, x), relax.const(1, "int64")),
        lambda x: np.array(np.nonzero(x)) + 1,
    ),
    Case(
        "nonzero-none",
        {"x": ((0, 4), "bool")},
        lambda bb, x: R.add(_cast_nonzero(bb, x), relax.const(1, "int64")),
        lambda x: np.array(np.nonzero(x)) + 1,
    ),
    Case(
        "nonzero-take",
        {"x": (("n",), "float32"), "k": (("n",), "bool")},
        lambda bb, x, k: R.exp(R.take(x, R.squeeze(_cast_nonzero(bb, k), [0]), 0)),
        lambda x, k: np.exp(x[k]),
    ),
    Case("unique", {"x": (("n",), "int64")}, lambda bb, x: R.unique(x, sorted=True, axis=0), np.unique),
    Case("sort", {"x": (("n", 4), "float32")}, lambda bb, x: R.sort(x, 1), lambda x: np.sort(x, 1)),
    Case(
        "argsort", {"x": ((3, 40), "float32")}, lambda bb, x: R.argsort(x, 1, dtype="int64"), lambda x: np.argsort(x, 1)
    ),
    Case(
        "topk",
        {"x": (("n", 7), "float32")},
        lambda bb, x: R.topk(x, 3, 1, dtype="int64"),
        lambda x: (-np.sort(-x, 1)[:, :3], np.argsort(-x, 1)[:, :3]),
        outputs=("v", "i"),
    ),
    Case(
        "sort-ends",
        {"x": ((2, 17, 3), "float32")},
        lambda bb, x: R.sort(R.where(R.less(x, relax.const(-3.0)), relax.const(np.float32("nan")), x), 1),
        lambda x: np.sort(np.where(x < -3, np.float32("nan"), x), 1),
    ),
    *(
        unary(
            "argsort",
            d,
            lambda bb, x: R.argsort(x, 0, dtype="int64"),
            lambda x: np.argsort(x, 0, kind="stable"),
            sizes={"n": 33},
        )
        for d in ("bool", *INTS, *FLOATS)
    ),
    Case(
        "sort-descending",
        {"x": ((2, 0), "float32"), "z": (("n",), "int32")},
        lambda bb, x, z: R.argsort(z, 0, descending=True, dtype="int32"),
        lambda x, z: np.argsort(-z, kind="stable").astype("int32"),
        {"n": 1},
    ),
    Case(
        "unique-all",
        {"x": (("n", 2), "int8")},
        lambda bb, x: R.unique(
            R.floor_divide(x, relax.const(4, "int8")),
            sorted=True,
            return_index=True,
            return_inverse=True,
            return_counts=True,
        ),
        lambda x: (
            np.unique(x // 4, return_index=True, return_inverse=True, return_counts=True)[:2]
            + (np.unique(x // 4, return_inverse=True)[1].reshape(-1), np.unique(x // 4, return_counts=True)[1])
        ),
        {"n": 9},
        outputs=("y", "i", "inverse", "c"),
    ),
    Case(
        "unique-axis",
        {"x": (("n", 2, 3), "bool")},
        lambda bb, x: R.unique(x, sorted=True, axis=2),
        lambda x: np.unique(x, axis=2),
        {"n": 1},
    ),
    Case(
        "unique-unsorted",
        {"x": (("n",), "int64")},
        lambda bb, x: R.unique(x, sorted=False, return_inverse=True),
        lambda x: _unsorted(x),
        {"n": 20},
        outputs=("y", "i"),
    ),
    Case("cumsum", {"x": (("n", 7), "float32")}, lambda bb, x: R.cumsum(x, 1), lambda x: np.cumsum(x, 1)),
    Case("argmax", {"x": (("n", 7), "float32")}, lambda bb, x: R.argmax(x, 1), lambda x: np.argmax(x, 1)),
    Case(
        "scatter",
        {"x": (("n", 7), "float32"), "u": (("n", 2), "float32")},
        lambda bb, x, u: R.scatter_elements(x, R.broadcast_to(relax.const([[1, 4]], "int64"), u.ty.shape), u, 1),
        lambda x, u: _scatter(x, u),
    ),
    Case(
        "where",
        {"c": (("n", 1), "bool"), "x": (("n", 4), "int8")},
        lambda bb, c, x: R.where(c, x, relax.const(7, "int8")),
        lambda c, x: np.where(c, x, np.int8(7)),
    ),
    Case(
        "conv",
        {"x": ((1, 3, "n", 9), "float32")},
        lambda bb, x: R.nn.conv2d(x, relax.const(np.ones((4, 3, 3, 3), "float32")), padding=1),
        lambda x: _box(x),
        {"n": 8},
    ),
    Case(
        "pool",
        {"x": ((1, 3, 8, 8), "float32")},
        lambda bb, x: R.nn.max_pool2d(x, (2, 2), (2, 2)),
        lambda x: x.reshape(1, 3, 4, 2, 4, 2).max((3, 5)),
    ),
    Case(
        "layer-norm",
        {"x": ((2, "n", 8), "float32")},
        lambda bb, x: R.nn.layer_norm(x, relax.const(np.ones(8, "float32")), relax.const(np.zeros(8, "float32")), -1),
        lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5),
        rtol=1e-4,
    ),
    Case(
        "gather-nd",
        {"x": (("n", 4), "float32")},
        lambda bb, x: R.gather_nd(x, relax.const([[0, 1], [2, 3]], "int64")),
        lambda x: x[[0, 2], [1, 3]],
    ),
    Case(
        "packed",
        {"x": (("n", 4), "float32")},
        lambda bb, x: R.exp(bb.emit(R.call_dps_packed("test.general.negate", [x], out_ty=x.ty))),
        lambda x: np.exp(-x),
    ),
    Case(
        "pure-packed",
        {"x": (("n", 4), "float32")},
        lambda bb, x: R.exp(
            bb.match_cast(
                bb.emit(R.call_pure_packed("test.general.evens", x, ty_args=relax.TensorType(dtype="float32", ndim=2))),
                relax.TensorType([tirx.Var("k", "int64"), 4], "float32"),
            )
        ),
        lambda x: np.exp(x[::2]),
    ),
    Case(
        "no-dataflow",
        {"x": (("n", 4), "float32")},
        lambda bb, x: bb.emit(R.add(bb.emit(R.exp(x)), x)),
        lambda x: np.exp(x) + x,
        dataflow=False,
    ),
    Case(
        "matmul-f64", {"x": (("n", 4), "float64"), "w": ((4, 6), "float64")}, lambda bb, x, w: R.matmul(x, w), np.matmul
    ),
    Case(
        "matmul-int",
        {"x": (("n", 4), "int8"), "w": ((4, 6), "int8")},
        lambda bb, x, w: R.matmul(x, w, out_dtype="int32"),
        lambda x, w: x.astype("int32") @ w.astype("int32"),
    ),
    Case("matmul-vector", {"x": ((4,), "float32"), "w": ((4,), "float32")}, lambda bb, x, w: R.matmul(x, w), np.matmul),
    Case(
        "matmul-rank5",
        {"x": ((2, "n", 1, 3, 4), "float32"), "w": ((4, 6), "float32")},
        lambda bb, x, w: R.matmul(x, w),
        np.matmul,
    ),
]


def _unsorted(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    seen = list(dict.fromkeys(x.tolist()))
    return np.array(seen), np.array([seen.index(v) for v in x.tolist()])


def _scatter(x: np.ndarray, u: np.ndarray) -> np.ndarray:
    out = x.copy()
    out[:, [1, 4]] = u
    return out


def _box(x: np.ndarray) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    rows, columns = x.shape[2:]
    total = sum(padded[:, :, i : i + rows, j : j + columns] for i in range(3) for j in range(3)).sum(1, keepdims=True)
    return np.repeat(total, 4, 1)


@tvm.register_global_func("test.general.negate", override=True)
def _negate(x: tvm.runtime.Tensor, out: tvm.runtime.Tensor) -> None:
    out.copyfrom(-x.numpy())


@tvm.register_global_func("test.general.evens", override=True)
def _evens(x: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
    return tvm.runtime.tensor(np.ascontiguousarray(x.numpy()[::2]))


@pytest.mark.parametrize("level", [3, 0])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.sampled(30, 60)
def test_graph_is_right(case: Case, level: int) -> None:
    model = imported(case.inputs, case.build, case.outputs, dataflow=case.dataflow)
    arrays = case.arrays()
    result = program_of(model, level)(*arrays)
    expected = case.expected(*arrays)
    expected = list(expected) if isinstance(expected, (tuple, list)) else [expected]
    assert list(result) == list(case.outputs)
    for found, wanted in zip(result.values(), expected, strict=True):
        wanted = np.asarray(wanted)
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=case.rtol, atol=1e-5 if case.rtol > 1e-5 else 1e-6)
