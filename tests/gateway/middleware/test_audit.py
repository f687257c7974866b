"""What the audit shows: who did or was refused what, whatever the client writes."""

from __future__ import annotations

import json
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.gateway.errors import authentication_failed
from ackstream.gateway.middleware.admission import SEARCHES
from ackstream.gateway.middleware.audit import ADDRESSES, FREE, WINDOW_SECONDS, Audit, FailureCounts, Sender
from ackstream.protocol.errors import DittoError
from tests.gateway.access.test_authentication import LAMP, THING, as_, web
from tests.gateway.parts import Web, response
from tests.gateway.sockets import Closed
from tests.gateway.websocket.test_session import ANN, COMMAND, reader
from tests.harness.issuers import AUDIENCE, pem, rsa_key, signed

if TYPE_CHECKING:
    from pathlib import Path

    from ackstream.protocol.ledger import AuditRow

DONE = response(204)


def shown(row: AuditRow, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in names)


def only(client: Web) -> AuditRow:
    (row,) = client.rows
    return row


def test_a_change_is_recorded_with_who_what_whence_and_the_id_under_which_it_was_sent() -> None:
    client = web(DONE)
    client("PUT", f"{THING}/attributes/a", json=1, headers={"correlation-id": "mine"}, **as_("ada"))
    row = only(client)
    assert shown(row, "event", "subject", "allowed", "status", "reason") == ("command", "user:ada", True, None, None)
    assert shown(row, "address", "method", "command") == ("127.0.0.1", "PUT", "twin/commands/modify")
    assert shown(row, "thing_id", "path", "count", "roles") == (LAMP, "/attributes/a", 1, ())
    assert row.correlation_id == client.sent.headers["correlation-id"]
    assert row.received_at > 1_700_000_000_000


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "reason"),
    [
        ("PUT", f"{THING}/features/f", {"json": {}}, 403, "WRITE of /features/f"),
        ("PATCH", THING, {"json": {"attributes": {"a": 1}, "definition": "a:b:1"}}, 403, "WRITE of /definition"),
        ("GET", "/things/org.other:x/attributes/a", {}, 404, "READ of /attributes/a"),
        ("DELETE", f"{THING}/attributes?condition=eq(features/f,1)", {}, 403, "READ of /, for a condition"),
        ("POST", f"{THING}/inbox/messages/ask", {"content": "x"}, 403, "WRITE of /inbox/messages/ask"),
    ],
)
def test_a_refusal_is_recorded_with_the_right_that_was_lacking(
    method: str, path: str, options: dict[str, Any], status: int, reason: str
) -> None:
    client = web(DONE)
    headers = {"content-type": "application/merge-patch+json"} if method == "PATCH" else {}
    answer = client(method, path, headers={"correlation-id": "mine", **headers}, **options, **as_("ada"))
    assert answer.status_code == status
    # the client does not learn it
    assert reason not in answer.text
    row = only(client)
    assert shown(row, "allowed", "status", "reason", "subject") == (False, status, reason, "user:ada")
    assert row.correlation_id == "mine"


def test_what_is_read_is_recorded_only_if_all_is() -> None:
    for level, count in (("changes", 0), ("all", 1), ("off", 0)):
        client = web(audit=level)
        for path in (THING, "/search/things", "/things?ids=org.acme:lamp"):
            client = web(response(200, []), audit=level)
            client("GET", path, **as_("ada"))
            assert len(client.rows) == count
    client = web(DONE, audit="off")
    client("PUT", f"{THING}/features/f", json={}, **as_("ada"))
    client("GET", THING)
    assert client.rows == []


def test_a_failed_sign_in_names_the_user_only_if_there_is_one() -> None:
    for name, subject in (("ada", "user:ada"), ("hunter2", None)):
        client = web(DONE)
        client("GET", THING, auth=(name, "wrong"))
        row = only(client)
        assert shown(row, "event", "allowed", "status", "subject") == ("sign-in", False, 401, subject)
        assert shown(row, "command", "method", "thing_id") == (f"/api/2{THING}", "GET", None)
        assert "hunter2" not in str(row)


def test_a_token_that_is_refused_is_recorded_with_the_reason_and_none_of_its_claims(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_text(pem(rsa_key("one")), "utf-8")
    issuer = {"issuer": "me", "audience": [AUDIENCE], "key_file": str(path)}
    client = web(DONE, issuers=[issuer])
    token = signed(rsa_key("two"), sub="admin")
    client("GET", THING, headers={"authorization": f"Bearer {token}"})
    row = only(client)
    assert shown(row, "event", "subject", "allowed") == ("sign-in", None, False)
    assert row.reason == "The token is not accepted: Signature verification failed."


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/live.json",
        "/story.json?correlation-id=x",
        "/message.json?message=x/1",
        f"/trace.json?trace-id={'a' * 32}",
        "/doc",
    ],
)
def test_a_failed_sign_in_at_the_page_is_recorded_too(path: str) -> None:
    client = web(DONE)
    assert client("GET", f"/{path}").status_code == 401
    assert only(client).command == path.partition("?")[0]


