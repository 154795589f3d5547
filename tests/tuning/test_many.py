"""Many models in one run: what fails stops nothing, what is shared is tuned once, what it came to is told by model."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import signal
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import toy_rules
import tvm

from halo_tvm import model_names
from halo_tvm.cli import main
from halo_tvm.config import TuneConfig
from halo_tvm.errors import EnvironmentProblem, NoValidTrial, UnsupportedModel, UsageError
from halo_tvm.models import PRESETS
from halo_tvm.models.gpt2 import gpt2
from halo_tvm.records import Size
from halo_tvm.report import schema
from halo_tvm.report import tuned as r
from halo_tvm.report.host import describe_host
from halo_tvm.targets.x86 import X86
from halo_tvm.tuning import many, tune_model
from halo_tvm.tuning import model as model_module
from halo_tvm.tuning.measure import rpc
from halo_tvm.tuning.measure.rpc import Device
from halo_tvm.tuning.model_list import ListedModel
from halo_tvm.tuning.task import Skipped, Task, Tasks, tasks_of

TINY = gpt2(layers=1, hidden=64, heads=2, vocabulary=160, positions=32, feed_forward=96)
DEEP = dataclasses.replace(TINY, layers=3)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two built-in models whose functions are the same, called 1 and 3 times."""
    family, _ = PRESETS["gpt2"]
    monkeypatch.setitem(PRESETS, "tiny", (family, TINY))
    monkeypatch.setitem(PRESETS, "deep", (family, DEEP))


class FakeTuner:
    """Improves every task by the factor two, or whatever `outcome` makes of it; measures nothing."""

    runs: list[Tasks] = []
    made: list[FakeTuner] = []
    outcome: Callable[[r.TaskResult], r.TaskResult] | None = None
    error: BaseException | None = None

    def __init__(self, tasks, target, fingerprint, options, progress, *, lab=None) -> None:
        self.tasks, self.options, self.target, self.fingerprint, self.lab = tasks, options, target, fingerprint, lab
        FakeTuner.made.append(self)

    def run(self) -> r.TuneResult:
        FakeTuner.runs.append(self.tasks)
        if FakeTuner.error is not None:
            raise FakeTuner.error
        return self.result

    @property
    def result(self) -> r.TuneResult:
        return r.TuneResult(
            self.options.model,
            self.target.key,
            describe_host(),
            str(self.options.directory),
            tuple(map(self._task, self.tasks.tasks)),
            budget_s=60.0,
            seconds=1.0,
            threads=2,
            run="r1",
        )

    @staticmethod
    def _task(task: Task) -> r.TaskResult:
        sizes = tuple(size.dims for size in task.sizes)
        default = tuple(100.0 * (i + 1) for i in range(len(sizes)))
        made = r.TaskResult(
            task.key,
            task.readable,
            task.rule.name,
            task.count,
            r.IMPROVED,
            sizes,
            default,
            tuple(us / 2 for us in default),
            {"mc": 1, "fast": True},
            2.0,
            1.9,
            2.1,
            5,
            {},
            1.0,
            "2x",
            stage="ranked",
            stages=(r.TaskStage("analytic", 1, 0, 0.1, 1.0, 1.0), r.TaskStage("ranked", 6, 2, 0.9, 1.0, 2.0)),
            ended="roofline",
            rank_correlation=0.8,
            roofline_us=default,
        )
        return made if FakeTuner.outcome is None else FakeTuner.outcome(made)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeTuner]:
    monkeypatch.setattr(model_module, "Tuner", FakeTuner)
    monkeypatch.setattr(FakeTuner, "runs", [])
    monkeypatch.setattr(FakeTuner, "made", [])
    monkeypatch.setattr(FakeTuner, "outcome", None)
    monkeypatch.setattr(FakeTuner, "error", None)
    return FakeTuner


def broken_onnx(folder: Path) -> str:
    path = folder / "broken.onnx"
    path.write_bytes(b"this is no protobuf")
    return str(path)


def tune(folder: Path, *models: str, **changes: object) -> r.TuneResult:
    return tune_model(TuneConfig(model=models, log=str(folder / "log"), **changes))


