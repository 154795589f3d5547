"""TorchScript: state kept between calls, sizes that stay free, what must be given."""

from __future__ import annotations

import importlib
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from halo_tvm.artifact import FunctionSpec, TensorSpec
from halo_tvm.compiler import compile_model
from halo_tvm.config import CompileConfig
from halo_tvm.errors import UnsupportedModel, UsageError
from halo_tvm.imported import ImportedModel
from halo_tvm.importers.shapes import InputShape, load_examples, parse_input
from halo_tvm.importers.torchscript import import_torchscript
from halo_tvm.in_process import compile_in_process
from halo_tvm.original import reference_of
from halo_tvm.reference import cases_of
from halo_tvm.runtime.state import KeptState
from halo_tvm.runtime.validation import validate_artifact

torch = pytest.importorskip("torch")
import_unrestricted = importlib.import_module("halo_tvm.importers.torchscript._convert").import_unrestricted


class Counter(torch.nn.Module):
    """Adds up what it is given; starts with an empty sum."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(0)

    def forward(self, x: torch.Tensor, scale: int) -> torch.Tensor:
        if len(self.total) == 0:
            self.total = torch.zeros(x.size(0), 3)
        for _ in range(scale):
            self.total = self.total + x
        return self.total * 2


def test_input_texts() -> None:
    assert parse_input("ids:int64=1..8x12") == InputShape("ids", ((1, 8), (12, 12)), "int64")
    assert parse_input("rate=scalar(16000)") == InputShape("rate", (), None, 16000)
    assert parse_input("flag:bool=scalar") == InputShape("flag", (), "bool")
    with pytest.raises(UsageError, match="number or range"):
        parse_input("x=1xtwo")


@pytest.mark.slow
def test_state_of_a_script_becomes_inputs_and_outputs(tmp_path: Path) -> None:
    path = tmp_path / "counter.pt"
    torch.jit.script(Counter().eval()).save(str(path))
    model = import_torchscript(path, shapes=(parse_input("x=1..8x3"), parse_input("scale=scalar(2)")))
    assert [(s.name, s.default) for s in model.inputs] == [("x", None), ("scale", None), ("state_total", "zeros")]
    assert model.outputs == ("output", "state_total")
    assert model.inputs[0].shape == (model.inputs[2].shape[0], 3)
    assert model.inputs[1].values == (2, 2)
    x, total = np.ones((4, 3), np.float32), np.full((4, 3), 5, np.float32)
    found = model.engine({"x": x, "scale": np.int64(2), "state_total": total})
    np.testing.assert_allclose(found["output"], 2 * (total + 2 * x))
    np.testing.assert_allclose(found["state_total"], total + 2 * x)
    np.savez(tmp_path / "examples.npz", x=x, scale=np.array(2))
    cases = cases_of(model, 0, load_examples(str(tmp_path / "examples.npz")))
    assert cases["case0.input.scale"].shape == () and not cases["case0.input.state_total"].any()
    np.testing.assert_allclose(cases["case0.output.output"], 4 * x)


@pytest.mark.slow
def test_the_original_is_evaluated_again(tmp_path: Path) -> None:
    path, artifact = tmp_path / "counter.pt", tmp_path / "counter.halo"
    torch.jit.script(Counter().eval()).save(str(path))
    compile_model(CompileConfig(model=str(path), output=artifact, shape=("x=1..8x3", "scale=scalar(2)")))
    cases = reference_of(artifact, path, 7)
    assert cases["case0.input.scale"] == 2 and "case0.output.state_total" in cases
    assert validate_artifact(artifact, reference=cases)["passed"]


class Windows(torch.nn.Module):
    """Pads to whole windows, as traces write it: arithmetic on sizes that are tensors."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rest = (4 - x.shape[1] % 4) % 4
        return torch.nn.functional.pad(x, (0, rest)).reshape(x.shape[0], -1, 4).sum(2)


@pytest.mark.slow
def test_sizes_of_a_trace_are_reckoned(tmp_path: Path) -> None:
    path = tmp_path / "windows.pt"
    torch.jit.trace(Windows(), torch.ones(2, 6)).save(str(path))
    model = import_torchscript(path, inputs={"x": np.ones((2, 6), np.float32)})
    found = model.engine({"x": np.ones((2, 6), np.float32)})
    np.testing.assert_allclose(found["output"], [[4, 2]] * 2)


def _imported(module: torch.nn.Module, tmp_path: Path, *shapes: str) -> tuple[ImportedModel, Path]:
    """Scripted and imported in this process."""
    path = tmp_path / "model.pt"
    torch.jit.script(module.eval()).save(str(path))
    plain = [asdict(parse_input(shape)) for shape in shapes]
    return import_unrestricted(path, {"shapes": plain, "inputs": None}), path


