"""Tuning on devices: a tracker and two servers of our own on loopback, killed, refused, and lied to."""

import dataclasses
import io
import json
import shlex
import signal
import socket
import struct
import sys
import threading
from pathlib import Path

import psutil
import pytest
import toy_rules
import tvm
from rpc_farm import KEY, Farm, Served, free_port, wait_for

from halo_tvm.cli._flags import given_options, parser_of
from halo_tvm.cli._main import INTERRUPTED, main
from halo_tvm.config import Environment, RpcConfig, TuneConfig, parse_address, resolve
from halo_tvm.errors import EnvironmentProblem, MissingPackage, UsageError
from halo_tvm.lookup import fingerprint_of
from halo_tvm.records import TuningLog
from halo_tvm.report import tuned as r
from halo_tvm.targets import resolve as target_named
from halo_tvm.tuning.measure import protocol as p
from halo_tvm.tuning.measure.lab import Failure, LabOptions
from halo_tvm.tuning.measure.rpc import RpcLab, refuse_other_targets, serve
from halo_tvm.tuning.measure.rpc.device import Device, device_of
from halo_tvm.tuning.measure.rpc.session import Session
from halo_tvm.tuning.measure.rpc.tracker import Tracker
from halo_tvm.tuning.model import tune_module
from halo_tvm.tuning.task import tasks_of

D = toy_rules.Decision
# The default walks down the columns, which costs many times more than along the rows.
SLOW, FAST = D("slow", 1), D("plain", 1)
ROWS = {"rows": (256, 512)}


@pytest.fixture(scope="module")
def farm():
    pytest.importorskip("tornado", reason="TVM's tracker needs tornado: install the extra rpc")
    made = Farm()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def no_process_is_left(request):
    if "farm" in request.fixturenames:
        request.getfixturevalue("farm")
    before = {child.pid for child in psutil.Process().children()}
    yield
    wait_for(lambda: not [c for c in psutil.Process().children() if c.pid not in before and not spared(request, c)], 10)


def spared(request, child: psutil.Process) -> bool:
    """Servers of the farm stay for the next test."""
    farm = request.getfixturevalue("farm") if "farm" in request.fixturenames else None
    return farm is not None and child.pid in {s.process.pid for s in (*farm.servers, farm.tracker)}


@pytest.fixture
def space(monkeypatch):
    def choose(*decisions):
        monkeypatch.setattr(toy_rules.Toy, "decisions", decisions)

    return choose


def lab_of(farm, **settings):
    options = LabOptions(threads=1, memory_bytes=2 << 30, timeout_s=20.0, modules=("toy_rules",), builders=1)
    return RpcLab(toy_rules.target(), options, farm.address, KEY, seed=0, **settings)


def toy_task():
    (task,) = tasks_of(tvm.IRModule({"f": toy_rules.function(256)}), toy_rules.target(), ROWS).tasks
    return task


@pytest.mark.slow
def test_candidates_on_devices(farm, space):
    """Checked there; one that kills two devices is a crash; what was good before goes on elsewhere."""
    farm.grow(2)
    assert farm.tracker_said == f"tracker at {farm.option}\n"
    assert all(f"with device key {KEY} for tracker {farm.option}" in line for line in farm.said)
    space(SLOW, FAST)
    with lab_of(farm) as lab:
        assert lab.device.threads == 1 and lab.device.flags and lab.device.l1_bytes
        fingerprint = lab.device.fingerprint(toy_rules.target())
        assert (fingerprint.machine, fingerprint.isa, fingerprint.cores) == ("x86_64", "avx2", 1)
        lab.open(toy_task())
        good, wrong, deadly, declined = lab.order([FAST, D("wrong", 1), D("dies", 1), D("decline", 1)])
        assert lab.take(good) > 0
        kinds = {}
        for candidate in (wrong, deadly, declined):
            with pytest.raises(Failure) as caught:
                lab.take(candidate)
            assert caught.value.blamed == candidate
            kinds[candidate] = caught.value.kind
        assert kinds == {wrong: p.WRONG_RESULT, deadly: p.CRASH, declined: p.DECLINED}
        assert lab.restarts == 2
        samples = lab.race([p.DEFAULT_ID, good], 0, 3, 100.0)
        assert {i: len(us) for i, us in samples.items()} == {p.DEFAULT_ID: 3, good: 3}
        # The task is open in a session of its own now: what it holds is there after another one, too.
        lab.open(toy_task())
        lab._session._ends = 0.0  # the time that the server gives a session is over
        assert lab.race([good], 1, 2, 100.0)[good] and lab.restarts == 2
        lab.drop([good])
        assert lab.race([p.DEFAULT_ID], 1, 1, 100.0)
    wait_for(lambda: not any(server.sessions() for server in farm.servers))
    wait_for(lambda: f"2 of key '{KEY}'" in Tracker(farm.address).free())  # servers outlive their sessions


