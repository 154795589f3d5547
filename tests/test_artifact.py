"""The artifact directory: written whole or not at all, every changed byte found, hostile content refused."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_tvm.artifact import (
    FunctionSpec,
    Manifest,
    ParamHeader,
    TensorSpec,
    Variant,
    check_output_path,
    params_file,
    read_manifest,
    read_params_header,
    read_reference,
    store,
    update_manifest,
    verify_artifact,
    write_artifact,
    write_params,
)
from halo_tvm.errors import ArtifactCorrupt, EnvironmentProblem, HaloError, UnsupportedModel, UsageError
from halo_tvm.params import ParamRecipe, ParamSource, ParamTable

RNG = np.random.default_rng(0)
PARAMS = {
    "a": RNG.standard_normal((3, 5), dtype=np.float32),
    "none": np.zeros((0, 4), np.float32),
    "scalar": np.array(3, np.int64),
    "flags": np.array([True, False, True]),
    "half": RNG.standard_normal(7).astype(np.float16),
    "b": RNG.standard_normal((2, 2, 9), dtype=np.float32),
}
SPEC = FunctionSpec(
    inputs=(
        TensorSpec("ids", ("batch", 4), "int64", values=(0, 9)),
        TensorSpec("mask", ("batch", 4), "int64", default="ones"),
    ),
    outputs=(TensorSpec("y", ("batch", 5), "float32"),),
    ranges={"batch": (1, 8)},
    params=tuple(PARAMS),
)
MANIFEST = Manifest(
    name="tiny",
    functions={"main": SPEC},
    variants=(Variant("avx2", ("avx2", "fma"), ("x86_64",), "llvm-x86_64-avx2", "model.so", "params.bin"),),
    pack_formats={"f32/k1/n48": 2},
    source={"kind": "test"},
    versions={"halo_tvm": "0"},
    reports={"lift": {"applied": np.int64(3)}},
)
REFERENCE = {"case0.input.ids": np.arange(4)[None], "case0.output.y": np.ones((1, 5))}


def headers(params: dict[str, np.ndarray]) -> list[ParamHeader]:
    return [ParamHeader(name, p.shape, str(p.dtype)) for name, p in params.items()]


def write(path: Path, **changes: object) -> Manifest:
    library = path.parent / "lib-to-copy.so"
    library.write_bytes(b"\x7fELF" + bytes(range(256)) * 3)
    arguments = {
        "manifest": MANIFEST,
        "library": library,
        "params_headers": headers(PARAMS),
        "params": iter(PARAMS.items()),
        "reference": REFERENCE,
    }
    return write_artifact(path, **{**arguments, **changes})


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    write(tmp_path / "x.halo")
    return tmp_path / "x.halo"


def rewrite(path: Path, change: object, *, seal: bool = True) -> None:
    """Change the manifest's JSON in place and, with `seal`, give it the checksum that fits."""
    data = json.loads((path / "manifest.json").read_text())
    data = change(data) or data
    data["checksum"] = "0" * 64
    text = json.dumps(data)
    if seal:
        text = text.replace("0" * 64, hashlib.sha256(text.encode()).hexdigest())
    (path / "manifest.json").write_text(text)


def leftovers(folder: Path) -> list[str]:
    return sorted(n for n in os.listdir(folder) if n.endswith((".tmp", ".partial")))


# -- the container ------------------------------------------------------------------------------


