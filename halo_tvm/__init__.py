"""halo_tvm: a compiler and auto-tuner for deep-learning models on Apache TVM.

The functions here import what they need when they are called: importing the package costs nothing.
They are not named like the doors (`halo_tvm.tune`, `halo_tvm.compile`, ...), which are modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _without_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .compiler import CompileResult
    from .config import BenchConfig, CompileConfig, ProfileConfig, RunConfig, TuneConfig, ValidateConfig
    from .imported import ImportedModel
    from .runtime import Module
    from .runtime.language import LanguageModel
    from .targets import Target

__version__ = "0.2.0"

_without_torch.install()

__all__ = [
    "BenchConfig",
    "CompileConfig",
    "LanguageModel",
    "ProfileConfig",
    "RunConfig",
    "Target",
    "TuneConfig",
    "ValidateConfig",
    "benchmark",
    "compile_model",
    "import_jax",
    "import_keras",
    "import_torch",
    "load",
    "tune_model",
    "validate_artifact",
]

_PACKAGES = ("explore", "integrations")
_HOMES = {"Target": "targets", "LanguageModel": "runtime.language"} | {
    f"{verb}Config": "config" for verb in ("Bench", "Compile", "Profile", "Run", "Tune", "Validate")
}


def __getattr__(name: str) -> object:
    """The option sets, `Target` and the packages `explore` and `integrations`, imported on first use."""
    import importlib

    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})


def compile_model(config: CompileConfig, model: ImportedModel | None = None) -> CompileResult:
    """Compile a model into an artifact directory and validate it; see `CompileConfig`.

    `model`, for example from `import_torch`, is compiled instead of what `config.model` names.
    """
    from .compiler import compile_model

    return compile_model(config, model)


def import_jax(
    function: Callable[..., object],
    weights: object = None,
    *specs: object,
    name: str | None = None,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> ImportedModel:
    """`function(weights, *inputs)` of JAX, traced for inputs of the types `specs`, for `compile_model`.

    A module of Flax nnx or Equinox, or a Keras model on JAX, is a function and weights in one; of linen give both.

    A spec is an array, a `jax.ShapeDtypeStruct`, or (shape, dtype) like ("b, s", "int32"); `ranges` bounds the names.
    """
    from .importers.jax import import_function

    return import_function(function, weights, *specs, name=name, ranges=ranges)


def import_keras(model: object, *, name: str | None = None, shapes: tuple[str, ...] = ()) -> ImportedModel:
    """A Keras 3 model in memory, on the backend that Keras was imported with, for `compile_model`.

    `shapes` are texts like `ids=1..8x1..512` that fix or bound the sizes of its inputs.
    """
    from .importers.keras import import_model

    return import_model(model, name=name, shapes=shapes)


def import_torch(
    module: object,
    example_inputs: Sequence[object] = (),
    *,
    kwargs: Mapping[str, object] | None = None,
    dynamic_shapes: object = None,
    name: str | None = None,
) -> ImportedModel:
    """A `torch.nn.Module`, exported for inputs like the examples, or an `ExportedProgram`, for `compile_model`.

    `dynamic_shapes` is that of torch.export: the dimensions that may differ from the examples'.
    """
    from .importers.torch_export import import_module, import_program

    if hasattr(module, "graph_signature"):
        return import_program(module, name=name or "program")
    return import_module(module, example_inputs, kwargs=kwargs, dynamic_shapes=dynamic_shapes, name=name)


def tune_model(config: TuneConfig) -> object:
    """Measure a model's functions within a budget and keep what was learned; see `TuneConfig`."""
    from .tuning import tune_model

    return tune_model(config)


def load(
    path: str,
    threads: int | None = None,
    weights: str = "map",
    verify: bool = True,
    function: str = "main",
    seed: int | None = None,
) -> Module:
    """A function of an artifact, verified and ready to run.

    `threads=None` is one for each physical core this process may run on; `weights` is "map" (shared, read from disk
    on demand) or "resident" (one copy in memory); `verify=False` skips the hashes of its files, not their sizes.
    `seed` says which random numbers a model draws that draws any; without one, every load draws others.
    """
    from .runtime import load

    return load(path, threads=threads, weights=weights, verify=verify, function=function, seed=seed)


def validate_artifact(path: str, reference: str | None = None, text: str | None = None) -> dict[str, object]:
    """Compare an artifact's outputs with its reference; raises `ValidationFailed` beyond the tolerance.

    `reference` may be an .npz file, or the original model file or directory, which is evaluated again. Beside
    an original, `text` is a file that both read if it is a language model.
    """
    from .original import reference_of
    from .runtime.validation import validate_artifact

    return validate_artifact(path, reference=reference_of(path, reference, text=text))


def benchmark(config: BenchConfig) -> object:
    """Time an artifact, interleaved with other engines; see `BenchConfig`."""
    from .peers.benchmark import benchmark

    return benchmark(config)
