"""Random operators draw by the state of the model: the right numbers, others in every call, the same by one seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

from onnx import TensorProto, helper

import halo_tvm
from halo_tvm.artifact import RANDOM_STATE, FunctionSpec, TensorSpec
from halo_tvm.errors import UnsupportedModel, UsageError
from halo_tvm.importers.onnx import import_proto
from halo_tvm.importers.torchscript import import_torchscript
from halo_tvm.in_process import compile_in_process
from halo_tvm.runtime.state import KeptState

MANY = 4096


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Four words for each counter, uint64 [n, 4] of 32 bits, as the paper defines Philox4x32-10."""
    a, b, c, d = counter.T
    for i in range(10):
        first, second = ((k + step * i) % 2**32 for k, step in zip(key, (0x9E3779B9, 0xBB67AE85)))
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = q >> 32 ^ b ^ first, q % 2**32, p >> 32 ^ d ^ second, p % 2**32
    return np.stack([a, b, c, d], -1)


def uniform(count: int, place: int, seed: int, call: int) -> np.ndarray:
    halves = [np.uint64(n) for n in (place, call % 2**32, call >> 32)]
    counter = np.stack([np.arange(count, dtype=np.uint64), *(np.full(count, h) for h in halves)], -1)
    return (philox(counter, (seed % 2**32, seed >> 32))[:, 0] >> 8) * 2.0**-24


def test_the_generator_is_philox() -> None:
    """The answers that come with the authors' own code; what is drawn is made of such words, element by element."""
    known = {
        ((0, 0, 0, 0), (0, 0)): "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)): (
            "d16cfe09 94fdcceb 5001e420 24126ea1"
        ),
    }
    for (counter, key), words in known.items():
        assert [f"{w:08x}" for w in philox(np.array([counter], np.uint64), key)[0]] == words.split()


@pytest.fixture(scope="module")
def onnx_program():
    def node(op: str, inputs: list[str], output: str, **attrs: object) -> onnx.NodeProto:
        return helper.make_node(op, inputs, [output], **attrs)

    nodes = [
        node("RandomUniformLike", ["x"], "uniform"),
        node("RandomUniformLike", ["x"], "other", low=-2.0, high=6.0),
        node("RandomNormalLike", ["x"], "normal", mean=3.0, scale=2.0),
        node("RandomNormal", [], "seeded", shape=[MANY], seed=5.0),
        node("RandomNormal", [], "half", shape=[MANY], dtype=TensorProto.FLOAT16),
        node("Bernoulli", ["p"], "bernoulli"),
        node("Multinomial", ["logits"], "multinomial", sample_size=MANY, dtype=TensorProto.INT64),
        node("Dropout", ["x", "ratio", "yes"], "dropout"),
        node("Add", ["x", "x"], "certain"),
        node("Mul", ["seeded", "seeded"], "squares"),
    ]
    outputs = [n.output[0] for n in nodes]
    graph = helper.make_graph(
        nodes,
        "random",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]),
            helper.make_tensor_value_info("p", TensorProto.FLOAT, ["n"]),
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, [2, 4]),
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [
            onnx.numpy_helper.from_array(np.float32(0.25), "ratio"),
            onnx.numpy_helper.from_array(np.array(True), "yes"),
        ],
    )
    model = import_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)]), name="random")
    assert set(model.drawn) == set(outputs) - {"certain"}
    return compile_in_process(model, threads=2)


@pytest.mark.slow
def test_onnx_draws_by_distribution_seed_and_call(onnx_program) -> None:
    chances = np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.0, 0.25, 0.25]], np.float32)
    with np.errstate(divide="ignore"):
        logits = np.maximum(np.log(chances), -1e9)
    p = np.linspace(0, 1, MANY, dtype=np.float32)

    def draw(seed: int, call: int) -> dict[str, np.ndarray]:
        x = np.ones(MANY, np.float32)
        return onnx_program(x=x, p=p, logits=logits, random_state=np.array([seed, call]))

    seed = (7 << 40) + 11
    found = draw(seed, 2)
    np.testing.assert_array_equal(found["uniform"], uniform(MANY, 1, seed, 2).astype(np.float32))
    assert np.array_equal(found[RANDOM_STATE], [seed, 3])
    assert abs(found["other"].mean() - 2) < 0.15 and abs(found["other"].std() - 8 / 12**0.5) < 0.1
    assert -2 <= found["other"].min() < -1.9 and 5.9 < found["other"].max() < 6
    for name, mean, deviation in (("normal", 3, 2), ("seeded", 0, 1), ("half", 0, 1)):
        z = (found[name].astype(np.float64) - mean) / deviation
        moments = [z.mean(), z.var(), (z**3).mean(), (z**4).mean()]
        np.testing.assert_allclose(moments, [0, 1, 0, 3], atol=0.3)
        inside = [(np.abs(z) < edge).mean() for edge in (0.5, 1, 2)]
        np.testing.assert_allclose(inside, [0.383, 0.683, 0.954], atol=0.02)
    # neighbours, and what two places draw, have nothing to do with each other
    assert abs(np.corrcoef(found["uniform"], found["other"])[0, 1]) < 0.05
    assert abs(np.corrcoef(found["uniform"][1:], found["uniform"][:-1])[0, 1]) < 0.05
    assert not found["bernoulli"][0] and found["bernoulli"][-1] and abs(found["bernoulli"].mean() - 0.5) < 0.03
    for row, chance in zip(found["multinomial"], chances):
        counts, usual = np.bincount(row, minlength=4), chance * MANY
        assert ((counts - usual)[usual > 0] ** 2 / usual[usual > 0]).sum() < 16.3 and not counts[usual == 0].any()
    assert set(np.unique(found["dropout"])) == {0, np.float32(1 / 0.75)} and abs(found["dropout"].mean() - 1) < 0.05
    again, later, other = draw(seed, 2), draw(seed, 3), draw(seed + 1, 2)
    for name in onnx_program.output_specs[0].name, "normal", "half", "bernoulli", "multinomial", "dropout":
        assert np.array_equal(found[name], again[name])
        assert not np.array_equal(found[name], later[name]) and not np.array_equal(found[name], other[name])
    assert np.array_equal(found["seeded"], later["seeded"])


