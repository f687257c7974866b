"""The budget of a connection: what a client may send, how much of the event loop it takes, and how it is ended."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from websockets.sync.client import connect

from ackstream.gateway import server
from ackstream.gateway.http.translation import MAX_FORM_PARAMETERS
from ackstream.gateway.middleware import connections
from ackstream.gateway.middleware.admission import LOOP_BURST_SECONDS, LOOP_SHARE, Doors
from ackstream.gateway.middleware.connections import (
    CONTROL_BURST,
    MAX_FRAGMENTS,
    MAX_HEADERS,
    MAX_PARAMETERS,
    MAX_TARGET_BYTES,
    MeteredConnection,
    check_head,
)
from tests.gateway.middleware.test_connections import ONE_USER, SIGNED_IN, authority, settings, trusting
from tests.gateway.parts import Web, response
from tests.gateway.test_server import HOST, SMALL, THING, UPGRADE, closed, serving
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    import socket

assert authority, "a fixture"

OPEN = "ackstream.gateway.access.authentication"
"""Warns that authentication is off."""

PING, PONG, TEXT, BINARY, MORE, CLOSE = 0x89, 0x8A, 0x81, 0x82, 0x00, 0x88
WRONG = b"authorization: Basic YWRtaW46d3Jvbmc=\r\n"
LISTENING = UPGRADE % (b"", b"")


def frame(kind: int, data: bytes = b"") -> bytes:
    """Return a short frame of a client, whose mask changes nothing."""
    return bytes([kind, 0x80 | len(data), 0, 0, 0, 0]) + data


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Return all records; those of uvicorn go no further by themselves."""
    monkeypatch.setattr(logging.getLogger("uvicorn"), "handlers", [caplog.handler])
    return caplog


