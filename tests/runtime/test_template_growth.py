"""What chat templates may make out of little: what transformers renders, and no more than a bound."""

from __future__ import annotations

import pytest

from halo_tvm.errors import UnsupportedModel
from halo_tvm.runtime.language.chat import render

pytest.importorskip("jinja2")
MESSAGES = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]


@pytest.mark.parametrize(
    "expression",
    [
        "' ' * 3 ~ 3 * 'x' ~ [m.role] * 2",
        "'%s: %5.1f%%' % (m.role, 3)",
        "'%(role)s!' % m",
        "'%s and %r' | format(m.role, m.content)",
        "'{:>6}{name}{0[0]!r}'.format(m.role, name=2)",
        "', '.join([m.role, m.content]) ~ m.content.split() | join('+') ~ messages | join('-', attribute='role')",
        "(m.content ~ '\\n\\nline\\n') | indent ~ 'a\\nb' | indent('> ', true) ~ 'a\\n\\nb' | indent(2, blank=true)",
        "m.role.ljust(9) ~ m.role.rjust(9, '.') ~ m.role.center(9) ~ '7'.zfill(3) ~ m.role | center(9)",
        "'a\\tb'.expandtabs(4) ~ m.content.replace(' ', '__') ~ m.content | replace('a', 'xyz', 1)",
        "[1, 2, 3] | batch(2, 'x') | list | string ~ [1] + [2] ~ 2 ** 10 * 3 + 7 % 4 ~ m | tojson(indent=2) ~ none ~ x",
        "[m] | upper ~ m.content | trim | upper | e",
    ],
)
def test_templates_render_as_those_of_transformers(expression: str) -> None:
    rendering = pytest.importorskip("transformers.utils.chat_template_utils").render_jinja_template
    template = "{% for m in messages %}{{ " + expression + " }}\n{{ m.content }}{{ [m.role] }}{% endfor %}"
    [[wanted], _] = rendering([MESSAGES], chat_template=template)
    assert render(template, MESSAGES, {}) == wanted


GROWN = "{% set n = namespace(x=START) %}{% for i in range(60) %}{% set n.x = NEXT %}{% endfor %}{{ n.x|length }}"
NESTED = "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ PRINTED }}"


@pytest.mark.parametrize(
    "template",
    [
        *(
            GROWN.replace("START", "'ab'").replace("NEXT", grown)
            for grown in (
                "n.x * 9",
                "n.x + n.x",
                "n.x ~ n.x",
                "[n.x, n.x]|join",
                "n.x.join(['a', 'b', 'c'])",
                "n.x.replace('a', 'aaaa')",
                "n.x|replace('a', 'aaaa')",
                "'%s%s' % (n.x, n.x)",
                "'%s%s'|format(n.x, n.x)",
                "'{0}{0}'.format(n.x)",
                "n.x.center(2 * n.x|length)",
            )
        ),
        GROWN.replace("START", "[1, 2]").replace("NEXT", "n.x + n.x"),
        GROWN.replace("START", "[1, 2]").replace("NEXT", "n.x * 9"),
        GROWN.replace("START", "3").replace("NEXT", "n.x * n.x"),
        *(
            NESTED.replace("PRINTED", printed)
            for printed in ("n.x", "n.x|string|length", "n.x|tojson|length", "n.x ~ ''", "'%s' % n.x", "n.x|upper")
        ),
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%(a(b))1000000000d' % {'a(b)': 1} }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ '{0:1000000000}'.format_map({'0': 1}) }}",
        "{{ 'a'['ljust'](1000000000) }}",
        "{{ 'a\nb'|indent(1000000000) }}",
        "{{ '\t'.expandtabs(1000000000) }}",
        "{{ [1]|batch(1000000000, 'x')|list }}",
        "{{ (1).to_bytes(1000000000, 'big') }}",
        "{{ 'a'.translate({97: 'b'}) }}",
        "{% set n = namespace(l=[]) %}{% for i in range(999) %}{% set n.l = n.l + ['a' * 8000000] %}{% endfor %}",
    ],
)
@pytest.mark.sampled(8)
def test_what_explodes_is_refused(template: str) -> None:
    with pytest.raises(UnsupportedModel, match=r"found (TooLong|SecurityError|TypeError)"):
        render(template, MESSAGES, {})
