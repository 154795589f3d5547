"""scripts/compare_linear.py: cells are measured once, kept, and summed up as they say."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "compare_linear.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("compare_linear", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["compare_linear"] = module
    spec.loader.exec_module(module)
    return module


def cell(script, ours: float, peers: dict[str, float], **changes):
    samples = {"halo_tvm": [ours] * 5, **{name: [value] * 5 for name, value in peers.items()}}
    given = {
        "precision": "fp32", "threads": 1, "layers": "768x768", "rows": 8, "samples_us": samples, "ceiling": 100.0,
        "products": 8 * 768 * 768, "weight_bytes": 4 * 768 * 768,
    }  # fmt: skip
    return script.Cell(**(given | changes))


def test_the_fastest_peer_and_the_geometric_mean(script):
    cells = [
        cell(script, 100.0, {"onnxruntime": 110.0, "torch": 300.0}),
        cell(script, 100.0, {"onnxruntime": 500.0, "torch": 440.0}, rows=32),
        cell(script, 100.0, {"onnxruntime": 50.0}, precision="int8"),
        cell(script, 100.0, {"torch": 90.0}, layers="gpt2", rows=1),
    ]
    text = script.table(cells)
    assert "| fp32 | 1 | 768x768 | 8 | 100 | onnxruntime | 110 | 1.10 (1.10 to 1.10) | 94 | 94 % |" in text
    assert "| torch | 440 | 4.40 (" in text
    assert "| fp32 | 1 | rows from 8 | 2 | 2.20 | 1.10 (1.10 to 1.10) |" in text, "sqrt(1.1 * 4.4)"
    assert "| int8 | 1 | rows from 8 | 1 | 0.50 |" in text, "a loss is a number like any other"
    assert "| fp32 | 1 | decode | 1 | 0.90 |" in text


def test_one_row_is_compared_with_a_read_of_its_weights(script):
    one = cell(script, 10.0, {"torch": 10.0}, rows=1, weight_bytes=500_000, products=1, ceiling=100.0)
    assert one.share == pytest.approx(0.5), "50 GB/s of 100"


def test_the_layers_of_gpt2(script):
    assert len(script.GPT2) == 49 and sum(k * n for k, n in script.GPT2) == 12 * 12 * 768 * 768 + 768 * 50257
    assert script.parse_layers("768x2304") == ((768, 2304),)
    assert script.weight_bytes("bf16", script.parse_layers("8x10")) == 160


@pytest.mark.parametrize("precision", ["fp32", "int8", "bf16"])
def test_a_tiny_cell_is_measured_kept_and_not_measured_again(script, precision, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.setattr(script, "PAUSE_S", 0.0)
    given = [
        "--precision", precision, "--threads", "1", "--shapes", "64x96", "--rows", "1,9", "--rounds", "2",
        "--seconds", "0.001", "--cache", str(tmp_path / "cache"), "--json", str(tmp_path / "r.json"), "--resume",
    ]  # fmt: skip
    monkeypatch.setattr(script, "ceiling", lambda *_: 1.0)
    script.main(given)
    cells = json.loads((tmp_path / "r.json").read_text())
    assert [c["rows"] for c in cells] == [1, 9]
    assert all(set(c["samples_us"]) == {"halo_tvm", *script.PEERS[precision]} for c in cells)
    assert all(len(s) == 2 and min(s) > 0 for c in cells for s in c["samples_us"].values())
    monkeypatch.setattr(script, "Worker", lambda *_: pytest.fail("everything is in the file"))
    script.main([*given, "--markdown", str(tmp_path / "r.md")])
    assert "| 64x96 | 9 |" in (tmp_path / "r.md").read_text()
    assert json.loads((tmp_path / "r.json").read_text()) == cells


def test_prepare_compiles_again_and_measures_nothing(script, tmp_path, monkeypatch, capsys):
    stale = tmp_path / "linear-64x96-fp32.halo"
    stale.mkdir()
    seen = []
    monkeypatch.setattr(script, "compile_layers", lambda cache, p, layers: seen.append(stale.exists()) or stale)
    monkeypatch.setattr(script, "Worker", lambda *_: pytest.fail("nothing is timed"))
    script.main(["--prepare", "--cache", str(tmp_path), "--shapes", "64x96"])
    assert seen == [False] and "linear-64x96-fp32.halo" in capsys.readouterr().out
