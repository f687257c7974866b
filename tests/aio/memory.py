"""The twins over clients whose connections the tests of the clients play."""

from __future__ import annotations

from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ackstream.aio import AsyncPublisher, AsyncQueueConsumer, AsyncRequester, AsyncResponder, AsyncSampleReader
from ackstream.client import Ack, Command, Publisher, QueueConsumer, SampleReader
from ackstream.client.core.lifetime import Client, Lifetime
from ackstream.client.queues import _queue_link as queue_link
from ackstream.client.reading import sample_reader
from ackstream.testing import RequestSystem
from tests.client.connections import FakeConnection
from tests.client.publishing.test_publisher import Brokers, Connection, persisted
from tests.client.queues.test_queue_consumer import Service
from tests.client.reading.test_sample_reader import _publish, _Session

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class Obliging(Connection):
    """Stores every message, and acknowledges it."""

    def send(self, value: bytes, headers: list[tuple[str, bytes]]) -> Any:
        future = super().send(value, headers)
        named = dict(headers)
        if b"logon" not in named.values() and "seq" in named:
            self.answer(persisted(int(named["seq"])))
        return future


class Answering(Client):
    """Calls its handler for one signal in a thread of its own, as a responder does."""

    def __init__(self, *, handler: Callable[[Any], Ack], **_: Any) -> None:
        self.counts, self.answers = Counter[str](), []
        self._handler = handler
        self._life = Lifetime()
        self._thread = self._life.thread(self._run, "answering")
        self._thread.start()

    @property
    def statistics(self) -> Any:
        return SimpleNamespace(answers=len(self.answers))

    def _run(self) -> None:
        self.answers.append(self._handler(SimpleNamespace(value=1)))

    def close(self) -> None:
        self._thread.join()
        self._life.close()


def requester(**_: Any) -> Any:
    system = RequestSystem()
    system.responder(handler=lambda _: Ack(204), labels=["fleet:done"])
    return system.requester()


def publisher(**options: Any) -> Publisher:
    return Publisher(**options | {"bootstrap_servers": Brokers(Obliging)})


def reader(bootstrap_servers: Any, **options: Any) -> SampleReader:
    made = SampleReader(bootstrap_servers, **options)
    _publish(made, 1, 2, 3)
    return made


def consumer(service: Service, **options: Any) -> QueueConsumer:
    # the one that the service knows
    connection = FakeConnection(link=service)
    made = QueueConsumer(**options | {"bootstrap_servers": connection, "queue": "q", "name": "A"})
    service.deliver(2, 3, 4)
    return made


def play(monkeypatch: pytest.MonkeyPatch) -> Service:
    """Let the twins make clients without a broker; return the service of the queue."""
    service = Service()
    monkeypatch.setattr(sample_reader, "ReaderLink", _Session)
    monkeypatch.setattr(queue_link, "MessageFetcher", lambda *_: service)
    monkeypatch.setattr(AsyncRequester, "_kind", staticmethod(requester))
    monkeypatch.setattr(AsyncPublisher, "_kind", staticmethod(publisher))
    monkeypatch.setattr(AsyncSampleReader, "_kind", staticmethod(reader))
    monkeypatch.setattr(AsyncQueueConsumer, "_kind", staticmethod(partial(consumer, service)))
    monkeypatch.setattr(AsyncResponder, "_kind", Answering)
    return service


COMMAND = Command.modify_attribute("org.acme:lamp", "power", 1)
