"""The gateway at a real socket: clients that send slowly or not at all, do not read, or are there when it stops."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from types import SimpleNamespace
from typing import Any

import h11
import httpx
import pytest
from msgspec.structs import replace
from uvicorn.protocols.http.h11_impl import H11Protocol
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import State
from websockets.sync.client import connect
from websockets.typing import Origin

from ackstream.client.requests.replies import Reply
from ackstream.gateway import server, streaming
from ackstream.gateway.access.authentication import Authenticator, access_of
from ackstream.gateway.exchange import Dependencies, Exchange
from ackstream.gateway.http import api
from ackstream.gateway.middleware.connections import SocketConnection
from ackstream.gateway.server import HEADER_SECONDS, REQUEST_SECONDS, UNREAD_SECONDS, Server, Stalls
from ackstream.gateway.websocket import session
from ackstream.protocol.ditto.envelopes import Envelope, encode
from ackstream.settings import Gateway, Settings
from tests.gateway import parts
from tests.gateway.websocket.test_session import EVENT, Hub
from tests.harness.waiting import PATIENCE_SECONDS, eventually

THING = "/api/2/things/org.acme:lamp"
HEAD = f"PUT {THING}/attributes/x HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n".encode()
HOST = "127.0.0.1"
TOGETHER = httpx.Limits(max_connections=None, max_keepalive_connections=None)
SMALL = (socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)


class Running:
    """A gateway on a free port, in a thread; the test plays Kafka."""

    def __init__(self, gateway: Server, exchange: Exchange, clients: Clients, hub: Hub, url: str) -> None:
        self.gateway, self.exchange, self.clients, self.hub, self.url = gateway, exchange, clients, hub, url
        self.port = int(url.rpartition(":")[2])
        self._http = httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, limits=TOGETHER)

    @property
    def open(self) -> int:
        """The number of open connections."""
        return len(self.gateway.server_state.connections)

    @contextmanager
    def raw(self, *options: tuple[int, int, int]) -> Iterator[socket.socket]:
        with socket.socket() as found:
            for option in options:
                found.setsockopt(*option)
            found.settimeout(PATIENCE_SECONDS)
            found.connect((HOST, self.port))
            yield found

    def close(self) -> None:
        self._http.close()

    def ask(self, **options: Any) -> httpx.Response:
        return self._http.put(f"{THING}/attributes/x", json=1, **options)


class Clients:
    """A requester whose requests get what a function returns, or nothing before the test answers them."""

    def __init__(self, answer: Callable[[Envelope], Any] | None) -> None:
        self.sent: list[Envelope] = []
        self.futures: list[Future[Any]] = []
        self._answer = answer

    def send(self, command: Envelope) -> Future[Any]:
        # the client of Kafka gives an id to a command that has none
        command = replace(command, headers={"correlation-id": "of-its-own", **command.headers})
        self.sent.append(command)
        self.futures.append(found := Future())
        if self._answer is not None:
            envelope, completed_by = self._answer(command)
            identity = command.headers["correlation-id"]
            found.set_result(Reply(identity, "r-1", envelope.status or 200, completed_by, encode(envelope), 0))
        return found

    def publish(self, command: Envelope) -> Future[Any]:
        self.sent.append(command)
        found: Future[Any] = Future()
        found.set_result(None)
        return found


@contextmanager
def serving(answer: Callable[[Envelope], Any] | None = parts.NO_CONTENT, **given_: Any) -> Iterator[Running]:
    settings = Settings(gateway=Gateway(port=0, **given_))
    authenticator = Authenticator(settings.gateway)
    hub, address = Hub(), Future[str]()
    clients = Clients(answer)
    exchange = Exchange(clients, None)  # type: ignore[arg-type]
    access = access_of(settings.gateway, authenticator)
    given: Any = (settings, authenticator, access, exchange, None, hub)
    gateway = Server(Dependencies(*given), address.set_result)
    thread = threading.Thread(target=lambda: asyncio.run(gateway.serve()))
    thread.start()
    running = Running(gateway, exchange, clients, hub, address.result(PATIENCE_SECONDS))
    try:
        yield running
    finally:
        gateway.should_exit = True
        thread.join(PATIENCE_SECONDS)
        running.close()
    assert not thread.is_alive()


def status(client: socket.socket) -> int:
    """Read a response to its end; return its status."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = client.recv(65536)
        assert chunk, data
        data += chunk
    return int(data.split(b" ", 2)[1])


def closed(client: socket.socket) -> bool:
    """Wait until the gateway ends a connection."""
    try:
        while client.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


# -- slow, half-open ---------------------------------------------------------------------------------------------------


