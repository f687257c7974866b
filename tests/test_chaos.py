"""The schedule of ``make chaos``, and how its report is kept."""

from __future__ import annotations

import json
import socket
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from ackstream.settings import Settings
from benchmarks.chaos import FAULTS, PROGRAMS, ROUND, SPANS, schedule, targets, write
from tests.harness import programs
from tests.harness.invariants import compare, single
from tests.harness.ports import free_ports
from tests.harness.processes import Program
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path


def test_a_seed_gives_the_same_faults_again_and_another_gives_others() -> None:
    assert schedule(1, 150, targets(1)) == schedule(1, 150, targets(1))
    assert schedule(1, 150, targets(1)) != schedule(2, 150, targets(1))


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


def test_both_runs_together_have_200_faults_and_each_has_several_rounds() -> None:
    assert sum(FAULTS.values()) >= 200
    assert min(FAULTS.values()) >= 4 * ROUND


def test_a_machine_that_cannot_fill_a_disk_has_the_other_faults() -> None:
    assert targets(1, disks=False).keys() == targets(1).keys() - {"disk"}
    assert "disk" not in {fault.kind for fault in schedule(3, 150, targets(1, disks=False))}


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
