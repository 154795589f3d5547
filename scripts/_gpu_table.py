"""The result of gpu_check.py as Markdown: the device first, then what is wrong, then times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

WORDS = {
    "step": "GPT-2, one token",
    "gemm": "product",
    "flash64": "causal attention, d = 64",
    "flash128": "causal attention, d = 128",
}
PROFILE_ROWS = 10


def name_of(kernel: object) -> str:
    """The name of a timed kernel: "gemm", "flash64"."""
    return f"flash{kernel.d}" if hasattr(kernel, "d") else "gemm"


def markdown(result: Mapping[str, object]) -> str:
    return "\n".join(_lines(result)) + "\n"


def _lines(result: Mapping[str, object]) -> Iterator[str]:
    plan, about, sections = result["plan"], result["about"], result["sections"]
    yield f"# Checked on {_device(plan, about)}"
    yield ""
    yield f"Target {plan['target']}, precision of models: {plan['precision']}; {_versions(about)}."
    if plan["small"]:
        yield ""
        yield "Small sizes, which try the script: the times mean nothing."
    yield ""
    yield "| checked | results | wrong | largest error of its bound |"
    yield "|---|---|---|---|"
    for section in ("operators", "models"):
        rows = sections.get(section, [])
        wrong = [row for row in rows if not row["passed"]]
        shares = [row["max_abs_error"] / row["bound"] for row in rows if row["passed"] and row["bound"]]
        yield f"| {section} | {len(rows)} | {len(wrong)} | {max(shares, default=0.0):.2f} |"
    yield from _wrong([row for section in ("operators", "models") for row in sections.get(section, [])])
    timed = [row for section in ("step", "gemm", "flash") for row in sections.get(section, []) if "us" in row]
    if timed:
        yield from _times(timed, plan)
    for row in timed:
        yield from _profile(row.get("profile", ()))
    for title, lines in (
        ("Failed", result["failures"]),
        ("Left out", result["left_out"]),
        ("Not built", [f"{name}: {text}" for name, text in plan["failed"].items()]),
        ("Rules of the target that serve none of this", result["rules_without_a_case"]),
    ):
        if lines:
            yield ""
            yield f"## {title}"
            yield ""
            yield from (f"- {line}" for line in lines)


def _device(plan: Mapping[str, object], about: Mapping[str, object]) -> str:
    gpu = about.get("gpu")
    if gpu:
        return f"{gpu['name']}, driver {gpu['driver']}, {gpu['memory']}, at most {gpu['clock']}"
    return str(about["runtime"]["name"]) if plan["gpu"] else "a CPU"


def _versions(about: Mapping[str, object]) -> str:
    torch = about["torch"]
    named = {"halo_tvm": about["halo_tvm"], "tvm_ffi": about["runtime"]["tvm_ffi"], "Python": about["python"]}
    if torch:
        named |= {"torch": torch["torch"], **({"CUDA": torch["cuda"]} if torch["cuda"] else {})}
    compiler = "beside the compiler" if about["runtime"]["compiler"] else "runtime only"
    return ", ".join(f"{name} {version}" for name, version in named.items()) + f"; {compiler}"


def _wrong(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    wrong = [row for row in rows if not row["passed"]]
    if wrong:
        yield ""
        yield "| wrong | dtype | error | bound |"
        yield "|---|---|---|---|"
    for row in wrong:
        numbers = (row.get("max_abs_error"), row.get("bound"))
        cells = ["-" if n is None else f"{float(n):.2e}" for n in numbers]
        yield f"| {row['name']} | {row.get('dtype', '')} | {' | '.join(cells)} |"


def _times(timed: Sequence[Mapping[str, object]], plan: Mapping[str, object]) -> Iterator[str]:
    yield ""
    yield "| timed | engine | us, median | TFLOP/s | time / ours (90 %) | goal |"
    yield "|---|---|---|---|---|---|"
    for row in timed:
        shape = plan["kernels"].get(row["name"], {})
        words = WORDS[row["name"]] + (f", {' '.join(f'{k}={v}' for k, v in shape.items())}" if shape else "")
        for engine, median in row["medians_us"].items():
            rate = row.get("tflops", {}).get(engine)
            ratio = row["ratios"].get(engine)
            goal = row.get("goal", {})
            cells = [
                words,
                engine,
                f"{median:.1f}",
                "-" if rate is None else f"{rate:.1f}",
                f"{ratio['value']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else "-",
                f"{goal['ratio']:.2f}: {'met' if goal['met'] else 'not met'}" if goal.get("against") == engine else "-",
            ]
            yield "| " + " | ".join(cells) + " |"


def _profile(rows: Sequence[tuple[str, int, float]]) -> Iterator[str]:
    if not rows:
        return
    total = sum(us for _, _, us in rows)
    yield ""
    yield f"The step without its graph, each call waited for ({total:.0f} us in all):"
    yield ""
    yield "| call | times | us | share |"
    yield "|---|---|---|---|"
    for name, calls, us in rows[:PROFILE_ROWS]:
        yield f"| {name} | {calls} | {us:.1f} | {us / total:.0%} |"
