"""Measuring on a GPU: TVM's own CUDA runtime over a driver that is none, kernels emulated."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import fake_gpu_lab
import gpu_rules
import psutil
import pytest
import tvm
from rpc_farm import KEY, Farm, wait_for

from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig, TuneConfig
from halo_tvm.lookup import fingerprint_of
from halo_tvm.models import FAMILIES
from halo_tvm.models.builder import RandomWeights
from halo_tvm.phases import lower
from halo_tvm.records import TuningLog
from halo_tvm.report import tuned as r
from halo_tvm.targets import Answer, Gpu
from halo_tvm.tuning import place
from halo_tvm.tuning.measure import make_lab
from halo_tvm.tuning.measure import protocol as p
from halo_tvm.tuning.measure.lab import Failure, LabOptions
from halo_tvm.tuning.measure.rpc import RpcLab
from halo_tvm.tuning.model import tune_module
from halo_tvm.tuning.task import tasks_of

fake_gpu = fake_gpu_lab.fake_gpu
D = gpu_rules.Decision
MODULES = ("fake_gpu_lab", "gpu_rules")
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def no_candidate_is_hopeless(monkeypatch):
    """What one takes here on a busy machine says nothing of it."""
    monkeypatch.setattr("halo_tvm.tuning.measure.requests._HOPELESS", 1e9)


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """The GPU, for the processes that a test starts."""
    folder = fake_gpu.build(tmp_path_factory.mktemp("driver"))
    if folder is None:
        pytest.skip("no C compiler: install gcc")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(fake_gpu_lab.DRIVER, str(folder))
        patch.setenv(fake_gpu_lab.KERNELS, str(tmp_path_factory.mktemp("kernels")))
        yield folder


def options(**changes):
    return LabOptions(
        **{"threads": 2, "memory_bytes": 2 << 30, "modules": MODULES, "builders": 1, "timeout_s": 30.0, **changes}
    )


@pytest.fixture(scope="module")
def pool(driver):
    with make_lab(gpu_rules.TARGET, options(), seed=0, l3_bytes=0) as lab:
        yield lab


CLOCK = """
import sys
sys.path[:0] = {paths!r}
import ctypes, json, os
import fake_gpu_lab
kept = fake_gpu_lab.pretend_to_run()
import tvm
from halo_tvm.tuning.measure.gpu import GpuClock
driver = kept._cuda
driver.fake_done.restype = ctypes.c_char_p
clock = GpuClock()
tensors = [tvm.runtime.tensor([float(i)], device=tvm.cuda(0)) for i in range(3)]
called = []
def call(number):  # one copy within the GPU is a call's work
    called.append(number)
    driver.cudaMemcpyAsync(ctypes.c_void_p(tensors[0].data_ptr()), ctypes.c_void_p(tensors[1].data_ptr()), 4, 3, None)
clock._fill_us = 10.0  # as long as a launch may take: as many fills as launches go before
for warm in (False, True):
    called.clear(), driver.fake_done()
    us = clock.timed_us(call, [(1,), (2,), (3,)], warm=warm)
    print(json.dumps([us > 0, called, driver.fake_done().decode()]))
clock._fill_us = 1e6  # as of a GPU that had nothing to do
print(json.dumps(clock.time_us() == clock._fill_us))
driver.fake_lost(700)
try:
    clock.timed_us(call, [(1,)], warm=False)
except Exception as error:
    print(json.dumps([type(error).__name__, error.kind, str(error)]), flush=True)
os._exit(0)  # nothing can be freed any more
"""


@pytest.mark.slow
def test_the_clock_stands_between_fills_and_calls(driver):
    """F: a fill, E: an event, C: the call's work, in the order in which the GPU does them."""
    code = CLOCK.format(paths=[str(HERE), str(HERE.parents[1])])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    cold, warm, learnt, lost = map(json.loads, done.stdout.splitlines())
    # A first call of all; then nothing is in the caches, and no launch is waited for; or arguments are in the caches.
    assert cold == [True, [1, 1, 2, 3], "CFFFECCCE"]
    assert warm == [True, [1, 1, 1, 2, 3], "CFFFFCECCCE"]
    assert learnt, "what a fill takes is learnt as long as it gets less"
    assert lost[:2] == ["Failed", p.RUN_ERROR] and "says 'an error of the fake device' (error 700)" in lost[2]


