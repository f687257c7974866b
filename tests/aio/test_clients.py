from __future__ import annotations

import asyncio
import gc
import inspect
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from ackstream import aio
from ackstream.aio._base import Calls
from ackstream.client import (
    Ack,
    BadParameterError,
    ClosedError,
    Command,
    CommandTimeout,
    FlushTimeout,
    PreconditionNotMetError,
    PublisherClosedError,
    QueryClient,
    ReaderQos,
    SampleReader,
    StreamClosedError,
)
from ackstream.client.core.lifetime import Client, Lifetime
from ackstream.client.queries.message_stream import MessageStream
from ackstream.client.queues import _queue_link as queue_link
from ackstream.protocol.messages import CommandAck
from ackstream.settings import Correlate, Settings
from ackstream.testing import RequestSystem
from tests.aio import memory
from tests.aio.memory import COMMAND
from tests.client.connections import FakeConnection
from tests.client.publishing.test_publisher import Brokers
from tests.client.queries.test_message_stream import _add, _message
from tests.client.queues.test_queue_consumer import Service
from tests.client.reading.test_sample_reader import _publish
from tests.client.requests.test_requester import THING, shown, write
from tests.harness.waiting import PATIENCE_SECONDS, eventually

TWINS = (
    *(aio.AsyncRequester, aio.AsyncPublisher, aio.AsyncResponder, aio.AsyncSubscriber),
    *(aio.AsyncSampleReader, aio.AsyncQueueConsumer, aio.AsyncQueryClient),
)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    return memory.play(monkeypatch)


class Slow(Client):
    """Connects and closes when the test lets it."""

    made: list[Slow] = []  # noqa: RUF012 - one test at a time

    def __init__(self, may: threading.Event, began: threading.Event) -> None:
        began.set()
        assert may.wait(PATIENCE_SECONDS)
        self._life = Lifetime()
        self.closed = threading.Event()
        self.made.append(self)

    def close(self) -> None:
        self.closed.set()
        self._life.close()


class AsyncSlow(aio.AsyncClient[Slow]):
    pass


# -- all twins ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__)
def test_a_twin_takes_the_arguments_of_its_client_and_no_others(twin: type[aio.AsyncClient[Any]]) -> None:
    first, *options = inspect.signature(twin._kind).parameters.values()
    given = {option.name: "x" for option in options if option.default is inspect.Parameter.empty}
    twin("localhost:9092", **given)
    with pytest.raises(BadParameterError, match=f"{twin.__name__} has no option 'colour'"):
        twin("localhost:9092", **given, colour="red")
    for name in given:
        with pytest.raises(TypeError, match=name):
            twin("localhost:9092", **{other: "x" for other in given if other != name})
    assert first.name == "bootstrap_servers"


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__)
def test_a_twin_and_its_methods_have_the_signatures_of_the_client(twin: type[aio.AsyncClient[Any]]) -> None:
    assert _parameters(twin) == _parameters(twin._kind)
    for name, method in vars(twin).items():
        if hasattr(method, "__wrapped__") and name not in ("__init__", "request"):
            assert _parameters(method) == _parameters(getattr(twin._kind, name)), name


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__)
def test_a_type_checker_knows_the_arguments_of_a_twin_and_what_its_block_gives(
    twin: type[aio.AsyncClient[Any]],
) -> None:
    assert {twin.__aenter__.__annotations__["return"], twin._kind.__enter__.__annotations__["return"]} == {"Self"}
    for kind in (twin, twin._kind):
        functions = [value for name, value in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"]
        for function in (kind.__init__, *functions):
            for each in inspect.signature(function).parameters.values():
                # those of a query are the headers of a command
                assert each.kind is not each.VAR_KEYWORD or function.__name__ == "execute"


def _parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__)
def test_a_twin_has_the_methods_of_its_client(twin: type[aio.AsyncClient[Any]]) -> None:
    methods = {name for name, value in inspect.getmembers(twin._kind, inspect.isfunction) if not name.startswith("_")}
    without_waiting = {"is_sample_app_acknowledged", "first_unacknowledged"}
    assert methods - set(dir(twin)) <= without_waiting


