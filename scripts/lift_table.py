#!/usr/bin/env python3
"""Count what the lifts find in model files, against what the models' configurations say.

    python scripts/lift_table.py MODEL... [--configs FILE.py] [--operators] [--why]

For every model: attention (and how it is masked), feed-forward networks, norms, rotary embeddings, linears and
embeddings after the lift phase; `!` marks a count that differs from the configuration's. Then what was not lifted, with
its node and the reason. `--configs` names a Python file whose SPECS maps a name to (kind, class of configuration, its
arguments, class of model), all of `transformers`; a model belongs to the longest name that its path contains.
TorchScript models take their example inputs from `inputs_0.npz` beside them. `--operators` counts operators of the
models as imported instead, by frequency. Exit status 1 when a count differs.
"""

from __future__ import annotations

import argparse
import ast
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

COUNTED = ("attention", "ffn", "layer_norm", "rms_norm", "rotary")
SHOWN = (*COUNTED, "linear", "embedding", "matmul", "convolution")
MASKS = ("causal", "window", "has_key_mask", "has_bias", "softcap")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--configs", type=Path, help="Python file with SPECS")
    parser.add_argument("--operators", action="store_true", help="count the operators as imported, by frequency")
    parser.add_argument("--why", action="store_true", help="list what was not lifted")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    specs = read_specs(args.configs) if args.configs else {}
    total: Counter[str] = Counter()
    differing = 0
    for path in args.models:
        differing += one_model(path, specs, args, total)
    for name, count in total.most_common() if args.operators else ():
        print(f"{count:6} {name}")
    return 1 if differing else 0


def one_model(path: Path, specs: Mapping[str, tuple], args: argparse.Namespace, total: Counter[str]) -> bool:
    """Print the line of one model; whether it failed or differs from its configuration."""
    from halo_tvm.errors import HaloError
    from halo_tvm.importers import import_model
    from halo_tvm.passes.graph_pass import count_calls

    label = path.stem if path.stem != "model" else path.parent.name
    examples = path.parent / "inputs_0.npz"
    try:
        needs = path.suffix in (".pt", ".pth", ".ts", ".jit") and examples.is_file()
        model = import_model(str(path), inputs=str(examples) if needs else None, trust=True)
    except HaloError as reason:
        print(f"{label:28} not imported: {str(reason)[:200]}", flush=True)
        return True
    if args.operators:
        total.update(count_calls(model.mod["main"]))
        return False
    counts, masks, rejected, left = lifted(model)
    name = max((n for n in specs if n in str(path)), key=len, default=None)
    wanted = expected(name, specs[name]) if name else {}
    marks = {op: "!" if wanted and counts.get(op, 0) != wanted.get(op, 0) else "" for op in COUNTED}
    cells = [
        f"{op} {counts.get(op, 0)}"
        + (
            f"{marks.get(op, '')}/{wanted[op]}"
            if wanted.get(op) or marks.get(op) and op in wanted
            else marks.get(op, "")
        )
        for op in SHOWN
        if counts.get(op) or wanted.get(op)
    ]
    verdict = "DIFFERS" if any(marks.values()) else "ok"
    print(f"{label:28} {verdict:8}{', '.join(cells)} | {masks or 'no mask'} | left {left}", flush=True)
    for entry in rejected if args.why else ():
        print(f"    {entry['lift']} at {entry['node']}: {entry['reason']}")
    return any(marks.values())


def lifted(model) -> tuple[dict[str, int], str, list[dict[str, str]], str]:
    """Operators, masks of the attentions, rejections, and the calls that hint at something not lifted."""
    from halo_tvm.passes import Context, Overrides, pipeline
    from halo_tvm.passes.graph_pass import bindings, count_calls, op_name
    from halo_tvm.relay_ops.operator import attrs_of
    from halo_tvm.targets import resolve

    context = Context(model.params, resolve("cpu", cores=1), model.ranges, model.typical, Overrides())
    mod, report = pipeline.Pipeline.of(1).run(pipeline.LIFT, model.mod, context)
    masks: Counter[str] = Counter()
    for binding in bindings(mod["main"]):
        if op_name(binding.value) == "relax.halo.attention":
            attrs = attrs_of(binding.value)
            masks[" ".join(m.removeprefix("has_") for m in MASKS if attrs.get(m)) or "none"] += 1
    report = report["lift"]
    calls = count_calls(mod["main"])
    hints = (
        "nn.softmax",
        "mean",
        "rsqrt",
        "nn.gelu",
        "nn.gelu_tanh",
        "nn.silu",
        "nn.relu",
        "tanh",
        "erf",
        "cos",
        "sin",
        "matmul",
    )
    left = ", ".join(f"{h} {calls[h]}" for h in hints if h in calls)
    return report["operators"], ", ".join(f"{n}x {m}" for m, n in masks.items()), report["rejected"], left or "-"


