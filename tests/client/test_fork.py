"""Clients in a child of their process: it has none of their threads, so that nothing would ever be sent or answered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from ackstream.client import Ack, Command, Publisher, QueueConsumer, subscription
from ackstream.client.core.lifetime import Client
from ackstream.client.core.storage import PublishStore
from ackstream.client.queries.message_stream import MessageStream
from ackstream.client.queues import _queue_link as queue_link
from ackstream.testing import RequestSystem
from tests.client.connections import FakeConnection
from tests.client.publishing.test_publisher import Brokers
from tests.client.queues.test_queue_consumer import Service

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

COMMAND = Command.modify_attribute("org.acme:lamp", "x", 1)


def in_a_child(calls: dict[str, Callable[[], Any]]) -> dict[str, str]:
    """Return what each call returns or raises in a child of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        found = {}
        for name, call in calls.items():
            try:
                found[name] = repr(call())
            except BaseException as error:  # noqa: BLE001 - shown to the parent
                found[name] = f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        found = json.loads(answer.read())
    os.waitpid(child, 0)
    return found


def call(client: Any, name: str) -> Any:
    return getattr(client, name)()


def refused(name: str) -> str:
    return f"ForkedError: This {name} belongs to the process that has forked this one: make one after the fork."


def test_a_child_of_a_process_cannot_use_its_clients_and_the_parent_can(tmp_path: Any) -> None:
    system = RequestSystem()
    responder, requester = system.responder(handler=lambda _: Ack(), labels=["a:b"]), system.requester()
    publisher = Publisher(Brokers(), name="p1", store=tmp_path / "p1.store")
    stream = MessageStream("c", "s", {"completed"}, live=False, bookmarks=None, handler=None)
    found = in_a_child(
        {
            "send": lambda: requester.send(COMMAND),
            "statistics": lambda: responder.statistics,
            "publish": lambda: publisher.publish(b"1"),
            "publish_many": lambda: publisher.publish_many([b"1"]),
            "publish_flush": partial(call, publisher, "publish_flush"),
            "stream": lambda: next(stream),
            "wait_closed": partial(call, responder, "wait_closed"),
            "alive": lambda: (publisher.alive, requester.alive),
            "close": partial(call, publisher, "close"),
        }
    )
    assert found == {
        "send": refused("Requester"),
        "statistics": refused("Responder"),
        "publish": refused("Publisher"),
        "publish_many": refused("Publisher"),
        "publish_flush": refused("Publisher"),
        "stream": refused("MessageStream"),
        "wait_closed": refused("Responder"),
        "alive": "(False, False)",
        # of the parent, which goes on
        "close": "None",
    }
    assert requester.request(COMMAND, acks=["a:b"]).status == 200
    assert publisher.publish(b"1")
    publisher.close()


FORK = """
import os, sys
from pathlib import Path
from ackstream.client.core.storage import KeptMessage, PublishStore
store = PublishStore(Path(sys.argv[1]), "p1")
store.add(1, KeptMessage(b"before", []))
if os.fork() == 0:
    del store
    sys.exit()
os.wait()
store.add(2, KeptMessage(b"after", []))
os._exit(0)
"""


def test_a_child_that_ends_takes_no_store_from_its_parent_which_writes_on_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "p1.store"
    subprocess.run([sys.executable, "-c", FORK, str(path)], check=True)
    store = PublishStore(path, "p1")
    assert store.numbers() == [1, 2]
    store.close()


def test_a_message_that_a_child_settles_is_not_settled_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    monkeypatch.setattr(queue_link, "MessageFetcher", lambda *_: service)
    consumer = QueueConsumer(FakeConnection(link=service), queue="q", name="A")
    service.deliver(2)
    message = consumer.receive(10)
    assert message is not None
    calls = {name: partial(call, message, name) for name in ("settle", "working")}
    assert in_a_child(calls) == dict.fromkeys(calls, refused("QueueConsumer"))
    message.settle()
    consumer.close()
    assert service.settled() == ["m2"]


def test_a_signal_that_a_child_acknowledges_is_not_acknowledged_in_silence() -> None:
    system, signals = RequestSystem(), []
    options: dict[str, Any] = {"labels": ["a:b"], "subscriptions": [subscription("messages")], "automatic": False}
    subscriber = system.subscriber(handler=signals.append, **options)
    system.requester().send(Command.message("org.acme:lamp", "dim", 1), acks=["a:b"])
    system.advance(0)
    (signal,) = signals
    found = in_a_child({"ack": partial(call, signal, "ack"), "thing_id": lambda: signal.thing_id})
    assert found == {"ack": refused("Subscriber"), "thing_id": "'org.acme:lamp'"}
    signal.ack()
    assert subscriber.statistics.answers == 1


def test_a_child_may_make_clients_of_its_own() -> None:
    def work() -> int:
        system = RequestSystem()
        system.responder(handler=lambda _: Ack(204), labels=["a:b"])
        return system.requester().request(COMMAND, acks=["a:b"]).status

    kept = RequestSystem().requester()
    assert in_a_child({"status": work, "kind": lambda: isinstance(kept, Client)}) == {"status": "204", "kind": "True"}