@pytest.mark.slow
def test_shared_tasks_are_tuned_once(tmp_path, tiny, fake) -> None:
    result = tune(tmp_path, "tiny", "deep")
    (run,) = fake.runs
    assert len({t.key for t in run.tasks}) == len(run.tasks) == len(result.tasks) > 3
    by_name = {m.model: m for m in result.models}
    one, three = by_name["tiny"], by_name["deep"]
    assert one.tasks == three.tasks == one.shared == three.shared == len(run.tasks)
    attention = next(t for t in result.tasks if "attention" in t.readable)
    assert attention.models == {"tiny": 1, "deep": 3} and attention.count == 4
    assert one.improved == one.tasks and one.speedup == pytest.approx(2.0) and result.exit_code == 0
    assert three.before_us > one.before_us and one.before_us == pytest.approx(2 * one.after_us)
    assert [t.count for t in run.tasks] == sorted((t.count for t in run.tasks), reverse=True)


@pytest.mark.slow
def test_models_that_fail_stop_nothing(tmp_path, tiny, fake, capsys) -> None:
    result = tune(tmp_path, "nosuch", broken_onnx(tmp_path), "tiny", str(tmp_path / "gone.onnx"))
    assert [(m.model.rpartition("/")[2], m.exit_code) for m in result.models] == [
        ("nosuch", 1),
        ("broken.onnx", 2),
        ("tiny", 0),
        ("gone.onnx", 1),
    ]
    assert result.exit_code == 2 and len(fake.runs) == 1 and result.improved
    said = capsys.readouterr()
    assert said.out == "" and "Traceback" not in said.err
    assert "tune: model 1/4: nosuch is left out: unknown model 'nosuch'" in said.err
    assert "model 3/4: tiny\n" in said.err


@pytest.mark.slow
def test_on_the_command_line(tmp_path, tiny, fake, capsys) -> None:
    path = tmp_path / "models.txt"
    path.write_text("# ours\ntiny weight=2\nbroken.onnx\n")
    broken_onnx(tmp_path)
    argv = ["tune", "--model", "deep", "--model-list", str(path), "--log", str(tmp_path / "log")]
    assert main(argv) == 2
    out = capsys.readouterr().out
    assert "3 models, 1 FAILED" in out and "FAILED with 2" in out and "broken.onnx FAILED: " in out
    assert f"next: halo-tvm compile --model MODEL --log {tmp_path}/log" in out
    assert "--precision" not in out
    assert f"records are in {tmp_path}/log" in out and "committed (ranked)" in out
    assert main([*argv, "--json", "-"]) == 2
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert [m["exit_code"] for m in data["models"]] == [0, 0, 2]
    attention = next(t for t in data["tasks"] if "attention" in t["readable"])
    assert attention["ended"] == "roofline" and attention["models"] == {"deep": 3, "tiny": 1}
    assert attention["count"] == 3 + 2 * 1, "weight=2 of tiny"
    found = schema.from_json(data)
    assert schema.to_json(found) == data and found.exit_code == 2
    assert [s.stage for s in found.stages] == ["analytic", "ranked"] and found.stages[1].winners > 0


@pytest.mark.slow
def test_all_models_failing_is_the_worst_of_them(tmp_path, fake, capsys) -> None:
    argv = ["tune", "--model", "nosuch", "--model", broken_onnx(tmp_path), "--log", str(tmp_path / "log")]
    assert main(argv) == 2
    assert fake.runs == [] and "2 models, 2 FAILED" in capsys.readouterr().out


