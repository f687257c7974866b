"""A proxy that authenticates its clients: believed from its own addresses, and nobody else's word for it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from ackstream.settings import Gateway
from tests.gateway.parts import URL, Web, response

PROXY = {"addresses": ["10.0.0.7", "10.1.0.0/16", "fd00::/8"], "subject_header": "X-Remote-User"}
ACCESS = [
    {"subjects": ["proxy:ada"], "things": ["org.acme:*"], "grant": ["READ", "WRITE"]},
    {"roles": ["proxy:operator"], "grant": ["READ", "WRITE"]},
]
THING = "/api/2/things/org.acme:lamp"


class Proxied(Web):
    """A gateway whose requests come from some address."""

    def __init__(self, **proxy: Any) -> None:
        super().__init__(response(204), proxy={**PROXY, **proxy}, access=ACCESS, host="0.0.0.0")

    def from_(self, address: str, *headers: tuple[str, str], path: str = THING) -> httpx.Response:
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
            return await client.delete(THING, headers=headers)

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
        ({"subject_header": "x-user", "addresses": ["proxy.example"]}, "no address or network"),
        ({"subject_header": "x-user", "addresses": ["10.0.0.7/8"]}, "no address or network"),
        ({"subject_header": "x user", "addresses": ["10.0.0.7"]}, "pattern"),
        ({"roles_header": "x-roles", "addresses": ["10.0.0.7"]}, "none with the subject"),
    ],
)
def test_a_proxy_that_anyone_could_be_is_refused(proxy: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Gateway(proxy=proxy)