def test_a_body_that_does_not_end_is_refused_and_its_connection_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "REQUEST_SECONDS", 0.2)
    with serving() as running, running.raw() as length, running.raw() as chunked:
        length.sendall(HEAD + b"content-length: 10\r\n\r\n1")
        chunked.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n1\r\n")
        for client in (length, chunked):
            assert status(client) == 408
            assert closed(client)
        assert running.ask().status_code == 204
        assert len(running.clients.sent) == 1


def test_a_body_that_is_too_large_is_refused_before_its_end_and_not_read_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(server, "_TICKS", 1)
    with serving() as running, running.raw() as client:
        client.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        chunk = b"%x\r\n%b\r\n" % (65_536, bytes(65_536))
        for _ in range(20):
            client.sendall(chunk)
        assert status(client) == 413
        # it goes on and on, until it is cut off
        with suppress(ConnectionError):
            for _ in count():
                client.sendall(chunk)


def test_an_idle_connection_stays_open_for_longer_than_a_client_of_httpx_uses_it() -> None:
    with serving() as running:
        kept = running.gateway.config.timeout_keep_alive
    used = httpx.Limits().keepalive_expiry
    assert used is not None
    assert used + 1 < kept < HEADER_SECONDS


def test_clients_that_send_no_request_or_a_part_of_one_are_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(server, "_TICKS", 1)
    with serving() as running, running.raw() as silent, running.raw() as slow, running.raw() as half:
        slow.sendall(HEAD)
        half.sendall(HEAD)
        half.shutdown(socket.SHUT_WR)
        assert all(map(closed, (silent, slow, half)))
        eventually(lambda: running.open == 0, "the end of the connections")
        monkeypatch.setattr(server, "HEADER_SECONDS", HEADER_SECONDS)
        assert running.ask().status_code == 204


