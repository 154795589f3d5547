"""Factorisations, inverses and systems of equations, of torch and of JAX, against what these compute."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from gpu_code import cuda_source
from tvm import tirx

from halo_tvm.errors import UnsupportedModel
from halo_tvm.in_process import compile_in_process

torch = pytest.importorskip("torch")
L = torch.linalg
N = 5
# Of a (any), s (positive definite), b [.., N, 2]. What has vectors of any sign is compared by what they make together.
CASES: dict[str, tuple[str, Callable[..., object]]] = {
    "inverse": ("a", L.inv),
    "determinants": ("a", lambda a: (L.det(a), L.slogdet(a), torch.logdet(a @ a.mT))),
    "solve": ("ab", lambda a, b: (L.solve(a, b), L.solve(a, b[..., 0]), L.solve(a, b.mT, left=False))),
    "cholesky": ("sb", lambda s, b: (L.cholesky(s), torch.cholesky_solve(b, L.cholesky(s)))),
    "cholesky, upper": ("sb", lambda s, b: torch.cholesky_solve(b, L.cholesky(s, upper=True), upper=True)),
    "cholesky, inverse": ("s", lambda s: torch.cholesky_inverse(L.cholesky(s))),
    "triangular": (
        "ab",
        lambda a, b: (
            L.solve_triangular(a.tril(), b, upper=False),
            L.solve_triangular(a.triu(), b.mT, upper=True, left=False),
            L.solve_triangular(a.triu(), b, upper=True, unitriangular=True),
        ),
    ),
    "qr": ("a", lambda a: (L.qr(a), L.qr(a[..., :3]), L.qr(a[..., :3, :]), L.qr(a[..., :3], mode="complete"))),
    "reflections": ("ab", lambda a, b: L.householder_product(a, b[..., 0])),
    "lu": ("ab", lambda a, b: (L.lu(a), L.lu(a[..., :3]), L.lu_solve(*L.lu_factor(a), b))),
    "singular values": ("a", lambda a: (L.svdvals(a), L.svdvals(a[..., :2, :]))),
    "nearest rotation": ("a", lambda a: (lambda u, s, v: u @ v)(*L.svd(a))),
    "low rank": ("a", lambda a: (lambda u, s, v: (u * s[..., None, :]) @ v)(*L.svd(a[..., :3], full_matrices=False))),
    "eigenvalues": ("s", L.eigvalsh),
    "function of a matrix": ("s", lambda s: (lambda w, v: (v * w.sqrt()[..., None, :]) @ v.mT)(*L.eigh(s))),
    "pseudo-inverse": ("a", lambda a: (L.pinv(a), L.matrix_rank(a))),
    "exponential": ("a", lambda a: (L.matrix_exp(a), L.matrix_exp(a * 9))),
}


def given(names: str, batch: tuple[int, ...], dtype: object = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    a = torch.randn(*batch, N, N, dtype=dtype) + 2 * torch.eye(N, dtype=dtype)
    made = {"a": a, "s": a @ a.mT + torch.eye(N, dtype=dtype), "b": torch.randn(*batch, N, 2, dtype=dtype)}
    return [made[name] for name in names]


def check(function: Callable[..., object], args: list[torch.Tensor], *others: list[torch.Tensor]) -> None:
    from halo_tvm.importers.torch_export import import_program

    class Module(torch.nn.Module):
        def forward(self, *args: torch.Tensor) -> object:
            return function(*args)

    sizes = (tuple({0: torch.export.Dim("n", max=64)} for _ in args),) if others else None
    exported = torch.export.export(Module(), tuple(args), dynamic_shapes=sizes)
    program = compile_in_process(import_program(exported, name="m"), threads=2)
    for some in (args, *others):
        wanted = torch.utils._pytree.tree_leaves(function(*some))
        found = list(program(*(x.numpy() for x in some)).values())
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=2e-5, atol=2e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(6, 12)
def test_as_torch(name: str) -> None:
    names, function = CASES[name]
    check(function, given(names, (3,)), given(names, (1,)), given(names, (17,)))


@pytest.mark.slow
def test_without_a_batch_with_two_axes_of_it_and_in_float64() -> None:
    for batch, dtype in (((), torch.float32), ((2, 3), torch.float64)):
        check(
            lambda a, b: (L.inv(a), L.solve(a, b), L.qr(a), L.matrix_norm(a, 2), L.cond(a)), given("ab", batch, dtype)
        )


@pytest.mark.slow
def test_matrices_of_many_sizes() -> None:
    """Every length of a vector's rest, against NumPy in float64."""
    for n in (1, 2, 3, 8, 17, 40):
        a = torch.randn(2, n, n, generator=torch.Generator().manual_seed(n)) + n**0.5 * torch.eye(n)
        check(lambda a: (L.inv(a), L.qr(a), L.svdvals(a), L.eigvalsh(a @ a.mT), L.cholesky(a @ a.mT)), [a])


