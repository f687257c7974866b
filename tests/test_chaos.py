"""The schedule of ``make chaos``, and how its report is kept."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from ackstream.settings import Settings
from ackstream.settings.jobs import QueueSettings
from benchmarks.chaos import FAULTS, PROGRAMS, ROUND, SPANS, WEIGHTS, schedule, targets, write
from tests.harness import programs
from tests.harness.disks import Disk, Machine
from tests.harness.faults import LEASE
from tests.harness.invariants import compare, requests, single
from tests.harness.ports import free_ports
from tests.harness.processes import Program
from tests.harness.waiting import eventually


def test_a_seed_gives_the_same_faults_again_and_another_gives_others() -> None:
    count = FAULTS[1]
    assert schedule(1, count, targets(1)) == schedule(1, count, targets(1))
    assert schedule(1, count, targets(1)) != schedule(2, count, targets(1))


@pytest.mark.parametrize(("brokers", "count"), FAULTS.items())
def test_every_fault_is_done_to_everything_that_it_can_be_done_to(brokers: int, count: int) -> None:
    faults = schedule(3, count, targets(brokers))
    assert len(faults) == count
    found = Counter((fault.kind, fault.target) for fault in faults)
    assert found.keys() == {(kind, name) for kind, names in targets(brokers).items() for name in names}
    assert {("kill", name) for name in PROGRAMS} <= found.keys()
    for fault in faults:
        first, last = SPANS.get(fault.kind, (0, 0))
        assert first <= fault.lasts <= last


def test_both_runs_together_have_300_faults_and_each_has_several_rounds() -> None:
    assert sum(FAULTS.values()) >= 300
    assert min(FAULTS.values()) >= 4 * ROUND


def test_a_run_may_have_some_kinds_of_faults_alone() -> None:
    assert targets(1).keys() == WEIGHTS.keys()
    assert targets(1, {"power", "links"}).keys() == {"power", "links"}
    assert {fault.kind for fault in schedule(3, 20, targets(1, {"power", "links"}))} == {"power", "links"}


def test_the_job_of_queues_is_away_for_longer_than_a_lease_and_nothing_else_lasts_as_long() -> None:
    lease = QueueSettings(name="q", topics=("t",), lease=LEASE).lease / 1000
    others = [last for kind, (_, last) in SPANS.items() if kind != "away"]
    assert max(others) < lease < SPANS["away"][0]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    if not machine.made:
        pytest.skip("no compiler of C")
    return machine


def _says(code: str, environment: dict[str, str]) -> str:
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    return found.stdout.strip()


def test_the_clock_of_brokers_can_be_set_and_that_of_programs_stays(machine: Machine) -> None:
    look = "import time; print(time.time(), time.clock_gettime(time.CLOCK_REALTIME), time.monotonic())"
    for seconds in (7_200, -7_200):
        machine.set_clock(seconds)
        for environment, ahead in ((machine.brokers, seconds), (machine.programs, 0)):
            before = time.time(), time.time(), time.monotonic()
            wall, same, passing = (
                now - then for now, then in zip(map(float, _says(look, environment).split()), before, strict=True)
            )
            assert round(wall - passing, -2) == round(same - passing, -2) == ahead


def test_a_disk_may_refuse_hard_links(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    link = f"import os; os.link({str(tmp_path / 'file')!r}, {str(tmp_path / 'name')!r})"
    machine.allow_links(allowed=False)
    with pytest.raises(subprocess.CalledProcessError) as refused:
        _says(link, machine.programs)
    assert "Operation not permitted" in refused.value.stderr
    machine.allow_links(allowed=True)
    _says(link, machine.programs)
    assert (tmp_path / "name").exists()


def test_a_disk_that_loses_its_power_keeps_what_was_synced_and_a_full_one_takes_nothing(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk", 8 * 1024**2)
    try:
        if not disk.made:
            pytest.skip("file systems cannot be mounted here")
        for name in ("lost", "synced"):
            with (disk.place / name).open("wb", buffering=0) as file:
                file.write(name.encode())
                if name == "synced":
                    os.fsync(file.fileno())
        disk.cut()
        with pytest.raises(OSError, match="Input/output error"):
            (disk.place / "after").touch()
        disk.restore()
        assert (disk.place / "synced").read_bytes() == b"synced"
        assert not (disk.place / "lost").exists() or (disk.place / "lost").read_bytes() == b""
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (disk.place / "more").write_bytes(bytes(64 * 1024))
        disk.empty()
        (disk.place / "more").write_bytes(bytes(64 * 1024))
    finally:
        disk.remove()


def test_a_run_takes_the_place_of_an_earlier_one_with_as_many_brokers(tmp_path: Path) -> None:
    for brokers, faults, violations in ((3, 6, []), (1, 5, ["lost"]), (3, 60, []), (1, 150, [])):
        write({"brokers": brokers, "faults": faults, "violations": violations}, tmp_path)
    report = json.loads((tmp_path / "chaos.json").read_text("utf-8"))
    assert (report["faults"], report["violations"]) == (210, 0)
    assert [run["brokers"] for run in report["runs"]] == [1, 3]


def test_a_violation_names_what_is_missing_what_is_too_many_and_what_is_there_twice() -> None:
    assert list(compare("rows", [1, 2, 2], [2, 1, 2])) == []
    assert list(compare("rows", {1: "a", 2: "b"}, [1, 2])) == []
    assert list(compare("rows", [1, 2, 2], [2, 3])) == ["rows: 1 missing: 3", "rows: 2 too many: 1, 2"]
    assert list(compare("rows", range(20), ())) == ["rows: 20 too many: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …"]
    assert list(single("rows", [(1, "a"), (1, "b"), (1, "a")])) == ["rows: 1 more than once: (1, 'a')"]


@pytest.mark.parametrize(
    ("timestamps", "wanted"),
    [
        pytest.param((0, 114_000), 1, id="within the memory"),
        pytest.param((0, 115_000), 1, id="at its end"),
        pytest.param((0, 116_000), 2, id="the clock was set ahead"),
        pytest.param((0, 116_000, 5_000), 2, id="and back again"),
    ],
)
def test_a_record_sent_again_is_another_request_only_once_its_id_is_forgotten(
    timestamps: tuple[int, ...], wanted: int
) -> None:
    sent = [
        SimpleNamespace(partition=1, offset=offset, timestamp=timestamp, headers=[("correlation-id", b"a")])
        for offset, timestamp in enumerate(timestamps)
    ]
    assert requests(reversed(sent), {(1, 0): 55_000, (1, 1): 55_000}, 60_000) == {"a": wanted}


def test_a_stopped_proxy_holds_everything_and_a_killed_one_cuts_the_connections(tmp_path: Path) -> None:
    (port,) = free_ports(1)

    def connected() -> socket.socket | None:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=5)
        except ConnectionRefusedError:
            return None

    with socket.create_server(("127.0.0.1", 0)) as broker:
        arguments = ["-c", programs.PROXY, str(port), str(broker.getsockname()[1])]
        proxy = Program("proxy", arguments, Settings(), tmp_path)
        try:
            client = eventually(connected, "the proxy")
            peer, _ = broker.accept()
            with client, peer:
                proxy.pause()
                client.sendall(b"held")
                with socket.create_connection(("127.0.0.1", port), timeout=5):
                    peer.settimeout(0.2)
                    with pytest.raises(TimeoutError):
                        peer.recv(4)
                peer.settimeout(5)
                proxy.resume()
                assert peer.recv(4) == b"held"
                peer.sendall(b"answer")
                assert client.recv(6) == b"answer"
                proxy.kill()
                assert peer.recv(1) == b""
        finally:
            proxy.kill()
