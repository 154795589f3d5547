"""TorchScript files that mean harm: one sentence, bounded time and memory, nothing executed, nothing written."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from halo_tvm.confinement import NEEDED
from halo_tvm.errors import HaloError, UnsupportedModel, UsageError
from halo_tvm.importers._probe import ATTEMPTS
from halo_tvm.importers._restricted import Limits, convert_restricted
from halo_tvm.importers.shapes import parse_input
from halo_tvm.importers.torchscript import import_torchscript
from halo_tvm.importers.torchscript._archive import check_archive

torch = pytest.importorskip("torch")

QUICK = Limits(seconds=60, memory_bytes=1 << 30)


class Endless(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        i = 0
        while i < 1 << 62:
            i += 1
        return x + i


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ts") / "sound.pt"
    torch.manual_seed(0)
    torch.jit.trace(torch.nn.Linear(8, 4).eval(), torch.ones(1, 8)).save(str(path))
    return path


def one_sentence(error: pytest.ExceptionInfo[HaloError]) -> str:
    text = str(error.value)
    assert "\n" not in text and len(text) < 2500
    return text


class Harm:
    """Unpickling this runs a command."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("kind", ["bare", "state_dict", "inside TorchScript"])
def test_pickles_are_not_run(kind: str, sound: Path, tmp_path: Path) -> None:
    mark, path = tmp_path / "mark", tmp_path / "model.pt"
    harm = pickle.dumps(Harm(mark), protocol=2)
    if kind == "bare":
        path.write_bytes(harm)
    elif kind == "state_dict":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model/data.pkl", harm)
            archive.writestr("model/version", "3")
    else:
        with zipfile.ZipFile(sound) as old, zipfile.ZipFile(path, "w") as new:
            for entry in old.infolist():
                new.writestr(entry.filename, harm if entry.filename.endswith("data.pkl") else old.read(entry))
    with pytest.raises(UnsupportedModel) as error:
        import_torchscript(path, shapes=(parse_input("x=1x8"),))
    assert "expected" in one_sentence(error)
    assert not mark.exists()


def test_archives_that_are_no_models_are_refused_by_their_structure(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.pt"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/constants.pkl", b"")
        archive.writestr("m/code/a.py", b"")
        archive.writestr("m/data/0", bytes(64 << 20))
    with pytest.raises(UnsupportedModel, match="unpack to"):
        check_archive(bomb)
    other = tmp_path / "other.pt"
    other.write_bytes(b"no archive at all")
    with pytest.raises(UnsupportedModel, match="TorchScript archive"):
        check_archive(other)
    with pytest.raises(UsageError, match="no file"):
        check_archive(tmp_path / "absent.pt")
    exported = io.BytesIO()
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), exported)
    other.write_bytes(exported.getvalue())
    with pytest.raises(UnsupportedModel, match="torch.export"):
        check_archive(other)


@pytest.mark.parametrize("cut", [0, 1, 100, -200])
def test_truncated(sound: Path, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cut.pt"
    path.write_bytes(sound.read_bytes()[:cut])
    with pytest.raises(UnsupportedModel) as error:
        import_torchscript(path, shapes=(parse_input("x=1x8"),))
    one_sentence(error)


@pytest.mark.slow
def test_flipped_bits_end_in_a_sentence_or_a_model(sound: Path, tmp_path: Path) -> None:
    data = bytearray(sound.read_bytes())
    generator = np.random.default_rng(0)
    for trial in range(3):
        flipped = bytearray(data)
        for place in generator.integers(0, len(data), 20):
            flipped[place] ^= 1 << int(generator.integers(8))
        path = tmp_path / f"flipped{trial}.pt"
        path.write_bytes(flipped)
        try:
            import_torchscript(path, shapes=(parse_input("x=1x8"),))
        except HaloError as error:
            assert "\n" not in str(error)


@pytest.mark.slow
def test_a_loop_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "endless.pt"
    torch.jit.script(Endless()).save(str(path))
    options = {"shapes": [{"name": "x", "dtype": "float32", "ranges": [[1, 1]], "value": None}], "inputs": None}
    with pytest.raises(UnsupportedModel, match="within 20 s|died"):
        convert_restricted("torchscript", path, options, limits=Limits(seconds=20))


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "victim"
    path.write_bytes(b"untouched")
    yield path
    assert path.read_bytes() == b"untouched"


def attempt(path: Path, limits: Limits = QUICK, **targets: object) -> str:
    """What comes of attempts, by their names with "_" for a space, at their targets, one after another."""
    attempts = {name.replace("_", " "): str(target) for name, target in targets.items()}
    assert set(attempts) <= set(ATTEMPTS)
    with pytest.raises(UnsupportedModel) as error:
        convert_restricted("probe", path, {"attempts": attempts}, limits=limits)
    return one_sentence(error)


def test_the_confined_process_reads_its_file_and_writes_at_home(victim: Path) -> None:
    assert attempt(victim, nothing="", write_at_home="") == "nothing: done, write at home: done"


def test_the_confined_process_can_do_nothing_else(victim: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    secret = tmp_path_factory.mktemp("secret") / "file"
    secret.write_bytes(b"secret")
    aimed = {"write": secret.parent / "new", "remove": secret, "read": secret, "list": secret.parent}
    others = ("write_the_model", "chmod", "touch", "symlink", "socket", "unix_socket", "program", "fork")
    answers = attempt(victim, **aimed, **dict.fromkeys(others, ""), signal=os.getppid()).split(", ")
    assert len(answers) == len(aimed) + len(others) + 1
    assert not [answer for answer in answers if ": refused (" not in answer]
    assert os.listdir(secret.parent) == ["file"]


@pytest.mark.parametrize("name", ["abort", "crash"])
@pytest.mark.slow
def test_a_crash_is_one_sentence(name: str, victim: Path) -> None:
    assert "died" in attempt(victim, **{name: ""})


@pytest.mark.slow
def test_memory_and_time_are_bounded(victim: Path) -> None:
    assert "memory" in attempt(victim, memory="")
    assert "within 8 s" in attempt(victim, Limits(seconds=8), endless="")


@pytest.mark.slow
def test_the_restrictions_are_reported(sound: Path) -> None:
    model = import_torchscript(sound, shapes=(parse_input("x=1x8"),))
    assert set(NEEDED) <= set(model.report["restrictions"])
