"""Node tests of the ONNX project: a cross-section always, with --slow all but the bodies of functions once more."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
# By a pattern of names, how many pass: where a test is named `expanded`, an operator is its function body.
PASS = {"^(?!.*_expanded)": 1340, ".": 1800}

# One or two of every family, and those that exercise the importer itself.
NAMES = """
add_bcast and_bcast3v1d argmax_default_axis_example attention_4d_gqa averagepool_2d_pads batchnorm_example
bitshift_left_uint8 cast_FLOAT_to_FLOAT16 ceil_example clip_default_inbounds concat_2d_axis_negative_1
constant constantofshape_int_zeros conv_with_strides_padding convinteger_with_padding convtranspose_pads
cumsum_1d_reverse depthtospace_example dequantizelinear_axis div_uint8 dynamicquantizelinear einsum_batch_matmul
elu_default expand_dim_changed flatten_axis1 gather_negative_indices  gathernd_example_int32
gelu_tanh_1 gemm_all_attributes gridsample_bilinear group_normalization_example hardmax_axis_1 if
instancenorm_example isinf layer_normalization_2d_axis1 leakyrelu logsoftmax_axis_1 loop13_seq lrn
lstm_with_peepholes matmulinteger maxpool_2d_dilations mean_example mod_mixed_sign_int32
nllloss_NC nonmaxsuppression_two_classes nonzero_example onehot_with_axis pow_bcast_scalar quantizelinear_axis
range_int32_type_negative_delta_expanded reduce_l2_keep_dims_example reshape_allowzero_reordered
resize_upsample_scales_linear rms_normalization_2d_axis1 rnn_seq_length rotary_embedding scan9_sum scatternd_add
slice_neg_steps softmax_large_number split_variable_parts_2d_opset18 squeeze_negative_axes tile top_k_smallest
tril_neg unsqueeze_unsorted_axes where_long_example
""".split()
REFUSED = {"loop13_seq", "reshape_allowzero_reordered"}  # a sequence as input; a result without elements


@cache
def script() -> ModuleType:
    sys.path.insert(0, str(ROOT / "scripts"))
    return importlib.import_module("onnx_conformance")


@cache
def node_tests() -> dict[str, object]:
    with warnings.catch_warnings():
        return script().load_tests("node")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(15, 15)
def test_node(name: str) -> None:
    result = script().run_test(node_tests()[f"test_{name}"])
    assert result["status"] in (("pass", "refused") if name in REFUSED else ("pass",)), result["why"]


@pytest.mark.parametrize("only", [next(iter(PASS)), pytest.param(".", marks=pytest.mark.sweep)])
@pytest.mark.slow
@pytest.mark.long
def test_the_whole_suite(only: str, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    command = [sys.executable, str(ROOT / "scripts" / "onnx_conformance.py"), "--jobs", "1", "--json", str(file)]
    subprocess.run([*command, "--only", only], check=False, capture_output=True, cwd=ROOT)
    results = json.loads(file.read_text())
    counts = Counter(r["status"] for r in results)
    bad = [f"{r['name']}: {r['why'][:100]}" for r in results if r["status"] in ("wrong", "failed")]
    assert not bad, "\n".join(bad[:50])
    assert counts["pass"] >= PASS[only], counts