FORGED = '"}\n{"kind":"audit","id":"x","subject":"user:root","allowed":true'


def test_no_text_of_a_client_is_another_record_or_field() -> None:
    client = web(DONE)
    headers = {
        "correlation-id": FORGED.replace("\n", "\\n"),
        "ditto-originator": "user:root",
        "x-forwarded-for": "10.0.0.1",
        "forwarded": "for=10.0.0.1",
        "x-remote-user": "root",
    }
    path = f"{THING}/attributes/" + "%22%7D%7B%22subject%22%3A%22user%3Aroot%22"
    client("PUT", path, json=1, headers=headers, **as_("ada"))
    client("PUT", path.replace("attributes", "features"), json={}, headers=headers, **as_("ada"))
    assert [shown(row, "subject", "allowed", "address") for row in client.rows] == [
        ("user:ada", True, "127.0.0.1"),
        ("user:ada", False, "127.0.0.1"),
    ]
    assert client.rows[0].path == '/attributes/"}{"subject":"user:root"'


def test_each_text_of_a_record_has_a_limit() -> None:
    client = web(DONE)
    client("PUT", f"{THING}/features/{'f' * 5_000}", json={}, **as_("ada"))
    assert len(str(only(client).path)) == 1_024


def test_nothing_that_needs_a_record_is_done_while_none_can_be_written() -> None:
    client = web(DONE)
    client.audit._full = lambda: True
    assert client("PUT", f"{THING}/attributes/a", json=1, **as_("ada")).status_code == 503
    assert client.exchange.sent == []
    # what needs none goes on, and refusals are kept
    assert client("GET", f"{THING}/attributes", **as_("ada")).status_code == 204
    assert client("PUT", f"{THING}/features/f", json={}, **as_("ada")).status_code == 503
    assert client("GET", "/things/org.other:x", **as_("ada")).status_code == 404


def test_a_stream_that_may_not_be_read_is_recorded() -> None:
    client = web(DONE)
    accept = {"accept": "text/event-stream"}
    assert client("GET", "/things/org.other:x", headers=accept, **as_("ada")).status_code == 404
    assert shown(only(client), "event", "allowed", "command", "thing_id") == (
        "stream",
        False,
        "twin/events",
        "org.other:x",
    )


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"origin": "https://evil.example"}, "Pages of the origin 'https://evil.example' may not do this."),
        ({"host": "evil.example"}, "The gateway is not known by the name 'evil.example'."),
        ({"host": "["}, "The gateway is not known by the name '['."),
    ],
)
def test_a_request_from_a_foreign_page_or_to_a_foreign_name_is_recorded(headers: dict[str, str], reason: str) -> None:
    client = web(DONE)
    assert client("PUT", f"{THING}/attributes/a", json=1, headers=headers, **as_("ada")).status_code == 403
    row = only(client)
    assert shown(row, "event", "allowed", "status", "reason") == ("request", False, 403, reason)
    # whose browser it was is not known: its credentials were not looked at
    assert shown(row, "subject", "address", "command") == (None, "127.0.0.1", f"/api/2{THING}/attributes/a")


def test_too_many_requests_of_a_subject_are_recorded_and_counted() -> None:
    client = web(DONE, max_requests=1)
    statuses = [client("GET", f"{THING}/attributes", **as_("ada")).status_code for _ in range(FREE + 10)]
    refused = statuses.count(429)
    assert refused > FREE
    client.audit.turn(closing=True)
    assert shown(client.rows[0], "event", "subject", "status") == ("request", "user:ada", 429)
    assert sum(row.count for row in client.rows) == refused
    assert len(client.rows) == FREE + 1


def test_a_search_that_was_not_sent_is_not_recorded_as_allowed() -> None:
    client = web(response(200, {"items": []}), audit="all")
    for accept in ("application/json", "text/event-stream"):
        with ExitStack() as others:
            for _ in range(SEARCHES):
                others.enter_context(client.dependencies.admission.limits.search("user:ada"))
            assert client("GET", "/search/things", headers={"accept": accept}, **as_("ada")).status_code == 429
        assert client.rows == []
    client.audit._full = lambda: True
    for accept in ("application/json", "text/event-stream"):
        assert client("GET", "/search/things", headers={"accept": accept}, **as_("ada")).status_code == 503


# -- WebSockets --------------------------------------------------------------------------------------------------------


