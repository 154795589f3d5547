"""Conversations as prompts: the template that comes with a model, rendered where it can do no harm.

Templates are programs of strangers. They see no attribute of Python and change nothing (jinja2's immutable sandbox),
may take only so many steps, and texts that they make out of nothing (repetition, padding, formats) are refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from ...errors import MissingPackage, UnsupportedModel, UsageError
from .contents import Message, prompt_of

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

INSTALL = "pip install 'halo_tvm[lm]'"
LONGEST = 8 << 20  # characters of a prompt
_STEPS = 2_000_000  # lines of compiled templates; a usual one takes some per message
_GROWING = ("format", "center", "indent", "wordwrap", "urlize", "xmlattr")
_GROWING_METHODS = ("format", "format_map", "center", "ljust", "rjust", "zfill", "expandtabs", "join", "encode")


def render(template: str, messages: Sequence[Message], words: Mapping[str, str]) -> str:
    """The prompt of a conversation, up to where the answer begins.

    Raises
    ------
    UnsupportedModel
        a template that is no template, or that does what is not allowed
    UsageError
        a conversation that the template refuses, or messages of another form
    """
    for message in messages:
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise UsageError(f"expected messages with role and content, found {message!r:.80}: give both")
    environment = _environment()
    from jinja2 import TemplateError
    from jinja2.exceptions import SecurityError

    def rendered(given: Sequence[Message]) -> str:
        with _Limit():
            pieces, length = [], 0
            for piece in compiled.generate(messages=list(given), add_generation_prompt=True, **words):
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


class _Refused(Exception):
    """A template called `raise_exception`."""


def _environment() -> ImmutableSandboxedEnvironment:
    try:
        from jinja2.exceptions import SecurityError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as missing:
        raise MissingPackage("jinja2", "a chat template", INSTALL) from missing

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

    sandbox = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    for name in _GROWING:
        sandbox.filters.pop(name, None)
    sandbox.globals.pop("lipsum", None)
    sandbox.filters["tojson"] = _to_json
    sandbox.globals["raise_exception"] = _refuse
    sandbox.globals["strftime_now"] = _now
    return sandbox


def _to_json(value: object, indent: int | None = None) -> str:
    """As transformers writes it: text stays as it is, nothing is escaped for HTML."""
    if indent is not None and not 0 <= int(indent) <= 16:
        raise ValueError(f"an indent of {indent}")
    return json.dumps(value, ensure_ascii=False, indent=indent)


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