def test_a_callback_that_is_a_coroutine_function_runs_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Client):
        def __init__(self, bootstrap_servers: str, *, on_error: Any, **_: Any) -> None:
            assert bootstrap_servers == "b"
            self._life = Lifetime(on_error=on_error)
            self._life.thread(lambda: 1 / 0, "failing").start()

        def close(self) -> None: ...

    monkeypatch.setattr(aio.AsyncResponder, "_kind", Failing)

    async def main() -> Any:
        errors: asyncio.Queue[Any] = asyncio.Queue()

        async def note(error: Exception) -> None:
            await errors.put(error.__cause__)

        async with aio.AsyncResponder("b", handler=print, on_error=note):
            return await asyncio.wait_for(errors.get(), PATIENCE_SECONDS)

    assert isinstance(asyncio.run(main()), ZeroDivisionError)


def test_a_coroutine_function_is_called_with_the_state_of_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    monkeypatch.setattr(queue_link, "MessageFetcher", lambda *_: service)

    async def main() -> str:
        states: asyncio.Queue[str] = asyncio.Queue()
        connection = FakeConnection(link=service)
        async with aio.AsyncQueueConsumer(connection, queue="q", name="A", on_connection=states.put):
            return await asyncio.wait_for(states.get(), PATIENCE_SECONDS)

    assert asyncio.run(main()) == "connected"


def test_a_twin_that_is_not_connected_says_so() -> None:
    with pytest.raises(PreconditionNotMetError, match="This AsyncRequester is not connected"):
        aio.AsyncRequester("localhost:9092").send(COMMAND)


def test_the_loop_goes_on_while_a_client_connects_and_an_entry_that_is_cancelled_leaves_nothing_open() -> None:
    may, began = threading.Event(), threading.Event()

    async def main() -> Slow:
        entering = asyncio.ensure_future(AsyncSlow(may=may, began=began).__aenter__())
        assert await asyncio.to_thread(began.wait, PATIENCE_SECONDS)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        may.set()
        await asyncio.to_thread(eventually, lambda: Slow.made and Slow.made[0].closed.is_set(), "the end")
        return Slow.made.pop()

    assert not asyncio.run(main()).alive


def test_a_block_that_raises_closes_the_client() -> None:
    requester = RequestSystem().requester()

    async def main() -> None:
        async with aio.AsyncRequester.over(requester) as twin:
            assert twin.client is requester
            assert not await twin.wait_closed(0)
            raise LookupError

    with pytest.raises(LookupError):
        asyncio.run(main())
    assert not requester.alive


ENDS_WITHOUT_CLOSING = """
import asyncio, threading
from ackstream.aio import AsyncMessageStream, AsyncRequester
from ackstream.aio._base import aside
from ackstream.client.queries.message_stream import MessageStream
from ackstream.testing import RequestSystem

async def main():
    twin = AsyncRequester.over(RequestSystem().requester())
    stream = AsyncMessageStream(MessageStream("c", "s", {"completed"}, live=False, bookmarks=None, handler=None))
    never = threading.Event()
    for waiting in (stream.receive(), twin.after_others(never.wait), aside(never.wait)):
        try:
            await asyncio.wait_for(waiting, 0.05)
        except asyncio.TimeoutError:
            pass
    print("ends", flush=True)
    raise SystemExit(7)

asyncio.run(main())
"""


def test_a_program_that_forgets_to_close_ends() -> None:
    command = [sys.executable, "-c", ENDS_WITHOUT_CLOSING]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert (ended.stdout, ended.returncode) == ("ends\n", 7), ended.stderr


def test_a_thread_for_calls_ends_with_what_used_it() -> None:
    async def main() -> threading.Thread:
        calls = Calls("passing")
        assert [await calls.make(int, text) for text in ("1", "2")] == [1, 2]
        with pytest.raises(ValueError, match="invalid literal"):
            await calls.make(int, "x")
        return calls._thread

    asyncio.run(main()).join(PATIENCE_SECONDS)


# -- requests ----------------------------------------------------------------------------------------------------------


