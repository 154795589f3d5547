"""Files of jax.export and StableHLO: numbers of XLA, open sizes, everything foreign refused by a sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("flatbuffers")
import jax.numpy as jnp
from graphs import unscheduled
from jax import export, lax

from halo_tvm.errors import UnsupportedModel, UsageError
from halo_tvm.imported import ImportedModel
from halo_tvm.importers import import_model
from halo_tvm.importers.stablehlo import import_unrestricted

RNG = np.random.default_rng(0)


def weight(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.standard_normal(shape) / shape[0] ** 0.5, jnp.float32)


KERNEL, TABLE, HEADS, INPUT, STATE = weight(3, 3, 3, 8), weight(50, 16), weight(16, 48), weight(16, 32), weight(8, 32)
SPECTRUM = jnp.asarray([1 + 2j, -0.25, 3e-5j], jnp.complex64)
SIGNS = jnp.asarray([[1.5, jnp.inf], [-2, 1e-3]], jnp.bfloat16)


def conv(image: jax.Array) -> dict[str, jax.Array]:
    x = lax.conv_general_dilated(image, KERNEL, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    windows = lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return {"mean": windows.mean((1, 2)), "top": lax.top_k(windows[:, 0, 0], 3)[1]}


def attention(batch: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
    """A causal mask, a running sum and a largest place, of open sizes: in the file those are tensors of arithmetic."""
    x = TABLE[batch["ids"]]
    q, k, v = jnp.split((x @ HEADS).reshape(*x.shape[:2], 3, 2, 8).swapaxes(0, 2), 3)
    y = jax.nn.dot_product_attention(*(part[0].swapaxes(0, 1) for part in (q, k, v)), is_causal=True)
    y = jnp.where(batch["mask"][..., None] > 0, y.reshape(x.shape), 0)
    return y, jnp.argmax(y, -1), jnp.cumsum(y, 1)


def lstm(x: jax.Array) -> jax.Array:
    def cell(state: tuple[jax.Array, jax.Array], row: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h, c = state
        i, f, g, o = jnp.split(row @ INPUT + h @ STATE, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((x.shape[0], 8))
    return lax.scan(cell, (zero, zero), x.swapaxes(0, 1))[1]


def orders(x: jax.Array, ids: jax.Array) -> tuple[jax.Array, ...]:
    """Comparators, indices, branches, loops, bfloat16."""
    sorted_ = jnp.sort(x, -1), jnp.argsort(-x, -1), jnp.lexsort((ids, ids % 2)), jnp.argmin(x, 0)
    placed = jnp.take(x, ids, axis=0, mode="clip"), x.at[ids].add(1.0), jnp.pad(x, ((1, 0), (0, 2)))[::-1, ::2]
    decided = lax.cond(x.sum() > 0, lambda: x * 2, lambda: x - 1), lax.fori_loop(0, 3, lambda i, a: a + x[i], x[0])
    turned = jnp.abs(jnp.fft.rfft(x, 4) * (0.5 - 2j) + SPECTRUM)
    return *sorted_, *placed, *decided, jnp.tan(x), (x > 1).any(0), x[:2, :2] + SIGNS.astype(jnp.float32), turned


def check(model: ImportedModel, **sizes: int) -> None:
    """Compiled, it computes what XLA computes of the file."""
    rng = np.random.default_rng(1)
    given = {}
    for spec in model.inputs:
        shape = [d if isinstance(d, int) else sizes[d] for d in spec.shape]
        whole = "int" in spec.dtype
        given[spec.name] = (rng.integers(0, 4, shape) if whole else rng.standard_normal(shape)).astype(spec.dtype)
    expected = model.engine(given)
    for name, found in unscheduled(model, given).items():
        np.testing.assert_allclose(found, expected[name], atol=2e-5, rtol=1e-5, err_msg=name)


def written(tmp_path: Path, function: Callable[..., object], *specs: object, text: bool = False) -> Path:
    exported = export.export(jax.jit(function))(*specs)
    path = tmp_path / ("net.mlir" if text else "net.jax")
    path.write_bytes(exported.mlir_module().encode() if text else exported.serialize())
    return path


def read(path: Path, **shapes: tuple[tuple[int, int], ...]) -> ImportedModel:
    return import_unrestricted(path, {"shapes": shapes})


@pytest.mark.slow
def test_open_sizes(tmp_path: Path) -> None:
    """Of the file, fixed while importing, and as text, where sizes have no names."""
    b, s = export.symbolic_shape("b, s", constraints=["s <= 64"])
    spec = {name: jax.ShapeDtypeStruct((b, s), jnp.int32) for name in ("ids", "mask")}
    path = written(tmp_path, attention, spec)
    model = read(path)
    assert [(i.name, i.shape) for i in model.inputs] == [("ids", ("b", "s")), ("mask", ("b", "s"))]
    assert model.ranges["s"] == (1, 64)
    check(model, b=2, s=7)
    fixed = read(path, ids=((2, 2), (5, 5)))
    assert fixed.inputs[1].shape == (2, 5)
    text = read(written(tmp_path, attention, spec, text=True))
    assert text.inputs[0].shape == ("batch", "length_1")
    check(text, batch=1, length_1=6)


def test_a_scan_is_the_layer_at_any_length(tmp_path: Path) -> None:
    model = read(written(tmp_path, lstm, jax.ShapeDtypeStruct(export.symbolic_shape("b, s, 16"), jnp.float32)))
    assert "lstm" in str(model.mod["main"])
    check(model, b=2, s=5)


def backwards(x: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
    """Rows read and set from the last to the first, and a number that is made of the step."""

    def step(state: tuple[jax.Array, jax.Array], row: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        total, count = state
        total = jnp.tanh(row @ w + total) * (count + 1)
        return (total, count + 1), total.sum(-1)

    (total, count), sums = lax.scan(step, (jnp.zeros((x.shape[0], 4)), 0.0), x.swapaxes(0, 1), reverse=True)
    return total, count, sums, lax.fori_loop(0, x.shape[1], lambda i, a: a + x[:, i] * i, x[:, 0])


def test_a_scan_backwards_and_a_loop_over_rows(tmp_path: Path) -> None:
    shape = export.symbolic_shape("b, s, 4", constraints=["s <= 16"])
    specs = jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct((4, 4), jnp.float32)
    check(read(written(tmp_path, backwards, *specs)), b=2, s=5)


def test_a_loop_that_is_no_scan_stays_a_loop(tmp_path: Path) -> None:
    """What was set in earlier steps is read, so that no row stands for it."""

    def sums(x: jax.Array) -> jax.Array:
        def step(i: jax.Array, table: jax.Array) -> jax.Array:
            return table.at[i].set(table.sum(0) + x[i])

        return lax.fori_loop(0, x.shape[0], step, jnp.zeros_like(x))

    check(read(written(tmp_path, sums, jax.ShapeDtypeStruct(export.symbolic_shape("s, 3"), jnp.float32))), s=5)


@pytest.mark.slow
def test_fixed_sizes(tmp_path: Path) -> None:
    floats, ids = jax.ShapeDtypeStruct((4, 6), jnp.float32), jax.ShapeDtypeStruct((4,), jnp.int32)
    check(read(written(tmp_path, orders, floats, ids)))


@pytest.mark.slow
def test_the_confined_process(tmp_path: Path) -> None:
    """A convolution, by the name of the file's suffix; outputs by the keys that the function returned."""
    path = written(tmp_path, conv, jax.ShapeDtypeStruct((2, 16, 16, 3), jnp.float32))
    model = import_model(str(path))
    assert "landlock" in str(model.report["restrictions"]).lower()
    assert model.outputs == ("mean", "top") and model.source["kind"] == "stablehlo"
    check(model)


