"""`.pt2` files: read without running anything in them; what could run is refused in one sentence."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from halo_tvm.errors import InputError, UnsupportedModel
from halo_tvm.importers.torch_export import import_unrestricted
from halo_tvm.importers.torch_export._archive import read_pt2
from halo_tvm.in_process import compile_in_process


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        return {"y": self.linear(x).reshape(x.shape[0] * 3)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pt2") / "small.pt2"
    shapes = ({0: torch.export.Dim.DYNAMIC(min=1, max=9)},)
    torch.export.save(torch.export.export(Small().eval(), (torch.ones(2, 4),), dynamic_shapes=shapes), str(path))
    return path


def changed(saved: Path, tmp_path: Path, change, *, ending: str = "models/model.json") -> Path:
    """A copy whose entry `ending` is what `change` makes of its bytes."""
    path = tmp_path / "changed.pt2"
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(path, "w") as new:
        found = False
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.endswith(ending):
                found, data = True, change(data)
            new.writestr(entry.filename, data)
    assert found, f"no entry {ending}"
    return path


def test_a_program_is_compiled_for_other_sizes(saved: Path) -> None:
    model = import_unrestricted(saved, {})
    assert model.inputs[0].shape == ("batch", 4) and model.ranges == {"batch": (1, 9)} and model.outputs == ("y",)
    program = compile_in_process(model, threads=1, level=2)
    for rows in (1, 5):
        x = np.random.default_rng(rows).standard_normal((rows, 4), dtype=np.float32)
        wanted = Small()(torch.from_numpy(x))["y"].detach().numpy()
        np.testing.assert_allclose(program(x)["y"], wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(model.engine({"x": x})["y"], wanted, rtol=1e-6)


class Joined(torch.nn.Module):
    def forward(self, x, y):
        return torch.cat([x, y[1:]], 0) * 2


class Halved(torch.nn.Module):
    def forward(self, x):
        return x.reshape(-1, 2, x.shape[1]).sum(1)


class Mapped(torch.nn.Module):
    def forward(self, x):
        return torch.vmap(lambda row: row.outer(row).sum(0))(x)


def test_vmap_is_what_it_computes(tmp_path: Path) -> None:
    shapes = ({0: torch.export.Dim.DYNAMIC(min=1, max=9)},)
    torch.export.save(
        torch.export.export(Mapped(), (torch.ones(4, 3),), dynamic_shapes=shapes), str(tmp_path / "m.pt2")
    )
    program = compile_in_process(import_unrestricted(tmp_path / "m.pt2", {}), threads=1, level=1)
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    (found,) = program(x).values()
    np.testing.assert_allclose(found, x * x.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)


N = torch.export.Dim("n", min=2, max=50)


@pytest.mark.parametrize(
    ("module", "sizes", "dims", "shapes", "ranges"),
    [
        (Joined(), (lambda n: n, lambda n: 2 * n + 1), (N, 2 * N + 1), ("batch", "1 + 2 * batch"), (1, 50)),
        (Halved(), (lambda n: 2 * n,), (2 * N,), ("batch",), (2, 100)),
    ],
    ids=("beside its size", "alone"),
)
def test_sizes_that_are_multiples_of_others(tmp_path: Path, module, sizes, dims, shapes, ranges) -> None:
    def inputs(n: int) -> list[torch.Tensor]:
        return [torch.randn(size(n), 3, generator=torch.Generator().manual_seed(n)) for size in sizes]

    program = torch.export.export(module, tuple(inputs(4)), dynamic_shapes=tuple({0: dim} for dim in dims))
    torch.export.save(program, str(tmp_path / "m.pt2"))
    model = import_unrestricted(tmp_path / "m.pt2", {})
    assert model.ranges == {"batch": ranges}
    assert [spec.shape[0] for spec in model.inputs] == list(shapes)
    compiled = compile_in_process(model, threads=1, level=1)
    for n in (2, 7):
        given = inputs(n)
        (found,) = compiled(*(x.numpy() for x in given)).values()
        np.testing.assert_allclose(found, module(*given).numpy(), rtol=1e-5, atol=1e-6)
    if module.__class__ is Halved:
        with pytest.raises(InputError, match="batch % 2 == 0"):
            compiled(np.ones((5, 3), np.float32))


def expression(text: str):
    def change(data: bytes) -> bytes:
        program = json.loads(data)

        def visit(value: object) -> None:
            if isinstance(value, dict):
                if "expr_str" in value:
                    value["expr_str"] = text
                for item in value.values():
                    visit(item)
            elif isinstance(value, list):
                for item in value:
                    visit(item)

        visit(program)
        return json.dumps(program).encode()

    return change


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch MARK')",
        "().__class__.__bases__",
        "Symbol('s0;1')",
        "lambda: 1",
        "9**9**9",
        "Pow(Integer(9), Pow(Integer(9), Integer(9)))",
        "[x for x in (1,)]",
        "open('MARK', 'w')",
        "1" * 5000,
    ],
)
def test_size_expressions_that_could_run_are_refused(saved: Path, tmp_path: Path, text: str) -> None:
    mark = tmp_path / "mark"
    path = changed(saved, tmp_path, expression(text.replace("MARK", str(mark))))
    with pytest.raises(UnsupportedModel, match="size expressions"):
        read_pt2(path)
    assert not mark.exists()


def replaced(old: str, new: str):
    def change(data: bytes) -> bytes:
        assert old.encode() in data, f"the program does not hold {old}"
        return data.replace(old.encode(), new.encode())

    return change


@pytest.mark.parametrize(
    "target",
    [
        "torch.hub.load",
        "torch.ops.aten.__class__",
        "torch.os.system",
        "_operator.attrgetter",
        "math.__loader__",
        "#x:y",
        "torch.ops.higher_order.triton_kernel_wrapper_mutation",
    ],
)
def test_operators_that_are_none_are_refused(saved: Path, tmp_path: Path, target: str) -> None:
    path = changed(saved, tmp_path, replaced("torch.ops.aten.linear.default", target))
    with pytest.raises(UnsupportedModel, match="operators of torch"):
        read_pt2(path)


def test_trees_that_import_modules_are_refused(saved: Path, tmp_path: Path) -> None:
    def change(data: bytes) -> bytes:
        program = json.loads(data)
        context = '{"default_factory_module": "this"}'
        tree = '[1, {"type": "collections.defaultdict", "context": ' + context + ', "children_spec": []}]'
        program["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = tree
        return json.dumps(program).encode()

    with pytest.raises(UnsupportedModel, match="tuples, lists and dicts"):
        read_pt2(changed(saved, tmp_path, change))


def test_guards_are_not_executed(saved: Path, tmp_path: Path) -> None:
    def change(data: bytes) -> bytes:
        program = json.loads(data)
        program["guards_code"] = [f"open({str(tmp_path / 'mark')!r}, 'w')"]
        return json.dumps(program).encode()

    model = import_unrestricted(changed(saved, tmp_path, change), {})
    model.engine({"x": np.ones((2, 4), np.float32)})
    assert not (tmp_path / "mark").exists()


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_pickles_are_not_read(saved: Path, tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "mark"))
    import_unrestricted(changed(saved, tmp_path, lambda _: bomb, ending="sample_inputs/model.pt"), {})
    config = "data/weights/model_weights_config.json"
    with pytest.raises(UnsupportedModel, match="pickled object"):
        read_pt2(changed(saved, tmp_path, replaced('"use_pickle": false', '"use_pickle": true'), ending=config))
    assert not (tmp_path / "mark").exists()


def test_tensors_beyond_their_bytes_are_refused(saved: Path, tmp_path: Path) -> None:
    config = "data/weights/model_weights_config.json"
    path = changed(saved, tmp_path, replaced('{"as_int": 4}', '{"as_int": 400000}'), ending=config)
    with pytest.raises(UnsupportedModel, match="larger than its"):
        read_pt2(path)


@pytest.mark.parametrize("cut", [0, 1, 30, 500, 4000])
def test_truncated_files_are_refused(saved: Path, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cut.pt2"
    path.write_bytes(saved.read_bytes()[:cut])
    with pytest.raises(UnsupportedModel, match="saved by torch.export.save"):
        read_pt2(path)


def test_flipped_bytes_end_in_one_sentence_or_the_same_program(saved: Path, tmp_path: Path) -> None:
    whole = saved.read_bytes()
    random = np.random.default_rng(0)
    for _ in range(40):
        data = bytearray(whole)
        data[int(random.integers(len(data)))] ^= 1 << int(random.integers(8))
        path = tmp_path / "flipped.pt2"
        path.write_bytes(bytes(data))
        try:
            read_pt2(path)
        except UnsupportedModel as error:
            assert "\n" not in str(error)
