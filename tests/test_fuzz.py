"""A small run of ``make fuzz``: structured garbage stops no operator and no gateway, every record is accounted for."""

from __future__ import annotations

import logging

import pytest

from benchmarks.attack import GOOD, two_users
from benchmarks.fuzz import ROOMS, run
from benchmarks.fuzzing.connections import Client, Wire, faults, is_trace, open_all
from benchmarks.fuzzing.garbage import Garbage
from benchmarks.fuzzing.room import Room
from tests.gateway.test_server import serving
from tests.harness.waiting import eventually

SEED = 20_261_122


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_no_record_stops_an_operator_and_each_is_accounted_for(room: type[Room]) -> None:
    (report,) = run(SEED, round(2_000 / room.share), [room]).values()
    assert report["records"] == 2_000
    assert (report["stops"], report["wrong"], report["nets"]) == (0, 0, {}), "\n".join(report["shown"][:3])


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_the_seed_decides_what_is_sent(room: type[Room]) -> None:
    first, second = ([made.make() for _ in range(200)] for made in (room(Garbage(SEED)), room(Garbage(SEED))))
    assert list(map(str, first)) == list(map(str, second))


def test_all_shares_are_the_whole() -> None:
    assert sum(room.share for room in ROOMS) == pytest.approx(1)


class _Broken(Room):
    name, share = "broken", 1.0

    def make(self) -> int:
        return self.chance.randrange(100)

    def feed(self, records: list[int]) -> None:  # type: ignore[override]
        if 7 in records:
            raise ValueError(7)
        self.counts["fed"] += len(records)


def test_a_record_that_stops_its_batch_is_found_and_the_others_are_fed() -> None:
    (report,) = run(SEED, 3_000, [_Broken]).values()
    assert report["stops"] > 0
    assert report["ends"]["fed"] + report["stops"] == 3_000
    assert report["shown"][0].startswith("7: ")


# -- connections of the gateway ----------------------------------------------------------------------------------------


def test_no_connection_leaves_a_line_in_the_log_or_stays_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # its records go no further
    monkeypatch.setattr(logging.getLogger("uvicorn"), "handlers", [caplog.handler])
    with serving(**two_users()) as running:
        found = open_all(Client(SEED, running.port), range(300))
        assert (found["connections"], found["wrong"]) == (300, [])
        assert {"status 101", "status 400"} <= set(found["ends"])
        assert running.ask(auth=(GOOD, "pw")).status_code == 204
        running.close()
        eventually(lambda: running.open == 0, "the end of the connections")
    assert not [line.getMessage() for line in caplog.records if line.levelno >= logging.WARNING]


def test_the_seed_decides_what_a_connection_sends() -> None:
    first, second = ([Wire(f"{SEED} {number}").pieces() for number in range(200)] for _ in range(2))
    assert first == second
    assert len({b"".join(pieces) for pieces in first}) > 190


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"", 0),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", 0),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n\x88\x02\x03\xe8", 0),
        (b"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 500 Internal Server Error\r\n\r\n", 1),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n\x88\x02\x03\xf3", 1),
        (b"\x8a\x00", 1),
    ],
)
def test_faults_of_the_gateway_are_seen_in_what_it_sends(data: bytes, count: int) -> None:
    assert len(faults(data)) == count


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("Traceback (most recent call last):", True),
        ("ERROR:uvicorn.error:Exception in ASGI application", True),
        ("WARNING:x:Ending a connection from ::1, whose data cannot be handled: AssertionError()", True),
        ("INFO:x:A connection from ::1 was not secured: EOF", False),
    ],
)
def test_a_trace_is_seen_in_the_log(line: str, *, found: bool) -> None:
    assert is_trace(line) is found
