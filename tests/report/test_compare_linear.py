"""scripts/compare_linear.py: cells are measured once, kept, and summed up as they say."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path

import pytest

from halo_tvm.peers.statistics import relative_l2

SCRIPT = Path(__file__).parents[2] / "scripts" / "compare_linear.py"


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(SCRIPT.parent))
    return importlib.import_module("compare_linear")


@pytest.fixture(autouse=True)
def torch_as_it_was():
    """An engine sets up its own process: without gradients, with frozen weights. Tests share theirs."""
    yield
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_grad_enabled(True)
        if (inductor := sys.modules.get("torch._inductor.config")) is not None:
            inductor.freezing = False


def cell(script, ours: float, peers: dict[str, float], **changes):
    samples = {"halo_tvm": [ours] * 5, **{name: [value] * 5 for name, value in peers.items()}}
    given = {
        "precision": "fp32",
        "threads": 1,
        "layers": "768x768",
        "rows": 8,
        "samples_us": samples,
        "ceiling": 100.0,
        "products": 8 * 768 * 768,
    }
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
    one = cell(script, 10.0, {"torch": 12.0, script.READ: 5.0}, rows=1, ceiling=0.0)
    assert one.share == pytest.approx(0.5), "the read's time / ours"
    assert one.best()[0] == "torch", "a read is no peer"


def test_the_layers_of_gpt2(script):
    assert len(script.GPT2) == 49 and sum(k * n for k, n in script.GPT2) == 12 * 12 * 768 * 768 + 768 * 50257
    assert script.parse_layers("768x2304") == ((768, 2304),)
    assert script.parse_layers("8x10") == ((8, 10),)


@pytest.mark.parametrize("precision", ["fp32", "int8", "bf16"])
@pytest.mark.slow
def test_a_tiny_cell_is_measured_kept_and_not_measured_again(script, precision, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    peers = [name for name in script.PEERS[precision] if name != "torch-compile"]
    given = [*tiny(tmp_path, precision, peers), "--json", str(tmp_path / "r.json"), "--resume"]
    script.main(given)
    cells = json.loads((tmp_path / "r.json").read_text())
    assert [c["rows"] for c in cells] == [1, 9] and [c["ceiling"] for c in cells] == [0.0, 100.0]
    assert [set(c["samples_us"]) for c in cells] == [{"halo_tvm", *peers, script.READ}, {"halo_tvm", *peers}]
    assert all(len(s) == 2 and min(s) > 0 for c in cells for s in c["samples_us"].values())
    monkeypatch.setattr(script.interleaved, "workers", lambda *_: pytest.fail("everything is in the file"))
    script.main([*given, "--markdown", str(tmp_path / "r.md")])
    assert "| 64x96 | 9 |" in (tmp_path / "r.md").read_text()
    assert json.loads((tmp_path / "r.json").read_text()) == cells


def tiny(tmp_path, precision: str, peers: list[str]) -> list[str]:
    return [
        "--precision",
        precision,
        "--threads",
        "1",
        "--shapes",
        "64x96",
        "--rows",
        "1,9",
        "--rounds",
        "2",
        "--seconds",
        "0.001",
        "--pause",
        "0",
        "--ceiling",
        "100",
        "--cache",
        str(tmp_path / "cache"),
        "--vs",
        *peers,
    ]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler: apt-get install g++")
def test_torch_with_frozen_weights_computes_the_same(script, tmp_path):
    pytest.importorskip("torch")
    from _linear_engines import joined, torch_compile, torch_eager

    layers = script.parse_layers("64x96")
    eager, compiled = (engine(tmp_path, "bf16", layers, 1) for engine in (torch_eager, torch_compile))
    for rows in (1, 9):
        kernels = [prepare(rows) for prepare in (eager, compiled)]
        one, other = (kernel.result(kernel.call()) for kernel in kernels)
        assert one.shape == joined([other]).shape == (rows * 96,) and relative_l2(one, other) < 1e-2


@pytest.mark.slow
def test_engines_that_compute_something_else_are_not_compared(script, tmp_path):
    import _linear_engines

    def other_weights(cache, precision, layers):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_linear_engines, "weight", lambda i, k, n: _linear_engines.random(k, n, seed=77))
            return _linear_engines.compile_layers(cache, precision, layers)

    other_weights(tmp_path / "cache", "fp32", script.parse_layers("64x96"))
    with pytest.raises(SystemExit, match="onnxruntime at 1: expected our result within 0.0001, found 1"):
        script.main(tiny(tmp_path, "fp32", ["onnxruntime"]))


def test_the_ceiling_is_measured_in_a_process_of_its_own(script, tmp_path):
    arguments = ("--precision", "fp32", "--threads", "1", "--shapes", "64x96", "--cache", str(tmp_path))
    with script.interleaved.workers(str(SCRIPT), ["ceiling"], 1, *arguments) as workers:
        assert workers["ceiling"].ask("ceiling", case=8)["value"] > 0.1


def test_prepare_compiles_again_and_measures_nothing(script, tmp_path, monkeypatch, capsys):
    stale = tmp_path / "layers-64x96-fp32.halo"
    stale.mkdir()
    seen = []
    monkeypatch.setattr(script, "compile_layers", lambda cache, p, layers: seen.append(stale.exists()) or stale)
    monkeypatch.setattr(script.interleaved, "workers", lambda *_: pytest.fail("nothing is timed"))
    script.main(["--prepare", "--cache", str(tmp_path), "--shapes", "64x96"])
    assert seen == [False] and "layers-64x96-fp32.halo" in capsys.readouterr().out
