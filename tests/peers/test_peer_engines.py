"""onnxruntime on the exported model and torch on plain modules agree: two spellings that share only the weights."""

from __future__ import annotations

import dataclasses
import importlib.util
import json

import numpy as np
import pytest

from halo_tvm.errors import PeerFailed, UsageError
from halo_tvm.models import FAMILIES
from halo_tvm.models._t5 import T5Config
from halo_tvm.models.bert import BertConfig
from halo_tvm.models.builder import RandomWeights
from halo_tvm.models.gpt2 import gpt2
from halo_tvm.models.mlp import MLPConfig
from halo_tvm.peers import sources
from halo_tvm.peers._narrow import fold_transposes
from halo_tvm.peers.client import Peer, engine_command
from halo_tvm.peers.engines import PEERS
from halo_tvm.peers.jax import processors
from halo_tvm.peers.protocol import LoadRequest
from halo_tvm.peers.sources import PeerModels, cache_key, check_reference, drop_stale
from halo_tvm.peers.statistics import relative_l2

pytest.importorskip("onnxruntime")
pytest.importorskip("torch")

_T5 = {
    "layers": 2,
    "decoder_layers": 2,
    "hidden": 48,
    "heads": 3,
    "head_dim": 16,
    "feed_forward": 96,
    "vocabulary": 97,
    "buckets": 16,
    "distance": 20,
}
TINY = {
    "gpt2": gpt2(layers=2, hidden=48, heads=3, vocabulary=97, positions=32, feed_forward=96, last_only=True),
    "bert": BertConfig(layers=2, hidden=48, heads=3, vocabulary=97, positions=32, feed_forward=96),
    "mlp": MLPConfig(layers=3, width=64),
    "t5": T5Config(**_T5),
    "t5-cross": T5Config(**_T5),
    "t5-decoder": T5Config(**_T5, activation="gelu_tanh", gated=True, tied=False),
}
# Errors of products in 8 bits on such small, random models.
INT8 = 0.08


class TinyModels(PeerModels):
    """As from an artifact's manifest, with a small configuration in the preset's place."""

    def __init__(self, family: str, directory) -> None:
        super().__init__({"kind": "builtin", "name": family, "seed": 3}, None, directory)
        self._imported = FAMILIES[family].build(family, TINY[family], RandomWeights(3), {"kind": "builtin"})


@pytest.fixture(params=sorted(TINY))
def tiny(request, tmp_path, monkeypatch):
    from halo_tvm import models

    monkeypatch.setitem(models.PRESETS, request.param, (FAMILIES[request.param], TINY[request.param]))
    return request.param, TinyModels(request.param, tmp_path)


