"""What a serialised program may say. torch's own reader evaluates some of its texts; these are checked here first.

torch.export.load turns size expressions into sympy by evaluating them, resolves operator names by attribute look-up
anywhere in torch, imports modules that tree descriptions name, executes guards as code, and falls back to full
unpickling. A program passes only if none of that can do more than describe a graph.
"""

from __future__ import annotations

import ast
import json
import re

from ...errors import UnsupportedModel

_TARGET = re.compile(
    r"torch\.ops\.(aten|prims|transformers|_c10d_functional)\.\w+(\.\w+)?|torch\.ops\.higher_order\.(\w+)|"
    r"(_operator|operator|math)\.(\w+)|torch\.(sym_\w+|_sym_sqrt)|"
    # of torch.vmap, which decompositions leave nothing of
    r"torch\._functorch\.predispatch\.(?:(?:_add|_remove)_batch_dim|_vmap_(?:in|de)crement_nesting|lazy_load_decompositions)"
)
_HIGHER_ORDER = frozenset(
    {"wrap_with_set_grad_enabled", "wrap_with_autocast", "cond", "while_loop", "scan", "map_impl", "invoke_subgraph"}
)
_FUNCTIONS = frozenset(
    (
        "add sub mul truediv floordiv mod neg pow eq ne lt le gt ge and_ or_ not_ getitem pos abs lshift rshift trunc "
        "ceil floor sqrt max min"
    ).split()
)
_DUNDERS = frozenset(f"__{name}__" for name in ("and", "or", "xor", "lshift", "rshift"))
_NAMES = frozenset(
    (
        "Symbol Integer Float Rational Add Mul Pow Mod Max Min floor ceiling Piecewise FloorDiv ModularIndexing Where "
        "PythonMod CleanDiv CeilToInt FloorToInt CeilDiv LShift RShift PowByNatural FloatPow FloatTrueDiv IntTrueDiv "
        "TruncToFloat TruncToInt RoundToInt RoundDecimal ToFloat Identity Equality Unequality LessThan StrictLessThan "
        "GreaterThan StrictGreaterThan Eq Ne Lt Le Gt Ge And Or Not true false One NegativeOne"
    ).split()
)
_KEYWORDS = frozenset({"positive", "integer", "nonnegative", "nonzero", "negative", "real", "precision", "evaluate"})
_SYMBOL = re.compile(r"(s|u|zuf|zf|f)\d+")
_NODES = tuple(
    getattr(ast, name)
    for name in (
        "Expression Call Name Load Constant BinOp UnaryOp Compare keyword Add Sub Mult FloorDiv Div Mod "
        "USub UAdd Eq NotEq Lt LtE Gt GtE Pow"
    ).split()
)
_TREES = frozenset({"builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", None})
_DIALECTS = frozenset({"TRAINING", "ATEN", "CORE_ATEN", "EDGE"})
_EXPRESSION_LIMIT, _NUMBER_LIMIT, _EXPONENT_LIMIT, _DEPTH_LIMIT = 2000, 1 << 40, 8, 200


def checked_program(program: object) -> tuple[dict[str, object], list[str]]:
    """`program` (models/*.json as Python values) without what can run code, and the text of its guards, which is
    parsed and never run; `UnsupportedModel` if it needs that."""
    if not isinstance(program, dict) or not isinstance(program.get("graph_module"), dict):
        raise _bad("a graph", "none")
    guards = program.get("guards_code")
    program["guards_code"] = []  # torch would run the text
    dialects = program.get("verifiers") or []
    if not isinstance(dialects, list) or not _DIALECTS.issuperset(dialects):
        raise _bad(f"dialects of {', '.join(sorted(_DIALECTS))}", f"{dialects!r:.80}")
    program["graph_module"]["metadata"] = {}
    _check(program, 0)
    ranges = program.get("range_constraints")
    if isinstance(ranges, dict):  # torch reads those of computed sizes, and then takes these for symbols
        program["range_constraints"] = {name: limits for name, limits in ranges.items() if _SYMBOL.fullmatch(name)}
    return program, [text for text in guards if isinstance(text, str)] if isinstance(guards, list) else []


def _bad(expected: str, found: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"expected {expected} in the exported program, found {found}: "
        "save the program with torch.export.save again, without custom code"
    )


