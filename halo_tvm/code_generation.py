"""From scheduled functions to machine code: TVM's lowering and LLVM's optimiser, in pieces that threads take.

Both run outside of Python's lock, and take longer than all other phases together. A module is cut into pieces by its
functions alone, so that its code does not depend on how many threads there were.

Before -> after, for a CPU
    main + f1 .. f40      ->    main + f1, f9 ..    one module, with the machine's own code
                                f2, f10 ..          an object file each
                                ...
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import tvm
from tvm import ir, relax, tirx

from . import any_address, argument_checks, exact_constants
from .errors import UnsupportedModel
from .known_sizes import with_known_sizes
from .source_names import source_names
from .targets import Target, usable_cpus
from .tir_schedules import has_exact_buffers

# Row tiles of the GEMM rule are cut into full and partial ones here; see docs/kernels/gemm.md.
BUILD_OPTIONS: dict[str, object] = {"s_tir.LoopPartition": {"partition_const_loop": True}}
# Loads that a schedule marks as asynchronous go from global to shared memory without registers between.
_GPU_OPTIONS: dict[str, object] = {**BUILD_OPTIONS, "tirx.use_async_copy": True}
# Derives, for each access of each buffer, which part of it is used: half of the time of all lowering.
_COMPACTION = "s_tir.CompactBufferAllocation"
# What LLVM does itself, and what only schedules of GPUs ask for: a seventh of all lowering, for the same machine code.
_NOT_ON_CPUS = ("tirx.RemoveNoOp", "s_tir.InjectPermutedLayout", "s_tir.InjectVirtualThread")
_NARROW = ("float16", "bfloat16")
_TOO_LATE = "has been used before definition"
_FUNCTIONS_A_PIECE, _MOST_PIECES = 4, 16
Code = TypeVar("Code")


def build_options(target: Target) -> dict[str, object]:
    """The configuration of TVM's passes with which functions for `target` become code."""
    return _GPU_OPTIONS if target.spec.gpu else BUILD_OPTIONS


@contextmanager
def generating(
    target: Target,
    functions: Sequence[tirx.PrimFunc] = (),
    instruments: Sequence[object] = (),
    more_options: dict[str, object] | None = None,
    shrinks: bool = True,
) -> Iterator[None]:
    """Where TVM lowers `functions` for `target`, with our options; a check of its own that fails: `UnsupportedModel`.

    Buffers are not made smaller without `shrinks`, nor where all of `functions` say that theirs are as large as they
    need to be.
    """
    options = {**build_options(target), **(more_options or {})}
    needless = [] if target.spec.gpu else list(_NOT_ON_CPUS)
    if not shrinks or needless and functions and all(map(has_exact_buffers, functions)):
        needless.append(_COMPACTION)
    context = tvm.transform.PassContext(
        opt_level=3, config=options, instruments=list(instruments), disabled_pass=needless
    )
    try:
        with target.tvm, context:
            yield
    except tvm.error.InternalError as reason:  # a failed check of TVM, as for some mixtures of 16-bit and wider lanes
        line = str(reason).strip().splitlines()[-1][:200]
        wider = not functions or any(map(_is_narrow, functions))
        raise UnsupportedModel(
            f"expected functions that code can be generated of, found one that TVM gives up on ({line}): "
            + ("compile the model in float32" if wider else "export it at fixed sizes, or report this model")
        ) from reason


def _is_narrow(func: tirx.PrimFunc) -> bool:
    """Whether it takes or gives floats of 16 bits."""
    return any(str(getattr(param.ty, "dtype", "")) in _NARROW for param in func.params)


