"""Options of `halo-tvm run`."""

from __future__ import annotations

from dataclasses import dataclass

from . import _texts
from ._config import Config, option


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
    audio: str | None = option(None, "a model that hears writes down this WAV file", metavar="FILE")
    language: str | None = option(None, "of the audio (default: the likeliest), or of a translation", metavar="NAME")
    translate: bool = option(False, "write the audio down in English")
    max_new_tokens: int | None = option(None, "longest answer in tokens (default: to the end of the context)")
    context: int | None = option(None, "tokens that the caches have room for (default: 4096, or all of the model's)")
    temperature: float | None = option(None, "draw tokens at this temperature (default: the likeliest)")
    top_k: int | None = option(None, "draw among so many likeliest tokens")
    top_p: float | None = option(None, "draw among the likeliest tokens that have this probability together")
    min_p: float | None = option(None, "draw among tokens with this share of the likeliest one's probability")
    repetition_penalty: float | None = option(None, "make tokens less likely that have been there")
    stop: tuple[str, ...] = option((), "end an answer in front of this text (repeatable)", metavar="TEXT", split=False)
    system: str | None = option(None, "instructions in front of an interactive conversation", metavar="TEXT")
    template: tuple[str, ...] = option(
        (), "what the chat template reads, e.g. enable_thinking=false (repeatable)", metavar="NAME=VALUE", split=False
    )
    threads: int | None = option(None, _texts.THREADS, metavar="N", env="threads")
