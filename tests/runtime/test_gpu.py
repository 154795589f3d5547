"""Artifacts for a GPU through TVM's CUDA runtime, over a driver that is none: copies, waits, graphs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import fake_gpu
import numpy as np
import pytest
import tvm
from checkpoints import tiny_llama
from tvm import relax

from halo_tvm.artifact import Variant, read_manifest
from halo_tvm.build import can_capture
from halo_tvm.compiler import compile_model
from halo_tvm.config import CompileConfig
from halo_tvm.errors import EnvironmentProblem
from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.models import FAMILIES
from halo_tvm.models.builder import RandomWeights
from halo_tvm.models.gpt2 import gpt2
from halo_tvm.params import ParamSource, ParamTable
from halo_tvm.runtime import host, load
from halo_tvm.targets import resolve

ROOT = Path(__file__).parents[2]
K, N = 8, 16
# What a child begins with: `fake` is the driver, `since()` what it counted since it was last asked.
HEAD = """
import json, sys
import numpy as np
sys.path[:0] = ["{root}", "{here}"]
from fake_gpu import counts
from halo_tvm.runtime import load
before = dict.fromkeys(counts(fake), 0)
def since():
    global before
    now, old = counts(fake), before
    before = now
    return {{name: now[name] - old[name] for name in now}}
"""


def model(batch: int | str) -> ImportedModel:
    """relu(x @ w), then three times y -> softmax(y + y * s); and x as it came."""
    rows = batch if isinstance(batch, int) else tvm.tirx.Var(batch, "int64")
    x = relax.Var("x", relax.TensorType((rows, K), "float32"))
    w = relax.Var("w", relax.TensorType((K, N), "float32"))
    s = relax.Var("s", relax.TensorType((N,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, s], attrs={"num_input": 1, "halo.params": ["w", "s"]}):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.relu(relax.op.matmul(x, w)))
            for _ in range(3):
                y = builder.emit(relax.op.nn.softmax(relax.op.add(y, relax.op.multiply(y, s))))
            out = builder.emit_output(relax.op.multiply(y, relax.const(np.float32(2))))
        builder.emit_func_output(relax.Tuple([out, x]))
    params = ParamTable()
    for name, shape in (("w", (K, N)), ("s", (N,))):
        values = np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32)
        params.add_source(name, ParamSource(shape, "float32", lambda values=values: values))
    return ImportedModel(
        name="tiny",
        mod=builder.get(),
        params=params,
        inputs=(InputSpec("x", (batch, K), "float32", None, None),),
        outputs=("y", "x_out"),
        ranges={} if isinstance(batch, int) else {batch: (1, 8)},
        source={"kind": "test"},
        typical={},
        report={},
    )


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = fake_gpu.build(tmp_path_factory.mktemp("driver"))
    if folder is None:
        pytest.skip("no C compiler: install gcc")
    return folder


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with a size that varies, one without and without a graph, one that is captured; and all of their kernels."""
    folder = tmp_path_factory.mktemp("gpu")
    with pytest.MonkeyPatch.context() as patch:
        pretended = fake_gpu.Pretended(patch)
        for name, batch, disable in (("symbolic", "batch", ()), ("plain", 3, ("cuda_graph",)), ("graph", 3, ())):
            config = CompileConfig(
                model="x",
                target="cuda:sm_80",
                precision="fp32",
                output=str(folder / f"{name}.halo"),
                disable=disable,
                validate=False,
            )
            compile_model(config, model(batch))
        pretended.save(folder / "kernels.json")
    return folder


