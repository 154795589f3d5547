"""Files that list models: what a line means, and every way such a file can be wrong."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_tvm.config import TuneConfig
from halo_tvm.errors import UsageError
from halo_tvm.tuning import model_list
from halo_tvm.tuning.model import models_of
from halo_tvm.tuning.model_list import ListedModel, once_each, read_model_list

KNOWN = ("gpt2", "mlp")


def listed(folder: Path, text: str | bytes) -> Path:
    path = folder / "models.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_list(tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "gpt2").touch()  # a file that is named like a built-in model does not replace it
    text = """\ufeff# all of ours
gpt2 weight=3   # the important one
nets

"nets/with space, and comma.onnx" shape=x=1..8x3 shape=y=2 inputs=cases/x.npz
/somewhere/else.onnx
./nosuch
openai-community/gpt2
c#.onnx
"""
    assert read_model_list(listed(tmp_path, text), KNOWN) == [
        ListedModel("gpt2", weight=3),
        ListedModel(str(tmp_path / "nets")),
        ListedModel(
            str(tmp_path / "nets/with space, and comma.onnx"), ("x=1..8x3", "y=2"), str(tmp_path / "cases/x.npz")
        ),
        ListedModel("/somewhere/else.onnx"),
        ListedModel(str(tmp_path / "nosuch")),
        ListedModel("openai-community/gpt2"),
        ListedModel(str(tmp_path / "c#.onnx")),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names none: add one"),
        ("# nothing\n\n   \n", "names none"),
        ("gpt2 mlp\n", "line 1 of .*'mlp' was found: quote"),
        ("gpt2\nmlp wieght=2\n", "unknown option in line 2 of .* 'wieght'.*did you mean 'weight'"),
        ("gpt2 weight=0\n", "a weight is a whole number from 1"),
        ("gpt2 weight=-1\n", "a weight is"),
        ("gpt2 weight=1e3\n", "a weight is"),
        ("gpt2 weight=\u0662\n", "a weight is"),
        (f"gpt2 weight={10**40}\n", "a weight is"),
        ("'gpt2\n", "No closing quotation: close the quotes"),
        ("''\n", "its name is empty"),
        ("gpt2\x00\n", "control character"),
        ("\x1b[2Jgpt2\n", "control character"),
        (b"\xff\xfe\x00", "must be a text file in UTF-8, but byte 0"),
        ("a\n" * 1001, "at most 1000 models"),
        ("a" * ((1 << 20) + 1), "at most 1 MiB"),
    ],
)
def test_refused(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_model_list(listed(tmp_path, text), KNOWN)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist: correct --model-list"):
        read_model_list(tmp_path / "none")
    with pytest.raises(UsageError, match="is no regular file"):
        read_model_list(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is no regular file"):
        read_model_list(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is no regular file"):
        read_model_list("/dev/zero")


@given(st.text(max_size=200))
def test_any_text_is_a_list_or_refused_in_a_sentence(text: str) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"halo-tvm-list-{os.getpid()}.txt"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        models = read_model_list(path, KNOWN)
    except UsageError as error:
        assert len(str(error)) > 20
    else:
        assert models and all(m.model and m.weight >= 1 for m in models)
    finally:
        path.unlink()


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=30).filter(
                lambda name: not name.startswith("#")
            ),
            st.integers(1, model_list.MOST_WEIGHT),
        ),
        min_size=1,
        max_size=10,
    )
)
def test_what_is_quoted_comes_back(entries: list[tuple[str, int]]) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"halo-tvm-quoted-{os.getpid()}.txt"
    path.write_text("\n".join(f"{shlex.quote(name)} weight={weight}" for name, weight in entries), encoding="utf-8")
    try:
        found = read_model_list(path, known={name for name, _ in entries})
    finally:
        path.unlink()
    assert [(m.model, m.weight) for m in found] == entries


def test_each_once() -> None:
    a, b = ListedModel("a"), ListedModel("b", shape=("x=1",))
    assert once_each([a, b, ListedModel("a", weight=2), a]) == [ListedModel("a", weight=2), b]


def test_flags_and_list_together(tmp_path: Path) -> None:
    path = listed(tmp_path, "mlp\ngpt2\nnet.onnx\n")
    models = models_of(TuneConfig(model=("gpt2", "gpt2"), model_list=str(path)))
    assert [m.model for m in models] == ["gpt2", "mlp", str(tmp_path / "net.onnx")]
    assert models_of(TuneConfig(model="a,b.onnx", shape=("x=1",))) == [ListedModel("a,b.onnx", ("x=1",))]
    with pytest.raises(UsageError, match="--shape belongs to one model, but 2 were given: .*shape=... behind"):
        models_of(TuneConfig(model=("gpt2", "mlp"), shape=("x=1",)))
    with pytest.raises(UsageError, match="--inputs belongs to one model"):
        models_of(TuneConfig(model=("gpt2", "mlp"), inputs="x.npz"))
