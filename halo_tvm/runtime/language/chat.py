"""Conversations as prompts: the template that comes with a model, rendered where it can do no harm.

Templates are programs of strangers. They see no attribute of Python and change nothing (jinja2's immutable sandbox),
may take only so many steps, and what they make out of little (repetition, padding, formats) has a bounded length.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, MappingProxyType

from ...errors import UnsupportedModel, UsageError
from .contents import Message, prompt_of
from .growth import LONGEST, Growth
from .sandbox import Refused, sandbox

Tool = Mapping[str, object]
_TAKEN = frozenset(["messages", "tools", "add_generation_prompt"])
NO_OPTIONS: Mapping[str, object] = MappingProxyType({})
_BOUNDED = Growth.begin.__code__.co_filename
_STEPS = 2_000_000  # lines of compiled templates; a usual one takes some per message


def render(
    template: str,
    messages: Sequence[Message],
    words: Mapping[str, str],
    tools: Sequence[Tool] | None = None,
    options: Mapping[str, object] = NO_OPTIONS,
) -> str:
    """The prompt of a conversation, up to where the answer begins.

    `tools` are functions that the model may ask for, each described by a JSON object. A message that asks for them has
    `tool_calls`, and may lack content. `options` are what else a template reads: `enable_thinking`, say.

    Raises
    ------
    UnsupportedModel
        a template that is no template, or that does what is not allowed
    UsageError
        a conversation that the template refuses, or messages, tools or options of another form
    """
    _check(messages, tools, options)
    # Templates ask whether these are none, so they are always there.
    given: dict[str, object] = {"tools": None if tools is None else list(tools), "documents": None, **words, **options}
    growth = Growth()
    environment = sandbox(growth)
    from jinja2 import TemplateError
    from jinja2.exceptions import SecurityError

    def rendered(messages: Sequence[Message]) -> str:
        growth.begin()
        with _Limit():
            pieces, length = [], 0
            for piece in compiled.generate(messages=list(messages), add_generation_prompt=True, **given):
                length += len(piece)
                if length > LONGEST:
                    raise SecurityError(f"its text is longer than {LONGEST} characters")
                pieces.append(piece)
        return "".join(pieces)

    failures = (TemplateError, TypeError, ValueError, ArithmeticError, RecursionError, LookupError, MemoryError)
    try:
        compiled = environment.from_string(template)
        return prompt_of(messages, rendered, (Refused, *failures))
    except Refused as refusal:
        raise UsageError(
            f"the model's chat template refuses this conversation ({refusal}): change its messages"
        ) from None
    except failures as error:
        raise UnsupportedModel(
            f"expected a chat template that renders the messages, found {type(error).__name__} ({str(error)[:200]}): "
            "pass a prompt instead"
        ) from error


def _check(messages: Sequence[Message], tools: Sequence[Tool] | None, options: Mapping[str, object]) -> None:
    for message in messages:
        known = set(message) if isinstance(message, Mapping) else set()
        if "role" not in known or not known & {"content", "tool_calls"}:
            raise UsageError(f"expected messages with role and content, found {message!r:.80}: give both")
    if tools is not None and (isinstance(tools, (str, Mapping)) or not all(isinstance(t, Mapping) for t in tools)):
        raise UsageError(
            f'expected tools as a list of JSON objects, {{"type": "function", "function": ...}}, found {tools!r:.80}: '
            "describe each function by one"
        )
    if taken := sorted(_TAKEN & set(options)):
        raise UsageError(
            f"expected options of the chat template beside messages and tools, found {taken[0]}: leave it out"
        )


class _Limit:
    """Ends what runs inside after so many lines: a loop in a template cannot be ended otherwise.

    What `Growth` computes has bounds of its own.
    """

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        self._left = _STEPS
        sys.settrace(self._called)

    def __exit__(self, *_error: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, arg: object) -> Callable[..., object] | None:
        return None if frame.f_code.co_filename == _BOUNDED else self._stepped

    def _stepped(self, frame: FrameType, event: str, arg: object) -> Callable[..., object]:
        self._left -= 1
        if self._left < 0:
            from jinja2.exceptions import SecurityError

            raise SecurityError(f"it takes more than {_STEPS} steps")
        return self._stepped
