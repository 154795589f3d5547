"""From scheduled functions to a library: memory plan, code generation, linking."""

from __future__ import annotations

import hashlib
import math
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.tirx.buffer import BufferType

from . import any_address, argument_checks, exact_constants, launcher, loads_in_order
from ._compat import code_versions, device_source
from .artifact import UNBOUNDED
from .code_generation import build_options, generating, objects_of
from .cuda.launches import DynamicShared
from .cuda.machine_code import export_with_machine_code
from .dimensions import itemsize_of, size_of, tensor_bytes
from .errors import EnvironmentProblem, UnsupportedModel
from .exact_sizes import ExactSizes
from .known_sizes import KnownSizes
from .memory_plan import PlanActivations
from .object_cache import ObjectCache
from .passes.graph_pass import is_part
from .phase_reports import DeviceCode
from .relay_ops.operator import op_name
from .shape_functions import order_shape_functions
from .size_classes import SizeClasses
from .source_names import source_names
from .targets import Target
from .workspaces import keeps_workspace

_BETWEEN_FUNCTIONS = "\n    @"
_MOST_PLANNED = 1 << 32  # bytes of one tensor
CUDA_GRAPH = "relax.backend.use_cuda_graph"


def lowering(plan_memory: bool, cuda_graph: bool = False, *, gpu: bool = False) -> tvm.ir.transform.Pass:
    """Relax with call_tir -> Relax the virtual machine can run.

    The only operator left by now is reshape, which the machine knows as a view. `cuda_graph` needs the memory plan, and
    `CUDA_GRAPH` in the configuration.
    """
    t = relax.transform
    return tvm.transform.Sequential(
        [
            t.ToNonDataflow(),
            t.RemovePurityChecking(),
            t.CallTIRRewrite(),
            *_memory_plan(plan_memory),
            *([t.RewriteCUDAGraph()] if cuda_graph else []),
            t.LowerAllocTensor(),
            *([] if gpu else [SizeClasses()]),
            t.KillAfterLastUse(),
            t.LowerRuntimeBuiltin(),
            t.ComputePrimValue(),
            t.VMShapeLower(),
            order_shape_functions,
            t.AttachGlobalSymbol(),
        ]
    )


def _memory_plan(plan_memory: bool) -> list[tvm.ir.transform.Pass]:
    """Our plan, and TVM's for what it leaves alone."""
    return [PlanActivations(), ExactSizes(), relax.transform.StaticPlanBlockMemory()] if plan_memory else []


def with_bounds(mod: tvm.IRModule, ranges: Mapping[str, tuple[int, int]]) -> tvm.IRModule:
    """`mod` whose main declares the largest size of each bounded symbolic dimension, for the memory plan.

    A plan takes memory for these sizes whatever a run has. Where one tensor would be larger than that is worth (three
    open dimensions of an image, each of which alone has a reasonable bound), memory is taken as runs need it.
    """
    mod = mod.clone()
    upper = {name: high for name, (_, high) in ranges.items() if high < UNBOUNDED}
    if upper and _largest_bytes(mod["main"], upper) <= _MOST_PLANNED:
        bounds = {name: tirx.IntImm("int64", high) for name, high in upper.items()}
        mod["main"] = mod["main"].with_attr("tir_var_upper_bound", bounds)
    return mod


def _largest_bytes(func: relax.Function, sizes: Mapping[str, int]) -> int:
    """Of the tensors that kernels of `func` write; what depends on other sizes counts as if these were 1."""
    found = [0]

    def visit(expr: relax.Expr) -> None:
        if op_name(expr) == "relax.call_tir":
            others = {var.name: 1 for var in relax.analysis.tir_vars_in_type(expr.ty)}
            found.extend(tensor_bytes(expr.ty, {**others, **sizes}))

    relax.analysis.post_order_visit(func, visit)
    return max(found)


