"""`inspect`: a manifest's reports are free in form, and its names anything."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hostile_places import changed, places

from halo_tvm.artifact import UNBOUNDED, Manifest, read_manifest
from halo_tvm.cli import main
from halo_tvm.cli.inspect import describe

REPORTS = {
    "lift": {"operators": {"linear": 2}, "applied": {}, "rejected": [{"lift": "l", "node": "n", "reason": "why"}]},
    "optimise": {
        "fuse": {"candidates": [{"taken": True}, {"taken": False}], "saved_bytes": 1 << 20},
        "quantise": {
            "linears": 2,
            "activations": 1,
            "tied_embeddings": ["t"],
            "kept": [{"weight": "w", "reason": "r"}],
        },
    },
    "schedule": {
        "functions": [{"function": "f", "rule": "fallback", "declined": ["too small"]}],
        "rules": {"fallback": 1},
        "stopped": {"dlight_matmul": 2},
        "tuned": 1,
        "kernels": {"kernels": 5, "layers": 2, "per_layer": 2, "outside": 1, "copies": ["t"]},
    },
    "build": {
        "planned_bytes": 4096,
        "device": {
            "form": "cubin",
            "arch": "sm_90",
            "compiler": "nvcc 13",
            "kernels": [
                {"name": "k1", "threads": 128, "registers": 40, "spill_store_bytes": 0, "spill_load_bytes": 0},
                {"name": "k2", "threads": None, "registers": 30, "spill_store_bytes": 8, "spill_load_bytes": 4},
            ],
        },
    },
}
VALIDATION = {
    "passed": True,
    "precision": "int8",
    "tolerance": {"relative_l2": 0.1},
    "outputs": [
        {
            "case": 0,
            "output": "y",
            "passed": True,
            "max_abs_error": 1e-3,
            "bound": 0.1,
            "relative_l2": 0.01,
            "top1": 1.0,
        }
    ],
}
HOSTILE = (0, -1, 10**400, float("inf"), "x", None, True, {}, [], [3], {"x": 3}, "\x1b[2J\nforged line")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    path = tmp_path_factory.mktemp("made") / "mlp.halo"
    assert main(["compile", "--model", "mlp", "-o", str(path), "--no-validate", "--shape", "x=1..2x1024"]) == 0
    return dataclasses.replace(read_manifest(path), reports=REPORTS, validation=VALIDATION)


def test_what_is_as_expected_is_shown(manifest: Manifest) -> None:
    text = describe(manifest)
    for words in (
        "operators   linear 2",
        "l at n: why",
        "1 of 2 candidates, 1 MiB less",
        "2 linears, 1 activations, 1 tied",
        "w: r",
        "f: too small",
        "stopped     dlight_matmul 2: rules of TVM",
        "kernels     2 per layer, 2 layers, 1 outside, 1 copies (t)",
        "tuned       1 of 1",
        "4 KiB planned",
        "passed, int8: relative L2 error 0.01",
    ):
        assert words in text
    assert text.index("\n  k2 ") < text.index("\n  k1 ") and "8 / 4" in text, "what spills comes first"
    assert "machine code and PTX for sm_90, by nvcc 13" in text


def test_tables_and_bounds_are_said_in_words(manifest: Manifest) -> None:
    main_ = dataclasses.replace(manifest.functions["main"], ranges={"batch": (1, UNBOUNDED), "s": (2, 8)})
    source = {"kind": "onnx", "typical": {"batch": 1, "s": 4}, "state": ["a", "b"]}
    text = describe(dataclasses.replace(manifest, functions={"main": main_}, source=source))
    assert "from kind onnx, typical batch=1 s=4, state a b" in text
    assert "batch from 1, without an upper bound" in text and "s from 2 to 8" in text


def test_what_is_not_is_left_out(manifest: Manifest) -> None:
    both = {"reports": REPORTS, "validation": VALIDATION}
    for path in places(both):
        for value in HOSTILE:
            found = changed(both, path, value)
            if not isinstance(found["reports"], dict) or not isinstance(found["validation"], dict | None):
                continue  # `read_manifest` refuses these
            text = describe(dataclasses.replace(manifest, **found))
            assert "\x1b" not in text and "\nforged" not in text


def test_names_are_one_line_each(manifest: Manifest, tmp_path: Path) -> None:
    evil = "\x1b[2J\nforged line"
    spec = manifest.functions["main"]
    inputs = tuple(dataclasses.replace(i, name=evil) for i in spec.inputs)
    function = dataclasses.replace(spec, inputs=inputs, ranges={evil: (1, 2)})
    text = describe(
        dataclasses.replace(
            manifest,
            name=evil,
            functions={evil: function},
            source={evil: evil},
            versions={evil: evil},
            pack_formats={evil: 1},
        )
    )
    assert "\x1b" not in text and "\nforged" not in text and text.count("forged line") >= 6