def test_a_socket_that_opens_and_what_it_does_or_may_not_do_is_recorded() -> None:
    here = reader(DONE)
    with here.client("declared-acks=my-ack", **ANN) as client:
        client.tell(COMMAND, "/features/f", value={}, headers={"correlation-id": "mine", "ditto-originator": "root"})
        assert client.get()["status"] == 403
        client.tell("org.other/lamp/things/twin/acks/my-ack", status=200, headers={"correlation-id": "c"})
        assert client.get()["status"] == 404
        client.tell("org.acme/lamp/things/live/events/modified", "/features/f", value={})
        assert client.get()["status"] == 404
    opened, refused, answer, event = here.rows
    assert shown(opened, "event", "subject", "allowed", "method") == ("sign-in", "user:ann", True, "WEBSOCKET")
    assert shown(refused, "event", "allowed", "correlation_id") == ("command", False, "mine")
    assert shown(refused, "reason", "subject", "method") == ("WRITE of /features/f", "user:ann", "WEBSOCKET")
    assert shown(answer, "event", "allowed", "thing_id") == ("answer", False, "org.other:lamp")
    assert shown(event, "event", "allowed", "reason") == ("answer", False, "WRITE of /features/f")


def test_a_label_that_no_rule_grants_is_recorded_with_who_wanted_it() -> None:
    here = reader(DONE)
    with pytest.raises(Closed, match="403"), here.client("declared-acks=others:ack", **ANN):
        pass
    (row,) = here.rows
    assert shown(row, "event", "subject", "allowed", "status") == ("request", "user:ann", False, 403)
    assert row.reason == "The label <others:ack> may not be declared by this client."


def test_a_socket_too_many_is_recorded() -> None:
    here = reader(DONE, max_sockets=1)
    with here.client("", **ANN), pytest.raises(Closed, match="429"), here.client("", **ANN):
        pass
    opened, refused = here.rows
    assert shown(opened, "event", "allowed") == ("sign-in", True)
    assert shown(refused, "event", "subject", "status", "method") == ("request", "user:ann", 429, "WEBSOCKET")


# -- many failures -----------------------------------------------------------------------------------------------------


class Peer:
    def __init__(self, address: str) -> None:
        self.client = type("Client", (), {"host": address})()
        self.scope = {"method": "GET", "path": "/api/2/things"}


def test_ten_thousand_wrong_passwords_are_a_handful_of_records_and_none_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows: list[AuditRow] = []
    now = 1_000.0
    monkeypatch.setattr("ackstream.gateway.middleware.audit.time", SimpleNamespace(time=lambda: now))
    audit = Audit("changes", rows.append)
    error = authentication_failed("The user name or the password is wrong.", ())
    for _ in range(10_000):
        audit.failed(Peer("10.0.0.9"), error, None)  # type: ignore[arg-type]
    audit.failed(Peer("10.0.0.8"), error, "ada")  # type: ignore[arg-type]
    audit.turn()
    assert len(rows) == FREE + 1
    now += WINDOW_SECONDS
    audit.turn()
    assert len(rows) == FREE + 2
    assert sum(row.count for row in rows if row.address == "10.0.0.9") == 10_000
    # the time of the address is over: the next one is shown by itself again
    audit.failed(Peer("10.0.0.9"), error, None)  # type: ignore[arg-type]
    assert (rows[-1].count, rows[-1].address) == (1, "10.0.0.9")


def test_attempts_from_very_many_addresses_are_counted_together() -> None:
    counts = FailureCounts()
    shown_ = sum(counts.take("sign-in", f"10.0.{n // 256}.{n % 256}", 0.0) for n in range(10 * ADDRESSES))
    assert shown_ <= ADDRESSES * FREE
    assert sum(count for *_, count in counts.due(0.0, everything=True)) + shown_ == 10 * ADDRESSES
    assert counts.due(1e9) == []


def test_requests_that_are_refused_unread_hide_no_failed_sign_in() -> None:
    rows: list[AuditRow] = []
    audit = Audit("changes", rows.append)
    for _ in range(10_000):
        audit.refused(Peer("10.0.0.9"), DittoError(403, "x", "y"))  # type: ignore[arg-type]
    audit.failed(Peer("10.0.0.9"), DittoError(401, "x", "y"), "ada")  # type: ignore[arg-type]
    assert shown(rows[-1], "event", "subject", "count") == ("sign-in", "user:ada", 1)
    audit.turn(closing=True)
    assert shown(rows[-1], "event", "address", "count") == ("request", "10.0.0.9", 10_000 - FREE)
    assert len(rows) == FREE + 2


def test_a_gateway_that_stops_leaves_no_count_behind() -> None:
    rows: list[AuditRow] = []
    audit = Audit("changes", rows.append)
    for _ in range(FREE + 3):
        audit.failed(Peer("10.0.0.9"), DittoError(401, "x", "y"), None)  # type: ignore[arg-type]
    audit.turn(closing=True)
    assert (len(rows), rows[-1].count) == (FREE + 1, 3)


def test_roles_are_shown_apart_from_the_subject() -> None:
    rows: list[AuditRow] = []
    sender = Sender(("jwt:x", "role:jwt:a", "role:jwt:b"))
    Audit("changes", rows.append).write("sign-in", sender, allowed=True)
    assert shown(rows[0], "subject", "roles") == ("jwt:x", ("jwt:a", "jwt:b"))
    assert json.loads(json.dumps(rows[0].roles)) == ["jwt:a", "jwt:b"]
