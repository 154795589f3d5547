"""Complex numbers and Fourier transforms of torch, as pairs of real numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import halo_tvm
from halo_tvm.cli import main
from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig
from halo_tvm.errors import InputError, UnsupportedModel
from halo_tvm.importers.torch_export import import_module
from halo_tvm.in_process import compile_in_process
from halo_tvm.integrations.torch import HaloModule
from halo_tvm.phases import lower

DYNAMIC = torch.export.Dim.DYNAMIC
real, fft = torch.view_as_real, torch.fft
FUNCTIONS = (
    *(torch.exp, torch.exp2, torch.log, torch.log2, torch.log10, torch.sqrt, torch.rsqrt, torch.reciprocal),
    *(torch.sin, torch.cos, torch.tan, torch.sinh, torch.cosh, torch.tanh, torch.sigmoid, torch.sgn),
)


class Everything(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.large = torch.randn(24, 24, dtype=torch.complex64, generator=generator)  # a weight
        self.small = torch.randn(8, dtype=torch.complex64, generator=generator)  # a constant

    def written(self, z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """Modes of one spectrum in another one, as neural operators write them."""
        out = torch.zeros(z.shape[0], 600, dtype=torch.complex64)
        out[:, 1:5] = z[:, :4]
        out[:, -3:] = w[:, -3:] + 1
        return out

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """x [b, 8]."""
        z, w = torch.complex(x, x + 1), fft.fft(x)
        signal = x.reshape(-1)
        spectrum = torch.stft(signal, 8, 3, window=torch.hann_window(8), return_complex=True)
        return {
            "product": real(z * w * self.small),
            "weight": real(torch.cat([z, z, z.flip(1)], 1) @ self.large),
            "einsum": real(torch.einsum("ij,kj->ik", z, w)),
            "quotient": real(z / w),
            "inverse": real(1 / z),
            "scaled": real((2 - 1j) * z.conj() + 3 * x - w / 2),
            "power": z.pow(3).imag,
            "powers": real(torch.stack([z.pow(0.5), z.pow(-1.5), z ** (w / 8), z.square()])),
            "functions": real(torch.stack([f(z / 2) for f in FUNCTIONS])),
            "linear": real(torch.nn.functional.linear(z, self.large[:4, :8], self.small[:4])),
            "convolution": real(
                torch.nn.functional.conv1d(z[:, None], self.large[:4, None, :3], self.small[:4], stride=2)
            ),
            "addmm": real(torch.addmm(self.small, z, self.large[:8, :8], beta=2, alpha=0.5)),
            "written": real(self.written(z, w)),
            "padded": real(torch.nn.functional.pad(z, (2, 1), value=3)),
            "questions": torch.stack([z == w, z != z, (z * 0).logical_not(), (z - x).isnan()]),
            "norm": torch.linalg.vector_norm(w, dim=1),
            "spread": z.var(1),
            "numbers": z.view(torch.float32) + real(torch.ones_like(z)).flatten(1),
            "outer": real(torch.outer(z[0], w[1])),
            "exponential": (1j * z).exp().real,
            "polar": real(torch.polar(x.abs(), x)),
            "abs": (z * 1e25).abs(),
            "angle": w.angle(),
            "chosen": torch.where(x > 0, w, 0).imag,
            "views": real(z.unsqueeze(1).expand(-1, 2, -1)[:, 1, ::2].sum(0).roll(1)),
            "rfft": real(fft.rfft(x, norm="ortho")),
            "irfft": fft.irfft(fft.rfft(x) * fft.rfft(x + 2)),
            "odd": fft.irfft(w, n=5),
            "both": real(fft.ifft2(fft.fft2(z), norm="forward")),
            "double": fft.ifft(x.double()).abs(),
            "stft": spectrum.abs(),
            "istft": torch.istft(spectrum, 8, 3, window=torch.hann_window(8)),
        }


@pytest.mark.slow
def test_complex_numbers_and_transforms_are_those_of_torch() -> None:
    net, x = Everything().eval(), torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    found = compile_in_process(import_module(net, (x,)), threads=1)(x.numpy())
    for name, wanted in net(x).items():
        np.testing.assert_allclose(found[name], wanted.numpy(), rtol=1e-4, atol=2e-5, err_msg=name)


def test_real_and_complex_operands_of_other_shapes_are_broadcast() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            z = torch.complex(x, x * 2)
            column, number = x[:, :1], z[0, 0]
            sums = x + 2j, x - z[:1], z[:, :1] - x, number + x, column + z[:1], 1j - x, torch.rsub(x, number)
            return tuple(map(real, (*sums, torch.where(x > 0, x, 2j), torch.where(x > 0, z[:1], x), x.add(z, alpha=3))))

    x = torch.randn(3, 8)
    found = compile_in_process(import_module(Net().eval(), (x,)), threads=1)(x.numpy())
    for value, wanted in zip(found.values(), Net()(x), strict=True):
        np.testing.assert_allclose(value, wanted.numpy(), atol=1e-6)


class ComplexRotary(torch.nn.Module):
    """Queries and keys are turned by complex numbers, as the authors of Llama wrote it."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(512), 10000.0 ** (-torch.arange(0, 8, 2).float() / 8))
        self.freqs_cis = torch.polar(torch.ones_like(angles), angles)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [b, s, h, 8]"""
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turned = real(pairs * self.freqs_cis[: x.shape[1]].view(1, x.shape[1], 1, 4)).flatten(3)
        # another product of pairs and a broadcast, which is no rotary embedding: its factor is one number for all
        return turned, real(pairs * torch.polar(x[..., :1], x[..., 1:2])).flatten(3)


@pytest.mark.slow
def test_rotary_embeddings_by_complex_numbers_are_the_operator() -> None:
    net = ComplexRotary().eval()
    x, other = torch.randn(2, 5, 3, 8), torch.randn(1, 9, 3, 8)
    model = import_module(net, (x,), dynamic_shapes={"x": {0: DYNAMIC, 1: DYNAMIC}})
    _, reports = lower(model, Compilation.of(CompileConfig(model="rotary", threads=1)))
    assert reports.lift.operators == {"rotary": 1}
    program = compile_in_process(model, threads=1)
    for given in (x, other):
        for found, wanted in zip(program(given.numpy()).values(), net(given), strict=True):
            np.testing.assert_allclose(found, wanted.numpy(), atol=1e-5)


def test_torch_compile_takes_and_gives_complex_numbers() -> None:
    from halo_tvm.integrations.torch import report

    net = torch.compile(lambda z: (fft.fft(z) * 1j, z.real), backend="halo_tvm")
    z = torch.randn(3, 8, dtype=torch.complex64)
    for given in (z, z.conj()):
        for found, wanted in zip(net(given), (fft.fft(given) * 1j, given.real), strict=True):
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert report()[-1].eager_calls == 0


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda x: torch.complex(x, x).cumprod(0).real, "cumprod.default with complex numbers"),
        (lambda x: torch.complex(x, x).asin().real, "asin.default with complex numbers"),
        (lambda x: torch.add(x, torch.complex(x, x), alpha=2j).real, "a factor alpha that is complex"),
        (lambda x: torch.sub(torch.complex(x, x), x, alpha=2j).real, "a factor alpha that is complex"),
        (lambda x: torch.rsub(x, torch.complex(x, x), alpha=2j).real, "a factor alpha that is complex"),
    ],
)
def test_what_has_no_pairs_is_refused(function, sentence: str) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    with pytest.raises(UnsupportedModel, match=sentence):
        import_module(Net().eval(), (torch.ones(4),))


class Spectra(torch.nn.Module):
    def forward(self, z: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """z [b, n] complex, x [b, 64]: a filter in frequency, a mel front end, what is handed through."""
        spectrum = torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True)
        return {
            "filtered": fft.ifft(fft.fft(z) * torch.exp(1j * z.real)),
            "spectrum": spectrum,
            "mel": torch.einsum("mf,bft->bmt", torch.ones(3, 9), spectrum.abs().square()),
            "conjugate": z.conj(),
            "same": z,
            "made": torch.view_as_complex(x.reshape(-1, 32, 2)),
            "constant": torch.zeros(2, 2, dtype=torch.complex64),
            "scalar": z.sum(),
        }


@pytest.fixture(scope="module")
def spectra(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spectra")
    z, x = torch.randn(3, 8, dtype=torch.complex64), torch.randn(3, 64)
    model = import_module(Spectra().eval(), (z, x), dynamic_shapes={"z": {0: DYNAMIC}, "x": {0: DYNAMIC}})
    halo_tvm.compile_model(CompileConfig(model="spectra", output=str(folder / "net.halo"), threads=1), model)
    return folder / "net.halo"


@pytest.mark.slow
def test_artifacts_take_and_give_complex_numbers(spectra: Path, tmp_path: Path, capsys) -> None:
    """In the memory of the caller's arrays, at other sizes, contiguous or not, as NumPy's and as torch's."""
    assert halo_tvm.validate_artifact(str(spectra))["passed"]
    net = Spectra()
    with halo_tvm.load(str(spectra), threads=1) as module:
        assert (module.input_specs[0].dtype, module.input_specs[0].shape) == ("complex64", ("batch", 8))
        assert {s.name: s.dtype for s in module.output_specs}["spectrum"] == "complex64"
        for rows in (1, 4):
            z, x = torch.randn(8, rows, dtype=torch.complex64).T, torch.randn(rows, 64)
            for given in (z.numpy(), np.ascontiguousarray(z.numpy())):
                kept = given.copy()
                found = module(given, x.numpy())
                for spec, value, wanted in zip(module.output_specs, found, net(z, x).values(), strict=True):
                    assert value.dtype == wanted.resolve_conj().numpy().dtype and value.shape == wanted.shape, spec
                    np.testing.assert_allclose(value, wanted.resolve_conj().numpy(), rtol=1e-4, atol=1e-4)
                assert np.array_equal(given, kept) and not any(np.may_share_memory(v, given) for v in found)
        module(np.ones((2, 8), np.float32), np.ones((2, 64), np.float32))  # real numbers are complex ones
        with pytest.raises(InputError, match="input 'z': expected rank 2"):
            module(np.ones((2, 8, 2), np.float32), np.ones((2, 64), np.float32))
    wrapped = HaloModule(spectra, threads=1)
    with torch.no_grad():
        torch.testing.assert_close(wrapped(z.conj(), x)["conjugate"], z.resolve_conj())
    np.savez(tmp_path / "in.npz", z=np.ones((2, 8), np.complex64))
    assert main(["run", str(spectra), "--input", str(tmp_path / "in.npz"), "--output", str(tmp_path / "out.npz")]) == 0
    assert np.load(tmp_path / "out.npz")["same"].dtype == np.complex64


