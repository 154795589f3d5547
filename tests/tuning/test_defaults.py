"""What a run does first: the defaults of its tasks."""

import io

import landscape
import toy_rules
from landscape import FakeLab

from halo_tvm.lookup import fingerprint_of
from halo_tvm.tuning.options import TuneOptions
from halo_tvm.tuning.progress import Progress
from halo_tvm.tuning.search.efforts import effort_named
from halo_tvm.tuning.task import Tasks
from halo_tvm.tuning.tuner import Tuner


class Asked(FakeLab):
    """Writes down what is asked for, in order."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def prepare(self, tasks):
        self.asked.append([task.key for task in tasks])

    def open(self, task, *, compare=True):
        self.asked.append(task.key)
        return super().open(task, compare=compare)


def test_all_are_ordered_before_the_first_is_opened(tmp_path):
    tasks = tuple(landscape.task(f"task{i}", count=c) for i, c in enumerate((1, 5, 3)))
    target, lab = toy_rules.target(), Asked()
    options = TuneOptions(
        model="m",
        budget_s=1e9,
        effort=effort_named("quick"),
        directory=tmp_path,
        read=(),
        threads=2,
        memory_bytes=1 << 30,
        trials=1,
    )
    Tuner(Tasks(tasks, ()), target, fingerprint_of(target), options, Progress(3, 9.0, io.StringIO()), lab=lab).run()
    assert lab.asked[:4] == [["task1", "task2", "task0"], "task1", "task2", "task0"]
