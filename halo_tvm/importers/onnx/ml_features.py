"""ai.onnx.ml: features made ready: scaled, normalised, filled in, selected, put side by side, encoded."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax, te, tirx

from ..meaning.builder import expr_dtype, expr_shape
from ._ml import ML, floats, rows
from ._node import Node
from ._registry import converter

_FROM_KEYS = 1 << 16  # most keys of a label encoder


@converter("Scaler", domain=ML)
def scaler(node: Node) -> relax.Expr:
    """float32 (x - offset) * scale per feature; of float64 the difference is rounded, not the two numbers."""
    wide = "float64" if node.dtype(0) == "float64" else "float32"
    x = node.cast(node.x(0), wide)
    features = expr_shape(x)[-1]
    for name, apply in (("offset", relax.op.subtract), ("scale", relax.op.multiply)):
        if node.has_attr(name):
            values = floats(node, name)
            node.refuse_unless(
                values.size in (1, features), f"expected 1 or {features} values of {name}, found {values.size}"
            )
            x = node.emit(apply(x, relax.const(values, wide)))
    return node.cast(x, "float32")


@converter("Normalizer", domain=ML)
def normalizer(node: Node) -> relax.Expr:
    """Rows divided by their largest element, the sum of magnitudes, or the length; a row of zeros stays."""
    kind = node.attr("norm", "MAX")
    node.refuse_unless(kind in ("MAX", "L1", "L2"), f"expected MAX, L1 or L2 as norm, found {kind}")
    x = node.cast(node.x(0), "float32")
    if kind == "MAX":
        size = relax.op.max(x, -1, keepdims=True)
    elif kind == "L1":
        size = relax.op.sum(node.emit(relax.op.abs(x)), -1, keepdims=True)
    else:
        size = relax.op.sqrt(node.emit(relax.op.sum(node.emit(relax.op.multiply(x, x)), -1, keepdims=True)))
    size = node.emit(size)
    zero = node.emit(relax.op.equal(size, relax.const(0.0, "float32")))
    return relax.op.divide(x, node.emit(relax.op.where(zero, relax.const(1.0, "float32"), size)))


@converter("Binarizer", domain=ML)
def binarizer(node: Node) -> relax.Expr:
    """1 where x is above the threshold, else 0; a whole number is above it where it is above its floor."""
    x, threshold = node.x(0), float(node.attr("threshold", 0.0))
    dtype = wide = expr_dtype(x)
    if not dtype.startswith("float"):
        node.refuse_unless(math.isfinite(threshold), f"expected a finite threshold for {dtype}, found {threshold}")
        limits, wide = np.iinfo(np.int64), "int64"
        threshold = min(max(math.floor(threshold), limits.min), limits.max)
    above = node.emit(relax.op.greater(node.cast(x, wide), relax.const(threshold, wide)))
    return relax.op.astype(above, dtype)


@converter("Imputer", domain=ML)
def imputer(node: Node) -> relax.Expr:
    """Values that stand for "missing" replaced by one value, or one per feature."""
    x = node.x(0)
    dtype = expr_dtype(x)
    is_float = dtype.startswith("float")
    names = (
        ("imputed_value_floats", "replaced_value_float")
        if is_float
        else ("imputed_value_int64s", "replaced_value_int64")
    )
    values = np.asarray(node.attr(names[0], []), dtype)
    missing = node.attr(names[1], 0.0 if is_float else 0)
    features = expr_shape(x)[-1]
    node.refuse_unless(
        values.size in (1, features), f"expected 1 or {features} values in {names[0]}, found {values.size}"
    )
    if is_float and np.isnan(missing):
        found = node.emit(relax.op.isnan(x))
    else:
        found = node.emit(relax.op.equal(x, relax.const(missing, dtype)))
    return relax.op.where(found, relax.const(values, dtype), x)


@converter("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(node: Node) -> relax.Expr:
    """Elements of the last axis by index; a vector gives a matrix of one row."""
    x, index = node.x(0), node.x(1)
    if node.rank(1) != 1:
        index = node.emit(relax.op.reshape(index, (node.sizes.product(node.shape(1)),)))
    taken = relax.op.take(x, index, axis=-1, mode="clip")
    count = expr_shape(index)[0]
    return relax.op.reshape(node.emit(taken), (1, count)) if node.rank(0) == 1 else taken


@converter("FeatureVectorizer", domain=ML)
def feature_vectorizer(node: Node) -> relax.Expr:
    """Matrices side by side in float32, each cut or filled with zeros to its number of features."""
    wanted = node.attr("inputdimensions", [])
    node.refuse_unless(
        len(wanted) == len(node.inputs), f"expected {len(node.inputs)} inputdimensions, found {len(wanted)}"
    )
    parts = []
    for index, size in enumerate(wanted):
        x = node.cast(rows(node, index), "float32")
        features = expr_shape(x)[1]
        if size < features:
            x = node.emit(relax.op.strided_slice(x, axes=[1], begin=[0], end=[size]))
        elif size > features:
            x = node.emit(relax.op.nn.pad(x, (0, 0, 0, size - features)))
        parts.append(x)
    return relax.op.concat(parts, axis=1)


@converter("OneHotEncoder", domain=ML)
def one_hot_encoder(node: Node) -> relax.Expr:
    """float32 [..., categories]: 1 where the element is the category.

    Of an unknown one all are 0, or NaN where `zeros` is 0: no kernel can raise the error that onnxruntime raises.
    """
    node.refuse_unless(not node.attr("cats_strings", []), "categories are strings: expected whole numbers")
    categories = np.asarray(node.attr("cats_int64s", []), np.int64)
    node.refuse_unless(categories.size > 0, "expected categories in cats_int64s, found none")
    x = node.cast(node.x(0), "int64")
    wide = node.emit(relax.op.expand_dims(x, -1))
    same = node.emit(relax.op.equal(wide, relax.const(categories, "int64")))
    hot = node.emit(relax.op.astype(same, "float32"))
    if node.attr("zeros", 1):
        return hot
    known = node.emit(relax.op.max(hot, -1, keepdims=True))
    return relax.op.where(relax.op.equal(known, relax.const(0.0, "float32")), relax.const(np.float32("nan")), hot)


@converter("LabelEncoder", domain=ML, since=2)
def label_encoder(node: Node) -> relax.Expr:
    """Every element replaced by the value of its key, found among the sorted keys; unknown ones by the default."""
    keys, values, default = _mapping(node)
    dtype = node.dtype(0)
    node.refuse_unless(keys.dtype.name == dtype, f"expected keys of {dtype}, found {keys.dtype.name}")
    node.refuse_unless(0 < keys.size <= _FROM_KEYS, f"expected 1 to {_FROM_KEYS} keys, found {keys.size}")
    node.refuse_unless(keys.size == values.size, f"expected {keys.size} values, found {values.size}")
    # The first of several equal keys counts; a key that is not a number comes last.
    unique, first = np.unique(keys, return_index=True)
    results = np.append(values[first], default)
    count = unique.size

    def encode(x: te.Tensor, keys: te.Tensor, results: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, count), "k")
        # A stage of its own: a search bit by bit would be one expression that doubles with every bit.
        places = te.compute(x.shape, lambda *i: te.sum((keys(k) <= x(*i)).astype("int32"), axis=[k]), name="places")

        def at(*index: object) -> object:
            element, place = x(*index), places(*index)
            before = tirx.max(place - 1, tirx.const(0, "int32"))
            same = tirx.all(place > 0, keys(before) == element)
            result = results(tirx.Select(same, before, tirx.const(count, "int32")))
            if dtype.startswith("float") and np.isnan(unique[-1]):
                return tirx.Select(tirx.isnan(element), results(count - 1), result)
            return result

        return te.compute(x.shape, at, name="encode")

    return node.te(encode, node.x(0), relax.const(unique, str(unique.dtype)), relax.const(results, str(results.dtype)))


def _mapping(node: Node) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys, values and, in the type of the values, the default [1]."""
    node.refuse_unless(
        not node.attr("keys_strings", []) and not node.attr("values_strings", []),
        "keys or values are strings: expected numbers",
    )
    found = []
    for what in ("keys", "values"):
        for suffix, dtype in (("tensor", None), ("int64s", np.int64), ("floats", np.float32)):
            if node.has_attr(f"{what}_{suffix}"):
                found.append(np.asarray(node.attr(f"{what}_{suffix}"), dtype).reshape(-1))
                break
        else:
            node.refuse(f"expected {what} as numbers, found none")
    keys, values = found
    node.refuse_unless(
        keys.dtype.kind in "iuf" and values.dtype.kind in "iuf", "keys or values are strings: expected numbers"
    )
    if node.has_attr("default_tensor"):
        default = np.asarray(node.attr("default_tensor")).reshape(-1)
        node.refuse_unless(default.size == 1, f"expected one default, found {default.size}")
        node.refuse_unless(default.dtype.kind in "iuf", "the default is a string: expected a number")
    elif values.dtype.kind == "f":
        default = np.array([node.attr("default_float", -0.0)])
    else:
        default = np.array([node.attr("default_int64", -1)])
    return keys, values, default.astype(values.dtype)


@converter("ZipMap", "CastMap", "DictVectorizer", "CategoryMapper", domain=ML)
def dictionaries(node: Node) -> relax.Expr:
    node.refuse("it works on dictionaries or strings: export without it")