def planned_bytes(
    mod: tvm.IRModule, plan_memory: bool, ranges: Mapping[str, tuple[int, int]], typical: Mapping[str, int]
) -> int:
    """Bytes of activations and results of one run at the largest declared sizes, shared or each on its own.

    A dimension that nobody bounded counts with its typical size.
    """
    t = relax.transform
    steps = [t.ToNonDataflow(), t.RemovePurityChecking(), t.CallTIRRewrite()]
    lowered = tvm.transform.Sequential([*steps, *_memory_plan(plan_memory)])(mod)
    highest = {name: typical.get(name, 1) if high >= UNBOUNDED else high for name, (_, high) in ranges.items()}
    total = 0

    def visit(expr: relax.Expr) -> None:
        nonlocal total
        name = op_name(expr)
        if name in ("relax.memory.alloc_storage", "relax.builtin.alloc_tensor"):
            itemsize = 1 if name.endswith("storage") else itemsize_of(expr.ty.dtype)
            total += itemsize * math.prod(size_of(dim, highest) for dim in expr.args[0].values)

    for gvar, func in lowered.functions_items():
        if gvar.name_hint == "main" or is_part(func):
            relax.analysis.post_order_visit(func, visit)
    return total


def can_capture(mod: tvm.IRModule, target: Target) -> bool:
    """Whether runs of scheduled `mod` may be CUDA graphs: on a GPU, of fixed sizes, and no function keeps a workspace.

    A graph keeps addresses, and TVM's pool frees a workspace that is too small for a later call, or whose thread ends.
    """
    shapes = (getattr(param.ty, "shape", None) for param in mod["main"].params)
    sizes = (dim for shape in shapes for dim in getattr(shape, "values", (None,)))
    if not target.spec.gpu or not all(isinstance(dim, tirx.IntImm) for dim in sizes):
        return False
    return not any(isinstance(f, tirx.PrimFunc) and keeps_workspace(f) for _, f in mod.functions_items())


def _lowered(mod: tvm.IRModule, target: Target, plan_memory: bool) -> tvm.IRModule:
    with generating(target):
        checked = argument_checks.check_entries(mod) if target.spec.own_launcher else mod
        return lowering(plan_memory)(KnownSizes()(checked))


def _refuse_types(mod: tvm.IRModule, target: Target) -> None:
    """`UnsupportedModel` for elements of a type that `target` lacks."""
    for gvar, func in mod.functions_items() if target.spec.lacks else ():
        if not isinstance(func, tirx.PrimFunc):
            continue
        types: set[str] = set()
        tvm_ffi.structural_walk(func, lambda node: types.add(str(getattr(getattr(node, "ty", None), "dtype", ""))))
        if lacking := sorted(types & target.spec.lacks):
            raise UnsupportedModel(
                f"expected element types that target {target.name} has code for, found {lacking[0]} in "
                f"{gvar.name_hint}: compile for another target, or the model in float32"
            )


@dataclass(frozen=True)
class BuiltLibrary:
    """What `build_library` says about the library it wrote."""

    device: DeviceCode | None  # what it holds for a GPU
    from_cache: bool = False  # a build of the same module had been kept


def build_library(
    mod: tvm.IRModule,
    target: Target,
    path: Path,
    plan_memory: bool,
    cuda_graph: bool = False,
    cache: ObjectCache | None = None,
) -> BuiltLibrary:
    """Generate code for `mod` and link it into the shared library `path`, or take it from `cache`.

    Code for a GPU is not cached: the tools that assemble it are NVIDIA's, whose versions no key tells.
    """
    _refuse_types(mod, target)
    if target.spec.is_source:
        mod = source_names(mod)
    if target.spec.gpu:
        shared = DynamicShared()
        with device_source(), generating(target, instruments=(shared,), more_options={CUDA_GRAPH: cuda_graph}):
            steps = lowering(plan_memory, cuda_graph, gpu=True)
            executable = relax.build(mod, target=target.tvm, relax_pipeline=steps)
        with _linking(target):
            options = target.export_options()
            return BuiltLibrary(export_with_machine_code(executable, path, target.arch, options, shared.bytes_of))
    lowered = _lowered(mod, target, plan_memory)
    key = _key(lowered, target) if cache else ""
    if cache and cache.fetch(key, path):
        return BuiltLibrary(None, from_cache=True)
    with TemporaryDirectory() as directory:
        executable, objects = objects_of(lowered, target, Path(directory))
        with _linking(target):
            objects += [_compiled(source, target, Path(directory), cache) for source in launcher.sources(target)]
            executable.export_library(str(path), addons=list(map(str, objects)), **target.export_options())
    if cache:
        cache.keep(key, path)
    return BuiltLibrary(None)