def test_what_is_refused(tmp_path: Path) -> None:
    """Custom calls and operations by name, other versions, damaged files, several devices."""
    spec = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    foreign = written(tmp_path, lambda x: lax.linalg.schur(x @ x.T)[0] + lax.rng_uniform(0.0, 1.0, (4,)), spec)
    with pytest.raises(UnsupportedModel, match=r"stablehlo\.rng \(1\); the custom call 'lapack_.*' \(1\).*export"):
        read(foreign)
    path = tmp_path / "net.jax"
    whole = path.read_bytes()
    newer = dataclasses.replace(export.export(jax.jit(jnp.sin))(spec), calling_convention_version=99)
    path.write_bytes(newer.serialize())
    with pytest.raises(UnsupportedModel, match="expected a calling convention of at most version .*, found 99"):
        read(path)
    for content in (whole[: len(whole) // 2], b"ML\xefR" + bytes(40), b"module {", b"", bytes(100)):
        path.write_bytes(content)
        with pytest.raises(UnsupportedModel, match="^expected .*, found .*export"):
            read(path)
    with pytest.raises(UsageError, match="expected a file of jax.export or StableHLO, found no file"):
        import_model(str(tmp_path / "none.mlir"))


@pytest.mark.parametrize("seen", ["abs", "floor"])
def test_orders_of_what_is_made_of_elements_are_refused(tmp_path: Path, seen: str) -> None:
    """Of whole numbers above 0 they are the order of the elements."""
    path = tmp_path / "net.mlir"
    path.write_text(f"""
        func.func public @main(%x: tensor<5xf32>) -> tensor<5xf32> {{
          %0 = "stablehlo.sort"(%x) <{{dimension = 0 : i64, is_stable = true}}> ({{
          ^bb0(%a: tensor<f32>, %b: tensor<f32>):
            %1 = stablehlo.{seen} %a : tensor<f32>
            %2 = stablehlo.{seen} %b : tensor<f32>
            %3 = stablehlo.compare LT, %1, %2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
            stablehlo.return %3 : tensor<i1>
          }}) : (tensor<5xf32>) -> tensor<5xf32>
          return %0 : tensor<5xf32>
        }}
    """)
    with pytest.raises(UnsupportedModel, match="a comparator that is neither of the first operands ascending"):
        read(path)


@pytest.mark.slow
def test_calls_of_lapack(tmp_path: Path) -> None:
    """What jax writes for a CPU, where operations of its own stand in a jaxpr."""

    def function(x: jax.Array) -> tuple[jax.Array, ...]:
        s = x @ x.mT + jnp.eye(4)
        (w, v), (u, d, t) = jnp.linalg.eigh(s), jnp.linalg.svd(x)
        together = (v * w[..., None, :]) @ v.mT, (u * d[..., None, :]) @ t
        factors = jnp.linalg.inv(x), jnp.linalg.cholesky(s), jnp.linalg.qr(x[..., :3])[0]
        return *factors, *together, jnp.linalg.slogdet(x)[1], jnp.linalg.svd(x, compute_uv=False)

    path = written(tmp_path, function, jax.ShapeDtypeStruct((3, 4, 4), jnp.float32))
    check(import_model(str(path)))


def test_two_platforms(tmp_path: Path) -> None:
    path = tmp_path / "net.jax"
    spec = jax.ShapeDtypeStruct((2,), jnp.float32)
    path.write_bytes(export.export(jax.jit(jnp.sin), platforms=("cpu", "cuda"))(spec).serialize())
    with pytest.raises(UnsupportedModel, match="expected a program for one platform, found cpu, cuda"):
        read(path)
