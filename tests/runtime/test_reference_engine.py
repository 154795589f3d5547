"""The engine that made a reference is named by the artifact, or by the kind of its source where it does not say."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from halo_tvm.artifact import read_manifest
from halo_tvm.runtime.reference_engine import NUMPY, engine_name, engine_of, with_engine


@pytest.mark.parametrize(
    ("kind", "engine", "name"),
    [
        ("onnx", object(), "onnxruntime"),
        ("onnx", None, NUMPY),
        ("torchscript", object(), "torch"),
        ("stablehlo", object(), "XLA"),
        ("keras", object(), "Keras"),
        ("tensorflow", object(), "TensorFlow"),
        ("huggingface", None, NUMPY),
    ],
)
def test_engines_are_named(kind: str, engine: object, name: str) -> None:
    assert engine_name({"kind": kind}, engine) == name


def test_an_importer_of_several_engines_names_its_own() -> None:
    assert engine_name({"kind": "tflite", "engine": "LiteRT"}, object()) == "LiteRT"


def test_an_artifact_says_it_or_its_source_does(threads_artifact: Path) -> None:
    old = dataclasses.replace(read_manifest(threads_artifact), source={"kind": "torchscript"}, reports={})
    assert engine_of(old) == "torch"
    assert engine_of(dataclasses.replace(old, reports=with_engine(old, None))) == NUMPY
    assert engine_of(dataclasses.replace(old, reports={"reference": {"engine": 3}})) == "torch"
