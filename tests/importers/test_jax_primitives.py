"""Primitives of jax.lax: one module of all cases, compiled with fixed and with open sizes, against jax."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp
from graphs import unscheduled
from jax import lax

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers.jax import import_function
from halo_tvm.importers.jax._registry import CONVERTERS

INF, NAN = np.inf, np.nan
GATHER = lax.GatherScatterMode
ROWS = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
PARTS = lax.GatherDimensionNumbers(offset_dims=(1, 2), collapsed_slice_dims=(), start_index_map=(1,))
BATCHED = lax.GatherDimensionNumbers(
    offset_dims=(1,),
    collapsed_slice_dims=(),
    start_index_map=(1,),
    operand_batching_dims=(0,),
    start_indices_batching_dims=(0,),
)
TO_ROWS = lax.ScatterDimensionNumbers(
    update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
)
IMAGE = ("NHWC", "HWIO", "NHWC")


def of_floats() -> dict[str, Callable]:
    """x, y [n, 6] with special values, z [n, 6] of moderate numbers, r [n, 6] between -1 and 1."""
    unary = {
        name: lambda v, f=getattr(lax, name): f(v["x"])
        for name in "abs neg sign floor ceil exp exp2 tanh logistic cbrt square is_finite expm1 sinh cosh".split()
    }
    unary |= {
        name: lambda v, f=getattr(lax, name): f(v["z"])
        for name in "sin cos tan atan asinh erf erfc lgamma digamma".split()
    }
    unary |= {name: lambda v, f=getattr(lax, name): f(v["r"]) for name in "asin acos atanh erf_inv".split()}
    unary |= {name: lambda v, f=getattr(lax, name): f(lax.abs(v["x"])) for name in "sqrt rsqrt log log1p acosh".split()}
    binary = {
        name: lambda v, f=getattr(lax, name): f(v["x"], v["y"])
        for name in "add sub mul div rem max min atan2 eq ne lt le gt ge nextafter".split()
    }
    return {
        **unary,
        **binary,
        "pow": lambda v: lax.pow(lax.abs(v["z"]), v["r"]),
        "total order": lambda v: jnp.digitize(v["x"], jnp.array([-INF, -1.0, 0.0, 2.0, NAN])),
        "pow of integers": lambda v: lax.pow(v["z"], v["i"] % 4),
        "unsigned negation": lambda v: (-v["i"].astype(jnp.uint8), -v["i"].astype(jnp.uint32)),
        "log of erfc": lambda v: jnp.log(lax.erfc(jnp.abs(v["z"]) + 3)),
        "exact gelu": lambda v: jax.nn.gelu(v["z"], approximate=False),
        "floor division": lambda v: v["z"] // v["y"],
        "modulo": lambda v: v["z"] % v["y"],
        "divmod": lambda v: jnp.divmod(v["z"], v["y"]),
        "integer_pow": lambda v: (lax.integer_pow(v["x"], 5), lax.integer_pow(v["z"], -2), v["x"] ** 0),
        "round": lambda v: (
            lax.round(jnp.floor(v["z"]) + 0.5, lax.RoundingMethod.TO_NEAREST_EVEN),
            lax.round(jnp.floor(v["z"]) + 0.5, lax.RoundingMethod.AWAY_FROM_ZERO),
            jnp.round(v["z"], 1),
        ),
        "clamp": lambda v: (lax.clamp(-1.0, v["x"], 1.0), lax.clamp(v["x"], v["y"], v["z"])),
        "select_n": lambda v: (
            lax.select_n(v["x"] > v["y"], v["x"], v["y"]),
            lax.select_n(jnp.clip(v["i"], 0, 2), v["x"], v["y"], v["z"]),
        ),
        "convert_element_type": lambda v: (
            v["x"].astype(jnp.int32),
            (v["z"] * 100).astype(jnp.uint8),
            v["x"].astype(bool),
            v["i"].astype(jnp.float32),
            v["i"].astype(jnp.int8),
            v["z"].astype(jnp.float16),
            (v["z"] > 0).astype(jnp.int32),
        ),
        "reduce_precision": lambda v: lax.reduce_precision(v["z"], 8, 7),
        "bitcast_convert_type": lambda v: lax.bitcast_convert_type(v["x"], jnp.int32),
    }


def of_integers() -> dict[str, Callable]:
    """i, j [n, 6] with 0 and the ends of int32; u, t [n, 6] uint32."""
    binary = "add sub mul div rem max min bitwise_and bitwise_or bitwise_xor lt".split()
    return {
        **{f"{name} int32": lambda v, f=getattr(lax, name): f(v["i"], v["j"]) for name in binary},
        **{f"{name} uint32": lambda v, f=getattr(lax, name): f(v["u"], v["t"]) for name in binary},
        **{
            f"{name} bool": lambda v, f=getattr(lax, name): f(v["i"] > 0, v["j"] > 0)
            for name in "bitwise_and bitwise_or bitwise_xor eq max min".split()
        },
        **{name: lambda v, f=getattr(lax, name): f(v["u"]) for name in ("population_count", "clz")},
        "bitwise_not": lambda v: (~v["i"], ~(v["i"] > 0)),
        "shift_left": lambda v: lax.shift_left(v["i"], v["j"]),
        "shift_right_logical": lambda v: (
            lax.shift_right_logical(v["i"], v["j"]),
            lax.shift_right_logical(v["u"], v["t"]),
        ),
        "shift_right_arithmetic": lambda v: lax.shift_right_arithmetic(v["i"], v["j"]),
        "sign int32": lambda v: (lax.sign(v["i"]), lax.abs(v["i"]), -v["i"]),
        "pow int32": lambda v: v["i"] ** 3,
        "floor division int32": lambda v: (v["i"] // v["j"], v["i"] % v["j"]),
    }


def of_axes() -> dict[str, Callable]:
    scans = {
        name: lambda v, f=getattr(lax, name): (f(v["z"], axis=1), f(v["z"], axis=0, reverse=True))
        for name in "cumsum cumprod cummax cummin cumlogsumexp".split()
    }
    return {
        **scans,
        "reduce_sum": lambda v: (v["z"].sum(), v["z"].sum(0), v["i"].sum(1), v["z"].astype(jnp.float16).sum(1)),
        "reduce_max": lambda v: (v["x"].max(1), v["i"].max(0)),
        "reduce_min": lambda v: (v["x"].min(1), v["u"].min(0)),
        "reduce_prod": lambda v: v["r"].prod(1),
        "reduce_and": lambda v: (
            (v["z"] > -1).all(1),
            *(lax.reduce(x, np.int32(-1), lax.bitwise_and, (1,)) for x in (v["i"], v["i"][:, :0])),
        ),
        "reduce_or": lambda v: ((v["z"] > 1).any(0), lax.reduce(v["i"], np.int32(0), lax.bitwise_or, (1,))),
        "reduce_xor": lambda v: lax.reduce(v["u"], np.uint32(0), lax.bitwise_xor, (1,)),
        "argmax": lambda v: (v["x"].argmax(1), v["z"].argmax(0), (v["i"] > 0).argmax(1)),
        "argmin": lambda v: (v["x"].argmin(1), v["i"].argmin(0)),
        "mean var": lambda v: (v["z"].mean(), v["z"].var(0), v["z"].std(1)),
        "sort": lambda v: (jnp.sort(v["x"], 1), jnp.argsort(v["z"], 0), jnp.sort(v["i"], 1, descending=True)),
        "sort by two": lambda v: lax.sort((v["i"] % 3, v["z"], v["x"]), dimension=1, num_keys=2),
        "top_k": lambda v: lax.top_k(v["z"], 3),
        "softmax": lambda v: (jax.nn.softmax(v["z"]), jax.nn.log_softmax(v["z"], 0), jax.nn.logsumexp(v["x"], 1)),
    }


def of_places() -> dict[str, Callable]:
    """m [n, 4, 6]; k [n] places between -3 and 9."""

    def scattered(name: str) -> Callable:
        def function(v: dict) -> object:
            call = getattr(lax, name)
            return (
                call(v["z"], v["k"][:, None], v["y"], TO_ROWS, mode=GATHER.FILL_OR_DROP),
                call(v["i"], v["k"][:, None], v["j"], TO_ROWS, mode=GATHER.CLIP),
            )

        return function

    updates = {name: scattered(name) for name in "scatter scatter_add scatter_mul scatter_max scatter_min".split()}
    return {
        **updates,
        "gather": lambda v: (
            lax.gather(v["z"], v["k"][:, None], ROWS, (1, 6), mode=GATHER.CLIP),
            lax.gather(v["z"], v["k"][:, None], ROWS, (1, 6), mode=GATHER.FILL_OR_DROP),
            lax.gather(v["i"], v["k"][:, None], ROWS, (1, 6), mode=GATHER.FILL_OR_DROP),
            lax.gather(v["z"], v["k"][:2, None], PARTS, (1, 3), mode=GATHER.CLIP),
            lax.gather(v["z"], v["k"][:, None], BATCHED, (1, 2), mode=GATHER.CLIP),
        ),
        "indexing": lambda v: (v["z"][v["k"]], v["z"].at[0, 1:3].get(), jnp.take(v["z"], v["k"], 1)),
        "take_along_axis": lambda v: jnp.take_along_axis(v["z"], jnp.argsort(v["z"], 1), 1),
        "at set": lambda v: (v["z"].at[:, 2].set(0.0), v["z"].at[0].add(v["z"][1]), v["z"].at[-1, ::2].mul(2.0)),
        "dynamic_slice": lambda v: lax.dynamic_slice(v["z"], (v["k"][0], v["k"][1]), (2, 3)),
        "dynamic_update_slice": lambda v: lax.dynamic_update_slice(v["z"], v["z"][:1, :2], (v["k"][1], v["k"][0])),
        "broadcast_in_dim": lambda v: (
            jnp.broadcast_to(v["z"][:, None], (*v["z"].shape[:1], 3, 6)),
            v["k"][:, None] * v["i"],
        ),
        "concatenate": lambda v: jnp.concatenate([v["z"], v["y"], v["z"][:1]], 0),
        "stack": lambda v: (jnp.stack([v["z"], v["y"]], 1), *jnp.unstack(v["m"], axis=1)),
        "transpose": lambda v: (v["m"].transpose(2, 0, 1), v["m"].transpose(1, 0, 2)[:, :, None].transpose(1, 2, 0, 3)),
        "reshape": lambda v: (v["m"].reshape(-1, 6), v["m"].reshape(-1), v["z"][:, None, :, None].squeeze(1)),
        "slice": lambda v: (v["m"][:, 1:3, ::2], v["m"][1:], v["m"][:-1, ::-1]),
        "split": lambda v: (jnp.split(v["m"], 3, 2), jnp.split(v["m"], [1, 3], 1)),
        "rev": lambda v: lax.rev(v["m"], (0, 2)),
        "tile": lambda v: jnp.tile(v["z"], (2, 3)),
        "pad": lambda v: (
            lax.pad(v["z"], 0.0, ((1, 2, 0), (0, 1, 2))),
            lax.pad(v["m"], NAN, ((0, -1, 0), (-1, 1, 1), (-2, -1, 0))),
        ),
        "iota": lambda v: (jnp.arange(v["z"].shape[0]), lax.broadcasted_iota(jnp.float32, v["z"].shape, 0) + v["z"]),
        "tril": lambda v: (jnp.tril(v["z"] @ v["y"][:1].T * v["k"]), jnp.eye(4) + v["m"][:, :, :4]),
        "dim_as_value": lambda v: v["z"] / v["z"].shape[0],
        "repeat": lambda v: jnp.repeat(v["m"], 2, axis=1),
    }


def of_products() -> dict[str, Callable]:
    """s [n, 9, 8, 4] images."""
    rng = np.random.default_rng(1)
    k33, k13 = (rng.standard_normal(s).astype(np.float32) for s in ((3, 3, 4, 6), (1, 3, 2, 4)))

    def conv(v: dict, kernel: np.ndarray = k33, numbers: object = IMAGE, **params: object) -> object:
        strides = params.pop("strides", (1, 1))
        return lax.conv_general_dilated(v["s"], kernel, strides, dimension_numbers=numbers, **params)

    window = {"window_dimensions": (1, 3, 2, 1), "window_strides": (1, 2, 1, 1)}
    return {
        "dot_general": lambda v: (
            v["z"] @ v["y"].T,
            jnp.einsum("nij,nkj->nik", v["m"], v["m"]),
            jnp.einsum("nij,njk->nki", v["m"], jnp.swapaxes(v["m"], 1, 2)),
            jnp.einsum("nij,mj->imn", v["m"], v["z"]),
            jnp.einsum("nij,nij->n", v["m"], v["m"]),
            jnp.einsum("ni,nj->nij", v["z"], v["r"]),
            jnp.einsum("nij,nik->jk", v["m"], v["m"]),
            jnp.einsum("nij,i->nij", v["m"], k33.reshape(-1)[:4]),
            jnp.einsum("nij,i->nij", v["m"], jnp.ones(4)),
            v["z"] @ v["r"][0],
            jnp.einsum("nij,ijk->nk", v["m"], k33.reshape(-1)[:96].reshape(4, 6, 4)),
            jnp.einsum("kj,nij->nki", k33.reshape(-1)[:30].reshape(5, 6), v["m"]),
        ),
        "dot_general int": lambda v: lax.dot(v["i"] % 7, (v["j"] % 5).T),
        "conv_general_dilated": lambda v: (
            conv(v, padding="SAME"),
            conv(v, padding=((2, 0), (0, 1)), strides=(2, 1), rhs_dilation=(2, 1)),
            conv(v, k13, padding="VALID", feature_group_count=2),
            conv(v, padding=((-1, 0), (0, -2))),
            lax.conv_general_dilated(v["s"].transpose(0, 3, 1, 2), k33.transpose(3, 2, 0, 1), (2, 2), "SAME"),
            lax.conv_general_dilated(v["m"], k13[0].transpose(2, 1, 0), (1,), [(1, 1)], feature_group_count=2),
        ),
        "conv_transpose": lambda v: (
            lax.conv_transpose(v["s"], k33, (2, 2), "SAME", dimension_numbers=IMAGE),
            lax.conv_transpose(v["s"], k33, (2, 3), "VALID", dimension_numbers=IMAGE),
            conv(v, padding=((3, 1), (0, 0)), lhs_dilation=(2, 1), strides=(2, 1)),
        ),
        "reduce_window_max": lambda v: (
            lax.reduce_window(v["s"], -INF, lax.max, **window, padding="SAME"),
            lax.reduce_window(v["s"], -INF, lax.max, **window, padding="VALID", window_dilation=(1, 2, 1, 1)),
        ),
        "reduce_window_sum": lambda v: (
            lax.reduce_window(v["s"], 0.0, lax.add, **window, padding="SAME"),
            lax.reduce_window(v["i"], 0, lax.add, (2, 2), (1, 1), "VALID"),
        ),
        "reduce_window_min": lambda v: lax.reduce_window(v["s"], INF, lax.min, **window, padding="VALID"),
        "reduce_window": lambda v: lax.reduce_window(v["r"], 1.0, lax.mul, (2, 1), (1, 1), "VALID"),
    }


@jax.custom_vjp
def with_own_gradient(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


with_own_gradient.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),))


def of_calls() -> dict[str, Callable]:
    return {
        "jit": lambda v: jax.jit(lambda x: jnp.where(x > 0, x, 0))(v["z"]),
        "custom_jvp_call": lambda v: (jax.nn.relu(v["z"]), jax.nn.silu(v["z"]), jax.nn.gelu(v["z"], approximate=True)),
        "custom_vjp_call": lambda v: with_own_gradient(v["z"]),
        "remat2": lambda v: jax.checkpoint(lambda x: jnp.sin(x) * 2)(v["z"]),
        "stop_gradient": lambda v: lax.stop_gradient(v["z"]) + lax.optimization_barrier(v["z"]),
        "vmap": lambda v: jax.vmap(lambda x, k: x[k] * x)(v["z"], v["k"]),
        "cond": lambda v: (
            lax.cond(v["k"][0] > 2, lambda x: x * 2, lambda x: x - 1, v["z"]),
            lax.switch(v["k"][1], [jnp.sin, jnp.cos, jnp.tanh], v["z"]),
            lax.cond(True, lambda x: x + 1, lambda x: x, v["z"]),
        ),
        "while": lambda v: (
            lax.while_loop(lambda s: s[0] < v["k"][0] + 4, lambda s: (s[0] + 1, s[1] * 0.5), (0, v["z"])),
            # each example stops for itself
            jax.vmap(lambda x: lax.while_loop(lambda s: abs(s[1][0]) > 0.3, lambda s: (s[0] + 1, s[1] / 2), (0, x)))(
                v["z"]
            ),
        ),
        "scan": lambda v: (
            lax.scan(lambda s, x: (s * 0.5 + x, s.sum()), v["z"][0], v["z"]),
            lax.scan(lambda s, x: (s + x[0], (x[1], s)), v["z"][:, 0], (v["m"].T[:, 0], v["m"].T[:, 1]), reverse=True),
            lax.fori_loop(0, 100, lambda i, x: x * 0.99 + i, v["z"]),
        ),
        "random": lambda v: v["z"] + jax.random.normal(jax.random.key(0), (6,)),
    }


def inputs(n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    special = np.array([0.0, -0.0, 1.0, -1.5, INF, -INF, NAN, 3e9, -3e9, 1e-30, 0.5, 88.0], np.float32)
    ends = np.array([0, 1, -1, 2**31 - 1, -(2**31), 3, -7, 40], np.int32)

    def of(values: np.ndarray) -> np.ndarray:
        return rng.choice(values, (n, 6))

    i, j = of(ends), of(ends)
    return {
        "x": of(special),
        "y": of(special),
        "z": rng.standard_normal((n, 6)).astype(np.float32) * 3,
        "r": rng.uniform(-1, 1, (n, 6)).astype(np.float32),
        "i": i,
        "j": j,
        "u": i.view(np.uint32),
        "t": j.view(np.uint32),
        "m": rng.standard_normal((n, 4, 6)).astype(np.float32),
        "k": rng.integers(-3, 9, n).astype(np.int32),
        "s": rng.standard_normal((n, 9, 8, 4)).astype(np.float32),
    }


CASES = of_floats() | of_integers() | of_axes() | of_places() | of_products() | of_calls()


def everything(v: dict) -> dict:
    return {name: case(v) for name, case in CASES.items()}


def types(n: int | str) -> dict[str, tuple[str, str]]:
    return {name: (", ".join(map(str, (n, *a.shape[1:]))), str(a.dtype)) for name, a in inputs(2).items()}


@cache
def by_jax(size: int) -> dict[str, np.ndarray]:
    compiled = jax.jit(everything).lower(inputs(size)).compile({"xla_backend_optimization_level": 0})
    paths = jax.tree_util.tree_flatten_with_path(compiled(inputs(size)))[0]
    return {".".join(str(getattr(k, "key", getattr(k, "idx", ""))) for k in path): np.asarray(a) for path, a in paths}


@pytest.mark.parametrize("n", ["n", 5])
@pytest.mark.slow
@pytest.mark.sampled(1)
def test_primitives_compute_what_jax_computes(n: int | str) -> None:
    model = import_function(everything, None, types(n), ranges={"n": (3, 64)} if n == "n" else {})
    found = unscheduled(model, inputs(5))
    wrong = []
    for name, want in by_jax(5).items():
        value = found[name]
        with np.errstate(all="ignore"):
            close = np.shape(value) == want.shape and np.allclose(value, want, rtol=2e-5, atol=2e-5, equal_nan=True)
        if not close or value.dtype != want.dtype:
            wrong.append(f"{name}: {value!r:.300} != {want!r:.300}")
    assert not wrong, "\n".join(wrong)
    if n == "n":
        covered = set(model.report["primitives"]) & set(CONVERTERS)
        assert len(covered) >= 110, sorted(set(CONVERTERS) - covered)


def test_what_cannot_be_converted_is_refused_by_name() -> None:
    def function(x: jax.Array) -> jax.Array:
        return lax.linalg.schur(x)[0] + lax.linalg.hessenberg(x)[0]

    with pytest.raises(UnsupportedModel, match=r"found hessenberg \(1: hessenberg\); schur \(1: schur\)"):
        import_function(function, None, ("3, 3", "float32"))

    def unused(x: jax.Array) -> jax.Array:
        lax.linalg.schur(x)
        return x + 1

    assert import_function(unused, None, ("3, 3", "float32")).report["primitives"]["schur"] == 1