def test_another_kind_of_machine_under_the_same_key(monkeypatch):
    """Its times would be recorded as the first one's."""
    one = Device(2, "x86_64", "", frozenset(), 1 << 15, 1 << 20, 1 << 24)
    other = dataclasses.replace(one, threads=8, l3_bytes=1 << 25)
    devices = [one, dataclasses.replace(one, model="a sibling"), other, one]
    monkeypatch.setattr(Session, "begin", lambda self, lasting_s: devices.pop(0))
    target, address = toy_rules.target(), ("127.0.0.1", 1)
    options = LabOptions(threads=1, memory_bytes=2 << 30, builders=1)
    refused = "devices of one kind.*under the key toy, but one has cores 8 instead of 2, l3_bytes 33554432 instead of"
    with RpcLab(target, options, address, KEY, seed=0) as lab:
        lab._begin_session(1.0)
        with pytest.raises(EnvironmentProblem, match=refused):
            lab._begin_session(1.0)
        assert lab.device == one
    # What was asked before the run decides from the first session on.
    with pytest.raises(EnvironmentProblem, match="cores 2 instead of 8"):
        RpcLab(target, options, address, KEY, seed=0, fingerprint=other.fingerprint(target)).__enter__()


@pytest.mark.slow
def test_a_wrong_key(farm):
    farm.grow(1)
    with pytest.raises(EnvironmentProblem, match="a device with key other .* within 0 s.*[12] of key 'toy'"):
        Tracker(farm.address).request("other", 0.3)


@pytest.mark.slow
def test_a_candidate_that_hangs_on_devices(farm, space):
    """The device is free again soon, though its session still runs the candidate when we leave."""
    farm.grow(1)
    space(SLOW, FAST)
    lab = lab_of(farm)
    lab._options = LabOptions(threads=1, memory_bytes=2 << 30, timeout_s=4.0, modules=("toy_rules",), builders=1)
    with lab:
        lab.open(toy_task())
        good, hanging = lab.order([FAST, D("waits", 1)])
        lab.take(good)
        with pytest.raises(Failure) as caught:
            lab.take(hanging)
        assert (caught.value.kind, caught.value.blamed) == (p.TIMEOUT, hanging)
        assert lab.race([good], 0, 1, 100.0)[good]


@pytest.mark.slow
def test_interrupted():
    pytest.importorskip("tornado", reason="TVM's tracker needs tornado: install the extra rpc")
    both = [Served(action, "--port", str(free_port())) for action in ("tracker", "server")]
    for action, served in zip(("tracker", "server"), both):
        assert served.ready().startswith(f"{action} at 127.0.0.1:")
        served.process.send_signal(signal.SIGINT)
    assert [served.process.wait(20) for served in both] == [INTERRUPTED, INTERRUPTED]
    for served in both:
        served.process.stdout.close()


