"""torch.compile with this backend, and artifacts as modules."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import halo_tvm
from halo_tvm.errors import UsageError
from halo_tvm.integrations.torch import HaloModule, compile_backend, report


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)).eval()


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def test_graphs_are_compiled_and_changed_weights_are_seen() -> None:
    module, x = network(), torch.randn(3, 8)
    compiled = torch.compile(module, backend=compile_backend, options={"threads": 1})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
        module[0].weight.mul_(3)
        torch.testing.assert_close(compiled(x), module(x))
    assert report()[-1].eager_calls == 0 and report()[-1].compiled == 2 and "not compiled" not in str(report()[-1])


def test_unsupported_graphs_and_gradients_run_in_torch_with_a_reason() -> None:
    def function(x):
        return torch.fft.fft(x).real, None

    x = torch.randn(4, 4)
    with torch.no_grad():
        result = torch.compile(function, backend=compile_backend)(x)
    torch.testing.assert_close(result[0], function(x)[0])
    assert "_fft_r2c" in report()[-1].reasons[0] and result[1] is None

    module = network()
    torch.compile(module, backend=compile_backend)(torch.randn(3, 8)).sum().backward()
    assert module[0].weight.grad is not None and "gradients" in report()[-1].reasons[0]


def test_unknown_options_are_refused() -> None:
    graph = torch.fx.symbolic_trace(network())
    with pytest.raises(UsageError, match="threads and level"):
        compile_backend(graph, [], options={"speed": 11})


def test_an_imported_module_becomes_an_artifact_and_a_module(tmp_path) -> None:
    module, x = network(), torch.randn(3, 8)
    rows = torch.export.Dim.DYNAMIC(min=1, max=8)
    model = halo_tvm.import_torch(module, (x,), dynamic_shapes=({0: rows},), name="net")
    config = halo_tvm.CompileConfig(model="net", output=str(tmp_path / "net.halo"), records=False)
    result = halo_tvm.compile_model(config, model)
    assert result.validation.startswith("passed")
    loaded = HaloModule(result.path, threads=1)
    with torch.no_grad():
        for rows in (x, torch.randn(5, 8)):
            torch.testing.assert_close(loaded(rows), module(rows), rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="requires gradients"):
        loaded(x.requires_grad_())
    assert np.asarray(loaded(x.detach())).shape == (3, 16)