def child(driver: Path, artifacts: Path, code: str) -> list[object]:
    """What `code` hands to print, as JSON, one value a line."""
    script = artifacts / "child.py"
    script.write_text(HEAD.format(root=ROOT, here=Path(__file__).parent) + code)
    command = [sys.executable, fake_gpu.__file__, str(driver), str(artifacts / "kernels.json"), str(script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=140, cwd=artifacts, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_runs_are_right_and_allocate_once(driver: Path, artifacts: Path) -> None:
    code = """
from halo_tvm.runtime.validation import validate_artifact
for name in ("symbolic", "plain", "graph"):
    print(json.dumps(validate_artifact(name + ".halo")["passed"]))
with load("plain.halo") as module:
    x = module.example_inputs()["x"]
    module(x)
    module(x + 1)
    since()
    y, same = module(x)
    print(json.dumps([since(), bool((same == x).all())]))
    module.benchmark(number=2, repeat=2)
    print(json.dumps([name for name, calls, us in module.profile()]))
    print(json.dumps(len(module.trace(rounds=1).calls)))
"""
    *passed, (run, same), profile, calls = child(driver, artifacts, code)
    assert passed == [True, True, True] and same
    # one input goes up and two outputs come down, out of pinned memory, on streams of their own; nothing is allocated
    assert (run["copies"], run["own_stream_copies"], run["unpinned_copies"]) == (3, 3, 0)
    assert (run["mallocs"], run["pinned"], run["graphs"]) == (0, 0, 0)
    assert 0 < run["launches"] <= len(profile) <= calls


@pytest.mark.slow
def test_a_static_step_is_one_graph_from_the_second_run_on(driver: Path, artifacts: Path) -> None:
    code = """
with load("plain.halo") as module:
    inputs = [module.example_inputs(seed=i) for i in range(3)]
    expected = [module(**x)[0] for x in inputs]
    since()
    module(**inputs[0])
    print(json.dumps(since()))
with load("graph.halo") as module:
    found = [module(**inputs[0])[0]]
    first = since()
    found += [module(**x)[0] for x in inputs[1:]]
    second = since()
    print(json.dumps([first, second, bool(all((a == b).all() for a, b in zip(expected, found)))]))
    print(json.dumps([name for name, calls, us in module.profile()]))
    print(json.dumps([call.function for call in module.trace(rounds=2).calls]))
"""
    plain, (first, later, equal), profile, traced = child(driver, artifacts, code)
    assert equal
    assert (first["graphs"], later["graphs"], later["graph_launches"]) == (1, 0, 2)
    # a launch of each run is left beside the graph: what reads the input, what writes the result
    assert 0 < later["launches"] < 2 * plain["launches"]
    assert any("cuda_graph" in name for name in profile) and any("cuda_graph" in name for name in traced)


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of fixed sizes whose kernels meet in memory: rounded rows, and parts of attention."""
    sizes = {"layers": 1, "hidden": 32, "heads": 2, "vocabulary": 24, "feed_forward": 32, "positions": 16}
    llama = {"kv_heads": 1, "head_dim": 16, "tied": True, "query_key_norm": "head"}
    folder = tmp_path_factory.mktemp("workspaces")
    with pytest.MonkeyPatch.context() as patch:
        pretended = fake_gpu.Pretended(patch)
        for family, config, shape in (
            ("gpt2", gpt2(**sizes), "1x9"),
            ("llama", tiny_llama(**sizes, **llama, eps=1e-5), "1x1"),
        ):
            built = FAMILIES[family].build(family, config, RandomWeights(0), {})
            path = str(folder / f"{family}.halo")
            shapes = (f"input_ids={shape}",)
            options = CompileConfig(model="x", target="cuda:sm_80", shape=shapes, output=path, validate=False)
            compile_model(options, built)
        pretended.save(folder / "kernels.json")
    return folder


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.slow
def test_workspaces_are_in_the_graph(driver: Path, workspaces: Path, family: str) -> None:
    code = f"""
from halo_tvm.runtime.validation import validate_artifact
print(json.dumps(validate_artifact("{family}.halo")["passed"]))
with load("{family}.halo") as module:
    x = module.example_inputs()
    expected = module(**x)[0]  # captures
    module(**module.example_inputs(seed=1))
    since()
    again = module(**x)[0]
    print(json.dumps([since(), bool((again == expected).all())]))
"""
    build = read_manifest(workspaces / f"{family}.halo").reports["build"]
    assert build["cuda_graph"] and build["planned_bytes"] < build["unplanned_bytes"]
    passed, (run, equal) = child(driver, workspaces, code)
    assert passed and equal
    assert (run["mallocs"], run["graphs"], run["graph_launches"]) == (0, 0, 1)


@pytest.mark.slow
def test_queued_runs_keep_their_inputs_apart(driver: Path, artifacts: Path) -> None:
    """Nothing happens on the fake device before it is waited for: a buffer that is taken too early shows."""
    code = """
with load("symbolic.halo") as module:
    inputs = [module.example_inputs(sizes={"batch": 1 + i % 4}, seed=i)["x"] for i in range(6)]
    expected = [module(x) for x in inputs]
    pending = [module.run_async(x) for x in inputs]
    print(json.dumps([bool((p.result()[0] == e[0]).all() and (p.result()[1] == x).all())
                      for p, e, x in zip(pending, expected, inputs)]))
    since()
    for p in [module.run_async(x) for x in inputs]:
        p.result()
    print(json.dumps(since()))
"""
    equal, again = child(driver, artifacts, code)
    assert equal == [True] * 6
    assert (again["mallocs"], again["pinned"], again["unpinned_copies"]) == (0, 0, 0)


CAPTURES = """
import threading, time
fake.fake_slow_captures(200000)
"""


@pytest.mark.slow
def test_what_is_queued_during_the_first_run_waits_for_its_capture(driver: Path, artifacts: Path) -> None:
    """The fake device refuses what a capture forbids, and then the capture, as a driver does."""
    code = (
        CAPTURES
        + """
with load("graph.halo") as module:
    inputs = [module.example_inputs(seed=i)["x"] for i in range(6)]
    pending = []
    for x in inputs:
        pending.append(module.run_async(x))
        time.sleep(0.03)
    found = [p.result()[0] for p in pending]
    print(json.dumps([bool((module(x)[0] == y).all()) for x, y in zip(inputs, found)]))
    print(json.dumps(since()["graphs"]))
"""
    )
    assert child(driver, artifacts, code) == [[True] * 6, 1]


@pytest.mark.slow
def test_another_modules_runs_wait_for_a_capture(driver: Path, artifacts: Path) -> None:
    code = (
        CAPTURES
        + """
with load("plain.halo") as other, load("graph.halo") as module:
    x, done, failed = module.example_inputs()["x"], threading.Event(), []
    expected = other(x)[0]
    def run():
        while not done.is_set():
            try:
                failed.append(not bool((other(x)[0] == expected).all()))
            except Exception as error:
                failed.append(str(error))
                return
    thread = threading.Thread(target=run)
    thread.start()
    try:
        print(json.dumps(bool((module(x)[0] == expected).all())))
    finally:
        done.set()
        thread.join()
    print(json.dumps([bool(failed), [f for f in failed if f]]))
"""
    )
    assert child(driver, artifacts, code) == [True, [True, []]]


@pytest.mark.slow
def test_memory_that_is_not_there_and_faults_are_told(driver: Path, artifacts: Path) -> None:
    code = """
from halo_tvm.errors import EnvironmentProblem
def told(work):
    try:
        work()
    except EnvironmentProblem as error:
        print(json.dumps(str(error)), flush=True)
fake.fake_no_memory(1)
told(lambda: load("plain.halo"))
fake.fake_no_memory(0)
module = load("plain.halo")
x = module.example_inputs()["x"]
fake.fake_no_memory(1)
told(lambda: module(x))
held = sys.getrefcount(module._session.device)
told(lambda: module.benchmark(sizes={}, number=1, repeat=1))
assert sys.getrefcount(module._session.device) == held, "without room nothing is lost, and nothing kept for good"
fake.fake_no_memory(0)
module(x)
fake.fake_fault(700)
told(lambda: module(x))
told(lambda: module(x))
module.close()  # a lost GPU gives no memory back: nothing asks for that
"""
    loaded, sent, timed, *faults = child(driver, artifacts, code)
    assert timed.startswith("weights or inputs of 0.0 MiB were expected to fit")
    assert loaded.startswith("weights or inputs of 0.0 MiB were expected to fit") and "8.0 GiB of the GPU" in loaded
    assert sent.startswith("inputs of 0.0 MiB were expected to fit")
    assert len(faults) == 2 and all("(error 700)" in text and "start another" in text for text in faults)


@pytest.mark.slow
def test_a_missing_wait_shows(driver: Path, artifacts: Path) -> None:
    """Each of the two orders between streams, left out, gives other numbers on the fake device."""
    code = """
with load("plain.halo") as module:
    x, device = module.example_inputs()["x"], module._session.device
    expected, order = module(x + 1)[0], device._order
    for left_out in (0, 1):  # inputs before kernels, kernels before outputs
        calls = []
        def some(*arguments):
            calls.append(arguments)
            if len(calls) - 1 != left_out:
                order(*arguments)
        device._order = order
        module(x)
        device._order = some
        print(json.dumps(bool((module(x + 1)[0] == expected).all())))
        device._order = order
        print(json.dumps(bool((module(x + 1)[0] == expected).all())))
"""
    assert child(driver, artifacts, code) == [False, True, False, True]


def test_a_graph_is_in_the_library_of_static_sizes_alone() -> None:
    target = resolve("cuda:sm_80", precision="fp32")
    assert can_capture(model(3).mod, target) and not can_capture(model("batch").mod, target)
    assert not can_capture(model(3).mod, resolve("cpu"))


def test_the_manifest_says_whether_there_is_a_graph(artifacts: Path) -> None:
    found = {
        name: read_manifest(artifacts / f"{name}.halo").reports["build"]["cuda_graph"]
        for name in ("symbolic", "plain", "graph")
    }
    assert found == {"symbolic": False, "plain": False, "graph": True}


def test_no_gpu_is_said(artifacts: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="sm_80 needs such a GPU, or a later .*, and .*; compile") as error:
        load(artifacts / "graph.halo")
    # what is missing, and the step to take
    assert "was expected, but" in str(error.value) and "none is here" not in str(error.value)


@pytest.mark.parametrize(("gpu", "taken"), [("sm_90", "sm_90"), ("sm_86", "sm_80"), ("", "avx2")])
def test_a_gpu_goes_before_a_cpu(gpu: str, taken: str) -> None:
    variants = (
        Variant("avx2", ("avx2",), ("x86_64",), "t", "a.so"),
        *(Variant(isa, (host.GPU_FLAG,), ("x86_64",), "t", "g.so", None, "fatbin") for isa in ("sm_80", "sm_90")),
    )
    assert host.choose_variant(variants, machine="x86_64", flags=frozenset({"avx2"}), gpu=gpu).isa == taken