def test_a_wait_that_is_cancelled_leaves_its_request_to_the_service() -> None:
    system = RequestSystem()

    async def main() -> None:
        async with aio.AsyncRequester.over(system.requester()) as requester:
            waiting = asyncio.ensure_future(requester.request(COMMAND, acks=["a:a"], timeout="2s"))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            system.advance(3)
            assert requester.client.statistics.answered == 1
            stored = await requester.publish(COMMAND, acks=["a:a"])
            assert (stored.topic, stored.offset) == ("signals", 1)
            left = requester.send(COMMAND, acks=["a:a"])
        with pytest.raises(ClosedError):
            await left

    asyncio.run(main())
    assert len(system.records["replies"]) == 1


def test_a_record_is_sent_and_its_reply_awaited() -> None:
    system = RequestSystem(Settings(correlate=Correlate(request_topics=("orders",))))
    system.responder(handler=lambda signal: Ack(204, signal.value), labels=["a:a"], topics=["orders"])

    async def main() -> list[Any]:
        async with aio.AsyncRequester.over(system.requester()) as requester:
            first = await requester.request_record("orders", b"1", acks=["a:a"])
            return [first, await requester.request_record("orders", b"2", key=b"k", acks=["a:a"])]

    replies = asyncio.run(main())
    assert [(reply.status, reply.acks["a:a"].payload) for reply in replies] == [(204, "1"), (204, "2")]


@pytest.mark.parametrize("topic", ["signals", "orders"])
def test_a_stream_is_iterated_in_the_loop_and_a_cancelled_wait_loses_no_update(topic: str) -> None:
    system = RequestSystem(Settings(correlate=Correlate(request_topics=("orders",))))

    async def main() -> list[tuple[str, int]]:
        async with aio.AsyncRequester.over(system.requester()) as requester:
            asked = {"acks": ["a:a"], "timeout": 2, "correlation_id": "c"}
            if topic == "orders":
                stream = await requester.stream_record("orders", b"1", **asked)
            else:
                stream = requester.stream(Command.modify_attribute(THING, "on", value=True), **asked)
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            write(system, topic, "progress", 1)
            found = [shown(await anext(stream))]
            write(system, topic, "progress", 2)
            system.advance(3)
            return found + [shown(reply) async for reply in stream]

    assert asyncio.run(main()) == [("progress", 1), ("progress", 2), ("timeout", 408)]


def test_the_error_of_a_streamed_request_is_raised_in_the_loop() -> None:
    async def main() -> None:
        async with aio.AsyncRequester.over(RequestSystem().requester()) as requester:
            stream = requester.stream(COMMAND, acks=["a:a"])
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
        with pytest.raises(ClosedError):
            await waiting

    asyncio.run(main())