def test_port_in_use(farm, capsys):
    port = farm.address[1]
    for action in ("tracker", "server"):
        assert main(["rpc", action, "--port", str(port)]) == EnvironmentProblem.exit_code
        assert f"port {port} of 127.0.0.1 should be free, but is in use" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0", "", "192.0.2.7", "::ffff:0.0.0.0"])
@pytest.mark.parametrize("action", ["tracker", "server"])
def test_nobody_else_is_listened_to(host, action, capsys):
    assert main(["rpc", action, "--host", host]) == UsageError.exit_code
    said = capsys.readouterr().err
    assert "TVM's RPC runs any code its peer sends" in said and "--trust-network" in said


def test_what_is_listened_at():
    assert serve.loopback_or_trusted("127.0.0.1", False) == "127.0.0.1"
    assert serve.loopback_or_trusted("localhost", False) in ("127.0.0.1", "::1")
    assert serve.loopback_or_trusted("0.0.0.0", True) == "0.0.0.0"
    with pytest.raises(UsageError, match="must be an address of this machine"):
        serve.loopback_or_trusted("no such host", False)


def test_an_address_of_another_machine(capsys):
    code = main(["rpc", "server", "--host", "192.0.2.7", "--trust-network", "--port", str(free_port())])
    assert code == EnvironmentProblem.exit_code
    assert "it should listen at 192.0.2.7:" in capsys.readouterr().err


def test_a_tracker_of_another_machine(farm, monkeypatch):
    """It would send peers to our own loopback address."""
    monkeypatch.setattr(Tracker, "peer", lambda self: "192.0.2.7")
    with pytest.raises(UsageError, match="is another machine, but the server would listen at 127.0.0.1 only"):
        serve.serve_device("127.0.0.1", free_port(), farm.address, KEY, print)


def test_without_tornado(monkeypatch):
    monkeypatch.setitem(sys.modules, "tvm.rpc.tracker", None)
    with pytest.raises(MissingPackage, match=r"pip install 'halo_tvm\[rpc\]'"):
        serve.serve_tracker("127.0.0.1", free_port(), print)


def test_no_tracker_there():
    with pytest.raises(
        EnvironmentProblem, match="an RPC tracker was expected at 127.0.0.1:.*start `halo-tvm rpc tracker`"
    ):
        Tracker(("127.0.0.1", free_port())).request(KEY, 1.0)


def framed(data: bytes) -> bytes:
    return struct.pack("<i", len(data)) + data


MAGIC = struct.pack("<i", 0x2F271)
LIES = {
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n",
    "silence": b"",
    "too long": MAGIC + struct.pack("<i", 1 << 30),
    "negative": MAGIC + struct.pack("<i", -5),
    "torn": MAGIC + struct.pack("<i", 100) + b"[0",
    "no JSON": MAGIC + framed(b"\xff\xfe"),
    "nested": MAGIC + framed(b"[" * 100_000),
    "a number": MAGIC + framed(b"7"),
    "failure": MAGIC + framed(b'[-1, ["127.0.0.1", 1, "k"]]'),
    "no port": MAGIC + framed(b'[0, ["127.0.0.1", "1", "k"]]'),
    "port 0": MAGIC + framed(b'[0, ["127.0.0.1", 0, "k"]]'),
    "options": MAGIC + framed(b'[0, ["127.0.0.1", 1, "k -timeout=99999"]]'),
    "a long host": MAGIC + framed(json.dumps([0, ["a" * 300, 1, "k"]]).encode()),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
@pytest.mark.parametrize("ask", [lambda t: t.request(KEY, 2.0), lambda t: t.free()], ids=["request", "free"])
def test_what_is_no_tracker(lie, ask):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(4)

        def answer():
            connection, _ = listening.accept()
            with connection:
                connection.recv(4)
                connection.sendall(lie)

        liar = threading.Thread(target=answer)
        liar.start()
        with pytest.raises(EnvironmentProblem, match="what answers there is none"):
            ask(Tracker(listening.getsockname()))
        liar.join(10)


def test_a_tracker_that_lists_anything():
    queues = {f"key{i}": {"free": 1} for i in range(20)} | {"x\n\x1b[31m": {"free": 2}, "odd": 3, "none": {"free": "1"}}
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1)

        def answer():
            connection, _ = listening.accept()
            with connection:
                connection.sendall(MAGIC + framed(json.dumps([0, {"queue_info": queues}]).encode()))
                connection.recv(64)

        liar = threading.Thread(target=answer)
        liar.start()
        said = Tracker(listening.getsockname()).free()
        liar.join(10)
    assert said.startswith("free servers: 1 of key 'key0'") and said.endswith("and 13 more keys") and "\x1b" not in said


