"""Sums over the calls of a profile, and the least time a host's ceilings leave to them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ..ceilings import Peaks, least_us
from .schema import CallTime, KernelTime, ProfileResult, Work


def kernels_of(calls: Sequence[CallTime], rules: Mapping[str, str]) -> tuple[KernelTime, ...]:
    """The calls of each kernel together, slowest first; `rules` by kernel."""
    groups: dict[str, list[CallTime]] = defaultdict(list)
    for call in calls:
        groups[call.kernel].append(call)
    kernels = [
        KernelTime(
            name,
            rules.get(name, ""),
            len(group),
            sum(c.us for c in group),
            group[0].operator,
            total_work(c.work for c in group),
        )
        for name, group in groups.items()
    ]
    return tuple(sorted(kernels, key=lambda kernel: -kernel.total_us))


def total_work(works: Iterable[Work]) -> Work:
    """The sum of several calls' work; what is unknown of one is unknown of all."""
    works = list(works)

    def total(name: str) -> object:
        values = [getattr(work, name) for work in works]
        return None if any(v is None for v in values) else sum(values)

    names = ("flops", "narrow_flops", "integer_ops", "bytes", "weight_bytes", "limit_us")
    bounds = sorted({work.bound for work in works if work.bound})
    return Work(**{name: total(name) for name in names}, bound=" and ".join(bounds))  # type: ignore[arg-type]


def limited(work: Work, peaks: Peaks | None, weights_far: bool) -> Work:
    """The same work with its least time under these ceilings; unknown work, and without ceilings, as it is."""
    counts = (work.flops, work.integer_ops, work.bytes, work.weight_bytes)
    if peaks is None or None in counts:
        return work
    limit, bound = least_us(
        peaks,
        flops=work.flops,
        narrow_flops=work.narrow_flops,
        integer_ops=work.integer_ops,
        weight_bytes=work.weight_bytes,
        other_bytes=work.bytes - work.weight_bytes,
        weights_far=weights_far,
    )
    return dataclasses.replace(work, limit_us=limit, bound=bound)


def held_against(result: ProfileResult, peaks: Peaks, weights_far: bool) -> ProfileResult:
    """The profile under other ceilings than those it was taken with."""
    calls = tuple(dataclasses.replace(c, work=limited(c.work, peaks, weights_far)) for c in result.calls)
    rules = {kernel.kernel: kernel.rule for kernel in result.kernels}
    return dataclasses.replace(result, calls=calls, kernels=kernels_of(calls, rules), peaks=peaks)