def compiled(mod: tvm.IRModule, target: Target, instruments: Sequence[object] = ()) -> tvm.runtime.Executable:
    """Code for the functions of `mod`, not linked yet; `UnsupportedModel` for what TVM cannot generate code of.

    Anybody may call them, with anything: they keep all of TVM's checks.
    """
    if not target.spec.gpu:
        mod = tvm.IRModule({gvar: with_known_sizes(func) for gvar, func in mod.functions_items()})
    if target.spec.is_source:
        mod = source_names(mod)
    passes = _with_all_checks(target)
    return _generated(
        lambda: tvm.compile(mod, target=target.tvm, tir_pipeline=passes), target, _functions(mod), instruments
    )


def objects_of(lowered: tvm.IRModule, target: Target, directory: Path) -> tuple[relax.VMExecutable, list[Path]]:
    """Code for `lowered`, which went through `build.lowering`: an executable, and files to link with it.

    Of source code there is one piece: two would define the same symbols.
    """
    first, others = (lowered, []) if target.spec.is_source else pieces(lowered)
    paths = [directory / f"piece{i}.o" for i in range(1, len(others) + 1)]
    with _threads(target) as pool:
        executable = pool.submit(_with_machine, first, target)
        list(pool.map(partial(_write, target=target), others, paths))  # an error of theirs is raised here
        return executable.result(), paths


def pieces(mod: tvm.IRModule) -> tuple[tvm.IRModule, list[tvm.IRModule]]:
    """`mod` with the functions of its first piece only, and the other pieces.

    Functions with buffers to shrink are in pieces of their own. Neighbours in `mod` are of one kind and cost alike, so
    each piece gets one of them in turn.
    """
    ours = [gvar for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]
    cut: list[list[ir.GlobalVar]] = []
    for exact in (False, True):
        alike = [gvar for gvar in ours if has_exact_buffers(mod[gvar]) is exact]
        count = min(_MOST_PIECES, len(alike) // _FUNCTIONS_A_PIECE) or min(1, len(alike))
        cut += [alike[i::count] for i in range(count)]
    first, others = mod.clone(), cut[1:]
    for gvar in itertools.chain(*others):
        del first[gvar]
    return first, [tvm.IRModule({gvar: mod[gvar] for gvar in piece}) for piece in others]


def _threads(target: Target) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, min(target.cores, len(usable_cpus()))))


def _write(piece: tvm.IRModule, path: Path, target: Target) -> None:
    code = _generated(
        lambda: tirx.build(piece, target=target.tvm, pipeline=_pipeline(target)), target, _functions(piece)
    )
    code.write_to_file(str(path))


def _with_machine(mod: tvm.IRModule, target: Target) -> relax.VMExecutable:
    return _generated(
        lambda: relax.build(mod, target=target.tvm, relax_pipeline=None, tir_pipeline=_pipeline(target)),
        target,
        _functions(mod),
    )


def _pipeline(target: Target) -> str:
    """TVM's passes over functions; without most checks of arguments where the library checks them when it is called."""
    return argument_checks.PIPELINE if target.spec.own_launcher else _with_all_checks(target)


def _with_all_checks(target: Target) -> str:
    if target.spec.gpu:
        return "default"
    return exact_constants.PIPELINE if target.spec.rounds_constants else any_address.PIPELINE


def _generated(
    build: Callable[[], Code], target: Target, functions: Sequence[tirx.PrimFunc], instruments: Sequence[object] = ()
) -> Code:
    """What `build` makes of `functions`: as usual, or without what goes wrong for some of them.

    TVM counts an expression from its first place outside of a `Let`, and replaces it within as well: a statement in
    front that has it within a `Let` then reads a variable that is not there yet, which TVM finds out behind the pass.
    A buffer that is read at remainders (a mirrored border) it makes as large as a loop's variable says, which is not
    there yet, either.
    """
    try:
        with generating(target, functions, instruments):
            return build()
    except UnsupportedModel as error:
        if _TOO_LATE not in str(error.__cause__):
            raise
    with generating(target, functions, instruments, {"tirx.disable_cse_tir": True}, shrinks=False):
        return build()


def _functions(mod: tvm.IRModule) -> list[tirx.PrimFunc]:
    return [func for _, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]
