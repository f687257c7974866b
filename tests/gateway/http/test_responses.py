"""What of a reply, and of a request, gets into the headers of a response."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ackstream.protocol.ditto.headers import DEFINITIONS
from tests.gateway.access.test_authentication import ACCESS, THING, USERS
from tests.gateway.parts import Web, aggregate, response

if TYPE_CHECKING:
    import httpx

WHAT_RUNS = [("text/html", "<script>alert(1)</script>"), ("image/svg+xml", "<svg onload='alert(1)'/>")]


@pytest.mark.parametrize(
    ("content_type", "stored"),
    [
        *[(kind, True) for kind, _ in WHAT_RUNS],
        ("application/xhtml+xml", True),
        ("application/pdf", True),
        ("application/octet-stream", True),
        ("text/javascript", True),
        ("text/plain", False),
        ("image/png", False),
        ("application/json", False),
        ("TEXT/HTML; charset=x", True),
    ],
)
def test_nothing_that_a_device_sends_runs_in_a_browser(content_type: str, stored: bool) -> None:  # noqa: FBT001
    answer = Web(response(200, dict(WHAT_RUNS).get(content_type, "x"), content_type=content_type))(
        "POST", f"{THING}/inbox/messages/ask", json=1
    )
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert (answer.headers.get("content-disposition") == "attachment") is stored


@pytest.mark.parametrize("status", [100, 101, 199])
def test_a_status_that_ends_no_request_is_a_502(status: int) -> None:
    message = Web(response(status, 1))("POST", f"{THING}/inbox/messages/ask", json=1)
    acknowledged = Web(aggregate(("my-ack", status, None)))("PUT", THING, json={}, headers={"requested-acks": "my-ack"})
    for answer in (message, acknowledged):
        assert (answer.status_code, answer.json()["error"]) == (502, "gateway:response.invalid")


def test_no_party_asks_for_a_password_in_the_name_of_the_gateway() -> None:
    challenge = {"www_authenticate": "Basic", "location": "https://evil.example"}
    answer = Web(response(401, 1, **challenge))("POST", f"{THING}/inbox/messages/ask", json=1)
    assert answer.status_code == 401
    assert {"www-authenticate", "location"}.isdisjoint(answer.headers)


@pytest.mark.parametrize("value", ["x\r\nset-cookie: a=b", "\u20ac", "\udcff", "\x00", " \t ", "x" * 2_000, ""])
@pytest.mark.parametrize("parameters", [{}, {"timeout": "nonsense"}])
def test_an_error_names_any_correlation_id(value: str, parameters: dict[str, str]) -> None:
    query = urlencode({"correlation-id": value, **parameters}, errors="surrogatepass")
    for path in (f"{THING}?{query}", f"/nothing?{query}", f"//story.json?{query}"):
        answer = web_with_users("GET", path)
        assert answer.status_code == 401
        sent = answer.headers.get("correlation-id", "")
        assert sent.isascii()
        assert sent.isprintable()
    assert Web(response(200, {}))("GET", f"{THING}?{query}").status_code in (200, 400)


@pytest.mark.parametrize("value", ["x\r\nset-cookie: a=b", "\u20ac", "\x00", "plain"])
def test_an_event_stream_has_any_correlation_id(value: str) -> None:
    query = urlencode({"correlation-id": value})
    found = Web(response(200, {"items": []}))("GET", f"/search/things?{query}", headers={"accept": "text/event-stream"})
    assert found.status_code == 200
    assert "set-cookie" not in found.headers
    sent = found.headers["correlation-id"]
    assert sent.isascii()
    assert sent.isprintable()


def web_with_users(method: str, path: str) -> httpx.Response:
    return Web(users=USERS, access=ACCESS)(method, path)


header_values = st.text(st.characters(max_codepoint=255), max_size=20).map(lambda text: text.encode("latin-1"))


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(sorted({*DEFINITIONS, "origin", "accept", "content-type", "authorization", "x-y"})), header_values
)
def test_whatever_is_in_a_header_or_parameter_there_is_an_answer(name: str, value: bytes) -> None:
    open_, closed = Web(response(200, {})), Web(users=USERS, access=ACCESS)
    for web in (open_, closed):
        for answer in (
            web("GET", THING, headers=[(name.encode(), value)]),
            web("PUT", THING, json={}, headers=[(name.encode(), value)]),
            web("GET", "/search/things", params={name: value.decode("latin-1")}),
        ):
            # 501: what is not available
            assert answer.status_code < 500 or answer.status_code == 501
