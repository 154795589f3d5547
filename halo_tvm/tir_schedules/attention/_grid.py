"""What the attention rules for GPUs share beside the softmax: what they serve, how their kernels are launched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from ._text import Source, i64

DTYPES = ("float16", "bfloat16", "float32")


@contextmanager
def launched(src: Source, name: str, parts: Mapping[str, object], **threads: int) -> Iterator[None]:
    """A kernel: a block of `threads` (the last of them neighbours) for each combination of `parts`.

    A part's number is defined under its name: int32 where its count is a number, int64 where that is text, an int64
    expression. All parts share blockIdx.x, because the other axes of a grid end at 65,535, and the last varies fastest.
    """
    total = " * ".join(map(i64, parts.values()))
    with ExitStack() as under:
        tags = ["blockIdx.x", *(f"threadIdx.{axis}" for axis in "zyx"[-len(threads) :])]
        for var, tag, extent in zip((f"{name}_block", *threads), tags, (total, *threads.values())):
            under.enter_context(src.under(f'for {var} in T.thread_binding({extent}, thread="{tag}"):'))
        under.enter_context(src.block(name))
        src.let(f"{name}_rest0", f"{name}_block", "int32")
        for level, (part, count) in enumerate(reversed(parts.items())):
            rest, of = f"{name}_rest{level}", f'T.cast({i64(count)}, "int32")'
            is_last = level == len(parts) - 1
            number, dtype = rest if is_last else f"{rest} % {of}", "int32" if isinstance(count, int) else "int64"
            src.let(part, f'T.cast({number}, "{dtype}")', dtype)
            if not is_last:
                src.let(f"{name}_rest{level + 1}", f"{rest} // {of}", "int32")
        yield
