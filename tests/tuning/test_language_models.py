"""A language model is tuned as it answers: its prompt once, its steps as often as an answer has tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoints import write_checkpoint

from halo_tvm.config import TuneConfig
from halo_tvm.errors import UnknownName
from halo_tvm.targets import resolve
from halo_tvm.tuning import tune_model
from halo_tvm.tuning.model import CALLS, imported_of, tasks_of_model
from halo_tvm.tuning.model_list import ListedModel
from halo_tvm.tuning.task import Tasks


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("tuned") / "llama", "llama"))


def tasks(model: str, **options: object) -> Tasks:
    config = TuneConfig(model=model, target="x86:avx2", **options)
    entry = ListedModel(model)
    return tasks_of_model(imported_of(entry, config), entry, resolve(config.target), config)[0]


def test_its_steps_are_tuned_as_often_as_they_run(llama: str) -> None:
    found = {task.readable: task.count for task in tasks(llama).tasks}
    (step,) = (count for name, count in found.items() if name.startswith("attention[1,1,"))
    (prompt,) = (count for name, count in found.items() if name.startswith("attention[1,tokens,"))
    assert (step, prompt) == (2 * CALLS["decode"], 2)
    assert not any("batch" in name for name in found), "main computes all positions of a batch: no answer calls it"


def test_functions_by_name(llama: str) -> None:
    names = " ".join(task.readable for task in tasks(llama, function=("main",)).tasks)
    assert "attention[batch," in names and "capacity" not in names
    assert any("slots" in t.readable for t in tasks(llama, slots=4).tasks)
    with pytest.raises(UnknownName, match="decoed"):
        tasks(llama, function=("decoed",))


def test_caches_are_those_of_the_precision(llama: str) -> None:
    assert any("/f16/" in t.readable for t in tasks(llama, kv="fp16", function=("decode",)).tasks)


@pytest.mark.slow
def test_products_in_groups_are_measured(llama: str, tmp_path: Path) -> None:
    """Their kernels round rows to bytes; the unscheduled function, which they are compared with, does not."""
    result = tune_model(
        TuneConfig(
            model=llama, target="x86:avx2", precision="int4", function=("decode",), trials=1, log=str(tmp_path / "log")
        )
    )
    assert not [task.note for task in result.tasks if "wrong" in task.note]
    assert any(task.outcome not in ("failed", "unreached") for task in result.tasks)
