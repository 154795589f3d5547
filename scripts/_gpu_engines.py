"""The workers of gpu_check.py: our runtime over artifacts, and torch; none of them imports TVM's compiler.

python _gpu_engines.py --worker NAME --artifacts DIR --device cuda|cpu
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import functools
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import _checkout  # noqa: F401  before halo_tvm
import _interleaved as interleaved
import numpy as np
from _interleaved import Kernel

if TYPE_CHECKING:
    import torch

TORCH = {"torch": None, "torch-compile": "default", "torch-graphs": "reduce-overhead"}  # name -> torch.compile's mode


@dataclasses.dataclass(frozen=True)
class Product:
    """x [m, k] times a weight [n, k]."""

    m: int
    n: int
    k: int
    dtype: str

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k


@dataclasses.dataclass(frozen=True)
class Attention:
    """Causal attention of batch 1: s queries and keys, h heads of d."""

    s: int
    h: int
    d: int
    dtype: str

    @property
    def flops(self) -> int:
        return 4 * self.d * self.h * self.s * (self.s + 1) // 2


def product_of(shape: Product) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(1)
    return tuple(
        (rng.standard_normal(size, dtype=np.float32) / np.float32(shape.k**0.25)).astype(shape.dtype)
        for size in ((shape.m, shape.k), (shape.n, shape.k))
    )


def attention_of(shape: Attention) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(2)
    size = (1, shape.s, shape.h, shape.d)
    return tuple(rng.standard_normal(size, dtype=np.float32).astype(shape.dtype) for _ in range(3))


def arrays_of(case: dict[str, object]) -> dict[str, np.ndarray]:
    """The inputs of a case, the same in every worker."""
    if case["function"] == "step":
        return {"input_ids": np.array([[case["token"]]], np.int64)}
    shape = case["shape"]
    arrays = attention_of(Attention(**shape)) if "d" in shape else product_of(Product(**shape))
    return {f"x{i}": array for i, array in enumerate(arrays)}


def sample_of(case: dict[str, object]) -> np.ndarray:
    """What `interleaved.work` samples of a product's or an attention's result, by NumPy in float64."""
    first, *others = (array.astype(np.float64) for array in arrays_of(case).values())
    if len(others) == 1:  # x [m, k], weight [n, k]
        (weight,) = others
        rows, columns = np.unravel_index(interleaved.sampled(len(first) * len(weight)), (len(first), len(weight)))
        return np.einsum("ik,ik->i", first[rows], weight[columns])
    keys, values = others
    found = []
    for _, query, head, column in zip(*np.unravel_index(interleaved.sampled(first.size), first.shape), strict=True):
        scores = keys[0, : query + 1, head] @ first[0, query, head] / np.sqrt(first.shape[-1])
        shares = np.exp(scores - scores.max())
        found.append(shares @ values[0, : query + 1, head, column] / shares.sum())
    return np.array(found)


def materialise(folder: Path) -> None:
    """Write the step's weights, as they were where it was compiled, into its artifacts; once."""
    from halo_tvm.artifact import ParamHeader, write_params
    from halo_tvm.params import ParamRecipe, ParamTable

    described = folder / "weights.json"
    wanting = [
        path
        for path in (folder / "step.halo", folder / "step_plain.halo")
        if path.is_dir() and not (path / "params.bin").exists()
    ]
    if not wanting:
        return
    plain = json.loads(described.read_text())
    table = ParamTable(_sources(plain))
    for recipe in plain["recipes"]:
        fields = {**recipe, "inputs": tuple(recipe["inputs"]), "shape": tuple(recipe["shape"])}
        table.add_recipe(ParamRecipe(**fields))
    headers = [ParamHeader(name, tuple(table.shape(name)), table.dtype(name)) for name in plain["names"]]
    written = wanting[0] / ".params.tmp"
    with written.open("wb") as file:
        write_params(file, headers, table.stream(plain["names"]))
    for path in wanting[1:]:
        (path / "params.bin").hardlink_to(written)
    written.rename(wanting[0] / "params.bin")


def _sources(plain: dict[str, object]) -> dict[str, object]:
    from halo_tvm.params import ParamSource, seeded_normal

    return {
        name: ParamSource(
            tuple(shape), "float32", functools.partial(seeded_normal, plain["seed"], name, tuple(shape), scale, offset)
        )
        for name, (shape, scale, offset) in plain["sources"].items()
    }


# ---- ours ----


def halo(folder: Path) -> Callable[[object], Kernel]:
    from halo_tvm.runtime import load

    def prepare(case: dict[str, object]) -> Kernel:
        step = case["function"] == "step"
        module = load(folder / case["artifact"], function="main" if step else case["function"])
        inputs = arrays_of(case)
        run = module.prepared(**inputs)

        def first() -> np.ndarray:
            outputs = module(**inputs)
            return outputs if isinstance(outputs, np.ndarray) else outputs[0]

        return Kernel(lambda: run(case["number"]), lambda _: first().astype(np.float32))

    return prepare


