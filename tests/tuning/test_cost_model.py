"""The learned model: what it learns, how fast it says so, and what it does with files it did not write."""

import dataclasses
import json
import math
import random

import landscape
import numpy as np
import pytest
import toy_rules
from landscape import DEFAULT, SPACE, FakeLab, share_of_best
from test_search import prepared, reached

from halo_tvm.lookup import fingerprint_of
from halo_tvm.records.decision import decision_to_plain
from halo_tvm.records.log import commit
from halo_tvm.tuning.budget import Clock
from halo_tvm.tuning.recording import Recorder
from halo_tvm.tuning.search import features, prepare
from halo_tvm.tuning.search.cost_model import CostModel, file_of, load
from halo_tvm.tuning.search.efforts import EFFORTS
from halo_tvm.tuning.search.features import Table
from halo_tvm.tuning.search.outcome import Trial
from halo_tvm.tuning.search.race import Samples
from halo_tvm.tuning.search.ranking import spearman
from halo_tvm.tuning.search.trees import Ensemble

MANY = dataclasses.replace(EFFORTS["full"], most=96, patience=50, epsilon=0.5)
ROWS = [features.of_decision(decision_to_plain(d)) for d in SPACE]
TRUTH = [math.log(share_of_best(d) / share_of_best(DEFAULT)) for d in SPACE]
TABLE = Table(ROWS)


def trained(count=100, seed=0, **more):
    model = CostModel("synthetic", 1, seed=seed, **more)
    for i in random.Random(seed).sample(range(len(SPACE)), count):
        model.add(ROWS[i], TRUTH[i], "here")
    model.fit("here")
    return model


def test_it_learns_the_order():
    assert spearman(trained(200).predict(TABLE), TRUTH) > 0.9
    assert spearman(trained(40).predict(TABLE), TRUTH) > 0.4
    assert trained(3).predict(TABLE) is None, "three rows are nothing to go by"


def test_rows_of_the_task_at_hand_weigh_more():
    model = CostModel("synthetic", 1)
    for row, _target in zip(ROWS[:40], TRUTH[:40]):
        model.add(row, 1.0, "elsewhere")
        model.add(row, -1.0, "here")
    model.fit("here")
    assert np.mean(model.predict(Table(ROWS[:40]))) < -0.3


def test_our_trees_predict_what_xgboost_predicts(monkeypatch):
    import xgboost

    boosters = []
    real = xgboost.train
    monkeypatch.setattr(xgboost, "train", lambda *a, **k: boosters.append(real(*a, **k)) or boosters[-1])
    model = CostModel("synthetic", 1)
    missing = [{k: v for k, v in row.items() if i % 3 or k != "decision.mr"} for i, row in enumerate(ROWS)]
    for row, target in zip(missing[::5], TRUTH[::5]):
        model.add(row, target, "here")
    model.fit("here")
    names = tuple(sorted({n for row in missing[::5] for n in row}))
    expected = boosters[0].predict(xgboost.DMatrix(features.matrix(missing, names)))
    assert np.abs(model.predict(Table(missing)) - expected).max() < 1e-5


def test_saved_and_read_back(tmp_path):
    path = tmp_path / "model.json"
    model = trained()
    model.save(path)
    assert json.loads(path.read_text())["schema"] == 1 and [p.name for p in tmp_path.iterdir()] == ["model.json"]
    ensemble, rows = load(path, "synthetic", 1)
    assert rows == 100 and spearman(ensemble.predict(TABLE.matrix(ensemble.names)), TRUTH) > 0.7
    # It starts the next run, which corrects it where its rows say otherwise.
    following = CostModel("synthetic", 1, prior=ensemble, prior_rows=rows)
    assert spearman(following.predict(TABLE), TRUTH) > 0.7
    for row, target in zip(ROWS[::10], TRUTH[::10]):
        following.add({**row, "new": 1.0}, -target, "here")
    following.fit("here")
    assert spearman(following.predict(TABLE), TRUTH) < -0.5
    following.save(path)
    again, rows = load(path, "synthetic", 1)
    assert rows == 200
    # Saving fits once more, every task's rows alike.
    assert np.abs(again.predict(TABLE.matrix(again.names)) - following.predict(TABLE)).max() < 1e-9


BODY = {
    "schema": 1,
    "rule": "synthetic",
    "rule_version": 1,
    "rows": 3,
    "features": ["a", "b"],
    "trees": [
        {
            "feature": [0, 0, 0],
            "threshold": [0.5, 0, 0],
            "left": [1, -1, -1],
            "right": [2, -1, -1],
            "default_left": [1, 0, 0],
            "value": [0, 1.0, 2.0],
        }
    ],
}


