"""A Ctrl-C that a library loses is noted, and raised before what cannot be taken back."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from children import heeding_interrupts

from halo_tvm import compiler
from halo_tvm.cli import main
from halo_tvm.errors import INTERRUPTED
from halo_tvm.interrupts import noted, raise_noted


@pytest.fixture(autouse=True)
def heeded() -> Iterator[None]:
    """A job that a script put into the background ignores SIGINT, and so do the tests that it runs."""
    with heeding_interrupts():
        yield


def lose_one() -> None:
    with suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_raised_again() -> None:
    raise_noted()
    with noted() as outer, noted() as inner:
        lose_one()
        assert len(outer) == len(inner) == 1
        with pytest.raises(KeyboardInterrupt):
            raise_noted()
    raise_noted()  # what came in a block is its block's


def test_an_inner_block_leaves_the_outer_one_open() -> None:
    with noted():
        with noted():
            pass
        lose_one()
        with pytest.raises(KeyboardInterrupt):
            raise_noted()


def test_ignored_where_the_process_ignores_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with noted() as seen:
            signal.raise_signal(signal.SIGINT)
            raise_noted()
        assert not seen
    finally:
        signal.signal(signal.SIGINT, before)


def test_compile_ends_by_one_that_an_importer_loses(tmp_path: Path, monkeypatch, capsys) -> None:
    import_model = compiler.import_model

    def loses_one(*given, **named):
        lose_one()
        return import_model(*given, **named)

    monkeypatch.setattr(compiler, "import_model", loses_one)
    assert main(["compile", "--model", "mlp", "-o", str(tmp_path / "mlp.halo")]) == INTERRUPTED
    assert capsys.readouterr().err.splitlines()[-1] == "halo-tvm: interrupted"
    assert not list(tmp_path.iterdir())
