"""Builds that are kept: an unchanged module is not compiled again, a changed one is, damage and limits are met."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from graphs import small_model
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import halo_tvm
from halo_tvm import build as building
from halo_tvm import code_generation
from halo_tvm.compiler import compile_model
from halo_tvm.config import CompileConfig
from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.models.builder import ModelBuilder
from halo_tvm.object_cache import ObjectCache
from halo_tvm.runtime import load
from halo_tvm.targets import resolve

KEY, OTHER, THIRD = "a" * 64, "b" * 64, "c" * 64


def doubled_plus(constant: float) -> ImportedModel:
    """x + x + constant, a model of one kernel; the constant is in its code."""

    def body(m: ModelBuilder) -> dict[str, relax.Expr]:
        x = m.inputs["x"]
        return {"y": m.emit(relax.op.add(relax.op.add(x, x), relax.const(constant, "float32")))}

    return small_model((InputSpec("x", (4, 8), "float32"),), body)


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tvm.IRModule]:
    """The modules that code was generated for, with a cache of this test's own."""
    modules: list[tvm.IRModule] = []
    build = relax.build

    def counted(mod: tvm.IRModule, **options: object) -> object:
        modules.append(mod)
        return build(mod, **options)

    monkeypatch.setattr(building.relax, "build", counted)
    monkeypatch.setenv("HALO_TVM_HOME", str(tmp_path / "home"))
    return modules


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[..., tuple[bytes, bool, str]]:
    """Compiles a model; its library, whether it was kept, and what the verb prints."""

    def run(model: ImportedModel, **options: object) -> tuple[bytes, bool, str]:
        output = tmp_path / f"{len(list(tmp_path.iterdir()))}.halo"
        result = compile_model(CompileConfig(model="", output=str(output), threads=1, **options), model)
        x = np.ones((4, 8), np.float32)
        assert load(output)(x=x)[0, 0] in (3.0, 4.0)
        return (output / "model.so").read_bytes(), result.from_cache, str(result)

    return run


def test_only_what_changed_is_built(generated: list, compiled: Callable, tmp_path: Path) -> None:
    first, cached, printed = compiled(doubled_plus(1.0))
    assert (len(generated), cached, "earlier build" in printed) == (1, False, False)
    second, cached, printed = compiled(doubled_plus(1.0))
    assert (len(generated), cached, "library from an earlier build" in printed) == (1, True, True)
    assert second == first

    assert not compiled(doubled_plus(2.0))[1], "another constant is another library"
    assert not compiled(doubled_plus(1.0), disable=("plan_memory",), cache=False)[1]
    assert not compiled(doubled_plus(1.0), cache=False)[1]
    assert len(generated) == 4

    for entry in (tmp_path / "home" / "builds").iterdir():
        entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    assert not compiled(doubled_plus(1.0))[1], "a damaged entry is built again"
    assert compiled(doubled_plus(1.0))[1], "and kept again"
    assert len(generated) == 5


@pytest.mark.slow
def test_equal_builds_have_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, and in another process with another hash seed and other folders: built again, and from the first's builds.

    With more sizes to compute than one: TVM writes them in the order of their addresses.
    """
    file = tmp_path / "net.onnx"
    onnx.save(open_net(), file)
    monkeypatch.setenv("HALO_TVM_HOME", str(tmp_path / "home"))
    for name in ("first", "second", "third", "other"):
        (tmp_path / name).mkdir()
    first = compile_model(CompileConfig(str(file), output=str(tmp_path / "first" / "net.halo"), threads=1))
    code = """