@pytest.mark.slow
def test_candidates_are_checked_and_raced_in_turns(pool):
    assert pool.open(gpu_rules.task(64)) > 0
    good, wrong, other = pool.order([D("plain", 1), D("wrong"), D("plain", 2)])
    assert pool.take(good) > 0
    with pytest.raises(Failure, match="differs from") as caught:
        pool.take(wrong)
    assert (caught.value.kind, caught.value.blamed) == (p.WRONG_RESULT, wrong)
    assert pool.take(other) > 0
    samples = pool.race([p.DEFAULT_ID, good, other], size=0, rounds=3, default_us=1e4)
    assert set(samples) == {p.DEFAULT_ID, good, other} and all(len(us) == 3 for us in samples.values())
    assert min(map(min, samples.values())) > 0
    assert pool.drift() >= 0.0
    pool.final(good)


@pytest.mark.slow
def test_a_gpu_that_a_candidate_lost_is_another_process(pool):
    """What CUDA answers after a fault is that fault, whoever asks: it is blamed on the one who made it only."""
    pool.open(gpu_rules.task(72))
    before, runner = pool.restarts, pool.pids[-1]
    outside, good = pool.order([D("outside"), D("plain", 1)])
    with pytest.raises(Failure) as caught:
        pool.take(outside)
    assert (caught.value.kind, caught.value.blamed) == (p.RUN_ERROR, outside)
    assert pool.take(good) > 0
    assert pool.restarts == before + 1 and pool.pids[-1] != runner


@pytest.mark.slow
def test_a_gpu_that_is_lost_in_a_race_is_the_fault_of_whose_turn_it_was(pool):
    """Checks at other numbers of rows passed; those that are left race in another process."""
    pool.open(gpu_rules.task(64, rows=(2, 8)))
    outside, good = pool.order([D("outside_at_2"), D("plain", 1)])
    assert pool.take(outside) > 0 and pool.take(good) > 0
    before = pool.restarts
    with pytest.raises(Failure) as caught:
        pool.race([p.DEFAULT_ID, outside, good], size=0, rounds=2, default_us=1e4)
    assert (caught.value.kind, caught.value.blamed) == (p.RUN_ERROR, outside)
    assert len(pool.race([p.DEFAULT_ID, good], size=0, rounds=2, default_us=1e4)[good]) == 2
    assert pool.restarts == before + 1


