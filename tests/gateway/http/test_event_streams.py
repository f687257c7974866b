"""Server-sent events without Kafka: the test publishes signals and answers searches."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.datastructures import QueryParams
from starlette.requests import Request

from ackstream.gateway import errors, streaming
from ackstream.gateway.access.authentication import Authenticator, SignedIn, access_of
from ackstream.gateway.exchange import Dependencies
from ackstream.gateway.http import event_streams
from ackstream.gateway.http.event_streams import EventResponse, RequestEvents, SearchEvents, SignalEvents, frame
from ackstream.gateway.http.operations import find
from ackstream.gateway.middleware.admission import SEARCHES, Limits
from ackstream.protocol.ditto.correlation_ids import shown_id
from ackstream.protocol.ditto.envelopes import Envelope, decoded, raw
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.ditto.twin.subscriptions import publication
from ackstream.protocol.errors import DittoError, thing_not_found
from ackstream.settings import Gateway, Quota, Settings
from tests.gateway.access.test_authentication import ACCESS, USERS, as_
from tests.gateway.parts import Exchange, Web, aggregate, response
from tests.gateway.test_exchange import COMMAND
from tests.gateway.test_server import serving
from tests.gateway.websocket.test_session import NOW, ROBOTS, SECRET, Hub, token
from tests.harness.waiting import PATIENCE_SECONDS, eventually

THING = "/things/org.acme:lamp"
CHANGED = "org.acme/lamp/things/twin/events/modified"
MESSAGE = "org.acme/lamp/things/live/messages/ask"
EVENTS = {"headers": {"accept": "text/event-stream"}}


class Stream:
    """A client of one path, and the signals it is sent."""

    def __init__(self, path: str, subjects: tuple[str, ...] = ("anonymous",), **gateway: Any) -> None:
        settings = Settings(gateway=Gateway(**gateway))
        authenticator = Authenticator(settings.gateway)
        self.hub, self.exchange = Hub(), Exchange(response(200, {}))
        parts: Any = (
            settings, authenticator, access_of(settings.gateway, authenticator), self.exchange, None, self.hub
        )  # fmt: skip
        self.dependencies, self._subjects = Dependencies(*parts), subjects
        self._path, _, self._query = path.partition("?")

    def after(self, *signals: tuple[str, str, Any]) -> list[Any]:
        """Return the events (lines of each) that signals lead to: topic, path and value."""
        return self.run(lambda events: [events.receive(signal, NOW) for signal in map(_signal, signals)])

    def events(self) -> SignalEvents:
        """Return what a client of the path receives."""
        return SignalEvents(self.dependencies, find("GET", self._path), QueryParams(self._query), self._subjects)

    def run(self, act: Callable[[SignalEvents], Any]) -> list[Any]:
        async def go() -> list[str]:
            events = self.events()
            found = []
            with events.open():
                assert self.hub.listeners == 1
                act(events)
                self.exchange.interrupted = True
                found = [text async for text in events.frames()]
            assert self.hub.listeners == 0
            assert found.pop(0) == event_streams.HEARTBEAT
            return found

        return asyncio.run(go())


def _signal(given: tuple[str, str, Any]) -> Any:
    topic, path, value = given
    found = publication(Envelope(TopicPath.parse(topic), {"secret": "s"}, path, raw(value), revision=7), "c-1")
    assert found is not None
    return found


def data(frames: list[str]) -> list[Any]:
    return [json.loads(text.removeprefix("data: ")) for text in frames]


LAMP_ON = (CHANGED, "/features/lamp/properties/on", True)
MOVED = (CHANGED, "/attributes", {"place": "Bonn", "floor": 3})
DELETED = ("org.acme/lamp/things/twin/events/deleted", "/attributes/place", None)
OTHER = ("org.other/door/things/twin/events/created", "/", {"thingId": "org.other:door"})
ON = {"thingId": "org.acme:lamp", "features": {"lamp": {"properties": {"on": True}}}}
PLACE = {"thingId": "org.acme:lamp", "attributes": {"place": "Bonn", "floor": 3}}
DOOR = {"thingId": "org.other:door"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/things", [ON, PLACE, {"thingId": "org.acme:lamp"}, DOOR]),
        ("/things?ids=org.other:door", [DOOR]),
        ("/things?namespaces=org.other", [DOOR]),
        (THING, [ON, PLACE, {"thingId": "org.acme:lamp"}]),
        ("/things?filter=gt(attributes/floor,2)", [PLACE]),
        ("/things?filter=gt(attributes/floor,2)&filter=eq(attributes/place,'Ulm')", []),
        ("/things?fields=thingId,features/lamp", [ON, *[{"thingId": "org.acme:lamp"}] * 2, DOOR]),
        ("/things?fields=features", [{"features": ON["features"]}]),
        (f"{THING}?fields=_revision&filter=exists(features/lamp)", [{"_revision": 7}]),
        (f"{THING}/attributes", [PLACE["attributes"]]),
        (f"{THING}/attributes/place", ["Bonn"]),
        (f"{THING}/features/lamp/properties/on", [True]),
    ],
)
def test_a_change_is_sent_as_the_changed_part_of_the_thing(path: str, expected: list[Any]) -> None:
    assert data(Stream(path).after(LAMP_ON, MOVED, DELETED, OTHER)) == expected


def test_the_context_of_a_change_is_the_event_itself() -> None:
    (found,) = data(Stream("/things?fields=_context").after(LAMP_ON))
    context = found["_context"]
    assert (context["topic"], context["path"], context["value"]) == (*LAMP_ON[:2], True)
    assert context["headers"]["correlation-id"] == "c-1"
    assert data(Stream("/things?fields=thingId,_context/path").after(LAMP_ON)) == [
        {"thingId": "org.acme:lamp", "_context": {"path": "/features/lamp/properties/on"}}
    ]


def test_fields_that_have_not_changed_are_added_and_filters_see_them() -> None:
    stream = Stream("/things?extraFields=attributes/place&filter=eq(attributes/place,'Bonn')")
    stream.hub.extra = {"attributes": {"place": "Bonn"}}
    assert data(stream.after(LAMP_ON)) == [{**ON, "attributes": {"place": "Bonn"}}]
    stream.hub.extra = thing_not_found("org.acme:lamp")
    assert data(stream.after(LAMP_ON)) == [thing_not_found("org.acme:lamp").to_dict()]


@pytest.mark.parametrize(
    ("path", "subjects"),
    [
        (f"{THING}/inbox/messages", ["ask", "ask/me"]),
        (f"{THING}/inbox/messages/ask", ["ask"]),
        (f"{THING}/outbox/messages", []),
        (f"{THING}/features/f/outbox/messages/smoke", ["smoke"]),
    ],
)
def test_a_message_is_an_event_with_the_name_of_its_subject(path: str, subjects: list[str]) -> None:
    live = "org.acme/lamp/things/live/messages"
    frames = Stream(path).after(
        (f"{live}/ask", "/inbox/messages/ask", {"how": "are you"}),
        (f"{live}/ask/me", "/inbox/messages/ask/me", 1),
        (f"{live}/smoke", "/features/f/outbox/messages/smoke", 1),
        ("org.acme/door/things/live/messages/ask", "/inbox/messages/ask", 1),
    )
    assert [text.split("\n")[0] for text in frames] == [f"event: {subject}" for subject in subjects]
    assert not subjects or '{"how":"are you"}' in frames[0] or subjects == ["smoke"]


@pytest.mark.parametrize(
    ("content_type", "value", "shown"),
    [
        ("text/plain", "two\nlines", "event: ask\ndata: two\ndata: lines\n\n"),
        ("application/octet-stream", "AP8=", "event: ask\ndata: AP8=\n\n"),
        ("application/json", "text", 'event: ask\ndata: "text"\n\n'),
    ],
)
def test_the_payload_of_a_message_is_its_text(content_type: str, value: str, shown: str) -> None:
    envelope = Envelope(TopicPath.parse(MESSAGE), {"content-type": content_type}, "/inbox/messages/ask", raw(value))
    signal = publication(envelope, "c-1")
    assert signal is not None
    stream = Stream(f"{THING}/inbox/messages")
    assert stream.run(lambda events: events.receive(signal, NOW)) == [shown]


def test_only_what_may_be_read_is_sent() -> None:
    given: dict[str, Any] = {"users": USERS, "access": ACCESS}
    stream = Stream("/things?extraFields=features,attributes/place", ("user:ada",), **given)
    stream.hub.extra = {"attributes": {"place": "Ulm"}, "features": {"secret": {}}}
    whole = ("org.acme/lamp/things/twin/events/created", "/", {"attributes": {"a": 1}, "features": {"f": {}}})
    assert data(stream.after(whole, LAMP_ON, OTHER)) == [
        {"thingId": "org.acme:lamp", "attributes": {"place": "Ulm", "a": 1}}
    ]
    for path in ("/things/org.other:door", f"{THING}/inbox/messages"):
        with pytest.raises(DittoError) as caught:
            Stream(path, ("user:bob",), **given).after()
        assert caught.value.error == "things:thing.notfound"


def test_a_stream_ends_when_its_user_is_removed() -> None:
    async def go() -> None:
        stream = Stream("/things", ("user:ada",), users=USERS, access=ACCESS)
        request = Request({"type": "http", "headers": [(b"authorization", b"Basic " + base64.b64encode(b"ada:ada's"))]})
        authenticator, sent = stream.dependencies.authenticator, asyncio.Queue[Any]()
        identity = await authenticator.admit(request)
        events = stream.events()
        signed_in = partial(SignedIn, authenticator, stream.dependencies.access, request, identity, ())
        answer = EventResponse(events.frames(), "c-1", signed_in, events.open())
        task = asyncio.create_task(answer({"type": "http", "asgi": {"spec_version": "2.4"}}, sent.get, sent.put))
        assert [(await sent.get())["type"] for _ in range(2)] == ["http.response.start", "http.response.body"]
        authenticator.replace_users({})
        await asyncio.wait_for(task, PATIENCE_SECONDS)
        while not sent.empty():
            last = await sent.get()
        assert last == {"type": "http.response.body", "body": b""}
        assert (stream.hub.listeners, authenticator._changed) == (0, set())

    asyncio.run(go())


@pytest.mark.parametrize("path", ["/api/2/things", "/api/2/search/things"])
def test_a_stream_ends_with_its_token(tmp_path: Path, path: str) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET, "utf-8")
    issuer = {"issuer": "me", "audience": ["ackstream"], "algorithms": ["HS256"], "key_file": str(key)}
    headers = {**EVENTS["headers"], "authorization": f"Bearer {token(2)}"}
    # a search without an end
    page = response(200, {"items": [{"thingId": "a:1"}], "cursor": "1"})
    with serving(page, issuers=[issuer], access=ROBOTS) as running:
        with httpx.stream("GET", f"{running.url}{path}", headers=headers, timeout=PATIENCE_SECONDS) as got:
            # the second comment on an idle stream would come after ten seconds
            assert "".join(got.iter_text()).count(event_streams.HEARTBEAT) == (path == "/api/2/things")
        eventually(lambda: running.hub.listeners == 0, "the end of the subscription")


def test_a_client_that_does_not_read_is_cut_off_and_nothing_is_kept_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "MAX_WAITING_CHARACTERS", 100)
    changes = [_signal((CHANGED, "/attributes/place", f"place {number:02}")) for number in range(9)]

    def act(events: SignalEvents) -> None:
        for signal in changes:
            events.receive(signal, NOW)
        assert events._unread._waiting.empty()

    assert Stream(f"{THING}/attributes/place").run(act) == []


def slowly(stream: Stream, *texts: str) -> None:
    """Let the twin answer the first questions about extra fields with these, and no further one."""
    answers = iter(texts)

    async def thing(*_arguments: Any) -> Any:
        text = next(answers, None)
        if text is None:
            await asyncio.Event().wait()
        return {"attributes": {"place": text}}

    stream.hub.thing = thing  # type: ignore[method-assign]


def test_fields_are_not_added_any_more_for_a_client_that_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "MAX_WAITING_CHARACTERS", 200)
    stream = Stream("/things?extraFields=attributes/place")
    slowly(stream, "x" * 90, "x" * 90, "x" * 90)

    async def go() -> list[str]:
        events = stream.events()
        with events.open():
            for _ in range(100):
                events.receive(_signal(LAMP_ON), NOW)
            _, unfinished = await asyncio.wait(events._tasks, timeout=PATIENCE_SECONDS)
            assert not unfinished
            assert events._unread._waiting.empty()
            return [text async for text in events.frames()]

    assert asyncio.run(go()) == [event_streams.HEARTBEAT]


def test_a_stream_that_fails_while_it_waits_for_fields_ends() -> None:
    stream = Stream("/things?extraFields=attributes/place")
    slowly(stream)

    async def go() -> list[str]:
        events = stream.events()
        with events.open():
            events.receive(_signal(LAMP_ON), NOW)
            asyncio.get_running_loop().call_later(0.05, events.fail)
            return [text async for text in events.frames()]

    assert asyncio.run(go()) == [event_streams.HEARTBEAT]


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/things?ids=lamp", 400, "things:id.invalid"),
        ("/things?ids=", 400, "gateway:parameter.invalid"),
        ("/things/lamp", 400, "things:id.invalid"),
        ("/things?filter=nonsense", 400, "rql.expression.invalid"),
        ("/things?fields=_policy", 501, "command.notavailable"),
        ("/things?option=size(5)", 400, "gateway:parameter.invalid"),
        (f"{THING}/attributes?fields=a", 400, "gateway:parameter.invalid"),
        (f"{THING}?from-historical-revision=1", 400, "gateway:parameter.invalid"),
        (f"{THING}?condition=exists(attributes/a)", 400, "header.invalid"),
        ("/search/things?option=limit(0,5)", 400, "thing-search:search.option.invalid"),
    ],
)
def test_what_cannot_be_streamed_is_refused_before_the_stream(path: str, status: int, error: str) -> None:
    answer = Web()("GET", path, **EVENTS)
    assert (answer.status_code, answer.json()["error"]) == (status, error)


def test_a_frame_keeps_to_its_lines() -> None:
    assert frame("a\r\nb\rc\u2028d", event="x\nid: 1") == "event: x id: 1\ndata: a\ndata: b\ndata: c\u2028d\n\n"


# -- searches ----------------------------------------------------------------------------------------------------------


def pages(*found: list[str]) -> Callable[[Envelope], Any]:
    """Answer searches with pages of things; a cursor is the number of the next one."""

    def answer(command: Envelope) -> Any:
        options = decoded(command.value).get("options", ())
        number = next((int(option[7:-1]) for option in options if option.startswith("cursor(")), 0)
        more = {"cursor": str(number + 1)} if number + 1 < len(found) else {}
        items = [{"thingId": name, "attributes": {"n": 1}} for name in found[number]]
        return response(200, {"items": items, **more})(command)

    return answer


def test_a_search_streams_all_its_pages() -> None:
    web = Web(pages(["a:1", "a:2"], ["a:3"]))
    query = {"filter": "exists(attributes/n)", "fields": "attributes", "option": "sort(-thingId)"}
    answer = web("GET", "/search/things", params=query, headers={**EVENTS["headers"], "correlation-id": "s"})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["correlation-id"] == "s"
    assert answer.text == "".join(f'id: {name}\ndata: {{"attributes":{{"n":1}}}}\n\n' for name in ("a:1", "a:2", "a:3"))
    first, second = web.exchange.sent
    wanted = {"filter": "exists(attributes/n)", "fields": "attributes,thingId"}
    assert decoded(first.value) == {**wanted, "options": ["sort(-thingId)"], "all": True}
    assert decoded(second.value) == {**wanted, "options": ["sort(-thingId)", "cursor(1)"], "all": True}
    assert {shown_id(sent.headers["correlation-id"]) for sent in web.exchange.sent} == {"s"}
    assert first.headers["correlation-id"] != second.headers["correlation-id"]


def test_a_search_continues_behind_the_last_thing_that_the_client_has() -> None:
    web = Web(pages(["a:2"], ["a:3"]))
    web("GET", "/search/things?option=size(1)", headers={**EVENTS["headers"], "last-event-id": "a:1"})
    assert [decoded(sent.value) for sent in web.exchange.sent] == [
        {"options": ["size(1)"], "after": "a:1", "all": True},
        {"options": ["size(1)", "cursor(1)"], "all": True},
    ]


def test_a_restricted_search_continues_behind_a_thing_within_what_its_sender_may_read() -> None:
    web = Web(pages([]), users=USERS, access=ACCESS)
    web("GET", "/search/things", headers={**EVENTS["headers"], "last-event-id": "boss:ceo"}, **as_("ada"))
    wanted = decoded(web.sent.value)
    assert (wanted["after"], wanted["only"]) == ("boss:ceo", ["org.acme:door"])


def search_events(exchange: Any, limit: Callable[[], Any] = nullcontext) -> SearchEvents:
    asked = Envelope(TopicPath.parse("_/_/things/twin/commands/retrieve"), {}, "/search/things", raw({}))
    numbers = map(str, range(100))
    return SearchEvents(exchange, asked, lambda: next(numbers), limit)


def test_comments_are_sent_while_a_page_is_queried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "HEARTBEAT_SECONDS", 0.01)

    class Slow(Exchange):
        async def ask(self, command: Envelope) -> Any:
            await asyncio.sleep(0.05 * len(self.sent))
            return await super().ask(command)

    async def go() -> list[str]:
        search = search_events(Slow(pages(["a:1"], ["a:2"])))
        await search.begin(None)
        return [text async for text in search.frames()]

    first, *comments, last = asyncio.run(go())
    assert (first.split("\n")[0], last.split("\n")[0]) == ("id: a:1", "id: a:2")
    assert set(comments) == {event_streams.HEARTBEAT}


def test_the_pages_of_many_streams_are_searches_of_their_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "TURN_SECONDS", 0.001)
    limits, at_once, most = Limits(Gateway()), 0, 0

    class Counted(Exchange):
        async def ask(self, command: Envelope) -> Any:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.01)
            at_once -= 1
            return await super().ask(command)

    async def one() -> list[str]:
        found = search_events(Counted(pages(["a:1"], ["a:2"])), partial(limits.search, "user:a"))
        found._page, found._cursor = [{"thingId": "a:0"}], "1"
        return [text async for text in found.frames()]

    async def go() -> list[list[str]]:
        return await asyncio.gather(*(one() for _ in range(12)))

    assert {len(texts) for texts in asyncio.run(go())} == {2}
    assert most == SEARCHES


def test_a_search_that_fails_in_between_ends_with_the_error() -> None:
    good = pages(["a:1"], ["a:2"])
    web: Web = Web(
        lambda command: good(command) if len(web.exchange.sent) == 1 else response(503, {"error": "x"})(command)
    )
    assert web("GET", "/search/things", **EVENTS).text.split("\n\n")[1] == 'data: {"error":"x"}'


def test_a_search_finds_what_its_sender_may_read() -> None:
    web = Web(pages([]), users=USERS, access=ACCESS)
    assert web("GET", "/search/things", **EVENTS, **as_("ada")).text == ""
    assert decoded(web.sent.value)["only"] == ["org.acme:door"]


# -- the updates of a request


WORKING, DONE = ("a:b", 102, {"n": 1}), ("c:d", 200, None)
PUT = partial(dict, headers={**EVENTS["headers"], "correlation-id": "c"}, json=True)


def asked(web: Web, method: str = "PUT", path: str = f"{THING}/attributes/on", **options: Any) -> list[tuple[str, Any]]:
    """Return the events of a request: their names and data."""
    answer = web(method, f"{path}?requested-acks=a:b,c:d", **PUT(**options))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    first, *frames, end = answer.text.split("\n\n")
    assert (first, end) == (":", "")
    lines = [frame.split("\n") for frame in frames]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", f"{THING}/attributes/on"), ("POST", f"{THING}/inbox/messages/ask"), ("DELETE", THING)]
)
def test_the_acknowledgements_of_a_request_come_as_events_and_its_reply_is_the_last(method: str, path: str) -> None:
    web = Web(aggregate(("a:b", 409, None), DONE))
    web.exchange.updates = [[WORKING], [DONE]]
    found = asked(web, method, path, **({"json": None} if method == "DELETE" else {}))
    assert [name for name, _ in found] == ["progress", "progress", "reply"]
    messages = [message for _, message in found]
    assert [message["status"] for message in messages] == [102, 102, 424]
    entries = [{label: entry["status"] for label, entry in message["value"].items()} for message in messages]
    assert entries == [{"a:b": 102}, {"c:d": 200}, {"a:b": 409, "c:d": 200}]
    ids = {message["headers"]["correlation-id"] for message in messages}
    ids |= {entry["headers"]["correlation-id"] for message in messages for entry in message["value"].values()}
    assert ids == {"c"}
    assert shown_id(web.sent.headers["correlation-id"]) == "c" != web.sent.headers["correlation-id"]


def test_a_request_that_requires_no_response_and_one_of_another_media_type_have_no_events() -> None:
    web = Web(response(204))
    assert web("PUT", f"{THING}/attributes/on?response-required=false", **PUT()).status_code == 202
    assert web("PUT", f"{THING}/attributes/on", json=True, headers={"accept": "*/*"}).status_code == 204


def test_an_error_in_place_of_the_reply_is_the_last_event() -> None:
    web = Web()
    web.exchange.updates, web.exchange.failure = [[WORKING]], thing_not_found("org.acme:lamp")
    (name, _), (last, error) = asked(web)
    assert (name, last, error) == ("progress", "failure", thing_not_found("org.acme:lamp").to_dict())


def test_a_request_that_is_not_sent_has_the_status_of_its_error() -> None:
    web = Web()
    web.exchange.refusal = errors.not_sent()
    answer = web("PUT", f"{THING}/attributes/on", **PUT())
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/json")
    assert answer.headers["retry-after"]


def test_the_events_of_a_request_count_as_an_open_request_and_a_stream() -> None:
    quota = Quota(name="all", subjects=("anonymous",), max_open_requests=1, max_sockets=1)
    web = Web(quotas=(quota,))
    admission, refused = web.dependencies.admission, list[str]()

    def count() -> None:
        for counted in (admission.open_requests.one, admission._open_sockets.one):
            try:
                with counted(("anonymous",)):
                    pass
            except DittoError as error:
                refused.append(error.message)

    web.exchange.during = count
    asked(web)
    assert len(refused) == 2
    count()
    assert len(refused) == 2


class Waiting(Exchange):
    """Never answers; ``left`` once its client has gone."""

    left = False

    async def _replies(self, command: Envelope) -> Any:
        try:
            await asyncio.Event().wait()
            yield await self.ask(command)
        except asyncio.CancelledError:
            self.left = True
            raise


def test_comments_are_sent_while_a_request_is_open_and_its_wait_ends_with_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_streams, "HEARTBEAT_SECONDS", 0.001)
    exchange = Waiting(response(204))

    async def go() -> None:
        events = RequestEvents(SimpleNamespace(stream=lambda: nullcontext(exchange.stream(COMMAND))))  # type: ignore[arg-type]
        with events.open():
            frames = events.frames()
            assert [await anext(frames) for _ in range(3)] == [event_streams.HEARTBEAT] * 3
            await frames.aclose()  # type: ignore[attr-defined]
            await asyncio.sleep(0)
            assert exchange.left

    asyncio.run(go())
