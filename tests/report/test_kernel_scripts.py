"""scripts/_interleaved.py and the scripts that time kernels with it: results are compared, turns are shared out."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from halo_tvm.errors import PeerFailed

SCRIPTS = Path(__file__).parents[2] / "scripts"


def script(name: str):
    sys.path.insert(0, str(SCRIPTS))
    return importlib.import_module(name)


@pytest.fixture(scope="module")
def interleaved():
    return script("_interleaved")


class FakeWorker:
    """A `Peer` that answers at once and keeps what it was asked."""

    def __init__(self, sample: list[float], us: float = 1.0, fails: bool = False) -> None:
        self.sample, self.us, self.fails, self.asked = sample, us, fails, []

    def ask(self, command: str, **fields: object) -> dict[str, object]:
        self.asked.append(command)
        if self.fails:
            raise PeerFailed("engine fake could not prepare")
        return {"sample": self.sample, "us": self.us}


def test_entries_whose_results_differ_or_fail(interleaved, capsys):
    ours, same, fails = FakeWorker([1.0, 2.0]), FakeWorker([1.0, 2.0001]), FakeWorker([], fails=True)
    entry = interleaved.Entry
    entries = [entry("ours", ours, 1), entry("same", same, 1), entry("fails", fails, 1)]
    assert [e.name for e in interleaved.prepared(entries, 1e-3)] == ["ours", "same"]
    assert "left out: engine fake could not prepare" in capsys.readouterr().err
    for sample in ([1.0, 2.1], [1.0], [1.0, float("nan")]):
        wrong = FakeWorker(sample)
        with pytest.raises(SystemExit, match="wrong at 1: expected our result within 0.001"):
            interleaved.prepared([entries[0], entry("wrong", wrong, 1)], 1e-3)
        assert len(interleaved.prepared([entries[0], entry("read", wrong, 1, same=False)], 1e-3)) == 2
    with pytest.raises(PeerFailed):
        interleaved.prepared([entries[2], entries[1]], 1e-3)


def test_a_race_has_one_sample_a_round_of_each_and_forgets(interleaved):
    fakes = [FakeWorker([], us) for us in (1.0, 2.0, 3.0)]
    entries = [interleaved.Entry(str(i), fake, i) for i, fake in enumerate(fakes)]
    assert interleaved.race(entries, 6, 0.0, 0.0) == {"0": [1.0] * 6, "1": [2.0] * 6, "2": [3.0] * 6}
    assert all(fake.asked == ["time"] * 6 + ["forget"] for fake in fakes)


@pytest.mark.slow
def test_memory_bound_against_torch(capsys):
    pytest.importorskip("torch")
    module = script("memory_bound")
    module.main(["--threads", "1", "--rounds", "1", "--only", "mean 128x768"])
    assert "| mean 128x768 |" in capsys.readouterr().out


def test_torch_writes_every_result_into_memory_that_exists(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("TVM_NUM_THREADS", str(torch.get_num_threads()))
    module = script("memory_bound")
    prepare = module.torch_engine()
    try:
        for name in (
            "softmax 1536x100",
            "gelu 128x3072",
            "gelu_tanh 128x3072",
            "sum 1536x1024",
            "mean 128x768",
            "silu_mul 128x3072",
            "rotary 1x128x12x64",
            "transpose_bias 768x3072",
            "exp 128x3072",
        ):
            kernel = prepare(name)
            assert kernel.call().data_ptr() == kernel.call().data_ptr(), name
    finally:
        torch.set_grad_enabled(True)


@pytest.mark.slow
def test_attention_against_torch(capsys):
    pytest.importorskip("torch")
    module = script("compare_attention")
    given = ["--threads", "1", "--rounds", "1", "--seconds", "0", "--lengths", "64", "--only"]
    module.main([*given, "causal", "--decision", '{"block_k": 64}'])
    assert "| 1 | causal | 64 | " in capsys.readouterr().out
    with pytest.raises(PeerFailed, match="no_such_field"):
        module.main([*given, "causal", "--decision", '{"no_such_field": 1}'])


@pytest.mark.slow
def test_products_against_torch(capsys):
    pytest.importorskip("torch")
    module = script("compare_matmul")
    module.main(["--threads", "1", "--rounds", "1", "--seconds", "0", "--only", "16, 8", "--symbolic", "n"])
    _, _, line = capsys.readouterr().out.splitlines()[:3]
    assert line.startswith("| 1 | 16, 8 x 512 x 64 | a b | ") and line.count("|") == len(module.HEAD) + 1


@pytest.mark.parametrize("option", ["--only", "--symbolic", "--decision"])
def test_a_part_of_the_products_is_not_the_table_of_the_docs(option, capsys):
    with pytest.raises(SystemExit):
        script("compare_matmul").main(["--docs", option, "n"])
    assert "--docs writes the whole table" in capsys.readouterr().err


def test_a_line_of_products_without_torch():
    module = script("compare_matmul")
    case = module.Case(2, 10, 20, 50, b_transposed=True)
    assert case.shapes("m", "n", "k") == ((2, "m", "k"), (2, "n", "k"))
    line = module.line(case, 2, {"here": [2.0, 4.0, 3.0]}, 20.0)
    assert line == "| 2 | 2, 10 x 20 x 50 | a bᵀ | 3 | - | - | - | 13 | 67% |"


@pytest.mark.parametrize(
    ("kind", "half", "requires", "words"),
    [
        ("fp16", True, (), " of fp32's"),
        ("fp16", False, (), ""),
        ("int8", False, (), " of fp32's"),
        ("int8", True, ("avx512_vnni",), ""),
        ("bf16", True, (), ""),
        ("fp32", True, (), ""),
        ("bf16", False, ("avx512_bf16",), " of fp32's"),
    ],
)
def test_a_share_of_another_arithmetics_peak_says_so(kind, half, requires, words):
    host = script("gemm_peaks").Host.__new__(script("gemm_peaks").Host)
    isa = SimpleNamespace(half_arithmetic=half, requires=frozenset(requires), bf16_dot="avx512_bf16" in requires)
    host.targets = {kind: SimpleNamespace(isa=isa)}
    assert host.other_arithmetic(kind) == words
