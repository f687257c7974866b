"""The searches of one client, with a twin that the test itself plays."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ackstream.gateway.websocket import incoming as searches
from ackstream.gateway.websocket.incoming import Searches
from ackstream.protocol.ditto.envelopes import Envelope, error_envelope, raw
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.errors import DittoError, option_invalid

TOPIC = "_/_/things/twin/search"
THINGS = [f"org.acme:{number}" for number in range(5)]
SIZE = 2


def page(query: Envelope) -> Envelope:
    """Answer as the twin: pages of two things, the cursor is a position."""
    options = msgspec.json.decode(query.value).get("options", ())
    begin = next((int(option[7:-1]) for option in options if option.startswith("cursor(")), 0)
    value: dict[str, Any] = {"items": THINGS[begin : begin + SIZE]}
    if begin + SIZE < len(THINGS):
        value["cursor"] = str(begin + SIZE)
    return msgspec.structs.replace(query, value=raw(value), status=200)


class Client:
    """Keeps the events it gets."""

    def __init__(self, answer: Callable[[Envelope], Any] = page) -> None:
        self.events: list[dict[str, Any]] = []
        self.queries: list[Envelope] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self._answer = answer
        self.tasks: list[asyncio.Task[None]] = []
        self._searches = Searches(self._ask, self, self._start)  # type: ignore[arg-type]  # of the messages to a client

    async def _ask(self, query: Envelope) -> Envelope:
        self.queries.append(query)
        await asyncio.sleep(0)
        found = self._answer(query)
        if isinstance(found, Exception):
            raise found
        return found

    def put(self, text: str) -> None:
        self.events.append(json.loads(text))

    async def room(self) -> None:
        await self.reads.wait()

    def _start(self, coroutine: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.append(task)
        return task

    def tell(self, action: str, **value: Any) -> None:
        topic = TopicPath.parse(f"{TOPIC}/{action}")
        self._searches.take(Envelope(topic, {"correlation-id": f"to-{action}"}, "/", raw(value)))

    async def settle(self) -> None:
        for _ in range(100):
            await asyncio.sleep(0)

    async def get(self, *actions: str) -> list[dict[str, Any]]:
        """Return the values of the events since the last call, which are these."""
        await self.settle()
        found, self.events = self.events, []
        assert [event["topic"] for event in found] == [f"{TOPIC}/{action}" for action in actions]
        return [event["value"] for event in found]


def run(story: Callable[[Client], Any], answer: Callable[[Envelope], Any] = page) -> None:
    async def go() -> None:
        client = Client(answer)
        try:
            await story(client)
        finally:
            for task in client.tasks:
                task.cancel()
            await asyncio.gather(*client.tasks, return_exceptions=True)

    asyncio.run(go())


def error_of(value: dict[str, Any]) -> tuple[int, str]:
    return value["error"]["status"], value["error"]["error"]


def test_pages_come_as_they_are_requested_until_the_last():
    async def story(client: Client) -> None:
        client.tell("subscribe")
        assert await client.get("created") == [{"subscriptionId": "0"}]
        assert client.queries == []
        client.tell("request", subscriptionId="0", demand=1)
        assert await client.get("next") == [{"subscriptionId": "0", "items": THINGS[:2]}]
        client.tell("request", subscriptionId="0", demand=1)
        client.tell("request", subscriptionId="0", demand=5)
        second, last, _ = await client.get("next", "next", "complete")
        assert second["items"] + last["items"] == THINGS[2:]
        assert len(client.queries) == 3

    run(story)


def test_no_page_is_queried_for_a_client_that_does_not_read():
    async def story(client: Client) -> None:
        client.tell("subscribe")
        client.reads.clear()
        client.tell("request", subscriptionId="0", demand=10)
        await client.get("created")
        assert client.queries == []
        client.reads.set()
        await client.get("next", "next", "next", "complete")

    run(story)


def test_the_commands_of_a_client_that_does_not_read_are_taken():
    async def story(client: Client) -> None:
        client.reads.clear()
        client.tell("subscribe")
        client.tell("subscribe")
        client.tell("request", subscriptionId="nobody's", demand=1)
        await client.get("created", "created", "failed")

    run(story)


def test_searches_of_one_client_do_not_wait_for_each_other():
    async def story(client: Client) -> None:
        client.tell("subscribe")
        client.tell("subscribe")
        client.tell("request", subscriptionId="1", demand=1)
        created, other, page_ = await client.get("created", "created", "next")
        assert [value["subscriptionId"] for value in (created, other, page_)] == ["0", "1", "1"]

    run(story)


def test_one_page_at_a_time_is_queried_for_all_searches_of_a_client():
    """Else each of them would find room for its page before any of the others is there."""

    def fills(query: Envelope) -> Envelope:
        client_[0].reads.clear()
        return page(query)

    client_: list[Client] = []

    async def story(client: Client) -> None:
        client_.append(client)
        for number in range(3):
            client.tell("subscribe")
            client.tell("request", subscriptionId=str(number), demand=1)
        for number in range(3):
            await client.settle()
            assert len(client.queries) == number + 1
            client.reads.set()
        await client.get("created", "created", "created", "next", "next", "next")

    run(story, fills)


def test_a_cancelled_search_is_silent_and_a_request_of_it_fails():
    async def story(client: Client) -> None:
        client.tell("subscribe")
        client.tell("request", subscriptionId="0", demand=10)
        client.tell("cancel", subscriptionId="0")
        await client.get("created")
        client.tell("cancel", subscriptionId="0")
        client.tell("request", subscriptionId="0", demand=1)
        (value,) = await client.get("failed")
        assert error_of(value) == (400, "thing-search:subscription.protocol.error")

    run(story)


def test_a_search_that_has_ended_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch):
    async def story(client: Client) -> None:
        client.tell("subscribe")
        client.tell("request", subscriptionId="0", demand=10)
        await client.get("created", "next", "next", "next", "complete")
        client.tell("cancel", subscriptionId="0")
        await client.get()
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + searches.ENDED_SECONDS)
        for action in ("request", "cancel"):
            client.tell(action, subscriptionId="0", demand=1)
            (value,) = await client.get("failed")
            assert error_of(value) == (404, "thing-search:subscription.not.found")

    run(story)


def test_a_demand_that_is_not_positive_ends_the_search():
    async def story(client: Client) -> None:
        client.tell("subscribe")
        client.tell("request", subscriptionId="0", demand=0)
        _, value = await client.get("created", "failed")
        assert error_of(value) == (400, "thing-search:subscription.protocol.error")
        assert "rule 3.9" in value["error"]["message"]
        client.tell("request", subscriptionId="0", demand=1)
        (value,) = await client.get("failed")
        assert "considered cancelled" in value["error"]["message"]

    run(story)


@pytest.mark.parametrize(
    ("options", "answer", "error"),
    [
        ("cursor(1)", page, (400, "thing-search:search.option.invalid")),
        ("", lambda _: option_invalid("why"), (400, "thing-search:search.option.invalid")),
        (
            "",
            lambda _: error_envelope(option_invalid("why"), thing_id=None, channel=None, headers={}),
            (400, "thing-search:search.option.invalid"),
        ),
        ("", lambda query: msgspec.structs.replace(query, value=raw([]), status=200), (500, "internalerror")),
        ("", lambda query: msgspec.structs.replace(query, value=msgspec.UNSET, status=204), (500, "internalerror")),
        ("", lambda _: RuntimeError("oops"), (500, "internalerror")),
    ],
)
def test_a_failure_comes_after_the_first_request(options: str, answer: Any, error: tuple[int, str]):
    async def story(client: Client) -> None:
        client.tell("subscribe", options=options)
        await client.get("created")
        client.tell("request", subscriptionId="0", demand=1)
        (value,) = await client.get("failed")
        assert error_of(value) == error

    run(story, answer)


def test_a_search_without_requests_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(searches, "IDLE_SECONDS", 0.01)

    async def story(client: Client) -> None:
        client.tell("subscribe")
        await asyncio.wait(client.tasks)
        _, value = await client.get("created", "failed")
        assert error_of(value) == (408, "thing-search:subscription.timeout")

    run(story)


def test_a_client_may_have_so_many_searches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(searches, "MAX_OPEN_SEARCHES", 1)

    async def story(client: Client) -> None:
        client.tell("subscribe")
        with pytest.raises(DittoError) as caught:
            client.tell("subscribe")
        assert caught.value.status == 429
        client.tell("cancel", subscriptionId="0")
        client.tell("subscribe")
        assert [value["subscriptionId"] for value in await client.get("created", "created")] == ["0", "1"]

    run(story)
