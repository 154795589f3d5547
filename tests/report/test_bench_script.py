"""scripts/bench.py: the README's table comes from JSON and from nowhere else."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_report import BENCH, comparison, engine

import halo_tvm
from halo_tvm.config import parse_sizes
from halo_tvm.errors import UsageError
from halo_tvm.models import PRESETS
from halo_tvm.peers.engines import PEERS
from halo_tvm.report import terminal
from halo_tvm.report.schema import SkippedResult

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench.py"


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(SCRIPT.parent))
    return importlib.import_module("bench")


def test_the_table_is_replaced_between_the_markers(bench, tmp_path):
    page, results = tmp_path / "benchmarks.md", tmp_path / "r.json"
    page.write_text(f"before\n{bench.BEGIN}\nold table\n{bench.END}\nafter\n")
    bench.write_results(results, [BENCH])
    assert bench.main(["--no-run", "--update-docs", "--json", str(results), "--page", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old table" not in text
    assert "| gpt2 1x128 | fp32 | 2 | 50.0 | onnxruntime | 75.0 | 1.50 (1.40 to 1.60) faster | - |  |" in text
    assert "1x128 | fp32 | 2 | 50.0 | torch" not in text, "its error is infinite"
    peers = (tmp_path / "benchmarks-peers.md").read_text()
    assert "| onnxruntime | fp32 | 75.0 | 1.50 (1.40 to 1.60) faster | 1e-06 | 512 |" in peers
    assert "| torch-compile | fp32 | failed | - | - | - | no compiler \\| found |" in peers
    once = text
    assert bench.main(["--no-run", "--update-docs", "--json", str(results), "--page", str(page)]) == 0
    assert page.read_text() == once, "writing the same results again changes nothing"


def test_nets_have_a_table_of_their_own(bench, tmp_path):
    """The faster peer of each counts; a net that failed stands there with its reason."""
    page, folder = tmp_path / "benchmarks.md", tmp_path / "nets" / "tagger"
    page.write_text(f"before\n{bench.BEGIN_NETS}\nold\n{bench.END_NETS}\nafter\n")
    folder.mkdir(parents=True)
    for file in (folder / "model.onnx", folder.parent / "alone.onnx"):
        file.touch()
    assert [name for name, _ in bench._net_files.files_of([folder.parent])] == ["alone", "tagger"]
    ours, ort, *_ = BENCH.engines
    fast = dataclasses.replace(ort, engine="openvino")
    compared = (comparison("onnxruntime", 2.0, "faster"), comparison("openvino", 0.5, "slower"))
    net = dataclasses.replace(BENCH, model="tagger", engines=(ours, ort, fast), comparisons=compared)
    skipped = SkippedResult("broken", {}, 2, "fp32", BENCH.host, "no such operator")
    host = dataclasses.replace(BENCH.host, cpu="another")
    bench.write_results(tmp_path / "nets.json", [net, skipped, dataclasses.replace(net, host=host)])
    given = [
        "--no-run",
        "--update-docs",
        "--nets",
        str(folder),
        "--json",
        str(tmp_path / "r.json"),
        "--page",
        str(page),
    ]
    assert bench.main(given) == 0
    text = page.read_text()
    assert "| tagger | 50 | 2.00 | 0.50 |" in text and "| broken | - | - | - | no such operator |" in text
    assert "### another" in text and text.count("each net: **0.50** (1 nets)") == 2
    assert text.endswith("\nafter\n") and "old" not in text
    with pytest.raises(UsageError, match="expected an ONNX file"):
        list(bench._net_files.files_of([tmp_path / "none"]))


def test_a_page_without_markers_and_missing_results_are_refused(bench, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("no markers")
    with pytest.raises(UsageError, match="once each in page.md"):
        bench.update_docs(page, [BENCH])
    assert bench.main(["--no-run", "--update-docs", "--json", str(tmp_path / "none.json")]) == 1
    assert "expected results at" in capsys.readouterr().err
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UsageError, match="expected JSON"):
        bench.read_results(tmp_path / "bad.json")


def result(bench, ratio: float, **changes):
    """A row of the suite at two threads against one peer."""
    made = dataclasses.replace(
        BENCH,
        model="gpt2-last",
        inputs={"input_ids": (1, 128)},
        engines=(engine("halo_tvm", 50.0), engine("onnxruntime", 50.0 * ratio)),
        comparisons=(comparison("onnxruntime", ratio, "faster"),),
    )
    return dataclasses.replace(made, **changes)


def test_goals_stand_beside_what_was_reached(bench):
    rows = bench.summary_table([result(bench, ratio) for ratio in (1.3, 1.1, 1.21)]).splitlines()
    alone = "; without onnxruntime-plain, onnxruntime-extended, torch-compile, openvino |"
    assert rows[2].endswith(f"| 1.20 | reached{alone}") and rows[3].endswith(f"| 1.20 | not reached, faster{alone}")
    assert rows[4].endswith(f"| 1.20 | reached, within noise{alone}"), "its interval begins below the goal"
    one = bench.summary_table([result(bench, 1.3, threads=1)]).splitlines()[2]
    assert one.endswith("| - |  |"), "goals are meant at two threads"
    int8 = bench.summary_table([result(bench, 1.3, precision="int8")]).splitlines()[2]
    assert int8.endswith("| 1.60 | no such peer ran |"), "a float32 engine is no int8 peer"


def test_a_peer_that_computes_something_else_wins_nothing(bench):
    wrong = dataclasses.replace(engine("torch-compile", 10.0, 0.9))
    engines = (engine("halo_tvm", 50.0), engine("onnxruntime", 65.0), wrong)
    ratios = (comparison("onnxruntime", 1.3, "faster"), comparison("torch-compile", 0.2, "slower"))
    line = bench.summary_table([result(bench, 1.3, engines=engines, comparisons=ratios)]).splitlines()[2]
    assert "| onnxruntime | 65.0 | 1.30" in line


def test_a_faster_peer_that_the_goal_does_not_name_is_shown(bench):
    engines = (engine("halo_tvm", 50.0), engine("onnxruntime", 65.0), engine("jax", 60.0))
    ratios = (comparison("onnxruntime", 1.3, "faster"), comparison("jax", 1.2, "faster"))
    line = bench.summary_table([result(bench, 1.3, engines=engines, comparisons=ratios)]).splitlines()[2]
    assert "| onnxruntime | 65.0 | 1.30" in line and "| reached; jax, in no goal, took 60.0 ms (1.20); without " in line
    disturbed = (comparison("onnxruntime", 1.3, "faster"), comparison("jax", 1.31, "faster"))
    line = bench.summary_table([result(bench, 1.3, engines=engines, comparisons=disturbed)]).splitlines()[2]
    assert "jax" not in line, "the fastest is the one with the least paired ratio, as in the other columns"


def test_hosts_have_tables_of_their_own(bench):
    """A row that was measured elsewhere stays, and is no answer for this host."""
    other = dataclasses.replace(BENCH.host, cpu="another one")
    both = [result(bench, 1.3), result(bench, 1.1, host=other), result(bench, 1.2, precision="fp16")]
    first, second = bench.summary_table(both).split("| model |")[1:]
    assert first.count("gpt2-last") == 2 and f"Measured on {BENCH.host.cpu}" in first
    assert second.count("gpt2-last") == 1 and "Measured on another one" in second
    assert bench.every_peer(both).count("## ") == 2 and "## " not in bench.every_peer(both[:1])
    assert len({bench._key(one) for one in both}) == 3
    key = ("gpt2-last", (1, 128), 2, "fp32", other.cpu)
    assert [bench._matches(key, one) for one in both] == [False, True, False]


def test_every_peer_that_a_goal_names_runs(bench):
    for row, precision, _ in bench.cells(None, None, (2,)):
        for goal in row.goals:
            assert goal.precision != precision or set(goal.against) <= set(row.peers(precision))


def test_memory_is_a_line_of_its_own(bench):
    lean = dataclasses.replace(engine("halo_tvm", 50.0), peak_rss_mib=256.0)
    engines = (lean, engine("onnxruntime", 65.0), engine("torch", 70.0))
    text = bench.summary_table([result(bench, 1.3, engines=engines)])
    assert "| gpt2-last 1x128, peak memory | fp32 | 2 | 256 MiB | torch | 512 MiB | 2.00 | 1.50 | reached |" in text


def test_rows_that_could_not_be_measured_stay_with_their_reason(bench, tmp_path):
    skipped = SkippedResult("gpt2-last", {"sizes": (1, 128)}, 2, "fp16", BENCH.host, "no fp16 here")
    bench.write_results(tmp_path / "r.json", [skipped, BENCH])
    again = bench.read_results(tmp_path / "r.json")
    assert again == [skipped, BENCH]
    assert "| gpt2-last 1x128 | fp16 | 2 |" in bench.summary_table(again)
    assert "no fp16 here" in terminal.render(skipped)


def test_the_suite_runs_row_by_row_and_resumes(bench, tmp_path, monkeypatch):
    asked = []

    def fake(config):
        asked.append(config)
        if "int8" in config.artifact:
            raise UsageError("not yet")
        sizes = {"x": (256, 1024)}
        return result(bench, 1.1, model="mlp", inputs=sizes, threads=config.threads, rounds=config.rounds)

    monkeypatch.setattr(halo_tvm, "benchmark", fake)
    monkeypatch.setattr(bench, "describe_host", lambda: BENCH.host)
    monkeypatch.setattr(bench, "_compiled", bench._artifact)
    given = ["--only", "mlp", "--json", str(tmp_path / "r.json"), "--cache", str(tmp_path), "--quick"]
    assert bench.main(given) == 1, "one row could not be measured"
    assert [(c.threads, c.rounds) for c in asked] == [(2, 6), (2, 6)]
    assert "libxsmm" in asked[0].vs and "onnxruntime-int8" in asked[1].vs and "torch" not in asked[1].vs
    kinds = [r.kind for r in bench.read_results(tmp_path / "r.json")]
    assert kinds == ["bench", "skipped"]
    asked.clear()
    assert bench.main([*given, "--resume"]) == 0 and asked == [], "everything is in the file"
    assert bench.main([*given, "--precision", "fp32"]) == 0 and len(asked) == 1, "one row is measured again"
    assert len(bench.read_results(tmp_path / "r.json")) == 2
    assert bench.main([*given, "--fresh", "--precision", "fp32"]) == 0
    assert len(bench.read_results(tmp_path / "r.json")) == 1


def test_every_row_has_peers_that_exist_and_sizes_that_fit(bench):
    for row, precision, _ in bench.cells(None, None, (1, 2)):
        assert set(row.peers(precision)) <= set(PEERS) and row.model in PRESETS
        family, config = PRESETS[row.model]
        ranges = family.interface(config).ranges
        assert all(ranges[n][0] <= size <= ranges[n][1] for n, size in parse_sizes(row.shape).items())
        for goal in row.goals:
            assert set(goal.against) <= set(PEERS)


def test_the_plot_is_drawn(bench, tmp_path):
    pytest.importorskip("matplotlib")
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):  # words stay words
        bench.plot([BENCH], tmp_path / "p.svg")
    drawn = (tmp_path / "p.svg").read_text()
    assert "gpt2 1x128, fp32 / onnxruntime" in drawn
    assert "torch" not in drawn, "its error is infinite, and torch-compile failed"


def test_prepare_compiles_again_and_runs_only_engines_that_never_ran(bench, tmp_path, monkeypatch, capsys):
    from halo_tvm.peers import benchmark as module

    asked, stale = [], tmp_path / "artifacts" / "mlp-fp32.halo"
    stale.mkdir(parents=True)
    monkeypatch.setattr(bench, "_compiled", lambda o, r, p: asked.append(p) or bench._artifact(o, r, p))
    monkeypatch.setattr(halo_tvm, "benchmark", lambda config: asked.append(config.vs) or BENCH)
    monkeypatch.setattr(module, "unknown", lambda config: ("openvino",) if "fp32" in config.artifact else ())
    source = SimpleNamespace(source={"kind": "builtin", "name": "mlp"})
    monkeypatch.setattr("halo_tvm.artifact.read_manifest", lambda path: source)
    old = tmp_path / "peers" / "mlp-0123456789ab"
    old.mkdir(parents=True)
    assert bench.main(["--prepare", "--only", "mlp", "--cache", str(tmp_path)]) == 0
    assert asked == ["fp32", ("openvino",), "int8"] and not stale.exists()
    assert not old.exists(), "earlier code made these files"


def test_the_ablation_says_what_leaving_out_costs_and_what_was_predicted(bench, tmp_path):
    ablation = importlib.import_module("_ablation")
    manifest = SimpleNamespace(
        reports={
            "optimise": {
                "fuse": {
                    "candidates": [
                        {"bytes_apart": 9_000_000, "bytes_fused": 2_000_000, "taken": True},
                        {"bytes_apart": 9_000_000, "bytes_fused": 1_000_000, "taken": False},
                    ]
                }
            }
        }
    )
    by_name = {v.name: v for v in ablation.VARIANTS}
    assert ablation.predicted_bytes(manifest, (1, 128), by_name["no-fusion"]) == 7e6
    assert ablation.predicted_bytes(manifest, (1, 128), by_name["no-attention"]) == 12 * 12 * 128 * 128 * 16
    assert ablation.predicted_bytes(manifest, (1, 128), by_name["avx2"]) is None
    for variant in ablation.VARIANTS:
        config = ablation.compile_config(tmp_path, "mlp", variant)
        assert config.model == "mlp" and config.output.endswith(f"{variant.name}.halo")
