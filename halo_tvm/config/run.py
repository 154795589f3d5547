"""Options of `halo-tvm run`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ..errors import UsageError
from . import _texts
from ._config import Config, option
from ._fields import flag_of

# What asks a language model; and which options a run reads only with one of these, or only without.
_ASKS = ("prompt", "interactive", "audio")
_ANSWERS = (
    *("max_new_tokens", "min_new_tokens", "context", "temperature", "top_k", "top_p", "min_p", "typical_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "no_repeat_ngram_size", "bad_words"),
    *("stop", "special", "ignore_eos"),
)
_ONE_RUN = ("input", "output", "shape")
_READ_BY = {
    **dict.fromkeys(_ONE_RUN, ()),
    **dict.fromkeys((*_ANSWERS, "language"), _ASKS),
    "translate": ("audio",),
    "chat": ("prompt",),
    **dict.fromkeys(("system", "template"), ("interactive", "chat")),
}


@dataclass(frozen=True)
class RunConfig(Config):
    """An artifact is run once, or a language model answers."""

    artifact: str = option(help="artifact directory", positional=True, metavar="ARTIFACT")
    input: tuple[str, ...] = option(
        (),
        "an input's values: NAME=FILE.npy, or FILE.npz with several (repeatable); others are seeded random",
        metavar="NAME=FILE",
    )
    output: str | None = option(None, "write the outputs to FILE.npz", short="o", metavar="FILE")
    shape: str | None = option(None, _texts.SIZES, metavar="NAME=SIZE")
    seed: int = option(0, "seed of inputs that are not given, and of random numbers")
    function: str = option("main", _texts.FUNCTION, metavar="NAME")
    prompt: str | None = option(None, "a language model goes on from this text; - reads it from stdin", metavar="TEXT")
    interactive: bool = option(False, "a conversation with a language model; Ctrl-C ends an answer, Ctrl-D the whole")
    chat: bool = option(False, "the prompt is a message, put to the model by its chat template")
    audio: str | None = option(None, "a model that hears writes down this WAV file", metavar="FILE")
    language: str | None = option(None, "of the audio (default: the likeliest), or of a translation", metavar="NAME")
    translate: bool = option(False, "write the audio down in English")
    max_new_tokens: int | None = option(None, "longest answer in tokens (default: to the end of the context)")
    min_new_tokens: int = option(0, "choose no token that ends an answer among so many first ones")
    context: int | None = option(None, "tokens that the caches have room for (default: 4096, or all of the model's)")
    temperature: float | None = option(None, "draw tokens at this temperature (default: the likeliest)")
    top_k: int | None = option(None, "draw among so many likeliest tokens (0: all)")
    top_p: float | None = option(None, "draw among the likeliest tokens that have this probability together")
    min_p: float | None = option(None, "draw among tokens with this share of the likeliest one's probability")
    typical_p: float | None = option(None, "draw among the most typical tokens that have this probability together")
    repetition_penalty: float | None = option(None, "make tokens less likely that have been there")
    presence_penalty: float | None = option(None, "take this from the logits of tokens that the answer has")
    frequency_penalty: float | None = option(None, "take this from them for every time that the answer has the token")
    logit_bias: tuple[str, ...] = option(
        (), "add to the logit of a token id; -inf: never choose it (repeatable)", metavar="ID=NUMBER"
    )
    no_repeat_ngram_size: int | None = option(None, "say no run of so many tokens twice")
    bad_words: tuple[str, ...] = option((), "never say this text (repeatable)", metavar="TEXT", split=False)
    stop: tuple[str, ...] = option((), "end an answer in front of this text (repeatable)", metavar="TEXT", split=False)
    special: bool = option(False, "show special tokens, as <tool_call>, in the answer")
    ignore_eos: bool = option(False, "never choose a token that ends an answer")
    system: str | None = option(None, "instructions in front of a conversation", metavar="TEXT")
    template: tuple[str, ...] = option(
        (), "what the chat template reads, e.g. enable_thinking=false (repeatable)", metavar="NAME=VALUE", split=False
    )
    threads: int | None = option(None, _texts.THREADS, metavar="N", env="threads")

    def __post_init__(self) -> None:
        super().__post_init__()
        asks = [name for name in _ASKS if getattr(self, name) not in (None, False)]
        if len(asks) > 1:
            raise UsageError("expected --prompt, --interactive or --audio, found more than one: leave the others out")
        if asks and self.function != "main":
            raise UsageError(
                f"expected --function {self.function} without --prompt, --interactive and --audio, which call what a "
                "language model needs: leave one out"
            )
        fields = {field.name: field for field in dataclasses.fields(self)}
        for name, readers in _READ_BY.items():
            given = getattr(self, name) != fields[name].default
            if given and not {*asks, *(["chat"] if self.chat else [])} & {*readers} and (asks or readers):
                flag, read, asked = ([flag_of(fields[n]) for n in names] for names in ([name], readers, asks))
                _refuse(flag[0], read, asked)


def _refuse(flag: str, readers: list[str], asks: list[str]) -> None:
    """`UsageError` for an option that this run would not read; all are flags."""
    either = " or ".join(filter(None, (", ".join(readers[:-1]), *readers[-1:])))
    wanted = f"beside {either}" if readers else f"without {asks[0]}"
    found = f"it beside {asks[0]}" if asks else "it alone"
    raise UsageError(f"expected {flag} {wanted}, found {found}: nothing would read it, leave it out")
