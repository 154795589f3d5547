"""Reading the config.json of a language model: what families share, under the words that files use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from ...errors import BeyondDefinition, UnsupportedModel
from .._definition import checked_size
from .config import Layer, Rope
from .rope import rope_of

_HEAD_DIM = 1 << 12
_KERNEL = 64
_STRETCHED = 1 << 21  # positions: tables are made of them
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}


class Reader:
    """One config.json; a missing or misshapen value is a KeyError, TypeError or ValueError for the importer."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self.config = config
        self.kind = str(config.get("model_type"))

    def whole(self, *names: str, default: int | None = None) -> int:
        """The integer under the first of `names` that is there."""
        value = self.get(*names, default=default)
        if value is None:
            raise KeyError(names[0])
        return int(value)  # type: ignore[call-overload]

    def number(self, *names: str, default: float | None = None) -> float:
        value = self.get(*names, default=default)
        if value is None:
            raise KeyError(names[0])
        return float(value)  # type: ignore[arg-type]

    def optional(self, name: str, default: float | None = None) -> float | None:
        """A number, or None where the config has none or null."""
        value = self.config.get(name, default)
        return None if value is None else float(value)  # type: ignore[arg-type]

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.config.get(name)
        return default if value is None else bool(value)

    def get(self, *names: str, default: object = None) -> object:
        return next((self.config[n] for n in names if self.config.get(n) is not None), default)

    def activation(self, *names: str, default: str) -> str:
        word = str(self.get(*names, default=default))
        if word not in _ACTIVATIONS:
            self.refuse(f"an activation among {', '.join(_ACTIVATIONS)}", repr(word), BeyondDefinition)
        return _ACTIVATIONS[word]

    def refuse_unless(self, **values: object) -> None:
        """`BeyondDefinition` for the first entry of the config that is there with another value than given."""
        for name, wanted in values.items():
            found = self.config.get(name)
            if found is not None and found != wanted:
                self.refuse(f"{name} {wanted!r}", repr(found), BeyondDefinition)

    def refuse(self, expected: str, found: str, kind: type[UnsupportedModel] = UnsupportedModel) -> NoReturn:
        raise kind(f"expected a {self.kind} config with {expected}, found {found}: export the model to ONNX instead")

    @property
    def layers(self) -> int:
        return checked_size("layers", self.whole("num_hidden_layers", "n_layer", "num_layers"))

    @property
    def heads(self) -> int:
        return checked_size("heads", self.whole("num_attention_heads", "n_head"))

    @property
    def hidden(self) -> int:
        return checked_size("hidden", self.whole("hidden_size", "n_embd"))

    @property
    def head_dim(self) -> int:
        return self.head_size("head_dim", self.hidden // self.heads)

    def head_size(self, name: str, default: int) -> int:
        """The channels of a head, under `name`."""
        size = self.whole(name, default=default)
        if not 1 <= size <= _HEAD_DIM:  # before tables of its length are made
            self.refuse(f"{name} from 1 to {_HEAD_DIM}", str(size))
        return size

    @property
    def context(self) -> int:
        """The longest context: with longrope its original length, whose factors are those of short contexts.

        So it is where scores have a temperature that grows beyond that length (`llama_4_scaling_beta`). With yarn it
        is the stretched length, also where only the original one is said, as cards of Qwen tell one to write it.
        """
        longest = self.whole("max_position_embeddings", "n_positions")
        scaling = self.scaling(None)
        kind, original = scaling.get("rope_type", scaling.get("type")), scaling.get("original_max_position_embeddings")
        if kind in ("longrope", "su") or scaling.get("llama_4_scaling_beta"):
            return min(longest, int(scaling["original_max_position_embeddings"]))  # type: ignore[call-overload]
        if kind == "yarn" and original == longest:
            stretched = int(longest * float(scaling["factor"]))  # type: ignore[arg-type]
            return max(longest, min(stretched, _STRETCHED))
        return longest

    def rope(
        self, kind: str | None = None, *, interleaved: bool = False, share: float = 1.0, theta: float = 10000.0
    ) -> Rope:
        """The rotation of layers of a `kind` of attention, None of all; `share` of a head turns unless it is said."""
        scaling = self.scaling(kind)
        part = self.get("partial_rotary_factor", "rotary_pct", default=share)
        part = float(scaling.get("partial_rotary_factor") or part)  # type: ignore[arg-type]
        base = float(scaling.get("rope_theta") or self.get("rope_theta", "rotary_emb_base", default=theta))
        longest = self.whole("max_position_embeddings", "n_positions")
        return rope_of(int(self.head_dim * part), base, scaling, longest, interleaved=interleaved)

    def local_rope(self, name: str, *, theta: float) -> Rope:
        """The rotation of sliding layers, whose base is `name` in older configs."""
        scaling = self.scaling("sliding_attention")
        if "rope_theta" not in scaling or "full_attention" not in dict(self.get("rope_parameters", default={})):  # type: ignore[call-overload]
            scaling = {}
        base = float(scaling.get("rope_theta") or self.number(name, default=theta))  # type: ignore[arg-type]
        return rope_of(self.head_dim, base, scaling, self.whole("max_position_embeddings"))

    def scaling(self, kind: str | None = None) -> Mapping[str, object]:
        """What the config says of rotations, of layers of a `kind` of attention where they differ."""
        found = self.get("rope_parameters", "rope_scaling", default={})
        if isinstance(found, Mapping) and kind is not None and isinstance(found.get(kind), Mapping):
            found = found[kind]
        if not isinstance(found, Mapping):
            raise TypeError(f"rope scaling {found!r} is no object")
        original = self.get("original_max_position_embeddings")
        return {**({"original_max_position_embeddings": original} if original is not None else {}), **found}

    def pattern(self, usual: Sequence[bool], window: int | None, make: Mapping[bool, Rope | None]) -> tuple[Layer, ...]:
        """One `Layer` per layer. `usual` says, repeated, which slide where no `layer_types` do; `make` has the
        rotation of those that slide (True) and of the others."""
        types = self.layer_types(("sliding_attention", "full_attention"))
        if types is None:
            slides = [usual[i % len(usual)] for i in range(self.layers)]
        else:
            slides = [kind == "sliding_attention" for kind in types]
        found = tuple(Layer(make[s], window if s else None) for s in slides)
        return found[:1] if len(set(found)) == 1 else found

    def layer_types(self, known: Sequence[str], *names: str) -> list[str] | None:
        """What each layer is, a word of `known`, under the first of `names` (`layer_types`); None: nothing says it."""
        names = names or ("layer_types",)
        types = self.get(*names)
        if types is None:
            return None
        if not isinstance(types, list) or len(types) < self.layers or any(kind not in known for kind in types):
            words = (" or " if len(known) == 2 else ", ").join(known)
            self.refuse(f"{names[0]} of {words} for every layer", repr(types)[:80])
        return types[: self.layers]

    def named_layers(self, name: str, default: Sequence[int]) -> list[bool]:
        """Which layers the list under `name` has the numbers of."""
        named = self.get(name, default=list(default))
        if not isinstance(named, list):
            raise TypeError(f"{name} {named!r} is no list of layers")
        return [i in named for i in range(self.layers)]

    def kernel(self, name: str, default: int = 4) -> int:
        """The width of a short convolution."""
        kernel = self.whole(name, default=default)
        if not 2 <= kernel <= _KERNEL:
            self.refuse(f"{name} from 2 to {_KERNEL}", str(kernel))
        return kernel
