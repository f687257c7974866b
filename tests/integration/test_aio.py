"""The twins for asyncio on the real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ackstream.aio import AsyncPublisher, AsyncRequester, AsyncResponder, AsyncSampleReader
from ackstream.client import Ack, Command, Signal, UnreachableError
from ackstream.kafka.topics import ensure_topics
from ackstream.settings import Kafka, Settings
from tests.harness.acknowledging import TOPICS, Acknowledging
from tests.harness.counterpart import Counterpart
from tests.harness.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.integration

REQUESTS = ("signals", "acks", "replies", "declarations")


@pytest.fixture
def topics(kafka: Kafka) -> Kafka:
    ensure_topics(Settings(kafka=kafka), REQUESTS)
    return kafka


@pytest.fixture
def service(kafka: Kafka) -> Iterator[Acknowledging]:
    ensure_topics(Settings(kafka=kafka), TOPICS)
    with Acknowledging(kafka) as running:
        yield running


def test_of_a_thousand_requests_in_flight_each_gets_its_own_answer(topics: Kafka) -> None:
    async def main() -> None:
        async with AsyncRequester(topics) as requester:
            commands = [Command.modify_attribute(f"org.acme:lamp-{number}", "x", number) for number in range(1_000)]
            replies = await asyncio.gather(*(requester.request(command, acks=["meter"]) for command in commands))
            payloads = [reply.acks["meter"].payload for reply in replies]
            assert payloads == [*range(1_000)]

    with Counterpart(topics):
        asyncio.run(main())


def test_a_coroutine_function_answers_signals(topics: Kafka) -> None:
    async def main() -> None:
        seen: asyncio.Queue[int] = asyncio.Queue()

        async def handle(signal: Signal) -> Ack:
            await seen.put(signal.value)
            return Ack(204)

        async with (
            AsyncResponder(topics, handler=handle, labels=["meter"]) as responder,
            AsyncRequester(topics) as requester,
        ):
            for number in range(3):
                await requester.publish(Command.modify_attribute("org.acme:lamp", "x", number), acks=["meter"])
            assert [await asyncio.wait_for(seen.get(), PATIENCE_SECONDS) for _ in range(3)] == [0, 1, 2]
        assert responder.client.statistics.answers == 3

    asyncio.run(main())


def test_published_messages_are_iterated_over_and_their_publisher_waits_for_that(
    service: Acknowledging, kafka: Kafka
) -> None:
    assert not service.silent.is_set()

    async def main() -> None:
        async with (
            AsyncSampleReader(kafka, name="r1") as reader,
            AsyncPublisher(kafka, name="w1", on_application_acknowledgment=lambda _: None) as publisher,
        ):
            for number in range(5):
                await publisher.publish(b"%d" % number)
            values = [(await asyncio.wait_for(anext(reader), PATIENCE_SECONDS)).value for _ in range(5)]
            assert values == [b"%d" % number for number in range(5)]
            # the wait for the sixth acknowledges the fifth
            sixth = asyncio.ensure_future(reader.receive())
            await publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
            sixth.cancel()

    asyncio.run(main())


def test_a_broker_that_is_not_there_is_reported_at_the_entry() -> None:
    async def main() -> None:
        with pytest.raises(UnreachableError, match="No Kafka answers at localhost:1"):
            async with AsyncRequester("localhost:1"):
                pass

    asyncio.run(main())