def cases(model) -> dict[str, np.ndarray]:
    """Two cases of different sizes; integers over their whole range, masks with hidden keys at the end."""
    rng = np.random.default_rng(0)
    arrays = {}
    for i, sizes in enumerate(
        (
            {"batch": 2, "sequence": 9, "tokens": 3, "source": 9, "past": 4},
            {"batch": 1, "sequence": 1, "tokens": 1, "source": 1, "past": 1},
        )
    ):
        for spec in model.inputs:
            shape = tuple(sizes[d] if isinstance(d, str) else d for d in spec.shape)
            if spec.name == "attention_mask":
                array = np.ones(shape, np.int64)
                array[0, 1 + shape[1] // 2 :] = 0
            elif spec.dtype == "int64":
                array = rng.integers(*spec.values, shape, endpoint=True)
            else:
                array = rng.standard_normal(shape, dtype=np.float32)
            arrays[f"case{i}.input.{spec.name}"] = array
    return arrays


@pytest.mark.slow
@pytest.mark.sampled(3)
def test_engines_agree_on_tiny_models(tiny, tmp_path):
    family, models = tiny
    write_cases(models, tmp_path)
    found = {}
    ort = ("onnxruntime", "onnxruntime-plain", "onnxruntime-extended", "onnxruntime-int8", "onnxruntime-int8-plain")
    for name in ("torch", *ort):
        found[name] = answer(name, models, tmp_path)
    assert {key.split(".")[0] for key in found["onnxruntime"]} == {"case0", "case1"}
    compare(family, found)


@pytest.mark.parametrize(
    ("engine", "package"),
    [("openvino", "openvino"), ("openvino-int8", "nncf"), ("jax", "jax")],
)
@pytest.mark.sampled(3, 9)
def test_other_engines_agree_where_they_are_installed(tiny, tmp_path, engine, package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install openvino nncf jax")
    family, models = tiny
    write_cases(models, tmp_path)
    if engine == "jax" and family.startswith("t5"):
        with pytest.raises(PeerFailed, match="expected a model of bert, gpt2, mlp"):
            answer(engine, models, tmp_path)
        return
    compare(family, {name: answer(name, models, tmp_path) for name in ("torch", engine)})


@pytest.mark.slow
def test_plain_tvm_takes_small_models_only(tiny, tmp_path):
    family, models = tiny
    if family != "mlp":
        pytest.skip("its importer refuses dynamic reshapes")
    write_cases(models, tmp_path)
    compare(family, {name: answer(name, models, tmp_path) for name in ("torch", "tvm")})


def test_libxsmm_is_a_peer_of_the_mlp(tiny, tmp_path):
    family, models = tiny
    write_cases(models, tmp_path)
    if family != "mlp":
        with pytest.raises(PeerFailed, match="expected the built-in mlp"):
            answer("libxsmm", models, tmp_path)
        return
    try:
        found = answer("libxsmm", models, tmp_path)
    except PeerFailed as error:
        assert error.missing and "apt-get install libxsmm-dev" in str(error)
        pytest.skip(str(error))
    compare(family, {"torch": answer("torch", models, tmp_path), "libxsmm": found})


def write_cases(models, directory):
    arrays = cases(models._imported)
    np.savez(directory / "cases.npz", **arrays)
    first = {k.removeprefix("case0.input."): v for k, v in arrays.items() if k.startswith("case0")}
    np.savez(directory / "inputs.npz", **first)


def answer(engine: str, models, directory) -> dict[str, np.ndarray]:
    """The outputs of one engine on both cases, after a timed turn."""
    kind = PEERS[engine]
    request = LoadRequest(str(models.path(kind.form)), 1, str(directory / "inputs.npz"), dict(kind.options))
    with Peer(engine, engine_command(kind.module)) as peer:
        assert peer.ask("load", request=request.to_json())["version"]
        assert len(peer.ask("time", runs=2, pause_s=0.0)["milliseconds"]) == 2
        peer.ask("outputs", cases=str(directory / "cases.npz"), path=str(directory / f"{engine}.npz"))
    with np.load(directory / f"{engine}.npz") as out:
        return dict(out)


def compare(family: str, found: dict[str, dict[str, np.ndarray]]) -> None:
    for key, expected in found["torch"].items():
        assert np.abs(expected).max() > 0.1, "the comparison would be empty"
        for engine, outputs in found.items():
            limit = INT8 if PEERS[engine].precision == "int8" else 1e-4
            assert relative_l2(outputs[key], expected) < limit, f"{family} {engine} {key}"


def test_a_folder_that_was_left_half_written_is_written_again(tiny):
    family, models = tiny
    left = models._directory / ".weights.tmp"
    left.mkdir()
    (left / "weights.safetensors").write_bytes(b"half")
    assert (models.path("weights") / "model.json").is_file() and not left.exists()
    complete = PeerModels(models._source, None, models._directory)
    complete._imported = "never asked"
    assert complete.path("weights") == models.path("weights"), "taken as it is"


def test_weights_and_configuration_for_torch(tiny):
    family, models = tiny
    description = json.loads((models.path("weights") / "model.json").read_text())
    assert description["family"] == family
    assert description["config"] == json.loads(json.dumps(dataclasses.asdict(TINY[family])))
    weights = models.path("weights") / "weights.safetensors"
    before = weights.stat().st_mtime_ns
    assert models.path("weights") / "weights.safetensors" == weights and weights.stat().st_mtime_ns == before, "once"


def test_a_model_without_torch_definition_is_refused(tmp_path):
    models = PeerModels({"kind": "onnx", "sha256": _sha256(tmp_path / "m.onnx")}, str(tmp_path / "m.onnx"), tmp_path)
    with pytest.raises(PeerFailed, match="found a source of kind onnx: use --vs onnxruntime"):
        models.path("weights")
    assert models.path("onnx") == models.path("onnx-plain") == tmp_path / "m.onnx", "a file is run as it is"


def _sha256(path) -> str:
    import hashlib

    path.write_bytes(b"model")
    return hashlib.sha256(b"model").hexdigest()


@pytest.mark.parametrize(
    ("source", "reference", "words"),
    [
        ({"kind": "onnx", "sha256": "0"}, None, "needs the original ONNX file of this artifact, found no --reference"),
        ({"kind": "huggingface"}, "nowhere", "expected the original directory at nowhere, found none"),
        ({"kind": "onnx", "sha256": "0" * 64}, __file__, "expected the model the artifact was made of"),
        ({"kind": "dream"}, None, "found one of kind 'dream'"),
        ({"kind": "builtin", "name": "mlp"}, __file__, "found one of kind 'builtin': leave --reference out"),
    ],
)
def test_references_that_do_not_fit(source, reference, words):
    with pytest.raises(UsageError, match=words):
        check_reference(source, reference)


HOSTILE = ["../../evil", "/tmp/evil", "..", ".", "", "a\\b\n\x1b[31m", "x" * 5000, 7, None, "mlp"]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda n: repr(n)[:12])
def test_a_manifest_names_a_folder_and_no_way_to_another(tmp_path, name):
    for source in ({"kind": "dream", "name": name}, {"kind": "builtin", "name": name}, {"kind": name}):
        folder = tmp_path / cache_key(source)
        assert folder.parent == tmp_path and folder.resolve().parent == tmp_path.resolve()
        folder.mkdir(exist_ok=True)


def test_files_made_by_other_code_or_tools_are_not_taken(tmp_path, monkeypatch):
    source, other = {"kind": "builtin", "name": "mlp", "seed": 0}, {"kind": "builtin", "name": "gpt2", "seed": 0}
    old = cache_key(source), cache_key(other)
    assert old == (cache_key(source), cache_key(other))
    monkeypatch.setattr(sources, "_makers", lambda: "another exporter")
    for name in (*old, cache_key(source), "mlp-notes"):
        (tmp_path / name).mkdir()
    drop_stale(tmp_path, source)
    assert {path.name for path in tmp_path.iterdir()} == {old[1], cache_key(source), "mlp-notes"}


def test_what_makes_the_files_is_all_of_its_code():
    found = {path.name for pattern in sources._MAKERS for path in sources._PACKAGE.glob(pattern)}
    assert {"onnx.py", "_relax_ops.py", "gpt2.py", "_narrow.py", "sources.py"} <= found
    assert {"huggingface.py", "original.py", "params.py", "reference.py"} <= found, "what imports the model"
    assert any(path.parent.name == "onnx" for pattern in sources._MAKERS for path in sources._PACKAGE.glob(pattern))


def test_a_transpose_without_an_order_reverses_the_axes():
    onnx = pytest.importorskip("onnx")
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    node = onnx.helper.make_node("Transpose", ["w"], ["t"])
    graph = onnx.helper.make_graph([node], "g", [], [], [onnx.numpy_helper.from_array(weight, "w")])
    model = onnx.helper.make_model(graph)
    fold_transposes(model)
    assert np.array_equal(onnx.numpy_helper.to_array(model.graph.initializer[1]), weight.T)


@pytest.mark.parametrize("listed", [("0-1", "0-1", "2-3", "2-3"), ("0,2", "1,3", "0,2", "1,3"), ()])
def test_processors_of_different_cores_come_first(tmp_path, listed):
    for cpu, text in enumerate(listed):
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(text + "\n")
    firsts = [0, 2] if listed[:1] == ("0-1",) else [0, 1]
    assert processors([0, 1, 2, 3], 2, tmp_path) == firsts
    assert len(processors([0, 1, 2, 3], 3, tmp_path)) == 3 and processors([1], 2, tmp_path) == [1]
