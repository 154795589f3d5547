#!/usr/bin/env python3
"""Import the ONNX project's node tests, export them again, and let onnxruntime run the export.

    python scripts/onnx_round_trip.py [--only REGEX] [--jobs 2] [--json FILE] [--show]

Results are as in `onnx_conformance.py`: `pass`, `refused` (a sentence says why, also where onnxruntime has no kernel
for the test's own operator), `wrong` and `failed`. Exit status 1 when something is wrong or failed.
"""

from __future__ import annotations

import re
import sys
import tempfile
from functools import partial
from pathlib import Path

import _checkout  # noqa: F401  before halo_tvm
import _conformance
from _conformance import Row, ended, keep, row, say
from onnx_conformance import compare, data_sets, load_tests


def main() -> int:
    args = _conformance.parser(__doc__, "test names", "test that does not pass", table=False).parse_args()
    names = [name for name in load_tests("node") if re.search(args.only, name)]
    results = sorted(_conformance.run_all(names, runner, "node", jobs=args.jobs), key=lambda r: r["name"])
    keep(args.json, results)
    return say(results, "tests", show=args.show)


def runner(kind: str):
    """The function that runs a test by its name."""
    tests = load_tests(kind)
    return lambda name: run_test(tests[name])


def run_test(test) -> Row:
    """One test of the suite, its model written anew."""
    import onnx

    model = test.model or onnx.load(str(Path(test.model_dir) / "model.onnx"))
    operators = ", ".join(sorted({node.op_type for node in model.graph.node}))
    of_this = partial(row, test.name, operator=operators)
    try:
        for inputs, wanted in data_sets(test):
            difference = compare(run_exported(model, inputs), wanted, test.rtol, test.atol)
            if difference and compare(run_source(model, inputs), wanted, test.rtol, test.atol):
                return of_this("refused", "onnxruntime computes other numbers of the test itself")
            if difference:
                return of_this("wrong", difference)
    except NotImplementedError as reason:
        return of_this("refused", str(reason))
    except Exception as reason:  # noqa: BLE001  whatever a test may raise must not end the run
        status, why = ended(reason)
        kind, _, said = why.partition(": ")
        if kind == "RuntimeException" and _fails(model, inputs):
            return of_this("refused", f"onnxruntime does not run the test itself: {said[:200]}")
        own = kind in ("NotImplemented", "InvalidGraph", "Fail") or "umpy" in said  # onnxruntime's, or its door's
        return of_this("refused" if own else status, why)
    return of_this()


def _fails(model, inputs) -> bool:
    try:
        run_source(model, inputs)
    except Exception:  # noqa: BLE001  whatever onnxruntime raises
        return True
    return False


def run_source(model, inputs) -> list:
    """What onnxruntime computes by `model` itself."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {value.name: array for value, array in zip(session.get_inputs(), inputs)})


def run_exported(model, inputs) -> list:
    """What onnxruntime computes by the export of `model`, for `inputs` in order."""
    import numpy as np
    import onnxruntime

    from halo_tvm.exporters._graph import OPSETS, Spelling
    from halo_tvm.exporters.onnx import write_onnx
    from halo_tvm.exporters.optimised import optimised

    if any(value.type.WhichOneof("value") != "tensor_type" for value in (*model.graph.input, *model.graph.output)):
        raise NotImplementedError("expected tensors, found sequences or optional values")
    held = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in held]
    given = {name: np.asarray(value) for name, value in zip(names, inputs)}
    imported = import_for(model, given)
    opset = min(max(int(imported.report["opset"]), OPSETS[0]), OPSETS[1])
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "test.onnx"
        write_onnx(optimised(imported), path, Spelling.of("portable", opset))
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return session.run(None, {spec.name: given[spec.name] for spec in imported.inputs})


def import_for(model, given):
    """`model` imported for the shapes of `given`, and for the values that its own shapes depend on."""
    from halo_tvm.exporters.onnx import spelled
    from halo_tvm.importers.onnx import NeedsConstants, import_proto

    depends: frozenset[str] = frozenset()
    while True:
        constants = {name: given[name] for name in sorted(depends)}
        shapes = {name: tuple((d, d) for d in v.shape) for name, v in given.items() if name not in constants}
        try:
            return import_proto(model, name="test", shapes=shapes, constants=constants, spelled=spelled())
        except NeedsConstants as reason:
            if reason.names <= depends:
                raise
            depends |= reason.names


if __name__ == "__main__":
    sys.exit(main())
