"""Non-maximum suppression and the end of SSD nets beside LiteRT: some boxes, all of them, and none found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="the reference: pip install halo_tvm[tflite]")

from flatbuffers import flexbuffers
from hypothesis import example, given
from hypothesis import strategies as st
from tflite_files import GraphFile

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers import import_model
from halo_tvm.in_process import compile_in_process

BOXES, CLASSES = 40, 3
OPTIONS = {
    "max_detections": 6,
    "max_classes_per_detection": 2,
    "detections_per_class": 5,
    "use_regular_nms": False,
    "nms_score_threshold": 0.5,
    "nms_iou_threshold": 0.4,
    "num_classes": CLASSES,
    **{f"{key}_scale": value for key, value in zip("yxhw", (10.0, 10.0, 5.0, 5.0))},
}


def packed(options: dict[str, object]) -> bytes:
    builder = flexbuffers.Builder()
    with builder.Map():
        for key, value in options.items():
            builder.Key(key)
            kind = builder.Bool if isinstance(value, bool) else builder.Int if isinstance(value, int) else builder.Float
            kind(value)
    return bytes(builder.Finish())


def post_process(custom: bytes, columns: int, file: Path) -> str:
    g, r = GraphFile(), np.random.default_rng(0)
    boxes, scores = g.input((1, BOXES, 4)), g.input((1, BOXES, columns))
    anchors = g.const(np.concatenate([r.uniform(0.2, 0.8, (BOXES, 2)), r.uniform(0.1, 0.4, (BOXES, 2))], 1))
    outputs = [g.tensor(()) for _ in range(4)]
    g.custom("TFLite_Detection_PostProcess", [boxes, scores, anchors], outputs, custom)
    file.write_bytes(g.write(outputs))
    return str(file)


def equal(model, net, feeds) -> dict[str, np.ndarray]:
    found, wanted = net(**feeds), model.engine(feeds)
    for name, want in wanted.items():
        got = np.asarray(found[name])
        assert (got.dtype, got.shape) == (want.dtype, want.shape), name
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=name)
    return wanted


@pytest.mark.parametrize(
    "options, columns",
    [
        ({}, CLASSES + 1),
        ({"max_classes_per_detection": 3}, CLASSES),
        ({"use_regular_nms": True}, CLASSES + 1),
        ({"use_regular_nms": True, "max_classes_per_detection": 1, "detections_per_class": 2}, CLASSES),
    ],
    ids=["fast", "every class", "by class", "by class, few of each"],
)
@pytest.mark.sampled(1)
def test_post_process(options, columns, tmp_path: Path):
    model = import_model(post_process(packed(OPTIONS | options), columns, tmp_path / "ssd.tflite"))
    net, r = compile_in_process(model), np.random.default_rng(1)
    counts = set()
    for highest in (1.0, 0.53, 0.4):
        scores = r.uniform(0, highest, (1, BOXES, columns)).astype(np.float32)
        scores[0, :4, -1] = 0.5 if highest > 0.5 else 0.1  # equal to the least, and to each other
        feeds = {"x0": r.standard_normal((1, BOXES, 4)).astype(np.float32), "x1": scores}
        counts.add(int(equal(model, net, feeds)["y3"].item()))
    assert 0 in counts and len(counts) > 1


@pytest.mark.parametrize("version", [4, 5])
def test_non_max_suppression(version, tmp_path: Path):
    g = GraphFile()
    inputs = [g.input((BOXES, 4)), g.input((BOXES,))]
    inputs += [g.const(np.int32(8), "int32"), g.const(np.float32(0.3)), g.const(np.float32(0.5))]
    inputs += [g.const(np.float32(0))] if version == 5 else []
    kinds = ["int32", "float32", "int32"] if version == 5 else ["int32", "int32"]
    outputs = [g.tensor(() if i == len(kinds) - 1 else (8,), kind) for i, kind in enumerate(kinds)]
    g.op(f"NON_MAX_SUPPRESSION_V{version}", inputs, outputs, f"NonMaxSuppressionV{version}Options")
    file = tmp_path / "nms.tflite"
    file.write_bytes(g.write(outputs))
    model, r = import_model(str(file)), np.random.default_rng(2)
    net = compile_in_process(model)
    for highest in (1.0, 0.55, 0.4):
        low = r.uniform(0, 0.7, (BOXES, 2))
        boxes = np.concatenate([low, low + r.uniform(0.1, 0.3, (BOXES, 2))], 1).astype(np.float32)
        equal(model, net, {"x0": boxes, "x1": r.uniform(0, highest, BOXES).astype(np.float32)})


@pytest.mark.parametrize(
    "options, said",
    [
        ({"max_detections": 0}, "from 1 to 65536, found"),
        ({"num_classes": 7}, "expected scores of one image and 7 classes"),
        ({"max_classes_per_detection": 4}, "expected at most 3 classes of a box"),
        ({"h_scale": 0.0}, "expected scales above 0"),
    ],
)
def test_refused(options, said, tmp_path: Path):
    with pytest.raises(UnsupportedModel, match=said):
        import_model(post_process(packed(OPTIONS | options), CLASSES + 1, tmp_path / "ssd.tflite"))


_BYTES = len(packed(OPTIONS))


@given(
    st.dictionaries(st.integers(0, _BYTES - 1), st.integers(0, 255), min_size=1, max_size=6),
    st.integers(0, _BYTES) | st.just(_BYTES),
)
@example({_BYTES - 103: 128}, _BYTES)  # a length beyond any index
def test_options_of_other_bytes(tmp_path_factory, changed, length):
    """Whatever the bytes are, the file is read or refused with a sentence."""
    custom = bytearray(packed(OPTIONS))
    for at, byte in changed.items():
        custom[at] = byte
    try:
        import_model(post_process(bytes(custom[:length]), CLASSES + 1, tmp_path_factory.mktemp("ssd") / "ssd.tflite"))
    except UnsupportedModel as reason:
        assert "TFLite_Detection_PostProcess (" in str(reason)
