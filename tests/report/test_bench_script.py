"""scripts/bench.py: the README's table comes from JSON and from nowhere else."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from halo_tvm.errors import UsageError

from test_report import BENCH

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("bench_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["bench_script"] = module
    spec.loader.exec_module(module)
    return module


def test_the_table_is_replaced_between_the_markers(bench, tmp_path):
    readme, results = tmp_path / "README.md", tmp_path / "r.json"
    readme.write_text(f"before\n{bench.BEGIN}\nold table\n{bench.END}\nafter\n")
    bench.write_results(results, [BENCH])
    assert bench.main(["--no-run", "--update-readme", "--json", str(results), "--readme", str(readme)]) == 0
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old table" not in text
    assert "| gpt2 1x128 | 2 | 50.0 | onnxruntime | 75.0 | 1.50 (1.40 to 1.60), faster | 1e-06 / 1e-06 |" in text
    assert "| torch | 40.0 | 0.80 (0.70 to 0.90), slower |" in text
    assert "| torch-compile | failed | - |" in text
    once = text
    assert bench.main(["--no-run", "--update-readme", "--json", str(results), "--readme", str(readme)]) == 0
    assert readme.read_text() == once, "writing the same results again changes nothing"


def test_a_readme_without_markers_and_missing_results_are_refused(bench, tmp_path, capsys):
    readme = tmp_path / "README.md"
    readme.write_text("no markers")
    with pytest.raises(UsageError, match="once each in README.md"):
        bench.update_readme(readme, [BENCH])
    assert bench.main(["--no-run", "--update-readme", "--json", str(tmp_path / "none.json")]) == 1
    assert "expected results at" in capsys.readouterr().err
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UsageError, match="expected JSON"):
        bench.read_results(tmp_path / "bad.json")