def _check(value: object, depth: int) -> None:
    if depth > _DEPTH_LIMIT:
        raise _bad(f"at most {_DEPTH_LIMIT} levels", "more")
    if isinstance(value, list):
        for item in value:
            _check(item, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "target" and "inputs" in value and "outputs" in value:
                _check_target(item)
            elif key == "expr_str":
                _check_expression(item)
            elif key in ("in_spec", "out_spec"):
                value[key] = _checked_tree(item)
            elif key == "metadata":  # stack traces; torch resolves names in them
                value[key] = {}
                continue
            elif key in ("as_custom_obj", "as_operator", "custom_obj") and item is not None:
                raise _bad("tensors and numbers", f"a {key.removeprefix('as_')}")
            _check(item, depth + 1)


def _check_target(target: object) -> None:
    match = _TARGET.fullmatch(target) if isinstance(target, str) else None
    if match is not None and match[3] is not None and match[3] not in _HIGHER_ORDER:
        raise UnsupportedModel(
            "expected operators of torch, of those that hold graphs cond, while_loop, scan and map, in the exported "
            f"program, found {match[3][:60]}: export the model without it"
        )
    allowed = match is not None and (match[5] is None or match[5] in _FUNCTIONS)
    if not allowed or any(word.startswith("__") and word not in _DUNDERS for word in target.split(".")):
        raise _bad("operators of torch", f"{target!r:.100}")


def _check_expression(text: object) -> None:
    if not isinstance(text, str) or len(text) > _EXPRESSION_LIMIT:
        raise _bad(f"size expressions of at most {_EXPRESSION_LIMIT} characters", f"{text!r:.60}")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _bad("size expressions", f"{text!r:.60}") from None
    for node in ast.walk(tree):
        reason = _why_not(node)
        if reason:
            raise _bad("size expressions of arithmetic", f"{reason} in {text!r:.60}")


def _why_not(node: ast.AST) -> str | None:
    if not isinstance(node, _NODES):
        return type(node).__name__
    if isinstance(node, ast.Name) and node.id not in _NAMES and not _SYMBOL.fullmatch(node.id):
        return f"the name {node.id[:40]!r}"
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name):
            return "a computed function"
        symbol = node.func.id == "Symbol"
        texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        if any(not _SYMBOL.fullmatch(t) if symbol else not re.fullmatch(r"[0-9.e+-]{1,40}", t) for t in texts):
            return f"the text {texts[0][:40]!r}"
        if node.func.id in ("Pow", "PowByNatural", "FloatPow", "LShift") and not _small(node.args[-1:]):
            return "a large power"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and not _small([node.right]):
        return "a large power"
    if isinstance(node, ast.keyword) and node.arg not in _KEYWORDS:
        return f"the keyword {str(node.arg)[:40]!r}"
    if isinstance(node, ast.Constant):
        if not isinstance(node.value, bool | int | float | str):
            return repr(node.value)[:40]
        if isinstance(node.value, int) and abs(node.value) > _NUMBER_LIMIT:
            return "a huge number"
    return None


def _small(exponents: list[ast.expr]) -> bool:
    """Whether an exponent is a small number: 2**(2**99) is a short text and an endless computation."""
    for node in exponents:
        if isinstance(node, ast.Call) and len(node.args) == 1:
            node = node.args[0]
        if isinstance(node, ast.UnaryOp):
            node = node.operand
        if not (
            isinstance(node, ast.Constant)
            and isinstance(node.value, int | float)
            and abs(node.value) <= _EXPONENT_LIMIT
        ):
            return False
    return bool(exponents)


def _checked_tree(text: object) -> str:
    """A tree description of tuples, lists and dicts only. A class whose context lists its keys becomes a dict."""
    if not isinstance(text, str) or not text:
        return "" if text is None else str(text)
    try:
        protocol, tree = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise _bad("a tree of inputs and outputs", f"{text!r:.60}") from None
    return json.dumps([protocol, _plain_tree(tree, 0)])


def _plain_tree(tree: object, depth: int) -> dict[str, object]:
    children = tree.get("children_spec") if isinstance(tree, dict) else None
    if depth > _DEPTH_LIMIT or not isinstance(children, list):
        raise _bad("a tree of inputs and outputs", f"{tree!r:.60}")
    kind, context = tree.get("type"), tree.get("context")
    if kind not in _TREES:
        kind, context = "builtins.dict", _keys(kind, context, len(children))
    if isinstance(context, str) and "__enum__" in context or isinstance(context, dict):
        raise _bad("a tree of inputs and outputs", f"{context!r:.60}")
    return {"type": kind, "context": context, "children_spec": [_plain_tree(child, depth + 1) for child in children]}


def _keys(kind: object, context: object, count: int) -> str:
    try:
        keys = json.loads(context) if isinstance(context, str) else None
    except ValueError:
        keys = None
    if not isinstance(keys, list) or len(keys) != count or not all(isinstance(k, str) for k in keys):
        raise _bad("tuples, lists and dicts of tensors", f"values of class {kind!r:.80}")
    return json.dumps(keys)
