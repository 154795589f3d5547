"""A TFLite file -> `ImportedModel`, by way of an ONNX graph in memory; TensorFlow is not needed.

Walk: `_file` reads and checks the flatbuffer; `_graph` writes the operators of a signature in order, by writers from
`_registry.WRITERS`; the ONNX importer reads the result. LiteRT's interpreter, where installed, is the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UnknownName, UsageError
from ...imported import ImportedModel, Spelled
from .._digest import sha256_of
from ..onnx import Bounds, OnnxRuntime, import_of_file
from ._file import Model, Signature, of_graph, read_model

if TYPE_CHECKING:
    from ._engine import Engine
    from ._proto import Written

_DEFAULT = "serving_default"


def import_tflite(
    path: Path, *, shapes: Mapping[str, Bounds] | None = None, signature: str = "", spelled: Spelled | None = None
) -> ImportedModel:
    """Read the TFLite model at `path`; its inputs and outputs have the names of `signature`.

    Without one it is `serving_default`, else the only one, else the first graph under the names of its tensors.
    """
    from ._proto import after, write

    model = read_model(path)
    chosen = _signature(model, signature, path.name)
    written = write(model, chosen, path.name)
    imported = import_of_file(written.proto, path, shapes=shapes, spelled=spelled)
    part = {"part": signature} if signature else {}
    state = {"state": list(written.state)} if written.state else {}
    kept = {after(name): name for name in written.state}
    engine, other, name = _references(path, chosen, written, imported.outputs)
    return replace(
        imported,
        inputs=tuple(replace(i, default="zeros") if i.name in written.state else i for i in imported.inputs),
        outputs=tuple(kept.get(name, name) for name in imported.outputs),
        source={"kind": "tflite", "name": path.name, "sha256": sha256_of(path), **part, **state, "engine": name},
        engine=engine,
        other_engine=other,
        accepted_error=written.accepted_error or imported.accepted_error,
        report={**imported.report, "importer": "tflite", "operators": written.operators},
    )


def _references(
    path: Path, signature: Signature, written: Written, outputs: tuple[str, ...]
) -> tuple[Engine | None, Engine | None, str]:
    """LiteRT where it is installed, which cannot be given what stands behind handles; else onnxruntime; else None.

    onnxruntime runs the graph that was written. None is NumPy on the operators that the graph becomes. The second is
    the same engine where it rounds at other places, of a file that rounds; LiteRT has none, and onnxruntime beside it
    would take what is wrong in the written graph for rounding. The third is the name of the first.
    """
    from ._engine import engine
    from ._proto import after

    given = set(written.state) == set(written.tensors) and (not written.tensors or signature.graph == 0)
    found = engine(path, signature, written.tensors, written.behind) if given else None
    if found is not None or written.beyond:
        return found, None, "LiteRT" if found is not None else ""
    rounds, kept = written.accepted_error is not None, {after(name): name for name in written.state}
    run = OnnxRuntime(written.proto.SerializeToString(), path.name, outputs, rounds)

    def named(run: Engine) -> Engine:
        return lambda inputs: {kept.get(name, name): value for name, value in run(inputs).items()}

    return named(run), named(run.optimised()) if rounds else None, "onnxruntime"


def _signature(model: Model, wanted: str, file: str) -> Signature:
    found = {s.key: s for s in model.signatures}
    if wanted:
        if wanted not in found:
            raise UnknownName("signature", wanted, found)
        return found[wanted]
    if _DEFAULT in found:
        return found[_DEFAULT]
    if len(found) > 1:
        raise UsageError(
            f"expected a choice among the {len(found)} signatures of {file}, found none: give --signature "
            f"{', '.join(sorted(found))}"
        )
    return next(iter(found.values())) if found else of_graph(model)
