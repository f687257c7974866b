"""Messages in another process, or copied: they have what the application reads, and no client."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from ackstream.client import Ack, Command, Reply, subscription
from ackstream.client.queries.bookmarks import LogMessage
from ackstream.client.queues.queued_messages import QueueMessage
from ackstream.client.reading.samples import Sample
from ackstream.errors import PreconditionNotMetError
from ackstream.protocol.queues import MessageDelivered
from ackstream.testing import RequestSystem


class Client:
    """Has what cannot be copied, and notes what is asked of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.never = (each for each in ())

    def __call__(self, *_: Any) -> None:
        self.calls.append("settled")

    def acknowledge_sample(self, *_: Any) -> None:
        self.calls.append("acknowledged")

    def discard(self, *_: Any) -> None:
        self.calls.append("discarded")


CONTENT = ("publisher", "topic", b"key", b"value", {"name": b"header"}, 1_700)
DELIVERY = MessageDelivered("q", "A", 0, 1, "messages-0-7", "messages", 0, 7, 0, 1, "topic")


def sample(client: Any) -> tuple[Any, Any]:
    return Sample(*CONTENT, 3, 0, 7, "session", client), Sample.acknowledge


def queued(client: Any) -> tuple[Any, Any]:
    message = QueueMessage.of(Sample(*CONTENT, 3, 0, 7), DELIVERY, client, client)
    return message, QueueMessage.settle


def worked(client: Any) -> tuple[Any, Any]:
    return queued(client)[0], QueueMessage.working


def logged(client: Any) -> tuple[Any, Any]:
    return LogMessage(*CONTENT, "publish", "3|7|", "s-1", client), LogMessage.discard


COPIES = [lambda it: pickle.loads(pickle.dumps(it)), copy.deepcopy, copy.copy]


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("make", [sample, queued, worked, logged])
def test_a_copy_of_a_message_has_its_content_and_acknowledges_nothing(make: Any, copied: Any) -> None:
    client = Client()
    message, act = make(client)
    again = copied(message)
    assert {name: value for name, value in vars(again).items() if not name.startswith("_")} == {
        name: value for name, value in vars(message).items() if not name.startswith("_")
    }
    assert repr(again) == repr(message)
    with pytest.raises(PreconditionNotMetError, match="This is a copy of a message"):
        act(again)
    assert client.calls == []
    act(message)
    assert len(client.calls) == 1


@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_of_a_signal_has_its_content_and_answers_nothing(copied: Any) -> None:
    seen: list[Any] = []
    system = RequestSystem()
    wanted = [subscription("live-commands")]
    system.subscriber(handler=lambda signal: seen.append(copied(signal)), subscriptions=wanted, labels=["a:b"])
    command = Command.modify_attribute("org.acme:lamp", "x", {"on": True}, channel="live")
    assert system.requester().request(command, acks=["a:b"]).acks["a:b"].status == 200
    assert (seen[0].value, seen[0].labels, seen[0].thing_id) == ({"on": True}, ("a:b",), "org.acme:lamp")
    with pytest.raises(PreconditionNotMetError):
        seen[0].ack()


@pytest.mark.parametrize("copied", COPIES)
def test_a_reply_can_be_copied(copied: Any) -> None:
    system = RequestSystem()
    system.responder(handler=lambda _: Ack(204), labels=["a:b"])
    reply = system.requester().request(Command.modify_attribute("org.acme:lamp", "x", 1), acks=["a:b"])
    again: Reply = copied(reply)
    assert (again, again.acks) == (reply, reply.acks)
