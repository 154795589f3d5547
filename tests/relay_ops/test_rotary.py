"""halo.rotary: the type rule checks both tables, and no position reads outside them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from norm_graphs import graph, lift
from tvm import relax

from halo_tvm.relay_ops import OPERATORS
from halo_tvm.relay_ops.rotary import rotary_tables

ROTARY = OPERATORS["rotary"]
DTYPES = ["float32", "int64", "float32", "float32"]


def test_tables_of_different_lengths_are_refused() -> None:
    shapes = [(2, 5, 3, 16), (5,), (40, 8), (30, 8)]
    with pytest.raises(ValueError, match="cos and sin must have one shape"):
        graph(lambda emit, *a: emit(ROTARY.call(*a, interleaved=False)), shapes, DTYPES)


def test_positions_outside_the_tables_are_clamped() -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 2, 8)).astype("float32")
    cos, sin = rotary_tables(40, 8, 10000.0)
    positions = np.array([-5, 39, 70])
    mod = graph(
        lambda emit, *a: emit(ROTARY.call(*a, interleaved=False)), [x.shape, (3,), cos.shape, sin.shape], DTYPES
    )
    executable = relax.build(relax.transform.LegalizeOps()(mod), "llvm")
    run = relax.VirtualMachine(executable, tvm.cpu())["main"]
    found = run(*map(tvm.runtime.tensor, (x, positions, cos, sin))).numpy()
    expected = ROTARY.reference(x, np.array([0, 39, 39]), cos, sin, interleaved=False)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def spelled(emit, x, angle, *, interleaved: bool, behind: bool, scale: float = 1.0):
    """x [b, h, s, d] turned by `angle` [s, d / 2] as exporters write it; `behind`: cosines of the repeated angles."""
    b, h, s, d = (int(n) for n in x.ty.shape.values)
    op = relax.op

    def twice(table):
        if not interleaved:
            return emit(op.concat([table, table], axis=1))
        pairs = emit(op.broadcast_to(emit(op.reshape(table, [s, d // 2, 1])), [s, d // 2, 2]))
        return emit(op.reshape(pairs, [s, d]))

    def table(function):
        plain = emit(function(twice(angle))) if behind else twice(emit(function(angle)))
        return plain if scale == 1.0 else emit(op.multiply(plain, relax.const(scale, str(x.ty.dtype))))

    if interleaved:
        even, odd = (emit(op.strided_slice(x, [3], [k], [d], [2])) for k in (0, 1))
        parts = [emit(op.reshape(part, [b, h, s, d // 2, 1])) for part in (emit(op.negative(odd)), even)]
        turned = emit(op.reshape(emit(op.concat(parts, axis=4)), [b, h, s, d]))
    else:
        first, second = (emit(op.strided_slice(x, [3], [k], [k + d // 2])) for k in (0, d // 2))
        turned = emit(op.concat([emit(op.negative(second)), first], axis=3))
    return emit(op.add(emit(op.multiply(x, table(op.cos))), emit(op.multiply(turned, table(op.sin)))))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("behind", [False, True])
def test_spellings_are_lifted_and_keep_the_meaning(interleaved: bool, behind: bool) -> None:
    before = graph(
        lambda emit, x, a: spelled(emit, x, a, interleaved=interleaved, behind=behind), [(2, 3, 5, 8), (5, 4)]
    )
    after, report = lift(before)
    assert report["operators"] == {"rotary": 1} and not report["rejected"]
    rng = np.random.default_rng(3)
    x, angle = rng.standard_normal((2, 3, 5, 8)).astype("float32"), rng.standard_normal((5, 4)).astype("float32")
    executable = relax.build(relax.transform.LegalizeOps()(after), "llvm")
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, (x, angle))).numpy()
    exact = ROTARY.reference(
        x.transpose(0, 2, 1, 3), np.arange(5), np.cos(angle), np.sin(angle), interleaved=interleaved
    )
    np.testing.assert_allclose(found, exact.transpose(0, 2, 1, 3), atol=1e-6)


def of_dtype(dtype: str) -> tuple[tvm.IRModule, dict[str, object]]:
    """A rotation by scaled tables in `dtype`, lifted."""
    return lift(
        graph(
            lambda emit, x, a: spelled(emit, x, a, interleaved=False, behind=False, scale=1.5),
            [(2, 3, 5, 8), (5, 4)],
            [dtype, dtype],
        )
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_scaled_tables_keep_their_type(dtype: str) -> None:
    after, report = of_dtype(dtype)
    assert report["operators"] == {"rotary": 1}
    call = next(b.value for b in after["main"].body.blocks[0].bindings if "rotary" in str(b.value))
    assert {str(call.args[k].ty.dtype) for k in (0, 2, 3)} == {dtype}


def test_numbers_wider_than_float32_are_refused() -> None:
    _, report = of_dtype("float64")
    assert not report["operators"]
    (rejected,) = report["rejected"]
    assert rejected["reason"].startswith("accumulates in float32, so operands must be float32")


def test_constant_tables_are_cut_to_one_number_per_pair() -> None:
    angle = np.random.default_rng(4).standard_normal((5, 4))
    tables = [relax.const(np.tile(f(angle), 2)[None, None].astype("float32")) for f in (np.cos, np.sin)]

    def body(emit, x):
        halves = [emit(relax.op.strided_slice(x, [3], [k], [k + 4])) for k in (0, 4)]
        turned = emit(relax.op.concat([emit(relax.op.negative(halves[1])), halves[0]], axis=3))
        return emit(relax.op.add(emit(relax.op.multiply(x, tables[0])), emit(relax.op.multiply(turned, tables[1]))))

    after, report = lift(graph(body, [(2, 3, 5, 8)]))
    assert report["operators"] == {"rotary": 1}
    call = next(b.value for b in after["main"].body.blocks[0].bindings if "rotary" in str(b.value))
    assert [int(n) for n in call.args[2].ty.shape.values] == [5, 4]


def test_tables_that_differ_within_a_pair_are_refused() -> None:
    tables = [relax.const(np.random.default_rng(k).standard_normal((1, 1, 5, 8)).astype("float32")) for k in (0, 1)]

    def body(emit, x):
        halves = [emit(relax.op.strided_slice(x, [3], [k], [k + 4])) for k in (0, 4)]
        turned = emit(relax.op.concat([emit(relax.op.negative(halves[1])), halves[0]], axis=3))
        return emit(relax.op.add(emit(relax.op.multiply(x, tables[0])), emit(relax.op.multiply(turned, tables[1]))))

    _, report = lift(graph(body, [(2, 3, 5, 8)]))
    assert not report["operators"]
    assert [r["reason"] for r in report["rejected"]] == ["the constant tables differ between the members of a pair"]


def test_a_sum_of_products_that_is_no_rotation_is_not_reported() -> None:
    _, report = lift(
        graph(lambda emit, *a: emit(relax.op.add(emit(a[0] * a[1]), emit(a[2] * a[1]))), [(1, 2, 5, 8)] * 3)
    )
    assert not report["operators"] and not report["rejected"]