class InPlace(torch.nn.Module):
    """A buffer that is changed through a view, and an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.total + x
        self.total[1:] += x[0, 1:]
        x.relu_()
        return before + x


def test_what_is_changed_in_place_is_state(tmp_path: Path) -> None:
    model, path = _imported(InPlace(), tmp_path, "x=2x3")
    assert model.outputs == ("output", "state_total")
    program, own = compile_in_process(model), torch.jit.load(str(path))
    total, x = np.ones(3, np.float32), np.array([[-1, 2, 3], [4, -5, 6]], np.float32)
    for _ in range(3):
        found = program(x=x, state_total=total)
        total = np.asarray(found["state_total"])
        np.testing.assert_allclose(found["output"], own(torch.tensor(x)))


class ListState(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items: list[torch.Tensor] = [torch.zeros(3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.items.append(x[0])
        return torch.stack(self.items).sum(0)


class Fraction(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, float]:
        return x + 1, x.size(0) / 3


class Branch(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.size(0) > 5 else x


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (ListState, "changes the list items"),
        (Fraction, "found a fraction of a size"),
        (Branch, r"to take 1\.\.8, found .* 6\.\.8 only"),
    ],
)
def test_what_a_graph_cannot_hold_is_named(module: type[torch.nn.Module], said: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        _imported(module(), tmp_path, "x=1..8x3" if module is not ListState else "x=2x3")


class Python(torch.nn.Module):
    """What TorchScript computes beside tensors: lists, dictionaries, texts, None, numbers of tensors."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> list[torch.Tensor]:
        places = [3, 1, 2]
        places.sort()
        places.remove(2)
        del places[0]
        named: dict[str, torch.Tensor] = {}
        named["x"] = x
        chosen: torch.Tensor | None = None
        if x.dim() == 2:
            chosen = named["x"]
        with torch.no_grad():
            out = x if chosen is None else chosen * len(f"{places[0]}%")
        first = int(n[0])
        return [out, x * (first // 2) + first, x * int(x.sum()), torch.tensor([1, 2]) * 2]


@pytest.mark.slow
def test_values_of_python_beside_tensors(tmp_path: Path) -> None:
    model, path = _imported(Python(), tmp_path, "x=2x3", "n:int64=1")
    program, own = compile_in_process(model), torch.jit.load(str(path))
    for value, number in ((-0.63, -7), (0.63, 7)):
        x, n = np.full((2, 3), value, np.float32), np.array([number])
        found = program(x=x, n=n)
        for name, wanted in zip(model.outputs, own(torch.tensor(x), torch.tensor(n)), strict=True):
            np.testing.assert_allclose(found[name], wanted, rtol=1e-6)


class Named(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": x + 1, "hidden": x * 2}


class Mixed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, list[torch.Tensor]]]:
        return x + 1, {"states": [x * 2, x * 3]}


@pytest.mark.parametrize(
    ("module", "names"),
    [(Named, ("logits", "hidden")), (Mixed, ("output_0", "output_1.states.0", "output_1.states.1"))],
)
def test_keys_of_dictionaries_name_outputs(module: type[torch.nn.Module], names: tuple[str, ...], tmp_path: Path):
    model, _ = _imported(module(), tmp_path, "x=2x3")
    assert model.outputs == names
    found = model.engine({"x": np.ones((2, 3), np.float32)})
    assert [float(found[name][0, 0]) for name in names] == [2.0, 2.0, 3.0][: len(names)]


class Experts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 16, 32))

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(x, self.weight, ends)


@pytest.mark.slow
def test_grouped_products_in_float32(tmp_path: Path) -> None:
    path, x, ends = tmp_path / "experts.pt", torch.randn(8, 16), torch.tensor([3, 3, 8], dtype=torch.int32)
    torch.jit.trace(Experts().eval(), (x, ends), check_trace=False).save(str(path))
    model = import_torchscript(path, inputs={"x": x.numpy(), "ends": ends.numpy()})
    found = compile_in_process(model)(x=x.numpy(), ends=ends.numpy())["output"]
    expected = model.engine({"x": x.numpy(), "ends": ends.numpy()})
    np.testing.assert_allclose(found, expected["output"], atol=1e-4)


@pytest.mark.slow
def test_shapes_must_be_given(tmp_path: Path) -> None:
    path = tmp_path / "linear.pt"
    torch.jit.trace(torch.nn.Linear(8, 4).eval(), torch.ones(1, 8)).save(str(path))
    with pytest.raises(UsageError, match="--shape 'input=1x16'"):
        import_torchscript(path)


def test_the_executor_keeps_state_until_sizes_change() -> None:
    tensors = (TensorSpec("x", ("n", 2), "float32"), TensorSpec("s", ("n",), "float32", default="zeros"))
    outputs = (TensorSpec("y", ("n", 2), "float32"), TensorSpec("s", ("n",), "float32"))
    state = KeptState(FunctionSpec(inputs=tensors, outputs=outputs, state=("s",)))
    x, kept = np.zeros((3, 2)), np.arange(3.0)
    given: list[dict[str, object]] = []

    def call(*args: np.ndarray, **kwargs: np.ndarray) -> tuple[np.ndarray, ...]:
        return state.call(args, kwargs, lambda inputs: given.append(dict(inputs)) or (x, kept))

    (y,) = call(x=x)
    assert y is x and given[-1].keys() == {"x"}
    call(x)
    assert given[-1]["s"] is kept
    assert state.passed((), {"x": x, "s": kept}) and not state.passed((x,), {})
    call(x=np.zeros((4, 2)))
    assert "s" not in given[-1]
    call(x)
    state.reset()
    call(x)
    assert "s" not in given[-1]
