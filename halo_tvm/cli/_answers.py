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
        _say(model.stream(prompt, language=config.language, **_options(config)))  # type: ignore[arg-type]
    return 0


def _converse(model: LanguageModel, config: RunConfig, template: dict[str, object]) -> int:
    """Every line is a turn of a conversation; for an encoder-decoder it is a text by itself."""
    messages = [] if config.system is None else [{"role": "system", "content": config.system}]
    while True:
        try:
            line = input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line})
        try:
            alone = {"prompt": line, "language": config.language}
            asked = alone if model.encodes else {"messages": messages, "template": template}
            said = _say(model.stream(**asked, **_options(config)), goes_on=True)  # type: ignore[arg-type]
        except HaloError as error:
            print(f"error: {error}", file=sys.stderr)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": said})


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


def _options(config: RunConfig) -> dict[str, object]:
    drawn = config.temperature is not None or config.top_k or config.top_p or config.min_p
    return {
        "max_new_tokens": config.max_new_tokens,
        "stop": config.stop,
        "temperature": config.temperature,
        "top_k": config.top_k,
        "top_p": config.top_p,
        "min_p": config.min_p,
        "repetition_penalty": config.repetition_penalty,
        "seed": config.seed if drawn else None,
    }
