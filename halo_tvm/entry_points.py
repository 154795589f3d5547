"""Several functions of one model in one library: each is lowered alone, as `main` of its own module, then they meet.

Weights that functions pack alike are stored once, because recipes are the same by name; kernels that are equal are
there once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import or_

import tvm

from ._compat import set_type
from .dimensions import itemsize_of
from .errors import UnknownName, UsageError
from .imported import ImportedModel
from .params import ParamTable, Shared
from .passes.fuse import with_calls_of, with_equal_functions_once
from .passes.weights import head_of, names_in, param_names

MAIN = "main"
TOGETHER = "decode_slots"  # one token for each of several sequences
Modules = Mapping[str, tvm.IRModule]  # function -> the module whose main it is


def functions_of(
    model: ImportedModel, chosen: tuple[str, ...], *, gpu: bool, slots: int | None = None, caches: str = "float32"
) -> dict[str, ImportedModel]:
    """The functions to build, by name, main first: those `chosen`, else all that a checkpoint's definition has.

    A built-in model of random weights has main alone, unless others are chosen, and so has one for a `gpu`: functions
    of open sizes beside it would keep its runs from being graphs. The function that decodes several sequences together
    is there with `slots`, which says how many, or when it is chosen. `caches` is the element type of theirs.
    `UnknownName` for one there is not.
    """
    known = [MAIN, *model.entries]
    for name in chosen:
        if name not in known:
            raise UnknownName("function", name, known)
    if slots is not None:
        if TOGETHER not in known:
            raise UsageError(
                f"expected a model with the function {TOGETHER} beside --slots, found {', '.join(known)}: leave it out"
            )
    main = replace(model, entries={})
    if slots is None and not chosen and (gpu or model.source.get("kind") == "builtin"):
        return {MAIN: main}
    usual = chosen or [name for name in known if name != TOGETHER]
    wanted = {*usual, *([TOGETHER] if slots is not None else [])} - {MAIN}
    made = {MAIN: main, **{name: entry(caches) for name, entry in model.entries.items() if name in wanted}}
    if slots is not None:
        together = made[TOGETHER]
        most = together.ranges["slots"][1]
        if not 1 <= slots <= most:
            raise UsageError(f"expected --slots from 1 to {most}, found {slots}: choose one of these")
        made[TOGETHER] = replace(together, ranges={**together.ranges, "slots": (1, slots)})
    if len(made) == 1:
        return made
    appends = any(function.source.get("state") for name, function in made.items() if name != MAIN)
    names = reduce(or_, (names_in(function.mod[MAIN], function.params) for function in made.values()))
    shared = Shared(appends, head_of(main.mod[MAIN]), names)
    return {name: replace(function, shared=shared) for name, function in made.items()}


def merged(modules: Modules) -> tvm.IRModule:
    """One module in which `main` of each module has that function's name."""
    if list(modules) == [MAIN]:
        return modules[MAIN]
    functions: dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc] = {}
    taken = set(modules)
    renamed: dict[tvm.ir.GlobalVar, tvm.ir.GlobalVar] = {}
    for entry, mod in modules.items():
        for gvar, func in mod.functions_items():
            is_entry = gvar.name_hint == MAIN
            name = entry if is_entry else _free(gvar.name_hint, taken)
            taken.add(name)
            new = tvm.ir.GlobalVar(name)
            set_type(new, gvar.ty)
            renamed[gvar] = new
            functions[new] = func.with_attr("global_symbol", entry) if is_entry else func
    first = modules[MAIN]
    whole = tvm.IRModule(functions, attrs=first.attrs, global_infos=first.global_infos)
    return with_equal_functions_once(with_calls_of(whole, renamed))


def stored_names(modules: Modules) -> list[str]:
    """The weights of all functions, each once, in main's order first."""
    return list(dict.fromkeys(name for name_, mod in modules.items() for name in param_names(mod[MAIN])))


def apart_bytes(modules: Modules, params: ParamTable) -> int:
    """Bytes that are stored beside main's weights for other functions: 0 where they pack theirs alike."""
    own = set(param_names(modules[MAIN][MAIN]))
    return sum(bytes_of(name, params) for name in stored_names(modules) if name not in own)


def bytes_of(name: str, params: ParamTable) -> int:
    return itemsize_of(params.dtype(name)) * math.prod(params.shape(name))


def _free(name: str, taken: set[str]) -> str:
    """`name`, or with a number behind it that makes it new."""
    found, number = name, 0
    while found in taken:
        number += 1
        found = f"{name}_e{number}"
    return found
