"""Pictures of what `explore` returns. Each takes matplotlib axes to draw on, or makes them, and returns them.

Shades differ in brightness and bars in hatching, so that a picture says the same in grey.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import MissingPackage, UsageError
from ._estimates import Estimates
from ._fusion import Fusion
from ._landscape import Band
from ._measuring import Measurements
from ._roofline import Roofline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DARK, MIDDLE, LIGHT = "#1f3b57", "#d0802f", "#b9c4cc"
_MARKERS = "osD^vP*Xhd<>"
_WIDE = 4  # times the smallest value: beyond it an axis is logarithmic
_LONG = 56  # letters of a kernel's name


def effects(measurements: Measurements, ax: Axes | None = None) -> Axes:
    """Speed-ups over the default as bars from 1, with their 95 % intervals."""
    rows = list(measurements.timed[1:])
    ax = ax or _axes(7.0, 1.0 + 0.34 * max(len(rows), 2))
    at = range(len(rows))
    gains = [row.speedup - 1 for row in rows]
    errors = [[row.speedup - row.low for row in rows], [row.high - row.speedup for row in rows]]
    colours = [DARK if gain >= 0 else LIGHT for gain in gains]
    ax.barh(
        at,
        gains,
        left=1.0,
        color=colours,
        edgecolor=DARK,
        height=0.62,
        xerr=errors,
        error_kw={"ecolor": "black", "elinewidth": 1, "capsize": 3},
    )
    # Wide intervals of a busy machine run out of the picture: the bars are what it shows.
    middle = [1.0, *(row.speedup for row in rows)]
    lowest, highest = (min([1.0, *(row.low for row in rows)]), max([1.0, *(row.high for row in rows)]))
    ax.set_xlim(max(lowest, 0.5 * min(middle)) - 0.02, min(highest, 2 * max(middle)) + 0.02)
    ax.axvline(1.0, color="black", linewidth=1)
    ax.set_yticks(at, [row.label for row in rows])
    ax.invert_yaxis()
    ax.set_xlabel("speed-up over the default (1 = equally fast; bars: 95 % interval)")
    return ax


def predicted_against_measured(estimates: Estimates, measurements: Measurements, ax: Axes | None = None) -> Axes:
    """One point per decision: microseconds predicted and of its fastest round, geometric means over the sizes."""
    ax = ax or _axes(5.4, 4.4)
    rows = measurements.timed
    x = [estimates.of(row.decision).score for row in rows]
    weights = [size.weight for size in measurements.task.tuning.sizes]
    y = [math.exp(sum(w * math.log(us) for w, us in zip(weights, row.fastest)) / sum(weights)) for row in rows]
    ax.scatter(x[1:], y[1:], s=26, color=LIGHT, edgecolor=DARK, label="decision")
    ax.scatter(x[:1], y[:1], s=90, color=MIDDLE, edgecolor="black", marker="*", label="default", zorder=3)
    if max(y) > _WIDE * min(y):
        ax.set_yscale("log")
    ax.set_xlabel("predicted time (us)")
    ax.set_ylabel("measured, fastest round (us)")
    ax.legend(frameon=False)
    return ax


def best_so_far(curves: dict[str, Sequence[float]], band: Band | None = None, ax: Axes | None = None) -> Axes:
    """The best speed-up after each trial, one line per order, over the band of random orders."""
    ax = ax or _axes(6.4, 4.0)
    if band is not None:
        trials = range(1, len(band.mean) + 1)
        ax.fill_between(trials, band.low, band.high, color=LIGHT, alpha=0.7, label="random, 10 to 90 % of orders")
        ax.plot(trials, band.mean, color="black", linestyle="--", label="random, mean")
    for (label, curve), colour, style in zip(curves.items(), (DARK, MIDDLE), ("-", "-.")):
        ax.step(range(1, len(curve) + 1), curve, where="post", color=colour, linestyle=style, linewidth=2, label=label)
    ax.set_xlabel("trials (decisions measured)")
    ax.set_ylabel("best speed-up so far over the default")
    ax.legend(frameon=False, loc="lower right")
    return ax


def heat_map(measurements: Measurements, x: str, y: str, ax: Axes | None = None) -> Axes:
    """Speed-ups of the fastest rounds over two fields of the decision, the others as in the default.

    A cell is empty where nothing was timed.
    """
    import numpy as np

    task = measurements.task
    cells: dict[tuple[object, object], float] = {}
    for row in measurements:
        changed = {name for name in task.fields if getattr(row.decision, name) != getattr(task.default, name)}
        if row.us and changed <= {x, y}:
            cells[getattr(row.decision, x), getattr(row.decision, y)] = row.speedup_by_fastest
    xs, ys = sorted({a for a, _ in cells}), sorted({b for _, b in cells})
    ax = ax or _axes(1.9 + 0.85 * len(xs), 1.6 + 0.55 * len(ys))
    values = np.array([[cells.get((a, b), np.nan) for a in xs] for b in ys])
    image = ax.imshow(values, cmap="cividis", aspect="auto", origin="lower")
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for i, j in np.ndindex(values.shape):
        if not np.isnan(values[i, j]):
            is_default = (xs[j], ys[i]) == (getattr(task.default, x), getattr(task.default, y))
            ax.text(
                j,
                i,
                f"{values[i, j]:.2f}" + ("\ndefault" if is_default else ""),
                ha="center",
                va="center",
                fontsize=9,
                color="black" if values[i, j] > middle else "white",
            )
    ax.set_xticks(range(len(xs)), xs)
    ax.set_yticks(range(len(ys)), ys)
    ax.set_xlabel(f"{x} of the decision")
    ax.set_ylabel(f"{y} of the decision")
    ax.figure.colorbar(image, ax=ax, label="speed-up over the default")
    return ax


def roofline(found: Roofline, ax: Axes | None = None) -> Axes:
    """Kernels by intensity and throughput, both logarithmic, under the host's ceilings."""
    ax = ax or _axes(11.6, 5.0)
    c = found.ceilings
    intensities = [p.intensity for p in found.points]
    left, right = min(intensities) / 3, max(max(intensities) * 3, 2 * c.gflops / c.dram_gbps)
    roofs = (("memory", c.dram_gbps, "-"), ("L3", c.l3_gbps, "--"), ("L2", c.l2_gbps, ":"))
    for label, gbps, style in roofs:
        ridge = min(max(c.gflops / gbps, left), right)
        ax.plot(
            [left, ridge],
            [c.gflops_at(left, gbps), c.gflops_at(ridge, gbps)],
            style,
            color="black",
            linewidth=1.4,
            label=f"{label}: {gbps:.0f} GB/s",
        )
    ridge = max(left, c.gflops / max(gbps for _, gbps, _ in roofs))
    ax.plot(
        [ridge, right], [c.gflops] * 2, color="black", linewidth=2.6, label=f"multiply-add peak: {c.gflops:.0f} GFLOP/s"
    )
    for i, point in enumerate(found.points):
        ax.scatter(
            [point.intensity],
            [point.gflops],
            s=64,
            marker=_MARKERS[i % len(_MARKERS)],
            zorder=3,
            color=(DARK, MIDDLE, LIGHT)[i % 3],
            edgecolor="black",
            label=_short(point.task.name),
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("arithmetic intensity (floating-point operations per byte of compulsory traffic)")
    ax.set_ylabel("throughput (GFLOP/s)")
    ax.grid(True, which="major", color=LIGHT, linewidth=0.5)
    ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax


def traffic(fusion: Fusion, ax: Axes | None = None) -> Axes:
    """Bytes of each fused group before and after, per inference."""
    groups = fusion.taken
    if not groups:
        raise UsageError(f"expected a model in which something was fused, found none in {fusion.model}")
    ax = ax or _axes(8.0, 1.2 + 0.75 * len(groups))
    for offset, label, colour, hatch in ((-0.19, "apart", LIGHT, "//"), (0.19, "fused", DARK, "")):
        values = [g.count * (g.bytes_apart if label == "apart" else g.bytes_fused) / 1e6 for g in groups]
        ax.barh(
            [i + offset for i in range(len(groups))],
            values,
            height=0.36,
            color=colour,
            edgecolor="black",
            hatch=hatch,
            label=label,
        )
    widest = max(g.count * g.bytes_apart for g in groups) / 1e6
    for i, g in enumerate(groups):
        ax.text(
            max(g.count * g.bytes_apart, 0) / 1e6 + 0.01 * widest,
            i,
            f"saves {g.saved_bytes / 1e6:.1f} MB",
            va="center",
            fontsize=9,
        )
    ax.set_xlim(0, widest * 1.28)
    ax.set_yticks(range(len(groups)), [f"{' + '.join(g.parts)}  ({g.count} x)" for g in groups])
    ax.invert_yaxis()
    ax.set_xlabel("memory traffic per inference (MB read and written)")
    ax.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0.0, 1.0))
    return ax


