"""What gpu_check.py runs, made where there is a compiler: a directory of artifacts, a part of it at a time.

operators/NAME.halo   a function for each case of the registry's operator, with its NumPy reference
kernels.halo          the large product and attentions that are timed
models/NAME.halo      small GPT-2, BERT and Llama models with weights and references
step.halo, step_plain.halo   GPT-2's step of one token, as a CUDA graph and without; `weights.json` makes their
                      weights again where they run, so that they need not travel
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tvm
from _gpu_engines import Attention, Product, attention_of, product_of
from tvm import relax

from halo_tvm.artifact import FunctionSpec, Manifest, TensorSpec, Variant, write_artifact
from halo_tvm.build import build_library
from halo_tvm.compiler import compile_model
from halo_tvm.config import CompileConfig
from halo_tvm.describe import flat_types
from halo_tvm.models import FAMILIES, PRESETS
from halo_tvm.models.builder import RandomWeights
from halo_tvm.params import ParamSource
from halo_tvm.passes.schedule import schedule_functions
from halo_tvm.phase_reports import BuildReport, Reports, to_plain
from halo_tvm.relay_ops import OPERATORS
from halo_tvm.targets import Target, resolve

OPERATOR_SEED, WEIGHT_SEED = 0, 3
# Heads of 64 and rows beyond one tile: what the small cases of the registry do not reach.
MODELS: dict[str, dict[str, object]] = {
    "gpt2": {
        "n_layer": 2,
        "n_embd": 256,
        "n_head": 4,
        "vocab_size": 1003,
        "n_positions": 128,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
    },
    "bert": {
        "num_hidden_layers": 2,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "vocab_size": 1003,
        "max_position_embeddings": 128,
        "intermediate_size": 512,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
    },
    "llama": {
        "num_hidden_layers": 2,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1003,
        "max_position_embeddings": 128,
        "intermediate_size": 704,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    },
}
STEP, SMALL_STEP = "gpt2", {"layers": 2, "hidden": 128, "heads": 2, "vocabulary": 503, "feed_forward": 256}
# Beside the registry's cases, in these types: what tensor cores and long attentions serve.
NARROW = ("float16", "bfloat16")
NARROWED = ("attention", "layer_norm", "linear", "matmul", "rms_norm")


@dataclasses.dataclass(frozen=True)
class Options:
    """Of a whole directory."""

    target: str
    precision: str | None  # of the models and the step, None: the target's own; the operators' cases have theirs
    small: bool  # sizes for a machine that only tries the script
    jobs: int = 1


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of an operator."""

    arrays: tuple[np.ndarray, ...]
    attrs: Mapping[str, object]


def parts(options: Options) -> tuple[str, ...]:
    """Every part by name; each can be built by itself, in any order."""
    operators = tuple(f"operators/{name}" for name in sorted(OPERATORS))
    return (*operators, *(f"models/{name}" for name in MODELS), "step", "step_plain", "kernels")


def build_part(part: str, folder: Path, options: Options) -> None:
    """Build one part into `folder`; raises whatever the compiler raises."""
    target = resolve(options.target)
    kind, _, name = part.partition("/")
    path = folder / f"{part}.halo"
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "operators":
        cases = {f"case{i}": (name, case) for i, case in enumerate(cases_of(name, target))}
        _write_functions(path, cases, target, True)
    elif kind == "models":
        family = FAMILIES[name]
        model = family.build(name, family.from_huggingface(MODELS[name]), RandomWeights(WEIGHT_SEED), {"kind": "test"})
        compile_model(_config(options, path), model)
    elif kind == "kernels":
        gemm, *flash = timed_kernels(options)
        cases = {"gemm": ("linear", Case(product_of(gemm), {"layout": "nk", "n": gemm.n}))}
        for shape in flash:
            attrs = {
                "num_heads": shape.h,
                "num_kv_heads": shape.h,
                "head_dim": shape.d,
                "scale": shape.d**-0.5,
                "causal": True,
            }
            cases[f"flash{shape.d}"] = ("attention", Case(attention_of(shape), attrs))
        _write_functions(path, cases, target, False)
    else:
        _build_step(path, options, () if kind == "step" else ("cuda_graph",))