class Chances(torch.nn.Module):
    def forward(self, x: torch.Tensor, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        weights = weights.abs()
        return {
            "rand": torch.rand(MANY),
            "randn": torch.randn_like(x),
            "wide": torch.randn(MANY, dtype=torch.float64),
            "integers": torch.randint(-3, 5, (MANY,)),
            "exponential": torch.empty(MANY).exponential_(4.0),
            "order": torch.randperm(9),
            "one": torch.multinomial(weights, 1),
            "some": torch.multinomial(weights, 3),
            "again": torch.multinomial(weights, 3, replacement=True),
            "dropout": torch.nn.functional.dropout(x, 0.5, training=True),
            "moved": torch.normal(x, 0.5),
            "certain": x + 1,
        }


@pytest.mark.slow
def test_torch_draws_and_an_artifact_goes_on_from_call_to_call(tmp_path: Path) -> None:
    x, weights = torch.ones(MANY), torch.tensor([0.4, 0.1, 0.0, 0.5]).repeat(MANY, 1)
    model = halo_tvm.import_torch(Chances().eval(), (x, weights))
    config = halo_tvm.CompileConfig(model="chances", output=str(tmp_path / "chances.halo"))
    compiled = halo_tvm.compile_model(config, model)
    report = compiled.manifest.validation
    assert report["passed"] and set(report["drawn"]) == set(model.outputs) - {RANDOM_STATE, "certain"}
    assert {row["output"] for row in report["outputs"]} == {"certain", RANDOM_STATE}

    names = [name for name in model.outputs if name != RANDOM_STATE]

    def calls(seed: int | None, count: int = 2, threads: int = 1) -> list[dict[str, np.ndarray]]:
        with halo_tvm.load(compiled.path, threads=threads, seed=seed) as module:
            found = [dict(zip(names, module(x.numpy(), weights.numpy()), strict=True)) for _ in range(count)]
            module.reset_state()
            assert np.array_equal(module(x.numpy(), weights.numpy())[0], found[0]["rand"])
            return found

    (first, second), (same, _), (other, _) = calls(3), calls(3, threads=2), calls(None)
    for name in names:
        assert np.array_equal(first[name], same[name]), name
        if name not in ("certain", "order"):
            assert not np.array_equal(first[name], second[name]) and not np.array_equal(first[name], other[name]), name
    assert 0 <= first["rand"].min() and first["rand"].max() < 1 and abs(first["rand"].mean() - 0.5) < 0.02
    assert abs(first["randn"].mean()) < 0.06 and abs(first["wide"].std() - 1) < 0.04
    assert first["wide"].dtype == np.float64
    counts = np.bincount(first["integers"] + 3, minlength=8)
    assert len(counts) == 8 and ((counts - MANY / 8) ** 2 / (MANY / 8)).sum() < 24.3
    assert first["exponential"].min() > 0 and abs(first["exponential"].mean() - 0.25) < 0.02
    assert sorted(first["order"]) == list(range(9))
    for name in ("one", "again"):
        share = np.bincount(first[name].ravel(), minlength=4) / first[name].size
        np.testing.assert_allclose(share, [0.4, 0.1, 0, 0.5], atol=0.03)
    assert (np.sort(first["some"], -1) == [0, 1, 3]).all()
    assert set(np.unique(first["dropout"])) == {0, 2} and abs(first["moved"].mean() - 1) < 0.03


def test_torch_compile_draws_by_the_generator_of_torch() -> None:
    pytest.importorskip("torch._dynamo")
    net = torch.compile(lambda x: x + torch.rand_like(x), backend="halo_tvm")
    x = torch.zeros(64)
    torch.manual_seed(1)
    first, second = net(x), net(x)
    torch.manual_seed(1)
    assert torch.equal(net(x), first) and not torch.equal(first, second)


@pytest.mark.slow
def test_torchscript_draws(tmp_path: Path) -> None:
    path, x = tmp_path / "noise.pt", torch.zeros(8)
    torch.jit.trace(torch.nn.Dropout(0.5), x, check_trace=False).save(str(path))
    model = import_torchscript(path, inputs={"input": np.ones(8, np.float32)})
    assert model.drawn == ("output",) and model.outputs == ("output", RANDOM_STATE)


def test_seeds_and_loops_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="seed: expected a model that draws"):
        KeptState(FunctionSpec((), ()), seed=1)
    with pytest.raises(UsageError, match="from 0 to 2..63 - 1, found -1"):
        KeptState(FunctionSpec((TensorSpec(RANDOM_STATE, (2,), "int64"),), (), state=(RANDOM_STATE,)), seed=-1)
    body = helper.make_graph(
        [
            helper.make_node("RandomNormalLike", ["state"], ["drawn"]),
            helper.make_node("Add", ["state", "drawn"], ["next"]),
            helper.make_node("Identity", ["going"], ["still"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [2]),
        ],
        [onnx.ValueInfoProto(name="still"), onnx.ValueInfoProto(name="next")],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)],
        "loop",
        [
            helper.make_tensor_value_info("trips", TensorProto.INT64, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
        ],
        [onnx.ValueInfoProto(name="y")],
    )
    with pytest.raises(UnsupportedModel, match="draws numbers inside of a loop"):
        import_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)]), name="loop")