def test_one_half_of_a_hermitian_matrix_is_read() -> None:
    a = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0))
    check(lambda a: L.pinv(a, hermitian=True), [a])


def test_a_matrix_without_elements_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"expected matrices with elements, found sizes \[0, 0\]"):
        check(L.det, [torch.zeros(0, 0)])


def test_what_torch_raises_for_is_not_finite() -> None:
    from halo_tvm.importers.torch_export import import_program

    class Module(torch.nn.Module):
        def forward(self, a: torch.Tensor) -> object:
            return L.inv(a), L.cholesky(a), L.det(a)

    good = torch.eye(3)[None] * 2
    program = compile_in_process(import_program(torch.export.export(Module(), (good,)), name="m"), threads=1)
    inverse, lower, determinant = program(np.zeros((1, 3, 3), np.float32)).values()
    assert not np.isfinite(inverse).any(where=np.eye(3, dtype=bool)) and determinant == 0
    indefinite = np.diag(np.float32([4, -1, 9]))[None]
    inverse, lower, determinant = program(indefinite).values()
    np.testing.assert_allclose(inverse[0], np.diag([1 / 4, -1, 1 / 9]), rtol=1e-6)
    assert np.isnan(lower[0][np.tril_indices(3)]).all() and determinant == -36


def test_singular_vectors_of_a_matrix_without_full_rank_are_orthogonal() -> None:
    a = torch.tensor([[1.0, 2, 3], [2, 4, 6], [0, 0, 0]])[None].repeat(2, 1, 1)
    a[1] = 0

    def together(a: torch.Tensor) -> object:
        u, s, v = L.svd(a)
        return u.mT @ u, v @ v.mT, s, (u * s[..., None, :]) @ v

    check(together, [a])


@pytest.mark.slow
def test_code_for_a_gpu() -> None:
    """No GPU is needed to see that there is code: vectors of float64 have none."""
    from halo_tvm import phases
    from halo_tvm.compilation import Compilation
    from halo_tvm.config import CompileConfig
    from halo_tvm.importers.torch_export import import_program
    from halo_tvm.targets import resolve
    from halo_tvm.workspaces import LiftWorkspaces

    class Module(torch.nn.Module):
        def forward(self, a: torch.Tensor, s: torch.Tensor) -> object:
            return L.inv(a), L.qr(a), L.svdvals(a), L.eigvalsh(s), L.cholesky(s), L.matrix_exp(a)

    model = import_program(torch.export.export(Module(), tuple(given("as", (2,)))), name="m")
    compilation = Compilation.of(CompileConfig(model="m", records=False), resolve("cuda:sm_80"))
    mod, _ = phases.schedule(phases.lower(model, compilation)[0], compilation)
    mod = LiftWorkspaces()(mod)
    kernels = [func for _, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]
    assert cuda_source(kernels, "sm_80").count("__global__") >= len(kernels)


@pytest.mark.slow
def test_as_jax() -> None:
    jax = pytest.importorskip("jax")
    import halo_tvm

    jnp, jsp = jax.numpy, jax.scipy
    rng = np.random.default_rng(0)
    a = rng.standard_normal((3, N, N)).astype("float32") + 2 * np.eye(N, dtype="float32")
    b = rng.standard_normal((3, N, 2)).astype("float32")

    def function(a: object, b: object) -> object:
        s = a @ a.mT + jnp.eye(N)
        w, v = jnp.linalg.eigh(s)
        u, d, t = jnp.linalg.svd(a[..., :3], full_matrices=False)
        return (
            *(jnp.linalg.inv(a), jnp.linalg.det(a), jnp.linalg.slogdet(a), jnp.linalg.solve(a, b)),
            *(jnp.linalg.cholesky(s), jsp.linalg.cho_solve((jnp.linalg.cholesky(s[0]), True), b[0])),
            *(jsp.linalg.solve_triangular(a[0], b[0], lower=True, trans=1), jnp.linalg.qr(a), jsp.linalg.lu(a[0])),
            *(w, (v * w[..., None, :]) @ v.mT, d, (u * d[..., None, :]) @ t, jnp.linalg.lstsq(a[0], b[0])[0]),
            *(jsp.linalg.expm(a), jnp.linalg.pinv(a), jsp.linalg.lu_factor(a[0])[1]),
        )

    program = compile_in_process(halo_tvm.import_jax(function, None, a, b), threads=2)
    for ours, theirs in zip(program(a, b).values(), jax.tree.leaves(function(a, b)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=3e-5, atol=3e-5 * float(np.abs(theirs).max()))
