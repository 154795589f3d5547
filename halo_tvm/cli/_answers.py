"""`halo-tvm run --prompt`, `--interactive` and `--audio`: a language model on the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

from ..config import RunConfig
from ..errors import HaloError, UsageError

if TYPE_CHECKING:
    from ..runtime.language import Generation, LanguageModel
    from ..runtime.language.contents import Message

_ROOM = 256  # tokens of an answer to which nobody set a bound, which a conversation leaves room for


def answer(config: RunConfig) -> int:
    """Say the answer as it comes, then on stderr how it ended and at which rates."""
    from ..runtime.language import LanguageModel

    options = _template(config.template)
    with LanguageModel.load(config.artifact, threads=config.threads, context=config.context) as model:
        if config.interactive:
            return _converse(model, config, options)
        if config.audio is not None:
            spoken = {"audio": config.audio, "language": config.language, "translate": config.translate}
            _say(model.stream(**spoken, **_options(config)))  # type: ignore[arg-type]
            return 0
        # The line break at the end is the shell's, or the editor's.
        prompt = sys.stdin.read().removesuffix("\n") if config.prompt == "-" else str(config.prompt)
        asked: dict[str, object] = {"prompt": prompt, "language": config.language}
        if config.chat:
            asked = {"messages": [*_instructions(config), {"role": "user", "content": prompt}], "template": options}
        _say(model.stream(**asked, **_options(config)))  # type: ignore[arg-type]
    return 0


def _converse(model: LanguageModel, config: RunConfig, template: dict[str, object]) -> int:
    """Every line is a turn of a conversation; for an encoder-decoder it is a text by itself.

    Of a conversation that the context does not hold, the oldest turns go; the instructions stay.
    """
    messages = _instructions(config)
    options = _options(config)
    while True:
        try:
            line = input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line})
        kept = messages
        try:
            asked: dict[str, object] = {"prompt": line, "language": config.language}
            if not model.encodes:
                kept, tokens = _within(model, messages, template, config.max_new_tokens)
                asked = {"prompt": tokens}
            said = _say(model.stream(**asked, **options), goes_on=True)  # type: ignore[arg-type]
        except HaloError as error:
            print(f"error: {error}", file=sys.stderr)
            messages.pop()
            continue
        messages = [*kept, {"role": "assistant", "content": said}]


def _instructions(config: RunConfig) -> list[Message]:
    """What stands in front of a conversation."""
    return [] if config.system is None else [{"role": "system", "content": config.system}]


def _within(
    model: LanguageModel, messages: list[Message], template: dict[str, object], most: int | None
) -> tuple[list[Message], list[int]]:
    """`messages` without the oldest turns where the context has no room for an answer behind all of them; their tokens.

    So many go that half of the context is free: what stays is read again, which should not be at every turn. All stay
    where the last message alone is too long.
    """
    first = int(messages[0]["role"] == "system")
    wanted, kept = model.context - min(model.context // 2, _ROOM if most is None else most), messages
    tokens = every = model.tokens(messages=messages, template=template)
    while len(tokens) > wanted and len(kept) > first + 2:
        wanted, kept = model.context // 2, [*kept[:first], *kept[first + 2 :]]  # a question and its answer
        tokens = model.tokens(messages=kept, template=template)
    gone = (len(messages) - len(kept)) // 2
    if not gone or len(tokens) > model.context:
        return messages, every
    turns = "turn is" if gone == 1 else f"{gone} turns are"
    print(f"[the context of {model.context} tokens is full: the oldest {turns} forgotten]", file=sys.stderr)
    return kept, tokens


def _say(stream: Generator[str, None, Generation], *, goes_on: bool = False) -> str:
    """Print the pieces of a stream; the text that was said.

    Ctrl-C ends it, and the command as well, unless a conversation `goes_on`.
    """
    said: list[str] = []
    found: Generation | None = None
    try:
        while True:
            try:
                piece = next(stream)
            except StopIteration as end:
                found = end.value
                break
            said.append(piece)
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        stream.close()
        if not goes_on:
            print(flush=True)
            raise
    print(flush=True)
    print(f"[{_summary(found) if found else 'interrupted'}]", file=sys.stderr)
    return "".join(said)


def _summary(found: Generation) -> str:
    read = found.prompt_tokens - found.kept_tokens
    kept = f" ({found.kept_tokens} more were kept)" if found.kept_tokens else ""
    return (
        f"ended by {found.ended}: {read} tokens read{kept} at {found.prompt_rate:.1f}/s, "
        f"{len(found.tokens)} said at {found.answer_rate:.1f}/s"
    )


def _template(words: tuple[str, ...]) -> dict[str, object]:
    """`NAME=VALUE` words: values are JSON (false, 3), else texts."""
    found: dict[str, object] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"expected NAME=VALUE as --template, found {word!r:.80}: correct it")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _logit_bias(words: tuple[str, ...]) -> dict[int, float]:
    """`ID=NUMBER` words."""
    found: dict[int, float] = {}
    for word in words:
        token, _, value = word.partition("=")
        try:
            found[int(token)] = float(value)
        except ValueError:
            raise UsageError(f"expected ID=NUMBER as --logit-bias, found {word!r:.80}: correct it") from None
    return found


def _options(config: RunConfig) -> dict[str, object]:
    drawn = config.temperature is not None or config.top_k or config.top_p or config.min_p or config.typical_p
    bias = _logit_bias(config.logit_bias)
    return {
        "max_new_tokens": config.max_new_tokens,
        "min_new_tokens": config.min_new_tokens,
        "stop": config.stop,
        "temperature": config.temperature,
        "top_k": config.top_k,
        "top_p": config.top_p,
        "min_p": config.min_p,
        "typical_p": config.typical_p,
        "repetition_penalty": config.repetition_penalty,
        "presence_penalty": config.presence_penalty,
        "frequency_penalty": config.frequency_penalty,
        "logit_bias": bias or None,
        "no_repeat_ngram_size": config.no_repeat_ngram_size,
        "bad_words": config.bad_words or None,
        "special": config.special,
        "ignore_eos": config.ignore_eos,
        "seed": config.seed if drawn else None,
    }
