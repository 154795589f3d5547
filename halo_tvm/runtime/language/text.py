"""Text to tokens and back: the tokenizer of an artifact, and a decoder that gives whole characters only."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, BinaryIO

from ...errors import ArtifactCorrupt, InputError, MissingPackage, UsageError
from .chat import NO_OPTIONS, Tool, render
from .contents import Message
from .sandbox import INSTALL
from .spec import LanguageSpec

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Text:
    """The tokenizer and chat template of a language model; without a tokenizer only token ids go in and out."""

    def __init__(self, spec: LanguageSpec, tokenizer: BinaryIO | None = None) -> None:
        """`tokenizer` is an open file, which is read here."""
        self._spec = spec
        self._file = None if tokenizer is None else tokenizer.name
        self._raw = b"" if tokenizer is None else tokenizer.read()
        self._making = threading.Lock()

    @property
    def _tokenizer(self) -> Tokenizer | None:
        """Made when text is first asked for, by one thread: steps with token ids need no package."""
        with self._making:
            return self._made

    @cached_property
    def _made(self) -> Tokenizer | None:
        if self._file is None:
            return None
        try:
            from tokenizers import Tokenizer
        except ImportError as missing:
            raise MissingPackage("tokenizers", "text in and out of a language model", INSTALL) from missing
        try:
            tokenizer = Tokenizer.from_str(self._raw.decode("utf-8"))
        except Exception as error:
            raise ArtifactCorrupt(
                f"{self._file}: expected a tokenizer, found {str(error)[:200]}: compile the model again"
            ) from error
        tokenizer.no_truncation()  # which are of training, and would change prompts
        tokenizer.no_padding()
        self._raw = b""
        return tokenizer

    def tokens(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of `text`, with what the tokenizer puts in front of every text unless `special` is false.

        Raises `InputError` for text that is no Unicode and for ids beyond the model's vocabulary, `UsageError` without
        a tokenizer.
        """
        if self._tokenizer is None:
            raise UsageError(
                "expected token ids, found text, but the model was compiled from a directory without tokenizer.json: "
                "pass ids, or compile it again with that file"
            )
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        except (UnicodeEncodeError, TypeError) as error:
            raise InputError(f"expected a prompt of Unicode text, found {error}: decode it first") from error
        if ids and max(ids) >= self._spec.vocabulary:
            raise InputError(
                f"expected tokens below {self._spec.vocabulary}, which the model has, found {max(ids)}: its tokenizer "
                "has more than its head; leave that token out"
            )
        return ids

    def conversation(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        options: Mapping[str, object] = NO_OPTIONS,
    ) -> list[int]:
        """The ids of a conversation by the model's chat template; `UsageError` where it has none."""
        template = (self._spec.tool_template if tools else None) or self._spec.chat_template
        if template is None:
            raise UsageError("expected a prompt, found messages, but the model has no chat template: pass a prompt")
        return self.tokens(render(template, messages, self._spec.words, tools, options), special=False)

    def of(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of `ids`, of special tokens where `special`; `UsageError` without a tokenizer."""
        if self._tokenizer is None:
            raise UsageError(
                "expected a model with a tokenizer, found one that was compiled from a directory without "
                "tokenizer.json: compile it again with that file"
            )
        return self.decoded(ids, special=special)

    def decoded(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of `ids`, of special tokens where `special`; "" without a tokenizer."""
        if self._tokenizer is None:
            return ""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=not special))

    def special_tokens(self) -> dict[str, int]:
        """The special tokens by their texts; none without a tokenizer."""
        if self._tokenizer is None:
            return {}
        added = self._tokenizer.get_added_tokens_decoder()
        return {token.content: number for number, token in added.items() if token.special}


class Pieces:
    """Text of tokens as they come: half characters, and what may begin a stop string, are held back."""

    def __init__(self, text: Text, stop: Sequence[str], *, special: bool = False) -> None:
        if any(not isinstance(s, str) or not s for s in stop):
            raise UsageError(f"expected stop strings of at least one character, found {list(stop)!r}: correct them")
        self._decoded = partial(text.decoded, special=True) if special else text.decoded
        self._stop = tuple(stop)
        self._ids: list[int] = []
        self._from = 0  # ids from which on they are decoded
        self._taken = 0  # ids whose text has been taken
        self._seen = ""  # the text of those from `_from` on
        self._held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """The text that is certain with this token; once a stop string is found, that in front of it, and `stopped`."""
        self._ids.append(token)
        if self._decoded(self._ids[self._from :]).endswith("\ufffd"):  # a character that the next token completes
            return ""
        new = self._new()
        if len(self._ids) - self._from > _WINDOW:
            self._forget()
        return self._released(self._held + new)

    def rest(self) -> str:
        """What was held back, at the end of an answer; a half character becomes U+FFFD."""
        if self.stopped:
            return ""
        out, self._held = self._held + (self._new() if self._taken < len(self._ids) else ""), ""
        return out

    def _new(self) -> str:
        """The text of the ids that were not taken yet.

        Bytes that are no character make some tokenizers read those in front of them otherwise: then they stand alone.
        """
        whole, before = self._decoded(self._ids[self._from :]), self._seen
        if not whole.startswith(before):
            self._from, before = self._taken, ""
            whole = self._decoded(self._ids[self._from :])
        self._taken, self._seen = len(self._ids), whole
        return whole[len(before) :]

    def _forget(self) -> None:
        """Decoding stays cheap: some tokens are kept that are whole characters, which keeps spaces right."""
        for count in range(2, _CONTEXT + 1):
            kept = self._decoded(self._ids[-count:])
            if kept and "\ufffd" not in kept:
                self._from, self._seen = len(self._ids) - count, kept
                return

    def _released(self, text: str) -> str:
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped = True
            return text[: min(found)]
        held = max((n for stop in self._stop for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


_WINDOW = 32  # tokens that are decoded together
_CONTEXT = 8  # and that are kept of them: a character may be four bytes, and a token a byte
