"""Loading and the executor's interface; numbers against float64 NumPy."""

from __future__ import annotations

import gc
import itertools
import os
import time
from pathlib import Path

import numpy as np
import pytest
import tiny

from halo_tvm.artifact import ParamHeader, TensorSpec, Variant, write_artifact
from halo_tvm.errors import ArtifactCorrupt, EnvironmentProblem, InputError, UnknownName, UsageError
from halo_tvm.runtime import Module, load

RNG = np.random.default_rng(1)


def inputs(batch: int = 3) -> dict[str, np.ndarray]:
    return {"x": RNG.standard_normal((batch, tiny.K), dtype=np.float32), "ids": RNG.integers(0, 100, batch)}


def expected(x: np.ndarray, seed: int = 0) -> np.ndarray:
    return np.maximum(x.astype(np.float64) @ tiny.weight(seed).astype(np.float64), 0)


@pytest.mark.parametrize("weights", ["map", "resident"])
@pytest.mark.parametrize("batch", [1, 2, 7, 16])
def test_numbers(artifact: Path, weights: str, batch: int) -> None:
    given = inputs(batch)
    with load(artifact, weights=weights) as module:
        y, x, ids = module(**given)
        np.testing.assert_allclose(y, expected(given["x"]), rtol=1e-5, atol=1e-4)
        np.testing.assert_array_equal(x, given["x"])
        np.testing.assert_array_equal(ids, given["ids"])
        half = module(given["x"], given["ids"], np.full((batch, 1), 0.5, np.float32))
        np.testing.assert_allclose(half[0], expected(given["x"]) / 2, rtol=1e-5, atol=1e-4)