def test_params_are_aligned_and_open_in_the_safetensors_library(artifact: Path) -> None:
    loaded = safetensors.numpy.load_file(artifact / "params.bin")
    entries = read_params_header(artifact / "params.bin")
    assert set(entries) == set(PARAMS)
    raw = (artifact / "params.bin").read_bytes()
    for name, expected in PARAMS.items():
        np.testing.assert_array_equal(loaded[name], expected)
        entry = entries[name]
        assert entry.offset % 64 == 0
        flat = np.frombuffer(raw, expected.dtype, expected.size, entry.offset)
        np.testing.assert_array_equal(flat.reshape(entry.shape), expected)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 9), max_size=3), st.sampled_from(sorted(params_file.DTYPES))), max_size=8
    )
)
def test_any_set_of_params_round_trips(
    tmp_path_factory: pytest.TempPathFactory, specs: list[tuple[list[int], str]]
) -> None:
    path = tmp_path_factory.mktemp("params") / "p.bin"
    params = {}
    for i, (shape, dtype) in enumerate(specs):
        kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
        params[f"p{i}"] = RNG.integers(0, 2, shape).astype(kind)
    with path.open("wb") as file:
        write_params(file, headers(params), params.items())
    entries = read_params_header(path)
    assert {n: (e.shape, e.dtype) for n, e in entries.items()} == {
        n: (p.shape, str(p.dtype)) for n, p in params.items()
    }
    with safetensors.safe_open(path, "numpy") as container:
        assert set(container.keys()) >= set(params)


def test_a_recipe_may_give_a_single_number() -> None:
    """As of a parameter whose elements a model takes one by one."""
    params = ParamTable()
    params.add_source("w", ParamSource((2,), "float32", lambda: np.array([2, 3], np.float32)))
    cut = {"axes": [0], "begin": [1], "end": [2], "strides": [1]}
    params.add_recipe(ParamRecipe("w.1", "strided_slice", ("w",), cut, (1,), "float32"))
    params.add_recipe(ParamRecipe("number", "reshape", ("w.1",), {"shape": []}, (), "float32"))
    number = params.materialise("number")
    assert number.shape == () and number == 3


def test_params_must_come_as_their_headers_say(tmp_path: Path) -> None:
    a = np.zeros(3, np.float32)
    with (tmp_path / "p").open("wb") as file:
        with pytest.raises(AssertionError, match="parameter 0 is 'b', its header says 'a'"):
            write_params(file, headers({"a": a}), [("b", a)])
        with pytest.raises(AssertionError, match=r"float64\[3\], its header says float32\[3\]"):
            write_params(file, headers({"a": a}), [("a", a.astype(np.float64))])
        with pytest.raises(AssertionError, match="more parameters than the 1 headers"):
            write_params(file, headers({"a": a}), [("a", a), ("b", a)])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([1], "a JSON object as header"),
        ({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 12]}}, "expected 16 bytes for tensor 'a'"),
        ({"a": {"dtype": "F99", "shape": [3], "data_offsets": [0, 12]}}, "dtype, shape and data_offsets"),
        ({"a": {"dtype": "F32", "shape": [-3], "data_offsets": [0, -12]}}, "dtype, shape and data_offsets"),
        ({"a": {"dtype": "F32", "shape": [3], "data_offsets": [4, 16]}}, "tensor 'a' at offset 0, found 4"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, "bytes as its header says"),
        (
            {
                "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
            },
            "tensor 'b' at a multiple of 64 bytes",
        ),
    ],
)
def test_a_hostile_params_header_is_refused(tmp_path: Path, table: object, message: str) -> None:
    text = json.dumps(table).encode()
    text += b" " * (-(8 + len(text)) % 64)
    (tmp_path / "p.bin").write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))
    with pytest.raises(ArtifactCorrupt, match=message):
        read_params_header(tmp_path / "p.bin")


@pytest.mark.parametrize("raw", [b"", b"abc", b"\xff" * 8 + b"{}", (2).to_bytes(8, "little") + b"{]"])
def test_a_torn_params_header_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "p.bin").write_bytes(raw)
    with pytest.raises(ArtifactCorrupt, match="header"):
        read_params_header(tmp_path / "p.bin")


# -- writing ------------------------------------------------------------------------------------


