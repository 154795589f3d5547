"""What sentence-transformers puts behind an encoder: one vector of all its states, and what follows.

    modules.json: Transformer -> Pooling -> Dense, LayerNorm, Normalize in any order -> sentence_embedding [batch, d]

Pooling, of the states x [batch, sequence, d] where the mask is 1 (several ways side by side):
    mean, mean_sqrt_len_tokens    their sum over their count, or over its root
    weightedmean                  the i-th of them counts i times
    max                           the largest of each column
    cls, lasttoken                the first of them, the last
References
    arXiv:1908.10084; arXiv:2202.08904 (weighted mean)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import tvm
from tvm import relax

from ..errors import UnsupportedModel
from ..imported import ImportedModel, InputSpec
from ..interpreter import evaluate
from ..models.builder import ModelBuilder
from ..params import ParamSource
from ..relay_ops import OPERATORS
from ._json import read_json
from .tensor_files import TensorFile, opened, weight_files

STATES, MASK, EMBEDDING = "last_hidden_state", "attention_mask", "sentence_embedding"
_INDEX = "modules.json"
_LARGEST_INDEX = 1 << 20
_LOWEST = float(np.finfo(np.float32).min)
# pooling_mode_<key> in files of older releases, in the order in which they stand side by side
_OLDER = {
    "cls_token": "cls",
    "max_tokens": "max",
    "mean_tokens": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean_tokens": "weightedmean",
    "lasttoken": "lasttoken",
}
_ACTIVATIONS: Mapping[str, Callable[[relax.Expr], relax.Expr]] = {
    "Identity": lambda x: x,
    "Tanh": relax.op.tanh,
    "Sigmoid": relax.op.sigmoid,
    "ReLU": lambda x: relax.op.maximum(x, relax.const(0.0)),
}


class _Builder(Protocol):
    """What a definition writes with: a `ModelBuilder`, or `_Behind`."""

    def emit(self, expr: relax.Expr) -> relax.Var: ...

    def op(self, operator: str, *args: relax.Expr, **attrs: object) -> relax.Var: ...

    def weight(self, name: str, shape: tuple[int, ...]) -> relax.Var: ...


@dataclass(frozen=True)
class _Step:
    """One module behind the encoder: what it is, and where its files lie."""

    kind: str
    folder: Path

    def config(self) -> dict[str, object]:
        return read_json(self.folder / "config.json", f"config.json of a module {self.kind}")


@dataclass(frozen=True)
class SentenceModel:
    """A directory of sentence-transformers that pools the states of an encoder."""

    encoder: Path
    steps: tuple[_Step, ...]


def sentence_model(path: Path) -> SentenceModel | None:
    """What modules.json in `path` describes; None where it is not there, or is about another kind of model."""
    file = path / _INDEX
    if not file.is_file() or file.stat().st_size > _LARGEST_INDEX:
        return None
    try:
        listed = json.loads(file.read_text(encoding="utf-8"))
        steps = [_Step(str(m["type"]).rpartition(".")[2], path / str(m["path"])) for m in listed]
    except (ValueError, KeyError, TypeError, RecursionError) as reason:
        raise UnsupportedModel(
            f"expected {_INDEX} of sentence-transformers, a list of modules with type and path, found {reason!r:.160}: "
            "download the model again"
        ) from reason
    if [step.kind for step in steps[:2]] != ["Transformer", "Pooling"]:
        return None
    for step in steps:
        if not step.folder.resolve().is_relative_to(path.resolve()):
            raise UnsupportedModel(f"expected modules inside of {path.name}, found {step.folder}: correct {_INDEX}")
    return SentenceModel(steps[0].folder, tuple(step for step in steps[1:] if step.kind != "Dropout"))


def with_embedding(model: ImportedModel, sentence: SentenceModel) -> ImportedModel:
    """`model` with the vector of a text as a further output; `UnsupportedModel` for modules of other kinds."""
    if STATES not in model.outputs:
        raise UnsupportedModel(
            f"expected an encoder that gives {STATES} in front of pooling, found {', '.join(model.outputs)}: "
            f"remove {_INDEX}, and the model is compiled as it is"
        )
    weights = _Weights()
    behind = _Behind(model, weights)
    mask = next((var for spec, var in zip(model.inputs, behind.func.params) if spec.name == MASK), None)
    states = behind.results[model.outputs.index(STATES)]
    mod = behind.module(_define(behind, sentence.steps, states, mask))
    engine = model.engine
    if engine is not None:
        engine = _engine(engine, sentence.steps, [int(states.ty.shape.values[-1])], weights)
    kinds = [step.kind for step in sentence.steps]
    return replace(
        model,
        mod=mod,
        outputs=(*model.outputs, EMBEDDING),
        engine=engine,
        report={**model.report, "sentence": kinds},
    )


def _define(m: _Builder, steps: Sequence[_Step], states: relax.Expr, mask: relax.Expr | None) -> relax.Var:
    """The vector [batch, d] of states [batch, sequence, d]; without a mask all of them count."""
    batch, sequence, _ = states.ty.shape.values
    place = m.emit(relax.op.arange(0, sequence, 1, "int64"))
    place = m.emit(relax.op.reshape(m.emit(relax.op.astype(place, "float32")), (1, sequence, 1)))
    if mask is None:
        mask = m.emit(relax.op.add(m.emit(relax.op.multiply(place, relax.const(0.0))), relax.const(1.0)))
    else:
        mask = m.emit(relax.op.reshape(m.emit(relax.op.astype(mask, "float32")), (batch, sequence, 1)))
    x: relax.Var | None = None
    for step in steps:
        if step.kind == "Pooling":
            parts = [_pooled(m, mode, states, mask, place) for mode in _modes(step)]
            x = parts[0] if len(parts) == 1 else m.emit(relax.op.concat(parts, axis=-1))
        elif x is not None and step.kind == "Normalize":
            squares = m.emit(relax.op.sum(m.emit(relax.op.multiply(x, x)), axis=-1, keepdims=True))
            length = m.emit(relax.op.maximum(m.emit(relax.op.sqrt(squares)), relax.const(1e-12)))
            x = m.emit(relax.op.divide(x, length))
        elif x is not None and step.kind == "Dense":
            x = _dense(m, step, x)
        elif x is not None and step.kind == "LayerNorm":
            width = (int(x.ty.shape.values[-1]),)
            scale, shift = (m.weight(f"{step.folder}:norm.{part}", width) for part in ("weight", "bias"))
            x = m.op("layer_norm", x, scale, shift, eps=1e-5)
        else:
            raise _refused("modules Pooling, Dense, LayerNorm and Normalize behind the encoder", step.kind)
    assert x is not None, "the first step is pooling"
    return x


def _pooled(m: _Builder, mode: str, x: relax.Expr, mask: relax.Expr, place: relax.Expr) -> relax.Var:
    emit = m.emit

    def total(weights: relax.Expr) -> relax.Var:
        return emit(relax.op.sum(emit(relax.op.multiply(x, weights)), axis=1))

    def first_of(order: relax.Expr) -> relax.Var:
        """1 where `order` is the largest of those that the mask leaves."""
        most = emit(relax.op.max(emit(relax.op.multiply(order, mask)), axis=1, keepdims=True))
        return emit(relax.op.astype(emit(relax.op.equal(order, most)), "float32"))

    if mode == "max":
        hidden = emit(relax.op.equal(mask, relax.const(0.0)))
        return emit(relax.op.max(emit(relax.op.where(hidden, relax.const(_LOWEST), x)), axis=1))
    if mode == "lasttoken":
        return total(first_of(place))
    end = emit(relax.op.max(place, axis=1, keepdims=True))
    back = emit(relax.op.subtract(end, place))
    if mode == "cls":
        return total(first_of(back))
    weights = mask
    if mode == "weightedmean":
        start = emit(relax.op.sum(emit(relax.op.multiply(place, first_of(back))), axis=1, keepdims=True))
        rank = emit(relax.op.add(emit(relax.op.subtract(place, start)), relax.const(1.0)))
        weights = emit(relax.op.multiply(rank, mask))
    count = emit(relax.op.maximum(emit(relax.op.sum(weights, axis=1)), relax.const(1e-9)))
    return emit(relax.op.divide(total(weights), emit(relax.op.sqrt(count)) if "sqrt" in mode else count))


def _modes(step: _Step) -> list[str]:
    """The ways of pooling that a configuration names."""
    config = step.config()
    given = config.get("pooling_mode")
    if given is None:
        given = [mode for key, mode in _OLDER.items() if config.get(f"pooling_mode_{key}")] or "mean"
    modes = [given] if isinstance(given, str) else given
    if not isinstance(modes, list) or not modes or any(mode not in _OLDER.values() for mode in modes):
        raise _refused(f"pooling by {', '.join(_OLDER.values())}", f"{given!r:.80}")
    return modes


def _dense(m: _Builder, step: _Step, x: relax.Var) -> relax.Var:
    config = step.config()
    k, n = (config.get(key) for key in ("in_features", "out_features"))
    activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    plain = all(config.get(key) in (None, EMBEDDING) for key in ("module_input_name", "module_output_name"))
    if k != int(x.ty.shape.values[-1]) or type(n) is not int or config.get("use_residual") or not plain:
        raise _refused(f"a module Dense of {int(x.ty.shape.values[-1])} features without residual", f"{config!r:.200}")
    if activation not in _ACTIVATIONS:
        raise _refused(f"a module Dense with {', '.join(_ACTIVATIONS)}", activation)
    weights = [m.weight(f"{step.folder}:linear.weight", (n, k))]
    weights += [m.weight(f"{step.folder}:linear.bias", (n,))] if config.get("bias", True) else []
    return m.emit(_ACTIVATIONS[activation](m.op("linear", x, *weights, layout="nk", n=n)))


def _refused(expected: str, found: str) -> UnsupportedModel:
    return UnsupportedModel(f"expected {expected}, found {found}: remove {_INDEX}, and the encoder alone is compiled")


class _Weights:
    """Tensors of modules by `<folder>:<name>`, read when they are needed."""

    def __init__(self) -> None:
        self._files: dict[str, TensorFile] = {}

    def has(self, name: str) -> bool:
        return True

    def source(self, name: str, shape: tuple[int, ...], scale: float = 0.0, offset: float = 0.0) -> ParamSource:
        folder, _, tensor = name.rpartition(":")
        if folder not in self._files:
            self._files[folder] = opened(weight_files(Path(folder))[0])
        file = self._files[folder]
        if file.shapes.get(tensor) != shape:
            raise UnsupportedModel(
                f"expected tensor {tensor!r} of shape {list(shape)} in {Path(folder).name}, found "
                f"{file.shapes.get(tensor, 'none')}: download the model again"
            )
        return ParamSource(shape, "float32", lambda: np.ascontiguousarray(file.read(tensor), dtype=np.float32))


class _Behind:
    """Writes at the end of a model's main."""

    def __init__(self, model: ImportedModel, weights: _Weights) -> None:
        self.func = model.mod["main"]
        end = self.func.body.body
        many = len(model.outputs) > 1
        self._model, self._weights = model, weights
        self._builder = relax.BlockBuilder()
        self._bindings: list[relax.Binding] = []
        self._added: dict[str, relax.Var] = {}
        self.results: list[relax.Expr] = [end]
        if many:
            fields = end.fields if isinstance(end, relax.Tuple) else None
            self.results = [
                fields[i] if fields else self.emit(relax.TupleGetItem(end, i)) for i in range(len(model.outputs))
            ]

    def emit(self, expr: relax.Expr) -> relax.Var:
        if isinstance(expr, relax.Var):
            return expr
        expr = self._builder.normalize(expr)
        var = relax.Var("embedding", expr.ty)
        self._bindings.append(relax.VarBinding(var, expr))
        return var

    def op(self, operator: str, *args: relax.Expr, **attrs: object) -> relax.Var:
        return self.emit(OPERATORS[operator].call(*args, layer=EMBEDDING, **attrs))

    def weight(self, name: str, shape: tuple[int, ...]) -> relax.Var:
        source = self._weights.source(name, shape)
        folder, _, tensor = name.rpartition(":")
        stored = f"{Path(folder).name}.{tensor}"
        self._model.params.add_source(stored, source)
        self._added[stored] = relax.Var(f"embedding_{len(self._added)}", relax.TensorType(shape, "float32"))
        return self._added[stored]

    def module(self, result: relax.Var) -> tvm.IRModule:
        """The model with `result` as a further output."""
        func = self.func
        ends = [*self.results, result]
        blocks = [*func.body.blocks, relax.DataflowBlock(self._bindings)]
        types = relax.TupleType([end.ty for end in ends])
        params = [*func.params, *self._added.values()]
        new = relax.Function(params, relax.SeqExpr(blocks, relax.Tuple(ends)), types, func.is_pure)
        new = new.with_attrs({key: func.attrs[key] for key in func.attrs.keys()})
        names = [*map(str, func.attrs["halo.params"]), *self._added]
        mod = self._model.mod.clone()
        mod["main"] = new.with_attr("halo.params", names)
        return relax.transform.Normalize()(mod)


def _engine(
    encoder: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]],
    steps: Sequence[_Step],
    width: Sequence[int],
    weights: _Weights,
) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """What the source's engine computes, and behind it the modules, by NumPy in float64."""
    m = ModelBuilder(weights)
    shape = ("batch", "sequence")

    def body(m: ModelBuilder) -> Mapping[str, relax.Expr]:
        states, mask = m.input(STATES, (*shape, *width), "float32"), m.input(MASK, shape, "int64")
        return {EMBEDDING: _define(m, steps, states, mask)}

    mod, outputs = m.module(body)
    inputs = (InputSpec(STATES, (*shape, *width), "float32"), InputSpec(MASK, shape, "int64"))
    behind = ImportedModel("sentence", mod, m.params, inputs, outputs, {}, {}, {}, {})

    def run(given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = encoder(given)
        states = found[STATES]
        mask = given[MASK] if MASK in given else np.ones(states.shape[:2], np.int64)
        return {**found, **evaluate(behind, {STATES: states, MASK: mask})}

    return run
