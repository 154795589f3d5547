"""Products of pairs of bfloat16, added up in float32: vdpbf16ps.

TVM turns every bfloat16 it computes with into float32, and its LLVM code generator has no vectors of them. So
what has such operands is a function of LLVM text that takes words of two values, imported by the code that
calls it and always inlined. The instruction rounds to nearest even and takes subnormal numbers for zero.
"""

from __future__ import annotations

LANES = 16  # float32 sums, and words of two bfloat16
LATENCY = 6  # cycles, of which one starts in each
NAME = "halo_dot_pairs"
JOIN = "halo_join_pairs"  # (low, high) -> words: lane by lane, rounded to nearest even
# Where code calls it, an attribute of this key holds TEXT.
PRAGMA = "pragma_import_llvm"
TEXT = f"""
define internal <16 x float> @{NAME}(<16 x float> %sum, <16 x i32> %x, <16 x i32> %y) alwaysinline nounwind {{
  %a = bitcast <16 x i32> %x to <32 x bfloat>
  %b = bitcast <16 x i32> %y to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %sum, <32 x bfloat> %a, <32 x bfloat> %b)
  ret <16 x float> %r
}}
define internal <16 x i32> @{JOIN}(<16 x float> %low, <16 x float> %high) alwaysinline nounwind {{
  %a = fptrunc <16 x float> %low to <16 x bfloat>
  %b = fptrunc <16 x float> %high to <16 x bfloat>
  %c = bitcast <16 x bfloat> %a to <16 x i16>
  %d = bitcast <16 x bfloat> %b to <16 x i16>
  %e = zext <16 x i16> %c to <16 x i32>
  %f = zext <16 x i16> %d to <16 x i32>
  %g = shl <16 x i32> %f, splat (i32 16)
  %h = or <16 x i32> %e, %g
  ret <16 x i32> %h
}}
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
"""