def test_round_trip(artifact: Path) -> None:
    manifest = verify_artifact(artifact)
    assert sorted(manifest.files) == ["model.so", "params.bin", "reference.npz"]
    assert manifest.functions == {"main": SPEC}
    assert dataclasses.replace(manifest, files={}, reports=MANIFEST.reports) == MANIFEST
    for name, entry in manifest.files.items():
        assert entry.size_bytes == (artifact / name).stat().st_size
    for key, value in read_reference(artifact).items():
        np.testing.assert_array_equal(value, REFERENCE[key])
    assert leftovers(artifact.parent) == []


def test_an_older_artifact_names_no_precision(artifact: Path) -> None:
    write(artifact, manifest=dataclasses.replace(MANIFEST, precision="int8"))
    assert read_manifest(artifact).precision == "int8"
    rewrite(artifact, lambda d: {key: value for key, value in d.items() if key != "precision"})
    assert read_manifest(artifact).precision == "fp32"


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    for name in ("a.halo", "b.halo"):
        write(tmp_path / name)
    for name in ("manifest.json", "params.bin", "reference.npz"):
        assert (tmp_path / "a.halo" / name).read_bytes() == (tmp_path / "b.halo" / name).read_bytes()


@pytest.mark.parametrize("error", [RuntimeError("recipe failed"), KeyboardInterrupt()])
@pytest.mark.parametrize("existing", [False, True])
def test_nothing_half_written_remains(tmp_path: Path, error: BaseException, existing: bool) -> None:
    path = tmp_path / "x.halo"
    if existing:
        write(path)

    def broken():
        yield "a", PARAMS["a"]
        raise error

    with pytest.raises(type(error)):
        write(path, params=broken(), manifest=dataclasses.replace(MANIFEST, name="new"))
    assert leftovers(tmp_path) == []
    assert path.exists() is existing
    if existing:
        assert verify_artifact(path).name == "tiny"


