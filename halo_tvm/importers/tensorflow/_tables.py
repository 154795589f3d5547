"""Tables of numbers, as IntegerLookup has them: LookupTableFindV2 -> LabelEncoder. tf2onnx knows those of words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from ._replaced import Handler, Replaced

ML = "ai.onnx.ml"


def table_handlers(tables: Mapping[bytes, tuple[Any, Any]]) -> dict[str, Handler]:
    """`tables`: the keys and values of each, by its shared name."""

    def find(place: Replaced) -> str:
        table, numbers, default = place.inputs
        output = place.node.output[0]
        if TensorProto.STRING in (place.context.get_dtype(numbers), place.context.get_dtype(output)):
            raise ValueError("expected tables of numbers, found one of words: look words up outside of the model")
        found, other = tables.get(_shared_name(place, table)), place.known(default)
        if found is None or other is None:
            raise ValueError(f"expected a table that is filled when the model is loaded, found another in {table}")
        keys, values = (np.asarray(part).reshape(-1) for part in found)
        if keys.dtype.kind not in "iu" or values.dtype.kind not in "iu" or keys.size == 0:
            raise ValueError(
                f"expected a table of integers that is not empty, found {keys.size} of {keys.dtype} and {values.dtype}"
            )
        attributes = {
            "keys_int64s": keys.astype(np.int64).tolist(),
            "values_int64s": values.astype(np.int64).tolist(),
            "default_int64": int(other.reshape(())),
        }
        made = place.context.make_node(
            "LabelEncoder",
            [place.cast(numbers, np.int64)],
            attr=attributes,
            op_name_scope=place.node.name,
            domain=ML,
            shapes=[place.context.get_shape(output)],
            dtypes=[TensorProto.INT64],
        )
        return place.cast(str(made.output[0]), place.dtype(output))

    return {"LookupTableFindV2": find}


def _shared_name(place: Replaced, table: str) -> bytes:
    made = place.context.get_node_by_output(table)
    while made is not None and made.type == "Identity":
        made = made.inputs[0]
    name = None if made is None else made.get_attr_value("shared_name")
    return name if isinstance(name, bytes) else str(name or "").encode()