def check_function(case: dict[str, object], folder: Path) -> list[dict[str, object]]:
    """One function of an operator's artifact against its reference: a row for each output."""
    from halo_tvm.artifact import read_reference
    from halo_tvm.runtime import load
    from halo_tvm.runtime.tensors import numpy_dtype
    from halo_tvm.runtime.validation import compare

    path, function = folder / case["artifact"], str(case["function"])
    number = function.removeprefix("case")
    found = re.compile(rf"case{number}\.(input|output)\.(.+)")
    arrays = {m.groups(): a for key, a in read_reference(path).items() if (m := found.fullmatch(key))}
    with load(path, function=function, verify=False) as module:
        # NumPy's files have no name for bfloat16
        inputs = {spec.name: arrays["input", spec.name] for spec in module.input_specs}
        dtypes = {spec.name: numpy_dtype(spec.dtype) for spec in module.input_specs}
        outputs = module(**{name: a.view(dtypes[name]) if a.dtype.kind == "V" else a for name, a in inputs.items()})
        specs = module.output_specs
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    rows = []
    for spec, output in zip(specs, outputs, strict=True):
        expected = arrays["output", spec.name]
        if expected.shape != output.shape:
            raise SystemExit(f"{function}: expected shape {expected.shape}, found {output.shape}")
        check = compare(output, expected, case=int(number), name=spec.name, error=None, factor=1.0)
        numbers = dataclasses.asdict(check).items()  # JSON has no infinity or NaN
        rows.append(
            {k: str(v) if isinstance(v, float) and not np.isfinite(v) else v for k, v in numbers}
            | {"dtype": spec.dtype}
        )
    return rows


def ours(folder: Path, device: str) -> Callable[[dict[str, object]], dict[str, object]]:
    """The worker that checks and profiles."""
    from halo_tvm.errors import ValidationFailed
    from halo_tvm.runtime import load
    from halo_tvm.runtime.validation import validate_artifact

    def execute(message: dict[str, object]) -> dict[str, object]:
        command, case = message["command"], message["case"]
        if command == "function":
            return {"rows": check_function(case, folder)}
        if command == "model":
            try:
                report = validate_artifact(folder / case["artifact"])
            except ValidationFailed as failure:
                if not failure.report:
                    raise
                report = failure.report
            return {"rows": report["outputs"]}
        if command == "profile":
            with load(folder / case["artifact"], verify=False) as module:
                return {"rows": module.profile(**arrays_of(case))}
        if command == "about":
            return about(device)
        raise AssertionError(f"unknown command {command!r}")

    return execute


def about(device: str) -> dict[str, object]:
    """The device by our runtime, and whether the compiler is in this process."""
    import tvm_ffi

    from halo_tvm.runtime.host import gpu_arch, load_cuda_runtime, load_tvm_runtime

    load_tvm_runtime()
    arch = gpu_arch() if device == "cuda" else ""
    pci = ctypes.create_string_buffer(32)
    if arch:
        load_cuda_runtime().cudaDeviceGetPCIBusId(pci, len(pci), 0)
    return {
        "name": str(tvm_ffi.get_global_func("runtime.GetDeviceAttr")(2, 0, 5)) if arch else "",
        "arch": arch,
        "pci": pci.value.decode(),
        "compiler": "tvm" in sys.modules,
        "tvm_ffi": tvm_ffi.__version__,
    }


# ---- torch ----


def torch_engine(folder: Path, device: str, mode: str | None) -> Callable[[object], Kernel]:
    import torch

    torch.set_grad_enabled(False)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def prepare(case: dict[str, object]) -> Kernel:
        inputs = [torch.from_numpy(array).to(device) for array in arrays_of(case).values()]
        function = _torch_function(case, folder, device)
        if mode is not None:
            function = torch.compile(function, mode=mode, dynamic=False)
            for _ in range(3):
                function(*inputs)
        wait()

        def run() -> torch.Tensor:
            for _ in range(case["number"]):
                out = function(*inputs)
            wait()
            return out

        return Kernel(run, lambda out: out.float().cpu().numpy())

    return prepare


def _torch_function(case: dict[str, object], folder: Path, device: str) -> Callable[..., torch.Tensor]:
    import torch
    import torch.nn.functional as F

    if case["function"] == "gemm":
        return lambda x, w: torch.matmul(x, w.T)
    if case["function"] != "step":
        return lambda q, k, v: F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        ).transpose(1, 2)
    from halo_tvm.peers._torch_models import FAMILIES

    plain = json.loads((folder / "weights.json").read_text())
    dtype = getattr(torch, case["dtype"])
    weights = {name: torch.from_numpy(source.load()).to(device, dtype) for name, source in _sources(plain).items()}
    return FAMILIES[plain["family"]](plain["config"], weights).eval()


def about_torch(device: str) -> dict[str, object]:
    import torch

    cuda = device == "cuda"
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "name": torch.cuda.get_device_name(0) if cuda else "",
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", choices=("check", "halo", *TORCH), required=True)
    parser.add_argument("--artifacts", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    options = parser.parse_args(arguments)
    runtime = options.artifacts / "runtime"
    if runtime.is_dir():
        sys.path.append(str(runtime))  # behind an installed TVM, whose runtime is the same
    if options.worker in ("check", "halo"):
        sys.modules.setdefault("torch", None)  # where torch is installed, tvm_ffi imports it, which nothing here uses
    if options.worker == "check":
        from halo_tvm.peers.protocol import answer_all

        answer_all(ours(options.artifacts, options.device))
    elif options.worker == "halo":
        interleaved.work(halo(options.artifacts))
    else:
        engine = torch_engine(options.artifacts, options.device, TORCH[options.worker])
        interleaved.work(engine)


if __name__ == "__main__":
    main()