HONEST = {
    "machine": "x86_64",
    "model": "some CPU",
    "flags": ["avx2"],
    "cores": 4,
    "l1_bytes": 1,
    "l2_bytes": 2,
    "l3_bytes": 3,
}


def test_what_a_device_says():
    device = device_of({"threads": 4, "triple": "x86_64-linux-gnu", "described": json.dumps(HONEST)})
    assert device == Device(4, "x86_64", "some CPU", frozenset({"avx2"}), 1, 2, 3)
    assert device.host.cores == 4
    assert "needs CPU features that the device lacks" in device.refusal(toy_rules.target())
    plain = device_of({"threads": 4, "triple": "aarch64-linux-gnu", "described": None})  # TVM's own server
    assert plain == Device(4, "aarch64", "", frozenset(), 0, 0, 0) and plain.host is None
    assert plain.refusal(toy_rules.target()) == "toy runs on AMD64 or x86_64, and the device is aarch64"
    with pytest.raises(EnvironmentProblem, match=f"under the key {KEY}, but toy runs on AMD64 or x86_64, and"):
        refuse_other_targets(plain, toy_rules.target(), KEY)
    fingerprint = plain.fingerprint(toy_rules.target())
    assert fingerprint.cores == 4 and fingerprint.l2_bytes == toy_rules.SPEC.l2_bytes and fingerprint.l3_bytes == 0


def test_a_devices_gpu():
    def device(gpu):
        return device_of({"threads": 4, "triple": "", "described": json.dumps(HONEST), "gpu": gpu})

    def refusal(**said):
        return device(json.dumps(said)).refusal(target_named("cuda:sm_86"))

    assert refusal(arch="sm_89") == "" and refusal(arch="sm_90a") == ""
    needed = "cuda:sm_86 needs a GPU of sm_86 or a later one like it, and the device's is sm_80"
    assert refusal(arch="sm_80") == needed
    silent = "the device does not say that it has a GPU: start its server with `halo-tvm rpc server`"
    assert refusal() == silent and device(None).refusal(target_named("cuda:sm_86")) == silent
    assert refusal(without="no driver") == "the device has no GPU that measures (no driver)"
    for made_up in ("sm_", "sm_90\n", 90, "sm_" + "9" * 5000, ["sm_90"], {"sm_90": 1}):
        assert refusal(arch=made_up) == silent
    # Its own figures are what records of it are told apart by.
    target = target_named("cuda:sm_90")
    found = device(json.dumps({"arch": "sm_90", "multiprocessors": 78, "l2_bytes": 60 << 20})).fingerprint(target)
    assert (found.cores, found.l2_bytes, found.l3_bytes) == (78, 60 << 20, 0)
    assert fingerprint_of(target).cores == 132 and found.key == fingerprint_of(target).key
    assert device(json.dumps({"arch": "sm_90", "multiprocessors": -1, "l2_bytes": "x"})).fingerprint(target).cores == 0


