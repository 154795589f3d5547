"""Addresses of elements that may lie outside of a tensor: of something else instead, so that no loop has to ask."""

from __future__ import annotations

from tvm import ir, tirx

# TVM's expressions have no choice between addresses. Zeros are a constant of LLVM's: of a buffer that is written here
# LLVM is told that nothing else reads it.
_PICK, _CHOOSE = "halo_window_", "halo_window_or"
_ZEROS = """
@halo_zeros_{run} = internal constant [{run} x float] zeroinitializer, align 64
define internal ptr @{name}{run}(i1 %inside, ptr %element) alwaysinline nounwind readnone {{
  %address = select i1 %inside, ptr %element, ptr @halo_zeros_{run}
  ret ptr %address
}}
"""
EITHER_TEXT = f"""
define internal ptr @{_CHOOSE}(i1 %inside, ptr %element, ptr %other) alwaysinline nounwind readnone {{
  %address = select i1 %inside, ptr %element, ptr %other
  ret ptr %address
}}
"""  # what a kernel imports (`pragma_import_llvm`) that has an `either_address`


def zeros_text(run: int) -> str:
    """What a kernel imports whose addresses are of `run` neighbours, or of as many zeros."""
    return _ZEROS.format(name=_PICK, run=run)


def address_or_zeros(run: int, inside: ir.Expr, address: ir.Expr) -> ir.Expr:
    """`address` where `inside`, else that of `run` zeros."""
    return tirx.call_pure_extern(address.ty, f"{_PICK}{run}", inside, address)


def either_address(inside: ir.Expr, address: ir.Expr, other: ir.Expr) -> ir.Expr:
    """`address` where `inside`, else `other`: of what was written in front of the loop over tasks."""
    return tirx.call_pure_extern(address.ty, _CHOOSE, inside, address, other)