def fusion_graph(fusion: Fusion, ax: Axes | None = None) -> Axes:
    """The kernels of a model from top to bottom, the functions fused in each, arrows from result to reader."""
    kernels = fusion.kernels
    ax = ax or _axes(8.6, 0.9 + 0.62 * len(kernels))
    part_width, height, left = 1.55, 0.56, 0.0
    for i, kernel in enumerate(kernels):
        width = part_width * len(kernel.parts)
        ax.add_patch(_rectangle(left, -i - height / 2, width, height, fill=LIGHT if len(kernel.parts) > 1 else "white"))
        for j, part in enumerate(kernel.parts):
            ax.text(left + part_width * (j + 0.5), -i, part, ha="center", va="center", fontsize=9)
            if j:
                x = left + part_width * j
                ax.plot([x, x], [-i - height / 2, -i + height / 2], color="black", linewidth=0.8, linestyle=":")
        if kernel.saved_bytes:
            ax.text(left + width + 0.15, -i, f"saves {kernel.saved_bytes / 1e6:.2f} MB", va="center", fontsize=9)
        for source in kernel.reads:
            near = source == i - 1
            # Results that skip kernels, the residual stream, go round on the left.
            start = (left + 0.75, -source - height / 2) if near else (left, -source)
            end = (left + 0.75, -i + height / 2) if near else (left, -i)
            bend = "arc3" if near else f"arc3,rad={min(0.55, 0.25 + 0.05 * (i - source))}"
            ax.annotate(
                "",
                xy=end,
                xytext=start,
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": "black" if near else MIDDLE,
                    "connectionstyle": bend,
                    "linewidth": 1.1,
                    "linestyle": "-" if near else "--",
                    "shrinkA": 0,
                    "shrinkB": 0,
                },
            )
    widest = part_width * max(len(k.parts) for k in kernels)
    ax.set_xlim(-1.5, widest + 1.7)
    ax.set_ylim(-len(kernels) + 0.4, 0.6)
    ax.set_axis_off()
    return ax


def _rectangle(x: float, y: float, width: float, height: float, *, fill: str) -> object:
    _pyplot()
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, facecolor=fill, edgecolor="black", linewidth=1.1)


def _axes(width: float, height: float) -> Axes:
    _, ax = _pyplot().subplots(figsize=(width, height), layout="constrained")
    return ax


def _pyplot() -> object:
    try:
        import matplotlib.pyplot as pyplot
    except ImportError as error:
        raise MissingPackage("matplotlib", "a picture", "pip install 'halo_tvm[notebooks]'") from error
    return pyplot


def _short(name: str) -> str:
    """A kernel's name without dtype and options."""
    text = re.sub(r" (f32|\([^)]*\))", "", name)
    return text if len(text) <= _LONG else text[: _LONG - 3] + "..."
