"""scripts/roofline.py: its page, its drawing, and the ceilings it takes."""

from __future__ import annotations

import importlib
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from test_report_views import HOST, profile

from halo_tvm.ceilings import HostProfile
from halo_tvm.report import schema

PATH = Path(__file__).resolve().parents[2] / "scripts" / "roofline.py"
RATES = {"fma_gflops": 100.0, "int8_gops": 400.0, "l2_gbps": 80.0, "l3_gbps": 40.0, "dram_gbps": 20.0}


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(PATH.parent))
    return importlib.import_module("roofline")


def test_the_page_has_a_row_per_kernel_and_the_data_survive(script, tmp_path: Path) -> None:
    entry = script.Entry.of("some/where/m.halo@batch=1,sequence=8")
    assert entry.sizes == "batch=1,sequence=8"
    script.write(tmp_path, [(entry, profile("m"))], {2: RATES})
    page = (tmp_path / "roofline.md").read_text()
    assert "| 2 | 100 | - | 400 | 80 | 40 | 20 |" in page
    assert "## m.halo batch=1,sequence=8, 2 threads" in page and "some/where" not in page
    assert "| k1 | linear | 2 | 35.0 | 70.0 % | 2.00 |" in page and "| k2 | attention |" in page
    data = json.loads((tmp_path / "roofline.json").read_text())
    assert "some/where" not in json.dumps(data) and data["peaks"]["2"] == RATES
    fields = {k: v for k, v in data["profiles"][0].items() if k not in ("entry", "sizes")}
    assert schema.from_json(fields).host == HOST


def test_points_stand_where_their_numbers_say(script) -> None:
    result = profile("<m&>")
    root = ElementTree.fromstring(script.drawing([(script.Entry("<m&>", ""), result)], RATES, 2))
    circles = [e for e in root.iter() if e.tag.endswith("circle")]
    titles = [e.find("{http://www.w3.org/2000/svg}title").text for e in circles]
    assert "<m&>: k1, 2.00 flop/byte, 28.6 GFLOP/s" in titles, "k2's work is unknown: no point"
    axes = script.Axes(-2.0, 3.5, script.math.log10(400.0) + 0.2)
    x, y = axes.at(2.0, 2_000_000 / 70.0 / 1e3)
    assert (float(circles[0].get("cx")), float(circles[0].get("cy"))) == pytest.approx((x, y), abs=0.1)


def test_a_ceiling_is_the_larger_of_two_measurements(script) -> None:
    first = HostProfile("cpu", "x86_64", "avx2", "", {2: {**RATES, "dram_gbps": 25.0}})
    second = HostProfile("cpu", "x86_64", "avx2", "", {2: {**RATES, "fma_gflops": 90.0, "l2_gbps": 81.0}})
    assert script.larger(first, second, 2).by_threads[2] == {**RATES, "dram_gbps": 25.0, "l2_gbps": 81.0}


def test_models_of_the_same_name_are_compiled_apart_and_once(script, tmp_path: Path, monkeypatch) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(script, "run", lambda words, **_: compiled.append(words[words.index("-o") + 1]))
    entries = [script.Entry.of(text) for text in ("gpt2@sequence=8", "gpt2.onnx", "gpt2@sequence=16", "x/gpt2.onnx")]
    assert script.measured(entries, [], 1, "fp32", tmp_path) == ([], {})
    assert len(compiled) == len(set(compiled)) == 3
