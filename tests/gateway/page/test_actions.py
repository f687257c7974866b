"""The actions of the page: for operators alone, from the gateway's own page or a program, and each one in the audit."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ackstream.client.errors import SettleTimeout, UnknownQueueError
from ackstream.gateway.exchange import Exchange
from ackstream.gateway.page import live, pages
from ackstream.protocol import record_headers
from ackstream.protocol.ditto.correlation_ids import wire_id
from ackstream.protocol.errors import request_cancelled
from ackstream.redriving.runs import RedriveReport
from tests.gateway.access.test_authentication import ACCESS, USERS, as_
from tests.gateway.page.test_pages import Seen
from tests.gateway.parts import URL, Web, failure

if TYPE_CHECKING:
    import httpx

LETTER, READER, REQUEST, QUEUE = "signals-0-7", "store", "lamp", "orders"
ORDERS = {"redrive": LETTER, "forget": READER, "cancel": REQUEST, "drain": QUEUE}
OPERATED = {
    "users": {**USERS, "oscar": {"password": USERS["ada"], "roles": ["operator"]}},
    "access": [*ACCESS, {"roles": ["user:operator"], "grant": ["READ"]}],
    "operators": ["user:admin", "user:ada", "role:user:operator"],
}


class Done:
    """What the actions have done, in place of Kafka and the tables."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.report = RedriveReport(chosen=1, redriven=1)
        self.error: Exception | None = None
        self.open = {wire_id(REQUEST)}
        monkeypatch.setattr(pages, "redrive", self._redrive)
        monkeypatch.setattr(pages, "delete_durable_subscription", self._forget)
        monkeypatch.setattr(pages, "drain_queue", self._drain)

    def _redrive(self, _settings: Any, *, where: str) -> RedriveReport:
        self._call("redrive", where)
        return self.report

    def _forget(self, _kafka: Any, *, name: str, timeout: float) -> None:
        assert 0 < timeout < 60
        self._call("forget", name)

    def _drain(self, _kafka: Any, *, queue: str, timeout: float) -> int:
        assert 0 < timeout < 60
        self._call("drain", queue)
        return 1_003

    def cancel(self, correlation_ids: set[str]) -> bool:
        self._call("cancel", correlation_ids)
        return bool(self.open)

    def _call(self, name: str, value: Any) -> None:
        self.calls.append((name, value))
        if self.error is not None:
            raise self.error


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Done:
    return Done(monkeypatch)


def gateway(done: Done, **settings: Any) -> Web:
    client = Web(live=Seen(), **{**OPERATED, **settings})
    client.exchange.cancel = done.cancel  # type: ignore[attr-defined]
    return client


def act(client: Web, action: str, of: str | None = None, **options: Any) -> httpx.Response:
    return client("POST", "//actions", json={"action": action, "of": of or ORDERS[action]}, **options)


def recorded(client: Web) -> list[tuple[Any, ...]]:
    names = ("event", "subject", "command", "path", "allowed", "status")
    return [tuple(getattr(row, name) for name in names) for row in client.rows]


@pytest.mark.parametrize("action", ORDERS)
def test_an_operator_acts_and_the_audit_has_who_what_when_and_on_what(done: Done, action: str) -> None:
    client = gateway(done)
    answer = act(client, action, **as_("admin"))
    assert (answer.status_code, answer.json().keys()) == (200, {"action", "of", "result"})
    assert answer.json()["of"] == ORDERS[action]
    ((name, value),) = done.calls
    assert name == action
    assert value in (f"id = '{LETTER}'", READER, QUEUE) or {one.partition("#")[0] for one in value} == {REQUEST}
    assert recorded(client) == [("command", "user:admin", f"gateway/actions/{action}", ORDERS[action], True, None)]
    (row,) = client.rows
    assert (row.address, row.method, row.received_at > 1_700_000_000_000) == ("127.0.0.1", "POST", True)


