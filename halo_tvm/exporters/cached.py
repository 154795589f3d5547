"""A language model as an ONNX file in which keys and values come in and go out: one step after another, in any engine.

    input_ids, position_ids [batch, tokens], attention_mask [batch, total], past_key_values.{i}.key and .value
    [batch, kv_heads, past, head_dim]   ->   logits, present.{i}.key and .value [batch, kv_heads, total, head_dim]

These are the names that transformers' exporters and onnxruntime-genai use.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from ..errors import UnsupportedModel, UsageError
from ..imported import ImportedModel, InputSpec
from ..importers import import_model
from ..interpreter import evaluate
from ..relay_ops.operator import op_name
from ..whole_file import write_whole
from ._graph import Spelling
from ._nbits import BITS
from .comparison import Comparison, Measured, difference, nodes_of, session_of
from .onnx import write_onnx
from .optimised import optimised

GENAI = "genai_config.json"
CHUNKS = (6, 1, 2)  # tokens of the calls that are compared, one behind the other
STEP_AT = 127  # tokens in front of the step that is timed
_ROUNDS = 20
_PAST, _PRESENT = "past_key_values", "present"


def with_past(imported: ImportedModel, *, last: bool = False) -> ImportedModel:
    """The function to write, `last` with logits of the last token alone; `UsageError` where there is none."""
    if imported.with_past is None:
        raise UsageError(
            f"expected a language model of a known family beside --caches, found {imported.name}: leave --caches out"
        )
    return imported.with_past(last)


@dataclass
class Stepper:
    """A written file in onnxruntime, with the caches of what it has read."""

    session: Any

    def __post_init__(self) -> None:
        self.names = [spec.name for spec in self.session.get_outputs()]
        self.begin()

    def begin(self, batch: int = 1) -> None:
        self.past = {
            spec.name: np.zeros(
                [n if isinstance(n, int) else batch if n == "batch" else 0 for n in spec.shape], "float32"
            )
            for spec in self.session.get_inputs()
            if spec.name.startswith(_PAST)
        }
        self.length = 0

    def feeds(self, ids: NDArray[Any]) -> dict[str, NDArray[Any]]:
        batch, tokens = ids.shape
        positions = np.arange(self.length, self.length + tokens, dtype=np.int64)
        return {
            "input_ids": ids.astype(np.int64),
            "position_ids": np.tile(positions, (batch, 1)),
            "attention_mask": np.ones((batch, self.length + tokens), np.int64),
            **self.past,
        }

    def read(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Logits of `ids` [batch, tokens], which are in the caches then."""
        logits, *present = self.session.run(self.names, self.feeds(ids))
        caches = zip(self.names[1:], present, strict=True)
        self.past = {name.replace(_PRESENT, _PAST, 1): array for name, array in caches}
        self.length += ids.shape[1]
        found: NDArray[Any] = logits
        return found


def compare_steps(imported: ImportedModel, path: Path, *, seed: int = 0, threads: int = 0) -> Comparison:
    """Run the file `path` chunk by chunk against `main` of `imported` on the whole, and time a step of one token."""
    stepper = Stepper(session_of(path, threads))
    ids_of = imported.inputs[0]
    assert ids_of.values is not None, "token ids have bounds"
    ids = np.random.default_rng(seed).integers(0, ids_of.values[1] + 1, (1, sum(CHUNKS)))
    wanted = evaluate(imported, {ids_of.name: ids})[imported.outputs[0]]
    error, at = 0.0, 0
    for count in CHUNKS:
        logits = stepper.read(ids[:, at : at + count])
        at += count
        whole = wanted.ndim == 3  # else `main` gives the last position alone
        if whole or at == sum(CHUNKS):
            error = max(
                error, difference(logits if whole else logits[:, -1], wanted[:, at - count : at] if whole else wanted)
            )
    return Comparison(None, Measured(nodes_of(path), _step_ms(stepper, imported)), error, "logits")


def _step_ms(stepper: Stepper, imported: ImportedModel) -> float:
    """The median time of a call with one token, behind `STEP_AT` others or as many as the model takes."""
    longest = min(imported.ranges[dim][1] for dim in imported.inputs[0].shape[1:] if isinstance(dim, str))
    stepper.begin()
    stepper.read(np.zeros((1, min(STEP_AT, longest - 1)), np.int64))
    feeds, samples = stepper.feeds(np.zeros((1, 1), np.int64)), []
    for _ in range(_ROUNDS + 1):
        start = time.perf_counter()
        stepper.session.run(None, feeds)
        samples.append((time.perf_counter() - start) * 1e3)
    return statistics.median(samples[1:])


