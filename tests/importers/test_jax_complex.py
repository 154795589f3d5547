"""Complex numbers inside functions of jax, as pairs: numbers of jax, with fixed and with open sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp
from graphs import unscheduled
from jax import lax

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers.jax import import_function


def of_numbers(x: jax.Array) -> dict[str, jax.Array]:
    """x [b, n, 6], real."""
    z, half = lax.complex(x, x[:, :, ::-1] * 0.5), jnp.complex64(0.5 - 2j)
    w = (z * half + 1j) / (z - 0.25)
    powers = jnp.stack([z**2, z**-3, jnp.square(z), z.conj(), -z, jnp.real(z) + 0j])
    functions = jnp.stack([jnp.exp(z), jnp.log(z), jnp.sqrt(z), jnp.sqrt(-jnp.abs(x) + 0j), jnp.sqrt(0 * z)])
    moved = (
        jnp.concatenate([z[:, 1:], z[:, :1]], 1).swapaxes(1, 2)[..., None].sum(2) + jnp.cumsum(z, 2).sum(1)[..., None]
    )
    return {
        "arithmetic": w.real + w.imag,
        "powers": powers.imag + powers.real * 3,
        "functions": functions.imag + functions.real * 3,
        "moved": jnp.abs(jnp.pad(moved, ((0, 0), (1, 0), (0, 0)), constant_values=2j)),
        "angle": jnp.angle(z) + jnp.angle(x + 0j),
        "tests": (z == z.conj()).astype("float32") + (z != z) + jnp.isfinite(w),
        "chosen": jnp.where(x > 0, z, w)[:, :, jnp.array([0, 5, 2])].at[:, :, 0].set(1j).imag,
        "products": jnp.einsum("bni,bmi->bnm", z, w).real + jnp.einsum("bni,ij->bnj", z, jnp.ones((6, 6))).imag.sum(),
        "beside": jax.nn.silu(x) + jax.jit(lambda a: (a * a).imag)(z),  # a derivative of its own, a call
    }


def of_transforms(x: jax.Array) -> dict[str, jax.Array]:
    """x [b, n, 6], real, n being known."""
    z = jnp.fft.fft(x, axis=1)
    signal = jnp.fft.irfft(jnp.fft.rfft(x, 16, axis=1) * jnp.fft.rfft(jnp.arange(7.0), 16)[None, :, None], 16, axis=1)
    return {
        "there": jnp.abs(z),
        "and back": jnp.fft.ifft(z, axis=1).real,
        "half": jnp.fft.rfft(x).imag,
        "odd": jnp.fft.irfft(jnp.fft.rfft(x, 5), 5),
        "two axes": jnp.fft.irfft2(jnp.fft.rfft2(x) * 2j + jnp.fft.rfft2(x), s=(x.shape[1], 6)),
        "convolution": signal,
    }


def of_loops(x: jax.Array) -> dict[str, jax.Array]:
    """x [b, n, 6], real: a state-space model with a complex state, by steps and by a tree."""
    turn = jnp.exp(lax.complex(-0.1 * jnp.arange(1.0, 7), jnp.arange(6.0)))
    rows = jnp.swapaxes(x, 0, 1)

    def step(state: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = state * turn + row
        return state, state.real

    last, steps = lax.scan(step, jnp.zeros(x.shape[::2], jnp.complex64), rows)
    repeated = lax.fori_loop(0, 3, lambda _, z: z * turn, last)
    either = lax.cond(x.sum() > 0, lambda z: z * 2, lambda z: z * 3j, last)
    apart = jax.vmap(lambda z: lax.while_loop(lambda z: abs(z[0]) > 0.3, lambda z: z * 0.5j, z))(last)
    return {"steps": steps, "last": last.imag, "repeated": repeated.real, "either": either.imag, "apart": apart.imag}


@pytest.mark.parametrize("n", [5, "n"])
@pytest.mark.parametrize("function", [of_numbers, of_transforms, of_loops])
@pytest.mark.sampled(1, 3)
def test_complex_numbers_between_real_ends(function: Callable, n: int | str) -> None:
    if function is of_transforms and n == "n":
        pytest.skip("jax itself transforms no axis of unknown size")
    model = import_function(
        function, None, (f"b, {n}, 6", "float32"), ranges={"b": (1, 4), "n": (2, 16)} if n == "n" else {"b": (1, 4)}
    )
    x = {"x": np.random.default_rng(0).standard_normal((2, 5, 6)).astype(np.float32)}
    found = unscheduled(model, x)
    for name, want in model.engine(x).items():
        np.testing.assert_allclose(found[name], want, rtol=2e-5, atol=2e-5 * np.abs(want).max(), err_msg=name)


def test_complex_weights_are_two_tensors() -> None:
    weights = {"turn": np.exp(1j * np.arange(6)).astype(np.complex64)}
    model = import_function(lambda w, x: (x * w["turn"]).imag, weights, ("b, 6", "float32"), ranges={"b": (1, 4)})
    x = {"x": np.ones((2, 6), np.float32)}
    np.testing.assert_allclose(*(run["output"] for run in (unscheduled(model, x), model.engine(x))), atol=1e-6)


@pytest.mark.parametrize(
    ("function", "dtype", "found"),
    [
        (lambda x: x + 1j, "float32", "complex64 of a result"),
        (lambda x: x.real, "complex64", "complex64 of an input"),
        (lambda x: jnp.sin(x + 1j).real, "float32", "sin of complex numbers"),
    ],
)
def test_what_complex_numbers_cannot_do_here_is_said(function: Callable, dtype: str, found: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"complex numbers between real inputs.*found {found}"):
        import_function(function, None, ("4", dtype))
