"""Which engine made the reference that an artifact is compared with: `compile` writes it down, others print it."""

from __future__ import annotations

from collections.abc import Mapping

from ..artifact import Manifest

NUMPY = "NumPy (float64)"
# By the kind of the source. They compute in the model's own precision, most of them in float32.
_ENGINES = {
    "onnx": "onnxruntime",
    **dict.fromkeys(("torch", "torch_export", "torchscript", "transformers"), "torch"),
    **dict.fromkeys(("jax", "stablehlo"), "XLA"),
    "keras": "Keras",
    "tensorflow": "TensorFlow",
    "tflite": "LiteRT",
}


def engine_name(source: Mapping[str, object], engine: object | None) -> str:
    """The name of `engine`, which evaluates a model of this source: its importer says it where there are several.

    None is NumPy.
    """
    if engine is None:
        return NUMPY
    return str(source.get("engine") or _ENGINES.get(str(source.get("kind")), "the source's engine"))


def with_engine(manifest: Manifest, engine: object | None) -> dict[str, object]:
    """The manifest's reports with what makes its reference."""
    return {**manifest.reports, "reference": {"engine": engine_name(manifest.source, engine)}}


def engine_of(manifest: Manifest) -> str:
    """What made the artifact's reference; artifacts of earlier releases do not say, but their source's kind does."""
    told = manifest.reports.get("reference")
    engine = told.get("engine") if isinstance(told, Mapping) else None
    return engine if isinstance(engine, str) and engine else _ENGINES.get(str(manifest.source.get("kind")), NUMPY)