@pytest.mark.long
def test_a_client_that_does_not_read_its_response_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "UNREAD_SECONDS", 1.0)
    large = parts.response(200, "x" * 20_000_000)
    with serving(large) as running:
        with running.raw(SMALL) as client:
            client.sendall(f"GET {THING} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            eventually(lambda: running.open == 0, "the end of the connection")
        # one that reads slowly gets it all
        with running.raw((socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)) as client:
            client.sendall(f"GET {THING} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
            began, found = time.monotonic(), 0
            while chunk := client.recv(262_144):
                found += len(chunk)
                time.sleep(max(0.0, began + 3.0 * found / 20_000_000 - time.monotonic()))
            assert found > 20_000_000


def test_a_client_is_seen_to_read_before_it_has_read_much() -> None:
    """Of a system with large buffers it would have to read more than a megabyte."""
    large = parts.response(200, "x" * 20_000_000)
    with serving(large) as running, running.raw((socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)) as client:
        client.sendall(f"GET {THING} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        eventually(lambda: any(each.flow.write_paused for each in _http(running)), "a full connection")
        time.sleep(0.2)
        before = _unread(running)
        found = 0
        while found < 300_000:
            found += len(client.recv(4_096))
        eventually(lambda: _unread(running) != before, "a sign that it reads")


def _unread(running: Running) -> int:
    (one,) = _http(running)
    return int(one.transport.get_write_buffer_size())


def connection(cycle: Any = None, state: Any = h11.IDLE, unread: int = 0, read: int = 0) -> Any:
    found = H11Protocol.__new__(H11Protocol)
    found.cycle, found.conn = cycle, SimpleNamespace(their_state=state)
    found.transport = transport(unread, read)
    return found


def transport(unread: int, read: int = 0) -> Any:
    return SimpleNamespace(get_write_buffer_size=lambda: unread, written=unread + read, is_closing=lambda: False)


DONE, OPEN = SimpleNamespace(response_complete=True), SimpleNamespace(response_complete=False)


@pytest.mark.parametrize(
    ("first", "then", "ends"),
    [
        pytest.param({}, {}, True, id="no request"),
        pytest.param({"cycle": DONE}, {"cycle": DONE}, True, id="no next request"),
        pytest.param({"cycle": DONE, "state": h11.SEND_BODY}, {"cycle": DONE, "state": h11.SEND_BODY}, True, id="body"),
        pytest.param({}, {"cycle": DONE}, False, id="another request meanwhile"),
        pytest.param({"cycle": OPEN, "state": h11.SEND_BODY}, None, False, id="api"),
        pytest.param({"cycle": OPEN, "state": h11.DONE}, None, False, id="open"),
        pytest.param({"cycle": DONE, "unread": 9}, {"cycle": DONE, "unread": 9}, True, id="unread"),
        pytest.param({"cycle": DONE, "unread": 9}, {"cycle": DONE, "unread": 10}, True, id="unread and more"),
        pytest.param({"cycle": DONE, "unread": 9}, {"cycle": DONE, "unread": 8, "read": 1}, False, id="read a little"),
        pytest.param(
            {"cycle": OPEN, "unread": 65_835},
            {"cycle": OPEN, "unread": 66_325, "read": 9},
            False,
            id="read and refilled",
        ),
        pytest.param({"cycle": OPEN, "unread": 65_835}, None, True, id="full and unread"),
        pytest.param({"cycle": OPEN, "unread": 65_835}, {"cycle": OPEN, "unread": 70_000}, True, id="full and growing"),
    ],
)
def test_only_a_client_that_makes_no_progress_is_stalled(
    first: dict[str, Any], then: dict[str, Any] | None, *, ends: bool
) -> None:
    one, stalls = connection(**first), Stalls()
    assert stalls.find([one], 0.0) == []
    found = connection(**(first if then is None else then))
    one.cycle, one.conn, one.transport = found.cycle, found.conn, found.transport
    owed = REQUEST_SECONDS if first.get("state") == h11.SEND_BODY else HEADER_SECONDS
    limit = UNREAD_SECONDS if first.get("unread") else owed
    assert stalls.find([one], limit - 0.1) == []
    assert stalls.find([one], limit) == ([one] if ends else [])


def test_a_client_that_reads_less_than_comes_is_not_stalled() -> None:
    """Its level hardly falls, as the stream is written again whenever there is room."""
    one, stalls = connection(OPEN, h11.DONE), Stalls()
    levels = [65_835 + (37 * second) % 600 for second in range(600)]
    for second, level in enumerate(levels):
        one.transport = transport(level, 600 * second)
        assert stalls.find([one], float(second)) == []


def test_a_client_that_reads_nothing_of_a_stream_is_stalled_whatever_is_added_to_it() -> None:
    one, stalls = connection(OPEN, h11.DONE), Stalls()
    found = []
    for second in range(100):
        one.transport = transport(3 * (1 + second // 10))
        if stalls.find([one], float(second)):
            found.append(second)
    assert found[0] == UNREAD_SECONDS


UPGRADE = (
    b"GET /ws/2%b HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n%b\r\n"
)


@pytest.mark.parametrize(
    "parts_",
    [
        pytest.param([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"], id="tls"),
        pytest.param([b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length: " + b"9" * 5_000 + b"\r\n\r\n"], id="length"),
        pytest.param([b"GET / HTTP/1.1\r\nhost: [\r\n\r\n"], id="host"),
        pytest.param([b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n"], id="hosts"),
        pytest.param([b"GET / HTTP/1.0\r\n\r\n"], id="no host"),
        pytest.param([b"GET /api/2/%ff%fe%00 HTTP/1.1\r\nhost: localhost\r\n\r\n"], id="path"),
        pytest.param([b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n"], id="connect"),
        pytest.param([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], id="http2"),
        pytest.param(
            [
                f"GET {THING} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n".encode()
                + b"transfer-encoding: chunked\r\n\r\n",
                b"zz\r\n",
            ],
            id="chunk in a response",
        ),
        *(
            pytest.param(
                [b"%b /ws/2 HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n" % method],
                id=f"chunk with its {method.decode()}",
            )
            for method in (b"PUT", b"HEAD")
        ),
        pytest.param([b"\0\r\n\r\n" * 2_000], id="more after a refusal"),
        pytest.param([b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"], id="offer"),
        pytest.param([UPGRADE % (b"", b""), b"\x81\x82\0\0\0\0\xff\xfe"], id="text that is none"),
        pytest.param(
            [UPGRADE % (b"", b""), b"\x81\x81\0\0\0\0\xff\x88\x82\0\0\0\0\x03\xe8"], id="text that is none, and an end"
        ),
        pytest.param([UPGRADE % (b"", b""), b"\x8f\xff\0\0"], id="frame that is none"),
        pytest.param([UPGRADE % (b"?x=1", b"")], id="refused"),
        pytest.param([UPGRADE % (b"?correlation-id=%0d%0a", b"x-y: \xff\r\ncorrelation-id: \xff\r\n")], id="headers"),
        pytest.param([UPGRADE % (b"?declared-acks=%00%ff", b"")], id="labels"),
    ],
)
def test_nothing_that_a_client_sends_leaves_a_trace(
    parts_: list[bytes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(parts.response(200, {})) as running:
        # its records go no further
        monkeypatch.setattr(logging.getLogger("uvicorn"), "handlers", [caplog.handler])
        with running.raw() as client:
            for part in parts_:
                client.sendall(part)
                client.settimeout(0.2)
                with suppress(OSError):
                    client.recv(65_536)
        assert running.ask().status_code == 200
        found = [record for record in caplog.records if record.name != "ackstream.gateway.access.authentication"]
        assert not [record for record in found if record.exc_info or record.levelno >= logging.WARNING]


# -- WebSockets --------------------------------------------------------------------------------------------------------


@contextmanager
def subscribed(running: Running, *options: tuple[int, int, int]) -> Iterator[Any]:
    """Subscribe to events; the client reads one message more than the test does."""
    with running.raw(*options) as plain:
        plain.settimeout(None)
        url = f"ws://{HOST}:{running.port}/ws/2"
        quiet: Any = {"compression": None, "ping_interval": None, "max_queue": 1, "close_timeout": 0.1}
        with connect(url, sock=plain, **quiet) as client:
            client.send("START-SEND-EVENTS")
            assert client.recv() == "START-SEND-EVENTS:ACK"
            yield client


@pytest.mark.long
def test_a_websocket_that_leaves_10000_messages_unread_is_closed_and_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[session.SocketSession] = []
    begin = session.SocketSession.__init__

    def init(self: session.SocketSession, *arguments: Any) -> None:
        begin(self, *arguments)
        made.append(self)

    monkeypatch.setattr(session.SocketSession, "__init__", init)
    with serving() as running, subscribed(running, SMALL) as deaf, subscribed(running) as other:
        heard = 0
        number = 0
        while not made[0]._end.done():
            for _ in range(1_000):
                running.hub.publish(EVENT, f"c-{number}", "x" * 1_000)
                number += 1
            for _ in range(1_000):
                assert json.loads(other.recv())["headers"]["correlation-id"] == f"c-{heard}"
                heard += 1
        assert made[0]._end.result()[0] == 1013
        assert number >= streaming.MAX_WAITING
        monkeypatch.setattr(server, "UNREAD_SECONDS", 1.0)
        eventually(lambda: running.open == 1, "the end of its connection")
        # its task ends after its connection
        eventually(lambda: not made[0]._unread._waiting.qsize(), "the end of what it left unread")
        with pytest.raises(ConnectionClosed):
            list(iter(deaf.recv, None))
        running.hub.publish(EVENT, "last")
        assert json.loads(other.recv())["headers"]["correlation-id"] == "last"


def test_large_messages_that_are_not_read_are_limited_by_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "MAX_WAITING_CHARACTERS", 20_000_000)
    with serving() as running, subscribed(running, SMALL) as deaf:
        for number in range(60):
            running.hub.publish(EVENT, f"c-{number}", "x" * 1_000_000)
        with pytest.raises(ConnectionClosed) as caught:
            list(iter(deaf.recv, None))
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1013


# -- restart -----------------------------------------------------------------------------------------------------------


def test_a_stop_under_load_answers_each_request_or_closes_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    """100 requests wait, some bodies are incomplete, and further requests come while the gateway stops."""
    refused: list[int] = []
    stop = threading.Event()

    def go_on(running: Running) -> None:
        while not stop.is_set():
            try:
                refused.append(running.ask().status_code)
            except httpx.TransportError:
                return

    with ExitStack() as stack, ThreadPoolExecutor(104) as pool:
        running = stack.enter_context(serving(None))
        incomplete = stack.enter_context(running.raw())
        incomplete.sendall(HEAD + b"content-length: 10\r\n\r\n1")
        idle = stack.enter_context(running.raw())
        late = stack.enter_context(running.raw())
        late.sendall(HEAD[:20])
        listener = stack.enter_context(subscribed(running))
        answers = [pool.submit(running.ask) for _ in range(100)]
        eventually(lambda: len(running.exchange._waiting) == 100, "all requests")
        eventually(lambda: len(running.exchange._limited) == 1, "the incomplete body")
        going = [pool.submit(go_on, running) for _ in range(3)]
        eventually(lambda: len(running.clients.futures) == 103, "further requests")
        began = time.monotonic()
        running.gateway.should_exit = True
        found = [answer.result() for answer in answers]
        assert {(each.status_code, each.headers["retry-after"]) for each in found} == {(503, "1")}
        assert all("continues" in each.json()["description"] for each in found)
        assert status(incomplete) == 503
        assert closed(idle)
        assert closed(late)
        with pytest.raises(ConnectionClosed) as caught:
            listener.recv(PATIENCE_SECONDS)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1012
        for each in going:
            each.result()
        stop.set()
        assert set(refused) <= {503}
        # a reply that comes now is nobody's
        for future in running.clients.futures:
            future.set_result("late")
    assert time.monotonic() - began < PATIENCE_SECONDS
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("closes", [False, True])
def test_a_client_that_does_not_read_does_not_keep_the_gateway_from_stopping(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, closes: bool
) -> None:
    monkeypatch.setattr(server, "SHUTDOWN_SECONDS", 0.3)
    large = parts.response(200, "x" * 20_000_000)
    with ExitStack() as stack:
        running = stack.enter_context(serving(large))
        client = stack.enter_context(running.raw(SMALL))
        client.sendall(2 * f"GET {THING} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        deaf = stack.enter_context(subscribed(running, SMALL))
        for number in range(100):
            running.hub.publish(EVENT, f"c-{number}", "x" * 100_000)
        eventually(lambda: any(each.flow.write_paused for each in _http(running)), "a response that is not read")
        eventually(lambda: not any(each.writable.is_set() for each in _sockets(running)), "events that are not read")
        if closes:
            # past the library, whose client would hang up by itself if it were not answered
            deaf.socket.sendall(Frame(Opcode.CLOSE, Close(1000, "").serialize()).serialize(mask=True))
            # on a busy machine the client may still read what is left, and the connection is gone
            eventually(lambda: not any(each.conn.state is State.OPEN for each in _sockets(running)), "the close frame")
        running.gateway.should_exit = True
        eventually(lambda: running.open == 0, "the end of the connections")
    assert not [record for record in caplog.records if record.exc_info]


def _sockets(running: Running) -> list[Any]:
    return [each for each in running.gateway.server_state.connections if isinstance(each, SocketConnection)]


def _http(running: Running) -> list[Any]:
    return [each for each in running.gateway.server_state.connections if isinstance(each, H11Protocol)]


# -- behind a proxy ----------------------------------------------------------------------------------------------------


def test_a_proxy_of_the_settings_says_what_its_clients_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"host": "things.example", "x-forwarded-proto": "https", "x-forwarded-for": "192.0.2.1"}
    plain = {**headers, "origin": "http://things.example"}
    known = {"allowed_hosts": ["things.example"]}
    with serving(**known, proxy={"addresses": ["127.0.0.1"]}) as running:
        assert running.ask(headers={**headers, "origin": "https://things.example"}).status_code == 204
        # a page that did not come through TLS is not the gateway's
        assert running.ask(headers=plain).status_code == 403
        (sent,) = running.clients.sent
    assert not sent.headers.keys() & headers.keys()
    # nothing else is believed, whatever the environment of the server names
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    with serving(**known) as running:
        assert running.ask(headers=plain).status_code == 204


def test_a_page_of_another_site_opens_no_websocket() -> None:
    with serving(allowed_origins=["https://app.example"]) as running:
        url = f"ws{running.url.removeprefix('http')}/ws/2"
        with pytest.raises(InvalidStatus) as caught, connect(url, origin=Origin("https://evil.example")):
            pass
        assert caught.value.response.status_code == 403
        for origin in (None, running.url, "https://app.example"):
            with connect(url, origin=None if origin is None else Origin(origin)) as socket_:
                socket_.send("START-SEND-EVENTS")
                assert socket_.recv(PATIENCE_SECONDS) == "START-SEND-EVENTS:ACK"


# -- server-sent events ------------------------------------------------------------------------------------------------

EVENTS = {"accept": "text/event-stream"}


def test_events_arrive_as_they_happen_until_the_client_leaves() -> None:
    with (
        serving() as running,
        httpx.stream("GET", f"{running.url}{THING}", headers=EVENTS, timeout=PATIENCE_SECONDS) as got,
    ):
        assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = got.iter_lines()
        assert next(lines) == ":"
        for number in range(3):
            running.hub.publish(EVENT, f"c-{number}", number)
            found = next(line for line in lines if line.startswith("data"))
            assert found == f'data: {{"thingId":"org.acme:lamp","attributes":{{"x":{number}}}}}'
        assert running.hub.listeners == 1
        got.close()
        eventually(lambda: running.hub.listeners == 0, "the end of the subscription")


def test_a_gateway_that_stops_ends_its_event_streams_at_once() -> None:
    with (
        serving() as running,
        httpx.stream("GET", f"{running.url}{THING}", headers=EVENTS, timeout=PATIENCE_SECONDS) as got,
    ):
        lines = got.iter_lines()
        assert next(lines) == ":"
        running.gateway.should_exit = True
        assert set(lines) <= {"", ":"}
        eventually(lambda: running.hub.listeners == 0, "the end of the subscription")
