"""The worker protocol: every way an engine can end is one `PeerFailed` with a reason."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from halo_tvm.errors import PeerFailed
from halo_tvm.peers.client import Peer
from halo_tvm.peers.protocol import LoadRequest, split_cases

FAKE = Path(__file__).with_name("fake_engine.py")


def fake(behaviour: str) -> list[str]:
    return [sys.executable, str(FAKE), behaviour]


@pytest.fixture
def request_(tmp_path):
    np.savez(tmp_path / "inputs.npz", x=np.arange(3.0))
    return LoadRequest("model", 1, str(tmp_path / "inputs.npz"), {"compile": True}).to_json()


def test_load_time_memory_and_outputs(request_, tmp_path):
    np.savez(
        tmp_path / "cases.npz",
        **{"case0.input.x": np.ones(2), "case0.output.y": np.ones(2), "case1.input.x": np.zeros(1)},
    )
    with Peer("fake", fake("plain")) as peer:
        reply = peer.ask("load", request=request_)
        assert reply["version"] == "1.2.3" and reply["load_s"] > 0
        samples = peer.ask("time", runs=4, pause_s=0.0)["milliseconds"]
        assert len(samples) == 4 and all(sample > 0 for sample in samples)
        assert peer.ask("memory")["peak_rss_mib"] > 1
        assert peer.ask("outputs", cases=str(tmp_path / "cases.npz"), path=str(tmp_path / "out.npz"))["cases"] == 2
    with np.load(tmp_path / "out.npz") as out:
        assert split_cases(out, "output")["case0"]["y"].tolist() == [2.0, 2.0]


def test_what_an_engine_prints_does_not_reach_the_protocol(request_):
    with Peer("fake", fake("noisy")) as peer:
        assert peer.ask("load", request=request_)["ok"]


def test_an_engine_that_raises_is_reported_and_lives_on(request_):
    with Peer("fake", fake("raises")) as peer:
        with pytest.raises(PeerFailed, match="engine fake could not load: ValueError: cannot read the model"):
            peer.ask("load", request=request_)
        assert peer.ask("memory")["ok"]


def test_a_missing_engine_says_how_to_install_it(request_):
    with Peer("fake", fake("missing")) as peer, pytest.raises(PeerFailed, match="pip install fakeengine") as error:
        peer.ask("load", request=request_)
    assert error.value.missing and error.value.exit_code == 5


def test_a_crash_carries_signal_and_last_words(request_):
    with Peer("fake", fake("crash")) as peer:
        peer.ask("load", request=request_)
        with pytest.raises(
            PeerFailed, match=r"ended with signal 6; its last words: (.|\n)*illegal instruction in kernel 7"
        ):
            peer.ask("time", runs=10, pause_s=0.0)


def test_garbage_is_refused(request_):
    with Peer("fake", fake("garbage")) as peer, pytest.raises(PeerFailed, match="found b'this is not JSON'"):
        peer.ask("load", request=request_)


def test_a_hanging_engine_is_stopped(request_):
    with Peer("fake", fake("hang")) as peer:
        peer.ask("load", request=request_)
        with pytest.raises(PeerFailed, match="within 0.5 s, found none"):
            peer.ask("time", timeout_s=0.5, runs=10, pause_s=0.0)


def test_a_command_that_cannot_start_is_a_death(request_):
    with (
        Peer("fake", [sys.executable, "-c", "raise SystemExit(3)"]) as peer,
        pytest.raises(PeerFailed, match="exit code 3"),
    ):
        peer.ask("load", request=request_)


@pytest.mark.slow
def test_memory_is_the_workers_own(request_):
    ballast = np.ones(64 << 20, np.float64)  # 512 MiB in the parent
    with Peer("fake", fake("plain")) as peer:
        peer.ask("load", request=request_)
        assert peer.ask("memory")["peak_rss_mib"] < ballast.nbytes / (1 << 20)
