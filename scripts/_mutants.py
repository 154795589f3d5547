"""Small faults for `mutation_check.py`: one operator, bound or message each, and the tests that should notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`before`, which stands once in `file` (below halo_tvm/), becomes `after`; `tests` are pytest's arguments."""

    file: str
    before: str
    after: str
    tests: str


_LIFTS = "tests/passes/test_rewrites.py tests/importers/test_lifts_compare.py"
_ATTENTION = "tests/tir_schedules/test_flash_attention.py -k 'packed_symbolic or key_mask or all_features'"
_FAMILIES = "importers/torch_export/families"
_SLICES = "tests/importers/test_torch_export.py -k 'slices or counted'"
_COMPUTE = "tests/importers/test_torch_export.py -k test_operators_compute"
_LAYOUT = "tests/integrations/test_torch.py -k layout"
_DEVICE = "tests/integrations/test_torch.py -k devices"
_CONFINED = "tests/test_confinement.py"
_SESSION = "tests/runtime/test_session.py tests/runtime/test_inputs.py"

MUTANTS = (
    # what is lifted, joined and refused
    Mutant(
        "relay_ops/_rotary_lift.py", "first == (0, d // 2, 1)", "first == (0, d, 1)", "tests/relay_ops/test_rotary.py"
    ),
    Mutant("relay_ops/_rotary_lift.py", "not in (-1, x.ty.ndim):", "not in (-1, x.ty.ndim - 1, x.ty.ndim):", _LIFTS),
    Mutant("relay_ops/_ffn_lift.py", "return known and same_dimension", "return known or same_dimension", _LIFTS),
    Mutant(
        "relay_ops/kv_append.py",
        "<= at and at < {capacity}",
        "<= at and at <= {capacity}",
        "tests/relay_ops/test_kv_append.py",
    ),
    Mutant("relay_ops/kv_append.py", 'if str(lengths.dtype) != "int32" or', "if", "tests/relay_ops/test_kv_append.py"),
    Mutant("passes/fuse_projections.py", "if not in_order or not same_rows", "if not same_rows", _LIFTS),
    Mutant(
        "passes/hoist_weights.py",
        "min(max(int(i), 0)",
        "min(max(int(i), 1)",
        "tests/passes/test_rewrites.py -k constant",
    ),
    Mutant("passes/prune_heads.py", "0 <= self.threshold", "0 < self.threshold", "tests/passes/test_prune_heads.py"),
    Mutant("passes/prune_heads.py", "if len(users) != 1:", "if len(users) < 1:", "tests/passes/test_prune_heads.py"),
    Mutant(
        "passes/check_caches.py",
        "and gvar.name_hint != ",
        "and gvar.name_hint == ",
        "tests/relay_ops/test_kv_append.py",
    ),
    Mutant(
        "passes/_schemes.py",
        "if k % GROUP or k > DEEPEST",
        "if k % GROUP",
        "tests/passes/test_quantise.py -k 'stays or refused'",
    ),
    Mutant(
        "passes/pack_weights.py",
        "-(-n // nr)",
        "n // nr",
        "tests/passes/test_pack_weights.py",
    ),
    Mutant(
        "tir_schedules/rows/row_reduction.py",
        "1 < (constant(rows.depth) or 0) <= _FEW",
        "1 < (constant(rows.depth) or 0) < _FEW",
        "tests/tir_schedules/test_row_reduction.py -k short_rows",
    ),
    Mutant(
        "tir_schedules/injective/_tiles.py",
        "<= _NEAR for x in moving",
        "< _NEAR for x in moving",
        "tests/tir_schedules/test_elementwise.py -k pixels",
    ),
    Mutant(
        "loads_in_order.py", "distance - least - starts[vector]", "distance - least", "tests/test_loads_in_order.py"
    ),
    # what torch programs mean
    Mutant(
        f"{_FAMILIES}/shapes.py",
        "min(max(index + int(length) if index < 0 else index, 0), int(length))",
        "index",
        _SLICES,
    ),
    Mutant(
        f"{_FAMILIES}/shapes.py", "tirx.max(tirx.Select(index < zero, index + length, index), zero)", "index", _SLICES
    ),
    Mutant(f"{_FAMILIES}/shapes.py", "x[tuple(place(start + j * step) if", "x[tuple(place(start + j) if", _SLICES),
    Mutant(f"{_FAMILIES}/indexing.py", 'step = 1 if one else int(c["step"])', "step = 1", _SLICES),
    Mutant(
        f"{_FAMILIES}/reductions.py",
        '"max.default")(_reduced(relax.op.max))',
        '"max.default")(_reduced(relax.op.min))',
        _COMPUTE,
    ),
    Mutant(
        f"{_FAMILIES}/reductions.py",
        '"min.default")(_reduced(relax.op.min))',
        '"min.default")(_reduced(relax.op.max))',
        _COMPUTE,
    ),
    Mutant(f"{_FAMILIES}/reductions.py", "relax.op.max if order > 0", "relax.op.min if order > 0", _COMPUTE),
    Mutant(
        "relay_ops/operator.py",
        'tirx.max(tirx.min(index, last), tirx.const(0, "int64"))',
        "index",
        "tests/relay_ops tests/test_operators.py -k 'embedding or clamp or rotary'",
    ),
    # torch.compile
    Mutant(
        "any_address.py",
        "scope.body if scope.attr_key == _PROMISE else scope",
        "scope",
        "tests/test_argument_checks.py -k wherever",
    ),
    Mutant("integrations/torch/program.py", ".contiguous()", "", _LAYOUT),
    Mutant(
        "integrations/torch/backend.py",
        "return (arg.shape, arg.dtype, arg.device)",
        "return (arg.shape, arg.device)",
        _DEVICE,
    ),
    Mutant("integrations/torch/backend.py", 'if tensor.device.type != "cpu":', "if False:", _DEVICE),
    # random and complex numbers
    Mutant(
        "importers/meaning/random.py",
        "high << _u32(16) | _u32(place)",
        "high << _u32(16)",
        "tests/importers/test_random.py -k onnx",
    ),
    Mutant(
        "importers/meaning/random.py",
        "*_halves(state[1])",
        "*_halves(state[0])",
        "tests/importers/test_random.py -k onnx",
    ),
    Mutant(
        "importers/torch_export/families/complex.py",
        "c.emit(relax.op.negative(y)))",
        "y)",
        "tests/importers/test_torch_complex.py -k transforms",
    ),
    # confinement
    Mutant("confinement.py", "(truncate if abi >= 3 else 0)", "0", _CONFINED),
    Mutant("confinement.py", "(equal, 1, 0, pid)", "(equal, 1, 1, pid)", _CONFINED),
    *(
        Mutant("confinement.py", f'    "{call}": ', f'    # "{call}": ', _CONFINED)
        for call in ("rt_sigqueueinfo", "bpf", "userfaultfd")
    ),
    # memory
    Mutant(
        "memory_plan.py",
        "*(roots.get(var, frozenset()) for var in relax.analysis.free_vars(source))",
        "*(roots.get(var, frozenset()) for var in list(relax.analysis.free_vars(source))[:1])",
        "tests/test_memory_plan.py",
    ),
    Mutant("memory_plan.py", "a.first <= b.last and", "a.first < b.last and", "tests/test_memory_plan.py"),
    Mutant(
        "memory_plan.py", "if tensor.storage == len(storages):", "if tensor.storage >= 0:", "tests/test_memory_plan.py"
    ),
    # kernels
    Mutant(
        "tir_schedules/attention/_softmax.py",
        "{columns} < {v.all('upper')}",
        "{columns} <= {v.all('upper')}",
        _ATTENTION,
    ),
    Mutant(
        "tir_schedules/attention/_softmax.py",
        'f"{peaks} = peak[0]", f"total[0] = {totals} * fade[0]"',
        'f"{peaks} = peak[0]", f"total[0] = {totals}"',
        _ATTENTION,
    ),
    Mutant(
        "tir_schedules/attention/_softmax.py",
        "T.max(peak[0], value[0])",
        "T.min(peak[0], value[0])",
        _ATTENTION,
    ),
    Mutant(
        "tir_schedules/products/gemm/tile.py",
        "== 0 else begin + k",
        "== 0 else begin",
        "tests/tir_schedules/test_gemm_groups.py",  # each group's sums begin behind those of the one before
    ),
    Mutant(
        "tir_schedules/rows/stages.py",
        "if operation in (tirx.Add, tirx.Mul) else init",
        "if operation in (tirx.Mul,) else init",
        "tests/tir_schedules/test_row_reduction.py -k own_number",
    ),
    Mutant(
        "tir_schedules/products/recurrence.py",
        "if constant(left) != 0:",
        "if False:",
        "tests/relay_ops/test_recurrent.py -k test_layer_equals",
    ),
    Mutant(
        "tir_schedules/products/gemv.py",
        "if d.warps % d.split:",
        "if False:",
        "tests/tir_schedules/test_gemv.py -k 'refuses or declines'",
    ),
    # the session
    Mutant("runtime/inputs.py", "if len(args) > len(names):", "if len(args) > len(names) + 1:", _SESSION),
    Mutant("runtime/inputs.py", "if array.dtype != dtype:", "if False:", _SESSION),
    Mutant(
        "runtime/validation.py",
        "(np.isnan(a) & np.isnan(b))",
        "(np.isnan(a) | np.isnan(b))",
        "tests/runtime/test_validation.py",
    ),
    Mutant(
        "runtime/validation.py",
        "if not factor > 0:",
        "if not factor >= 0:",
        "tests/runtime/test_validation.py",
    ),
    # files and records
    Mutant(
        "artifact/params_file.py", "if data + position != size:", "if data + position > size:", "tests/test_artifact.py"
    ),
    Mutant("artifact/params_file.py", "if entry.offset % ALIGNMENT:", "if False:", "tests/test_artifact.py"),
    Mutant(
        "codec.py",
        "type(value) is type(one) and value == one",
        "value == one",
        "tests/test_codec.py",
    ),
    Mutant("processes.py", "if left() > 0:", "if False:", "tests/test_processes.py"),
)
