"""Contractions in 16 bits that are no operator of this project: summed in float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from graphs import small_model
from tvm import relax

from halo_tvm.imported import InputSpec
from halo_tvm.in_process import compile_in_process

LONG = 3000  # elements: a sum of so many in float16 loses a hundredth

Sizes = tuple[int, ...]


def contracted(a: Sizes, b: Sizes, function: Callable[..., relax.Expr]) -> tuple[np.ndarray, list[np.ndarray]]:
    """`function` of random numbers of float16, and these in float64."""
    given = [np.random.default_rng(i).uniform(0.5, 1.5, sizes).astype("float16") for i, sizes in enumerate((a, b))]
    specs = tuple(InputSpec(name, sizes, "float16") for name, sizes in zip("ab", (a, b)))
    model = small_model(specs, lambda m: {"y": m.emit(function(m.inputs["a"], m.inputs["b"]))})
    return compile_in_process(model, threads=1)(*given)["y"], [x.astype("float64") for x in given]


@pytest.mark.parametrize(
    ("a", "b"),
    [((LONG,), (LONG,)), ((2, LONG), (LONG,)), ((LONG,), (4, LONG, 3)), ((4, 1, 3, LONG), (5, LONG, 2))],
    ids=str,
)
def test_products_of_vectors_and_of_broadcast_batches(a: Sizes, b: Sizes) -> None:
    found, given = contracted(a, b, relax.op.matmul)
    np.testing.assert_allclose(found, np.matmul(*given), rtol=2e-3)


def test_einsums() -> None:
    found, given = contracted((3, LONG), (LONG, 4), lambda a, b: relax.op.einsum((a, b), "ij,jk->ki"))
    np.testing.assert_allclose(found, np.einsum("ij,jk->ki", *given), rtol=2e-3)