def test_a_decorated_coroutine_function_starts_its_responder(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    class Calling(memory.Answering):
        def __init__(self, **options: Any) -> None:
            made.append(options)
            super().__init__(**options)

    monkeypatch.setattr(aio.AsyncResponder, "_kind", Calling)

    @aio.responder("a:a", topics=["orders"])
    async def book(signal: Any) -> Ack:
        return Ack(payload=signal.value)

    async def main() -> Any:
        async with book("b", group="g") as running:
            assert isinstance(running, aio.AsyncResponder)
            await asyncio.to_thread(eventually, lambda: running.client.answers, "the answer")
            return running.client.answers

    assert asyncio.run(main()) == [Ack(payload=1)]
    assert [(*options["labels"], *options["topics"], options["group"]) for options in made] == [("a:a", "orders", "g")]


# -- publishers --------------------------------------------------------------------------------------------------------


def test_messages_of_many_tasks_have_the_order_of_their_calls(service: Service) -> None:
    assert service

    async def main() -> list[int]:
        async with aio.AsyncPublisher("b", name="p1", window=3) as publisher:
            calls = [publisher.publish_await_acknowledgement(b"%d" % number, context=number) for number in range(30)]
            receipts = await asyncio.gather(*calls)
            more = await publisher.publish_many([b"31", b"32"], topic="orders")
            assert [(await receipt).seq for receipt in more] == [31, 32]
            await publisher.publish_flush(PATIENCE_SECONDS)
            assert publisher.client.unpersisted_count == 0
        return [receipt.seq - receipt.context for receipt in receipts]

    assert set(asyncio.run(main())) == {1}


def test_the_loop_goes_on_while_the_window_is_full_and_closing_ends_the_wait(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service
    silent = threading.Event()
    monkeypatch.setattr(memory.Obliging, "answer", _silenced(memory.Obliging.answer, silent))

    async def main() -> None:
        async with aio.AsyncPublisher("b", name="p1", window=1, ack_timeout=60.0) as publisher:
            silent.set()
            first = await publisher.publish(b"1")
            second = asyncio.ensure_future(publisher.publish(b"2"))
            # the loop runs, and the second one waits for room
            done, _ = await asyncio.wait([second], timeout=0.05)
            assert not done
        with pytest.raises(PublisherClosedError):
            await first
        with pytest.raises(PublisherClosedError):
            await second

    asyncio.run(main())


@pytest.mark.parametrize("error", [None, LookupError])
def test_a_publisher_that_loses_messages_at_its_end_says_so_and_hides_no_other_error(
    error: type[Exception] | None,
) -> None:
    brokers = Brokers()

    async def main() -> None:
        async with aio.AsyncPublisher(brokers, name="p1") as publisher:
            brokers[0].pending, brokers[0].away = [], True
            await publisher.publish(b"1")
            if error is not None:
                raise error
            await publisher.close(timeout=0.1)

    with pytest.raises(error or FlushTimeout, match=None if error else "within 0.1 s"):
        asyncio.run(main())


def test_receipts_that_nobody_awaits_print_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with aio.AsyncPublisher(brokers, name="p1") as publisher:
            brokers[0].pending, brokers[0].away = [], True
            await publisher.publish(b"1")
            await publisher.publish_many([b"2", b"3"])
            await publisher.close(timeout=0.1)

    brokers = Brokers()
    with suppress(FlushTimeout):
        asyncio.run(main())
    gc.collect()
    assert "never retrieved" not in caplog.text


def _silenced(answer: Any, silent: threading.Event) -> Any:
    def after(self: Any, *acks: CommandAck) -> None:
        if not silent.is_set():
            answer(self, *acks)

    return after


# -- what is received --------------------------------------------------------------------------------------------------


def _stream() -> MessageStream:
    return MessageStream("c1", "s", {"completed"}, live=False, bookmarks=None, handler=None)


def test_a_stream_is_iterated_over_to_its_end_and_its_acknowledgements_are_awaited() -> None:
    stream = _stream()

    async def main() -> list[bytes | None]:
        twin = aio.AsyncMessageStream(stream)
        waiting = asyncio.ensure_future(twin.receive())
        await asyncio.sleep(0)
        _add(stream, _message(2, "sow"), _message(1, "sow"))
        first = await waiting
        stream.add_ack("1", CommandAck(ack_type="completed", cid="c1", matches=2))
        assert (await twin.wait("completed")).matches == 2
        with pytest.raises(StreamClosedError):
            await twin.stats()
        return [first and first.value, *[message.value async for message in twin]]

    assert asyncio.run(main()) == [b"2", b"1"]


def test_a_wait_for_a_message_that_is_cancelled_loses_none() -> None:
    stream = _stream()

    async def main() -> list[bytes | None]:
        twin, found = aio.AsyncMessageStream(stream), []
        for number in range(1, 6):
            for _ in range(2):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(twin.receive(), 0.001)
            _add(stream, _message(number))
            message = await twin.receive()
            found.append(message and message.value)
        stream.end()
        assert await twin.receive() is None
        return found

    assert asyncio.run(main()) == [b"1", b"2", b"3", b"4", b"5"]


def test_two_tasks_share_a_stream_without_getting_a_message_twice() -> None:
    stream = _stream()

    async def main() -> list[list[bytes | None]]:
        twin = aio.AsyncMessageStream(stream)

        async def take() -> list[bytes | None]:
            return [message.value async for message in twin]

        tasks = [asyncio.ensure_future(take()) for _ in range(2)]
        await asyncio.sleep(0)
        _add(stream, *map(_message, range(1, 21)))
        stream.end()
        return await asyncio.gather(*tasks)

    one, other = asyncio.run(main())
    assert sorted([*one, *other]) == sorted(b"%d" % number for number in range(1, 21))


def test_an_error_that_ends_a_stream_is_raised_where_it_is_awaited() -> None:
    stream = _stream()
    stream.end(CommandTimeout("gone"))

    async def main() -> None:
        twin = aio.AsyncMessageStream(stream)
        for _ in range(2):
            with pytest.raises(CommandTimeout):
                await twin.receive()

    asyncio.run(main())


def test_a_sample_is_acknowledged_when_the_next_one_is_asked_for_and_not_if_its_turn_raises(service: Service) -> None:
    assert service
    acknowledged: list[int] = []

    async def main() -> SampleReader:
        async with aio.AsyncSampleReader("b", name="r1") as twin:
            async for sample in twin:
                acknowledged.append(twin.client.statistics.acknowledged)
                if sample.seq == 3:
                    raise LookupError
        raise AssertionError

    with pytest.raises(LookupError):
        asyncio.run(main())
    assert acknowledged == [0, 1, 2]


def test_a_reader_takes_reads_and_lends_samples_as_its_client_does(service: Service) -> None:
    assert service

    async def main() -> None:
        async with aio.AsyncSampleReader("b", name="r1", qos=ReaderQos(kind="application-explicit")) as twin:
            (first,) = await twin.take(1, None)
            (second,) = await twin.read(1, None)
            assert (first.seq, second.seq) == (1, 2)
            twin.acknowledge_sample(first)
            async with twin.loan(1) as samples:
                assert [each.seq for each in samples] == [2]
            with pytest.raises(LookupError):
                async with twin.loan(1, None):
                    raise LookupError
            twin.acknowledge_all()
            assert twin.client.statistics.acknowledged == 3

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["take", "read", "loan"])
def test_a_cancelled_wait_for_samples_has_taken_none(service: Service, kind: str) -> None:
    assert service

    async def main() -> list[list[int]]:
        async with aio.AsyncSampleReader("b", name="r1") as twin:
            assert len(await twin.take()) == 3

            async def access(timeout: float | None) -> list[int]:
                if kind != "loan":
                    return [each.seq for each in await getattr(twin, kind)(1, timeout)]
                async with twin.loan(1, timeout) as samples:
                    return [each.seq for each in samples]

            assert await access(0.01) == []
            for _ in range(2):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(access(None), 0.01)
            waiting = asyncio.ensure_future(access(None))
            await asyncio.sleep(0.01)
            _publish(twin.client, 4, 5)
            assert twin.client.statistics.acknowledged == 3
            assert await twin.take(0, None) == []
            return [await waiting, await access(0.0)]

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_SECONDS)) == [[4], [4 if kind == "read" else 5]]