def read_specs(path: Path) -> dict[str, tuple]:
    """SPECS of a Python file; calls at its top level are not made."""
    tree = ast.parse(path.read_text())
    tree.body = [statement for statement in tree.body if not isinstance(statement, ast.Expr)]
    names: dict[str, object] = {"__name__": "specs"}
    exec(compile(tree, str(path), "exec"), names)  # a file that the caller names, as if run by its interpreter
    return names["SPECS"]


def expected(name: str, spec: tuple) -> dict[str, int]:
    """How many operators of each kind a configuration of `transformers` implies."""
    import transformers

    config = getattr(transformers, spec[1])(**spec[2])
    if hasattr(config, "text_config") and hasattr(config, "vision_config"):
        n, m = config.text_config.num_hidden_layers, config.vision_config.num_hidden_layers
        pooled = name == "siglip"  # its image head is one more layer
        return {"attention": n + m + pooled, "ffn": n + m + pooled, "layer_norm": 2 * (n + m) + 3}
    layers = next(
        (getattr(config, k) for k in ("num_hidden_layers", "n_layer", "num_layers") if getattr(config, k, None)), 0
    )
    e, d = (getattr(config, f"{k}_layers", layers) for k in ("encoder", "decoder"))
    norms = NORMS.get(name)
    if name == "t5":
        return {"attention": e + 2 * d, "ffn": e + d, "rms_norm": 2 * e + 3 * d + 2}
    if name in ("bart", "marian", "whisper"):
        return {
            "attention": e + 2 * d,
            "ffn": e + d,
            "layer_norm": 2 * e + 3 * d + {"bart": 2, "marian": 0, "whisper": 2}[name],
        }
    if name in ("swin", "segformer", "convnext"):
        blocks = sum(config.depths)
        stages = len(config.depths)
        return {
            "swin": {"attention": blocks, "ffn": blocks, "layer_norm": 2 * blocks + stages - 1 + 2},
            "segformer": {
                "attention": blocks,
                "ffn": 0,
                "layer_norm": 2 * blocks + 2 * stages + sum(r > 1 for r in getattr(config, "sr_ratios", ())),
            },
            "convnext": {"attention": 0, "ffn": blocks, "layer_norm": blocks + stages + 1},
        }[name]
    if norms is None:
        return {}
    kind, per_layer, more = norms
    return {
        "attention": 0 if name in NO_ATTENTION else layers,
        "ffn": 0 if name in NO_FFN else layers,
        kind: per_layer * layers + more,
        "rotary": 2 * layers if name in ROTARY else 0,
    }


# name: (norm, of them in a layer, outside)
NORMS = {
    "gpt2": ("layer_norm", 2, 1),
    "gpt_neo": ("layer_norm", 2, 1),
    "gpt_neox": ("layer_norm", 2, 1),
    "gptj": ("layer_norm", 1, 1),
    "opt": ("layer_norm", 2, 1),
    "bloom": ("layer_norm", 2, 2),
    "falcon": ("layer_norm", 1, 1),
    "llama": ("rms_norm", 2, 1),
    "mistral": ("rms_norm", 2, 1),
    "mixtral": ("rms_norm", 2, 1),
    "qwen2": ("rms_norm", 2, 1),
    "qwen3": ("rms_norm", 4, 1),
    "qwen3_moe": ("rms_norm", 4, 1),
    "gemma": ("rms_norm", 2, 1),
    "gemma2": ("rms_norm", 4, 1),
    "gemma3_text": ("rms_norm", 6, 1),
    "phi": ("layer_norm", 1, 1),
    "phi3": ("rms_norm", 2, 1),
    "stablelm": ("layer_norm", 2, 1),
    "olmo2": ("rms_norm", 4, 1),
    "mamba": ("rms_norm", 1, 1),
    "bert": ("layer_norm", 2, 1),
    "roberta": ("layer_norm", 2, 1),
    "distilbert": ("layer_norm", 2, 1),
    "albert": ("layer_norm", 2, 1),
    "electra": ("layer_norm", 2, 1),
    "deberta_v2": ("layer_norm", 2, 1),
    "modernbert": ("layer_norm", 2, 1),
    "vit": ("layer_norm", 2, 1),
    "dinov2": ("layer_norm", 2, 1),
    "wav2vec2": ("layer_norm", 2, 2),
}
ROTARY = frozenset(
    {
        "gpt_neox",
        "gptj",
        "falcon",
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "gemma",
        "gemma2",
        "gemma3_text",
        "phi",
        "phi3",
        "stablelm",
        "olmo2",
        "modernbert",
    }
)
NO_ATTENTION = frozenset({"mamba"})
NO_FFN = frozenset({"mamba", "mixtral", "qwen3_moe"})  # experts are chosen at run time


if __name__ == "__main__":
    sys.exit(main())