def test_one_model_ends_as_it_always_did(tmp_path, tiny, fake, capsys) -> None:
    assert tune(tmp_path, "tiny", "tiny").models == ()
    with pytest.raises(UnsupportedModel):
        tune(tmp_path, broken_onnx(tmp_path))
    assert main(["tune", "--model", "nosuch", "--log", str(tmp_path / "log")]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.splitlines()[-1].startswith("halo-tvm: error: unknown model 'nosuch'")
    assert tune_model(TuneConfig(model="tiny", log=str(tmp_path / "log"))).model == "tiny"


@pytest.mark.slow
def test_no_valid_trial_is_told_by_model(tmp_path, tiny, fake, monkeypatch) -> None:
    monkeypatch.setattr(fake, "error", NoValidTrial("all of them failed"))
    result = tune(tmp_path, "tiny", "nosuch", "deep")
    assert [m.exit_code for m in result.models] == [4, 1, 4] and result.exit_code == 4
    assert result.models[0].failure == "all of them failed" and result.models[0].tasks > 3
    with pytest.raises(NoValidTrial):
        tune(tmp_path, "tiny")


@pytest.mark.slow
def test_one_model_without_a_valid_trial(tmp_path, tiny, fake, monkeypatch) -> None:
    """Only `wide` has functions of its own; all of its candidates crash."""
    monkeypatch.setitem(PRESETS, "wide", (PRESETS["gpt2"][0], dataclasses.replace(TINY, hidden=128, feed_forward=256)))

    def crash(task: r.TaskResult) -> r.TaskResult:
        if len([t for t in fake.runs[0].tasks if t.key == task.key and task.key not in narrow]) == 0:
            return task
        return dataclasses.replace(task, outcome=r.FAILED, measured=0, failures={"crash": 3}, speedup=1.0, note="dead")

    narrow: set[str] = set()
    tune(tmp_path, "tiny")
    narrow |= {t.key for t in fake.runs.pop().tasks}
    monkeypatch.setattr(fake, "outcome", crash)
    result = tune(tmp_path, "tiny", "wide")
    assert [(m.model, m.exit_code) for m in result.models] == [("tiny", 0), ("wide", 4)]
    assert "not a single candidate could be measured: dead" in result.models[1].failure


def test_weights_and_sizes_are_merged() -> None:
    mod = tvm.IRModule({"f": toy_rules.function(64), "g": toy_rules.function(128)})
    small = tasks_of(mod, toy_rules.target(), {"rows": (1, 8)})
    large = tasks_of(tvm.IRModule({"f": toy_rules.function(64)}), toy_rules.target(), {"rows": (8, 128)})
    skip = Skipped("odd", 2, "because")
    models = [
        many.Lowered("a", 3, Tasks(small.tasks, (skip,))),
        many.Lowered("b", 1, Tasks(large.tasks, (skip,))),
        many.Lowered("c", failure="no", exit_code=2),
    ]
    tasks = many.merged(models)
    shared, own = tasks.tasks
    assert (shared.count, own.count) == (4, 3) and tasks.skipped == (dataclasses.replace(skip, count=8),)
    sizes = {size.dims: size.weight for size in shared.sizes}
    assert sizes == pytest.approx({(1,): 3 / 8, (8,): 3 / 8 + 1 / 12, (32,): 1 / 12, (128,): 1 / 12})
    assert list(sizes) == sorted(sizes) and set(shared.checked) >= {*small.tasks[0].checked, *large.tasks[0].checked}
    assert many.merged(models[2:]) == Tasks((), ())


def test_merged_sizes_are_in_order_of_work() -> None:
    """The last one is where a candidate is first run, and has to be the heaviest."""
    (task,) = tasks_of(tvm.IRModule({"f": toy_rules.function(64)}), toy_rules.target(), {"rows": (1, 8)}).tasks
    dims = [((8, 1),), ((1, 512), (2, 3))]
    both = [
        many.Lowered(name, 1, Tasks((dataclasses.replace(task, sizes=tuple(Size(d, 1 / len(at)) for d in at)),), ()))
        for name, at in zip("ab", dims)
    ]
    (shared,) = many.merged(both).tasks
    assert [size.dims for size in shared.sizes] == [(2, 3), (8, 1), (1, 512)]


def test_weights_of_sizes_count_in_the_summary(fake) -> None:
    mod = tvm.IRModule({"f": toy_rules.function(64)})
    tasks = tasks_of(mod, toy_rules.target(), {"rows": (1, 8)})
    size_a, size_b = tasks.tasks[0].sizes
    heavy = dataclasses.replace(
        tasks.tasks[0], sizes=(dataclasses.replace(size_a, weight=0.9), dataclasses.replace(size_b, weight=0.1))
    )
    merged = Tasks((heavy,), ())
    options = model_module.options_of(TuneConfig(model=("x", "y")), toy_rules.target())
    result = fake(merged, toy_rules.target(), None, options, None).result
    summary = many.by_model(result, [many.Lowered("x", 1, merged)], merged, None).models[0]
    assert summary.before_us == pytest.approx(0.9 * 100 + 0.1 * 200)


@pytest.mark.slow
def test_a_bug_with_one_model_is_a_sentence(caplog) -> None:
    def lower(entry: ListedModel) -> tuple[Tasks, str]:
        if entry.model == "bad":
            raise RuntimeError("first\nsecond")
        return Tasks((), ()), "hash"

    said: list[str] = []
    good, bad = many.lower_each([ListedModel("good"), ListedModel("bad")], lower, said.append)
    assert good.failure == "" and bad.exit_code == 1
    assert "internal error: RuntimeError: first second" in bad.failure and len(said) == 3


def test_an_interrupt_that_became_an_error_ends_the_run() -> None:
    """TVM, and child processes of importers, make errors of their own out of Ctrl-C."""

    def lower(entry: ListedModel) -> tuple[Tasks, str]:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                pass
        except KeyboardInterrupt:
            raise UnsupportedModel("the worker ended") from None
        raise AssertionError("no interrupt came")

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            many.lower_each([ListedModel("a"), ListedModel("b")], lower, lambda line: None)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_no_model_stays_in_memory(tmp_path, tiny, fake, monkeypatch) -> None:
    """While the second model is imported, the first and its module are gone."""
    alive: list[weakref.ref] = []
    real = model_module.import_model

    def import_model(name, **options):
        assert [w() for w in alive] == [None] * len(alive)
        made = real(name, **options)
        alive.append(weakref.ref(made.params))
        return made

    monkeypatch.setattr(model_module, "import_model", import_model)
    tune(tmp_path, "tiny", "deep", "gpt2-none", "tiny")
    gc.collect()
    assert len(alive) == 2 and all(w() is None for w in alive)


@pytest.mark.slow
def test_the_interrupted_are_told_how_to_go_on(tmp_path, tiny, fake, monkeypatch, capsys) -> None:
    monkeypatch.setattr(fake, "error", KeyboardInterrupt())
    monkeypatch.setattr(model_names, "BUILT_IN", (*model_names.BUILT_IN, "tiny"))
    argv = ["tune", "--model", "tiny", "--model", "a b.onnx", "--budget", "3m", "--log", str(tmp_path / "l")]
    assert main(argv) == 130
    said = capsys.readouterr().err.splitlines()
    again = f"halo-tvm tune --model tiny --model 'a b.onnx' --budget 3m --log {tmp_path / 'l'} --resume"
    assert said[-2] == f"tune: to go on where this run was: {again}" and said[-1] == "halo-tvm: interrupted"


def test_what_cannot_be_measured_here_names_the_ways_forward() -> None:
    with pytest.raises(EnvironmentProblem, match="--rpc HOST:PORT --device-key KEY") as caught:
        tune_model(TuneConfig(model="mlp", target="cuda:sm_90"))
    assert caught.value.exit_code == 5 and "--build-only" in str(caught.value)
    with pytest.raises(EnvironmentProblem, match="arm.* start a tracker here and a server there.*--rpc HOST:PORT"):
        tune_model(TuneConfig(model="mlp", target="arm"))


DEVICE = Device(3, "x86_64", "other", X86.isas[0].requires, 1 << 15, 1 << 20, 1 << 24)


@pytest.mark.slow
def test_a_remote_device_decides_level_threads_and_fingerprint(tmp_path, tiny, fake, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(rpc, "device_behind", lambda address, key, gpu: asked.append((address, key)) or DEVICE)
    monkeypatch.setattr(rpc, "RpcLab", lambda *args, **options: (*args, options))
    remote = {"rpc": "farm:9190", "device_key": "board"}
    tune(tmp_path, "tiny", **remote, seed=7, cold_cache=False)
    (made,) = fake.made
    assert asked == [(("farm", 9190), "board")]
    assert (made.target.name, made.target.cores) == ("x86:avx2", 3)
    assert (made.fingerprint.cores, made.fingerprint.l3_bytes) == (3, 1 << 24)
    target, options, address, key, more = made.lab
    assert (target, address, key) == (made.target, ("farm", 9190), "board")
    assert more == {"seed": 7, "fingerprint": made.fingerprint}
    assert not options.cold_cache
    tune(tmp_path, "tiny", "deep", **remote, target="x86:avx2")
    assert fake.made[-1].lab is not None
    with pytest.raises(EnvironmentProblem, match="under the key board, but x86:avx512 needs CPU features"):
        tune(tmp_path, "tiny", **remote, target="x86:avx512")
    with pytest.raises(EnvironmentProblem, match="under the key board, but the device does not say that it has a GPU"):
        tune(tmp_path, "tiny", **remote, target="cuda:sm_90")
    with pytest.raises(UsageError, match="--threads 1 was given, but .* with 3 threads: start its server with"):
        tune(tmp_path, "tiny", **remote, threads=1)
    tune(tmp_path, "tiny", **remote, threads=3)
    monkeypatch.setattr(rpc, "device_behind", lambda address, key, gpu: dataclasses.replace(DEVICE, flags=frozenset()))
    for name in ("cpu", "native"):
        with pytest.raises(UsageError, match=f"--target {name} means .* start its server with `halo-tvm rpc server`"):
            tune(tmp_path, "tiny", **remote, target=name)
    tune(tmp_path, "tiny")
    assert fake.made[-1].lab is None


@pytest.mark.slow
def test_the_source_of_a_run(tmp_path, tiny, fake) -> None:
    """`--resume` must not go on with another version of a model."""
    for models, changes in ((("tiny",), {}), (("tiny",), {"seed": 1}), (("tiny", "deep"), {}), (("tiny",), {})):
        tune(tmp_path, *models, **changes)
    one, other, both, again = (made.options.source for made in fake.made)
    assert one == again and len({one, other, both}) == 3 and all(one for one in (one, other, both))


def test_options_that_need_each_other() -> None:
    with pytest.raises(UsageError, match="only --rpc was given: add --device-key"):
        TuneConfig(model="mlp", rpc="localhost:9190")
    with pytest.raises(UsageError, match="only --device-key was given: add --rpc"):
        TuneConfig(model="mlp", device_key="board")
    with pytest.raises(UsageError, match="unknown stage 'rank'.*did you mean 'ranked'"):
        TuneConfig(model="mlp", stages=("rank",))


def test_what_was_not_reached_is_not_called_measured(tmp_path, tiny) -> None:
    result = tune(tmp_path, "tiny", effort="none")
    assert "nothing was measured (nothing is measured at this effort)" in result.summary()
    assert "(interrupted before a task was finished)" in dataclasses.replace(result, interrupted=True).summary()


@pytest.mark.slow
def test_the_report_keeps_every_field(tmp_path, tiny, fake) -> None:
    result = tune(tmp_path, "tiny", "nosuch")
    report = dataclasses.replace(result, drift=0.02, rank_correlation=0.7, notes=("a profile was ignored",))
    assert schema.from_json(json.loads(json.dumps(schema.to_json(report)))) == report
    assert report.drift == 0.02 and report.rank_correlation == 0.7 and "a profile was ignored" in report.notes
    task = report.tasks[0]
    assert (task.stage, task.ended, task.rank_correlation) == ("ranked", "roofline", 0.8)
    assert [s.stage for s in task.stages] == ["analytic", "ranked"] and task.decision == {"mc": 1, "fast": True}
    assert [(s.stage, s.winners) for s in report.stages] == [("analytic", 0), ("ranked", len(report.tasks))]
    assert report.stages[1].saved_us == pytest.approx(sum(t.saved_us for t in report.tasks))
    assert report.models[1].failure.startswith("unknown model")