def test_a_wait_for_a_message_may_have_a_limit(service: Service) -> None:
    assert service

    async def main() -> list[str]:
        async with aio.AsyncQueueConsumer("b", queue="q", name="A") as consumer:
            found = [await consumer.receive(PATIENCE_SECONDS) for _ in range(2)]
            consumer.stop()
            assert await consumer.receive(0.01) is None
            consumer.start()
            found.append(await consumer.receive())
        return [message.id for message in found if message is not None]

    assert asyncio.run(main()) == ["m2", "m3", "m4"]


def test_closing_a_reader_or_a_consumer_ends_its_iteration(service: Service) -> None:
    assert service

    async def main() -> list[int]:
        found = []
        for twin in (aio.AsyncSampleReader("b", name="r1"), aio.AsyncQueueConsumer("b", queue="q", name="A")):
            async with twin:
                messages = [await anext(twin) for _ in range(3)]
                waiting = asyncio.ensure_future(twin.receive())
                await asyncio.sleep(0)
            assert await waiting is None
            found.append(len(messages))
        return found

    assert asyncio.run(main()) == [3, 3]


def test_who_closes_in_the_iteration_ends_it_and_publishes_nothing_more(service: Service) -> None:
    assert service

    async def main() -> int:
        found = 0
        for twin in (aio.AsyncSampleReader("b", name="r1"), aio.AsyncQueueConsumer("b", queue="q", name="A")):
            async with twin:
                async for _ in twin:
                    found += 1
                    await twin.close()
        async with aio.AsyncPublisher("b", name="p1") as publisher:
            await publisher.close()
            with pytest.raises(PublisherClosedError):
                await publisher.publish(b"1")
        return found

    assert asyncio.run(main()) == 2


