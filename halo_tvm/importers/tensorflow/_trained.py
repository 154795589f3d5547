"""SavedModels that hold the optimizer they were trained with, which no inference needs and TensorFlow may not load.

Keras 2 saved a compiled model with its optimizer, whose class a TensorFlow with Keras 3 no longer knows: it makes a
plain object of it, and fails where it asks that object for the optimizer's variables.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tensorflow.core.protobuf import saved_model_pb2

_GRAPH = "saved_model.pb"
_FOLDERS = ("variables", "assets")


@contextmanager
def without_optimizer(path: Path) -> Iterator[Path]:
    """A SavedModel that is `path` without an optimizer's variables: `path` itself where there are none."""
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((path / _GRAPH).read_bytes())
    nodes = [node for graph in saved.meta_graphs for node in graph.object_graph_def.nodes if node.slot_variables]
    if not nodes:
        yield path
        return
    for node in nodes:
        del node.slot_variables[:]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.name)
        for needed in _FOLDERS:  # file by file, since the confined process may neither make links nor set times
            for part in (path / needed).rglob("*"):
                target = copy / part.relative_to(path)
                target.parent.mkdir(parents=True, exist_ok=True)
                if part.is_file():
                    shutil.copyfile(part, target)
        (copy / _GRAPH).write_bytes(saved.SerializeToString())
        yield copy
