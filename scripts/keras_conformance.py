#!/usr/bin/env python3
"""Compile a net of every layer of Keras, or of every family of applications, and write the tables of the docs.

    KERAS_BACKEND=jax python scripts/keras_conformance.py [layers|applications] [--only REGEX] [--jobs 2] [--json FILE]
                                                          [--markdown docs/keras.md] [--show] [--as saved_model]

Nets have random weights; Keras on the same backend is the reference. `--as` imports applications from a file that
TensorFlow writes of them, a SavedModel or TFLite of floats or integers; the reference is what runs such files. Results:
`pass`, `refused` (an error that says why), `wrong` (beyond 1e-4 of the largest element; of integers beyond two steps
and, in the mean of squares, a quarter farther from LiteRT's usual kernels than its portable ones are) and `failed`
(anything else: a defect; also a layer without a case). Exit status 1 when something is wrong or failed.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import _keras_files
import _workers
from _keras_cases import APPLICATIONS, CASES, WITHOUT
from onnx_conformance import Row, say

ERROR = 1e-4
STEPS = 2  # of the grid of an integer output
FARTHER = 1.25  # times what LiteRT's kernels differ by
DRAWN = 6  # inputs of nets of integers
BATCH, OPEN = 2, 7  # the sizes that nets are run at


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("layers", "applications"), default="layers")
    parser.add_argument("--as", dest="kind", default="keras", choices=("keras", *_keras_files.FORMATS))
    parser.add_argument("--only", default="", help="regular expression over names")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write every result here")
    parser.add_argument("--markdown", type=Path, help="write the table between its marks in this file")
    parser.add_argument("--show", action="store_true", help="print every net as it ends")
    args = parser.parse_args()
    backend = os.environ.setdefault("KERAS_BACKEND", "jax")
    if args.kind != "keras" and (args.what, backend) != ("applications", "tensorflow"):
        parser.error("--as is for applications on TensorFlow")
    every = layers() if args.what == "layers" else list(APPLICATIONS)
    names = [name for name in every if re.search(args.only, name)]
    results = []
    for name, row, reason in _workers.run_all(names, runner, (args.what, args.kind), jobs=args.jobs, limit_s=3600):
        ended = {"name": name, "status": "failed", "why": f"the process ended: {reason}"}
        results.append(ended if row is None else row)
        if args.show:  # as they end: a run takes its time
            print(results[-1]["status"], name, results[-1]["why"][:200], flush=True)
    results.sort(key=lambda row: row["name"])
    if args.markdown:
        write_table(args.markdown, args.what, backend if args.kind == "keras" else args.kind, results)
    return say(results, show=False, file=args.json)


def layers() -> list[str]:
    """Every class of `keras.layers` once, but those that mean nothing in inference."""
    import keras

    classes: dict[type, str] = {}
    for name in dir(keras.layers):
        kind = getattr(keras.layers, name)
        if isinstance(kind, type) and issubclass(kind, keras.layers.Layer):
            if kind not in classes or name in CASES:
                classes[kind] = name
    return [name for name in classes.values() if name not in WITHOUT]


def runner(what: str, kind: str) -> Callable[[str], Row]:
    """The function that runs one net by its name."""
    return run_layer if what == "layers" else partial(run_application, kind=kind)


def run_layer(name: str) -> Row:
    import keras

    if name not in CASES:
        return {"name": name, "status": "failed", "why": "no case: add one to scripts/_keras_cases.py"}
    case = CASES[name]
    keras.utils.set_random_seed(0)
    inputs = [keras.Input(shape, dtype=case.dtype, name=f"x{i}") for i, shape in enumerate(case.shapes)]
    try:
        net = keras.Model(inputs, case.build(getattr(keras.layers, name), inputs))
    except Exception as reason:  # noqa: BLE001  Keras on this backend, before anything of ours
        return {"name": name, "status": "refused", "why": f"by Keras: {type(reason).__name__}: {reason}"}
    return compared(name, net)


def run_application(name: str, kind: str) -> Row:
    import keras

    keras.utils.set_random_seed(0)
    size = APPLICATIONS[name]
    build = getattr(keras.applications, name)
    # Rescaling to the range of pictures is no part of what is compared.
    has_rescaling = "include_preprocessing" in inspect.signature(build).parameters
    options = {"include_preprocessing": False} if has_rescaling else {}
    # Logits: a softmax would hide what ten outputs differ by.
    net = build(weights=None, input_shape=(size, size, 3), classes=10, classifier_activation=None, **options)
    return compared(name, net, least=0.0) if kind == "keras" else compared_as(name, net, kind)


def compared_as(name: str, net, kind: str) -> Row:
    """`net` compiled from a file of the format `kind`, beside what runs such files."""
    import numpy as np

    from halo_tvm.errors import HaloError
    from halo_tvm.importers import import_model
    from halo_tvm.importers.shapes import apply_shapes
    from halo_tvm.in_process import compile_in_process

    rng = np.random.default_rng(0)
    _vary(net, rng)
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = _keras_files.written(net, kind, Path(folder))
        except Exception as reason:  # noqa: BLE001  TensorFlow's converter, before anything of ours
            return {"name": name, "status": "refused", "why": f"by TensorFlow: {type(reason).__name__}: {reason}"}
        try:
            model = import_model(str(path))
            (spec,) = model.inputs
            bounds = "x".join(f"1..{2 * BATCH}" if isinstance(d, str) else str(d) for d in spec.shape)
            model = apply_shapes(model, (f"{spec.name}={bounds}",))
            shape, compiled = [BATCH if isinstance(d, str) else d for d in spec.shape], compile_in_process(model)

            def run(x) -> list:
                found = compiled(x)
                return [found[key] for key in model.outputs]

            def reference(x) -> list:
                wanted = model.engine({spec.name: x})
                return [wanted[key] for key in model.outputs]

            if spec.dtype == "float32":
                x = rng.random(shape).astype(spec.dtype)
                difference = differs(run(x), reference(x), least=0.0)
            else:
                drawn = [rng.integers(-128, 128, shape, spec.dtype) for _ in range(DRAWN)]
                three = [[one(x) for x in drawn] for one in (run, reference, partial(_keras_files.portable, path))]
                difference = differs_in_steps(*three)
        except HaloError as reason:
            return {"name": name, "status": "refused", "why": str(reason)}
        except Exception as reason:  # noqa: BLE001  whatever a net may raise must not end the run
            lines = str(reason).strip().splitlines() or [""]
            return {"name": name, "status": "failed", "why": f"{type(reason).__name__}: {lines[-1][:300]}"}
    return {"name": name, "status": "wrong" if difference else "pass", "why": difference}


def differs_in_steps(found, usual, portable) -> str:
    """What differs from LiteRT's usual kernels by more than `STEPS`, and by more than its portable ones do.

    In a deep net of integers single steps add up. How far its two sets of kernels are from one another, over all draws,
    is what no engine can be held to.
    """
    import numpy as np

    for outputs, wanted in zip(found, usual, strict=True):
        if [(v.shape, v.dtype) for v in outputs] != [(v.shape, v.dtype) for v in wanted]:
            return f"{[(v.shape, str(v.dtype)) for v in outputs]}, expected {[(v.shape, str(v.dtype)) for v in wanted]}"

    def apart(one, other):
        return np.concatenate(
            [np.subtract(a, b, dtype=np.float64).ravel() for x, y in zip(one, other) for a, b in zip(x, y, strict=True)]
        )

    ours, theirs = apart(found, usual), apart(portable, usual)
    far, known = (float(np.sqrt((d**2).mean())) for d in (ours, theirs))
    if abs(ours).max(initial=0) <= STEPS or far <= FARTHER * known:
        return ""
    return (
        f"{abs(ours).max():.0f} steps, {far:.2f} in the mean of squares, where LiteRT's kernels differ by {known:.2f}"
    )


def compared(name: str, net, *, least: float = 1.0) -> Row:
    """`net` compiled, beside Keras; a largest element below `least` counts as that."""
    import keras
    import numpy as np

    import halo_tvm
    from halo_tvm.errors import HaloError
    from halo_tvm.in_process import compile_in_process

    rng = np.random.default_rng(0)
    _vary(net, rng)
    given = []
    for tensor in net.inputs:
        shape = [BATCH if axis == 0 else OPEN if d is None else d for axis, d in enumerate(tensor.shape)]
        whole = "int" in tensor.dtype
        array = (
            rng.integers(0, 5, shape) if whole else rng.random(shape) if len(shape) > 3 else rng.standard_normal(shape)
        )
        given.append(array.astype(tensor.dtype))
    try:
        wanted = [np.asarray(keras.ops.convert_to_numpy(t)) for t in keras.tree.flatten(net(given, training=False))]
    except Exception as reason:  # noqa: BLE001  Keras on this backend, before anything of ours
        return {"name": name, "status": "refused", "why": f"by Keras: {type(reason).__name__}: {str(reason)[:200]}"}
    try:
        model = halo_tvm.import_keras(net, shapes=tuple(map(_bounds, net.inputs)))
        found = list(compile_in_process(model)(*given).values())
    except HaloError as reason:
        return {"name": name, "status": "refused", "why": str(reason)}
    except Exception as reason:  # noqa: BLE001  whatever a net may raise must not end the run
        lines = str(reason).strip().splitlines() or [""]
        return {"name": name, "status": "failed", "why": f"{type(reason).__name__}: {lines[-1][:300]}"}
    difference = differs(found, wanted, least=least)
    return {"name": name, "status": "wrong" if difference else "pass", "why": difference}


def _bounds(tensor) -> str:
    """Open sizes from 1 to a little more than what is run: buffers are as large as their largest size."""
    sizes = [f"1..{2 * (BATCH if axis == 0 else OPEN)}" if d is None else str(d) for axis, d in enumerate(tensor.shape)]
    return f"{tensor.name}={'x'.join(sizes)}"


def _vary(net, rng) -> None:
    """Statistics and biases other than zero and one: what a net forgets of them shows."""
    for variable in net.weights:
        kind = variable.path.rpartition("/")[2]
        if kind in ("bias", "beta", "moving_mean", "gamma", "moving_variance", "scale", "alpha"):
            noise = rng.uniform(0.5, 1.5, variable.shape) if "mean" not in kind else rng.normal(0, 0.1, variable.shape)
            variable.assign((noise * 0.1 if kind in ("bias", "beta") else noise).astype("float32"))


def differs(found, wanted, *, least: float = 1.0) -> str:
    """What differs by more than `ERROR` of the largest element, of at least `least`."""
    import numpy as np

    if len(found) != len(wanted):
        return f"{len(found)} outputs, expected {len(wanted)}"
    for place, (got, want) in enumerate(zip(found, wanted)):
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"output {place}: {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
        got, want = got.astype(np.float64), want.astype(np.float64)
        error = float(np.max(np.abs(got - want), initial=0.0))
        if not error <= ERROR * max(least, float(np.max(np.abs(want), initial=0.0))):
            return f"output {place}: an error of {error:.1e}"
    return ""


def write_table(path: Path, what: str, backend: str, results: Sequence[Row]) -> None:
    """What passes in one line, then a table of what does not, between the marks of `path`."""
    import keras

    start, end = (
        f"<!-- {what} on {backend}: generated by scripts/keras_conformance.py -->",
        f"<!-- end of {what} on {backend} -->",
    )
    of = {status: [r for r in results if r["status"] == status] for status in ("pass", "refused", "wrong", "failed")}
    counts = ", ".join(f"{len(rows)} {status}" for status, rows in of.items())
    lines = [start, f"{what} of Keras {keras.__version__} on {backend}: {len(results)}, of them {counts}.", ""]
    if what == "applications":
        lines += ["Pass: " + ", ".join(r["name"] for r in of["pass"]) + ".", ""]
    others = [r for r in results if r["status"] != "pass"]
    if others:
        lines += [f"| {what[:-1]} | result | reason |", "|---|---|---|"]
        lines += [f"| {r['name']} | {r['status']} | {_line(r['why'])} |" for r in others]
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(start)
    _, _, after = rest.partition(end)
    path.write_text(before + "\n".join([*lines, end]) + after, encoding="utf-8")


def _line(text: str) -> str:
    return " ".join(text.split())[:160].replace("|", "/")


if __name__ == "__main__":
    sys.exit(main())
