"""MetaSchedule's search as a stage of the tuner: what it proposes, what it learns, and what is committed."""

import io
import signal
from statistics import median

import pytest
import toy_rules
import tvm
from test_search import at_random, prepared, reached

from halo_tvm.config import TuneConfig
from halo_tvm.lookup import fingerprint_of
from halo_tvm.records import TuningLog
from halo_tvm.records.record import IMPROVED
from halo_tvm.report import tuned as r
from halo_tvm.tuning.measure import protocol as p
from halo_tvm.tuning.model import options_of
from halo_tvm.tuning.progress import Progress
from halo_tvm.tuning.search.board import Board
from halo_tvm.tuning.search.metaschedule import MetaSchedule, stage
from halo_tvm.tuning.search.metaschedule.space import Space
from halo_tvm.tuning.task import tasks_of
from halo_tvm.tuning.tuner import Tuner

D = toy_rules.Decision
# 24 combinations of mode and lanes, of which a quarter do not exist. What a mode is called means nothing here.
MODES = ("plain", "vector", "slow", "wide", "narrow", "odd")
SPACE = tuple(D(mode, lanes) for i, mode in enumerate(MODES) for lanes in (1, 2, 3, 4) if i * lanes % 2 == 0)
BEST = D("narrow", 3)
DEFAULT = SPACE[0]


def speedup(decision: D) -> float:
    """The closer to BEST in each field, the faster."""
    cost = {d: 10.0 + 5 * abs(MODES.index(d.mode) - 4) + 3 * abs(d.lanes - 3) for d in (DEFAULT, decision)}
    return cost[DEFAULT] / cost[decision]


def searched(board: Board, seed: int = 0, batch: int = 4, fails: tuple[D, ...] = ()) -> tuple[list[D], MetaSchedule]:
    """Decisions in the order in which they are proposed, each measured before the next batch is asked for."""
    search, order = MetaSchedule(board.space, seed), []
    while some := search.propose(board, batch):
        order += some
        for decision in some:
            if decision in fails:
                board.fails(decision)
            else:
                board.measured(decision, speedup(decision), full=True)
    return order, search


def test_the_whole_space_is_proposed_and_nothing_else():
    assert Space(SPACE).product > len(SPACE), "some combinations must be no decision"
    board = Board(DEFAULT, SPACE)
    order, _ = searched(board, fails=(D("wide", 2),))
    assert sorted(order, key=str) == sorted(SPACE[1:], key=str)
    assert max(board.speedups, key=board.speedups.get) == BEST and D("wide", 2) not in board.speedups


def test_a_seed_repeats_a_search_and_another_one_does_not():
    orders = [searched(Board(DEFAULT, SPACE), seed)[0] for seed in (3, 3, 4)]
    assert orders[0] == orders[1] != orders[2]


def test_the_cost_model_learns_from_decisions_and_other_stages(monkeypatch):
    """Its own extractor would see one and the same loop nest. What was measured before is told, and not proposed."""
    monkeypatch.setattr(stage, "_BATCH", 8)
    monkeypatch.setattr(stage, "_WARM", 8)
    board = Board(DEFAULT, SPACE)
    known = SPACE[1:6]
    for decision in known:
        board.measured(decision, speedup(decision), full=True)
    order, search = searched(board)
    assert not set(order) & {DEFAULT, *known} and len(order) == len(SPACE) - 6
    assert search._strategy._model.data_size > len(order) - 8 and search._strategy._model.booster is not None


def test_nothing_new_is_asked_for_while_something_is_measured():
    board, search = Board(DEFAULT, SPACE), MetaSchedule(SPACE, 0)
    asked = search.propose(board, len(SPACE))
    for decision in asked:
        board.close(decision)
    assert search.propose(board, 4) == []
    board.reopen(asked[0])  # there was no time to race it
    assert search.propose(board, 4) == [asked[0]]
    for decision in asked:
        board.measured(decision, speedup(decision), full=True)
    assert not set(search.propose(board, 4)) & set(asked)


@pytest.mark.slow
def test_it_beats_chance_as_a_search_of_its_own():
    results = [reached(*prepared(stages=("metaschedule",), seed=seed), 96) for seed in range(3)]
    assert median(results) > median(at_random(96, seed) for seed in range(9)), results


def test_ctrl_c_within_tvm_comes_out_as_one():
    # Where tests run in the background of a shell, the signal is ignored from the start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), stage._interrupt_waits():
            signal.raise_signal(signal.SIGINT)
            reached_end = True
        assert reached_end and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_real_processes_find_and_commit_the_fast_one(monkeypatch, tmp_path):
    monkeypatch.setattr(toy_rules.Toy, "decisions", (D("slow", 1), D("plain", 1), D("decline", 1), D("wrong", 1)))
    target = toy_rules.target()
    tasks = tasks_of(tvm.IRModule({"f": toy_rules.function(1024)}), target, {"rows": (256, 512)})
    config = TuneConfig(model="toy", budget="120s", stages=("metaschedule",), log=str(tmp_path / "log"))
    fingerprint, progress = fingerprint_of(target), Progress(1, 120.0, io.StringIO())
    result = Tuner(tasks, target, fingerprint, options_of(config, target, ("toy_rules",)), progress).run()
    (task,) = result.tasks
    assert task.outcome == r.IMPROVED and task.decision == {"mode": "plain", "lanes": 1}, str(result)
    assert task.failures == {p.DECLINED: 1, p.WRONG_RESULT: 1} and task.stage == "metaschedule"
    record = TuningLog.open([tmp_path / "log"], fingerprint).best(task.key, "toy", 1)
    assert record is not None and dict(record.decision) == task.decision
    assert (record.outcome, record.stage, record.run) == (IMPROVED, "metaschedule", result.run)
