"""Connections at a real socket: how many there may be, and their TLS."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from ackstream.errors import SettingsError
from ackstream.gateway import server
from ackstream.gateway.middleware import admission, connections
from ackstream.gateway.middleware.admission import Doors
from ackstream.gateway.middleware.connections import check_transport
from ackstream.gateway.server import Certificates
from ackstream.settings import Gateway
from ackstream.settings.gateway import GatewayTls
from tests.gateway.access.test_authentication import USERS
from tests.gateway.test_server import HOST, THING, closed, serving, status
from tests.harness.certificates import Authority
from tests.harness.waiting import PATIENCE_SECONDS, eventually

# -- how many ----------------------------------------------------------------------------------------------------------


def test_one_address_may_have_a_quarter_of_the_connections_and_this_machine_all_of_them() -> None:
    doors = Doors(8)
    assert [doors.enter("192.0.2.7") for _ in range(2)] == [None, None]
    refused = doors.enter("::ffff:192.0.2.7")
    assert refused is not None
    assert (refused.status, refused.message) == (429, "The address 192.0.2.7 has 2 connections, which is the maximum.")
    # one that is refused is counted until it has ended
    doors.leave("::ffff:192.0.2.7")
    assert [doors.enter("127.0.0.1") for _ in range(6)] == [None] * 6
    full = doors.enter("127.0.0.1")
    assert full is not None
    assert (full.status, full.error) == (503, "too.many.connections")
    assert not doors.crowded
    for host in (*["192.0.2.7"] * 2, *["127.0.0.1"] * 7):
        doors.leave(host)
    assert doors.open == 0


def test_a_proxy_of_the_settings_may_have_all_connections() -> None:
    doors = Doors(8, ["192.0.2.0/24", "2001:db8::/32"])
    assert [doors.enter(host) for host in ["192.0.2.7", "::ffff:192.0.2.7", "2001:db8::7"] * 2] == [None] * 6
    assert [doors.enter("198.51.100.7") for _ in range(2)] == [None] * 2
    refused = doors.enter("192.0.2.7")
    assert refused is not None
    assert refused.status == 503


def test_a_connection_too_many_is_told_why_and_ended() -> None:
    with serving(max_connections=3) as running, ExitStack() as stack:
        silent = [stack.enter_context(running.raw()) for _ in range(3)]
        eventually(lambda: running.gateway.doors.open == 3, "the connections")
        late = stack.enter_context(running.raw())
        late.sendall(f"GET {THING} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        data = b""
        while chunk := late.recv(65_536):
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in head
        assert json.loads(body)["error"] == "too.many.connections"
        assert "gateway.max_connections" in json.loads(body)["description"]
        silent[0].close()
        eventually(lambda: running.gateway.doors.open <= 2, "room")
        assert running.ask().status_code == 204


def test_a_connection_that_has_ended_leaves_memory_at_once(request: pytest.FixtureRequest) -> None:
    with serving() as running:
        gc.collect()
        request.addfinalizer(gc.enable)
        gc.disable()
        for path in (THING, "/" + "a" * 10_000):
            with running.raw() as client:
                client.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
                assert client.recv(1_000).startswith(b"HTTP/1.1 ")
        eventually(lambda: not list(filter(_is_connection, gc.get_objects())), "the end of both")


def _is_connection(found: object) -> bool:
    return type(found) in (connections.MeteredConnection, connections.HttpConnection)


def test_a_websocket_counts_as_a_connection_until_it_ends() -> None:
    with serving(max_connections=2) as running:
        with connect(f"ws://{HOST}:{running.port}/ws/2") as client:
            client.send("START-SEND-EVENTS")
            assert client.recv() == "START-SEND-EVENTS:ACK"
            eventually(lambda: running.gateway.doors.open == 1, "one connection")
            assert running.ask().status_code == 204
        running.close()
        eventually(lambda: running.gateway.doors.open == 0, "the end of the connections")


def test_a_flood_of_connections_leaves_nothing_behind() -> None:
    with serving(max_connections=20) as running:
        for _ in range(20):
            with ExitStack() as stack:
                for _ in range(50):
                    stack.enter_context(running.raw())

        def served() -> bool:
            with suppress(httpx.TransportError):
                return running.ask().status_code == 204
            return False

        eventually(served, "the end of the flood")
        running.close()
        eventually(lambda: running.gateway.doors.open == 0, "the end of the connections")


def test_a_message_that_is_twice_too_large_ends_its_websocket_unread() -> None:
    with serving(max_body_bytes=10_000) as running, connect(f"ws://{HOST}:{running.port}/ws/2") as client:
        assert client.response is not None
        assert "sec-websocket-extensions" not in client.response.headers
        client.send(f"START-SEND-EVENTS?filter={'é' * 5_001}")
        assert json.loads(client.recv())["status"] == 413

        def overflow() -> None:
            client.send(f"START-SEND-EVENTS?filter={'x' * 5_000_000}")
            client.recv()

        with pytest.raises(ConnectionClosed) as caught:
            overflow()
        # if the rest of it has left room for the reason
        assert caught.value.rcvd is None or caught.value.rcvd.code == 1009


def test_a_process_with_fewer_files_serves_fewer_connections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = [(1_024, 1_024)]
    monkeypatch.setattr(server.resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(server.resource, "setrlimit", lambda _, wanted: limits.append(wanted))
    assert server.connections_within(2_000) == 549
    assert "Raise the limit of files" in caplog.text
    limits.append((1_024, 1_000_000))
    assert server.connections_within(2_000) == 2_000
    assert limits[-1] == (3_200, 1_000_000)


# -- TLS ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def trusting(authority: Authority, *own: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.ca)
    if own:
        context.load_cert_chain(*own)
    return context


def settings(authority: Authority, **more: Any) -> dict[str, Any]:
    certificate, key = authority.issue_pair("gateway")
    return {"tls": {"certificate": certificate, "key": key, **more}}


def test_nothing_follows_a_handshake_that_a_thread_could_read_while_another_one_writes(authority: Authority) -> None:
    trusted = trusting(authority)
    with (
        serving(**settings(authority)) as running,
        running.raw() as plain,
        trusted.wrap_socket(plain, server_hostname="localhost") as client,
    ):
        client.sendall(b"OPTIONS / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert client.recv(65_536)
        assert client.version() == "TLSv1.3"
        assert client.session is None or not client.session.has_ticket


def shown(running: Any, context: ssl.SSLContext) -> int:
    """Return the serial number of the certificate that a new connection is shown."""
    with (
        socket.create_connection((HOST, running.port), PATIENCE_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        found: dict[str, Any] = secured.getpeercert() or {}
        return int(str(found["serialNumber"]), 16)


def test_https_and_its_websockets_are_served_under_a_certificate(authority: Authority) -> None:
    with serving(**settings(authority)) as running:
        assert running.url.startswith("https://")
        trusted = trusting(authority)
        url = f"https://localhost:{running.port}"
        with httpx.Client(verify=trusted, base_url=url) as client:
            for _ in range(3):
                assert client.put(f"{THING}/attributes/x", json=1).status_code == 204
            # as it came through TLS
            assert client.delete(THING, headers={"origin": url}).status_code == 204
            assert client.delete(THING, headers={"origin": url.replace("s:", ":")}).status_code == 403
        with connect(f"wss://localhost:{running.port}/ws/2", ssl=trusted) as socket_:
            socket_.send("START-SEND-EVENTS")
            assert socket_.recv() == "START-SEND-EVENTS:ACK"
        eventually(lambda: running.gateway.doors.open == 0, "the end of the connections")
        with pytest.raises(httpx.ConnectError), httpx.Client(base_url=url) as stranger:
            stranger.get(THING)


def test_a_client_that_has_gone_before_http_begins_is_counted_out(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    # of a socket that its client has reset, the system knows no address
    monkeypatch.setattr("uvicorn.protocols.http.h11_impl.get_remote_addr", lambda _transport: None)
    monkeypatch.setattr(admission, "network", lambda host: host or None)
    with serving(**settings(authority), max_connections=8) as running:
        for _ in range(4):
            with httpx.Client(verify=trusting(authority), base_url=f"https://localhost:{running.port}") as client:
                assert client.put(f"{THING}/attributes/x", json=1).status_code == 204
        eventually(lambda: running.gateway.doors.open == 0, "the end of the connections")


def test_a_client_that_speaks_no_tls_is_disconnected_in_time(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", 0.5)
    with serving(**settings(authority)) as running, running.raw() as silent, running.raw() as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert closed(plain)
        assert closed(silent)
        eventually(lambda: running.gateway.doors.open == 0, "the end of the connections")


def test_a_client_that_leaves_while_its_data_wait_for_their_turn_is_counted_out(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "TURN_SECONDS", 1e-9)
    monkeypatch.setattr(connections, "OWN_BURST_SECONDS", 0.0)
    monkeypatch.setattr(admission.Rate, "reserve", lambda *_: 1.0)
    with serving(**settings(authority)) as running:
        # in two turns, the second of which ends the connection
        with socket.create_connection((HOST, running.port)) as client:
            secured = trusting(authority).wrap_socket(client, server_hostname=HOST)
            secured.sendall(b"GET / HTTP/1.1\r\na: " + b"x" * 3_000 + b"\r\nno header\r\n\r\n")
            eventually(
                lambda: any(each.transport._turn for each in running.gateway.server_state.connections), "its wait"
            )
            secured.close()
        eventually(lambda: not running.gateway.doors.open, "its end")


def test_half_a_handshake_counts_as_a_connection(authority: Authority) -> None:
    with serving(**settings(authority), max_connections=2) as running, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(running.raw())
        eventually(lambda: running.gateway.doors.open == 2, "the connections")
        assert closed(stack.enter_context(running.raw()))


def test_a_certificate_that_changes_is_shown_to_new_connections_and_a_bad_one_changes_nothing(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "_TICKS", 1)
    trusted = trusting(authority)
    with serving(**settings(authority)) as running:
        first = shown(running, trusted)
        with connect(f"wss://localhost:{running.port}/ws/2", ssl=trusted) as open_:
            authority.issue_pair("gateway")
            eventually(lambda: shown(running, trusted) != first, "the new certificate")
            second = shown(running, trusted)
            certificate = authority.ca.with_name("gateway.pem")
            certificate.write_text("-----BEGIN")
            eventually(lambda: "earlier content stays in force" in caplog.text, "a warning")
            assert shown(running, trusted) == second
            open_.send("START-SEND-EVENTS")
            assert open_.recv() == "START-SEND-EVENTS:ACK"


@pytest.fixture
def rules() -> dict[str, Any]:
    return {"access": [{"subjects": ["certificate:lamp"], "things": ["org.acme:*"], "grant": ["READ", "WRITE"]}]}


def test_a_client_is_who_its_certificate_says(authority: Authority, rules: Any, tmp_path: Path) -> None:
    with serving(**settings(authority, client_ca=authority.ca), **rules) as running:
        url = f"https://localhost:{running.port}"

        def ask(*own: Path) -> httpx.Response:
            with httpx.Client(verify=trusting(authority, *own), base_url=url) as client:
                return client.put(f"{THING}/attributes/x", json=1)

        assert ask(*authority.issue_pair("lamp")).status_code == 204
        assert running.clients.sent[-1].headers["ditto-originator"] == "certificate:lamp"
        assert ask(*authority.issue_pair("door")).status_code == 404
        (elsewhere := tmp_path / "elsewhere").mkdir()
        others = Authority(elsewhere).issue_pair("lamp")
        for stranger in ((), authority.issue_pair("old", expired=True), others):
            with pytest.raises(httpx.TransportError):
                ask(*stranger)
        own = trusting(authority, *authority.issue_pair("lamp"))
        with connect(f"wss://localhost:{running.port}/ws/2", ssl=own) as socket_:
            socket_.send("START-SEND-EVENTS")
            assert socket_.recv() == "START-SEND-EVENTS:ACK"
        eventually(lambda: running.gateway.doors.open == 0, "the end of the connections")


def certified(running: Any, own: ssl.SSLContext, stack: ExitStack) -> Callable[[], bool]:
    """Open a connection of each kind, and return a function that waits for the ends of all by the gateway."""
    client = stack.enter_context(httpx.Client(verify=own, base_url=f"https://localhost:{running.port}"))
    assert client.put(f"{THING}/attributes/x", json=1).status_code == 204
    events = stack.enter_context(client.stream("GET", THING, headers={"accept": "text/event-stream"}))
    assert client.put(f"{THING}/attributes/x", json=1).status_code == 204
    socket_ = stack.enter_context(connect(f"wss://localhost:{running.port}/ws/2", ssl=own))
    # two of HTTP, of which one is idle, and a WebSocket
    eventually(lambda: running.gateway.doors.open == 3, "the connections")

    def ended() -> bool:
        with pytest.raises(httpx.TransportError):
            events.read()
        with pytest.raises(ConnectionClosed):
            socket_.recv(PATIENCE_SECONDS)
        eventually(lambda: running.gateway.doors.open == 0, "the end of the connections")
        return True

    return ended


def test_connections_end_with_the_authority_of_their_certificates(
    authority: Authority, rules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "KEEP_SECONDS", 60)
    monkeypatch.setattr(server, "HEADER_SECONDS", 60.0)
    trusted = tmp_path / "clients.pem"
    trusted.write_bytes(authority.ca.read_bytes())
    own = trusting(authority, *authority.issue_pair("lamp"))
    with serving(**settings(authority, client_ca=trusted), **rules) as running, ExitStack() as stack:
        ended = certified(running, own, stack)
        # a new certificate of the gateway ends no connection
        before = shown(running, own)
        authority.issue_pair("gateway")
        trusted.write_bytes(authority.ca.read_bytes())
        eventually(lambda: shown(running, own) != before, "the new certificate")
        eventually(lambda: running.gateway.doors.open == 3, "the connections")
        (elsewhere := tmp_path / "elsewhere").mkdir()
        trusted.write_bytes(Authority(elsewhere).ca.read_bytes())
        assert ended()
        with pytest.raises((httpx.TransportError, OSError)):
            httpx.get(f"https://localhost:{running.port}{THING}", verify=own)


def test_connections_end_with_their_certificates(
    authority: Authority, rules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "KEEP_SECONDS", 60)
    monkeypatch.setattr(server, "HEADER_SECONDS", 60.0)
    own = trusting(authority, *authority.issue_pair("lamp"))
    with serving(**settings(authority, client_ca=authority.ca), **rules) as running, ExitStack() as stack:
        ended = certified(running, own, stack)
        monkeypatch.setattr(server, "_seconds", lambda _: time.time() - 1)
        assert ended()


def test_a_certificate_does_not_stand_in_for_a_wrong_password(authority: Authority, rules: Any) -> None:
    with serving(**settings(authority, client_ca=authority.ca), users=USERS, **rules) as running:
        own = trusting(authority, *authority.issue_pair("lamp"))
        with httpx.Client(verify=own, base_url=f"https://localhost:{running.port}") as client:
            assert client.get(THING, auth=("admin", "wrong")).status_code == 401
            assert client.put(f"{THING}/attributes/x", json=1).status_code == 204


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"key": "gateway.key"}, "there is no certificate to serve HTTPS under"),
        ({"certificate": "none.pem"}, "cannot be read"),
        ({"certificate": "gateway.pem", "key": "other.key"}, "is not that of the certificate"),
        ({"certificate": "old.pem", "key": "old.key"}, "expired at"),
        ({"certificate": "gateway.pem", "key": "gateway.key", "client_ca": "gateway.key"}, "has no certificate in PEM"),
    ],
)
def test_unfit_files_stop_the_start(authority: Authority, tmp_path: Path, given: Any, problem: str) -> None:
    authority.issue_pair("gateway")
    authority.issue_pair("other")
    authority.issue_pair("old", expired=True)
    with pytest.raises(ValueError, match=problem):
        GatewayTls(**{name: tmp_path / file for name, file in given.items()})


def test_files_that_have_gone_since_the_settings_were_read_stop_the_start(authority: Authority) -> None:
    tls = GatewayTls(**settings(authority)["tls"])
    tls.files[0].unlink()
    with pytest.raises(SettingsError, match=r"gateway\.tls cannot be used: the file .* cannot be read"):
        Certificates(tls)


@pytest.mark.parametrize(
    ("given", "authenticated", "refused"),
    [
        ({"host": "0.0.0.0"}, True, True),
        ({"host": "things.example"}, True, True),
        ({"host": "127.0.0.1"}, True, False),
        ({"host": "::1"}, True, False),
        ({"host": "0.0.0.0", "proxy": {"addresses": ["192.0.2.1"]}}, True, False),
        ({"host": "0.0.0.0", "tls": ...}, True, False),
        # refused elsewhere: nobody authenticates
        ({"host": "0.0.0.0"}, False, False),
    ],
)
def test_passwords_are_not_asked_for_where_others_can_read_them(
    authority: Authority, given: dict[str, Any], *, authenticated: bool, refused: bool
) -> None:
    made = given | (settings(authority) if given.get("tls") is ... else {})
    if not refused:
        check_transport(Gateway(**made), authenticated=authenticated)
        return
    with pytest.raises(
        SettingsError, match=r"could read passwords.*gateway\.tls\.certificate.*gateway\.proxy\.addresses"
    ):
        check_transport(Gateway(**made), authenticated=authenticated)


# -- sockets -----------------------------------------------------------------------------------------------------------


ONE_USER: Any = {
    "users": {"admin": USERS["admin"]},
    "access": [{"subjects": ["user:admin"], "grant": ["READ", "WRITE"]}],
}
SIGNED_IN = {"authorization": "Basic " + base64.b64encode(b"admin:admin's").decode()}


def test_a_socket_or_stream_too_many_is_refused_before_it_opens() -> None:
    with serving(max_sockets=2, **ONE_USER) as running, ExitStack() as stack:
        url = f"ws://{HOST}:{running.port}/ws/2"
        first = stack.enter_context(connect(url, additional_headers=SIGNED_IN))
        events = {"accept": "text/event-stream", **SIGNED_IN}
        stack.enter_context(httpx.stream("GET", f"{running.url}{THING}", headers=events, timeout=PATIENCE_SECONDS))
        with running.raw() as late:
            late.sendall(
                b"GET /ws/2 HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
                b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                + f"authorization: {SIGNED_IN['authorization']}\r\n\r\n".encode()
            )
            assert status(late) == 429
        refused = httpx.get(f"{running.url}{THING}", headers=events)
        assert (refused.status_code, refused.json()["error"]) == (429, "too.many.requests")
        assert refused.headers["retry-after"] == "1"
        assert running.ask(headers=SIGNED_IN).status_code == 204
        first.close()

        def opened() -> bool:
            try:
                stack.enter_context(connect(url, additional_headers=SIGNED_IN))
            except Exception:  # noqa: BLE001 - not yet
                return False
            return True

        eventually(opened, "room for another")


def test_a_subject_that_sends_too_much_is_slowed_down_and_others_are_not() -> None:
    with (
        serving(max_requests=5, **ONE_USER) as running,
        connect(f"ws://{HOST}:{running.port}/ws/2", additional_headers=SIGNED_IN) as client,
    ):
        statuses = [running.ask(headers=SIGNED_IN).status_code for _ in range(20)]
        assert statuses[:9] == [204] * 9
        assert 429 in statuses
        began = time.monotonic()
        for _ in range(5):
            client.send("STOP-SEND-EVENTS")
        for _ in range(5):
            assert client.recv(PATIENCE_SECONDS) == "STOP-SEND-EVENTS:ACK"
        assert time.monotonic() - began > 0.5


def test_the_loop_runs_on_while_a_client_has_its_filters_evaluated() -> None:
    """Sockets with the dearest filters that are accepted, while events come."""
    with serving() as running, ExitStack() as stack:
        dear = "or({})".format(",".join(f'like(attributes/x,"*{"a?" * 20}{number}b*")' for number in range(80)))
        for _ in range(20):
            client = stack.enter_context(connect(f"ws://{HOST}:{running.port}/ws/2", max_size=None))
            client.send(f"START-SEND-EVENTS?filter={dear}")
            assert client.recv() == "START-SEND-EVENTS:ACK"
        pauses: list[float] = []
        done = threading.Event()

        async def watch() -> None:
            # what the loop itself works: the machine may be busy with something else
            last = time.thread_time()
            while not done.is_set():
                await asyncio.sleep(0.005)
                pauses.append(time.thread_time() - last)
                last = time.thread_time()

        loop = running.hub._loop
        asyncio.run_coroutine_threadsafe(watch(), loop)
        for number in range(10):
            running.hub.publish(correlation_id=f"c-{number}", value="a" * 50_000)
            found = json.loads(client.recv(PATIENCE_SECONDS))
            assert found["value"]["error"] in ("rql.expression.expensive", "too.many.requests")
        done.set()
        assert max(pauses) < 0.1