def timed_kernels(options: Options) -> tuple[Product | Attention, ...]:
    """The product and the attentions that are timed."""
    dtype = "float16" if resolve(options.target).spec.gpu else "float32"
    size, keys, heads = (256, 256, 2) if options.small else (4096, 4096, 16)
    return (Product(size, size, size, dtype), *(Attention(keys, heads, d, dtype) for d in (64, 128)))


def _config(options: Options, path: Path, **changes: object) -> CompileConfig:
    precision = {"precision": options.precision} if options.precision else {}
    return CompileConfig(
        model=path.stem, target=options.target, output=str(path), validate=False, **precision, **changes
    )


def _build_step(path: Path, options: Options, disable: tuple[str, ...]) -> None:
    """GPT-2 for one token: as an artifact without its weights, and how to make these."""
    family, config = PRESETS[STEP]
    if options.small:
        config = dataclasses.replace(config, **SMALL_STEP)
    weights = _Recorded(WEIGHT_SEED)
    model = family.build(STEP, config, weights, {"kind": "test"})
    compile_model(_config(options, path, shape=("input_ids=1x1",), disable=disable), model)
    names = json.loads((path / "manifest.json").read_text())["functions"]["main"]["params"]
    table = {
        "seed": WEIGHT_SEED,
        "sources": {n: weights.made[n] for n in model.params.sources},
        "recipes": [dataclasses.asdict(recipe) for recipe in model.params.recipes.values()],
        "names": names,
        "config": dataclasses.asdict(config),
        "family": family.name,
    }
    (path.parent / "weights.json").write_text(json.dumps(table))
    (path / "params.bin").unlink()


class _Recorded(RandomWeights):
    """Random weights, and by name how each was made: (shape, scale, offset)."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.made: dict[str, tuple[tuple[int, ...], float, float]] = {}

    def source(self, name: str, shape: tuple[int, ...], scale: float, offset: float) -> ParamSource:
        self.made[name] = (shape, scale, offset)
        return super().source(name, shape, scale, offset)


def cases_of(name: str, target: Target) -> list[Case]:
    """The registry's, and for a GPU those of `_more`, and all that can be of narrow types in these, too."""
    rng = np.random.default_rng(OPERATOR_SEED)
    found = [
        Case(
            tuple(a if isinstance(a, np.ndarray) else rng.standard_normal(a, dtype=np.float32) for a in case["args"]),
            case["attrs"],
        )
        for case in OPERATORS[name].cases()
    ]
    if not target.spec.gpu:
        return found
    found += [
        Case(tuple(rng.standard_normal(shape, dtype=np.float32) for shape in shapes), attrs)
        for shapes, attrs in _more().get(name, ())
    ]
    as_they_are = [case for case in found if case.attrs.get("layout") != "packed" and not _keeps_narrow(name, case)]
    return found + [_narrowed(name, case, dtype) for dtype in NARROW for case in as_they_are if name in NARROWED]


def _keeps_narrow(name: str, case: Case) -> bool:
    """Keys and values that a cache keeps in a type of its own, under queries of float32 alone."""
    return name == "attention" and not case.attrs.get("packed") and case.arrays[1].dtype != np.float32


def _more() -> dict[str, list[tuple[list[tuple[int, ...]], dict[str, object]]]]:
    """Shapes and attributes of cases beyond one tile, with tails."""
    heads = {"num_heads": 4, "num_kv_heads": 2, "scale": 0.125}
    nk = {"layout": "nk", "n": 200}
    attention = [
        ([(2, s, 4, d), (2, t, 2, d), (2, t, 2, d)], {**heads, "head_dim": d, "causal": True})
        for s, t, d in ((130, 130, 64), (70, 200, 128), (1, 300, 64))
    ]
    return {
        "linear": [([(m, 192), (200, 192), (200,)], nk) for m in (1, 3, 16, 130)],
        "attention": attention,
        "layer_norm": [([(7, 3000), (3000,), (3000,)], {"eps": 1e-5})],
        "rms_norm": [([(7, 3000), (3000,)], {"eps": 1e-6})],
    }