def test_an_artifact_replaced_while_it_is_loaded_is_one_or_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compile puts the next artifact at the path after every system call of `load` that opens something."""
    given, path, opened = inputs(), tmp_path / "x.halo", os.open
    left = 0

    def replacing(*args: object, **options: object) -> int:
        nonlocal left
        descriptor = opened(*args, **options)
        left -= 1
        if left == 0:
            with monkeypatch.context() as patch:
                patch.setattr(os, "open", opened)
                tiny.write_tiny(path, seed=1, name="new")
        return descriptor

    monkeypatch.setattr(os, "open", replacing)
    for moment in range(1, 99):
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", opened)
            tiny.write_tiny(path)
        left = moment
        with load(path) as module:
            seed = ["tiny", "new"].index(module.manifest.name)
            np.testing.assert_allclose(module(**given)[0], expected(given["x"], seed), rtol=1e-5, atol=1e-4)
        if left > 0:
            break  # as many as there are
    assert moment > 5


def test_where_the_weights_lie(tmp_path: Path) -> None:
    path = tiny.write_tiny(tmp_path / "weights-here.halo")
    mapped = "weights-here.halo/params.bin"
    with load(path, weights="map"):
        lines = Path("/proc/self/smaps").read_text().splitlines()
        at = next(i for i, line in enumerate(lines) if mapped in line)
        assert lines[at].split()[1] == "rw-p"  # private: a write would not reach the file
        size, there = (next(int(x.split()[1]) for x in lines[at:] if x.startswith(f"{k}:")) for k in ("Size", "Rss"))
        assert there == size > 0  # a load under a mask would not bring it
    gc.collect()
    with load(path, weights="resident"):
        gc.collect()
        assert mapped not in Path("/proc/self/maps").read_text()


def test_graph_executor_interface(module: Module) -> None:
    given = inputs()
    module.set_input("x", given["x"])
    module.set_input(ids=given["ids"])
    module.run()
    assert module.num_outputs == 3
    assert [t.name for t in module.input_specs] == ["x", "ids", "scale"]
    np.testing.assert_allclose(module.get_output(0), expected(given["x"]), rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(module.get_output("ids_out"), given["ids"])
    module.run(x=np.zeros_like(given["x"]))
    np.testing.assert_array_equal(module.get_output("y"), 0)
    with pytest.raises(UnknownName, match="unknown output 'logits': known are ids_out, x_out, y"):
        module.get_output("logits")
    with pytest.raises(UsageError, match="expected an output from 0 to 2, found 3"):
        module.get_output(3)
    with pytest.raises(InputError, match="unknown input 'xx'.*did you mean 'x'"):
        module.set_input("xx", 0)


def test_get_output_before_run(artifact: Path) -> None:
    with load(artifact) as module, pytest.raises(UsageError, match="call run\\(\\) first"):
        module.get_output()


def test_outputs_outlive_later_runs_and_the_module(artifact: Path) -> None:
    module = load(artifact)
    given = [inputs() for _ in range(4)]
    results = [module(**g) for g in given]
    for g in given:
        g["x_before"] = g["x"].copy()
        g["x"][:] = np.nan  # an output that is an input handed through must not follow it
    module.close()
    del module
    gc.collect()
    for g, (y, x, _) in zip(given, results, strict=True):
        np.testing.assert_allclose(y, expected(g["x_before"]), rtol=1e-5, atol=1e-4)
        np.testing.assert_array_equal(x, g["x_before"])


def test_relative_path_and_another_working_directory(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(artifact.parent)
    module = load(artifact.name)
    monkeypatch.chdir("/")
    with module:
        given = inputs()
        np.testing.assert_allclose(module(**given)[0], expected(given["x"]), rtol=1e-5, atol=1e-4)


def test_an_artifact_replaced_at_the_same_path_is_the_new_one(tmp_path: Path) -> None:
    """Weights and, harder, the library: the dynamic loader knows libraries by path."""
    path = tiny.write_tiny(tmp_path / "t.halo")
    given = inputs()
    with load(path) as first:
        assert first.num_outputs == 3
        tiny.write_threads(path)
        with load(path) as second:
            assert second(np.zeros(64, np.int64)).shape == (64,)
        tiny.write_tiny(path, seed=5)
        with load(path) as third:
            np.testing.assert_allclose(third(**given)[0], expected(given["x"], seed=5), rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(first(**given)[0], expected(given["x"]), rtol=1e-5, atol=1e-4)


def test_a_changed_library_is_never_opened(tmp_path: Path) -> None:
    path = tiny.write_tiny(tmp_path / "t.halo")
    raw = bytearray((path / "model.so").read_bytes())
    raw[len(raw) // 2] ^= 1
    (path / "model.so").write_bytes(raw)
    before = Path("/proc/self/maps").read_text().count("model.so")
    with pytest.raises(ArtifactCorrupt, match="model.so: expected SHA-256"):
        load(path)
    assert Path("/proc/self/maps").read_text().count("model.so") == before


def test_a_host_without_the_isa_is_told_what_is_missing(tmp_path: Path) -> None:
    variants = (
        Variant("huge", ("amx_from_the_future", "zz"), (), "t", "model.so", "params.bin"),
        Variant("arm", (), ("not_this_machine",), "t", "model.so", "params.bin"),
    )
    path = tiny.write_tiny(tmp_path / "t.halo", variants=variants)
    with pytest.raises(
        EnvironmentProblem, match="huge needs amx_from_the_future, zz; arm is for not_this_machine"
    ) as caught:
        load(path)
    assert caught.value.exit_code == 5


def test_missing_parameters_and_functions(tmp_path: Path, artifact: Path) -> None:
    with pytest.raises(UnknownName, match="unknown function 'decode': known are main"):
        load(artifact, function="decode")
    path = tmp_path / "t.halo"
    other = np.zeros(3, np.float32)
    write_artifact(
        path,
        manifest=tiny.manifest(),
        library=tiny.library(),
        params_headers=[ParamHeader("v", other.shape, "float32")],
        params=[("v", other)],
    )
    with pytest.raises(ArtifactCorrupt, match="expected 1 parameters, found none called w"):
        load(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "disk"}, "weights: expected 'map' or 'resident', found 'disk'"),
        ({"threads": 0}, "threads: expected an integer from 1 to"),
        ({"threads": 10_000}, "threads: expected an integer from 1 to"),
    ],
)
def test_options_out_of_range(artifact: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(artifact, **options)  # type: ignore[arg-type]


def test_thread_count_precedence(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(artifact) as module:
        assert module.threads == len(os.sched_getaffinity(0))
    monkeypatch.setenv("HALO_TVM_NUM_THREADS", "1")
    with load(artifact) as module:
        assert module.threads == 1
    monkeypatch.setenv("HALO_TVM_NUM_THREADS", "many")
    with load(artifact, threads=1) as module:
        assert module.threads == 1
    with pytest.raises(UsageError, match="HALO_TVM_NUM_THREADS must be a positive number of threads, but is 'many'"):
        load(artifact)


def test_benchmark(module: Module) -> None:
    result = module.benchmark(number=2, repeat=5)
    assert len(result.samples) == 5 and result.number == 2
    assert 0 < result.p10_ms <= result.median_ms <= result.p90_ms
    assert len(module.benchmark(number=1, repeat=1, x=np.zeros((9, tiny.K), np.float32)).samples) == 1
    with pytest.raises(UsageError, match="number and repeat of at least 1"):
        module.benchmark(number=0)
    with pytest.raises(UnknownName, match="unknown dimension 'bach': known are batch; did you mean 'batch'"):
        module.benchmark(sizes={"bach": 1})


def test_example_inputs_have_the_typical_size_unless_told_otherwise(tmp_path: Path) -> None:
    path = tiny.write_tiny(tmp_path / "t.halo", source={"kind": "test", "typical": {"batch": 5, "other": 3}})
    with load(path) as module:
        assert list(module.example_inputs()) == ["x", "ids", "scale"]
        assert module.example_inputs()["x"].shape == (5, tiny.K)
        assert module.example_inputs(sizes={"batch": 2})["x"].shape == (2, tiny.K)
        assert module.example_inputs({"x": np.zeros((9, tiny.K), np.float32)})["ids"].shape == (9,)
        with pytest.raises(InputError, match="expected batch to be 2, as asked, found inputs in which it is 9"):
            module.example_inputs({"x": np.zeros((9, tiny.K), np.float32)}, sizes={"batch": 2})
        every = module.example_inputs(sizes={"batch": 2})
        with pytest.raises(InputError, match="expected batch to be 3, as asked, found inputs in which it is 2"):
            module.example_inputs(every, sizes={"batch": 3})


@pytest.mark.parametrize("typical", [{"batch": 99}, {"batch": "4"}, [4], None])
def test_a_typical_size_that_cannot_be_meant_is_ignored(tmp_path: Path, typical: object) -> None:
    path = tiny.write_tiny(tmp_path / "t.halo", source={"kind": "test", "typical": typical})
    with load(path) as module:
        assert module.example_inputs()["x"].shape == (1, tiny.K)


def test_profile_names_the_kernels(module: Module) -> None:
    table = module.profile(sizes={"batch": 4})
    calls = {name: count for name, count, _ in table}
    assert calls["matmul"] == calls["relu"] == calls["multiply"] == 1
    times = [time_us for *_, time_us in table]
    assert times == sorted(times, reverse=True) and times[-1] > 0


def test_no_time_is_in_two_rows_of_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that calls others has its own time: on a clock that ticks when read, no tick is counted twice."""
    from tvm import relax

    x, y = (relax.Var(name, relax.TensorType((4,), "float32")) for name in "xy")
    builder = relax.BlockBuilder()
    with builder.function("twice", [y]):
        builder.emit_func_output(builder.emit(relax.op.exp(builder.emit(relax.op.nn.relu(y)))))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.Call(builder.get().get_global_var("twice"), [x])))
    relax.build(builder.get(), target="llvm").export_library(str(tmp_path / "l.so"))
    spec = tiny.FunctionSpec(inputs=(TensorSpec("x", (4,), "float32"),), outputs=(TensorSpec("y", (4,), "float32"),))
    variant = Variant("any", (), (), "llvm", "model.so")
    manifest = tiny.manifest(functions={"main": spec}, variants=(variant,))
    write_artifact(tmp_path / "t.halo", manifest=manifest, library=tmp_path / "l.so")
    ticks = itertools.count(1)
    with load(tmp_path / "t.halo", threads=1) as module:
        monkeypatch.setattr(time, "perf_counter_ns", lambda: 1000 * next(ticks))
        table = module.profile()
    monkeypatch.undo()
    times = {name: us for name, _, us in table}
    assert {"twice", "relu", "tir_exp"} <= set(times)
    assert 0 < sum(times.values()) < next(ticks)


