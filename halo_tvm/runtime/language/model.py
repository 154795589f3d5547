"""A language model that is loaded once and speaks: text or token ids in, text or logits out.

model = LanguageModel.load("m.halo", context=4096)
for piece in model.stream("The capital of France is", max_new_tokens=64):
    print(piece, end="")
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from ...artifact import Manifest, verify_artifact
from ...errors import InputError, UsageError
from ...targets import usable_cpus
from ..gpu import device_of
from ..host import choose_variant, load_tvm_runtime, resolve_threads
from ..session import Session
from ..weights import load_weights
from .chat import Message
from .sampling import Sampler, Sampling, log_probabilities
from .spec import NEEDED, WHOLE, LanguageSpec, spec_of
from .steps import Steps
from .text import Pieces, Text

USUAL_CONTEXT = 4096
Prompt = str | Sequence[int]
LogProbabilities = tuple[float, list[tuple[int, float]]]  # of the token chosen, and of the likeliest


@dataclass(frozen=True)
class Generation:
    """An answer, why it ended and how long it took."""

    text: str
    tokens: tuple[int, ...]
    ended: str  # "end" (the model's own token), "stop" (a stop string), "length" (max_new_tokens or a full context)
    prompt_tokens: int
    kept_tokens: int  # of the prompt, those that were in the caches from before
    prompt_seconds: float
    answer_seconds: float  # behind the first token, which the prompt gives
    logprobs: tuple[LogProbabilities, ...] = ()

    @property
    def prompt_rate(self) -> float:
        """Tokens of the prompt per second, without those that were kept."""
        return (self.prompt_tokens - self.kept_tokens) / self.prompt_seconds

    @property
    def answer_rate(self) -> float:
        """Tokens of the answer per second."""
        return max(0, len(self.tokens) - 1) / self.answer_seconds if self.answer_seconds else 0.0


class LanguageModel:
    """A loaded artifact with `prefill` and `decode`, and one sequence of tokens in its caches.

    Any thread may call it: `generate` waits for its turn. A new prompt keeps what it has in common with the tokens in
    the caches, so the second turn of a conversation reads only what is new.
    """

    def __init__(self, manifest: Manifest, spec: LanguageSpec, text: Text, session: Session, steps: Steps) -> None:
        self.manifest = manifest
        self._spec = spec
        self._text = text
        self._session = session
        self._steps = steps
        self._tokens: list[int] = []  # what the caches hold
        self._turn = threading.Lock()
        self._speaker: int | None = None  # the thread whose answer goes on

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        context: int | None = None,
        threads: int | None = None,
        weights: str = "map",
        verify: bool = True,
    ) -> LanguageModel:
        """Open the artifact at `path` with caches for `context` positions (4096, or as many as the model has).

        `threads`, `weights` and `verify` are those of `halo_tvm.load`. Raises as it does; `UsageError` for an artifact
        without a language model and a context that it has not, `EnvironmentProblem` for caches beyond the memory.
        """
        path = Path(path).absolute()
        count = resolve_threads(threads, usable_cpus())
        manifest = verify_artifact(path, hashes=verify)
        spec = spec_of(path, manifest)
        context = min(USUAL_CONTEXT, spec.context) if context is None else context
        if not 1 <= context <= spec.context:
            raise UsageError(
                f"expected a context from 1 to {spec.context}, which the model's positions allow, found {context}: "
                "choose one of these"
            )
        text = Text(path, spec)
        variant = choose_variant(manifest.variants)
        load_tvm_runtime()
        functions = {name: manifest.functions[name] for name in (*NEEDED, WHOLE) if name in manifest.functions}
        names = list(dict.fromkeys(p for f in functions.values() for p in f.params))
        loaded = load_weights(path / variant.params if variant.params else None, names, weights)
        session = Session(path / variant.library, "decode", (), count, device_of(variant))
        try:
            kept = dict(zip(names, session.keep(loaded.tensors), strict=True))
            steps = Steps(session, functions, {n: [kept[p] for p in f.params] for n, f in functions.items()}, context)
        except BaseException:
            session.close()
            raise
        return cls(manifest, spec, text, session, steps)

    @property
    def context(self) -> int:
        """Positions that the caches have room for."""
        return self._steps.context

    @property
    def vocabulary(self) -> int:
        """Tokens that the model has, from 0 on."""
        return self._spec.vocabulary

    @property
    def length(self) -> int:
        """Positions that are filled."""
        return self._steps.filled

    @property
    def cache_bytes(self) -> int:
        return self._steps.cache_bytes

    # ---------------------------------------------------------------- tokens and logits

    def tokens(self, prompt: Prompt | None = None, messages: Sequence[Message] | None = None) -> list[int]:
        """The token ids of a prompt, or of a conversation by the model's chat template."""
        if (prompt is None) == (messages is None):
            raise UsageError("expected a prompt or messages, found both or neither: pass one of them")
        if messages is not None:
            return self._text.conversation(messages)
        return self._text.tokens(prompt) if isinstance(prompt, str) else list(prompt or ())

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        """Start again with `tokens`; the logits [vocabulary] behind them."""
        with self._my_turn():
            self._forget(0)
            return self._fed(tokens)

    def decode(self, token: int) -> np.ndarray:
        """The logits [vocabulary] behind one more token."""
        with self._my_turn():
            return self._fed([token])

    def extend(self, tokens: Sequence[int]) -> np.ndarray:
        """The logits [vocabulary] behind `tokens`, which follow those in the caches."""
        with self._my_turn():
            return self._fed(tokens)

    def score(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits [tokens, vocabulary]: row i is what the model says behind the first i + 1 tokens. The caches stay."""
        with self._my_turn():
            return self._steps.score(tokens)

    def truncate(self, count: int) -> None:
        """Forget all but the first `count` tokens."""
        with self._my_turn():
            self._forget(count)

    # ---------------------------------------------------------------- answers

    def generate(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Sequence[Message] | None = None,
        max_new_tokens: int | None = None,
        stop: Sequence[str] = (),
        logprobs: int = 0,
        **sampling: float | None,
    ) -> Generation:
        """The answer to a prompt (text or token ids) or to a conversation.

        The most likely tokens, unless `sampling` (the fields of `Sampling`: temperature, top_k, top_p, min_p,
        repetition_penalty, seed) says otherwise; up to `max_new_tokens`, else to the end of the context. `logprobs` is
        how many of the likeliest tokens are reported at each place.
        """
        with self._my_turn():
            answer = self._answer(prompt, messages, max_new_tokens, stop, logprobs, Sampling(**sampling))  # type: ignore[arg-type]
            while True:
                try:
                    next(answer)
                except StopIteration as end:
                    found: Generation = end.value
                    return found

    def stream(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Sequence[Message] | None = None,
        max_new_tokens: int | None = None,
        stop: Sequence[str] = (),
        logprobs: int = 0,
        **sampling: float | None,
    ) -> Generator[str, None, Generation]:
        """As `generate`, a piece of text at a time; the generator returns the `Generation`.

        One stream at a time: `UsageError` for a second one. What a dropped stream said stays in the caches.
        """
        how = Sampling(**sampling)  # type: ignore[arg-type]
        if not self._turn.acquire(blocking=False):
            raise UsageError(
                "expected one answer at a time, found another that goes on: read it to its end, close it, or load the "
                "model twice"
            )
        self._speaker = threading.get_ident()
        try:
            return (yield from self._answer(prompt, messages, max_new_tokens, stop, logprobs, how))
        finally:
            self._speaker = None
            self._turn.release()

    def _answer(
        self,
        prompt: Prompt | None,
        messages: Sequence[Message] | None,
        most: int | None,
        stop: Sequence[str],
        logprobs: int,
        how: Sampling,
    ) -> Generator[str, None, Generation]:
        if most is not None and most < 1:
            raise UsageError(f"expected max_new_tokens of at least 1, found {most}: leave it out to fill the context")
        vocabulary = self._spec.vocabulary
        if not 0 <= logprobs <= vocabulary:
            raise UsageError(f"expected logprobs from 0 to {vocabulary}, found {logprobs}: correct it")
        pieces = Pieces(self._text, (stop,) if isinstance(stop, str) else stop)
        asked = self.tokens(prompt, messages)
        began = time.perf_counter()
        kept = self._keep_common(asked)
        logits = self._fed(asked[kept:])
        sampler = Sampler(how, asked)
        said: list[int] = []
        written: list[str] = []
        reported: list[LogProbabilities] = []
        first = time.perf_counter()
        while True:
            token = sampler.choose(logits)
            said.append(token)
            if logprobs:
                reported.append(log_probabilities(logits, token, logprobs))
            if token in self._spec.end:
                ended = "end"
                break
            if piece := pieces.add(token):
                written.append(piece)
                yield piece
            if pieces.stopped:
                ended = "stop"
                break
            if len(said) == most or self._steps.filled == self._steps.context:
                ended = "length"
                break
            logits = self._fed([token])
        last = time.perf_counter()
        if rest := pieces.rest():
            written.append(rest)
            yield rest
        return Generation(
            text="".join(written),
            tokens=tuple(said),
            ended=ended,
            prompt_tokens=len(asked),
            kept_tokens=kept,
            prompt_seconds=first - began,
            answer_seconds=last - first,
            logprobs=tuple(reported),
        )

    def _keep_common(self, asked: Sequence[int]) -> int:
        """Truncate to the beginning that `asked` shares with the caches; at least its last token is to be read."""
        if not asked:
            raise InputError("expected at least one token, found an empty prompt: pass some text")
        if len(asked) > self.context:
            raise InputError(
                f"expected a prompt of at most {self.context} tokens, which the context holds, found {len(asked)}: "
                "shorten it, or load the model with a larger context"
            )
        pairs = zip(asked[:-1], self._tokens)
        common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(asked) - 1, len(self._tokens)))
        self._forget(common)
        return common

    def _fed(self, tokens: Sequence[int]) -> np.ndarray:
        logits = self._steps.feed(tokens)
        self._tokens += map(int, tokens)
        return logits

    def _forget(self, count: int) -> None:
        self._steps.truncate(count)
        del self._tokens[count:]

    def _my_turn(self) -> _Turn:
        if self._speaker == threading.get_ident():
            raise UsageError(
                "expected one answer at a time, found a stream of this thread that goes on: read it to its end, close "
                "it, or load the model twice"
            )
        return _Turn(self)

    # ---------------------------------------------------------------- the end

    def close(self) -> None:
        """End the session's threads; a later call is an error."""
        self._session.close()

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Turn:
    """The right to change the caches."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model

    def __enter__(self) -> None:
        self._model._turn.acquire()
        self._model._speaker = threading.get_ident()

    def __exit__(self, *_error: object) -> None:
        self._model._speaker = None
        self._model._turn.release()