def _narrowed(name: str, case: Case, dtype: str) -> Case:
    """The case with its float32 in `dtype`, but for what operators want in float32: norms' vectors, masks, biases."""
    import ml_dtypes

    narrow = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    count = (1 if case.attrs.get("packed") else 3) if name == "attention" else len(case.arrays)
    least = 2 if name.endswith("norm") else 0
    return Case(
        tuple(
            a.astype(narrow) if a.dtype == np.float32 and i < count and a.ndim >= least else a
            for i, a in enumerate(case.arrays)
        ),
        case.attrs,
    )


def _write_functions(path: Path, cases: Mapping[str, tuple[str, Case]], target: Target, check: bool) -> None:
    """One library with a function for each case; `check`: with references in float64."""
    mod, report = schedule_functions(relax.transform.LegalizeOps()(module_of(cases)), target)
    library = path.with_suffix(".so")
    device = build_library(mod, target, library, False).device
    specs = {function: _spec(mod[function], case) for function, (_, case) in cases.items()}
    reference: dict[str, np.ndarray] = {}
    for function, (name, case) in cases.items() if check else ():
        number = function.removeprefix("case")
        reference |= {f"case{number}.input.x{i}": a for i, a in enumerate(case.arrays)}
        out = OPERATORS[name].reference(*(_wide(a) for a in case.arrays), **case.attrs)
        outs = out if isinstance(out, (tuple, list)) else (out,)
        reference |= {f"case{number}.output.y{i}": np.asarray(o) for i, o in enumerate(outs)}
    write_artifact(
        path,
        manifest=Manifest(
            name=path.stem,
            functions=specs,
            variants=(
                Variant(
                    target.isa.name,
                    tuple(sorted(target.isa.requires)),
                    target.machines,
                    target.key,
                    "model.so",
                    None,
                    device.form if device else None,
                ),
            ),
            source={"kind": "test"},
            reports=to_plain(Reports(schedule=report, build=BuildReport(device=device))),
        ),
        library=library,
        reference=reference or None,
    )
    library.unlink()


def module_of(cases: Mapping[str, tuple[str, Case]]) -> tvm.IRModule:
    """A function for each case, the operator's decomposition where it needs one."""
    builder = relax.BlockBuilder()
    for function, (name, case) in cases.items():
        operator = OPERATORS[name]
        params = [relax.Var(f"x{i}", relax.TensorType(a.shape, str(a.dtype))) for i, a in enumerate(case.arrays)]
        with builder.function(function, params):
            with builder.dataflow():
                out = builder.emit(operator.call(*params, **case.attrs))
                if operator.semantic:
                    out = builder.emit(operator.expand(builder, builder.lookup_binding(out)))
                out = builder.emit_output(out)
            builder.emit_func_output(out)
    return relax.transform.DeadCodeElimination()(builder.get())


def _spec(func: relax.Function, case: Case) -> FunctionSpec:
    outputs = enumerate(flat_types(func.ret_ty))
    return FunctionSpec(
        inputs=tuple(TensorSpec(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(case.arrays)),
        outputs=tuple(TensorSpec(f"y{i}", tuple(map(int, ty.shape.values)), str(ty.dtype)) for i, ty in outputs),
    )


def _wide(array: np.ndarray) -> np.ndarray:
    integer = array.dtype.kind in "iub"
    return array if integer else array.astype(np.float64)


def copy_runtime(folder: Path) -> None:
    """TVM's runtime libraries, where `halo_tvm.runtime` looks for them: a package `tvm` without Python."""
    place = folder / "runtime" / "tvm" / "lib"
    place.mkdir(parents=True, exist_ok=True)
    for name in ("libtvm_runtime.so", "libtvm_runtime_cuda.so"):
        source = Path(tvm.__file__).parent / "lib" / name
        if source.is_file():
            shutil.copy2(source, place / name)


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def rules_of(folder: Path, names: Sequence[str]) -> dict[str, dict[str, int]]:
    """By part, how many functions each rule serves."""
    found = {}
    for name in names:
        manifest = json.loads((folder / f"{name}.halo" / "manifest.json").read_text())
        found[name] = manifest["reports"]["schedule"]["rules"]
    return found
