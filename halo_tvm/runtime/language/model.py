"""A language model that is loaded once and speaks: text or token ids in, text or logits out.

model = LanguageModel.load("m.halo", context=4096)
for piece in model.stream("The capital of France is", max_new_tokens=64):
    print(piece, end="")
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import cast

import numpy as np

from ...artifact import Manifest, OpenArtifact, opened
from ...errors import InputError, UsageError
from ...targets import usable_cpus
from ..gpu import device_of
from ..host import choose_variant, load_tvm_runtime, resolve_threads
from ..session import Session
from ..weights import load_weights
from .answer import Generation, Wanted, joined
from .chat import NO_OPTIONS, Tool
from .contents import Message
from .held import Held
from .ids import is_whole, whole_ids
from .recomputed import Recomputed
from .sampling import Option
from .sound import samples_of, spectra
from .spec import TOGETHER, WHOLE, LanguageSpec, needed, recomputes, spec_of
from .steps import Steps
from .text import Text
from .together import Together
from .turn import Turn, to_its_end

USUAL_CONTEXT = 4096
Prompt = str | Sequence[int]
Sound = Path | str | np.ndarray  # a WAV file, or samples at 16 kHz


class LanguageModel:
    """A loaded artifact with `prefill` and `decode`, and a sequence of tokens in each slot of its caches.

    There is one slot, unless `load` makes more; what names none means the first. Any thread may call it: `generate`
    waits for its turn, or, where there are slots, takes one and is decoded together with the others. A new prompt keeps
    what it has in common with the tokens in its slot, so the second turn of a conversation reads only what is new.

    An encoder-decoder (T5, BART) reads the whole prompt with its encoder; what is in the caches is its answer. The same
    text again is not read again. One that hears (Whisper) reads a sound instead, half a minute after the other.
    """

    def __init__(
        self, manifest: Manifest, spec: LanguageSpec, text: Text, session: Session, steps: Steps | Recomputed
    ) -> None:
        self.manifest = manifest
        self._spec = spec
        self._text = text
        self._session = session
        self._steps = steps
        self._held = Held(spec, text, steps)
        self._together = Together(self._held, self.slots) if self.slots > 1 and not self.encodes else None
        self._turn = Turn()

    @classmethod
    def load(
        cls,
        path: Path | str | OpenArtifact,
        *,
        context: int | None = None,
        slots: int = 1,
        threads: int | None = None,
        weights: str = "map",
        verify: bool = True,
    ) -> LanguageModel:
        """Open the artifact at `path` with caches for `context` positions (4096, or as many as the model has).

        A model without caches by position has the same state at every length, and usually its whole context.

        `slots` sequences have caches of their own and are decoded together: up to as many as it was compiled for.

        `threads`, `weights` and `verify` are those of `halo_tvm.load`. Raises as it does; `UsageError` for an artifact
        without a language model and a context that it has not, `EnvironmentProblem` for caches beyond the memory.
        """
        count = resolve_threads(threads, usable_cpus())
        with opened(path, hashes=verify) as artifact:
            manifest = artifact.manifest
            spec = spec_of(artifact.path, manifest)
            # Without caches by position a longer context takes no more memory.
            usual = USUAL_CONTEXT if "capacity" in manifest.functions[needed(manifest)[-1]].ranges else spec.context
            context = min(usual, spec.context) if context is None else context
            if not is_whole(context) or not 1 <= context <= spec.context:
                raise UsageError(
                    f"expected a context from 1 to {spec.context}, which the model's positions allow, found "
                    f"{context!r}: choose one of these"
                )
            if not is_whole(slots):
                raise UsageError(f"expected a whole number of slots, found {slots!r}: correct it")
            text = Text(spec, artifact.file(spec.tokenizer) if spec.tokenizer else None)
            variant = choose_variant(manifest.variants)
            load_tvm_runtime()
            known = (name for name in (*needed(manifest), WHOLE, TOGETHER) if name in manifest.functions)
            functions = {name: manifest.functions[name] for name in known}
            names = list(dict.fromkeys(p for f in functions.values() for p in f.params))
            loaded = load_weights(artifact, variant.params, names, weights)
            first = needed(manifest)[-1]
            session = Session(artifact.location(variant.library), first, (), count, device_of(variant))
        try:
            for name, function in functions.items():
                session.check(name, function)
            kept = dict(zip(names, session.keep(loaded.tensors), strict=True))
            given = {name: [kept[p] for p in function.params] for name, function in functions.items()}
            kind = Recomputed if recomputes(manifest) else Steps
            steps = kind(session, functions, given, context, spec.context, slots)
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
    def encodes(self) -> bool:
        """Whether an encoder reads the prompt: of an encoder-decoder, whose caches hold the answer alone."""
        return self._steps.source is not None

    @property
    def hears(self) -> bool:
        """Whether that encoder reads sounds."""
        return self._steps.source is not None and self._steps.source.heard is not None

    @property
    def slots(self) -> int:
        """Sequences that have caches."""
        return len(self._steps.filled)

    @property
    def length(self) -> int:
        """Positions that are filled."""
        return self._held.length(0)

    @property
    def cache_bytes(self) -> int:
        return self._steps.cache_bytes

    # ---------------------------------------------------------------- tokens and logits

    def tokens(
        self,
        prompt: Prompt | None = None,
        messages: Sequence[Message] | None = None,
        tools: Sequence[Tool] | None = None,
        template: Mapping[str, object] = NO_OPTIONS,
    ) -> list[int]:
        """The token ids of a prompt, or of a conversation by the model's chat template, which may read `tools`, too."""
        if (prompt is None) == (messages is None):
            raise UsageError("expected a prompt or messages, found both or neither: pass one of them")
        if messages is not None:
            return self._text.conversation(messages, tools, template)
        if tools is not None or template:
            raise UsageError("expected messages beside tools and template, found a prompt: leave them out")
        if isinstance(prompt, str):
            return self._text.tokens(prompt)
        if isinstance(prompt, (bytes, bytearray)):
            raise InputError(f"expected a prompt as text or token ids, found {type(prompt).__name__}: decode it first")
        found: list[int] = whole_ids(() if prompt is None else prompt).tolist()
        return found

    def text(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of token ids, of special ones where `special`; `UsageError` where the model has no tokenizer."""
        return self._text.of(self._steps.checked(tokens, None).tolist() if len(tokens) else [], special=special)

    def prefill(self, tokens: Sequence[int] | np.ndarray, slot: int = 0) -> np.ndarray:
        """Start again with `tokens`; the logits [vocabulary] behind them, or for the first token of their answer.

        An encoder-decoder that hears takes the spectrum of a sound, [bands, frames].
        """
        with self._my_turn():
            self._held.forget(0, slot)
            if not self.encodes:
                return self._held.feed(tokens, slot)
            self._held.read(tokens, slot)
            return self._held.feed(self._spec.start, slot)

    def encode(self, tokens: Sequence[int] | np.ndarray, slot: int = 0) -> None:
        """Read what an encoder-decoder answers; `extend` and `decode` then take the answer from its start."""
        with self._my_turn():
            if not self.encodes:
                raise UsageError("expected an encoder-decoder, found a decoder: its prompt is what prefill takes")
            self._held.forget(0, slot)
            self._held.read(tokens, slot)

    def decode(self, token: int, slot: int = 0) -> np.ndarray:
        """The logits [vocabulary] behind one more token."""
        with self._my_turn():
            return self._held.feed([token], slot)

    def decode_together(self, tokens: Mapping[int, int]) -> dict[int, np.ndarray]:
        """The logits [vocabulary] by slot behind one more token in each slot of `tokens`; other slots stay."""
        with self._my_turn():
            return self._held.feed_together(tokens)

    def extend(self, tokens: Sequence[int], slot: int = 0) -> np.ndarray:
        """The logits [vocabulary] behind `tokens`, which follow those in the caches."""
        with self._my_turn():
            return self._held.feed(tokens, slot)

    def score(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits [tokens, vocabulary]: row i is what the model says behind the first i + 1 tokens. The caches stay."""
        with self._my_turn():
            return self._steps.score(tokens)

    def truncate(self, count: int, slot: int = 0) -> None:
        """Forget all but the first `count` tokens; where a state cannot be made shorter, these are read again."""
        with self._my_turn():
            self._held.forget(count, slot)

    def fork(self, slot: int, to: int) -> None:
        """Copy the tokens in `slot` and their caches into the slot `to`: both go on by themselves."""
        with self._my_turn():
            self._held.fork(slot, to)

    # ---------------------------------------------------------------- answers

    def generate(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Sequence[Message] | None = None,
        tools: Sequence[Tool] | None = None,
        template: Mapping[str, object] = NO_OPTIONS,
        audio: Sound | None = None,
        language: str | None = None,
        translate: bool = False,
        max_new_tokens: int | None = None,
        min_new_tokens: int = 0,
        stop: Sequence[str] | None = None,
        logprobs: int = 0,
        special: bool = False,
        ignore_eos: bool = False,
        **sampling: Option,
    ) -> Generation:
        """The answer to a prompt (text or token ids), to a conversation, or to a sound.

        The most likely tokens, unless `sampling` (the fields of `Sampling`: temperature, top_k, top_p, min_p,
        typical_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias, no_repeat_ngram_size, bad_words,
        seed) says otherwise; up to `max_new_tokens`, else to the end of the context. No token that ends an answer is
        among the first `min_new_tokens`, nor anywhere with `ignore_eos`.
        `logprobs` is how many of the likeliest tokens are reported at each place.

        `stop` are texts that end an answer in front of them; one that is a special token's is found also where
        `special`, which lets special tokens appear in the text, is false. The token that ends an answer has no text.

        `audio`, for a model that hears, is a WAV file or samples [n] at 16 kHz; its words come in `language` ("en"), by
        default the likeliest of the model's, or, with `translate`, in English. Each half minute is answered by itself,
        in up to `max_new_tokens`.

        `tools` (JSON objects) are functions that a conversation may use, `template` what else its chat template reads:
        `{"enable_thinking": False}`, say.

        Of a translator into several languages, `language` is that of the answer to a prompt, as its tokenizer calls it.
        """
        wanted = Wanted.of((max_new_tokens, min_new_tokens), stop, logprobs, (special, ignore_eos), sampling)
        asked = partial(self.tokens, prompt, messages, tools, template)
        if self._together is not None and audio is None and (language, translate) == (None, False):
            return self._together.answers([(asked(), wanted)])[0]
        with self._my_turn():
            return to_its_end(self._answers(asked, audio, (language, translate), wanted))

    def generate_all(
        self,
        prompts: Sequence[Prompt | Sequence[Message]],
        *,
        max_new_tokens: int | None = None,
        min_new_tokens: int = 0,
        stop: Sequence[str] | None = None,
        logprobs: int = 0,
        special: bool = False,
        ignore_eos: bool = False,
        **sampling: Option,
    ) -> list[Generation]:
        """The answers to several prompts or conversations (lists of messages), each as `generate` gives it.

        As many as there are slots are decoded together; one takes a slot as soon as an answer leaves it. The first
        error of one of them ends all.
        """
        wanted = Wanted.of((max_new_tokens, min_new_tokens), stop, logprobs, (special, ignore_eos), sampling)
        if isinstance(prompts, (str, bytes, Mapping)) or not isinstance(prompts, Iterable):
            raise UsageError(f"expected a list of prompts, found one, {prompts!r:.80}: put it into a list")
        if self._together is not None:
            return self._together.answers([(self._tokens_of(asked), wanted) for asked in prompts])
        with self._my_turn():
            return [to_its_end(self._answer(tokens, wanted)) for tokens in [self._tokens_of(p) for p in prompts]]

    def _tokens_of(self, asked: Prompt | Sequence[Message]) -> list[int]:
        """The token ids of a prompt or of a conversation, told by what it consists of."""
        if isinstance(asked, Mapping):
            raise UsageError(
                f"expected prompts or conversations, found a message, {asked!r:.80}: put the conversation, a list of "
                "messages, into a list"
            )
        if isinstance(asked, (list, tuple)) and any(isinstance(part, Mapping) for part in asked):
            return self.tokens(messages=cast("Sequence[Message]", asked))
        return self.tokens(cast("Prompt", asked))

    def stream(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Sequence[Message] | None = None,
        tools: Sequence[Tool] | None = None,
        template: Mapping[str, object] = NO_OPTIONS,
        audio: Sound | None = None,
        language: str | None = None,
        translate: bool = False,
        max_new_tokens: int | None = None,
        min_new_tokens: int = 0,
        stop: Sequence[str] | None = None,
        logprobs: int = 0,
        special: bool = False,
        ignore_eos: bool = False,
        **sampling: Option,
    ) -> Generator[str, None, Generation]:
        """As `generate`, a piece of text at a time; the generator returns the `Generation`.

        One stream at a time, `UsageError` for a second one, unless there are slots. What a dropped stream said stays in
        the caches.
        """
        wanted = Wanted.of((max_new_tokens, min_new_tokens), stop, logprobs, (special, ignore_eos), sampling)
        asked = partial(self.tokens, prompt, messages, tools, template)
        if self._together is not None and audio is None and (language, translate) == (None, False):
            return (yield from self._together.stream(asked(), wanted))
        self._turn.take_at_once()
        try:
            return (yield from self._answers(asked, audio, (language, translate), wanted))
        finally:
            self._turn.__exit__()

    def _answers(
        self, asked: partial[list[int]], audio: Sound | None, how: tuple[str | None, bool], wanted: Wanted
    ) -> Generator[str, None, Generation]:
        heard = None if self._steps.source is None else self._steps.source.heard
        if audio is None and not how[1] and (how[0] is None or heard is None):
            self._spec.start_in(how[0])  # before anything is read
            return (yield from self._answer(asked(), wanted, how))
        if audio is None or heard is None or self._spec.speech is None:
            given = "a language or translation without audio" if audio is None else "audio for one that reads text"
            raise UsageError(f"expected a model that hears, and audio, found {given}: pass a prompt alone")
        if asked.args[:2] != (None, None):
            raise UsageError("expected a prompt, messages or audio, found two of them: pass one")
        samples = audio if isinstance(audio, np.ndarray) else samples_of(audio)
        found: list[Generation] = []
        for spectrum in spectra(samples, *heard):
            found.append((yield from self._answer(spectrum, wanted, how)))
            if found[-1].ended == "stop":
                break
        return joined(found)

    def _answer(
        self, asked: Sequence[int] | np.ndarray, wanted: Wanted, how: tuple[str | None, bool] = (None, False)
    ) -> Generator[str, None, Generation]:
        answer, logits = self._held.begin(asked, wanted, 0, how)
        while True:
            if piece := answer.take(logits, self._held.is_full(0)):
                yield piece
            if answer.ended:
                return answer.generation
            logits = self._held.feed([answer.said[-1]], 0)

    def _my_turn(self) -> AbstractContextManager[None]:
        return self._turn if self._together is None else self._together.alone()

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
