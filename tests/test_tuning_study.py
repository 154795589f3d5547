"""scripts/tuning_study.py: what it makes of a search; measuring is the lab's."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from halo_tvm.records.log import commit
from halo_tvm.records.record import IMPROVED, MEASURED, Fingerprint, Record

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "tuning_study.py"
TARGET = Fingerprint("llvm", "x86_64", "avx2", ("avx2",), 2, 1, 1)


@pytest.fixture(scope="module")
def study():
    sys.path.insert(0, str(SCRIPT.parent))
    return importlib.import_module("tuning_study")


def text(n: int) -> str:
    return json.dumps({"n": n})


def search(start: str, trials: list) -> dict:
    return {"start": start, "starts": {"a": {"n": 0}, "b": {"n": 0}}, "trials": trials}


def test_only_a_faster_trial_takes_the_lead(study):
    one = search(
        "worst",
        [[2.0, "a", {"n": 2}, 0.9], [1.0, "a", {"n": 1}, 0.8], [3.0, "a", {"n": 3}, 0.7], [4.0, "b", {"n": 4}, 2.0]],
    )
    assert study.standing(one, "a") == [(0.0, text(0)), (1.0, text(1)), (2.0, text(2))]
    assert study.standing(search("default", one["trials"]), "a") == [(0.0, text(0))], "the default is 1"


def test_a_curve_takes_judged_speeds_and_all_tasks(study):
    one = search("worst", [[1.0, "a", {"n": 1}, 0.8], [2.0, "b", {"n": 2}, 0.5]])
    speeds = {"a": {text(0): 0.25, text(1): 1.0}, "b": {text(0): 1.0, text(2): 0.25}}
    times, qualities = study.curve(one, speeds)
    assert times == [0.0, 1.0, 2.0]
    assert qualities == pytest.approx([0.5, 1.0, 0.5]), "a lead that luck gave shows as a step down"


def record(workload: str, outcome: str) -> Record:
    return Record(workload, workload, "gemm", 1, {"n": 1}, outcome, TARGET.facts(), {}, speedup=1.1, speedup_low=1.05)


def test_a_neighbours_log_is_without_the_exact_workloads(study, tmp_path):
    log = tmp_path / "log"
    commit(log, TARGET, [record("own", IMPROVED), record("own", MEASURED), record("other", IMPROVED)])
    around, excluded = study.Study.neighbours(None, [SimpleNamespace(key="own")], log, tmp_path / "run")
    assert excluded == 1
    kept = [json.loads(line)["workload"] for path in around.glob("*/*.jsonl") for line in path.open()]
    assert kept == ["other"]