def _compiled(source: Path, target: Target, directory: Path, cache: ObjectCache | None) -> Path:
    """The object file of `source`, in `directory`; the same one is in every library for the target."""
    path = directory / f"{source.stem}.o"
    key = _digest(source.read_bytes(), _linker(target))
    if not (cache and cache.fetch(key, path)):
        command = [target.linker or "g++", "-fPIC", "-c", str(source), "-o", str(path)]
        subprocess.run(command, check=True, capture_output=True)
        if cache:
            cache.keep(key, path)
    return path


def _key(lowered: tvm.IRModule, target: Target) -> str:
    """The name of the library of `lowered`: of the module with its constants, and of all that makes code of it.

    Of its text and its structure, as a module's JSON also says which of its equal parts are one object.
    """
    made_by = (
        str(target.tvm),
        sorted(build_options(target).items()),
        code_versions(),
        target.spec.link_options,
        [source.read_bytes() for source in launcher.sources(target)],
        _linker(target),
        [
            Path(passes.__file__).read_bytes()
            for passes in (any_address, argument_checks, exact_constants, loads_in_order)
        ],
    )
    return _digest(made_by, (_text(lowered), tvm_ffi.structural_hash(lowered)))


def _text(lowered: tvm.IRModule) -> str:
    """The module as text, the sizes of each function numbered in the order in which they appear there.

    Of sizes with one name TVM numbers one or the other first, by their addresses, which differ between processes.
    """
    functions = [func for func in lowered.functions.values() if isinstance(func, tirx.PrimFunc)]
    params = [param for func in functions for param in func.params]
    sizes = [size for param in params for size in (param.ty.shape if isinstance(param.ty, BufferType) else [param])]
    names = {str(size.name) for size in sizes if isinstance(size, ir.Var)}
    text = lowered.script(show_meta=True)
    if not names:
        return text
    word = re.compile(rf"\b({'|'.join(map(re.escape, sorted(names)))})(_\d+)?\b")

    def numbered(part: str) -> str:
        found: dict[str, str] = {}
        return word.sub(lambda m: found.setdefault(m[0], f"{m[1]}#{len(found)}"), part)

    return _BETWEEN_FUNCTIONS.join(map(numbered, text.split(_BETWEEN_FUNCTIONS)))


def _linker(target: Target) -> tuple[object, ...]:
    """What tells the C++ compiler of `target` from others; empty where there is none."""
    found = shutil.which(target.linker or "g++")
    status = Path(found).stat() if found else None
    return (found, status.st_size, status.st_mtime_ns) if status else ()


def _digest(made_by: object, of: object) -> str:
    return hashlib.sha256(f"{made_by!r}\n{of}".encode()).hexdigest()


@contextmanager
def _linking(target: Target) -> Iterator[None]:
    """What a linker refuses is an `EnvironmentProblem`."""
    try:
        yield
    except (RuntimeError, ValueError, FileNotFoundError, subprocess.CalledProcessError) as reason:
        raise EnvironmentProblem(
            f"linking for target {target.spec.name} needs a working {target.linker or 'g++'}, but: "
            f"{str(reason).strip().splitlines()[-1]}: "
            "install it (`halo-tvm targets` says which package) and compile again"
        ) from reason