def damaged(**changes):
    tree = {**BODY["trees"][0], **{k: v for k, v in changes.items() if k in BODY["trees"][0]}}
    return {**BODY, "trees": [tree], **{k: v for k, v in changes.items() if k in BODY}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected JSON"),
        ("[1]", "no JSON object"),
        ("[" * 100_000, "expected JSON"),
        (json.dumps(BODY)[:-9], "expected JSON"),
        (damaged(schema=2), "schema"),
        (damaged(rule="other"), "of rule other"),
        (damaged(rule_version=2), "version 2"),
        (damaged(rows=-1), "rows"),
        (damaged(rows="3"), "rows"),
        (damaged(features=["a", "a"]), "distinct"),
        (damaged(features="ab"), "a list at features"),
        (damaged(trees={}), "a list at trees"),
        (damaged(trees=[[]]), r"an object at trees\[0\], found a list"),
        (damaged(left=[1, -1]), "as many"),
        (damaged(left=[0, -1, -1]), "no such children"),
        (damaged(left=[7, -1, -1]), "no such children"),
        (damaged(right=[-5, -1, -1]), "no such children"),
        (damaged(feature=[2, 0, 0]), "feature that there is not"),
        (damaged(feature=[-1, 0, 0]), "feature that there is not"),
        (damaged(feature=[True, 0, 0]), r"an integer at trees\[0\].feature\[0\], found a boolean"),
        (damaged(threshold=[math.inf, 0, 0]), "Infinity is no JSON number"),
        (damaged(threshold=[1e39, 0, 0]), "float32"),
        (damaged(value=[0, "1", 2]), "a number at"),
        (damaged(value=[0, 1e300, 2]), "at most 20"),
        (damaged(value=[0, 21.0, 2]), "at most 20"),
        (damaged(rows=1 << 30), "rows"),
        (damaged(**{name: [*values, *[0] * 30] for name, values in BODY["trees"][0].items()}), "nodes"),
        (damaged(left=[]), "nodes"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, text, why):
    path = tmp_path / "model.json"
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    with pytest.raises(ValueError, match=why):
        load(path, "synthetic", 1)


def test_the_body_above_is_a_model(tmp_path):
    values = Ensemble.from_plain(BODY).predict(np.array([[0.0, 0], [1.0, 0], [math.nan, 0]], dtype="float32"))
    assert list(values) == [1.0, 2.0, 1.0]


def test_a_damaged_file_is_noted_and_ignored(tmp_path):
    key = fingerprint_of(toy_rules.target()).key
    path = file_of(tmp_path, key, "synthetic")
    path.parent.mkdir(parents=True)
    path.write_text("{")
    search, _ = prepared(read=[tmp_path])
    assert reached(search, search._lab, 40) > share_of_best(DEFAULT)
    assert file_of(tmp_path, key, "../../etc/passwd") is None and file_of(tmp_path, key, "") is None


def test_trials_of_the_log_teach_the_next_run(tmp_path):
    """Another task's trials, read from the log, order this one's space better than nothing."""
    target = toy_rules.target()
    other = landscape.task("other", scale=2)
    search, _ = prepared(task=other, stages=("ranked",), effort=MANY, lab=FakeLab(seed=4))
    search.run(Clock(1e9))
    recorder = Recorder(fingerprint_of(target), "earlier", 0)
    commit(tmp_path, fingerprint_of(target), [recorder.trial(other, t) for t in search.trials])
    taught, _ = prepared(read=[tmp_path], stages=("ranked",))
    untaught, _ = prepared(stages=("ranked",))
    assert untaught.ranking.scores() is None
    assert spearman(taught.ranking.scores(), TRUTH) > 0.5
    taught.run(Clock(1e9), 40)
    assert taught.ranking.correlation is not None and -1 <= taught.ranking.correlation <= 1
    assert len(taught.ranking.pairs) >= 8


def test_features():
    row = features.of_decision({"mr": 8, "balance": True, "order": "rows", "tiles": [1, 3], "none": None})
    assert row == {
        "decision.mr": pytest.approx(math.log2(9)),
        "decision.balance": 1.0,
        "decision.order=rows": 1.0,
        "decision.tiles.0": 1.0,
        "decision.tiles.1": 2.0,
    }
    made = features.matrix([row, {}], ["decision.mr", "decision.order=rows", "decision.order=panels"])
    assert made[0, 1:].tolist() == [1.0, 0.0] and made[1, 1:].tolist() == [0.0, 0.0] and math.isnan(made[1, 0])


def test_integers_that_no_float_holds():
    """Checksums do not keep a line of a log from holding them."""
    row = features.of_decision({"mr": -(10**400), "nr": 10**400})
    assert row["decision.nr"] == -row["decision.mr"] == pytest.approx(math.log2(1e30))
    facts = features.of_task("f", [10**400], [], [], {"cores": 10**400, "l3_bytes": -(10**400)})
    assert all(map(math.isfinite, facts.values())) and "target.l3_bytes" not in facts


def test_large_values_end_nothing(tmp_path):
    """A sum of many leaves that are allowed one by one, and a speed-up that nobody can have."""
    one = Ensemble.from_plain(BODY)
    many = Ensemble(one.names, [dataclasses.replace(one.trees[0], value=(0.0, 20.0, -20.0))] * 100)
    assert many.predict(np.array([[0.0, 0], [1.0, 0]], dtype="float32")).tolist() == [20.0, -20.0]
    model = CostModel("synthetic", 1)
    for i, row in enumerate(ROWS[:50]):
        model.add(row, 700.0 if i % 2 else -700.0, "here")
    model.save(tmp_path / "model.json")
    load(tmp_path / "model.json", "synthetic", 1)


def test_a_saved_model_does_not_grow_for_ever(tmp_path):
    """With a full log every run begins anew; with a lost one, at the limit."""
    path = tmp_path / "model.json"
    trained(200).save(path)
    rows = [(row, target, "here") for row, target in zip(ROWS, TRUTH)]
    for logged, prior_rows, grown in ((1500, 9000, 1), (200, 9000, 2), (1000, 1000, 1)):
        prior, _ = load(path, "synthetic", 1)
        prior = Ensemble(prior.names, prior.trees[:60])
        model = CostModel("synthetic", 1, prior=prior, prior_rows=prior_rows)
        model.logged((rows * 2)[:logged])
        model.add(*rows[0])
        model.save(path)
        assert len(load(path, "synthetic", 1)[0].trees) == 60 * grown
    full = Ensemble(prior.names, prior.trees * 33)
    model = CostModel("synthetic", 1, prior=full, prior_rows=9000)
    model.logged(rows[:200])
    model.save(path)
    assert len(load(path, "synthetic", 1)[0].trees) == 60


def committed(directory, task, run="earlier", **trials):
    """Trials as a log keeps them: `decision`s with what is given of `Trial`."""
    target = fingerprint_of(toy_rules.target())
    recorder = Recorder(target, run, 0)
    commit(directory, target, [recorder.trial(task, Trial(**trial)) for trial in trials["trials"]])


def test_a_full_log_keeps_the_rows_of_the_task_at_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "MOST_LOGGED", 10)
    timed = [{"decision": d, "stage": "ranked", "outcome": None, "speedup": 1.5} for d in SPACE[:12]]
    committed(tmp_path, landscape.task(), trials=timed[:4])
    committed(tmp_path, landscape.task("other", scale=2), trials=timed)
    converted = []
    real = features.of_record
    monkeypatch.setattr(features, "of_record", lambda record: converted.append(record) or real(record))
    prepared(read=[tmp_path], stages=("ranked",))
    assert [r.workload for r in converted] == ["other"] * 6 + ["synthetic"] * 4