@pytest.mark.slow
def test_a_models_functions_are_what_they_were(pool):
    """At the precision of GPUs linears round what they multiply, and attention does: that is no wrong result."""
    family = FAMILIES["gpt2"]
    config = family.from_huggingface(
        {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_inner": 64, "n_positions": 64, "vocab_size": 48}
    )
    model = family.build("tiny", config, RandomWeights(1), {"kind": "test"})
    module, _ = lower(model, Compilation.of(CompileConfig(model="x"), gpu_rules.TARGET))
    tasks = tasks_of(module, gpu_rules.TARGET, dict.fromkeys(model.ranges, (2, 8))).tasks
    rules = {task.rule.name for task in tasks}
    assert {"tensor_core_gemm", "flash_attention_gpu", "row_reduction_gpu"} <= rules
    for task in tasks:
        assert pool.open(task) > 0, task.readable


@pytest.mark.slow
def test_a_run_is_kept_and_found_again(driver, tmp_path, monkeypatch):
    """The whole of `tune` for a rule of ours: candidates built, checked, raced; trials in the log of that level."""
    monkeypatch.setattr(place, "can_run_here", lambda target: Answer(True))
    monkeypatch.setattr(place, "first_gpu", lambda: Gpu("", "sm_80", 78, 30 << 20))
    monkeypatch.setattr(place, "no_compiler", lambda arch: "")
    target, said = gpu_rules.TARGET, io.StringIO()
    config = TuneConfig(
        model="x", target=target.name, log=str(tmp_path), budget="10m", trials=3, effort="quick", seed=1
    )
    module = tvm.IRModule({"f": gpu_rules.function(64)})
    result = tune_module(module, target, config, {"rows": (2, 4)}, modules=MODULES, stream=said)
    (task,) = result.tasks
    assert task.rule == "elementwise_gpu" and task.outcome in (r.IMPROVED, r.KEPT) and not task.failures
    assert task.measured == 3 and min(task.default_us) > 0
    assert any("no task can end at its roofline: ceilings are measured on CPUs only" in note for note in result.notes)
    log = tmp_path / "cuda-gpu-sm_80"
    records = [json.loads(line) for file in log.glob("*.jsonl") for line in file.read_text().splitlines()]
    trials = [record for record in records if record["outcome"] != r.IMPROVED]
    assert len(trials) == 3 and {record["rule"] for record in records} == {"elementwise_gpu"}
    for record in records:
        assert min(us for samples in record["candidate_us"] for us in samples) > 0
        assert (record["target"]["isa"], record["target"]["cores"]) == ("sm_80", 78), "the GPU's, not this host's"
    best = TuningLog.open([tmp_path], fingerprint_of(target)).best(task.key, task.rule, records[0]["rule_version"])
    assert (best is not None) == (task.outcome == r.IMPROVED)


@pytest.fixture
def farm(driver, tmp_path):
    """A server on a machine whose driver has one GPU."""
    pytest.importorskip("tornado", reason="TVM's tracker needs tornado: install the extra rpc")
    (tmp_path / "sitecustomize.py").write_text("import fake_gpu_lab\nkept = fake_gpu_lab.pretend_to_run()\n")
    made = Farm(PYTHONPATH=os.pathsep.join([str(tmp_path), str(HERE), str(HERE.parents[1])]))
    try:
        made.grow(1)
        yield made
    finally:
        made.close()


@pytest.mark.slow
def test_a_gpu_of_another_machine(farm, monkeypatch):
    """Its level is what `cuda` means; candidates are timed by its own events; one that loses it ends the session."""
    monkeypatch.setattr(place, "no_compiler", lambda arch: "")
    asked = TuneConfig(model="x", target="cuda", rpc=farm.option, device_key=KEY)
    where = place.place_of(asked)
    assert where.target.name == "cuda:sm_80" and where.fingerprint == fingerprint_of(gpu_rules.TARGET)
    with RpcLab(where.target, options(), farm.address, KEY, seed=0, fingerprint=where.fingerprint) as lab:
        assert lab.device.gpu == Gpu("", "sm_80", 108, 40 << 20)
        assert lab.open(gpu_rules.task(64)) > 0
        good, wrong, outside, other = lab.order([D("plain", 1), D("wrong"), D("outside"), D("plain", 2)])
        assert lab.take(good) > 0
        kinds = []
        for candidate in (wrong, outside):
            with pytest.raises(Failure) as caught:
                lab.take(candidate)
            kinds.append((caught.value.kind, caught.value.blamed))
        assert kinds == [(p.WRONG_RESULT, wrong), (p.RUN_ERROR, outside)]
        assert lab.take(other) > 0, "the next session begins with a GPU that is whole"
        samples = lab.race([p.DEFAULT_ID, good, other], 0, 2, 1e4)
        assert all(len(us) == 2 and min(us) > 0 for us in samples.values()) and len(samples) == 3
    wait_for(lambda: not any(server.sessions() for server in farm.servers))
    assert psutil.Process(farm.servers[0].process.pid).is_running()
