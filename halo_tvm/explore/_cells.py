"""Rules defined in a notebook's cell: their source becomes a module that the measurement process can import.

A cell's class lives in `__main__`, which another process does not have. `register` writes the class and every
name it uses into a module of a temporary directory: imports as imports, plain values as literals, the cell's own
classes and functions as their source. Nothing is pickled.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import hashlib
import math
import shutil
import symtable
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import UsageError
from ..tir_schedules import RULES, Rule

_MAIN = "__main__"
_HEADER = '"""A rule of a notebook, written by explore.register."""\n\nfrom __future__ import annotations\n'
_LITERALS = (int, float, str, bool, bytes, tuple, frozenset, type(None))  # these very types
_modules: dict[str, str] = {}  # rule -> module
_folder: Path | None = None


def register(rule: type[Rule]) -> type[Rule]:
    """Make a rule known to the measurement process; usable as a decorator, and again when the cell is run again.

    A rule of an importable module is imported there by name. `UsageError` when the source cannot be had or a name
    in it cannot be written down.
    """
    if not (isinstance(rule, type) and issubclass(rule, Rule)):
        raise UsageError(f"expected a subclass of halo_tvm.tir_schedules.Rule, found {rule!r}: give the class")
    if rule.__module__ != _MAIN:
        _modules[rule.name] = rule.__module__
        return rule
    text = source_of(rule)
    name = f"halo_cell_{rule.name}_{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    (_directory() / f"{name}.py").write_text(text, encoding="utf-8")
    _modules[rule.name] = name
    RULES[rule.name] = rule()
    return rule


def registered() -> tuple[str, ...]:
    """Modules of the registered rules, for `modules` of a tuning run."""
    return tuple(_modules.values())


def source_of(rule: type) -> str:
    """A module's text with `rule` and all that it needs of `__main__`."""
    space = {**vars(sys.modules[_MAIN]), rule.__name__: rule}  # a decorated class has no name there yet
    imports: dict[str, None] = {}
    parts: dict[str, str] = {}
    _collect(rule.__name__, space, imports, parts, rule.__name__)
    return "\n".join([_HEADER, *imports, "", "", *(f"{text}\n\n" for text in parts.values())])


def _collect(
    name: str, space: Mapping[str, object], imports: dict[str, None], parts: dict[str, str], wanted_by: str
) -> None:
    """Add the definition of `name` after everything it uses."""
    if name in parts:
        return
    value = space[name]
    if isinstance(value, types.ModuleType):
        imports[f"import {value.__name__} as {name}"] = None
    elif isinstance(value, (type, types.FunctionType)) and value.__module__ == _MAIN:
        own = value.__name__
        if own != name and space.get(own) is value:
            _collect(own, space, imports, parts, wanted_by)
            parts[name] = f"{name} = {own}"
        else:
            _collect_definition(name, own, space, imports, parts)
    elif (literal := _literal(value)) is not None:
        parts[name] = f"{name} = {literal}"
    elif (statement := _import_of(name)) is not None:
        imports[statement] = None
    else:
        raise UsageError(
            f"expected {wanted_by} to use modules, imported names, numbers, texts and its own classes and functions, "
            f"found {name!r}, a {type(value).__name__}: compute it inside the class"
        )


def _collect_definition(
    name: str, own: str, space: Mapping[str, object], imports: dict[str, None], parts: dict[str, str]
) -> None:
    """Add `name`, a class or function that calls itself `own`, after everything it uses."""
    text = _definition(own)
    parts[name] = ""  # holds the place, so that a class may name itself
    for used in _names(text):
        if used == name or hasattr(builtins, used):
            continue
        if used not in space:
            raise UsageError(
                f"expected every name that {name} uses to be defined in this notebook, found {used!r}: "
                "run the cell that defines or imports it"
            )
        _collect(used, space, imports, parts, name)
    del parts[name]  # to the end, after what it uses
    parts[name] = text


def _literal(value: object) -> str | None:
    """Source that is `value` in an empty module; None for other types than the listed ones, subclasses included."""
    if type(value) not in _LITERALS:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if not isinstance(value, (tuple, frozenset)):
        return repr(value)
    items = [_literal(item) for item in value]
    if None in items:
        return None
    inside = "".join(f"{item}, " for item in items)
    return f"({inside})" if isinstance(value, tuple) else f"frozenset(({inside}))"


def _definition(name: str) -> str:
    """Source of the latest top-level definition of `name`."""
    for text in _texts():
        try:
            tree = ast.parse(text)
        except SyntaxError:  # a cell that was refused
            continue
        for node in reversed(tree.body):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
                # register itself must not run again in the other process
                node.decorator_list = [d for d in node.decorator_list if not ast.unparse(d).endswith("register")]
                return ast.unparse(node)
    raise UsageError(
        f"expected the source of {name}, found it in no cell: define it with `class` or `def` in a cell of its own"
    )


def _import_of(name: str) -> str | None:
    """The latest top-level `from ... import ...` of `name`, alone in its statement."""
    for text in _texts():
        try:
            body = ast.parse(text).body
        except SyntaxError:
            continue
        for node in reversed(body):
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                if (alias.asname or alias.name) == name and not node.level:
                    return ast.unparse(ast.ImportFrom(node.module, [alias], 0))
    return None


def _texts() -> Iterator[str]:
    """Cells from the latest, or the script that runs."""
    main = sys.modules[_MAIN]
    cells = getattr(main, "In", None)
    if cells:
        yield from reversed(list(cells))
    elif getattr(main, "__file__", None):
        yield Path(main.__file__).read_text(encoding="utf-8")


def _names(definition: str) -> list[str]:
    """Names outside of a definition that it reads: a local name of one function may be a global one of another."""
    found: dict[str, None] = {}
    tables = [symtable.symtable(definition, "<cell>", "exec")]
    while tables:
        table = tables.pop(0)
        tables += table.get_children()
        found.update((s.get_name(), None) for s in table.get_symbols() if s.is_global() and s.is_referenced())
    return list(found)


def _directory() -> Path:
    """Where the modules are; on the path, which the measurement process inherits."""
    global _folder
    if _folder is None:
        _folder = Path(tempfile.mkdtemp(prefix="halo-tvm-cells-"))
        sys.path.append(str(_folder))
        atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    return _folder