def test_a_failing_rename_keeps_the_old_artifact(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def failing(source: Path, target: Path) -> None:
        if Path(target) == artifact and not str(source).endswith(".old.tmp"):
            raise OSError("injected")
        rename(source, target)

    monkeypatch.setattr(store, "_exchange", lambda *_: False)  # as on a system without it
    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(UsageError, match="injected"):
        write(artifact, manifest=dataclasses.replace(MANIFEST, name="new"))
    assert verify_artifact(artifact).name == "tiny"
    assert leftovers(artifact.parent) == []


@pytest.mark.parametrize("exchange", [True, False])
def test_of_two_first_writers_the_later_one_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    path, rename = tmp_path / "x.halo", os.rename

    def beaten(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "rename", rename)
        write(path)  # another process, between the question whether there is something and the answer's use
        rename(source, target)

    monkeypatch.setattr(os, "rename", beaten)
    if not exchange:
        monkeypatch.setattr(store, "_exchange", lambda *_: False)
    write(path, manifest=dataclasses.replace(MANIFEST, name="new"))
    assert verify_artifact(path).name == "new"
    assert leftovers(tmp_path) == []


def test_a_directory_without_write_permission_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # root may write everywhere
    with pytest.raises(UsageError, match="not writable"):
        write(tmp_path / "x.halo")


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOSPC, errno.EROFS])
def test_what_the_disk_refuses_is_one_sentence(artifact: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refused(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(UsageError, match=f"{artifact.name}, but {os.strerror(code)}"):
        write(artifact, manifest=dataclasses.replace(MANIFEST, name="new"))
    with pytest.raises(UsageError, match=os.strerror(code)):
        update_manifest(artifact, validation={})
    assert verify_artifact(artifact).name == "tiny"
    assert leftovers(artifact.parent) == [] and leftovers(artifact) == []


def test_what_a_kill_left_is_removed_and_what_another_writes_is_not(tmp_path: Path) -> None:
    names = ("x.halo.0123456789ab", "y.halo.0123456789ab", "x.halo.ba9876543210")
    left, other, held = (tmp_path / f".{name}.tmp" for name in names)
    for folder in (left, other, held):
        folder.mkdir()
        (folder / "model.so").write_bytes(b"half")
    handle = os.open(held, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    write(tmp_path / "x.halo")
    os.close(handle)
    assert leftovers(tmp_path) == [held.name, other.name] and (held / "model.so").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="renameat2 is Linux's")
def test_a_replaced_artifact_is_never_absent(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[Path] = []
    monkeypatch.setattr(os, "rename", lambda source, target: moved.append(Path(source)))
    write(artifact, manifest=dataclasses.replace(MANIFEST, name="new"))
    assert moved == [] and verify_artifact(artifact).name == "new"
    assert leftovers(artifact.parent) == []


def test_an_artifact_is_replaced_and_keeps_no_old_file(artifact: Path) -> None:
    (artifact / "report.json").write_text("{}")
    write(artifact, manifest=dataclasses.replace(MANIFEST, name="new"))
    assert verify_artifact(artifact).name == "new"
    assert not (artifact / "report.json").exists()


def test_other_things_are_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    for name, message in (("file", "a file or a link"), ("folder", "thesis.tex"), ("link", "a file or a link")):
        with pytest.raises(UsageError, match=f"expected a new path or an artifact directory.*{message}") as caught:
            write(tmp_path / name)
        assert caught.value.exit_code == 1
    with pytest.raises(UsageError, match="create it first"):
        write_artifact(tmp_path / "no" / "x.halo", manifest=MANIFEST, library=tmp_path / "lib-to-copy.so")
    assert (tmp_path / "folder" / "thesis.tex").read_text() == "precious"
    write(tmp_path / "x.halo")
    (tmp_path / "x.halo" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="notes.txt"):
        check_output_path(tmp_path / "x.halo")
    (tmp_path / "x.halo" / "notes.txt").unlink()
    for name in ("library.npz", "weights.bin"):  # kinds of files that an artifact has, but not files of this one
        (tmp_path / "x.halo" / name).mkdir() if "npz" in name else (tmp_path / "x.halo" / name).write_text("mine")
        with pytest.raises(UsageError, match=name):
            check_output_path(tmp_path / "x.halo")
        (tmp_path / "x.halo" / name).rmdir() if "npz" in name else (tmp_path / "x.halo" / name).unlink()
    (tmp_path / "x.halo" / "manifest.json").write_text('{"name": "a web page", "icons": []}')
    with pytest.raises(UsageError, match="a manifest.json that this version did not write"):
        check_output_path(tmp_path / "x.halo")


def test_results_are_added_to_a_manifest(artifact: Path) -> None:
    rewrite(artifact, lambda d: {**d, "from_a_newer_minor_version": [1]})
    update_manifest(artifact, validation={"passed": True})
    manifest = verify_artifact(artifact)
    assert manifest.validation == {"passed": True}
    assert manifest.extra == {"from_a_newer_minor_version": [1]}
    with pytest.raises(AssertionError, match="files"):
        update_manifest(artifact, files={})


# -- verifying ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pristine") / "x.halo"
    write(path)
    return path


FILES = ("manifest.json", "model.so", "params.bin", "reference.npz")


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(FILES), position=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_any_changed_byte_is_detected(pristine: Path, name: str, position: float, flip: int) -> None:
    raw = (pristine / name).read_bytes()
    at = int(position * len(raw))
    try:
        (pristine / name).write_bytes(raw[:at] + bytes([raw[at] ^ flip]) + raw[at + 1 :])
        with pytest.raises((ArtifactCorrupt, EnvironmentProblem)):
            verify_artifact(pristine)
    finally:
        (pristine / name).write_bytes(raw)


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(FILES), position=st.floats(0, 1, exclude_max=True), tail=st.binary(max_size=2))
def test_any_truncated_or_longer_file_is_detected(pristine: Path, name: str, position: float, tail: bytes) -> None:
    raw = (pristine / name).read_bytes()
    try:
        (pristine / name).write_bytes(raw + tail if tail else raw[: int(position * len(raw))])
        with pytest.raises(ArtifactCorrupt):
            verify_artifact(pristine)
    finally:
        (pristine / name).write_bytes(raw)


@pytest.mark.parametrize("name", FILES[1:])
def test_a_missing_file_or_a_link_is_refused(artifact: Path, name: str) -> None:
    shutil.move(artifact / name, artifact.parent / "moved")
    with pytest.raises(ArtifactCorrupt, match="expected a file the manifest lists, found none") as caught:
        verify_artifact(artifact)
    assert caught.value.exit_code == 3
    (artifact / name).symlink_to(artifact.parent / "moved")
    with pytest.raises(ArtifactCorrupt, match="expected a regular file, found a symbolic link"):
        verify_artifact(artifact)


def test_messages_name_expected_found_and_advice(artifact: Path) -> None:
    with (artifact / "params.bin").open("ab") as file:
        file.write(b"x")
    size = (artifact / "params.bin").stat().st_size
    with pytest.raises(ArtifactCorrupt, match=f"params.bin: expected {size - 1} bytes, found {size}; copy"):
        verify_artifact(artifact)


def test_paths_that_are_no_artifact(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for name, message in (("none", "found nothing"), ("file", "found a file"), ("folder", "found no manifest.json")):
        with pytest.raises(UsageError, match=message) as caught:
            read_manifest(tmp_path / name)
        assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"\xff\xfe", b"nul", b"[" * 100_000, b'{"abi": NaN}', b'{"a": 1, "a": 1}']
)
def test_a_manifest_that_is_no_json_object(artifact: Path, raw: bytes) -> None:
    (artifact / "manifest.json").write_bytes(raw)
    with pytest.raises(ArtifactCorrupt, match="expected a JSON object"):
        read_manifest(artifact)


def test_a_newer_abi_is_refused(artifact: Path) -> None:
    rewrite(artifact, lambda d: {**d, "abi": 2})
    with pytest.raises(
        EnvironmentProblem, match="expected an artifact of abi 1 or lower, found abi 2; upgrade"
    ) as caught:
        read_manifest(artifact)
    assert caught.value.exit_code == 5


def test_an_edited_manifest_is_refused(artifact: Path) -> None:
    rewrite(artifact, lambda d: {**d, "name": "other"}, seal=False)
    with pytest.raises(ArtifactCorrupt, match="checksum"):
        read_manifest(artifact)


def put(*path: str | int, value: object):
    def change(data: dict) -> None:
        at = data
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


INPUT = ("functions", "main", "inputs", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("abi", value="1"), "abi: expected an integer, found '1'"),
        (put("abi", value=True), "abi: expected an integer, found a boolean"),
        (put("abi", value=0), "abi: expected an integer from 1"),
        (put("name", value=None), "name: expected a string, found null"),
        (put("functions", value=[]), "functions: expected an object, found a list"),
        (put("variants", value={}), "variants: expected a list, found an object"),
        (put("variants", value=[]), "expected at least one variant"),
        (put("variants", 0, "requires", value=[1]), r"requires\[0\]: expected a string"),
        (put("variants", 0, "library", value="../../lib.so"), "expected a plain file name"),
        (put("variants", 0, "library", value="a/b.so"), "expected a plain file name"),
        (put("variants", 0, "library", value=".."), "expected a plain file name"),
        (put("variants", 0, "params", value="/etc/passwd"), "expected a plain file name"),
        (put("variants", 0, "library", value="other.so"), "an entry for 'other.so'"),
        (put("files", value={}), "an entry for 'model.so'"),
        (put("files", "../x", value={"sha256": "0" * 63 + "1", "size_bytes": 1}), "expected a plain file name"),
        (put("files", "model.so", "size_bytes", value=-1), "size_bytes: expected an integer from 0"),
        (put("files", "model.so", "size_bytes", value=1 << 70), "size_bytes: expected an integer of at most 64 bits"),
        (put("files", "model.so", "sha256", value="zz"), "64 hexadecimal digits"),
        (put(*INPUT, "shape", value=[1] * 33), "rank 32 or lower"),
        (put(*INPUT, "shape", value=[-1]), r"shape\[0\]: expected an integer from 0"),
        (put(*INPUT, "shape", value=[1.5]), r"shape\[0\]: expected an integer"),
        (put(*INPUT, "values", value=[5, 1]), "bounds in ascending order"),
        (put(*INPUT, "values", value=[5]), "values: expected a list of 2, found 1 items"),
        (put(*INPUT, "default", value="twos"), "default: expected 'ones' or 'zeros', found 'twos'"),
        (put(*INPUT, "name", value="mask"), "names that are all different"),
        (put(*INPUT, "room", value=[1, "width"]), "expected dimensions of inputs, found width"),
        (put("functions", "main", "ranges", "batch", value="1-8"), "ranges.batch: expected a list, found '1-8'"),
        (lambda d: d.pop("functions") and None, "functions missing"),
    ],
)
def test_wrong_types_and_unsafe_names(artifact: Path, change: object, message: str) -> None:
    rewrite(artifact, change)
    with pytest.raises(ArtifactCorrupt, match=message):
        read_manifest(artifact)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(data=st.data(), value=json_values)
