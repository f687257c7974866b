"""Waiting without threads: what a client's future comes to, and what ends the wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from typing import Any
from unittest import mock

import pytest

from ackstream.client import (
    ClosedError,
    Command,
    CorrelationIdInUseError,
    NotSentError,
    Reply,
    RequestTimeout,
    Updates,
)
from ackstream.gateway import exchange as module
from ackstream.gateway.exchange import Exchange
from ackstream.observe.outcomes import RequestOutcome
from ackstream.protocol.errors import DittoError
from ackstream.settings import Settings
from tests.prose import covers

COMMAND = Command.of("org.acme/lamp/things/twin/commands/delete", headers={"correlation-id": "c-1"})


class Clients:
    """A requester and its outcomes whose futures the test resolves."""

    def __init__(self, *, full: bool = False) -> None:
        self.futures: list[Future[Any]] = []
        self.streams: list[Updates] = []
        self.expected: list[str] = []
        self._full = full

    def send(self, _command: Any) -> Future[Any]:
        if self._full:
            raise CorrelationIdInUseError("in use", "c-1")
        self.futures.append(Future())
        return self.futures[-1]

    publish = send

    def stream(self, command: Any) -> Updates:
        if self._full:
            self.send(command)
        updates = Updates(Future)
        self.futures.append(updates.reply)
        self.streams.append(updates)
        return updates

    @contextmanager
    def expect(self, correlation_id: str, _thing_id: str) -> Iterator[Future[Any]]:
        self.expected.append(correlation_id)
        yield self.send(None)
        self.expected.pop()


def exchange(clients: Clients) -> Exchange:
    return Exchange(clients, clients)  # type: ignore[arg-type]


def test_a_thousand_wait_and_each_gets_its_own_answer() -> None:
    clients = Clients()

    async def go() -> list[Any]:
        waiting = asyncio.gather(*(exchange(clients).ask(COMMAND) for _ in range(1000)))
        await asyncio.sleep(0)
        for number, future in reversed(list(enumerate(clients.futures))):
            await asyncio.to_thread(future.set_result, number) if number % 100 == 0 else future.set_result(number)
        return await waiting

    assert asyncio.run(go()) == list(range(1000))


def test_without_the_job_that_answers_a_request_is_refused_at_once_and_what_needs_no_answer_is_sent() -> None:
    clients, missing = Clients(), ["No correlate job has run here yet."]
    kafka = Exchange(clients, clients, lambda: missing[0])  # type: ignore[arg-type]

    async def go() -> None:
        for asked in (kafka.ask(COMMAND), kafka.settle(COMMAND, 60)):
            # at once: its first step ends it
            with closing(asked), pytest.raises(DittoError) as raised:
                asked.send(None)
            assert (raised.value.status, raised.value.message) == (503, missing[0])
            assert raised.value.headers == (("retry-after", "5"),)
        assert clients.futures == []
        publishing = asyncio.create_task(kafka.publish(COMMAND))
        await asyncio.sleep(0)
        clients.futures[0].set_result(None)
        await publishing
        missing[0] = ""
        asking = asyncio.create_task(kafka.ask(COMMAND))
        await asyncio.sleep(0)
        clients.futures[1].set_result("reply")
        assert await asking == "reply"

    asyncio.run(go())


def test_the_live_page_decides_whether_the_job_that_answers_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("ensure_topics", "AuditTrail", "FileWatch", "Outcomes", "Requester", "Live", "Streaming"):
        monkeypatch.setattr(module, part, mock.MagicMock())
    presence = module.Live.return_value.__enter__.return_value.presence  # type: ignore[attr-defined]
    with module.connected(Settings()) as parts:
        for presence.missing in ("No correlate job has run here yet.", "It is gone."):
            with closing(parts.exchange.ask(COMMAND)) as asked, pytest.raises(DittoError, match=presence.missing):
                asked.send(None)


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (NotSentError("no", "c-1"), 503, (("retry-after", "1"),)),
        (RequestTimeout("no", "c-1"), 503, (("retry-after", "1"),)),
        (ClosedError("no", "c-1"), 503, (("retry-after", "1"),)),
    ],
)
def test_what_ends_without_a_reply_is_503(error: Exception, status: int, headers: Any) -> None:
    clients = Clients()

    async def go() -> None:
        waiting = asyncio.ensure_future(exchange(clients).ask(COMMAND))
        await asyncio.sleep(0)
        clients.futures[0].set_exception(error)
        await waiting

    with pytest.raises(DittoError) as raised:
        asyncio.run(go())
    assert (raised.value.status, raised.value.headers) == (status, headers)  # type: ignore[attr-defined]


@covers("aggregation", "forwarder-duplicate-correlation-id")
def test_a_correlation_id_that_is_open_is_409() -> None:
    with pytest.raises(DittoError, match="c-1") as raised:
        asyncio.run(exchange(Clients(full=True)).ask(COMMAND))
    assert (raised.value.status, raised.value.error) == (409, "acknowledgement:request.duplicate.correlation-id")


def test_an_outcome_is_awaited_from_before_the_request_is_sent() -> None:
    clients = Clients()

    async def go() -> Any:
        waiting = asyncio.ensure_future(exchange(clients).settle(COMMAND, 60))
        await asyncio.sleep(0)
        expected, sent = clients.futures
        assert clients.expected == ["c-1"]
        expected.set_result(RequestOutcome(404, "error"))
        sent.set_result(None)
        return await waiting

    assert asyncio.run(go()) == RequestOutcome(404, "error")
    assert clients.expected == []


def test_an_outcome_that_does_not_come_is_none() -> None:
    clients = Clients()

    async def go() -> Any:
        waiting = asyncio.ensure_future(exchange(clients).settle(COMMAND, 0.001))
        await asyncio.sleep(0)
        clients.futures[1].set_result(None)
        return await waiting

    assert asyncio.run(go()) is None


def test_an_interruption_ends_every_wait_and_lets_nobody_wait_any_more() -> None:
    clients = Clients()

    async def go() -> list[Any]:
        asked = exchange(clients)
        waiting = asyncio.gather(*(asked.ask(COMMAND) for _ in range(3)), return_exceptions=True)
        await asyncio.sleep(0)
        asked.interrupt()
        ended = await waiting
        # a reply that comes now is nobody's
        clients.futures[0].set_result("late")
        await asyncio.sleep(0)
        with pytest.raises(DittoError, match="did not send"):
            await asked.ask(COMMAND)
        assert len(clients.futures) == 3
        return ended

    assert [error.status for error in asyncio.run(go())] == [503, 503, 503]


def test_what_does_not_happen_in_time_is_none_and_an_interruption_ends_the_wait() -> None:
    async def go() -> None:
        asked, queue = exchange(Clients()), asyncio.Queue[int]()
        assert await asked.within(queue.get(), 0.001) is None
        queue.put_nowait(1)
        assert await asked.within(queue.get(), 60) == 1
        waiting = asyncio.ensure_future(asked.within(queue.get(), 60))
        await asyncio.sleep(0)
        asked.interrupt()
        with pytest.raises(DittoError) as raised:
            await waiting
        assert raised.value.status == 503

    asyncio.run(go())


def test_a_client_that_went_away_leaves_nothing_behind() -> None:
    clients = Clients()
    troubles: list[Any] = []

    async def go() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
        asked = exchange(clients)
        waiting = asyncio.ensure_future(asked.ask(COMMAND))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not asked._waiting
        # the reply that comes all the same is nobody's, and no error
        clients.futures[0].set_result("late")
        await asyncio.sleep(0)

    asyncio.run(go())
    assert troubles == []


UPDATES = [Reply("c-1", "r-1", 102, "progress", b"%d" % number) for number in range(3)]
FINAL = Reply("c-1", "r-1", 204, "response", b"")


def test_updates_come_from_other_threads_and_the_reply_is_the_last() -> None:
    clients = Clients()

    async def go() -> list[Reply]:
        replies = exchange(clients).stream(COMMAND)
        (updates,) = clients.streams
        found = []
        for update in UPDATES:
            waiting = asyncio.ensure_future(anext(replies))
            await asyncio.sleep(0)
            await asyncio.to_thread(updates.add, update)
            found.append(await waiting)
        updates.reply.set_result(FINAL)
        return found + [reply async for reply in replies]

    assert asyncio.run(go()) == [*UPDATES, FINAL]


def test_a_stream_is_refused_before_it_is_sent_or_ends_with_the_error_of_its_request() -> None:
    clients = Clients()

    async def go() -> None:
        with pytest.raises(DittoError, match="c-1"):
            exchange(Clients(full=True)).stream(COMMAND)
        with pytest.raises(DittoError, match="No correlate job"):
            Exchange(clients, clients, lambda: "No correlate job.").stream(COMMAND)  # type: ignore[arg-type]
        assert not clients.streams
        asked = exchange(clients)
        timed_out, interrupted = asked.stream(COMMAND), asked.stream(COMMAND)
        clients.futures[0].set_exception(RequestTimeout("no", "c-1"))
        waiting = asyncio.ensure_future(anext(interrupted))
        for replies in (anext(timed_out), waiting):
            with pytest.raises(DittoError) as raised:
                await replies
            assert raised.value.status == 503
            asked.interrupt()
        with pytest.raises(DittoError, match="did not send"):
            asked.stream(COMMAND)

    asyncio.run(go())
