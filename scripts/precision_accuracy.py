"""What a precision costs on trained models: relative L2 error, top-1 agreement and bytes of params.bin.

    python scripts/precision_accuracy.py CASES [NAME ...] [--precision fp32 bf16 int8]

CASES is a folder with one folder per case: a model (`model.onnx`, or a Hugging Face directory `model`), inputs_0.npz,
inputs_1.npz, ... and expected_0.npz, ... with the outputs of the model's own engine in float32, in order. Every case
is compiled at every precision and run on its own inputs; errors are over all runs of a case together. The table is
Markdown, the one in docs/precision.md.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import halo_tvm


@dataclass(frozen=True)
class Cost:
    """Of one case at one precision; `top1` counts rows with the same largest element."""

    relative_l2: float
    cosine: float
    top1: int
    rows: int
    params_bytes: int
    kept: int  # linear weights in float32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", type=Path)
    parser.add_argument("names", nargs="*", help="cases (default: all that the folder has)")
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16", "int8"])
    options = parser.parse_args()
    names = options.names or sorted(path.name for path in options.cases.iterdir() if _model(path))
    print("| model | precision | params.bin MB | relative L2 error | cosine | top-1 agreement | linears kept in fp32 |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        for precision in options.precision:
            cost = measure(options.cases / name, precision)
            print(
                f"| {name} | {precision} | {cost.params_bytes / 1e6:.1f} | {cost.relative_l2:.1e} | "
                f"{cost.cosine:.5f} | {cost.top1} of {cost.rows} | {cost.kept or 'none'} |",
                flush=True,
            )


def measure(case: Path, precision: str) -> Cost:
    """Compile `case` at `precision` without validation and compare with its expected outputs."""
    with tempfile.TemporaryDirectory() as scratch:
        config = halo_tvm.CompileConfig(
            model=str(_model(case)), output=f"{scratch}/m.halo", precision=precision, validate=False
        )
        manifest = halo_tvm.compile_model(config).manifest
        sums = np.zeros(4)  # of o*o, r*r, o*r and (o - r)**2
        top1 = rows = 0
        with halo_tvm.load(f"{scratch}/m.halo") as module:
            for inputs in sorted(case.glob("inputs_*.npz")):
                feeds = dict(np.load(inputs))
                outputs = module(**feeds)
                outputs = outputs if isinstance(outputs, tuple) else (outputs,)
                expected = np.load(inputs.with_name(inputs.name.replace("inputs", "expected")))
                for output, name in zip(outputs, expected.files):
                    o, r = output.astype(np.float64).ravel(), expected[name].astype(np.float64).ravel()
                    sums += [o @ o, r @ r, o @ r, (o - r) @ (o - r)]
                    if output.ndim > 1:
                        top1 += int((output.argmax(-1) == expected[name].argmax(-1)).sum())
                        rows += int(np.prod(output.shape[:-1]))
    kept = manifest.reports["optimise"].get("quantise", {}).get("kept", ())
    return Cost(
        relative_l2=float(np.sqrt(sums[3] / sums[1])),
        cosine=float(sums[2] / np.sqrt(sums[0] * sums[1])),
        top1=top1,
        rows=rows,
        params_bytes=manifest.files["params.bin"].size_bytes,
        kept=len(kept),
    )


def _model(case: Path) -> Path | None:
    """The model of a case, None where the folder has none that needs no other engine."""
    found = [case / "model.onnx", case / "model"]
    return next((path for path in found if path.exists()), None)


if __name__ == "__main__":
    main()