def test_a_consumer_that_settles_by_itself_accepts_a_message_when_the_next_one_is_asked_for(service: Service) -> None:
    async def main() -> list[list[str]]:
        settled = []
        async with aio.AsyncQueueConsumer("b", queue="q", name="A", mode="auto") as consumer:
            for _ in range(3):
                assert await consumer.receive()
                settled.append(service.settled())
        return settled

    assert asyncio.run(main()) == [[], ["m2"], ["m2", "m3"]]


def test_a_coroutine_function_handles_messages_in_the_loop_one_after_the_other(service: Service) -> None:
    seen: list[tuple[str, bool]] = []

    async def main() -> None:
        handled, busy, thread = asyncio.Event(), asyncio.Lock(), threading.current_thread()

        async def handle(message: Any) -> None:
            assert not busy.locked()
            async with busy:
                await asyncio.sleep(0.001)
            seen.append((message.id, threading.current_thread() is thread))
            if len(seen) == 3:
                handled.set()

        async with aio.AsyncQueueConsumer("b", queue="q", name="A", handler=handle, mode="auto"):
            await asyncio.wait_for(handled.wait(), PATIENCE_SECONDS)

    asyncio.run(main())
    assert seen == [("m2", True), ("m3", True), ("m4", True)]
    assert service.settled() == ["m2", "m3", "m4"]


def test_a_handler_may_close_its_client_and_may_be_anything_that_returns_what_is_awaited(service: Service) -> None:
    seen: list[str] = []

    async def main() -> None:
        closed = asyncio.Event()

        class Handler:
            async def __call__(self, message: Any) -> None:
                seen.append(message.id)
                await twin.close()
                closed.set()

        twin = aio.AsyncQueueConsumer("b", queue="q", name="A", handler=Handler(), mode="auto")
        async with twin:
            await asyncio.wait_for(closed.wait(), PATIENCE_SECONDS)

    asyncio.run(main())
    # what is at hand may come meanwhile
    assert seen == ["m2", "m3", "m4"][: len(seen)]
    assert service.settled()[:1] == ["m2"]


def test_a_handler_that_is_called_before_the_client_is_there_may_close_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Eager(Client):
        """Calls its handler at once, and is made only when that has begun."""

        def __init__(self, *, handler: Any, **_: Any) -> None:
            self._life = Lifetime()
            called = threading.Event()

            def call() -> None:
                called.set()
                handler("stop")

            self._thread = threading.Thread(target=call)
            self._thread.start()
            called.wait(PATIENCE_SECONDS)

        def close(self) -> None:
            self._thread.join()
            self._life.close()

    monkeypatch.setattr(aio.AsyncResponder, "_kind", Eager)

    async def main() -> bool:
        async def handle(_message: str) -> None:
            await twin.close()

        twin = aio.AsyncResponder("b", handler=handle)
        async with twin:
            return await twin.wait_closed(PATIENCE_SECONDS)

    assert asyncio.run(main())


