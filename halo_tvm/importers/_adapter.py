"""A LoRA adapter, as PEFT saves it, merged into the weights of its base model while they are read.

    w' = w + s * B @ A,   A [r, k], B [n, r], s = alpha / r, or alpha / sqrt(r) with `use_rslora`
    with `use_dora`: w'' = w' * magnitude / (norm of w' along k), magnitude [n]
    embeddings [vocabulary, d]: A [r, vocabulary], B [d, r], w' = w + s * (B @ A)^T
What `modules_to_save` names lies in the adapter whole.
References
    arXiv:2106.09685 (LoRA), arXiv:2312.03732 (rank-stabilised), arXiv:2402.09353 (DoRA)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..errors import UnsupportedModel
from ..params import ParamSource
from ._json import read_json
from .tensor_files import opened

CONFIG = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_FRONT = "base_model.model."
_SHOWN = 6
# What changes the base, or computes something else than is said above; by what a config may say all the same.
_PLAIN: Mapping[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "lora_bias": (False, None),
    "layer_replication": (None, []),
    "target_parameters": (None, []),
    "trainable_token_indices": (None,),
    "use_qalora": (False, None),
    "alora_invocation_tokens": (None,),
    "use_bdlora": (False, None),
}
_CHANGED_BASES = ("pissa", "olora", "corda")  # ways to begin that take a part out of the base's weights
_PATTERN = set("*+?()[]{}|\\$^")


def is_adapter(folder: Path) -> bool:
    """Whether a directory holds an adapter and no weights of a model, whose config.json may lie there all the same."""
    whole = (file for pattern in ("model*.safetensors", "pytorch_model*.bin") for file in folder.glob(pattern))
    return (folder / CONFIG).is_file() and next(whole, None) is None


class Adapter:
    """Raises `UnsupportedModel` for adapters of another kind than LoRA and DoRA."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._about = read_json(folder / CONFIG, f"{CONFIG} of PEFT")
        for name, plain in _PLAIN.items():
            if (found := self._about.get(name)) not in plain:
                raise self._refused(f"{name} {plain[0]!r}", f"{found!r:.60}")
        begun = str(self._about.get("init_lora_weights")).lower()
        if begun.startswith(_CHANGED_BASES):
            raise self._refused("init_lora_weights that leave the base as it is", repr(begun[:60]))
        file = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
        if file is None:
            raise self._refused(" or ".join(_WEIGHTS), "none")
        self._file = opened(file)
        self._path = file
        self._used: set[str] = set()

    @property
    def base(self) -> str:
        """The directory or the name on the hub of the model that is changed."""
        found = self._about.get("base_model_name_or_path")
        if not isinstance(found, str) or not found:
            raise self._refused("base_model_name_or_path", f"{found!r:.60}")
        return found

    def applied(self, names: Sequence[str], base: ParamSource, *, turned: bool, tied: bool) -> ParamSource:
        """The weight `base` as the adapter changes it under one of `names`; `turned`: it is stored as [k, n].

        Changes of an embedding that is the head's weight as well (`tied`) are refused: PEFT leaves the head alone.
        """
        for name in names:
            stem = _FRONT + name.removesuffix("weight")
            whole = next((n for n in (_FRONT + name, f"{stem}base_layer.weight") if n in self._file.shapes), None)
            if whole is not None:
                if self._file.shapes[whole] != base.shape:
                    raise self._unfit(whole, base.shape)
                base = ParamSource(base.shape, "float32", self._reader(whole))
            if f"{stem}lora_A.weight" in self._file.shapes:
                parts = [f"{stem}lora_{part}.weight" for part in "AB"]
                return self._merged(name, parts, base, turned=turned)
            if f"{stem}lora_embedding_A" in self._file.shapes:
                if tied:
                    raise self._refused("a head of its own beside a changed embedding", "one that shares its weight")
                return self._merged(name, [f"{stem}lora_embedding_{part}" for part in "AB"], base, turned=True)
            if whole is not None:
                return base
        return base

    def check(self) -> None:
        """`UnsupportedModel` with all tensors that changed nothing."""
        unused = sorted(self._file.shapes.keys() - self._used)
        if unused:
            shown = ", ".join(unused[:_SHOWN]) + (", ..." if len(unused) > _SHOWN else "")
            raise self._refused("changes of weights that the definition reads", f"{len(unused)} others ({shown})")

    def digest(self) -> str:
        """SHA-256 over both files."""
        found = hashlib.sha256((self.folder / CONFIG).read_bytes())
        with self._path.open("rb") as stream:
            found.update(hashlib.file_digest(stream, "sha256").digest())
        return found.hexdigest()

    def _merged(self, name: str, parts: Sequence[str], base: ParamSource, *, turned: bool) -> ParamSource:
        shapes = [self._file.shapes.get(part, ()) for part in parts]
        if [len(shape) for shape in shapes] != [2, 2] or shapes[0][0] != shapes[1][1]:
            raise self._unfit(parts[1], base.shape)
        rank, (n, k) = shapes[0][0], (shapes[1][0], shapes[0][1])
        if base.shape != ((k, n) if turned else (n, k)):
            raise self._unfit(parts[0], base.shape)
        load_a, load_b = map(self._reader, parts)
        scale = self._alpha(name) / (math.sqrt(rank) if self._about.get("use_rslora") else max(rank, 1))
        magnitude = f"{_FRONT}{name.removesuffix('weight')}lora_magnitude_vector"
        grown = self._reader(magnitude) if magnitude in self._file.shapes else None
        if grown is not None and self._file.shapes[magnitude] != (n,):
            raise self._unfit(magnitude, (n,))

        def load() -> np.ndarray:
            weight = base.load()
            kn = weight.T if not turned else weight  # [k, n]
            made = kn + scale * (load_b() @ load_a()).T
            if grown is not None:
                made *= grown() / np.linalg.norm(made, axis=0)
            return np.ascontiguousarray(made if turned else made.T, dtype=np.float32)

        return ParamSource(base.shape, "float32", load)

    def _reader(self, name: str) -> Callable[[], np.ndarray]:
        self._used.add(name)
        return lambda: np.ascontiguousarray(self._file.read(name), dtype=np.float32)

    def _alpha(self, name: str) -> float:
        """`lora_alpha`, unless `alpha_pattern` has another for a module whose name ends so."""
        module = name.removesuffix(".weight")
        patterns = self._about.get("alpha_pattern") or {}
        for key, alpha in patterns.items() if isinstance(patterns, Mapping) else ():
            if set(key.removeprefix("^")) & _PATTERN:
                raise self._refused("names of modules as alpha_pattern", repr(key[:60]))
            plain = key.removeprefix("^")
            if module == plain or (plain == key and module.endswith(f".{plain}")):
                return self._number("alpha_pattern", alpha)
        return self._number("lora_alpha", self._about.get("lora_alpha"))

    def _number(self, name: str, value: object) -> float:
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise self._refused(f"{name} as a number", f"{value!r:.60}")
        return float(value)

    def _unfit(self, name: str, shape: Sequence[int]) -> UnsupportedModel:
        found = self._file.shapes.get(name)
        return self._refused(f"{name} to fit a weight {list(shape)} of the base", f"{found and list(found)}")

    def _refused(self, expected: str, found: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"expected a LoRA adapter with {expected}, found {found} in {self.folder.name}: merge it into its base "
            "with PEFT (merge_and_unload), and give the result"
        )
