"""Time attention here and in torch's scaled_dot_product_attention: one process per engine, taking turns.

    python scripts/compare_attention.py --mode prefill --threads 1,2
    python scripts/compare_attention.py --mode decode --threads 1,2

Prints a Markdown table: medians in microseconds (`_interleaved.py`), ratios paired by round with their 90 % intervals.
Decode has one query and keeps its keys in caches [b, t, h_kv, d]; torch has them as [b, h_kv, t, d], the layout it is
fastest with. `read` is a kernel of ours that only reads as many bytes, in a turn of the same rounds. --decision
takes fields of a schedule's decision as JSON, e.g. '{"block_k": 128}', in place of the rule's own choice.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
from collections.abc import Mapping, Sequence

import _checkout  # noqa: F401  before halo_tvm
import _interleaved as interleaved
import numpy as np
from _interleaved import Kernel

from halo_tvm.peers.load_meter import LoadMeter
from halo_tvm.peers.statistics import paired_interval

D = 64
ERROR = 1e-4  # relative L2 between engines


@dataclasses.dataclass(frozen=True)
class Case:
    """One attention call of batch 1."""

    name: str
    s: int
    t: int
    h: int = 12
    h_kv: int = 12
    causal: bool = False
    window: int = 0
    key_mask: bool = False
    bias: bool = False
    decode: bool = False

    @property
    def pairs(self) -> int:
        """Visible pairs of a query and a key, all heads."""
        i, j = np.arange(self.s)[:, None] + self.t - self.s, np.arange(self.t)
        seen = (j <= i) if self.causal else np.ones((self.s, self.t), bool)
        return self.h * int((seen & (j > i - self.window) if self.window else seen).sum())

    @property
    def bytes(self) -> int:
        """Of the keys and values."""
        return 2 * 4 * self.t * self.h_kv * D

    def arrays(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(0)
        found = {"q": rng.standard_normal((1, self.s, self.h, D), dtype=np.float32)}
        found |= {n: rng.standard_normal((1, self.t, self.h_kv, D), dtype=np.float32) for n in ("k", "v")}
        if self.key_mask:
            found["key_mask"] = np.arange(self.t)[None] < self.t - self.t // 8
        if self.bias:
            found["bias"] = rng.standard_normal((1, self.h, self.s, self.t), dtype=np.float32)
        if self.decode:
            found["lengths"] = np.array([self.t], "int32")
        return found


def prefill_cases(lengths: list[int]) -> list[Case]:
    kinds: dict[str, Mapping[str, object]] = {
        "causal": {"causal": True},
        "not causal": {},
        "key mask": {"key_mask": True},
        "causal, window 256": {"causal": True, "window": 256},
        "bias": {"bias": True},
        "causal, 4 KV heads": {"causal": True, "h_kv": 4},
    }
    return [Case(name, s, s, **kind) for name, kind in kinds.items() for s in lengths]


def decode_cases(lengths: list[int]) -> list[Case]:
    return [
        Case(name, 1, t, h_kv=h_kv, causal=True, decode=True)
        for name, h_kv in (("12 heads", 12), ("12 heads, 4 KV heads", 4))
        for t in lengths
    ]


def halo(case: Case, changes: Mapping[str, object]) -> Kernel:
    """Compiled as a model with symbolic lengths is; decode knows that there is one query. `changes` the decision."""
    import tvm
    from tvm import relax, tirx

    from halo_tvm.passes.schedule import rule_for
    from halo_tvm.relay_ops import OPERATORS
    from halo_tvm.targets import resolve

    arrays = case.arrays()
    s, t = tirx.Var("s", "int64"), tirx.Var("t", "int64")
    s, t = (1, t) if case.decode else (s, s)
    shapes = {
        "q": (1, s, case.h, D),
        "k": (1, t, case.h_kv, D),
        "v": (1, t, case.h_kv, D),
        "key_mask": (1, t),
        "bias": (1, case.h, s, t),
        "lengths": (1,),
    }
    variables = [relax.Var(name, relax.TensorType(shapes[name], str(x.dtype))) for name, x in arrays.items()]
    extras = {f"has_{name}": True for name in list(arrays)[3:]}
    call = OPERATORS["attention"].call(
        *variables,
        num_heads=case.h,
        num_kv_heads=case.h_kv,
        head_dim=D,
        scale=D**-0.5,
        causal=case.causal,
        window=case.window,
        **extras,
    )
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        builder.emit_func_output(builder.emit(call))
    mod = relax.transform.LegalizeOps()(builder.get())
    (func,) = (f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    target = resolve("cpu", cores=int(os.environ["TVM_NUM_THREADS"]))
    run = interleaved.compiled(func, rule_for(func, target).rule, target, changes)
    tensors = [tvm.runtime.tensor(x) for x in arrays.values()]
    out = tvm.runtime.empty(arrays["q"].shape, "float32")
    return Kernel(lambda: run(*tensors, out), lambda _: out.numpy())


def torch_sdpa(case: Case, changes: Mapping[str, object]) -> Kernel:
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.set_grad_enabled(False)
    arrays = case.arrays()
    q, k, v = (torch.from_numpy(arrays[n]).transpose(1, 2) for n in ("q", "k", "v"))
    if case.decode:
        q, k, v = (x.contiguous() for x in (q, k, v))
    mask = None
    if case.key_mask:
        mask = torch.from_numpy(arrays["key_mask"])[:, None, None]
    if case.bias:
        mask = torch.from_numpy(arrays["bias"])
    if case.window:
        i, j = torch.arange(case.s)[:, None], torch.arange(case.t)
        mask = (j <= i) & (j > i - case.window)
    causal = case.causal and mask is None and not case.decode  # one query sees every key
    attend = torch.nn.functional.scaled_dot_product_attention
    grouped = case.h != case.h_kv
    return Kernel(
        lambda: attend(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=grouped),
        lambda out: out.transpose(1, 2).numpy(),
    )


def read(case: Case, changes: Mapping[str, object]) -> Kernel:
    from halo_tvm.ceilings.measure import reader
    from halo_tvm.targets import resolve

    once, _ = reader(resolve("cpu"), int(os.environ["TVM_NUM_THREADS"]), case.bytes)
    return Kernel(lambda: once(1), lambda _: np.zeros(1))


ENGINES = {"halo_tvm": halo, "torch": torch_sdpa, "read": read}


def compare(cases: Sequence[Case], engines: Sequence[str], threads: int, options: argparse.Namespace) -> None:
    arguments = ("--decision", options.decision)
    with interleaved.workers(__file__, engines, threads, *arguments) as workers:
        for case in cases:
            entries = [
                interleaved.Entry(name, worker, dataclasses.asdict(case), same=name != "read")
                for name, worker in workers.items()
            ]
            entries = interleaved.prepared(entries, ERROR)
            workers = {entry.name: entry.worker for entry in entries}  # what failed is not asked again
            print(row(case, threads, interleaved.race(entries, options.rounds, options.seconds)), flush=True)


def row(case: Case, threads: int, us: Mapping[str, list[float]]) -> str:
    """A line of the table. An engine that did not run has no numbers."""
    ours = us["halo_tvm"]
    middle = {name: statistics.median(samples) for name, samples in us.items()}
    cells = [threads, case.name, case.t, f"{middle['halo_tvm']:.0f}"]
    if "torch" in us:
        ratio = paired_interval(ours, us["torch"], 0.90)
        cells += [f"{middle['torch']:.0f}", f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"]
    else:
        cells += ["-", "-"]
    if case.decode and "read" not in us:
        cells += ["-", "-"]
    elif case.decode:
        cells += [
            f"{case.bytes / middle['halo_tvm'] / 1e3:.1f}",
            f"{paired_interval(ours, us['read'], 0.90).value:.2f}",
        ]
    else:
        cells += [f"{4e-3 * D * case.pairs / middle['halo_tvm']:.0f}"]
    return "| " + " | ".join(map(str, cells)) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("prefill", "decode"), default="prefill")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--lengths", help="keys; default 512,1024,2048, for decode 128,256,...,8192")
    parser.add_argument("--only", help="cases of this name")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.03, help="per turn")
    parser.add_argument("--decision", default="{}", metavar="JSON", help="fields of a decision to change")
    parser.add_argument("--worker", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        engine, changes = ENGINES[options.worker], json.loads(options.decision)
        interleaved.work(lambda case: engine(Case(**case), changes))
        return
    decode = options.mode == "decode"
    standard = [128 << i for i in range(7)] if decode else [512, 1024, 2048]
    lengths = [int(x) for x in options.lengths.split(",")] if options.lengths else standard
    cases = decode_cases(lengths) if decode else prefill_cases(lengths)
    cases = [case for case in cases if options.only in (None, case.name)]
    last = ["GB/s", "of a read kernel"] if decode else ["GFLOP/s"]
    head = ["threads", "case", "keys", "halo_tvm us", "torch us", "torch / halo_tvm", *last]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    meter = LoadMeter()
    for threads in options.threads.split(","):
        compare(cases, ["halo_tvm", "torch", *(["read"] if decode else [])], int(threads), options)
    print(interleaved.disturbance(meter), end="")


if __name__ == "__main__":
    main()
