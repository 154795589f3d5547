"""Operators of ai.onnx.ml with any number of rows, against onnxruntime; what has no meaning is refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import compile_in_process

ort = pytest.importorskip("onnxruntime")
RANDOM = np.random.default_rng(0)
X = np.round(RANDOM.standard_normal((7, 4)), 1).astype(np.float32)
MISSING = X.copy()
MISSING[1, 2], MISSING[3] = np.nan, np.nan
ONE, TWO = [("y", T.FLOAT)], [("l", T.INT64), ("y", T.FLOAT)]
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def model(
    op: str, outputs: Sequence[tuple[str, int]], version: int, dtype: int = T.FLOAT, **attrs: object
) -> onnx.ModelProto:
    node = helper.make_node(op, ["x"], [name for name, _ in outputs], domain="ai.onnx.ml", **attrs)
    infos = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs]
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", dtype, ["n", 4])], infos)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def agrees(proto: onnx.ModelProto, x: np.ndarray, tolerance: float = 1e-5) -> None:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    program = compile_in_process(import_proto(proto, name="t"), threads=1)
    for rows in (x, x[:1]):
        found = program(x=rows)
        for info, wanted in zip(proto.graph.output, session.run(None, {"x": rows})):
            assert found[info.name].dtype == wanted.dtype
            np.testing.assert_allclose(found[info.name], wanted, tolerance, tolerance)


def numbers(*shape: int) -> list[float]:
    return (RANDOM.standard_normal(shape) * 0.7).reshape(-1).tolist()


def trees(
    prefix: str, votes: Sequence[int], *, modes: Sequence[str] = MODES[:1], nan: bool = False, low: float = -1.0
) -> dict:
    """Attributes of four full trees of depth 3."""
    rows = []
    for tree in range(4):
        for i in range(15):
            leaf = i >= 7
            mode = "LEAF" if leaf else modes[int(RANDOM.integers(len(modes)))]
            split = float(np.round(RANDOM.standard_normal(), 1))
            children = (0, 0) if leaf else (2 * i + 1, 2 * i + 2)
            rows.append((tree, i, int(RANDOM.integers(4)), mode, split, *children, int(nan and RANDOM.integers(2))))
    names = "treeids nodeids featureids modes values truenodeids falsenodeids missing_value_tracks_true".split()
    attrs = {f"nodes_{name}": list(values) for name, values in zip(names, zip(*rows))}
    places = [(tree, i, vote) for tree in range(4) for i in range(7, 15) for vote in votes]
    for name, values in zip(("treeids", "nodeids", "ids"), zip(*places)):
        attrs[f"{prefix}_{name}"] = list(values)
    return {**attrs, f"{prefix}_weights": RANDOM.uniform(low, 0.3, len(places)).tolist()}


FEATURES = {
    "scaler": (model("Scaler", ONE, 1, offset=[1.0, 2, 3, 4], scale=[0.5, 2, 1, 3]), X),
    "scaler-int": (model("Scaler", ONE, 1, T.INT64, offset=[1.0], scale=[0.5]), np.arange(8).reshape(2, 4)),
    "scaler-double": (model("Scaler", ONE, 1, T.DOUBLE, offset=[1e9], scale=[2.0]), 1e9 + X.astype(np.float64)),
    "max": (model("Normalizer", ONE, 1, norm="MAX"), X),
    "l1": (model("Normalizer", ONE, 1, norm="L1"), X),
    "l2": (model("Normalizer", ONE, 1, norm="L2"), np.concatenate([X, 0 * X[:1]])),
    "binarizer": (model("Binarizer", ONE, 1, threshold=0.2), X),
    "imputer-nan": (
        model("Imputer", ONE, 1, imputed_value_floats=[1.0, 2, 3, 4], replaced_value_float=np.nan),
        MISSING,
    ),
    "imputer-value": (model("Imputer", ONE, 1, imputed_value_floats=[9.0], replaced_value_float=float(X[0, 0])), X),
    "one-hot": (model("OneHotEncoder", ONE, 1, T.INT64, cats_int64s=[5, 1, 7]), np.array([[1, 5, 9, 7], [7, 1, 0, 5]])),
    "encoder": (
        model(
            "LabelEncoder",
            ONE,
            2,
            T.INT64,
            keys_int64s=[5, 1, 7, *range(20, 320)],
            values_floats=numbers(303),
            default_float=-3.0,
        ),
        np.array([[1, 5, 9, 0], [7, 319, 6, -1]]),
    ),
    "encoder-twice": (
        model("LabelEncoder", ONE, 4, keys_floats=[1.0, np.nan, 3.5, 1.0, np.nan], values_floats=[1.0, 2, 3, 4, 5]),
        np.array([[1, np.nan, 3.5, 9]], np.float32),
    ),
    "encoder-default-tensor": (
        model(
            "LabelEncoder",
            [("y", T.INT64)],
            4,
            T.INT64,
            keys_int64s=[1, 2],
            values_int64s=[10, 20],
            default_tensor=helper.make_tensor("d", T.INT64, [1], [77]),
        ),
        np.array([[1, 2, 9, 0]]),
    ),
    "encoder-values-tensor": (
        model(
            "LabelEncoder",
            [("y", T.INT64)],
            4,
            T.INT64,
            keys_int64s=[1, 2],
            values_tensor=helper.make_tensor("v", T.INT64, [2], [10, 20]),
            default_int64=77,
        ),
        np.array([[1, 2, 9, 0]]),
    ),
    "regressor": (model("LinearRegressor", ONE, 1, coefficients=numbers(8), intercepts=[0.5, 1.0], targets=2), X),
}


@pytest.mark.slow
def test_features() -> None:
    for proto, x in FEATURES.values():
        agrees(proto, x)


@pytest.mark.parametrize("threshold", [0.5, -0.5, -2.0, 1e30])
def test_whole_numbers_are_above_a_threshold_between_two(threshold: float) -> None:
    x = np.arange(-4, 4).reshape(2, 4)  # onnxruntime has no binarizer of whole numbers
    proto = model("Binarizer", [("y", T.INT64)], 1, T.INT64, threshold=threshold)
    found = compile_in_process(import_proto(proto, name="t"), threads=1)(x=x)["y"]
    np.testing.assert_array_equal(found, (x > threshold).astype(np.int64))


@pytest.mark.parametrize(("kind", "scores"), [("LOGISTIC", 1), ("SOFTMAX", 3), ("SOFTMAX_ZERO", 3)])
def test_linear_classifier(kind: str, scores: int) -> None:
    labels = [3, 5] if scores == 1 else [3, 5, 4]
    attrs = {"coefficients": numbers(scores, 4), "intercepts": numbers(scores), "classlabels_ints": labels}
    agrees(model("LinearClassifier", TWO, 1, post_transform=kind, **attrs), X)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_tree_regressor(aggregate: str) -> None:
    """One target and several; all comparisons; values that are missing."""
    attrs = trees("target", [0, 1, 2], modes=MODES, nan=True)
    several = model(
        "TreeEnsembleRegressor", ONE, 1, n_targets=3, aggregate_function=aggregate, base_values=[0.1, 0.2, 0.3], **attrs
    )
    agrees(several, MISSING)
    agrees(
        model("TreeEnsembleRegressor", ONE, 1, n_targets=1, aggregate_function=aggregate, **trees("target", [0])),
        MISSING,
    )


def test_a_target_without_votes_keeps_its_base_value() -> None:
    """onnxruntime gives 0, against the definition."""
    proto = model("TreeEnsembleRegressor", ONE, 1, n_targets=2, base_values=[0.5, 0.25], **trees("target", [0]))
    assert (compile_in_process(import_proto(proto, name="t"), threads=1)(x=X)["y"][:, 1] == 0.25).all()


@pytest.mark.parametrize(
    ("votes", "low", "kind"),
    [
        ((0, 1, 2), -1.0, "NONE"),
        ((0,), 0.0, "NONE"),
        ((0,), -1.0, "LOGISTIC"),
        ((0,), 0.0, "LOGISTIC"),
        ((1,), -1.0, "NONE"),
    ],
)
def test_tree_classifier(votes: tuple[int, ...], low: float, kind: str) -> None:
    """Three classes; two of which one gets all votes, which are probabilities or margins."""
    labels = [4, 9, 7] if len(votes) == 3 else [4, 9]
    attrs = trees("class", votes, low=low)
    agrees(model("TreeEnsembleClassifier", TWO, 1, classlabels_int64s=labels, post_transform=kind, **attrs), MISSING)


def test_trees_of_two_classes_with_votes_for_both_take_the_larger() -> None:
    """onnxruntime compares the second score with 0 there, against the definition."""
    proto = model("TreeEnsembleClassifier", TWO, 1, classlabels_int64s=[4, 9], **trees("class", (0, 1), low=0.0))
    found = compile_in_process(import_proto(proto, name="t"), threads=1)(x=X)
    assert (found["l"] == np.array([4, 9])[found["y"].argmax(1)]).all() and len(set(found["l"])) == 2


def uneven(prefix: str, targets: int) -> dict:
    """Attributes of 19 trees of up to 9 levels, some of which are a leaf; tree i votes for target i % targets."""
    rows: list[tuple] = []
    votes: list[tuple] = []
    for tree in range(19):
        levels, numbers_of_leaves = tree % 10, []
        for i in range(levels):  # a chain: yes leads to a leaf, no one level down
            split = float(np.round(RANDOM.standard_normal(), 1))
            rows.append((tree, 2 * i, int(RANDOM.integers(4)), "BRANCH_LEQ", split, 2 * i + 1, 2 * i + 2))
            numbers_of_leaves.append(2 * i + 1)
        for i in (*numbers_of_leaves, 2 * levels):
            rows.append((tree, i, 0, "LEAF", 0.0, 0, 0))
            votes.append((tree, i, tree % targets, float(RANDOM.uniform(-1, 1))))
    names = "treeids nodeids featureids modes values truenodeids falsenodeids".split()
    attrs = {f"nodes_{name}": list(values) for name, values in zip(names, zip(*rows))}
    voting = zip(("treeids", "nodeids", "ids", "weights"), zip(*votes))
    return attrs | {f"{prefix}_{name}": list(values) for name, values in voting}


@pytest.mark.parametrize("targets", [1, 3])
def test_trees_of_uneven_depth_are_walked_to_their_ends(targets: int) -> None:
    """More trees than are walked side by side, a leaf alone among them; 2,000 rows are shared by threads."""
    many = np.round(np.random.default_rng(1).standard_normal((2000, 4)), 1).astype(np.float32)
    agrees(model("TreeEnsembleRegressor", ONE, 1, n_targets=targets, **uneven("target", targets)), many)


def test_classes_that_get_a_vote_of_every_row_need_no_marks() -> None:
    proto = model("TreeEnsembleClassifier", TWO, 1, classlabels_int64s=[4, 9, 7], **uneven("class", 3))
    agrees(proto, X)
    assert "int8" not in str(import_proto(proto, name="t").mod)
    sometimes = {key: value[:-1] if key.startswith("class") else value for key, value in trees("class", [0]).items()}
    other = model("TreeEnsembleClassifier", TWO, 1, classlabels_int64s=[4, 9, 7], **sometimes)
    assert "int8" in str(import_proto(other, name="t").mod)


def _machines(kernel: str) -> None:
    common = {"kernel_type": kernel, "kernel_params": [0.4, 0.3, 3.0]}
    machine = {
        "vectors_per_class": [3, 2, 4],
        "coefficients": numbers(2, 9),
        "support_vectors": numbers(9, 4),
        "rho": numbers(3),
    }
    agrees(model("SVMClassifier", TWO, 1, classlabels_ints=[4, 2, 9], **machine, **common), X)
    machine |= {"prob_a": numbers(3), "prob_b": numbers(3)}
    agrees(model("SVMClassifier", TWO, 1, classlabels_ints=[4, 2, 9], **machine, **common), X, 1e-4)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.sampled(1)
def test_support_vectors(kernel: str) -> None:
    if kernel == "RBF":  # every kind of machine; the others differ in the kernel only
        _machines(kernel)
    common = {"kernel_type": kernel, "kernel_params": [0.4, 0.3, 3.0]}
    agrees(
        model(
            "SVMRegressor",
            ONE,
            1,
            n_supports=6,
            coefficients=numbers(6),
            support_vectors=numbers(6, 4),
            rho=[0.2],
            **common,
        ),
        X,
    )


def _broken(**changes: object) -> onnx.ModelProto:
    return model("TreeEnsembleRegressor", ONE, 1, n_targets=1, **{**trees("target", [0]), **changes})


CIRCLE = _broken(nodes_truenodeids=[0] * 60)
HOSTILE = {
    "its own ancestor": CIRCLE,
    "does not exist": _broken(nodes_falsenodeids=[99] * 60),
    "reads beyond": _broken(nodes_featureids=[4] * 60),
    "none of the 1 targets": _broken(target_ids=[1] * 32),
    "expected 60 values of nodes_values": _broken(nodes_values=[0.5]),
    "strings": model(
        "LinearClassifier", TWO, 1, coefficients=numbers(8), intercepts=[0.0, 1.0], classlabels_strings=["a", "b"]
    ),
    "dictionaries": model("ZipMap", ONE, 1, classlabels_int64s=[0, 1, 2, 3]),
}


@pytest.mark.parametrize("reason", HOSTILE)
def test_what_is_broken_is_refused(reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        import_proto(HOSTILE[reason], name="t")