@pytest.mark.parametrize("action", ORDERS)
@pytest.mark.parametrize(
    ("who", "settings", "subject"),
    [
        ({}, {"users": {}, "access": [], "operators": []}, "anonymous"),
        (as_("admin"), {"operators": []}, "user:admin"),
        (as_("bob"), {}, "user:bob"),
        # an operator who may read a part only
        (as_("ada"), {}, "user:ada"),
    ],
    ids=["without authentication", "by default", "another user", "who may not read everything"],
)
def test_all_others_are_refused_and_recorded(
    done: Done, action: str, who: dict[str, Any], settings: dict[str, Any], subject: str
) -> None:
    client = gateway(done, **settings)
    answer = act(client, action, **who)
    assert (answer.status_code, answer.json()["error"]) == (403, "gateway:action.notallowed")
    assert done.calls == []
    assert recorded(client) == [("command", subject, f"gateway/actions/{action}", ORDERS[action], False, 403)]
    assert client("GET", "//live.json", **who).json()["may_act"] is False


def test_a_client_without_credentials_is_not_let_in(done: Done) -> None:
    client = gateway(done)
    assert act(client, "forget").status_code == 401
    assert done.calls == []


@pytest.mark.parametrize(
    ("who", "settings"),
    [
        (as_("admin"), {}),
        ({"auth": ("oscar", "ada's")}, {}),
        ({}, {"users": {}, "access": [], "operators": ["anonymous"]}),
    ],
    ids=["a user", "a role", "all of this machine"],
)
def test_the_page_offers_the_actions_to_operators(done: Done, who: dict[str, Any], settings: dict[str, Any]) -> None:
    client = gateway(done, **settings)
    assert client("GET", "//live.json", **who).json()["may_act"] is True
    assert act(client, "forget", **who).status_code == 200


@pytest.mark.parametrize(
    ("report", "word"),
    [
        (RedriveReport(), "do not have this dead letter"),
        (RedriveReport(chosen=1, earlier=1), "sent again before"),
        (RedriveReport(chosen=1, unavailable=[LETTER]), "cannot be sent again"),
    ],
)
def test_a_dead_letter_that_is_not_sent_is_409_with_the_reason(done: Done, report: RedriveReport, word: str) -> None:
    done.report = report
    client = gateway(done)
    answer = act(client, "redrive", **as_("admin"))
    assert (answer.status_code, answer.json()["error"]) == (409, "gateway:action.failed")
    assert word in answer.json()["message"]
    assert recorded(client)[0][4:] == (True, 409)
    assert word in str(client.rows[0].reason)


def test_a_request_that_is_not_open_here_is_409(done: Done) -> None:
    done.open = set()
    answer = act(gateway(done), "cancel", **as_("admin"))
    assert answer.status_code == 409
    assert "not open" in answer.json()["message"]


def test_the_settle_job_that_does_not_answer_is_409_with_the_remedy(done: Done) -> None:
    done.error = SettleTimeout("The removal was not confirmed: start the job.")
    client = gateway(done)
    answer = act(client, "forget", **as_("admin"))
    assert (answer.status_code, answer.json()["message"]) == (409, str(done.error))
    assert client.rows[0].reason == str(done.error)


def test_the_number_of_drained_messages_is_in_the_answer(done: Done) -> None:
    answer = act(gateway(done), "drain", **as_("admin"))
    assert answer.json()["result"] == "The queue is drained; messages given up: 1,003."


def test_an_unknown_queue_is_409_with_the_remedy(done: Done) -> None:
    done.error = UnknownQueueError("There is no queue orders: add it.")
    answer = act(gateway(done), "drain", **as_("admin"))
    assert (answer.status_code, answer.json()["message"]) == (409, str(done.error))


def test_an_unexpected_error_is_500_and_in_the_audit(done: Done) -> None:
    done.error = OSError("the disk is full")
    client = gateway(done)
    with pytest.raises(OSError, match="the disk is full"):
        act(client, "redrive", **as_("admin"))
    assert recorded(client)[0][4:] == (True, 500)
    assert client.rows[0].reason == "the disk is full"