@pytest.mark.parametrize("length", [1024, 1155, 1156])
@pytest.mark.sampled(1)
def test_transforms_of_composite_lengths(length: int) -> None:
    """Halves of spectra, whole ones, both ways, signals that are cut or padded, against float64: by the operator, but
    an odd half back (1155) and those of large primes (1156), which are two products."""

    def function(x):
        half, whole = fft.rfft(x), fft.fft(torch.complex(x, x.roll(3)))
        halves = fft.irfft(torch.complex(x, x + 1)[:, : length // 2 + 1], n=length)
        return (
            real(half),
            half.angle()[:, 0],
            real(whole),
            real(fft.ifft(whole)),
            halves,
            real(fft.rfft(x, n=2 * length)),
        )

    class Function(torch.nn.Module):
        def forward(self, x):
            return function(x)

    x = torch.randn(3, length, generator=torch.Generator().manual_seed(0))
    model = import_module(Function().eval(), (x,))
    assert max(np.prod(source.shape) for source in model.params.sources.values()) < 80 * length
    found = list(compile_in_process(model)(x.numpy()).values())
    for ours, theirs, wanted in zip(found, function(x), function(x.double()), strict=True):
        scale = float(wanted.abs().max())
        assert np.abs(ours - wanted.numpy()).max() < max(1e-6 * scale, 2 * float((theirs - wanted).abs().max()))


@pytest.mark.slow
def test_transforms_along_any_axes() -> None:
    """Rows, columns, and of too few columns rows again."""

    def function(x):
        z = fft.fftn(torch.complex(x, x.flip(1)), dim=(0, 1, 2))
        return (
            real(z),
            real(fft.rfft2(x)),
            fft.irfft2(fft.rfft2(x), s=(24, 16)),
            real(fft.rfft(x, dim=1, n=30, norm="ortho")),
            real(fft.ifft(z[..., :3], dim=1)),
            fft.hfft(z[:, :9], dim=1),
            real(fft.fftshift(fft.fft2(x, dim=(0, 2)))),
        )

    class Function(torch.nn.Module):
        def forward(self, x):
            return function(x)

    x = torch.randn(20, 24, 17, generator=torch.Generator().manual_seed(0))
    program = compile_in_process(import_module(Function().eval(), (x,), dynamic_shapes=None), threads=2)
    for found, wanted in zip(program(x.numpy()).values(), function(x), strict=True):
        np.testing.assert_allclose(found, wanted.numpy(), atol=2e-6 * float(wanted.abs().max()))