import sys
from halo_tvm.compiler import compile_model
from halo_tvm.config import CompileConfig
for name, cache in (("second", False), ("third", True)):
    print(compile_model(CompileConfig(sys.argv[1], output=sys.argv[2] + f"/{name}/net.halo", threads=1, cache=cache)))
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(halo_tvm.__file__).parents[1])}
    environment |= {"PYTHONHASHSEED": "77", "TMPDIR": str(tmp_path / "other")}
    said = subprocess.run(
        [sys.executable, "-c", code, str(file), str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert said.stdout.count("library from an earlier build") == 1, said.stdout + said.stderr
    files = sorted(path.name for path in first.path.iterdir())
    assert {"manifest.json", "model.so", "params.bin", "reference.npz"} <= set(files)
    for other in ("second", "third"):
        assert sorted(path.name for path in (tmp_path / other / "net.halo").iterdir()) == files
        for name in files:
            assert (tmp_path / other / "net.halo" / name).read_bytes() == (first.path / name).read_bytes(), name


def open_net() -> onnx.ModelProto:
    """Convolutions, hard swishes, a pool, a mean and a classifier, of open batch, height and width."""
    rng = np.random.default_rng(0)
    shapes = {"kernel": (8, 3, 3, 3), "shift": (8,), "head": (5, 8)} | {f"d{i}": (8, 1, 3, 3) for i in range(4)}
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    weights += [numpy_helper.from_array(np.float32(value), f"{value}") for value in (0, 3, 6)]
    node = helper.make_node
    swished = [
        [
            node("Conv", [f"s{i}" if i else "p", f"d{i}"], [f"t{i}"], group=8, pads=[1] * 4, strides=[2 - i % 2, 1]),
            node("Add", [f"t{i}", "3"], [f"u{i}"]),
            node("Clip", [f"u{i}", "0", "6"], [f"v{i}"]),
            node("Mul", [f"t{i}", f"v{i}"], [f"w{i}"]),
            node("Div", [f"w{i}", "6"], [f"s{i + 1}"]),
        ]
        for i in range(4)
    ]
    nodes = [
        node("Conv", ["x", "kernel", "shift"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("ReduceMean", ["p"], ["mean"], axes=[1]),
        *itertools.chain(*swished),
        node("GlobalAveragePool", ["s4"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "head"], ["l"], transB=1),
        node("Softmax", ["l"], ["y"]),
    ]
    values = {"x": ["n", 3, "h", "w"], "y": ["n", 5], "mean": ["n", 1, "h2", "w2"]}
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in values.items()]
    graph = helper.make_graph(nodes, "net", infos[:1], infos[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_code_of_another_target_compiler_or_option_is_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = building.lowering(plan_memory=False)(doubled_plus(1.0).mod)
    host = resolve("cpu", cores=1)
    keys = {building._key(mod, host), building._key(mod, resolve("c", cores=1))}
    assert building._key(mod, host) in keys, "the same question has the same answer"
    monkeypatch.setattr(building, "code_versions", lambda: ("another TVM",))
    keys.add(building._key(mod, host))
    monkeypatch.setattr(code_generation, "BUILD_OPTIONS", {})
    keys.add(building._key(mod, host))
    assert len(keys) == 4


def test_the_longest_unused_goes_first(tmp_path: Path) -> None:
    library = tmp_path / "model.so"
    cache = ObjectCache(tmp_path / "builds", limit=2 * (1000 + 32))
    for age, key in ((30, KEY), (20, OTHER)):
        library.write_bytes(key[:1].encode() * 1000)
        cache.keep(key, library)
        os.utime(cache.directory / key, (1e9 - age, 1e9 - age))
    assert cache.fetch(KEY, tmp_path / "out"), "now used later than the other"
    assert (tmp_path / "out").read_bytes() == b"a" * 1000
    cache.keep(THIRD, library)
    assert {path.name for path in cache.directory.iterdir()} == {KEY, THIRD}
    library.write_bytes(b"d" * 3000)
    cache.keep(OTHER, library)
    assert {path.name for path in cache.directory.iterdir()} == {KEY, THIRD}, "larger than the limit: not kept"


def test_a_directory_is_not_listed_for_every_small_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, looked = tmp_path / "model.so", []
    library.write_bytes(bytes(1000))
    evict = ObjectCache._evict
    monkeypatch.setattr(ObjectCache, "_evict", lambda self: (looked.append(self.directory), evict(self)))
    for at in range(300):
        ObjectCache(tmp_path / "builds", limit=200_000).keep(f"{at:064}", library)
    assert len(looked) == 1 + 299 // 4, "the first time, then after a 64th of the limit"
    assert sum(path.stat().st_size for path in (tmp_path / "builds").iterdir()) <= 200_000 * (1 + 1 / 64)


def test_a_cache_that_cannot_be_written_is_a_miss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "builds").write_text("a file where a directory should be")
    library = tmp_path / "model.so"
    library.write_bytes(b"code")
    cache = ObjectCache(tmp_path / "builds")
    cache.keep(KEY, library)
    assert "not kept" in caplog.text
    assert not cache.fetch(KEY, tmp_path / "out") and not (tmp_path / "out").exists()


def test_processes_share_a_directory(tmp_path: Path) -> None:
    """Four writers that evict each other's entries: readers see whole libraries or none, and nobody fails."""
    code = """
import logging, pathlib, sys
from halo_tvm.object_cache import ObjectCache
folder, me = pathlib.Path(sys.argv[1]), sys.argv[2]
cache, library, out = ObjectCache(folder / "builds", limit=100_000), folder / f"{me}.so", folder / f"{me}.out"
logging.disable()
for turn in range(40):
    library.write_bytes(bytes([turn % 8]) * 20_000)
    cache.keep(f"key{turn % 8}", library)
    if cache.fetch(f"key{(turn + 3) % 8}", out):
        assert out.read_bytes() == bytes([(turn + 3) % 8]) * 20_000
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(halo_tvm.__file__).parents[1])}
    command = [sys.executable, "-c", code, str(tmp_path)]
    running = [subprocess.Popen([*command, str(me)], env=environment) for me in range(4)]
    assert [process.wait(timeout=120) for process in running] == [0] * 4
    assert sum(path.stat().st_size for path in (tmp_path / "builds").iterdir()) <= 100_000
