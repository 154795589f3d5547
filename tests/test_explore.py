"""The Python interface for researchers: tasks, loop nests, measuring, committing, rules of a cell, pictures."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tvm import s_tir, te, tirx

from halo_tvm import explore
from halo_tvm.ceilings import HostProfile
from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig
from halo_tvm.errors import EnvironmentProblem, MissingPackage, UnknownName, UsageError
from halo_tvm.explore import _bench, _builds, _cells, _measuring, _nest, _roofline
from halo_tvm.explore._estimates import Estimate, Estimates
from halo_tvm.explore._fusion import Fusion
from halo_tvm.explore._measuring import Measurements
from halo_tvm.explore._roofline import Roofline
from halo_tvm.explore._table import Table
from halo_tvm.explore._tasks import Tasks
from halo_tvm.phases import lower, schedule
from halo_tvm.targets import Target, read_host, resolve
from halo_tvm.tir_schedules import RULES, Rule

WIDTH = 64
LAYERS = 2


@pytest.fixture(scope="module")
def model() -> object:
    return explore.builtin("mlp", layers=LAYERS, width=WIDTH)


@pytest.fixture(scope="module")
def task(model: object) -> explore.Task:
    return explore.tasks(model, target="x86:avx2", threads=2)[0]


@pytest.fixture
def rules() -> Iterator[None]:
    """Rules that a test defines are gone afterwards."""
    before, modules = dict(RULES), dict(_cells._modules)
    yield
    RULES.clear()
    RULES.update(before)
    _cells._modules.clear()
    _cells._modules.update(modules)


# ---- tasks ----


def test_importing_costs_nothing() -> None:
    code = "import sys, halo_tvm; explore = halo_tvm.explore; dir(explore); sys.exit('tvm' in sys.modules)"
    root = Path(__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], timeout=60, cwd=root).returncode == 0


def test_every_name_is_there() -> None:
    for name in explore.__all__:
        assert getattr(explore, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = explore.nothing


@pytest.mark.parametrize("kind", [Estimates, Fusion, Measurements, Roofline, Tasks])
def test_what_is_a_table_shows_as_one(kind: type) -> None:
    assert (kind.__repr__, kind._repr_html_) == (Table.__repr__, Table._repr_html_)


def test_tasks_of_a_model(model: object) -> None:
    found = explore.tasks(model, target="x86:avx2", threads=2)
    assert [t.rule.name for t in found] == ["gemm"]
    text, page = repr(found), found._repr_html_()
    assert "1 tasks" in text and found[0].name in text and found[0].key in text
    assert "<table>" in page and found[0].key in page
    assert found.find("linear") is found[0] is found.find("gemm")
    with pytest.raises(UnknownName, match="unknown task 'softmax'"):
        found.find("softmax")


def test_a_decision_is_made_by_fields(task: explore.Task) -> None:
    assert task.calls == LAYERS and task.space[0] == task.default
    assert set(task.fields) == {"mr", "unroll", "prefetch", "block_rows", "balance", "split"}
    changed = task.decide(mr=2)
    assert changed == replace(task.default, mr=2)
    assert task.describe(changed) == "mr=2" and task.describe(task.default) == "default"
    with pytest.raises(UnknownName, match="unknown field of a decision of gemm 'rows'"):
        task.decide(rows=2)
    assert "values in the space" in task._repr_html_()


def test_sizes_are_checked(task: explore.Task) -> None:
    assert task.dims == ("batch",)
    assert task.at([(4,), (4,), (9,)]).sizes == ((4,), (9,))
    for wrong in ([], [()], [(0,)], [(1, 2)]):
        with pytest.raises(UsageError, match="a positive number for each dimension of \\(batch\\)"):
            task.at(wrong)


def test_names_that_are_not_there(task: explore.Task) -> None:
    with pytest.raises(UnknownName, match="unknown schedule rule 'gemmm'.*did you mean 'gemm'"):
        task.with_rule("gemmm")
    with pytest.raises(UsageError, match="but flash_attention declines it: .*: choose another task"):
        task.with_rule("flash_attention")
    with pytest.raises(UnknownName, match="unknown model family 'gpt'"):
        explore.builtin("gpt")
    with pytest.raises(UnknownName, match="unknown size of gpt2 'depth'"):
        explore.builtin("gpt2", depth=2)


def test_html_is_escaped() -> None:
    from halo_tvm.explore._table import as_html

    assert "<b>" not in as_html(["<b>"], [["<b>"]], "<b>")


# ---- loop nests and code ----

NEST = """\
parallel i_0 in (m + 3) // 4
  for i_1 in 4
    for j_0_init in 2
      vectorized 8: block C_init [SS] where i_0 * 4 + i_1 < m: C = 0
    for k_0 in 8
      unrolled 2
        for j_0 in 2
          vectorized 8: block C_update [SSR] where i_0 * 4 + i_1 < m: C = C + A * B"""


def matmul() -> tirx.PrimFunc:
    m = tirx.Var("m", "int64")
    a, b = te.placeholder((m, 16), name="A"), te.placeholder((16, 16), name="B")
    k = te.reduce_axis((0, 16), name="k")
    return te.create_prim_func([a, b, te.compute((m, 16), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")])


def test_nest_golden() -> None:
    sch = s_tir.Schedule(matmul())
    block = sch.get_sblock("C")
    i, j, k = sch.get_loops(block)
    i0, i1 = sch.split(i, [None, 4])
    j0, j1 = sch.split(j, [None, 8])
    k0, k1 = sch.split(k, [None, 2])
    sch.reorder(i0, i1, k0, k1, j0, j1)
    sch.parallel(i0)
    sch.unroll(k1)
    sch.vectorize(j1)
    sch.decompose_reduction(block, k0)
    func = sch.mod["main"]
    text = _nest.nest_text(func)
    assert text == NEST, text
    assert _nest.loops_of(func)["parallel"] == 1


def test_nest_counts_what_repeats(task: explore.Task) -> None:
    text = str(explore.show(task, task.decide(mr=4, unroll=2)))
    assert text.splitlines()[1].startswith("# gemm: mr=4, unroll=2; loops: 1 parallel, ")
    assert "parallel i_0 in" in text and "more of this shape" in text and "x prefetch()" in text
    assert len(text.splitlines()) < 50 < len(str(explore.show(task, task.default, script=True)).splitlines())
    assert repr(explore.show(task)) == str(explore.show(task))
    assert "block linear [SSR]" in explore.show(task)


def test_a_choice_of_what_reads_alike_is_no_choice() -> None:
    x = te.placeholder((8,), name="x")

    def text(compute: Callable[[tirx.Var], tirx.Expr]) -> str:
        return _nest.nest_text(te.create_prim_func([x, te.compute((4,), compute, name="y")]))

    assert "y = (v_i + 1) * 3 * x" in text(lambda i: tirx.Select(i < 2, i + 1, i + 1).astype("float32") * 3 * x[i])
    assert "select(v_i < 2, x, x)" in text(lambda i: tirx.if_then_else(i < 2, x[i], x[i + 4])), "of other elements"


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["a_1 = x_1 + 1", "a_2 = x_2 + 1", "b = a_1"], ["2 x a = x + 1", "b = a_1"]),
        (["k_1 = p", "s = k_1", "k_2 = p", "s = k_2"], ["2 times", "  k = p", "  s = k"]),
        (["c = exp2(a)", "c = exp(a)"], ["c = exp2(a)", "c = exp(a)"]),
        (["w_n48 = 0", "w_n48 = 0"], ["2 x w_n48 = 0"]),
    ],
)
def test_lines_are_merged(lines: list[str], text: list[str]) -> None:
    assert list(_nest._render(_nest._merged(iter(map(_nest._line, lines))), 0)) == text


def test_declined_decisions_are_refused(task: explore.Task) -> None:
    with pytest.raises(UsageError, match="but it declines unroll=3: unroll 3 does not divide .*: change that field"):
        explore.show(task, task.decide(unroll=3))
    with pytest.raises(UsageError, match="expected a decision of a schedule rule, found 7"):
        explore.build(task, 7)


def test_inner_loop(task: explore.Task) -> None:
    built = explore.build(task)
    lanes, d = task.target.lanes_f32, task.default
    nr = int(task.func.params[1].ty.shape[-1])
    assert built.inner_loop["fma"] == d.mr * d.unroll * nr // lanes
    assert built.inner_loop["prefetch"] == d.prefetch and not built.inner_loop.get("spill")
    assert "96 fma" in repr(built) or f"{built.inner_loop['fma']} fma" in repr(built)
    assert _builds.inner_loops("a:\n ret\n") == []


# ---- estimates, work, ceilings, fusion ----


@dataclass(frozen=True)
class Nothing:
    field: int = 0


def test_estimates_are_sorted(task: explore.Task) -> None:
    found = explore.estimate(task, sizes=[(32,)])
    assert len(found) == len(task.space)
    scores = [row.score for row in found]
    assert scores == sorted(scores) and found.best.score == scores[0] == pytest.approx(found.best.us[0])
    assert "768 predictions" in repr(found) or f"{len(task.space)} predictions" in repr(found)
    with pytest.raises(UsageError, match="expected a decision that was estimated"):
        found.of(task.decide(mr=1, unroll=16))


def test_a_rule_without_a_model(task: explore.Task, rules: None) -> None:
    class NoModel(Rule):
        name = "no_model"
        Decision = Nothing

        def default(self, func: tirx.PrimFunc, target: Target) -> Nothing:
            return Nothing()

    with pytest.raises(UsageError, match="no_model has no estimate for .*: give the rule an estimate, or measure"):
        explore.estimate(task.with_rule(NoModel))


def test_work_of_a_linear_layer(task: explore.Task) -> None:
    rows = 10
    chunks, panels, kc, nr = (int(n) for n in task.func.params[1].ty.shape)
    flops, moved = _roofline.work_of(task.func, (rows,))
    assert flops == rows * (2 * chunks * kc * panels * nr + 2 * WIDTH)
    assert moved == 4 * (2 * rows * WIDTH + chunks * panels * kc * nr + WIDTH)


def test_ceilings_are_those_that_doctor_kept(
    task: explore.Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALO_TVM_HOME", str(tmp_path))
    host, rates = read_host(), {"fma_gflops": 100.0, "l2_gbps": 400.0, "l3_gbps": 200.0, "dram_gbps": 20.0}
    HostProfile(host.model, host.machine, "avx2", "2026-01-01T00:00:00Z", {2: rates}).save(tmp_path / "host.json")
    found = explore.ceilings(task.target)
    assert found.gflops_at(1.0) == 20.0 and found.gflops_at(1.0, found.l2_gbps) == 100.0
    # Another number of threads has other ceilings: they would be measured.
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EnvironmentProblem, match="measuring them ended with CalledProcessError.*halo-tvm doctor"):
        explore.ceilings(replace(task.target, cores=1))


def test_fusion_of_a_model(model: object) -> None:
    found = explore.fusion(model, target="x86:avx2")
    assert {g.parts for g in found.taken} == {("linear", "relu")}
    # The tensor between a linear layer and its ReLU is neither written nor read.
    assert found.saved_bytes == LAYERS * 2 * found.sizes["batch"] * WIDTH * 4
    assert [k.parts for k in found.kernels] == [("linear", "relu")] * LAYERS
    assert [k.reads for k in found.kernels] == [(), (0,)]
    assert "linear + relu" in repr(found) and "MB saved" in found._repr_html_()


# ---- measuring and committing ----


@pytest.fixture(scope="module")
def here(model: object) -> Iterator[explore.Task]:
    """A task for this machine; the measuring processes end with the module."""
    yield explore.tasks(model, threads=2)[0]
    _bench.close()


@pytest.mark.slow
def test_measure(here: explore.Task, rules: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision, one that is declined, and decisions of a cell's rule: right, wrong, crashing."""
    # On a busy machine a first run of microseconds may look hopeless, twice.
    monkeypatch.setattr("halo_tvm.tuning.measure.requests._HOPELESS", 1e9)
    main = cell(RULE, monkeypatch)
    own = here.with_rule(main.Odd)
    right, wrong, crashing = own.space
    good, declined = here.decide(mr=2), here.decide(unroll=3)
    done: list[tuple[int, int]] = []
    found = explore.measure(
        here, [good, declined, right, wrong, crashing], sizes=[(3,)], on_progress=lambda *n: done.append(n)
    )
    assert done[-1] == (5, 5) and len(found) == 6
    assert found.default.speedup == 1.0 and len(found.default.us[0]) == found.rounds == 8
    row = found.of(good)
    assert row.us and row.low <= row.speedup <= row.high and row.fastest <= row.medians
    assert found.of(declined).why_not.startswith("declined: unroll 3 does not divide")
    assert found.of(right).us
    assert found.of(right).label == "odd: how=right"
    assert found.of(wrong).why_not.startswith("wrong_result")
    assert found.of(crashing).why_not.startswith("crash")
    assert found.of(wrong) in found.failed and found.of(good) not in found.failed
    text = repr(found)
    assert "us at 3" in text and "wrong_result" in text and "odd: how=crash" in text
    again = explore.compare(here, good, sizes=[(3,)], rounds=6)
    assert again.rounds == 6 and again.low <= again.speedup <= again.high and again.verdict in repr(again)
    with pytest.raises(UsageError, match="expected two decisions that run, but .*wrong_result.*: choose another"):
        explore.compare(here, wrong, sizes=[(3,)], rounds=6)