def test_profile_of_a_graph_in_machine_code_says_why_not(tmp_path: Path) -> None:
    from tvm import relax

    x = relax.Var("x", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.nn.relu(x))
        builder.emit_func_output(y)
    relax.build(builder.get(), target="llvm", exec_mode="compiled").export_library(str(tmp_path / "l.so"))
    spec = tiny.FunctionSpec(inputs=(TensorSpec("x", (4,), "float32"),), outputs=(TensorSpec("y", (4,), "float32"),))
    variant = Variant("any", (), (), "llvm", "model.so")
    manifest = tiny.manifest(functions={"main": spec}, variants=(variant,))
    write_artifact(tmp_path / "t.halo", manifest=manifest, library=tmp_path / "l.so")
    with load(tmp_path / "t.halo") as module:
        np.testing.assert_array_equal(module(np.float32([-1, 0, 1, 2])), [0, 0, 1, 2])
        with pytest.raises(EnvironmentProblem, match="expected a library whose graph is bytecode"):
            module.profile()


def test_weights_do_not_follow_an_output(tmp_path: Path) -> None:
    """A model that returns a weight must not let the caller change it."""
    import tvm
    from tvm import relax

    x = relax.Var("x", relax.TensorType((1,), "float32"))
    w = relax.Var("w", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w], attrs={"num_input": 1}):
        builder.emit_func_output(relax.Tuple([x, w]))
    relax.build(tvm.IRModule(builder.get().functions), target="llvm").export_library(str(tmp_path / "l.so"))
    spec = tiny.FunctionSpec(
        inputs=(TensorSpec("x", (1,), "float32"),),
        outputs=(TensorSpec("x_out", (1,), "float32"), TensorSpec("w_out", (4,), "float32")),
        params=("w",),
    )
    write_artifact(
        tmp_path / "t.halo",
        manifest=tiny.manifest(functions={"main": spec}),
        library=tmp_path / "l.so",
        params_headers=[ParamHeader("w", (4,), "float32")],
        params=[("w", np.arange(4, dtype=np.float32))],
    )
    with load(tmp_path / "t.halo") as module:
        module(np.zeros(1, np.float32))[1][:] = 9
        np.testing.assert_array_equal(module(np.zeros(1, np.float32))[1], np.arange(4))


