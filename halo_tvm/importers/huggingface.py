"""A Hugging Face directory (config.json and safetensors) -> a built-in definition with its real weights.

An architecture without definition is exported from transformers, where that is installed, in a confined process.
The weights stay in their files until the artifact is written: every tensor is a lazy `ParamSource`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..array_files import one_reason
from ..errors import BeyondDefinition, EnvironmentProblem, MissingPackage, UnsupportedModel
from ..imported import ImportedModel
from ..model_names import is_hub_name
from ..models import completed
from ..models.decoder import DecoderConfig
from ..models.decoder.family import CAUSAL
from ._adapter import Adapter, is_adapter
from ._checkpoint import DirectoryWeights
from ._definitions import definition_of, parts_of
from ._json import read_json
from ._language import TOKENIZER, language_of, with_texts_of
from ._sentence import sentence_model, with_embedding
from .packed_linears import method_of
from .tensor_files import weight_files

_HUB_SECONDS = 5.0
_MASK = "attention_mask"
_PICKLED = "pytorch_model*.bin"


def import_directory(
    path: Path, sizes: Mapping[str, tuple[int, ...]] | None = None, part: str = "", *, trust: bool = False
) -> ImportedModel:
    """Read the model in directory `path`; `UnsupportedModel` when neither a definition nor transformers serves it.

    `sizes` of inputs by name decide what an export fixes and a configuration may leave open: height and width.
    `part` names one of the definitions of a model that has several; without it the whole is meant, of one that sees or
    hears the language model inside.
    A definition serves the heads that it has: of a classifier, say, transformers is asked. `trust` goes on where the
    system offers no confinement for that. The directory of a LoRA adapter is its base with the adapter's changes, and
    one of sentence-transformers gives the vector of a text, too.
    """
    sentence = None if part else sentence_model(path)
    if sentence is None:
        return _imported(path, sizes or {}, part, trust)
    encoder = _imported(sentence.encoder, sizes or {}, part, trust, bare=True)
    return replace(with_embedding(encoder, sentence), name=path.resolve().name)


def _imported(
    path: Path, sizes: Mapping[str, tuple[int, ...]], part: str, trust: bool, *, bare: bool = False
) -> ImportedModel:
    """The model in a directory; `bare`: without the head that it may have."""
    adapter = Adapter(path) if is_adapter(path) else None
    base = path if adapter is None else _base_of(adapter)
    config = read_json(base / "config.json", "config.json of a Hugging Face model")
    kind = config.get("model_type")
    definition = definition_of(base, config, part, bare=bare)
    if definition is None and adapter is not None:
        raise UnsupportedModel(
            f"expected a LoRA adapter of a model that a definition serves, found one of model_type {kind!r} in "
            f"{path.name}: merge it into its base with PEFT (merge_and_unload), and give the result"
        )
    if definition is None:
        return _speaking(_exported(path, kind, sizes, trust, bare), path, config)
    family, config = definition.family, definition.config
    try:
        parsed = family.from_huggingface(completed(config))
        beside = family.beside(config) if family.beside else ()
    except BeyondDefinition as reason:
        if adapter is not None or part:
            raise
        return _beside_its_definition(reason, path, config, sizes, trust, bare)
    except (KeyError, TypeError, ValueError, ArithmeticError) as reason:
        raise UnsupportedModel(
            f"expected a complete {kind} config, found {reason!r} while reading {base.name}/config.json: "
            "re-export the model"
        ) from reason
    tied = family.tied if getattr(parsed, "tied", True) else {}
    layout = getattr(getattr(parsed, "names", None), "layout", "nk")
    weights = DirectoryWeights(base, family.prefixes, tied, method_of(config), layout, adapter, definition.places)
    if isinstance(parsed, DecoderConfig) and weights.untied():
        parsed = replace(parsed, tied=False)
    source = {"kind": "huggingface", "name": path.resolve().name, "model_type": kind, "sha256": weights.fingerprint()}
    source |= {"part": part} if part else {}
    source |= {"language_model": config.get("model_type")} if definition.inside else {}
    imported = family.build("-".join(filter(None, (path.resolve().name, part))), parsed, weights, source)
    weights.check(kind, complete=family.complete, beside=beside)
    if imported.entries:
        language, files = language_of(base, config, answers="encode" in imported.entries)
        imported = replace(imported, language=language, files=files)
        if adapter is not None and (path / TOKENIZER).is_file():
            imported = with_texts_of(path, imported)
    parts = {"part": family.part, "other_parts": [p for p in parts_of(kind) if p != family.part]} if family.part else {}
    return replace(imported, report={**imported.report, **parts})


def _base_of(adapter: Adapter) -> Path:
    """The directory of the model that an adapter changes."""
    base = adapter.base
    if Path(base).is_dir():
        return Path(base)
    if is_hub_name(base):
        return _of_hub(base)
    raise UnsupportedModel(
        f"expected the base model of the adapter {adapter.folder.name} at {base[:200]!r}, found no directory there: "
        "correct base_model_name_or_path in adapter_config.json"
    )


def import_hub(name: str, part: str = "", *, trust: bool = False) -> ImportedModel:
    """The model `org/name` of the hub: from its cache, else downloaded; offline it says so at once."""
    return import_directory(_of_hub(name), part=part, trust=trust)


def _of_hub(name: str) -> Path:
    """The directory of a snapshot; `pytorch_model.bin` is fetched where there are no safetensors."""
    try:
        import huggingface_hub as hub
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
    except ImportError as missing:
        raise MissingPackage("huggingface_hub", f"the hub's model {name}", "pip install huggingface_hub") from missing
    wanted = (
        "*.json *.safetensors *chat_template*.jinja additional_chat_templates/*.jinja source.spm tokenizer.model "
        "merges.txt"
    ).split()
    with suppress(LocalEntryNotFoundError):  # not in the cache
        kept = Path(hub.snapshot_download(name, allow_patterns=[*wanted, _PICKLED], local_files_only=True))
        if _is_whole(kept):
            return kept
    transport = HfHubHTTPError.__bases__  # what the HTTP client of this release raises where there is no answer at all
    try:
        # one question, before a download that would try again
        about = hub.HfApi().model_info(name, timeout=_HUB_SECONDS)
        if not any(file.rfilename.endswith(".safetensors") for file in about.siblings or ()):
            wanted.append(_PICKLED)
        return Path(hub.snapshot_download(name, allow_patterns=wanted, etag_timeout=_HUB_SECONDS))
    except (OfflineModeIsEnabled, HfHubHTTPError, LocalEntryNotFoundError, OSError, *transport) as reason:
        raise EnvironmentProblem(
            f"expected to reach the hub for {name}, found {type(reason).__name__} ({one_reason(reason)}): "
            "go online, or give the model's directory"
        ) from reason


def _is_whole(folder: Path) -> bool:
    """Whether a snapshot has a configuration and all of its weights: a cache may hold a tokenizer alone."""
    if is_adapter(folder):
        return any(folder.glob("adapter_model.*"))
    try:
        return (folder / "config.json").is_file() and bool(weight_files(folder))
    except UnsupportedModel:
        return False


def _exported(path: Path, kind: object, sizes: Mapping[str, tuple[int, ...]], trust: bool, bare: bool) -> ImportedModel:
    """The model as transformers builds it, exported by torch."""
    from ._restricted import convert_restricted

    weight_files(path)  # refused before a process is started for them
    blobs = _blobs(path)
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPackage(
            missing[0],
            f"model_type {kind!r}, which has no built-in definition with this head,",
            "pip install torch transformers",
        )
    options = {"sizes": {n: list(shape) for n, shape in sizes.items()}, "bare": bare}
    return convert_restricted("transformers", path, options, trust=trust, reads=blobs)


def _beside_its_definition(
    reason: BeyondDefinition,
    path: Path,
    config: Mapping[str, object],
    sizes: Mapping[str, tuple[int, ...]],
    trust: bool,
    bare: bool,
) -> ImportedModel:
    """A model that its type's definition refuses for `reason`, exported by torch; the refusal where that fails, too."""
    try:
        model = _exported(path, config.get("model_type"), sizes, trust, bare)
    except (UnsupportedModel, MissingPackage):
        raise reason from None
    return replace(_speaking(model, path, config), report={**model.report, "no_definition": str(reason)})


def _speaking(model: ImportedModel, path: Path, config: Mapping[str, object]) -> ImportedModel:
    """A causal language model with its texts: it has no caches, so that it reads the whole text for every token."""
    names = [spec.name for spec in model.inputs]
    causal = str(model.source.get("class")).endswith(CAUSAL) and model.outputs[:1] == ("logits",)
    if not causal or names[:1] != ["input_ids"] or not set(names) <= {"input_ids", _MASK}:
        return model
    language, files = language_of(path, config)
    inputs = tuple(replace(spec, default="ones") if spec.name == _MASK else spec for spec in model.inputs)
    return replace(model, inputs=inputs, language={**language, "recomputes": True}, files=files)


def _blobs(path: Path) -> tuple[Path, ...]:
    """What links in a snapshot of the hub's cache lead to: files in `blobs` beside `snapshots`, and nothing else."""
    store = path.resolve().parents[1] / "blobs"
    found = (file.resolve() for file in path.iterdir() if file.is_symlink())
    return tuple(sorted(file for file in found if file.parent == store and file.is_file()))