@pytest.mark.parametrize(
    "described",
    [
        7,
        "[",
        "[" * 100_000,
        "[]",
        '{"flags": 3, "l1_bytes": "x", "machine": ["a"]}',
        '{"l1_bytes": -1, "model": "\\n"}',
        '{"l1_bytes": 1e400, "l2_bytes": NaN, "l3_bytes": true, "machine": null, "flags": {"a": 1}}',
    ],
)
@pytest.mark.parametrize("threads", [None, -3, "2", float("inf"), 1 << 60])
def test_what_a_device_makes_up(described, threads):
    device = device_of({"threads": threads, "triple": 3.5, "described": described})
    assert device == Device(0, "", "", frozenset(), 0, 0, 0)
    assert device.fingerprint(toy_rules.target()).cores == 2


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":9190", "host:x", "host:0", "host:65536", "a b:1", "::1:1", "h:²"]
)
def test_addresses_refused(text):
    with pytest.raises(UsageError, match="--rpc"):
        parse_address(text, "--rpc")


def test_addresses():
    assert parse_address("127.0.0.1:9190", "--rpc") == ("127.0.0.1", 9190)
    assert parse_address("[::1]:1", "--rpc") == ("::1", 1)
    for bad in ({"port": 0}, {"port": 70_000}, {"device_key": "a b"}, {"tracker": "nowhere"}):
        with pytest.raises(UsageError):
            RpcConfig("server", **bad)
    with pytest.raises(UsageError, match="--tracker belongs to a server"):
        RpcConfig("tracker", tracker="127.0.0.1:1")


@pytest.mark.slow
def test_a_run_goes_on_when_a_server_is_killed(farm, space, tmp_path):
    farm.grow(2)
    space(SLOW, FAST, D("vector", 8))
    config = TuneConfig(
        model=("toy",), budget="60s", effort="quick", log=str(tmp_path / "log"), rpc=farm.option, device_key=KEY
    )
    stream = Killing("task 1/1", farm.kill_busy)
    mod = tvm.IRModule({"f": toy_rules.function(1024)})
    result = tune_module(mod, toy_rules.target(), config, ROWS, modules=("toy_rules",), stream=stream)
    assert stream.done and len(farm.servers) == 1
    (task,) = result.tasks
    assert task.outcome == r.IMPROVED and task.decision["mode"] in ("plain", "vector"), str(result)
    assert not task.failures and result.worker_restarts >= 1, str(result)
    log = TuningLog.open(
        [tmp_path / "log"], Device(1, "x86_64", "", frozenset(), 0, 0, 0).fingerprint(toy_rules.target())
    )
    record = log.best(task.key, "toy", 1)
    assert record.speedup_low > 1.0 and record.target["cores"] == 1  # the device's threads, not this host's


class Killing(io.StringIO):
    """A stream that kills once, when it hears the word."""

    def __init__(self, word, kill):
        super().__init__()
        self._word, self._kill, self.done = word, kill, False

    def write(self, text):
        if self._word in text and not self.done:
            self.done = True
            self._kill()
        return super().write(text)


@pytest.mark.slow
def test_no_device_is_left(farm, space):
    """What was measured is not lost: the caller sees one sentence, and no session stays."""
    farm.grow(1)
    space(SLOW, FAST)
    with lab_of(farm, wait_s=2.0) as lab:
        lab.open(toy_task())
        while farm.servers:
            farm.servers.pop().kill()
        with pytest.raises(EnvironmentProblem, match="none came free: free servers: none: start `halo-tvm rpc server"):
            lab.race([p.DEFAULT_ID], 0, 1, 100.0)


def test_the_page_names_real_options():
    text = (Path(__file__).parents[2] / "docs" / "rpc.md").read_text()
    commands = [line.split(" #")[0] for line in text.splitlines() if line.startswith("    halo-tvm")]
    assert len(commands) >= 8
    for command in commands:
        verb, *words = shlex.split(command)[1:]
        kind = {"rpc": RpcConfig, "tune": TuneConfig}[verb]
        resolve(kind, given_options(parser_of(kind, verb, ""), kind, words), environ=Environment(None, "warning"))