def test_an_interruption_ends_the_session(here: explore.Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what it was in the middle of, so the next measurement begins anew."""

    class Interrupted:
        ended = False

        def open(self, *_: object) -> float:
            raise KeyboardInterrupt

        def __exit__(self, *_: object) -> None:
            self.ended = True

    lab = Interrupted()
    monkeypatch.setattr(_bench, "_start", lambda kind: lab)
    _bench.close()
    for call in (lambda: explore.measure(here), lambda: explore.compare(here, here.decide(mr=2))):
        lab.ended = False
        with pytest.raises(KeyboardInterrupt):
            call()
        assert lab.ended and not _bench._open


def test_too_few_rounds(task: explore.Task) -> None:
    with pytest.raises(UsageError, match="expected at least 6 rounds, found 5"):
        explore.measure(task, rounds=5)
    with pytest.raises(UsageError, match="expected a decision of a schedule rule"):
        explore.measure(task, ["fast"])


def test_a_foreign_target_is_not_measured() -> None:
    arm = explore.tasks(explore.builtin("mlp", layers=1, width=WIDTH), target="arm")[0]
    with pytest.raises(EnvironmentProblem, match="measuring needs a target that runs here, but arm"):
        explore.measure(arm)


def confirmed(task: explore.Task, decision: object, speedup: float, rounds: int = 12) -> explore.Comparison:
    a = tuple((100.0 * speedup,) * rounds for _ in task.sizes)
    b = tuple((100.0,) * rounds for _ in task.sizes)
    return explore.Comparison(task, task.default, decision, a, b, speedup, speedup, speedup)


def test_commit_and_compile(model: object, task: explore.Task, tmp_path: Path) -> None:
    """What was committed is what the schedule phase of `compile` takes."""
    decision = task.decide(mr=2)
    path = explore.commit(task, decision, log=tmp_path, comparison=confirmed(task, decision, 1.5))
    assert path.parent.parent == tmp_path and path.is_file()
    compilation = Compilation.of(CompileConfig(model="mlp", log=str(tmp_path)), resolve("x86:avx2", cores=2))
    mod, _ = lower(model, compilation)
    _, report = schedule(mod, compilation)
    (entry,) = report.functions
    assert entry.origin == f"record {task.key} (1.50x)" and "mr=2" in entry.decision


def test_commit_refuses(task: explore.Task, tmp_path: Path, rules: None) -> None:
    decision = task.decide(mr=2)

    def refused(match: str, comparison: explore.Comparison, at: explore.Task = task, what: object = decision) -> None:
        with pytest.raises(UsageError, match=match):
            explore.commit(at, what, log=tmp_path, comparison=comparison)

    refused("faster than the default beyond doubt, but .mr=2. is 1.000x", confirmed(task, decision, 1.0))
    refused("faster than the default beyond doubt", replace(confirmed(task, decision, 1.2), low=0.99))
    refused("with at least 12 rounds, found 6 rounds", confirmed(task, decision, 1.5, rounds=6))
    refused("weights from memory.*cold=False", replace(confirmed(task, decision, 1.5), cold=False))
    refused("at all sizes of the task", confirmed(task.at([(4,)]), decision, 1.5))
    refused("expected a comparison of .mr=2. with the default", confirmed(task, task.decide(mr=3), 1.5))

    class Other(Rule):
        name = "other_rule"
        Decision = Nothing

        def default(self, func: tirx.PrimFunc, target: Target) -> Nothing:
            return Nothing()

    other = task.with_rule(Other)
    refused(
        "gemm, the rule that compile asks for .*make it a plug-in", confirmed(other, Nothing(), 2.0), other, Nothing()
    )
    assert not list(tmp_path.rglob("*.jsonl"))


# ---- rules of a cell ----

RULE = [
    "import os\nfrom dataclasses import dataclass",
    "from halo_tvm.tir_schedules import RULES, Rule\nWORDS = ('right', 'wrong', 'crash')",
    "def end():\n    os.kill(os.getpid(), 11)",
    "@dataclass(frozen=True)\nclass How:\n    how: str",
    """
@explore.register
class Odd(Rule):
    name = "odd"
    Decision = How

    def default(self, func, target):
        return How(WORDS[0])

    def space(self, func, target):
        return [How(word) for word in WORDS]

    def apply(self, func, target, decision):
        if decision.how == "crash":
            end()
        rule = RULES["fallback"]
        made = rule.apply(func, target, rule.default(func, target))
        return spoiled(made) if decision.how == "wrong" else made
""",
]
SPOILED = """
from tvm import tirx
def spoiled(func):
    return func.with_body(tirx.Evaluate(tirx.IntImm("int32", 0)))
"""


def cell(texts: list[str], monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A session of IPython as far as `register` can see: cells that ran in `__main__`, their texts in `In`."""
    main = types.ModuleType("__main__")
    main.explore = explore
    main.In = [""]
    monkeypatch.setitem(sys.modules, "__main__", main)
    for text in [SPOILED, *texts]:
        main.In.append(text)
        exec(compile(text, "<cell>", "exec"), vars(main))
    return main


def test_the_source_of_a_cell(rules: None, monkeypatch: pytest.MonkeyPatch) -> None:
    main = cell(RULE, monkeypatch)
    text = _cells.source_of(main.Odd)
    assert "@explore" not in text and text.index("class How") < text.index("class Odd")
    del RULES["odd"]
    module = types.ModuleType("elsewhere")
    monkeypatch.setitem(sys.modules, "elsewhere", module)
    exec(compile(text, "<module>", "exec"), vars(module))
    assert RULES["odd"].space(None, None) == [module.How(word) for word in main.WORDS]
    (name,) = [n for n in explore.registered() if n.startswith("halo_cell_odd_")]
    # Another version of the cell takes the first one's place.
    main.In.append(changed := RULE[-1].replace("WORDS[0]", "WORDS[1]"))
    RULES["odd"] = main.Odd()
    exec(compile(changed, "<cell>", "exec"), vars(main))
    assert RULES["odd"].default(None, None) == main.How("wrong")
    (other,) = [n for n in explore.registered() if n.startswith("halo_cell_odd_")]
    assert other != name


NAMES = """
import math
LIMIT = 4
BOUNDS = (math.inf, -math.inf, (1, frozenset({2})), ())
def helper(x):
    return x + LIMIT
alias = helper
class Uses:
    def reads(self):
        return LIMIT, BOUNDS, alias(1)
    def has_its_own(self):
        LIMIT = 3
        return [LIMIT for alias in range(2)]
    def BOUNDS(self):
        return None
"""


def test_names_of_a_cell_are_those_of_each_function(rules: None, monkeypatch: pytest.MonkeyPatch) -> None:
    main = cell([NAMES], monkeypatch)
    space: dict[str, object] = {"__name__": "elsewhere"}
    exec(_cells.source_of(main.Uses), space)
    written = space["Uses"]()
    assert written.reads() == main.Uses().reads() == (4, main.BOUNDS, 5)
    assert written.has_its_own() == [3, 3] and space["alias"] is space["helper"]


def test_what_a_cell_must_not_use(rules: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UsageError, match="expected every name that .* uses to be defined in this notebook, found 'gone'"
    ):
        cell([*RULE[:-1], RULE[-1].replace("end()", "gone()")], monkeypatch)


def test_values_that_cannot_be_written_down(rules: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="found 'CACHE', a dict: compute it inside the class"):
        cell([*RULE[:-1], "CACHE = {}", RULE[-1].replace("end()", "CACHE.clear()")], monkeypatch)
    with pytest.raises(UsageError, match="expected a subclass of halo_tvm.tir_schedules.Rule, found 3"):
        explore.register(3)


def test_a_rule_of_the_package_is_not_replaced(rules: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="schedule rule gemm is defined twice"):
        cell([*RULE[:-1], RULE[-1].replace('"odd"', '"gemm"')], monkeypatch)


# ---- landscapes and pictures ----


def handmade(task: explore.Task) -> tuple[explore.Measurements, Estimates]:
    """Four decisions whose predicted order is the measured one but for the last two."""
    decisions = [task.default, task.decide(mr=2), task.decide(mr=2, unroll=2), task.decide(unroll=2)]
    speed = [1.0, 1.5, 2.0, 0.5]
    at = task.at([(8,)])
    rows = [
        _measuring.Measured(d, task.describe(d), ((100 / s,) * 6,), s, 0.9 * s, 1.1 * s, s)
        for d, s in zip(decisions, speed)
    ]
    predicted = [80.0, 50.0, 60.0, 100.0]
    estimates = sorted((Estimate(d, "", (us,), us) for d, us in zip(decisions, predicted)), key=lambda e: e.score)
    return explore.Measurements(at, 6, tuple(rows)), Estimates(at, tuple(estimates))


def test_landscape(task: explore.Task) -> None:
    measured, estimates = handmade(task)
    order = explore.staged(measured, estimates, ranked=1)
    assert [row.speedup for row in order] == [1.5, 2.0, 0.5]
    assert explore.best_so_far(order) == (1.5, 2.0, 2.0)
    assert explore.best_so_far(order[2:]) == (1.0,)
    band = explore.at_random(measured)
    assert band.mean[-1] == band.low[-1] == band.high[-1] == 2.0 and band.low[0] == 1.0
    assert explore.rank_correlation(measured, estimates) == pytest.approx(0.8)
    assert measured.best.speedup == 2.0


def test_pictures(task: explore.Task, model: object) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    measured, estimates = handmade(task)
    plots = explore.plots
    ceilings = explore.Ceilings("a CPU", 2, 100.0, 400.0, 200.0, 20.0, "")
    point = _roofline.Point(task, (8,), 10**6, 10**5, 50.0)
    found = explore.fusion(model, target="x86:avx2")
    band = explore.at_random(measured)
    curve = explore.best_so_far(explore.staged(measured, estimates))
    labels = {
        plots.effects(measured).get_xlabel(): "speed-up",
        plots.predicted_against_measured(estimates, measured).get_xlabel(): "(us)",
        plots.best_so_far({"staged": curve}, band).get_xlabel(): "trials",
        plots.heat_map(measured, "unroll", "mr").get_ylabel(): "mr of the decision",
        plots.roofline(explore.Roofline(ceilings, (point,))).get_ylabel(): "GFLOP/s",
        plots.traffic(found).get_xlabel(): "MB",
    }
    assert all(part in label for label, part in labels.items())
    graph = plots.fusion_graph(found)
    assert [t.get_text() for t in graph.texts if t.get_text() in ("linear", "relu")] == ["linear", "relu"] * LAYERS
    matplotlib.pyplot.close("all")
    with pytest.raises(UsageError, match="expected a model in which something was fused, found none"):
        plots.traffic(replace(found, groups=()))


def test_pictures_need_matplotlib(task: explore.Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingPackage, match="a picture needs the package 'matplotlib'.*notebooks"):
        explore.plots.effects(handmade(task)[0])