def test_bfloat16_weights_and_outputs(tmp_path: Path) -> None:
    import ml_dtypes
    from tvm import relax

    x = relax.Var("x", relax.TensorType((2, 3), "bfloat16"))
    w = relax.Var("w", relax.TensorType((2, 3), "bfloat16"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w], attrs={"num_input": 1}):
        with builder.dataflow():
            y = builder.emit_output(relax.op.add(x, w))
        builder.emit_func_output(y)
    relax.build(builder.get(), target="llvm").export_library(str(tmp_path / "l.so"))
    spec = tiny.FunctionSpec(
        inputs=(TensorSpec("x", (2, 3), "bfloat16"),), outputs=(TensorSpec("y", (2, 3), "bfloat16"),), params=("w",)
    )
    value = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    write_artifact(
        tmp_path / "t.halo",
        manifest=tiny.manifest(functions={"main": spec}),
        library=tmp_path / "l.so",
        params_headers=[ParamHeader("w", (2, 3), "bfloat16")],
        params=[("w", value)],
    )
    with load(tmp_path / "t.halo") as module:
        y = module(value)
        assert y.dtype == value.dtype
        np.testing.assert_array_equal(y.astype(np.float32), 2 * value.astype(np.float32))
        torch = pytest.importorskip("torch")
        y = module(torch.arange(6).reshape(2, 3).to(torch.bfloat16))
        np.testing.assert_array_equal(y.astype(np.float32), 2 * value.astype(np.float32))
