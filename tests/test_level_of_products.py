"""A quantised file gets the level whose products of bytes are fastest, though its precision is fp32."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper, parser

from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig, TuneConfig
from halo_tvm.importers import import_model
from halo_tvm.level_of_products import precision_of_products
from halo_tvm.targets import Host, _available, _resolve
from halo_tvm.targets.x86 import X86
from halo_tvm.tuning import place

OF_BYTES = """
q, s, z = DynamicQuantizeLinear(x)
a = MatMulInteger(q, w, z)
f = Cast<to = 1>(a)
y = Mul(f, s)
"""


def imported(nodes: str, weight: np.ndarray, tmp_path):
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[n, 8] x) => (float[n, 4] y) {{{nodes}}}'
    )
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return import_model(str(path))


@pytest.mark.parametrize(
    ("nodes", "dtype", "expected"), [(OF_BYTES, "int8", "int8"), ("y = MatMul(x, w)", "float32", None)]
)
def test_what_a_file_multiplies(nodes: str, dtype: str, expected: str | None, tmp_path) -> None:
    assert precision_of_products(imported(nodes, np.ones((8, 4), dtype), tmp_path)) == expected


@pytest.mark.parametrize(("products", "isa"), [("int8", "avx512-amx"), (None, "avx512-vnni")])
def test_cpu_is_its_level(products: str | None, isa: str, monkeypatch) -> None:
    flags = next(level for level in X86.isas if level.name == "avx512-amx").requires
    host = Host("x86_64", "some processor", flags, 2, 32 << 10, 1 << 20, 1 << 25)
    for module in (_resolve, _available):
        monkeypatch.setattr(module, "read_host", lambda: host)
    compilation = Compilation.of(CompileConfig(model="net.onnx"), products=products)
    assert (compilation.target.isa.name, compilation.precision) == (isa, "fp32")
    assert place.place_of(TuneConfig(model=("net.onnx",)), products=products).target.isa.name == isa
    named = CompileConfig(model="net.onnx", precision="fp32")
    assert Compilation.of(named, products=products).target.isa.name == "avx512-vnni"
