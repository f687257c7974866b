"""What web pages of other sites may do, at which names a gateway answers, and what browsers do with responses."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pydantic import ValidationError
from starlette.requests import HTTPConnection

from ackstream.errors import SettingsError
from ackstream.gateway.middleware import edge
from ackstream.gateway.middleware.admission import Doors
from ackstream.gateway.middleware.edge import EVENT_LOOP, follow, unfollow
from ackstream.gateway.page.live import KAFKA
from ackstream.observe.endpoint import HEALTH
from ackstream.observe.metrics import CONNECTIONS, FIGURES, HTTP_REQUESTS, HTTP_SECONDS, OLDEST, UNREAD, Figures
from ackstream.settings import Gateway, load
from tests.gateway.access.test_authentication import ACCESS, USERS, as_
from tests.gateway.parts import URL, Web, response

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.protocol.ditto.envelopes import Envelope


THING = "/things/org.acme:lamp"
APP, EVIL = "https://app.example", "https://evil.example"


def from_(origin: str | None, **headers: str) -> dict[str, Any]:
    return {"headers": headers if origin is None else {"origin": origin, **headers}}


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 204),
        (URL, 204),
        (APP, 204),
        (EVIL, 403),
        ("null", 403),
        ("http://localhost:9999", 403),
        ("https://localhost:8080", 204),
        ("ftp://localhost:8080", 403),
        ("http://evil@localhost:8080", 403),
        ("http://[", 403),
        ("", 403),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_a_page_is_served_at_its_own_origin_and_those_of_the_settings(
    method: str, origin: str | None, status: int
) -> None:
    web = Web(allowed_origins=[APP])
    answer = web(method, f"{THING}/attributes/a", json=1, **from_(origin))
    assert (answer.status_code, len(web.exchange.sent)) == (status, status == 204)
    if status == 403:
        assert answer.json()["error"] == "gateway:origin.notallowed"


@pytest.mark.parametrize(
    ("path", "site", "status"),
    [
        (f"{THING}?channel=live", "cross-site", 403),
        ("/search/things", "same-site", 403),
        ("//live.json", "cross-site", 403),
        ("//story.json?correlation-id=a", "cross-site", 403),
        ("//page/live.js", "cross-site", 403),
        # a link leads there, which shows nothing to the other site
        ("//", "cross-site", 200),
        ("//doc", "cross-site", 200),
        (THING, "same-origin", 200),
        (THING, "none", 200),
        (THING, None, 200),
    ],
)
def test_an_image_or_link_of_another_site_reads_nothing_and_reaches_no_device(
    path: str, site: str | None, status: int
) -> None:
    web = Web(response(200, {"items": []}))
    answer = web("GET", path, headers={} if site is None else {"sec-fetch-site": site})
    assert answer.status_code == status
    if status == 403:
        assert (answer.json()["error"], web.exchange.sent) == ("gateway:origin.notallowed", [])
        assert [row.status for row in web.rows] == [403]


def test_a_request_that_names_an_allowed_origin_may_come_from_another_site() -> None:
    web = Web(allowed_origins=[APP])
    assert web("GET", THING, **from_(APP, **{"sec-fetch-site": "cross-site"})).status_code == 204


def test_with_tls_a_page_that_came_without_is_another_site() -> None:
    secured = "https://localhost:8443"
    web = Web()
    assert web("PUT", f"{THING}/attributes/a", json=1, base=secured, **from_(secured)).status_code == 204
    plain = from_("http://localhost:8443")
    assert web("PUT", f"{THING}/attributes/a", json=1, base=secured, **plain).status_code == 403


@pytest.mark.parametrize(
    ("origin", "host"),
    [("https://things.example", "things.example:443"), ("http://things.example:80", "Things.Example")],
)
def test_the_port_that_is_understood_may_be_named(origin: str, host: str) -> None:
    web = Web(allowed_hosts=["things.example"])
    assert web("DELETE", THING, **from_(origin, host=host)).status_code == 204


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream", "", "multipart/form-data"])
def test_what_a_page_may_send_without_asking_is_no_json(content_type: str) -> None:
    headers = {"content-type": content_type} if content_type else {}
    for origin in (URL, APP):
        web = Web(allowed_origins=[APP])
        options = from_(origin, **headers)
        assert web("POST", "/things", content=b"{}", **options).json()["error"] == "mediatype.unsupported"
        assert web.exchange.sent == []
    # other clients send such types by default
    allowed = content_type != "multipart/form-data"
    status = Web()("PUT", f"{THING}/attributes/a", content=b"1", **from_(None, **headers)).status_code
    assert (status == 204) is allowed


def test_a_page_of_the_settings_may_read_responses_and_their_headers() -> None:
    web = Web(allowed_origins=[APP])
    answer = web("GET", THING, **from_(APP))
    assert answer.headers["access-control-allow-origin"] == APP
    assert answer.headers["access-control-allow-credentials"] == "true"
    assert {"etag", "link", "correlation-id", "retry-after"} <= set(
        answer.headers["access-control-expose-headers"].split(", ")
    )
    assert "access-control-allow-origin" not in web("GET", THING, **from_(EVIL)).headers


def test_a_browser_asks_before_it_sends_and_without_credentials() -> None:
    asked = {"access-control-request-method": "PUT", "access-control-request-headers": "requested-acks"}
    web = Web(allowed_origins=[APP], users=USERS, access=ACCESS)
    answer = web("OPTIONS", THING, **from_(APP, **asked))
    assert (answer.status_code, answer.headers["access-control-allow-headers"]) == (200, "requested-acks")
    assert "PATCH" in answer.headers["access-control-allow-methods"]
    assert web("OPTIONS", THING, **from_(EVIL, **asked)).status_code == 400


def test_without_the_setting_no_page_of_another_origin_is_let_in() -> None:
    web = Web()
    assert web("PUT", f"{THING}/attributes/a", json=1, **from_(APP)).status_code == 403
    answer = web("OPTIONS", THING, **from_(APP, **{"access-control-request-method": "PUT"}))
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 204),
        ("127.0.0.1:8080", 204),
        ("[::1]:8080", 204),
        ("things.example", 204),
        ("evil.example", 403),
        ("", 403),
        ("[", 403),
    ],
)
def test_an_open_gateway_answers_at_its_own_names_alone(host: str, status: int) -> None:
    web = Web(allowed_origins=["https://things.example"])
    assert web("DELETE", THING, headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 204),
        (socket.gethostname(), 204),
        ("192.0.2.7:8080", 204),
        ("[2001:db8::7]", 204),
        ("", 204),
        ("things.example", 204),
        ("a.plant.example:8080", 204),
        ("plant.example", 403),
        ("evil.example", 403),
        ("[", 403),
    ],
)
def test_with_authentication_a_gateway_has_the_names_and_addresses_of_its_machine_and_of_the_settings(
    host: str, status: int
) -> None:
    web = Web(users=USERS, access=ACCESS, allowed_hosts=["things.example", "*.plant.example"])
    answer = web("DELETE", THING, headers={"host": host}, **as_("admin"))
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["error"] == "gateway:host.notallowed"
        assert "gateway.allowed_hosts" in answer.json()["description"]


def test_the_host_of_a_request_does_not_decide_where_a_created_thing_is() -> None:
    web = Web(response(201, {}), allowed_hosts=["things.example"])
    answer = web("PUT", THING, json={}, headers={"host": "things.example"})
    assert answer.headers["location"] == f"/api/2{THING}"


def test_responses_of_all_kinds_tell_browsers_to_run_nothing() -> None:
    web = Web(response(200, {}))
    for path in (THING, "/nothing", "/things?ids=", "//nothing"):
        headers = web("GET", path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'; sandbox"
        assert headers["cross-origin-resource-policy"] == "same-origin"
    # the gateway's own pages have a script
    assert "sandbox" not in web("GET", "//doc").headers["content-security-policy"]


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "app.example",
        "https://app.example/",
        "https://*.example",
        "https://a b",
        "http://[",
        "http://[x]",
        "http://a:b",
    ],
)
def test_other_texts_than_origins_stop_the_start(origin: str) -> None:
    with pytest.raises(SettingsError, match=r"^The setting gateway.allowed_origins.0 .* is not the origin of a page"):
        load(environment={"ACKSTREAM_GATEWAY_ALLOWED_ORIGINS": json.dumps([origin])})


def test_origins_of_the_settings_may_be_addresses() -> None:
    origins = ("http://[::1]:3000", "http://127.0.0.1:3000", "moz-extension://0a1b-2c")
    assert Gateway(allowed_origins=origins).allowed_origins == origins


@pytest.mark.parametrize("host", ["*", "https://things.example", "things.example:80", "a b", "A.example", "", "a.*"])
def test_other_texts_than_names_of_hosts_stop_the_start(host: str) -> None:
    with pytest.raises(SettingsError, match=r"^The setting gateway.allowed_hosts.0 .* is not the name of a host"):
        load(environment={"ACKSTREAM_GATEWAY_ALLOWED_HOSTS": json.dumps([host])})


PROXY = {"addresses": ["10.0.0.7", "10.1.0.0/16", "fd00::/8"], "subject_header": "X-Remote-User"}
PROXIED_ACCESS = [
    {"subjects": ["proxy:ada"], "things": ["org.acme:*"], "grant": ["READ", "WRITE"]},
    {"roles": ["proxy:operator"], "grant": ["READ", "WRITE"]},
]
LAMP = "/api/2/things/org.acme:lamp"


class Proxied(Web):
    """A gateway whose requests come from some address."""

    def __init__(self, **proxy: Any) -> None:
        super().__init__(response(204), proxy={**PROXY, **proxy}, access=PROXIED_ACCESS, host="0.0.0.0")

    def from_(self, address: str, *headers: tuple[str, str], path: str = LAMP) -> httpx.Response:
        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, client=(address, 1234))
            async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
                return await client.request("GET" if path.endswith("whoami") else "DELETE", path, headers=headers)

        return asyncio.run(go())


@pytest.mark.parametrize("address", ["10.0.0.7", "10.1.2.3", "::ffff:10.0.0.7", "fd00::1"])
def test_whom_the_proxy_names_is_the_subject(address: str) -> None:
    client = Proxied()
    assert client.from_(address, ("x-remote-user", "ada")).status_code == 204
    assert client.sent.headers["ditto-originator"] == "proxy:ada"
    # not a header of a client, which would reach devices
    assert "x-remote-user" not in client.sent.headers


def test_a_session_by_the_word_of_a_proxy_ends_after_an_hour() -> None:
    connection = HTTPConnection({"type": "websocket", "headers": [], edge._FOUND: [(b"ada",), ()]})
    found = asyncio.run(Proxied().dependencies.authenticator.admit(connection))
    assert found.subjects == ("proxy:ada",)
    assert found.expires is not None
    assert 3_590 < found.expires - time.time() <= 3_600


@pytest.mark.parametrize("address", ["10.0.0.8", "127.0.0.1", "11.1.0.1", "::1", "testclient", ""])
def test_from_any_other_address_the_header_has_no_effect(address: str) -> None:
    client = Proxied()
    forged = ("x-remote-user", "ada"), ("x-forwarded-for", "10.0.0.7")
    assert client.from_(address, *forged).status_code == 401
    assert client.exchange.sent == []


def test_a_client_cannot_send_the_header_through_the_proxy() -> None:
    client = Proxied(roles_header="X-Roles")
    for headers in (
        [("x-remote-user", "ada"), ("x-remote-user", "eve")],
        [("x-remote-user", "ada"), ("X-Remote-User", "")],
        [("x-remote-user", "eve"), ("x-roles", "operator"), ("x-roles", "none")],
        [("x-remote-user", "a" * 257)],
        [("x-remote-user", "ad\x07a")],
        [("x-remote-user", "")],
        [("x-roles", "operator")],
    ):
        assert client.from_("10.0.0.7", *headers).status_code == 401, headers
    assert client.exchange.sent == []


def test_roles_come_from_a_header_of_their_own_and_no_subject_is_a_role() -> None:
    client = Proxied(roles_header="X-Roles")
    assert client.from_("10.0.0.7", ("x-remote-user", "bob"), ("x-roles", "reader, operator,")).status_code == 204
    assert client.from_("10.0.0.7", ("x-remote-user", "role:proxy:operator")).status_code == 404
    shown = client.from_("10.0.0.7", ("x-remote-user", "bob"), ("x-roles", "a,b"), path="/api/2/whoami").json()
    assert (shown["subjects"], shown["roles"]) == (["proxy:bob"], ["proxy:a", "proxy:b"])


@pytest.mark.parametrize(("address", "status"), [("10.0.0.7", 403), ("127.0.0.1", 204)])
def test_forwarded_headers_count_from_the_proxy_alone(address: str, status: int) -> None:
    web = Web(response(204), proxy={"addresses": ["10.0.0.7"]})
    headers = {"origin": "http://localhost:8080", "x-forwarded-proto": "https", "x-forwarded-for": "192.0.2.1"}

    async def go() -> httpx.Response:
        transport = httpx.ASGITransport(web._app, client=(address, 1234))
        async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
            return await client.delete(LAMP, headers=headers)

    # a page that did not come through TLS is another site than the gateway behind a proxy with it
    assert asyncio.run(go()).status_code == status
    # the audit has the address that the proxy names, and from anywhere else that of the connection
    assert [row.address for row in web.rows] == (["127.0.0.1"] if status == 204 else ["192.0.2.1"])


@pytest.mark.parametrize(
    ("proxy", "reason"),
    [
        ({"subject_header": "x-user"}, "anyone could send it"),
        ({"subject_header": "x-user", "addresses": ["0.0.0.0/0"]}, "is everyone"),
        ({"subject_header": "x-user", "addresses": ["::/0"]}, "is everyone"),
        ({"subject_header": "x-user", "addresses": ["proxy.example"]}, "not an address or network"),
        ({"subject_header": "x-user", "addresses": ["10.0.0.7/8"]}, "not an address or network"),
        ({"subject_header": "x user", "addresses": ["10.0.0.7"]}, "pattern"),
        ({"roles_header": "x-roles", "addresses": ["10.0.0.7"]}, "none with the subject"),
    ],
)
def test_a_proxy_that_anyone_could_be_is_refused(proxy: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Gateway(proxy=proxy)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Figures:
    own = Figures()
    monkeypatch.setattr(edge, "FIGURES", own)
    return own


@pytest.fixture
def started() -> Iterator[Doors]:
    """Return the doors of a gateway whose signs of life are expected."""
    doors = Doors(10)
    with HEALTH.expecting(KAFKA, 60):
        follow(lambda: doors.open, lambda: 7, lambda: 1_500)
        yield doors
        unfollow()


def test_responses_are_counted_by_method_and_class_refusals_among_them(figures: Figures) -> None:
    web = Web(response(204), users=USERS, access=ACCESS)
    assert web("PUT", f"{THING}/attributes/a", json=1).status_code == 401
    assert web("PUT", f"{THING}/attributes/a", json=1, auth=("ada", "wrong")).status_code == 401
    assert web("BREW", f"{THING}/attributes/a").status_code in (401, 405)
    assert web("GET", "//health/live").status_code == 200
    counted = figures.read()
    assert counted.counters == {(HTTP_REQUESTS.name, "PUT", "4xx"): 2, (HTTP_REQUESTS.name, "other", "4xx"): 1}
    assert sum(counted.histograms[HTTP_SECONDS.name, "PUT"][:-1]) == 2


def test_what_fails_in_the_program_is_counted_too(figures: Figures) -> None:
    def fail(_: Envelope) -> Any:
        raise RuntimeError("no answer")

    # it is answered with 500, and raised for the log of the server
    with pytest.raises(RuntimeError):
        Web(fail)("PUT", f"{THING}/attributes/a", json=1)
    assert figures.read().counters == {(HTTP_REQUESTS.name, "PUT", "5xx"): 1}


@pytest.mark.usefixtures("started")
def test_probes_are_answered_without_a_login_under_every_name_and_only_these() -> None:
    web = Web(users=USERS, access=ACCESS)
    for host in ("10.1.2.3", "pod-7.internal", "evil.example"):
        named = {"headers": {"host": host}}
        assert web("GET", "//health/live", **named).status_code == 200
        assert web("GET", "//health/ready", **named).status_code == 503
        assert web("GET", "//", **named).status_code in (401, 403)
    HEALTH.beat(EVENT_LOOP, time.monotonic())
    HEALTH.beat(KAFKA, time.monotonic())
    ready = web("GET", "//health/ready")
    assert (ready.status_code, ready.json()) == (200, {"status": "ok", "problems": []})
    assert ready.headers["cache-control"] == "no-store"
    assert web("POST", "//health/live").status_code == 405
    assert web("GET", "//metrics").status_code == 404


def test_what_is_open_is_looked_up_when_someone_asks_until_the_gateway_ends(started: Doors) -> None:
    started.enter("127.0.0.1")
    found = FIGURES.read().gauges
    assert (found[CONNECTIONS.name,], found[UNREAD.name,], found[OLDEST.name,]) == (1, 7, 1.5)
    unfollow()
    assert (CONNECTIONS.name,) not in FIGURES.read().gauges
    assert EVENT_LOOP not in str(HEALTH.ready(time.monotonic()))
