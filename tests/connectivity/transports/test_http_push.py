"""HTTP targets against a real HTTP server in a thread."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ackstream.connectivity.transports.http_push import OMITTED, HttpPublisher, pause, published
from ackstream.connectivity.transports.transport import OutgoingMessage, Published
from ackstream.kafka.clients import CLOSE_SECONDS
from ackstream.settings import Kafka
from ackstream.settings.connections import HttpPushConnection
from tests.harness.certificates import Authority
from tests.harness.service import BOMB, DRIPS, Service
from tests.harness.waiting import eventually


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    yield found
    found.close()


@contextmanager
def pushing(url: str, **parts: Any) -> Iterator[HttpPublisher]:
    target = {"address": "POST:/", "topics": ["_/_/things/twin/events"]}
    connection = HttpPushConnection(id="plant", type="http-push", url=url, targets=[target], **parts)
    with HttpPublisher(connection, Kafka()) as publisher:
        yield publisher


def sent(publisher: HttpPublisher, *addresses: str, headers: dict[str, str] | None = None) -> list[Published]:
    results: dict[int, Published] = {}
    for number, address in enumerate(addresses):
        message = OutgoingMessage(address, headers or {}, b"%d" % number)
        publisher.publish(message, lambda result, key=number: results.update({key: result}))  # type: ignore[misc]
    eventually(lambda: len(results) == len(addresses), "the responses")
    return [results[number] for number in range(len(addresses))]


def test_a_request_has_method_path_headers_and_body(service: Service) -> None:
    with pushing(f"{service.url}/base", username="plant", password="geheim") as publisher:
        headers = {"content-type": "text/plain", "correlation-id": "mine"}
        (result,) = sent(publisher, "PUT:/things/a%20b?x=1", headers=headers)
        sent(publisher, "GET:/things")
    (method, path, got, body), (_, _, _, nothing) = service.requests
    assert (method, path, body, nothing) == ("PUT", "/base/things/a%20b?x=1", b"0", b"")
    assert (got["content-type"], got["correlation-id"]) == ("text/plain", "mine")
    assert got["authorization"].startswith("Basic ")
    assert (result.status, json.loads(bytes(result.payload))) == (200, {"path": path})
    assert result.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("status", "succeeded", "away"),
    [
        (200, True, False),
        (201, True, False),
        # what it says about itself, and not about the signal
        (302, False, True),
        (401, False, True),
        (403, False, True),
        (407, False, True),
        (404, False, False),
        (413, False, False),
        (429, False, True),
        (500, False, True),
        (503, False, True),
        (521, False, True),
    ],
)
def test_the_status_of_the_response_is_that_of_the_acknowledgement(
    service: Service,
    status: int,
    succeeded: bool,  # noqa: FBT001 - a table
    away: bool,  # noqa: FBT001
) -> None:
    with pushing(service.url) as publisher:
        (result,) = sent(publisher, f"POST:/status/{status}")
    assert (result.status, result.succeeded, result.away) == (status, succeeded, away)
    assert result.doubtful is (status == 500)


def test_which_statuses_say_that_the_service_is_unavailable_is_a_setting(service: Service) -> None:
    with pushing(service.url, unavailable_statuses=["404", "5xx"]) as publisher:
        results = sent(publisher, "POST:/status/404", "POST:/status/401", "POST:/status/500")
    assert [result.away for result in results] == [True, False, True]


def test_a_service_gets_nothing_before_the_time_that_it_has_asked_for(service: Service) -> None:
    service.headers["retry-after"] = "1"
    with pushing(service.url) as publisher:
        began = time.monotonic()
        (result,) = sent(publisher, "POST:/status/503")
        assert (result.away, publisher.connected) == (True, False)
    # a connection that is opened again waits, too
    with pushing(service.url) as publisher:
        assert [each.status for each in sent(publisher, "POST:/", "POST:/")] == [200, 200]
        assert publisher.connected
    assert time.monotonic() - began >= 1.0


def test_a_pause_that_a_service_has_asked_for_does_not_hold_up_a_close(service: Service) -> None:
    service.headers["retry-after"] = "3000"
    results: list[Published] = []
    began = time.monotonic()
    with pushing(service.url) as publisher:
        sent(publisher, "POST:/status/429")
        publisher.publish(OutgoingMessage("POST:/", {}, b""), results.append)
    assert (results, len(service.requests)) == ([], 1)
    assert time.monotonic() - began < CLOSE_SECONDS


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 0.0),
        ("0", 0.0),
        ("120", 120.0),
        ("9" * 400, 3_600.0),
        ("-1", 0.0),
        ("soon", 0.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3_600.0),
        ("Fri, 99 Dec 9999 23:59:59 GMT", 0.0),
    ],
)
def test_a_retry_after_is_a_number_of_seconds_or_a_date(text: str, seconds: float) -> None:
    assert pause(text) == seconds


@pytest.mark.parametrize("path", sorted(DRIPS))
def test_a_response_that_never_ends_is_a_time_out_whatever_arrives_meanwhile(service: Service, path: str) -> None:
    with pushing(service.url, timeout="1s") as publisher:
        results = sent(publisher, f"POST:{path}", "POST:/")
    assert [(result.status, result.away) for result in results] == [(408, True), (200, False)]


def test_over_tls_too_a_response_that_never_ends_is_a_time_out(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue_pair("service"))
    with (
        closing(Service(context)) as service,
        pushing(service.url, timeout="1s", tls={"ca": str(authority.ca)}) as publisher,
    ):
        results = sent(publisher, "POST:/early", "POST:/")
    assert [(result.status, result.away) for result in results] == [(408, True), (200, False)]


def test_a_body_is_asked_for_plain_and_not_inflated(service: Service) -> None:
    with pushing(service.url) as publisher:
        (result,) = sent(publisher, "POST:/bomb")
    assert service.requests[0][2]["accept-encoding"] == "identity"
    assert base64.b64decode(json.loads(bytes(result.payload))) == BOMB


def test_a_response_that_does_not_come_is_a_time_out(service: Service) -> None:
    with pushing(service.url, timeout="200ms") as publisher:
        (result,) = sent(publisher, "POST:/hang")
    assert (result.status, result.away) == (408, True)


def test_with_one_request_at_a_time_they_are_in_order(service: Service) -> None:
    with pushing(service.url) as publisher:
        sent(publisher, *[f"POST:/{number}" for number in range(30)])
    assert [path for _, path, _, _ in service.requests] == [f"/{number}" for number in range(30)]
    assert service.most == 1


def test_no_more_requests_than_allowed_run_at_a_time(service: Service) -> None:
    with pushing(service.url, parallelism=3) as publisher:
        results: list[Published] = []
        for _ in range(8):
            publisher.publish(OutgoingMessage("POST:/slow", {}, b""), results.append)
        eventually(lambda: service.running == 3, "as many as allowed")
        service.gate.set()
        eventually(lambda: len(results) == 8, "all of them")
    assert service.most == 3


@pytest.mark.parametrize(
    "address",
    [
        "POST:/things/../admin",
        "POST:/things/..",
        "POST:/a/%2e%2E/b",
        # as servers read it
        "POST:/a/..;x=1/b",
        "POST:/a/..%3B/b",
        "POST:/a\\..\\b",
        "POST:/a%5C..%5Cb",
        "POST:/a/./b",
        "POST:/a/%2E",
        "POST:/a//b",
        "POST://other/a",
        f"POST:/tenants/{HttpPublisher.quoted('')}",
        f"POST:/{HttpPublisher.quoted('')}{HttpPublisher.quoted('')}/delete",
        f"POST:/tenants/.{HttpPublisher.quoted('')}/delete",
    ],
)
def test_a_placeholder_does_not_lead_to_another_part_of_the_service(service: Service, address: str) -> None:
    with pushing(service.url) as publisher:
        (result,) = sent(publisher, address)
    assert (result.status, result.away, service.requests) == (400, False, [])


def test_what_does_not_make_another_path_is_sent(service: Service) -> None:
    empty = HttpPublisher.quoted("")
    with pushing(f"{service.url}/base") as publisher:
        sent(publisher, "POST:/", "POST:/a/", f"POST:/a{empty}b?c={empty}&d=/../e//f")
    assert [path for _, path, _, _ in service.requests] == ["/base/", "/base/a/", "/base/ab?c=&d=/../e//f"]


@pytest.mark.parametrize(
    ("name", "value", "got"),
    [
        ("correlation-id", "gr\xf6\xdfe", "gr%C3%B6%C3%9Fe"),
        ("correlation-id", " x ", "x"),
        ("correlation-id", "a\x00b", "a%00b"),
        ("device", "a\r\nb: c", "a%0D%0Ab: c"),
        ("device", "\ud800", "?"),
        ("device", "", ""),
    ],
)
def test_a_value_that_http_cannot_carry_is_percent_encoded(service: Service, name: str, value: str, got: str) -> None:
    with pushing(service.url) as publisher:
        (result,) = sent(publisher, "POST:/", headers={name: value})
    assert (result.status, service.requests[0][2][name], service.requests[0][3]) == (200, got, b"0")


def test_a_header_that_http_cannot_carry_is_left_out_and_named(service: Service) -> None:
    headers = {"transfer-encoding": "chunked", "content-length": "0", "a b": "x", "gr\xf6\xdfe": "x", "device": "lamp"}
    with pushing(service.url) as publisher:
        (result,) = sent(publisher, "POST:/", headers=headers)
    ((_, _, got, body),) = service.requests
    assert (result.status, body, got["device"]) == (200, b"0", "lamp")
    assert got[OMITTED] == "a b, content-length, gr%C3%B6%C3%9Fe, transfer-encoding"


def test_a_large_body_is_left_out_of_the_acknowledgement(service: Service) -> None:
    with pushing(service.url) as publisher:
        (result,) = sent(publisher, "POST:/large")
    assert result.status == 200
    assert "262,144 bytes" in str(json.loads(bytes(result.payload)))


def test_a_service_that_is_gone_is_away(service: Service) -> None:
    with pushing(service.url) as publisher:
        service.close()
        (result,) = sent(publisher, "POST:/")
    assert (result.status, result.away) == (503, True)


def test_after_a_halt_nothing_overtakes_what_failed(service: Service) -> None:
    results: list[Published] = []
    with pushing(service.url) as publisher:

        def failed(result: Published) -> None:
            results.append(result)
            publisher.halt()

        publisher.publish(OutgoingMessage("POST:/status/503", {}, b""), failed)
        publisher.publish(OutgoingMessage("POST:/", {}, b""), results.append)
        eventually(lambda: results, "the first result")
    assert [result.status for result in results] == [503]
    assert len(service.requests) == 1


def test_behind_a_request_that_was_not_accepted_none_to_its_address_is_sent_before_it(service: Service) -> None:
    results: dict[str, Published] = {}
    service.status = 500
    with pushing(service.url) as publisher:

        def publish(body: bytes, address: str = "POST:/lamp") -> None:
            publisher.publish(OutgoingMessage(address, {}, body), partial(answered, body.decode()))

        def answered(name: str, result: Published) -> None:
            results[name] = result
            if len(results) == 1:
                # accepted before it is known that the first one waits
                publish(b"third")
                service.status = 200

        for body, address in ((b"first", "POST:/lamp"), (b"second", "POST:/lamp"), (b"other", "POST:/other")):
            publish(body, address)
        eventually(lambda: len(results) == 4, "the results")
        publish(b"first")
        eventually(lambda: results["first"].succeeded, "the next attempt")
    assert [body for *_, body in service.requests] == [b"first", b"other", b"first"]
    assert {name for name, result in results.items() if result.unsent} == {"second", "third"}
    assert results["second"].away


def test_a_close_waits_for_requests_and_abandons_those_that_hang(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackstream.connectivity.transports.http_push.CLOSE_SECONDS", 0.2)
    results: list[Published] = []
    with pushing(service.url) as publisher:
        for _ in range(3):
            publisher.publish(OutgoingMessage("POST:/hang", {}, b""), results.append)
        eventually(lambda: service.requests, "the first request")
    service.gate.set()
    assert (results, len(service.requests)) == ([], 1)


@pytest.mark.parametrize(
    ("kind", "body", "payload"),
    [
        ("application/json", b'{"a":1.10}', b'{"a":1.10}'),
        ("application/problem+json; charset=utf-8", b"[1]", b"[1]"),
        ("application/json", b"no", b'"no"'),
        ("text/plain; charset=latin-1", b"\xe4", '"ä"'.encode()),
        ("text/plain; charset=martian", b"a", b'"a"'),
        ("", b"a", b'"a"'),
        ("application/octet-stream", b"\xff", b'"/w=="'),
    ],
)
def test_a_body_is_json_a_text_or_base64(kind: str, body: bytes, payload: bytes) -> None:
    assert bytes(published(200, {"content-type": kind}, body).payload) == payload


def test_a_status_that_is_none_is_an_error() -> None:
    assert published(999, {}, b"").status == 500


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("org.acme:lamp", "org.acme:lamp"),
        ("org.acme/lamp/things", "org.acme/lamp/things"),
        ("a?admin=1&b#c", "a%3Fadmin%3D1%26b%23c"),
        ("..;x", "..%3Bx"),
        ("%2e%2e", "%252e%252e"),
        ("1 \xe4", "1%20%C3%A4"),
    ],
)
def test_what_a_placeholder_brings_in_stays_a_part_of_the_path(text: str, quoted: str) -> None:
    assert HttpPublisher.quoted(text) == quoted


def test_a_publisher_that_was_halted_is_opened_again(service: Service) -> None:
    with pushing(service.url) as publisher:
        assert publisher.alive
        publisher.halt()
        assert not publisher.alive
