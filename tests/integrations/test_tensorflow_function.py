"""The page docs/tensorflow.md, executed: an artifact as a function of tensors, eager and in a graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pages import executed

pytest.importorskip("tensorflow", reason="TensorFlow, 1.3 GB: pip install halo_tvm[tensorflow]")
pytest.importorskip("tf2onnx")

from halo_tvm.errors import UsageError


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = executed("tensorflow.md", tmp_path, monkeypatch)
    import tensorflow as tf

    fast, x, net = names["fast"], names["x"], names["net"]
    np.testing.assert_array_equal(names["best"], np.argmax(net(x), -1))
    open_batch = tf.function(fast, input_signature=[tf.TensorSpec((None, 16))]).get_concrete_function()
    assert open_batch.structured_outputs.shape.as_list() == [None, 3]
    np.testing.assert_array_equal(open_batch(x), fast(x))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(fast(x))
    with pytest.raises(UsageError, match="expected a call without gradients, found one that differentiates"):
        tape.gradient(y, x)

    @tf.function
    def in_graph(x: tf.Tensor) -> tf.Tensor:
        return tf.gradients(tf.reduce_sum(fast(x)), x)[0]

    with pytest.raises(UsageError, match="expected a call without gradients, found one that differentiates"):
        in_graph(x)
