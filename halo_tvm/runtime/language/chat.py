"""Conversations as prompts: the template that comes with a model, rendered where it can do no harm.

Templates are programs of strangers. They see no attribute of Python and change nothing (jinja2's immutable sandbox),
may take only so many steps, and texts that they make out of nothing (repetition, padding, formats) are refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from ...errors import MissingPackage, UnsupportedModel, UsageError
from .contents import Message, prompt_of

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

INSTALL = "pip install 'halo_tvm[lm]'"
Tool = Mapping[str, object]
LONGEST = 8 << 20  # characters of a prompt
_TAKEN = frozenset(["messages", "tools", "add_generation_prompt"])
NO_OPTIONS: Mapping[str, object] = MappingProxyType({})
_STEPS = 2_000_000  # lines of compiled templates; a usual one takes some per message
_GROWING = ("format", "center", "indent", "wordwrap", "urlize", "xmlattr")
_GROWING_METHODS = ("format", "format_map", "center", "ljust", "rjust", "zfill", "expandtabs", "join", "encode")


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
    environment = _environment()
    from jinja2 import TemplateError
    from jinja2.exceptions import SecurityError

    def rendered(messages: Sequence[Message]) -> str:
        with _Limit():
            pieces, length = [], 0
            for piece in compiled.generate(messages=list(messages), add_generation_prompt=True, **given):
                length += len(piece)
                if length > LONGEST:
                    raise SecurityError(f"its text is longer than {LONGEST} characters")
                pieces.append(piece)
        return "".join(pieces)

    failures = (TemplateError, TypeError, ValueError, ArithmeticError, RecursionError, LookupError)
    try:
        compiled = environment.from_string(template)
        return prompt_of(messages, rendered, (_Refused, *failures))
    except _Refused as refusal:
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


class _Refused(Exception):
    """A template called `raise_exception`."""


def _environment() -> ImmutableSandboxedEnvironment:
    try:
        from jinja2 import nodes
        from jinja2.exceptions import SecurityError
        from jinja2.ext import Extension
        from jinja2.parser import Parser
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as missing:
        raise MissingPackage("jinja2", "a chat template", INSTALL) from missing

    class Said(Extension):
        """`{% generation %}` marks what a model said, for who trains it."""

        tags = frozenset(["generation"])

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(["*", "**", "%"])

        def call_binop(self, context: object, operator: str, left: object, right: object) -> object:
            """Repetition and powers, the operators that make much out of little, are for small numbers."""
            numbers = all(isinstance(x, (int, float)) for x in (left, right))
            if not numbers or (operator == "**" and max(abs(left), abs(right)) > 1000):  # type: ignore[type-var, arg-type]
                raise SecurityError(f"{type(left).__name__} {operator} {type(right).__name__} is not allowed")
            return super().call_binop(context, operator, left, right)  # type: ignore[arg-type]

        def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
            if isinstance(obj, (str, bytes)) and attr in _GROWING_METHODS:
                return False
            return super().is_safe_attribute(obj, attr, value)

    sandbox = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Said])
    for name in _GROWING:
        sandbox.filters.pop(name, None)
    sandbox.globals.pop("lipsum", None)
    sandbox.filters["tojson"] = _to_json
    sandbox.globals["raise_exception"] = _refuse
    sandbox.globals["strftime_now"] = _now
    return sandbox


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers writes it: text stays as it is, nothing is escaped for HTML."""
    if indent is not None and not 0 <= int(indent) <= 16:
        raise ValueError(f"an indent of {indent}")
    if separators is not None and sum(map(len, separators)) > 16:
        raise ValueError("long separators")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: object) -> NoReturn:
    raise _Refused(str(message)[:200])


def _now(form: str) -> str:
    from datetime import datetime

    if len(form) > 100:
        raise ValueError("a date of more than 100 characters")
    return datetime.now().strftime(form)


class _Limit:
    """Ends what runs inside after so many lines: a loop in a template cannot be ended otherwise."""

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        self._left = _STEPS
        sys.settrace(self._called)

    def __exit__(self, *_error: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, arg: object) -> Callable[..., object] | None:
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, arg: object) -> Callable[..., object]:
        self._left -= 1
        if self._left < 0:
            from jinja2.exceptions import SecurityError

            raise SecurityError(f"it takes more than {_STEPS} steps")
        return self._stepped