def test_what_fails_once_may_be_tried_again(tmp_path):
    """A busy hour is no reason to avoid a decision for ever; a wrong result is."""
    once, twice, wrong = SPACE[1:4]

    def failing(decision, outcome):
        return {"decision": decision, "stage": "ranked", "outcome": outcome}

    committed(tmp_path, landscape.task(), trials=[failing(once, "timeout"), failing(twice, "crash")])
    committed(tmp_path, landscape.task(), trials=[failing(wrong, "wrong_result"), failing(twice, "out_of_memory")])
    notes = []
    search, _ = prepared(read=[tmp_path], note=notes.append)
    assert [search.board.is_open(d) for d in (once, twice, wrong)] == [True, False, False]
    assert notes == ["synthetic f32: 2 decisions that failed in earlier runs are not tried again"]


def test_a_fluke_of_two_rounds_is_not_what_a_run_goes_on_with(tmp_path):
    """Of many lucky numbers of the first rung and few honest ones of many rounds the honest ones are raced again."""

    def timed(decision, rounds, speedup):
        samples = Samples([[speedup] * rounds] * 2, [[1.0] * rounds] * 2)
        return {"decision": decision, "stage": "ranked", "outcome": None, "speedup": speedup, "samples": samples}

    honest = [timed(d, 14, 1.2 + 0.01 * i) for i, d in enumerate(SPACE[:6])]
    committed(tmp_path, landscape.task(), run="r", trials=[timed(d, 2, 1.9) for d in SPACE[500:530]] + honest)
    search, lab = prepared(read=[tmp_path], resumed="r", stages=("ranked",))
    assert list(search._first) == list(SPACE[5:1:-1]) and search.board.known == 32
    search.enter()
    search.step(Clock(1e9))
    assert set(SPACE[2:6]) <= set(lab.taken) and not set(SPACE[500:530]) & set(lab.taken)


def test_a_task_and_its_records_give_the_same_facts():
    target, task = toy_rules.target(), landscape.task()
    fingerprint = fingerprint_of(target)
    search, _ = prepared(task=task, stages=("ranked",))
    search.run(Clock(1e9), 8)
    record = Recorder(fingerprint, "r", 0).trial(task, search.trials[0])
    row = features.of_record(record)
    own = search.ranking._table.rows[search.board.index(search.trials[0].decision)]
    shared = set(row) & set(own)
    assert {"task.default_us", "task.rows", "target.cores", "decision.mr"} <= shared
    for name in shared - {"task.default_us", "task.rows"}:
        assert row[name] == own[name], name