def test_no_value_anywhere_in_a_manifest_escapes_the_checks(pristine: Path, data: st.DataObject, value: object) -> None:
    """Any JSON value in any place gives a manifest or one of our errors, never another exception."""
    raw = (pristine / "manifest.json").read_bytes()

    def change(root: dict) -> None:
        at = root
        while True:
            key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
            if not isinstance(at[key], (dict, list)) or not at[key] or data.draw(st.booleans()):
                at[key] = value
                return
            at = at[key]

    try:
        rewrite(pristine, change)
        try:
            verify_artifact(pristine)
        except HaloError as error:
            assert "expected" in str(error) and "found" in str(error)
    finally:
        (pristine / "manifest.json").write_bytes(raw)


def test_a_reference_that_needs_pickle_or_is_compressed_is_refused(tmp_path: Path) -> None:
    def forged(save: Callable[..., None], array: np.ndarray) -> Path:
        save(tmp_path / "forged.npz", x=array)
        path = tmp_path / "x.halo"
        write(path, reference=None, others={"reference.npz": tmp_path / "forged.npz"})
        return path

    with pytest.raises(ArtifactCorrupt, match="uncompressed npz of plain arrays"):
        read_reference(forged(np.savez, np.array([object()], dtype=object)))
    with pytest.raises(ArtifactCorrupt, match="is compressed"):
        read_reference(forged(np.savez_compressed, np.zeros(1 << 16)))
    write(tmp_path / "x.halo", reference=None)
    with pytest.raises(UsageError, match="expected reference.npz"):
        read_reference(tmp_path / "x.halo")


def test_weights_may_have_any_name_but_those_of_the_file(tmp_path: Path) -> None:
    names = ("__w", "__", "a b\n", "__metadat")
    headers = [ParamHeader(name, (3,), "float32") for name in names]
    with (tmp_path / "params.bin").open("wb") as file:
        write_params(file, headers, ((name, np.ones(3, np.float32)) for name in names))
    assert set(read_params_header(tmp_path / "params.bin")) == set(names)
    for name in ("__metadata__", "__pad_0__"):
        with (tmp_path / "x").open("wb") as file, pytest.raises(UnsupportedModel, match=f"found '{name}': rename it"):
            write_params(file, [ParamHeader(name, (3,), "float32")], iter([(name, np.zeros(3, np.float32))]))