def test_no_text_leaves_its_place_in_the_condition(done: Done) -> None:
    assert act(gateway(done), "redrive", "x' OR 'a' = 'a", **as_("admin")).status_code == 200
    assert done.calls == [("redrive", "id = 'x'' OR ''a'' = ''a'")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"action": "redrive"}',
        b'{"action": "purge", "of": "orders"}',
        b'{"action": "redrive", "of": ""}',
        b'{"action": "redrive", "of": 7}',
        b'{"action": "redrive", "of": "a\\nb"}',
        b'{"action": "redrive", "of": "x", "rate": 1}',
        b'{"action": "redrive", "of": "' + b"x" * 1_025 + b'"}',
        b"[" * 100_000,
    ],
)
def test_a_body_that_is_no_action_is_400(done: Done, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = gateway(done)("POST", "//actions", content=body, headers=headers, **as_("admin"))
    assert (answer.status_code, answer.json()["error"]) == (400, "json.invalid")
    assert done.calls == []


def test_a_body_that_is_too_large_is_413(done: Done) -> None:
    answer = act(gateway(done, max_body_bytes=20), "redrive", **as_("admin"))
    assert answer.status_code == 413


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_only_post_acts(done: Done, method: str) -> None:
    answer = gateway(done)(method, "//actions", **as_("admin"))
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("origin", [None, URL, "https://evil.example", "null"])
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_a_page_can_send_without_a_preflight_request_is_no_action(
    done: Done, origin: str | None, kind: str
) -> None:
    headers = {"content-type": kind} | ({"origin": origin} if origin else {})
    content = b'{"action": "forget", "of": "store"}'
    answer = gateway(done)("POST", "//actions", content=content, headers=headers, **as_("admin"))
    assert answer.status_code == (415 if origin in (None, URL) else 403)
    assert done.calls == []


@pytest.mark.parametrize(
    "headers", [{"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}]
)
def test_a_page_of_another_site_does_not_act(done: Done, headers: dict[str, str]) -> None:
    assert act(gateway(done), "forget", headers=headers, **as_("admin")).status_code == 403
    assert act(gateway(done), "forget", headers={"origin": URL}, **as_("admin")).status_code == 200
    assert len(done.calls) == 1


def test_nothing_is_done_that_the_audit_cannot_have(done: Done) -> None:
    client = gateway(done)
    client.audit.store(client.rows.append, lambda: True)
    assert act(client, "forget", **as_("admin")).status_code == 503
    assert done.calls == []


def test_a_request_is_cancelled_under_each_of_its_ids_on_the_wire() -> None:
    requester = mock.Mock(cancel=mock.Mock(side_effect=lambda one: one == "c#1"))
    exchange = Exchange(requester, mock.Mock())
    assert exchange.cancel(["c#1", "c#2"])
    assert [call.args for call in requester.cancel.call_args_list] == [("c#1",), ("c#2",)]
    assert not exchange.cancel(["c#2"])
    assert not exchange.cancel([])


def test_the_client_of_a_cancelled_request_gets_499() -> None:
    answer = Web(failure(request_cancelled()))("PUT", "/things/org.acme:lamp/attributes/a", json=1)
    assert (answer.status_code, answer.json()["status"]) == (499, 499)


def _record(at: int, **headers: str) -> Any:
    named = [(name, text.encode()) for name, text in headers.items()]
    return SimpleNamespace(timestamp=at, headers=named, key=None, value=b"x")


def test_each_dead_letter_has_the_id_under_which_the_tables_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [
        _record(1, **{record_headers.REASON: "It is no JSON (a.signals-3-17)"}),
        _record(2, **{record_headers.REASON: "x", record_headers.QUEUE: "orders", record_headers.MESSAGE: "m-0-5"}),
        # of a query, which no table has
        _record(3, **{record_headers.REASON: "It is no query", record_headers.TOPIC: "queries"}),
        _record(4),
    ]
    given, shown = iter(records), threading.Event()

    class Topics(mock.MagicMock):
        outdated = False

        def give(self, planes: Any) -> bool:
            if (record := next(given, None)) is not None:
                planes.take("dead-letters", record)
            else:
                shown.set()
            return False

        def signs(self) -> list[Any]:
            return []

    monkeypatch.setattr(live, "VIEW_SECONDS", 0.0)
    monkeypatch.setattr(live, "LedgerFeed", lambda *_: mock.MagicMock(records=lambda _: [], signed_at=lambda: None))
    monkeypatch.setattr(live, "PlaneFeed", lambda *_: Topics())
    with live.Live(live.Settings()) as followed:
        followed.whole()
        assert shown.wait(10)
        planes = followed.whole().planes
    assert planes is not None
    assert [letter.at for letter in planes.dead_letters] == [4, 3, 2, 1]
    assert [letter.id for letter in planes.dead_letters] == ["", "", "orders/m-0-5", "a.signals-3-17"]
