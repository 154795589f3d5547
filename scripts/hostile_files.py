#!/usr/bin/env python3
"""Files that are broken or mean harm, by the thousand: each ends in a model, or in one sentence and an exit code.

    python scripts/hostile_files.py                                   # 10,000 ONNX files, 2,000 others, 1,000 manifests
    python scripts/hostile_files.py --kind onnx --count 500 --first 7000
    python scripts/hostile_files.py --kind manifest --only 12,99      # these seeds again, and what each said

The n-th file of a kind is made of sound ones (`_hostile_corpus.py`) by the seed n (`_hostile_changes.py`), so a
finding is repeated by its number. `onnx` changes bytes and fields of the models of the ONNX project's node tests.
`container` does the same to GGUF, TFLite, npz, Hugging Face directories, .pt2, TorchScript, jax.export, StableHLO and
Keras files; what reads the latter ones in a confined process reads them here in the worker itself, but for each 50th
and for those whose reader ended the worker.
`manifest` changes and seals again the manifest of an artifact, which is then loaded, run and inspected.

A finding is an error that is none of ours (a bug), a worker that dies, a file that takes more than 20 s of processor
time, memory beyond 8 GiB, a sentence that is none, and whatever is written or started elsewhere: exit status 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}

import _checkout  # noqa: F401  before halo_tvm
import _hostile_changes as changes
import _hostile_corpus as corpus
import _workers

COUNTS = {"onnx": 10_000, "container": 2_000, "manifest": 1_000}
CONTAINERS = ("gguf", "tflite", "npz", "huggingface", "pt2", "pt", "jax", "keras")
SLOW_S, MEMORY = 20, 8 << 30  # of processor time and of memory, for one file
MOST_S = 600  # of a clock, with the start of a worker: whatever does not even compute
CONFINED_EACH = 50
Row = dict[str, str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=COUNTS, action="append", help="one kind, or several; all without")
    parser.add_argument("--count", type=int, help="files of each kind")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", help="these seeds alone, separated by commas; says what each ended in")
    parser.add_argument("--formats", default=",".join(CONTAINERS), help="of containers")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    found = 0
    for kind in args.kind or COUNTS:
        seeds = range(args.first, args.first + (COUNTS[kind] if args.count is None else args.count))
        names = args.only.split(",") if args.only else [str(seed) for seed in seeds]
        with tempfile.TemporaryDirectory(prefix="halo-tvm-hostile-") as folder:
            sound = write_sound(kind, Path(folder), tuple(args.formats.split(",")))
            rows = list(run_all(kind, sound, names, args.jobs))
        found += say(kind, rows, every=bool(args.only))
    return int(found > 0)


def write_sound(kind: str, folder: Path, formats: tuple[str, ...] = CONTAINERS, *, every: int = 1) -> Path:
    """The folder of the sound files that cases of `kind` are made of."""
    sound = folder / "sound"
    sound.mkdir()
    if kind == "onnx":
        corpus.write_onnx(sound, every)
    elif kind == "container":
        corpus.write_containers(sound, formats)
    else:
        corpus.write_artifacts(sound)
    return sound


def run_all(kind: str, sound: Path, names: list[str], jobs: int, *, confined: bool = False) -> list[Row]:
    rows, died = [], []
    for name, row, reason in _workers.run_all(names, runner, (kind, str(sound), confined), jobs=jobs, limit_s=MOST_S):
        slow = reason == f"exit code {-signal.SIGPROF}"
        if row is None and not slow and kind == "container" and not confined:
            died.append(name)  # a reader that ends its process is asked again where it belongs: in the confined one
            continue
        lost = ("slow", f"more than {SLOW_S} s of processor time") if slow else ("died", reason)
        rows.append(row or {"seed": name, "file": "", "ended": lost[0], "why": lost[1]})
    return rows + (run_all(kind, sound, died, jobs, confined=True) if died else [])


def say(kind: str, rows: list[Row], *, every: bool) -> int:
    """Print how the files ended, and each way that is none; how many those are."""
    counts = Counter(row["ended"] for row in rows)
    print(f"{kind}: {len(rows)} files: " + ", ".join(f"{n} {ended}" for ended, n in counts.most_common()), flush=True)
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if every or row["ended"] not in ("model", "refused"):
            groups[row["ended"], row["why"]].append(row)
    for (ended, why), group in sorted(groups.items(), key=lambda item: -len(item[1])):
        seeds = ", ".join(row["seed"] + f" ({row['file']})" * bool(row["file"]) for row in group[:5])
        print(f"  {ended} x {len(group)}: {why}\n    seeds {seeds}", flush=True)
    return sum(n for ended, n in counts.items() if ended not in ("model", "refused"))


# ------------------------------------------------------------------ in a worker


def runner(kind: str, sound: str, confined: bool = False) -> Callable[[str], Row]:
    """What makes the file of a seed and hands it over; limits of this process and watches over it are set once."""
    import resource

    sys.dont_write_bytecode = True
    scratch = Path(sound).parent / f"scratch-{os.getpid()}"
    scratch.mkdir()
    os.environ |= {"HALO_TVM_HOME": str(scratch / "home"), "TMPDIR": str(scratch)}
    tempfile.tempdir = str(scratch)
    os.chdir(scratch)
    case = Case(kind, Path(sound), scratch, confined)
    case.warm()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY + _used(), MEMORY + _used()))
    _watch(case)
    return case


def _used() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[0]) * os.sysconf("SC_PAGESIZE")


def _watch(case: Case) -> None:
    """Note what is opened for writing elsewhere, and what is started, other than our own confined process."""
    own = (str(case.scratch), "/dev/null", "/dev/shm/")

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str):
            mode, flags = arguments[1], arguments[2]
            writes = any(c in mode for c in "wax+") if isinstance(mode, str) else bool(int(flags or 0) & 3)  # type: ignore[call-overload]
            if writes and not os.path.abspath(arguments[0]).startswith(own):
                case.noted.append(f"wrote {arguments[0]}")
        elif event in ("os.system", "os.exec", "os.posix_spawn", "os.fork", "pty.spawn"):
            case.noted.append(f"started {arguments[0]!r}" if arguments else event)
        elif event == "subprocess.Popen" and "halo_tvm.confinement" not in list(arguments[1] or ()):  # type: ignore[call-overload]
            case.noted.append(f"started {arguments[1]}")

    sys.addaudithook(hook)


@dataclass
class Case:
    """The hostile file of each seed, made and read."""

    kind: str
    sound: Path
    scratch: Path
    confined: bool = False  # what belongs into a confined process is read there

    def __post_init__(self) -> None:
        self.noted: list[str] = []
        self.files = sorted(self.sound.iterdir())
        assert self.files, f"no sound files of {self.kind}"

    def warm(self) -> None:
        """Import what reading needs, so that no file is charged with it."""
        from halo_tvm.cli._main import verbs
        from halo_tvm.importers import import_model

        assert verbs()
        for suffix in {path.suffix for path in self.files} - {".npz", ".halo"}:
            path = next(p for p in self.files if p.suffix == suffix)
            with _in_process():
                import_model(str(path), **_more(path))

    def __call__(self, seed: str) -> Row:
        rng = random.Random(f"{self.kind} {seed}")
        self.noted.clear()
        folder = self.scratch / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        source = rng.choice(self._of_a_format(rng))
        row = {"seed": seed, "file": source.name}
        signal.setitimer(signal.ITIMER_PROF, SLOW_S)  # ends this process, whatever it is in
        try:
            ended, why = self._end(source, folder, rng, int(seed))
        except MemoryError as error:
            ended, why = "memory", _where(error)
        except Exception as error:  # noqa: BLE001 - each is a finding
            ended, why = "bug", _where(error)
        signal.setitimer(signal.ITIMER_PROF, 0)
        left = [n for n in os.listdir(self.scratch) if n not in ("case", "home") and not n.startswith(".")]
        if self.noted or any(n.startswith("ran-by") for n in left):
            ended, why = "beyond", "; ".join([*dict.fromkeys(self.noted), *left])[:300]
        for name in left:
            path = self.scratch / name
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        return {**row, "ended": ended, "why": why}

    def _of_a_format(self, rng: random.Random) -> list[Path]:
        """Those of one format, each as likely as another."""
        suffix = rng.choice(sorted({path.suffix for path in self.files}))
        return [path for path in self.files if path.suffix == suffix]

    def _end(self, source: Path, folder: Path, rng: random.Random, seed: int) -> tuple[str, str]:
        from halo_tvm.errors import HaloError

        if source.suffix == ".halo":
            return self._end_of_artifact(source, folder, rng)
        path = self._changed(source, folder, rng)
        try:
            if path.suffix == ".npz":
                from halo_tvm.importers.shapes import load_examples

                load_examples(str(path))
            else:
                from halo_tvm.importers import import_model

                with _in_process(off=self.confined or seed % CONFINED_EACH == 0):
                    model = import_model(str(path), **_more(path))
                if path.is_dir():
                    for name in model.params.sources:  # which are read when an artifact is written
                        model.params.materialise(name)
        except HaloError as refusal:
            return _judged(str(refusal), refusal.exit_code)
        return "model", ""

    def _changed(self, source: Path, folder: Path, rng: random.Random) -> Path:
        """The file (or directory) made of `source`."""

        def others() -> bytes:
            return corpus.read_bytes(rng.choice([p for p in self.files if p.suffix == source.suffix]))

        path = folder / f"m{source.suffix}"
        if source.is_dir():
            path = folder / "m"
            shutil.copytree(source, path)
            kinds = {file.suffix: file for file in path.iterdir()}
            kind = rng.choice((".json", ".json", *sorted(kinds)))
            data = kinds[kind].read_bytes()
            if kind == ".safetensors":
                data = _safetensors(data, rng)
            elif kind == ".bin":
                change = changes.archive_changed if data[:2] == b"PK" and rng.random() < 0.7 else changes.bytes_changed
                data = change(data, rng, others)
            else:
                data = changes.member_changed(data, rng, others)
            kinds[kind].write_bytes(data)
            return path
        data = source.read_bytes()
        if source.suffix == ".onnx":
            path.write_bytes(self._onnx(data, rng, others))
        elif source.suffix in (".npz", ".pt", ".pt2", ".keras"):
            path.write_bytes(changes.archive_changed(data, rng, others))
        elif source.suffix == ".gguf" and rng.random() < 0.8:  # the header is a small part of it
            head = data[:8192]
            path.write_bytes(changes.bytes_changed(head, rng, others) + data[8192:])
        else:
            path.write_bytes(changes.bytes_changed(data, rng, others))
        return path

    def _onnx(self, data: bytes, rng: random.Random, others: Callable[[], bytes]) -> bytes:
        import onnx

        if rng.random() < 0.25:
            return changes.bytes_changed(data, rng, others)
        model = onnx.ModelProto.FromString(data)
        changes.message_changed(model, rng, lambda: onnx.ModelProto.FromString(others()))
        return model.SerializeToString()

    def _end_of_artifact(self, source: Path, folder: Path, rng: random.Random) -> tuple[str, str]:
        """Load, run and inspect `source` with another manifest, sealed."""
        path = folder / "m.halo"
        path.mkdir()
        for file in source.iterdir():
            if file.name != "manifest.json":
                shutil.copy(file, path)
        data = json.loads((source / "manifest.json").read_text())
        part = rng.choice(("functions", "functions", "variants", "language", "validation", "reports", ""))
        if part and data.get(part):
            data[part] = changes.json_changed(data[part], rng)
        else:
            data = changes.json_changed(data, rng)
        (path / "manifest.json").write_text(sealed(data))
        said = [_said_by(argv) for argv in (["run", str(path)], ["inspect", str(path)], ["validate", str(path)])]
        bugs = [why for ended, why in said if ended == "bug"]
        if bugs:
            return "bug", bugs[0]
        return next((pair for pair in said if pair[0] not in ("model", "refused")), said[0])


def sealed(data: object) -> str:
    """The text of a manifest with the checksum that fits."""
    if not isinstance(data, dict):
        return json.dumps(data)
    blank = json.dumps({**data, "checksum": "0" * 64})
    return blank.replace("0" * 64, hashlib.sha256(blank.encode()).hexdigest())


def _said_by(argv: list[str]) -> tuple[str, str]:
    """How a command line ends."""
    from halo_tvm.cli import main as halo_tvm

    spoken = StringIO()
    with redirect_stderr(spoken), redirect_stdout(StringIO()):
        try:
            code = halo_tvm([*argv])
        except SystemExit as end:
            code = int(end.code or 0)
    lines = spoken.getvalue().strip().splitlines()
    last = lines[-1] if lines else ""
    if "internal error" in last:
        return "bug", f"{argv[0]}: {last[:300]}"
    return ("model", "") if code == 0 else _judged(last, code)


def _judged(sentence: str, code: int) -> tuple[str, str]:
    """A refusal, if it is one sentence with a code of its own."""
    if "\n" in sentence or not sentence or len(sentence) > 4000 or code not in (1, 2, 3, 5):
        return "no sentence", f"{code}: {sentence[:300]!r}"
    return "refused", sentence[:200]


def _where(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "halo_tvm" in f.filename]
    place = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames[-3:]))
    first = next((line for line in str(error).strip().splitlines() if line.strip()), "")
    return f"{type(error).__name__} at {place}: {first[:120]}"


def _more(path: Path) -> dict[str, object]:
    return {"shapes": ("x=1..8x3x8",)} if path.suffix == ".pt" else {}


def _safetensors(data: bytes, rng: random.Random) -> bytes:
    end = 8 + int.from_bytes(data[:8], "little")
    if rng.random() < 0.4:
        return changes.bytes_changed(data[:end], rng, lambda: data) + data[end:]
    header = json.dumps(changes.json_changed(json.loads(data[8:end]), rng)).encode()
    size = len(header) if rng.random() < 0.9 else rng.choice(changes.INTEGERS) & ((1 << 64) - 1)
    return size.to_bytes(8, "little") + header + data[end:]


@contextmanager
def _in_process(off: bool = False) -> Iterator[None]:
    """Meanwhile a confined process is this one: what it would read it reads here, without the seconds of its start."""
    from halo_tvm.importers import _restricted

    worker = _restricted._Worker
    _restricted._Worker = worker if off else _stand_in()
    try:
        yield
    finally:
        _restricted._Worker = worker


@cache
def _stand_in() -> type:
    from halo_tvm import confinement
    from halo_tvm.importers import _restricted, _worker

    _worker.limit_memory = lambda extra: None  # the limit of this process stands

    class Here(_restricted._Worker):
        """The parent's end of a worker that is the parent itself."""

        def __init__(self, path: Path, _trust: bool, limits: object, *_: object) -> None:
            self.directory = Path(tempfile.mkdtemp(prefix="halo-tvm-import-"))
            self._name, self._limits, self.held = path.name, limits, {}
            self.close = weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)

        def ask(self, request: dict[str, object]) -> None:
            policy = confinement.Policy(str(self.directory), ())
            _, reply = _worker._attempt(lambda: _worker._convert(request, policy, self.directory))
            if reply.get("ok") is not True:
                self.close()
                raise self._error(str(reply.get("error")), _restricted._message(str(reply.get("message"))))

    return Here


if __name__ == "__main__":
    sys.exit(main())
