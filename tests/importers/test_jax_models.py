"""Models of libraries on JAX: the operators that they are configured with, numbers of jax, open sizes."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("flax")
import jax.numpy as jnp
from flax import linen, nnx
from graphs import context_of, unscheduled

import halo_tvm
from halo_tvm.errors import UnsupportedModel, UsageError
from halo_tvm.imported import ImportedModel
from halo_tvm.in_process import compile_in_process
from halo_tvm.passes import pipeline
from halo_tvm.passes.graph_pass import count_calls

WIDTH, HEADS, ROWS = 32, 4, 50


class Block(nnx.Module):
    def __init__(self, causal: bool, rngs: nnx.Rngs) -> None:
        self.causal = causal
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.before, self.behind = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.RMSNorm(WIDTH, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 64, rngs=rngs), nnx.Linear(64, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
        x = x + self.attention(self.before(x), mask=mask)
        return x + self.down(jax.nn.gelu(self.up(self.behind(x)), approximate=self.causal))


class Transformer(nnx.Module):
    """An encoder with a padding mask, or a causal decoder with a tied head."""

    def __init__(self, causal: bool) -> None:
        rngs = nnx.Rngs(0)
        self.causal = causal
        self.tokens = nnx.Embed(ROWS, WIDTH, rngs=rngs)
        self.positions = nnx.Embed(64, WIDTH, rngs=rngs)
        self.block = Block(causal, rngs)

    def __call__(self, ids: jax.Array, shown: jax.Array) -> jax.Array:
        x = self.tokens(ids) + self.positions(jnp.arange(ids.shape[1]))[None]
        mask = nnx.make_causal_mask(ids) if self.causal else nnx.make_attention_mask(jnp.ones_like(shown), shown)
        x = self.block(x, mask)
        return self.tokens.attend(x) if self.causal else x


def lifted(model: ImportedModel) -> dict[str, int]:
    mod, _ = pipeline.Pipeline.of(3).run(pipeline.LIFT, model.mod, context_of(model))
    calls = count_calls(mod["main"])
    return {name.removeprefix("halo."): count for name, count in calls.items() if name.startswith("halo.")}


def check(model: ImportedModel, *cases: tuple[np.ndarray, ...], error: float = 1e-5) -> None:
    """Compiled, it computes what jax computes."""
    program = compile_in_process(model, threads=1, level=2)
    for arrays in cases:
        given = {spec.name: array for spec, array in zip(model.inputs, arrays, strict=True)}
        for name, want in model.engine(given).items():
            assert np.abs(program(**given)[name] - want).max() <= error


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.slow
def test_transformers_keep_their_operators_at_open_sizes(causal: bool) -> None:
    module = Transformer(causal)
    module.eval()
    ids = ("b, s", "int32")
    model = halo_tvm.import_jax(module, None, ids, ids, ranges={"b": (1, 8), "s": (1, 64)})
    linears = 7 if causal else 6
    expected = {"attention": 1, "embedding": 2, "ffn": 1, "layer_norm": 1, "linear": linears - 2, "rms_norm": 1}
    assert lifted(model) == expected
    assert [spec.name for spec in model.inputs] == ["ids", "shown"]
    assert model.inputs[0].values == (0, ROWS - 1) and model.ranges == {"b": (1, 8), "s": (1, 64)}
    assert {"tokens.embedding", "block.attention.query.kernel", "block.up.bias"} <= set(model.params.sources)
    rng = np.random.default_rng(0)
    shown = np.ones((2, 7), np.int32)
    shown[1, 4:] = 0
    check(model, (rng.integers(0, ROWS, (2, 7)).astype(np.int32), shown))


class Net(linen.Module):
    """Convolutions with batch statistics, pooling, a transposed convolution."""

    @linen.compact
    def __call__(self, image: jax.Array) -> dict[str, jax.Array]:
        x = linen.Conv(8, (3, 3), strides=(2, 2))(image)
        x = linen.relu(linen.BatchNorm(use_running_average=True)(x))
        x = linen.max_pool(x, (2, 2), (2, 2))
        y = linen.ConvTranspose(3, (2, 2), strides=(2, 2))(x)
        return {"image": y, "class": linen.Dense(5)(linen.avg_pool(x, (2, 2), (1, 1), "SAME").mean((1, 2)))}


def test_a_mask_of_heads_that_are_all_there_is_none() -> None:
    def attended(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2.0)
        masked = jnp.einsum("bhqk,h->bhqk", weights, jnp.ones(HEADS))
        return jnp.einsum("bhqk,bkhd->bqhd", masked, v)

    model = halo_tvm.import_jax(attended, None, *[(f"b, s, {HEADS}, 4", "float32")] * 3, ranges={"s": (1, 64)})
    assert lifted(model) == {"attention": 1}


def test_convolutions_come_to_the_layout_that_kernels_read() -> None:
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(shape).astype(np.float32) / 8 for shape in ((3, 3, 3, 16), (3, 3, 16, 16))]

    def net(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(y)
        return x

    model = halo_tvm.import_jax(net, weights, ("n, 10, 9, 3", "float32"), ranges={"n": (1, 4)})
    program = compile_in_process(model)
    assert program.reports.optimise.others["channels_last"]["convolutions"] == {"through windows": 2}
    x = rng.standard_normal((2, 10, 9, 3)).astype(np.float32)
    wanted, found = model.engine({model.inputs[0].name: x}), program(**{model.inputs[0].name: x})
    for name, want in wanted.items():
        np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_linen_and_functions_of_weights() -> None:
    net = Net()
    image = np.random.default_rng(0).standard_normal((2, 16, 12, 3)).astype(np.float32)
    variables = net.init(jax.random.key(0), image)
    model = halo_tvm.import_jax(net, variables, ("n, 16, 12, 3", "float32"))
    assert model.outputs == ("class", "image") and "params.Conv_0.kernel" in model.params.sources
    assert lifted(model)["convolution"] == 2 and lifted(model)["pooling"] == 2  # the transposed one by its phases
    found = unscheduled(model, {"image": image})
    for name, want in model.engine({"image": image}).items():
        np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=1e-5)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(UsageError, match="expected the variables of a linen module, found none"):
        halo_tvm.import_jax(Net(), None, ("1, 8, 8, 3", "float32"))
    with pytest.raises(UsageError, match=r"expected an array, a jax.ShapeDtypeStruct or a pair .* for every input"):
        halo_tvm.import_jax(jnp.sin, None, ("n, +", "float32"))
    with pytest.raises(UnsupportedModel, match=r"a function that jax can trace .* 'n' < '3' is inconclusive"):
        halo_tvm.import_jax(lambda x: jax.lax.top_k(x, 3)[0], None, ("n", "float32"))


@pytest.mark.slow
def test_keras_models_declare_their_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")  # read where keras is first imported
    layers = pytest.importorskip("keras").layers
    import keras

    if keras.backend.backend() != "jax":
        pytest.skip("keras was imported on another backend")
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = layers.Embedding(ROWS, WIDTH)(ids)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(HEADS, 8)(x, x, use_causal_mask=True))
    x = layers.Dense(WIDTH)(layers.Dense(64, activation="gelu")(x))
    model = halo_tvm.import_jax(keras.Model(ids, layers.GRU(4)(x)))
    assert lifted(model).items() >= {"attention": 1, "embedding": 1, "ffn": 1, "layer_norm": 1}.items()
    assert model.inputs[0].shape == ("batch", "length_1")
    given = {model.inputs[0].name: np.arange(6, dtype=np.int32).reshape(2, 3)}
    np.testing.assert_allclose(
        *(engine(given)[model.outputs[0]] for engine in (lambda g: unscheduled(model, g), model.engine)), atol=1e-5
    )


def test_equinox_modules_are_their_own_weights() -> None:
    equinox = pytest.importorskip("equinox")
    net = equinox.nn.MLP(6, 3, 8, 1, key=jax.random.key(0))
    model = halo_tvm.import_jax(lambda m, x: jax.vmap(m)(x), net, ("n, 6", "float32"))
    assert "layers.0.weight" in model.params.sources
    x = np.ones((2, 6), np.float32)
    np.testing.assert_allclose(unscheduled(model, {"x": x})["output"], model.engine({"x": x})["output"], atol=1e-5)
    with pytest.raises(UnsupportedModel, match="a function that jax can trace"):
        halo_tvm.import_jax(net, None, ("n, 6", "float32"))  # a module of one example


def test_a_row_of_a_table_for_each_example_is_an_embedding() -> None:
    """As Equinox reads one: the slice [1, width] that begins at (id, 0)."""
    tables = {"a": jax.random.normal(jax.random.key(0), (ROWS, 8)), "b": jax.random.normal(jax.random.key(1), (64, 8))}

    def function(tables: dict[str, jax.Array], ids: jax.Array) -> jax.Array:
        rows = jax.vmap(jax.vmap(lambda i: jax.lax.dynamic_slice(tables["a"], (i, 0), (1, 8))))(ids)
        positions = jax.vmap(lambda i: jax.lax.dynamic_slice(tables["b"], (i, 0), (1, 8)))(jnp.arange(ids.shape[1]))
        return rows[:, :, 0] + positions[None, :, 0]

    model = halo_tvm.import_jax(function, tables, ("b, s", "int32"), ranges={"b": (1, 8), "s": (1, 64)})
    assert lifted(model)["embedding"] == 2
    check(model, (np.random.default_rng(0).integers(0, ROWS, (2, 7)).astype(np.int32),))


def test_an_equinox_transformer_keeps_its_operators_at_open_sizes() -> None:
    equinox = pytest.importorskip("equinox")
    keys = iter(jax.random.split(jax.random.key(0), 9))

    class Layer(equinox.Module):
        attention: equinox.nn.MultiheadAttention
        norms: tuple[equinox.nn.LayerNorm, equinox.nn.RMSNorm]
        up: equinox.nn.Linear
        down: equinox.nn.Linear

        def __call__(self, x: jax.Array) -> jax.Array:
            y = jax.vmap(self.norms[0])(x)
            x = x + self.attention(y, y, y, mask=jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool)))
            return x + jax.vmap(lambda row: self.down(jax.nn.gelu(self.up(self.norms[1](row)))))(x)

    nn = equinox.nn
    layer = Layer(
        nn.MultiheadAttention(HEADS, WIDTH, key=next(keys)),
        (nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH)),
        nn.Linear(WIDTH, 64, key=next(keys)),
        nn.Linear(64, WIDTH, key=next(keys)),
    )
    net = {"tokens": nn.Embedding(ROWS, WIDTH, key=next(keys)), "layer": layer}

    def function(net: dict, ids: jax.Array) -> jax.Array:
        return jax.vmap(lambda row: net["layer"](jax.vmap(net["tokens"])(row)))(ids)

    model = halo_tvm.import_jax(function, net, ("b, s", "int32"), ranges={"b": (1, 8), "s": (1, 64)})
    expected = {"attention": 1, "embedding": 1, "ffn": 1, "layer_norm": 1, "rms_norm": 1}
    assert lifted(model).items() >= expected.items()
    check(model, (np.random.default_rng(0).integers(0, ROWS, (2, 7)).astype(np.int32),))


@pytest.mark.parametrize("kind", ["Bert", "GPT2", "ViT"])
def test_flax_models_of_transformers_keep_their_operators_at_open_sizes(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "FlaxBertModel"):  # as of 5
        pytest.skip("this transformers has no Flax models")
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 64}
    if kind == "GPT2":
        sizes = {"n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_positions": 64}
    sizes |= {"image_size": 16, "patch_size": 8} if kind == "ViT" else {"vocab_size": ROWS}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    net = getattr(transformers, f"Flax{kind}Model")(config, seed=0)
    rng = np.random.default_rng(0)
    if kind == "ViT":
        given, arrays = [("b, 3, 16, 16", "float32")], (rng.standard_normal((2, 3, 16, 16), np.float32),)
    else:
        given, arrays = [("b, s", "int32")], (rng.integers(0, ROWS, (2, 7)).astype(np.int32),)
    ranges = {"b": (1, 8)} if kind == "ViT" else {"b": (1, 8), "s": (1, 64)}
    model = halo_tvm.import_jax(lambda p, x: net(x, params=p, train=False)[0], net.params, *given, ranges=ranges)
    norms = {"Bert": 5, "GPT2": 5, "ViT": 5}[kind]
    expected = {"attention": 2, "ffn": 2, "layer_norm": norms} | ({} if kind == "ViT" else {"embedding": 2})
    assert lifted(model).items() >= expected.items()
    check(model, arrays)


@pytest.mark.parametrize("kind", ["lstm", "optimised", "gru", "linen"])
@pytest.mark.sampled(1, 2)
def test_a_cell_in_a_scan_is_the_layer_at_any_length(kind: str) -> None:
    rngs, given = nnx.Rngs(0), ("b, s, 6", "float32")
    if kind == "linen":
        net = linen.RNN(linen.OptimizedLSTMCell(4), reverse=True, keep_order=True)
        variables = net.init(jax.random.key(0), np.zeros((1, 3, 6), np.float32))
        model = halo_tvm.import_jax(net, variables, given)
    else:
        cells = {"lstm": nnx.LSTMCell, "optimised": nnx.OptimizedLSTMCell, "gru": nnx.GRUCell}
        model = halo_tvm.import_jax(nnx.RNN(cells[kind](6, 4, rngs=rngs)), None, given)
    assert lifted(model) == {"gru" if kind == "gru" else "lstm": 1}
    x = {model.inputs[0].name: np.random.default_rng(0).standard_normal((2, 5, 6), np.float32)}
    name = model.outputs[0]
    np.testing.assert_allclose(unscheduled(model, x)[name], model.engine(x)[name], atol=1e-5)


def test_a_cell_of_ones_own_whose_rows_are_products_already() -> None:
    """A GRU that resets before the product, over gates that somebody else multiplied."""
    rng = np.random.default_rng(0)
    r, b = rng.standard_normal((2, 4, 4), np.float32), rng.standard_normal(4, np.float32)

    def cell(h: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        z, n = jnp.split(row, 2, axis=-1)
        update = jax.nn.sigmoid(z + h @ r[0] + b)
        reset = jax.nn.sigmoid(h @ r[1] + z)
        new = (1 - update) * jnp.tanh(n + (reset * h) @ r[0]) + update * h
        return new, new

    def function(gates: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.lax.scan(cell, jnp.zeros((gates.shape[1], 4)), gates)

    model = halo_tvm.import_jax(function, None, ("s, b, 8", "float32"))
    assert lifted(model) == {"gru": 1}
    gates = {"gates": rng.standard_normal((5, 2, 8), np.float32)}
    found = unscheduled(model, gates)
    for name, want in model.engine(gates).items():
        np.testing.assert_allclose(found[name], want, atol=1e-5)


def test_a_scan_that_is_no_cell_stays_a_scan() -> None:
    def function(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda h, row: (jnp.sin(h) + row, h), x[0], x)[1]

    model = halo_tvm.import_jax(function, None, ("3, 4", "float32"))
    assert lifted(model) == {}