def lines(log: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings and errors about what clients have sent."""
    return [line.getMessage() for line in log.records if line.levelno >= logging.WARNING and line.name != OPEN]


def until(client: socket.socket, expected: bytes) -> bytes:
    data = b""
    while expected not in data:
        chunk = client.recv(65_536)
        assert chunk, data
        data += chunk
    return data


def opened(client: socket.socket) -> None:
    client.sendall(LISTENING)
    assert until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 101 ")


def end_of(client: socket.socket) -> tuple[int, str]:
    """Read to the end of the connection; return the code and reason of its last frame."""
    data = b""
    with suppress(ConnectionError):
        while chunk := client.recv(65_536):
            data += chunk
    last = data[data.rindex(bytes([CLOSE])) :]
    assert len(last) == 2 + last[1]
    return int.from_bytes(last[2:4], "big"), last[4:].decode()


# -- before the client is known ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("early", [frame(PING, b"A"), frame(0x83), b"\x8f\xff\0\0"], ids=["ping", "opcode", "bits"])
def test_no_frame_is_read_before_the_handshake_is_answered(early: bytes, log: pytest.LogCaptureFixture) -> None:
    with serving(**ONE_USER) as running:
        for _ in range(3):
            with running.raw() as client:
                client.sendall(UPGRADE % (b"", WRONG))
                client.sendall(early)
                assert client.recv(65_536).startswith(b"HTTP/1.1 401 ")
                assert closed(client)
        assert running.ask(headers=SIGNED_IN).status_code == 204
    assert not lines(log)


@pytest.mark.parametrize("apart", [True, False])
def test_frames_sent_before_the_answer_count_afterwards(*, apart: bool) -> None:
    parts = [LISTENING, frame(TEXT, b"START-SEND-EVENTS")]
    with serving() as running, running.raw() as client:
        for part in parts if apart else [b"".join(parts)]:
            client.sendall(part)
        until(client, b"START-SEND-EVENTS:ACK")


def test_a_handshake_that_cannot_be_read_is_refused_and_leaves_no_connection() -> None:
    with serving() as running, running.raw() as client:
        client.sendall(UPGRADE % (b"", b"x-y: %b\r\n" % (b"a" * 9_000)))
        assert client.recv(65_536).startswith(b"HTTP/1.1 431 ")
        assert closed(client)
        eventually(lambda: running.open == 0, "the end of the connection")


def test_a_client_that_never_ends_its_tls_does_not_end_the_gateway(
    authority: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_TICKS", 1)
    with serving(**settings(authority)) as running:
        trusted = trusting(authority)
        with (
            running.raw() as plain,
            trusted.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=True) as client,
        ):
            client.sendall(UPGRADE % (b"?x=1", b""))
            assert client.recv(65_536).startswith(b"HTTP/1.1 400 ")
            with httpx.Client(verify=trusted, base_url=f"https://localhost:{running.port}") as other:
                for _ in range(5):
                    # the look at all connections, ten times a second
                    time.sleep(0.2)
                    assert other.put(f"{THING}/attributes/x", json=1).status_code == 204


# -- heads -------------------------------------------------------------------------------------------------------------


def head(target: bytes = b"/", headers: int = 1, end: bytes = b"\r\n") -> bytes:
    return b"GET %b HTTP/1.1%b" % (target, end) + b"".join(b"a%d: b%b" % (n, end) for n in range(headers)) + end


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (head(), None),
        (b"", None),
        (head(b"/" * (MAX_TARGET_BYTES - 14), MAX_HEADERS), None),
        (head(b"/" * MAX_TARGET_BYTES), 414),
        (b"G" * (MAX_TARGET_BYTES + 1), 414),
        (head(b"/?" + b"a&" * (MAX_PARAMETERS - 1)), None),
        (head(b"/?" + b"a&" * MAX_PARAMETERS), 414),
        (head(b"/", MAX_HEADERS + 1), 431),
        (head(b"/", MAX_HEADERS + 1, b"\n"), 431),
        (head(b"/", MAX_HEADERS + 1)[:-2], 431),
        # lines of a body are none of the head
        (head(b"/", MAX_HEADERS) + b"\r\n" * 1_000, None),
        (head(b"/", MAX_HEADERS, b"\n") + b"\n" * 1_000, None),
    ],
)
def test_a_head_is_refused_by_its_length_before_it_is_parsed(data: bytes, status: int | None) -> None:
    found = check_head(data)
    assert (found and found.status) == status


@pytest.mark.parametrize(
    ("data", "status"),
    [(head(b"/?" + b"a&" * 30_000), 414), (head(b"/" * 60_000), 414), (head(headers=11_000), 431)],
)
def test_a_refused_head_gets_the_reason_and_the_end(data: bytes, status: int, log: pytest.LogCaptureFixture) -> None:
    with serving() as running, running.raw() as client:
        # the second one of a connection, too
        client.sendall(f"GET {THING} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        assert client.recv(65_536).startswith(b"HTTP/1.1 204 ")
        with suppress(ConnectionError):
            client.sendall(data)
        found = b""
        with suppress(ConnectionError):
            while chunk := client.recv(65_536):
                found += chunk
        assert found.startswith(b"HTTP/1.1 %d " % status)
        assert json.loads(found.partition(b"\r\n\r\n")[2])["status"] == status
        eventually(lambda: running.open == 0, "the end of the connection")
    assert not lines(log)


def test_the_query_of_an_unknown_sender_is_not_parsed() -> None:
    web = Web(response(200, {}), **ONE_USER)
    assert "correlation-id" not in web("GET", f"{THING.removeprefix('/api/2')}?correlation-id=c").headers
    known = {"headers": SIGNED_IN}
    assert web("GET", "/nothing?correlation-id=c", **known).headers["correlation-id"] == "c"
    given = web("GET", "/nothing", headers={"correlation-id": "c"})
    assert (given.status_code, given.headers["correlation-id"]) == (401, "c")


def test_a_form_of_many_parameters_is_refused_before_it_is_parsed() -> None:
    web = Web(response(200, {"items": []}))
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert web("POST", "/search/things", headers=form, content=b"option=size(1)").status_code == 200
    found = web("POST", "/search/things", headers=form, content=b"a&" * MAX_FORM_PARAMETERS)
    assert (found.status_code, found.json()["error"]) == (413, "gateway:payload.toolarge")


# -- frames ------------------------------------------------------------------------------------------------------------


def test_pings_that_are_not_read_are_not_answered() -> None:
    with serving() as running, running.raw(SMALL) as client:
        opened(client)
        (one,) = running.gateway.server_state.connections
        largest, chunk = 0, frame(PING, b"x" * 125) * 1_000
        # as those of one that keeps within the limit, in minutes
        one._control.take = lambda *_: 0.0
        client.settimeout(0.5)
        with suppress(TimeoutError):
            for _ in range(150):
                client.sendall(chunk)
                largest = max(largest, one.transport.get_write_buffer_size())
    assert largest < 500_000


@pytest.mark.parametrize("kind", [PING, PONG])
def test_more_control_frames_than_any_client_needs_end_a_websocket(kind: int, log: pytest.LogCaptureFixture) -> None:
    with serving() as running, running.raw() as client:
        opened(client)
        client.sendall(frame(kind) * 100)
        client.sendall(frame(TEXT, b"START-SEND-EVENTS"))
        until(client, b"START-SEND-EVENTS:ACK")
        with suppress(ConnectionError):
            client.sendall(frame(kind) * (2 * int(CONTROL_BURST)))
        assert end_of(client) == (1008, "More than 100 pings and pongs per second.")
        assert running.ask().status_code == 204
    assert not lines(log)


def test_a_message_has_a_number_of_fragments_at_most(log: pytest.LogCaptureFixture) -> None:
    with serving() as running, running.raw() as client:
        opened(client)
        text = b"START-SEND-EVENTS"
        parts = [frame(1 if n == 0 else MORE, text[n : n + 1]) for n in range(len(text))]
        client.sendall(b"".join(parts) + frame(MORE) * (MAX_FRAGMENTS - len(parts) - 1) + frame(0x80))
        assert client.recv(65_536) == b"\x81\x15START-SEND-EVENTS:ACK"
        with suppress(ConnectionError):
            client.sendall(frame(1) + frame(MORE) * 2_000)
        assert end_of(client) == (1008, "The message has more than 1000 fragments.")
    assert not lines(log)


@pytest.mark.parametrize(
    "part", [frame(1, b"START"), frame(TEXT, b"START")[:-1], b"\x81"], ids=["fragment", "frame", "head"]
)
def test_a_message_has_a_time_to_be_complete(part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(server, "_TICKS", 1)
    with serving() as running, running.raw() as client, running.raw() as other:
        opened(client)
        opened(other)
        client.sendall(part)
        assert end_of(client) == (1008, "The message did not arrive in time.")
        # one that owes nothing stays
        other.sendall(frame(TEXT, b"START-SEND-EVENTS"))
        assert other.recv(65_536) == b"\x81\x15START-SEND-EVENTS:ACK"


def test_a_binary_message_is_answered_by_an_error_and_counts_as_a_message() -> None:
    with (
        serving(max_requests=5, **ONE_USER) as running,
        connect(f"ws://{HOST}:{running.port}/ws/2", additional_headers=SIGNED_IN) as client,
    ):
        began = time.monotonic()
        for _ in range(15):
            client.send(b"binary")
        for _ in range(15):
            assert json.loads(client.recv(PATIENCE_SECONDS))["value"]["error"] == "mediatype.unsupported"
        assert time.monotonic() - began > 0.5


@pytest.mark.parametrize(
    "data",
    [
        frame(TEXT, b"\xff\xfe") + frame(CLOSE),
        frame(1, b"\xff") + frame(CLOSE),
        frame(CLOSE, b"\x03\xe8\xff"),
        frame(CLOSE, b"\0"),
        frame(PING) * 2_000 + frame(CLOSE),
        frame(PING) * 2_000 + frame(0x83),
        frame(MORE),
    ],
)
def test_no_frames_leave_a_trace(data: bytes, log: pytest.LogCaptureFixture) -> None:
    with serving() as running:
        with running.raw() as client:
            opened(client)
            with suppress(ConnectionError):
                client.sendall(data)
            assert closed(client)
        eventually(lambda: running.open == 0, "the end of the connection")
        assert running.ask().status_code == 204
    assert not [line for line in log.records if line.exc_info or line.levelno >= logging.ERROR]


# -- turns -------------------------------------------------------------------------------------------------------------


class Socket:
    """The transport of the system; it knows whether it is read."""

    def __init__(self) -> None:
        self.reading, self.closing = True, False

    def get_extra_info(self, _name: str) -> Any:
        return None

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True

    def write(self, _data: bytes) -> None:
        assert not self.closing


class Taken:
    """A protocol that has the work of a given time with each piece."""

    def __init__(self, connection: MeteredConnection, seconds: float) -> None:
        self.transport, self.seconds, self.pieces = connection, seconds, 0

    def data_received(self, _data: bytes) -> None:
        self.pieces += 1
        self.transport.charged += self.seconds

    def connection_lost(self, _exc: Any) -> None:
        """End."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    first = SimpleNamespace(transport=None, connection_made=id, conn=SimpleNamespace(trailing_data=(b"", False)))
    # only the work that is charged counts
    monkeypatch.setattr(connections, "thread_time", lambda: 0.0)
    monkeypatch.setattr(connections, "HttpConnection", lambda: first)

    def make(doors: Doors, seconds: float) -> tuple[MeteredConnection, Taken, Socket]:
        found, below = MeteredConnection(doors), Socket()
        found.connection_made(below)  # type: ignore[arg-type]
        protocol = Taken(found, seconds)
        found._protocol = protocol
        return found, protocol, below

    return make


def test_all_that_send_much_share_a_part_of_the_loop_and_others_do_not_wait_for_them(made: Any) -> None:
    async def run() -> None:
        doors, work = Doors(100), 0.004
        many = [made(doors, work) for _ in range(20)]
        began = time.monotonic()
        for connection, _, _ in many:
            connection.data_received(b"x" * 10_000_000)
        # each has had its first turn, and is not read
        assert not any(below.reading for _, _, below in many)
        for _ in range(10):
            await asyncio.sleep(0.02)
            connection, protocol, below = made(doors, 0.0005)
            connection.data_received(b"GET")
            assert (protocol.pieces, below.reading) == (1, True)
        taken = sum(protocol.pieces for _, protocol, _ in many)
        elapsed = time.monotonic() - began
        # the first pieces come before anything is known of a connection
        assert taken * work <= elapsed * LOOP_SHARE + LOOP_BURST_SECONDS + 21 * work
        for connection, _, _ in many:
            connection.connection_lost(None)

    asyncio.run(run())


def test_what_waits_is_handed_over_in_order_and_whole(made: Any) -> None:
    async def run() -> None:
        connection, protocol, below = made(Doors(100), 0.0011)
        got = bytearray()
        sent, over = bytes(range(256)) * 100, asyncio.Event()

        def take(data: bytes) -> None:
            got.extend(data)
            Taken.data_received(protocol, data)
            if len(got) == len(sent):
                over.set()

        protocol.data_received = take
        connection.data_received(sent[:20_000])
        connection.data_received(sent[20_000:])
        assert len(got) < 10_000
        await asyncio.wait_for(over.wait(), PATIENCE_SECONDS)
        assert bytes(got) == sent
        # the rest after its last turn
        await asyncio.sleep(0.1)
        assert below.reading

    asyncio.run(run())


def test_a_protocol_that_reads_nothing_gets_nothing_until_it_reads_again(made: Any) -> None:
    async def run() -> None:
        connection, protocol, below = made(Doors(100), 0.0)
        connection.pause_reading()
        assert not below.reading
        connection.data_received(b"early")
        await asyncio.sleep(0.01)
        assert protocol.pieces == 0
        connection.resume_reading()
        await asyncio.sleep(0.01)
        assert (protocol.pieces, below.reading) == (1, True)

    asyncio.run(run())


def test_data_that_a_library_cannot_handle_end_their_connection_and_leave_few_lines(
    made: Any, log: pytest.LogCaptureFixture
) -> None:
    def fail(_data: bytes) -> None:
        raise AssertionError

    async def run() -> None:
        doors = Doors(100)
        for _ in range(50):
            connection, protocol, below = made(doors, 0.0)
            protocol.data_received = fail
            connection.data_received(b"x" * 10_000)
            assert below.closing
            connection.connection_lost(None)

    asyncio.run(run())
    assert len(log.records) == 10
    assert not [record for record in log.records if record.exc_info]


def test_nothing_is_written_after_the_end_of_a_connection(made: Any) -> None:
    """Else asyncio writes a line of the log for each time."""

    async def run() -> None:
        connection, _, below = made(Doors(100), 0.0)
        connection.write(b"1")
        below.closing = True
        for _ in range(10):
            connection.write(b"2")
        assert connection.written == 1

    asyncio.run(run())
