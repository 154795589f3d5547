"""The page docs/jax.md, executed: a function becomes an artifact, and the artifact a function inside jit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pages import executed

jax = pytest.importorskip("jax")

import halo_tvm
import halo_tvm.integrations.jax
from halo_tvm.errors import InputError, UnknownName, UsageError


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = executed("jax.md", tmp_path, monkeypatch)
    assert names["best"].shape == (2,)
    fast, ids = names["fast"], names["ids"]
    np.testing.assert_array_equal(jax.vmap(lambda row: fast(ids=row[None])[0])(ids), fast(ids))
    with pytest.raises((InputError, UsageError), match="expected values .*, found"):
        fast(ids - 5)
    for wrong in (lambda: fast(), lambda: fast(ids, ids=ids)):
        with pytest.raises(UsageError, match="expected the inputs ids, found"):
            wrong()
    with pytest.raises(UnknownName, match="ids"):
        fast(id=ids)


def test_a_gradient_is_a_sentence(tmp_path: Path) -> None:
    """Forwards and backwards, at once and under jit; sizes that are unknown under jit, too."""
    file = tmp_path / "net.halo"
    model = halo_tvm.import_jax(jax.numpy.tanh, None, ("batch, 4", "float32"), ranges={"batch": (1, 8)})
    halo_tvm.compile_model(halo_tvm.CompileConfig(model="tanh", output=str(file)), model)
    fast = halo_tvm.integrations.jax.function(file)
    x = jax.numpy.ones((2, 4))
    gradient = jax.grad(lambda x: fast(x).sum())
    for derivative in (gradient, jax.jit(gradient), lambda x: jax.jvp(fast, (x,), (x,))):
        with pytest.raises(UsageError, match="expected a call without gradients, found one that differentiates"):
            derivative(x)
    for wrong, said in (
        (x[:, :3], "expected size 4 in axis 1"),
        (x.astype("int32"), "expected float32"),
        (x[0], "expected rank 2"),
    ):
        with pytest.raises(InputError, match=said):
            jax.jit(fast).trace(wrong)
    held = jax.grad(lambda x: (fast(jax.lax.stop_gradient(x)) * x).sum())(x)
    np.testing.assert_allclose(held, np.tanh(x), atol=1e-6)
