from __future__ import annotations

import json

import pytest

from ackstream.protocol import queues
from ackstream.protocol.json import RecordError
from ackstream.protocol.queues import Alive, Bind, Bound, MessageDelivered, NotSettled, SettleMessages, Unbind, Unbound


@pytest.mark.parametrize(
    "record",
    [
        Bind("q", "A", 1, 10, ("failed", "rejected")),
        Alive("q", "A", 1),
        Alive("q", "A", 1, 9, (7, 8), stopped=True),
        Unbind("q", "A", 1),
        SettleMessages("q", "A", 1, ("messages-0-7",), "failed"),
    ],
)
def test_what_a_consumer_says_is_read_as_it_was_written(record: queues.QueueRequest) -> None:
    assert queues.read(queues.write(record)) == record
    assert json.loads(queues.write(record))["type"] in queues.TYPES


@pytest.mark.parametrize(
    "record",
    [
        Bound("q", "A", 1, 1, 10, 60_000, 30_000, 86_400_000),
        MessageDelivered("q", "A", 1, 2, "messages-0-7", "messages", 0, 7, 3, 1, "orders"),
        MessageDelivered("q", "A", 1, 4, "messages-0-7", "messages", 0, 7, 3, 1, "orders"),
        NotSettled("q", "A", 1, 3, "messages-0-7", "failed", "not-held"),
        Unbound("q", "A", 1, "lost"),
    ],
)
def test_what_a_consumer_hears_is_read_as_it_was_written(record: queues.QueueAnswer) -> None:
    assert queues.read_answer(queues.write(record)) == record


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"type": "queue_bind"}',
        b'{"type": "queue_alive", "queue": "q", "consumer": "A", "session": "1"}',
        b'{"type": "queue_settle", "queue": "q", "consumer": "A", "session": 1, "messages": ["m"], "outcome": "lost"}',
        b'{"type": "queue_bind", "queue": "q", "consumer": "A", "session": 1, "backlog": 0}',
        b'{"type": "queue_alive", "queue": "q", "consumer": "A", "session": -1}',
        b'{"type": "queue_alive", "queue": "q", "consumer": "A", "session": 9007199254740992}',
        b'{"type": "queue_alive", "queue": "q", "consumer": "A", "session": 99999999999999999999999}',
        b'{"type": "queue_alive", "queue": "q", "consumer": "\\ud800", "session": 1}',
        b'{"type": "app_ack"}',
    ],
)
def test_what_is_no_record_is_refused(value: bytes) -> None:
    with pytest.raises(RecordError, match="not a record of a queue"):
        queues.read(value)
    with pytest.raises(RecordError, match="not a record of a queue"):
        queues.read_answer(value)


def test_a_first_delivery_is_no_redelivery() -> None:
    first, second = (MessageDelivered("q", "A", 1, 2, "m", "messages", 0, 7, 3, count) for count in (1, 2))
    assert (first.redelivered, second.redelivered) == (False, True)
