"""The learned model of one rule: boosted trees from decision and task to log speed-up over the default.

XGBoost fits them; it is imported when there is something to fit. What was learned is kept beside the log as
JSON and starts the next run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...codec import parse_file
from ..saved import write_json
from .features import Row, Table, matrix
from .trees import LARGEST, MOST_TREES, Ensemble, Tree

SCHEMA = 1
_LARGEST_BYTES = 16 << 20
_FEWEST = 6  # rows below which nothing is fitted
MOST_LOGGED = 1500  # rows of the log, the latest
_MOST_ROWS = 1_000_000  # that a file may claim
_OWN_WEIGHT = 3.0  # a row of the task at hand beside one of another
_ROUNDS = 60
_PARAMETERS = {
    "max_depth": 4,
    "eta": 0.15,
    "subsample": 0.9,
    "lambda": 1.0,
    "min_child_weight": 1.0,
    "tree_method": "hist",
    "max_bin": 64,
    "base_score": 0.0,
    "nthread": 1,  # threads of a pool would still spin when the next race begins
    "verbosity": 0,
}


class CostModel:
    """Rows are added as they are measured; `fit` learns from them what `prior` does not know."""

    def __init__(
        self, rule: str, version: int, *, prior: Ensemble | None = None, prior_rows: int = 0, seed: int = 0
    ) -> None:
        self.rule, self.version = rule, version
        self._prior, self._prior_rows = prior, prior_rows
        self._seed = seed
        self._logged = 0
        self._rows: list[Row] = []
        self._targets: list[float] = []
        self._workloads: list[str] = []
        self._fitted: Ensemble | None = None

    @property
    def rows(self) -> int:
        """Trials it has seen, those behind a saved model included."""
        return max(len(self._rows), self._prior_rows + len(self._rows) - self._logged)

    @property
    def measured(self) -> int:
        """Trials of this run among them."""
        return len(self._rows) - self._logged

    def logged(self, rows: Sequence[tuple[Row, float, str]]) -> None:
        """Trials of earlier runs: features, log speed-up, workload; the last `MOST_LOGGED` of them count."""
        for row, target, workload in rows[-MOST_LOGGED:]:
            self.add(row, target, workload)
        self._logged = len(self._rows)

    def add(self, row: Row, log_speedup: float, workload: str) -> None:
        """One trial."""
        if math.isfinite(log_speedup):
            self._rows.append(row)
            self._targets.append(max(-LARGEST, min(LARGEST, log_speedup)))
            self._workloads.append(workload)

    def fit(self, workload: str) -> None:
        """Learn what the prior gets wrong; rows of `workload` weigh more."""
        if len(self._rows) >= _FEWEST:
            weights = [_OWN_WEIGHT if w == workload else 1.0 for w in self._workloads]
            self._fitted = self._train(weights, self._prior)

    def predict(self, table: Table) -> np.ndarray | None:
        """Log speed-up of each row; None while there is nothing to go by."""
        parts = [part for part in (self._prior, self._fitted) if part is not None]
        return sum(part.predict(table.matrix(part.names)) for part in parts) if parts else None

    def save(self, path: Path) -> None:
        """Write the model: made of all rows at hand, or the saved one and its correction where that has seen more.

        With as many rows of the log as are ever read it is made anew: else it would grow by a correction a run.
        """
        is_full = self._prior is not None and len(self._prior.trees) + _ROUNDS > MOST_TREES
        if (is_full or self._logged >= min(self._prior_rows, MOST_LOGGED)) and len(self._rows) >= _FEWEST:
            ensemble = self._train([1.0] * len(self._rows), None)
        else:
            if len(self._rows) >= _FEWEST:
                self._fitted = self._train([1.0] * len(self._rows), self._prior)
            ensemble = _sum([part for part in (self._prior, self._fitted) if part is not None])
        if ensemble.trees:
            rows = min(self.rows, _MOST_ROWS)
            head = {"schema": SCHEMA, "rule": self.rule, "rule_version": self.version, "rows": rows}
            write_json(path, {**head, **ensemble.to_plain()})

    def _train(self, weights: Sequence[float], prior: Ensemble | None) -> Ensemble:
        import xgboost

        names = tuple(sorted({name for row in self._rows for name in row}))
        features = matrix(self._rows, names)
        data = xgboost.DMatrix(features, np.array(self._targets), weight=np.array(weights), nthread=1)
        if prior is not None:
            data.set_base_margin(prior.predict(matrix(self._rows, prior.names)))
        booster = xgboost.train({**_PARAMETERS, "seed": self._seed}, data, _ROUNDS)
        body = json.loads(booster.save_raw("json"))
        return Ensemble(names, [_of_xgboost(t) for t in body["learner"]["gradient_booster"]["model"]["trees"]])


def load(path: Path, rule: str, version: int) -> tuple[Ensemble, int]:
    """The saved model of a rule and the number of trials behind it; `ValueError` says why it is not used."""
    body = parse_file(path, _LARGEST_BYTES)
    if not isinstance(body, dict):
        raise ValueError("it is no JSON object")
    if body.get("schema") != SCHEMA:
        raise ValueError(f"its schema is {str(body.get('schema'))[:20]}, this release reads {SCHEMA}")
    if body.get("rule") != rule or body.get("rule_version") != version:
        raise ValueError(
            f"it is of rule {str(body.get('rule'))[:40]} version {str(body.get('rule_version'))[:20]}, "
            f"not {rule} version {version}"
        )
    rows = body.get("rows")
    if type(rows) is not int or not 0 <= rows <= _MOST_ROWS:
        raise ValueError("its number of rows is none")
    return Ensemble.from_plain(body), rows


def file_of(directory: Path, target_key: str, rule: str) -> Path | None:
    """Where the model of a rule is kept; None when the rule's name is no part of a file's name."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", rule):
        return None
    return directory / target_key / f"cost_model-{rule}.json"


def _of_xgboost(tree: dict) -> Tree:
    # A leaf keeps its value where an inner node keeps its threshold.
    conditions = [float(v) for v in tree["split_conditions"]]
    leaf = [child < 0 for child in tree["left_children"]]
    return Tree(
        feature=tuple(0 if is_leaf else int(v) for v, is_leaf in zip(tree["split_indices"], leaf)),
        threshold=tuple(0.0 if is_leaf else v for v, is_leaf in zip(conditions, leaf)),
        left=tuple(int(v) for v in tree["left_children"]),
        right=tuple(int(v) for v in tree["right_children"]),
        default_left=tuple(int(v) for v in tree["default_left"]),
        value=tuple(v if is_leaf else 0.0 for v, is_leaf in zip(conditions, leaf)),
    )


def _sum(parts: Sequence[Ensemble]) -> Ensemble:
    """One ensemble over the features of all."""
    names = tuple(sorted({name for part in parts for name in part.names}))
    at = {name: i for i, name in enumerate(names)}
    trees = []
    for part in parts:
        for t in part.trees:
            moved = tuple(0 if left < 0 else at[part.names[f]] for f, left in zip(t.feature, t.left))
            trees.append(Tree(moved, t.threshold, t.left, t.right, t.default_left, t.value))
    return Ensemble(names, trees)
