"""Options of `halo-tvm bench`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ..errors import UsageError
from . import _texts
from ._config import Config, option
from ._fields import flag_of


@dataclass(frozen=True)
class BenchConfig(Config):
    """An artifact is timed, interleaved with other engines."""

    artifact: str = option(help="artifact directory", positional=True, metavar="ARTIFACT")
    vs: tuple[str, ...] = option(
        (),
        "engine to compare with, e.g. onnxruntime, openvino-int8, beside -p and -n llama-cpp or onnxruntime-genai, or "
        "another artifact (repeatable)",
        metavar="ENGINE",
    )
    reference: str | None = option(None, "the original model file, for engines that read it", metavar="FILE")
    shape: str | None = option(None, _texts.SIZES, metavar="NAME=SIZE")
    rounds: int = option(20, "interleaved rounds", metavar="N")
    threads: int | None = option(None, _texts.THREADS, metavar="N", env="threads")
    seed: int = option(0, "seed of the inputs")
    n_prompt: tuple[str, ...] = option(
        (), "time a language model reading so many tokens at once (pp; repeatable)", short="p", metavar="N"
    )
    n_gen: tuple[str, ...] = option((), "and saying so many, one by one (tg; repeatable)", short="n", metavar="N")
    n_depth: tuple[str, ...] = option(
        (), "behind so many tokens in its caches (default: 0; repeatable)", short="d", metavar="N"
    )
    n_threads: tuple[str, ...] = option(
        (), "on so many threads (default: --threads; repeatable)", short="t", metavar="N"
    )
    repetitions: int = option(5, "runs of each of these tests", short="r", metavar="N")
    cache: str | None = option(
        None, "keep the files that engines read, and their errors, in DIR for the next time", metavar="DIR"
    )
    json: str | None = option(None, _texts.JSON, metavar="FILE")
    markdown: str | None = option(None, _texts.MARKDOWN, metavar="FILE")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rounds", "repetitions"):
            count = getattr(self, name)
            if count < 1:
                raise UsageError(f"{name} must be at least 1, but are {count}: give a positive number")
        fields = {field.name: field for field in dataclasses.fields(self)}
        for name, least in (("n_prompt", 1), ("n_gen", 1), ("n_depth", 0), ("n_threads", 1)):
            for text in getattr(self, name):
                if not text.isdecimal() or int(text) < least:
                    raise UsageError(
                        f"{flag_of(fields[name])} must be a number from {least} on, but is {text!r}: correct it"
                    )
        if self.speaks and self.shape:
            raise UsageError(
                "expected -p and -n without --shape, found both: they say how many tokens; leave one kind out"
            )
        if (self.n_depth or self.n_threads) and not self.speaks:
            raise UsageError("expected -p or -n beside -d and -t, found neither: say how many tokens to read or to say")

    @property
    def speaks(self) -> bool:
        """Whether tokens of a language model are timed."""
        return bool(self.n_prompt or self.n_gen)