def test_commands_of_a_query_client_are_awaited() -> None:
    called: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    class Queries(Client):
        def __init__(self) -> None:
            self._life = Lifetime()

        def __getattr__(self, name: str) -> Any:
            def command(*arguments: Any, **options: Any) -> MessageStream:
                called.append((name, arguments, options))
                return _stream()

            return command

        def close(self) -> None:
            self._life.close()

    async def main() -> None:
        async with aio.AsyncQueryClient.over(Queries()) as client:  # type: ignore[arg-type]
            stream = await client.subscribe("orders", "/price > 1", bookmark="EPOCH")
            assert isinstance(stream, aio.AsyncMessageStream)
            await client.sow("orders", top_n=1)
            await client.sow_and_subscribe("orders", sub_id="mine")
            await client.unsubscribe(stream)
            await client.sow_delete("orders", keys=["a"])
            await client.flush()
            assert called[3][1] == (stream.stream, None)

    asyncio.run(main())
    assert [name for name, *_ in called] == [
        *("subscribe", "sow", "sow_and_subscribe", "unsubscribe", "sow_delete", "flush"),
    ]
    assert called[0][1:] == (("orders", "/price > 1"), {"bookmark": "EPOCH"})
    for name, arguments, options in called:
        assert getattr(QueryClient, name)
        assert not name.startswith("sow_delete") or (arguments, options) == (("orders",), {"keys": ["a"]})


def test_a_coroutine_function_handles_the_messages_of_a_subscription_in_the_loop() -> None:
    class Queries(Client):
        def __init__(self) -> None:
            self._life = Lifetime()

        def subscribe(self, _topic: str, *, handler: Any) -> MessageStream:
            stream = MessageStream("c", "s", set(), live=True, bookmarks=None, handler=handler)
            self.reader = threading.Thread(target=_add, args=(stream, _message(1), _message(2)))
            self.reader.start()
            return stream

        def close(self) -> None:
            self._life.close()

    async def main() -> list[bytes | None]:
        seen: list[bytes | None] = []
        both = asyncio.Event()

        async def handle(message: Any) -> None:
            await asyncio.sleep(0)
            seen.append(message.value)
            if len(seen) == 2:
                both.set()

        queries = Queries()
        async with aio.AsyncQueryClient.over(queries) as client:  # type: ignore[arg-type]
            await client.subscribe("orders", handler=handle)
            await asyncio.wait_for(both.wait(), PATIENCE_SECONDS)
        queries.reader.join()
        return seen

    assert asyncio.run(main()) == [b"1", b"2"]


def test_a_stream_with_much_at_hand_leaves_other_tasks_their_turns() -> None:
    stream = _stream()
    _add(stream, *map(_message, range(1, 101)))
    stream.end()

    async def main() -> tuple[int, int]:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.ensure_future(count())
        seen = len([message async for message in aio.AsyncMessageStream(stream)])
        counting.cancel()
        return seen, turns

    seen, turns = asyncio.run(main())
    assert seen == 100
    assert turns >= seen


def test_a_client_is_closed_however_many_waits_of_it_were_cancelled() -> None:
    async def run() -> None:
        may = threading.Event()
        may.set()
        async with AsyncSlow(may=may, began=threading.Event()) as twin:
            # more than the loop has threads of its own
            waits = [asyncio.ensure_future(twin.wait_closed()) for _ in range(40)]
            await asyncio.sleep(0)
            for wait in waits:
                wait.cancel()
        assert Slow.made.pop().closed.is_set()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))


class _OneThread(Client):
    """A requester whose only thread gives all replies."""

    def __init__(self, on_amended: Any = None, **_: Any) -> None:
        self._on_amended = on_amended
        self._life = Lifetime(None, None, None, "A client")
        self._thread = ThreadPoolExecutor(1)

    def send(self, command: Any, **_: Any) -> Future[str]:
        return self._thread.submit(lambda: f"reply to {command}")

    def amend(self, reply: str) -> None:
        self._thread.submit(self._on_amended, reply)

    def close(self) -> None:
        self._thread.shutdown()


def test_a_coroutine_that_gets_a_second_reply_may_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio.AsyncRequester, "_kind", staticmethod(_OneThread))

    async def main() -> str:
        asked = asyncio.get_running_loop().create_future()

        async def compensate(reply: str) -> None:
            asked.set_result(await requester.request(reply))

        async with aio.AsyncRequester("localhost:9092", on_amended=compensate) as requester:
            requester.client.amend("the second one")  # type: ignore[attr-defined]
            return str(await asyncio.wait_for(asked, PATIENCE_SECONDS))

    assert asyncio.run(main()) == "reply to the second one"