def export_for_genai(model: str, folder: Path, numbers: str = "F32", seed: int = 0) -> Path:
    """Write `model`, a directory or a built-in name, as a folder that onnxruntime-genai runs; with logits of the last
    token alone. Raises `UnsupportedModel` for what has no such file, `UsageError` for what is no language model."""
    made = with_past(import_model(model, seed=seed), last=True)
    file = folder / "model.onnx"
    spelling = replace(Spelling.of("onnxruntime"), numbers=numbers if numbers in BITS else "")
    write_onnx(optimised(made), file, spelling)
    write_genai_config(made, file)
    return folder


def runs_in_genai(model: ImportedModel) -> bool:
    """Whether the caches of `model` are what onnxruntime-genai knows: keys and values, of one shape in all layers."""
    caches = _caches(model)
    return any(spec.name.endswith(".value") for spec in caches) and len({spec.shape for spec in caches}) == 1


def _caches(model: ImportedModel) -> list[InputSpec]:
    """The inputs that are caches."""
    return [spec for spec in model.inputs if spec.name.startswith(_PAST)]


def _found(model: ImportedModel) -> str:
    """The caches that onnxruntime-genai does not know."""
    caches = _caches(model)
    if not any(spec.name.endswith(".value") for spec in caches):
        return "one vector of a token for both"
    return " and ".join(sorted({f"{spec.shape[1]} heads of {spec.shape[3]}" for spec in caches}))


def write_genai_config(model: ImportedModel, path: Path) -> Path:
    """What onnxruntime-genai has to know about the file `path` of `model`, written beside it; the file's path.

    `UsageError` where there is another one, `UnsupportedModel` for a model that it does not run.
    """
    if not runs_in_genai(model):
        raise UnsupportedModel(
            "expected keys and values of one shape in every layer, which onnxruntime-genai takes, "
            f"found {_found(model)}: leave onnxruntime-genai out"
        )
    target = path.with_name(GENAI)
    text = json.dumps(_genai_config(model, path.name), indent=2) + "\n"
    if target.exists() and target.read_text(encoding="utf-8") != text:
        raise UsageError(f"expected no {GENAI} of another model beside {path.name}, found one: choose an empty folder")
    write_whole(target, text.encode())
    return target


def _genai_config(model: ImportedModel, filename: str) -> dict[str, object]:
    caches = _caches(model)
    ids = model.inputs[0]
    assert ids.values is not None, "token ids have bounds"
    end = (model.language or {}).get("end") or [0]
    context = model.ranges["total"][1]
    attention = next(call for call in _calls(model) if call.op.name == "relax.halo.attention")
    embedding = next(call for call in _calls(model) if call.op.name == "relax.halo.embedding")
    names = {"key": f"{_PAST}.%d.key", "value": f"{_PAST}.%d.value"}
    present = {"key": f"{_PRESENT}.%d.key", "value": f"{_PRESENT}.%d.value"}
    decoder: dict[str, object] = {
        "session_options": {"provider_options": []},
        "filename": filename,
        "head_size": caches[0].shape[3],
        "hidden_size": int(embedding.ty.shape.values[-1]),
        "num_attention_heads": int(attention.attrs["num_heads"]),
        "num_key_value_heads": caches[0].shape[1],
        "num_hidden_layers": len(caches) // 2,
        "inputs": {
            **{name: name for name in ("input_ids", "attention_mask", "position_ids")},
            **{f"past_{kind}_names": name for kind, name in names.items()},
        },
        "outputs": {"logits": "logits", **{f"present_{kind}_names": name for kind, name in present.items()}},
    }
    return {
        "model": {
            "type": "decoder",
            "vocab_size": ids.values[1] + 1,
            "context_length": context,
            "bos_token_id": 0,
            "eos_token_id": end,
            "pad_token_id": end[0] if isinstance(end, list) else 0,
            "decoder": decoder,
        },
        "search": {"do_sample": False, "max_length": context, "past_present_share_buffer": True},
    }


def _calls(model: ImportedModel) -> list[relax.Call]:
    found: list[relax.Call] = []

    def visit(expr: relax.Expr) -> None:
        if op_name(expr):
            found.append(expr)

    relax.analysis.post_order_visit(model.mod["main"].body, visit)
    return found
