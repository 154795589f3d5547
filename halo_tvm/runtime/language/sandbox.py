"""Where chat templates are rendered: jinja2's immutable sandbox, in which nothing grows beyond a bound."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar, NoReturn

from ...errors import MissingPackage
from .growth import Growth, Text

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.compiler import Frame
    from jinja2.sandbox import ImmutableSandboxedEnvironment

INSTALL = "pip install 'halo_tvm[lm]'"
_REFUSED_FILTERS = ("wordwrap", "urlize", "xmlattr")
# Of texts and numbers; what of them `Growth` knows is bounded where it is named, and refused where it is looked up.
_GROWING_METHODS = (
    *("center", "ljust", "rjust", "zfill", "expandtabs", "join", "replace"),
    *("format", "format_map", "encode", "translate", "to_bytes"),
)
_OF_TEXTS = (
    *("string", "upper", "lower", "title", "capitalize", "trim", "wordcount", "striptags"),
    *("escape", "e", "forceescape", "safe", "urlencode", "pprint"),
)


class Refused(Exception):
    """A template called `raise_exception`."""


def sandbox(growth: Growth) -> ImmutableSandboxedEnvironment:
    """The environment of one template, whose operations `growth` bounds."""
    try:
        from jinja2 import nodes, pass_environment
        from jinja2.compiler import CodeGenerator
        from jinja2.ext import Extension
        from jinja2.filters import make_attrgetter
        from jinja2.parser import Parser
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as missing:
        raise MissingPackage("jinja2", "a chat template", INSTALL) from missing

    class Said(Extension):
        """`{% generation %}` marks what a model said, for who trains it."""

        tags: ClassVar[set[str]] = {"generation"}  # type: ignore[misc]

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    class Bounded(CodeGenerator):
        def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
            self.write("environment.concatenated((")
            for part in node.nodes:
                self.visit(part, frame)
                self.write(", ")
            self.write("))")

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(["+", "*", "**", "%"])
        code_generator_class = Bounded
        concatenated = staticmethod(growth.joined)

        def call_binop(self, context: object, operator: str, left: object, right: object) -> object:
            growth.operator(operator, left, right)
            return super().call_binop(context, operator, left, right)  # type: ignore[arg-type]

        def getattr(self, obj: object, attribute: str) -> object:
            bounded = growth.method(obj, attribute) if isinstance(obj, str) else None
            return super().getattr(obj, attribute) if bounded is None else bounded

        def wrap_str_format(self, value: object) -> Callable[..., str] | None:
            plain = super().wrap_str_format(value)
            text = getattr(value, "__self__", None)
            if plain is None or not isinstance(text, str):
                return None

            def formatted(*values: object, **named: object) -> str:
                growth.check_fields(text, values, named)
                return str(plain(*values, **named))

            return formatted

        def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
            if isinstance(obj, (str, bytes, int)) and attr in _GROWING_METHODS:
                return False
            return super().is_safe_attribute(obj, attr, value)

    @pass_environment
    def joined(
        environment: Environment, values: Iterable[object], between: object = "", attribute: str | int | None = None
    ) -> str:
        return growth.joined(
            values if attribute is None else map(make_attrgetter(environment, attribute), values), between
        )

    found = Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", Said],
        finalize=growth.printed,
    )
    for name in _REFUSED_FILTERS:
        found.filters.pop(name, None)
    for name in _OF_TEXTS:
        found.filters[name] = _bounded(found.filters[name], growth)
    found.filters |= {
        "join": joined,
        "indent": growth.indented,
        "center": growth.centred,
        "replace": growth.replaced,
        "format": growth.formatted,
        "batch": growth.batched,
        "tojson": _to_json(growth),
    }
    found.globals.pop("lipsum", None)
    found.globals["raise_exception"] = _refuse
    found.globals["strftime_now"] = _now
    return found


def _bounded(plain: Text, growth: Growth) -> Text:
    """A filter that makes a text of a value."""
    return lambda value, *more, **named: plain(growth.printed(value), *more, **named)


def _to_json(growth: Growth) -> Text:
    def to_json(
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
        growth.check_json(value, indent)
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    return to_json


def _refuse(message: object) -> NoReturn:
    raise Refused(str(message)[:200])


def _now(form: str) -> str:
    from datetime import datetime

    if len(form) > 100:
        raise ValueError("a date of more than 100 characters")
    return datetime.now().strftime(form)
