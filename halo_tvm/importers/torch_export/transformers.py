"""A Hugging Face directory of any architecture that transformers has -> `ImportedModel`, through torch.export.

    config.json + safetensors -> the class that config.json names -> exported with dynamic batch and length

Runs in the confined process: the directory's own Python files are never imported (trust_remote_code=False), pickled
weights are never read, the network is never asked.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from ...array_files import one_reason
from ...errors import UnsupportedModel
from ...imported import ImportedModel
from ...params import ParamTable
from ..tensor_files import weight_files
from ._program import import_module
from ._scans import scans_of_any_length
from .transformers_inputs import Example, dynamic_axes, examples_of, kept_sizes, longest_of, without_cache

_STATES = "last_hidden_state"


def import_unrestricted(path: Path, options: Mapping[str, object]) -> ImportedModel:
    """The model in the directory `path`; `sizes` among `options` are shapes of inputs, by name.

    With `bare` it is the model without a head, whatever config.json names, and gives the last hidden states alone.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    is_safe = weight_files(path)[0].suffix == ".safetensors"
    bare = bool(options.get("bare"))
    try:
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        model, loaded = _class(transformers, config, bare).from_pretrained(
            path,
            config=config,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=is_safe,  # else torch reads a pickle, of weights only
            dtype=torch.float32,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, ImportError) as reason:
        raise UnsupportedModel(
            f"expected a directory that transformers can load, found {type(reason).__name__} ({one_reason(reason)}): "
            "check the directory, or export the model to ONNX"
        ) from reason
    model = model.eval()
    sizes = options.get("sizes", {})
    assert isinstance(sizes, Mapping)
    examples = examples_of(model, sizes)
    imported = _exported(path.name, model, examples, bare)
    kept = kept_sizes(examples, imported.inputs, sizes)
    if kept:  # by the model itself
        imported = _exported(path.name, model, {name: example.at(kept) for name, example in examples.items()}, bare)
    source = {
        "kind": "transformers",
        "name": path.name,
        "model_type": config.model_type,
        "sha256": fingerprint(path),
        "class": type(model).__name__,
    }
    absent = sorted({f"model.{name}" for name in loaded["missing_keys"]} & set(imported.params.sources))
    if absent:  # transformers draws what a checkpoint lacks at random
        raise UnsupportedModel(
            f"expected the weights of {type(model).__name__}, which config.json names, found no "
            f"{', '.join(absent[:3]).replace('model.', '', 1)} among them: correct `architectures` in config.json"
        )
    return dataclasses.replace(_own_names(imported), source=source)


def _exported(name: str, model: torch.nn.Module, examples: Mapping[str, Example], bare: bool) -> ImportedModel:
    """The program of `model` for sizes as open as it lets them be."""
    module = _named(model, tuple(examples), (_STATES,) if bare else ())
    longest = longest_of(model)
    tensors = tuple(example.tensor for example in examples.values())

    def exported(shared: bool) -> ImportedModel:
        shapes = tuple(dynamic_axes(longest, example, shared) for example in examples.values())
        with scans_of_any_length(model, longest):
            return import_module(module, tensors, dynamic_shapes=shapes, name=name)

    try:
        return exported(shared=True)
    except UnsupportedModel:  # torch finds that a dimension is fixed, or is not the same everywhere
        return exported(shared=False)


def _own_names(model: ImportedModel) -> ImportedModel:
    """Weights under the names they have in the checkpoint, without that of the module around it."""
    params = ParamTable({name.removeprefix("model."): source for name, source in model.params.sources.items()})
    mod = model.mod.clone()
    mod["main"] = mod["main"].with_attr("halo.params", list(params.sources))
    return dataclasses.replace(model, mod=mod, params=params)


def fingerprint(path: Path) -> str:
    """As `importers.huggingface`: SHA-256 over config.json and all weight files."""
    from ..huggingface import DirectoryWeights

    return DirectoryWeights(path, ("",), {}).fingerprint()


def _class(transformers: object, config: object, bare: bool) -> type:
    """The class that config.json names; without one that of causal language models for a type that is made for
    them, else the bare model of the type."""
    if bare:
        encodes = getattr(config, "is_encoder_decoder", False)
        return transformers.AutoModelForTextEncoding if encodes else transformers.AutoModel
    for name in (config.architectures or ())[:1]:
        found = getattr(transformers, name, None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
        if not name.endswith("Model"):
            raise UnsupportedModel(
                f"expected a class of transformers {transformers.__version__} among `architectures` of config.json, "
                f"found {name}: name one that it has, or remove the entry for the model without a head"
            )
    kind, auto = config.model_type, transformers.models.auto.modeling_auto
    causal = kind in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return transformers.AutoModelForCausalLM if causal else transformers.AutoModel


class _Outputs(torch.nn.Module):
    """The model without its cache; it takes tensors in the order of `names` and returns its tensors by name.

    `wanted` are those that it returns, all if it is empty.
    """

    def __init__(self, model: torch.nn.Module, names: Sequence[str], wanted: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self._names, self._wanted = tuple(names), tuple(wanted)
        self._options = without_cache(model)

    def forward(self, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = self.model(**dict(zip(self._names, inputs, strict=True)), **self._options, return_dict=True)
        tensors = dict(_tensors(outputs))
        return {name: tensors[name] for name in self._wanted or tensors}


def _tensors(outputs: Mapping[str, object]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors among a model's outputs; those of a tuple are numbered."""
    for name, value in outputs.items():
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, tuple | list):
            yield from ((f"{name}_{i}", part) for i, part in enumerate(value) if isinstance(part, torch.Tensor))


def _named(model: torch.nn.Module, names: Sequence[str], wanted: Sequence[str]) -> torch.nn.Module:
    """`_Outputs` with a signature of its inputs' names: torch.export names inputs as the signature does."""
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *names)]

    def forward(self: _Outputs, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return _Outputs.forward(self, *inputs)

    forward.__signature__ = inspect.Signature(parameters)
    return type("Outputs", (_Outputs,), {"forward": forward})(model, names, wanted).eval()
