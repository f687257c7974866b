"""A large state of the oldest version that is read: each of its open requests is decided as that version would have."""

from __future__ import annotations

from typing import Any

import msgspec

from ackstream.jobs.correlate.records import Emission, Writer
from ackstream.jobs.correlate.shard import CorrelateShard
from ackstream.jobs.correlate.state import OLDEST_VERSION, STATE_VERSION, Record, decode_state
from ackstream.jobs.correlate.topics import CorrelateTopics
from ackstream.protocol.ledger import decode as read_ledger
from ackstream.settings import Correlate
from ackstream.spark.records import Share
from ackstream.testing.system import hash_of
from tests.jobs.correlate.shards import Log

OPEN = 100_000
STARTED, TIMEOUT = 1_000, 20_000
KINDS = ("answered", "refused", "silent", "device", "reused")
TOPICS = CorrelateTopics(partitions={"replies": 4})
LATER = STARTED + TIMEOUT + 300_000
"""When an id is used again: its first request is no longer remembered then."""


def _request(awaited: list[str], key: str, kind: str = "modify") -> list[Any]:
    """Return the twelve fields that a request had in version 6; the kind of its signal is the third."""
    channel, of_live = ("live", True) if kind == "live" else ("twin", False)
    return [
        "org.acme:lamp", channel, "live" if of_live else "twin", awaited, True, True, TIMEOUT, {"correlation-id": key},
        "commands", "modify", None, "/attributes/x",
    ]  # fmt: skip


def _received(label: str, status: int, offset: int) -> list[Any]:
    """Return the ten fields that an accepted acknowledgement had."""
    return [label, status, b'{"n":1}', b'{"response-required":false}', STARTED + 200, 0, offset, 0, False, 1]


def _pending(number: int) -> bytes:
    """Return an open request of version 6, which had twelve fields, or thirteen if its reply has a partition."""
    key, kind = f"c-{number}", KINDS[number % len(KINDS)]
    awaited = {"silent": ["a-ack"], "reused": ["a-ack"], "device": ["live-response"]}.get(kind, ["a-ack", "b-ack"])
    arrived = {"answered": [_received("a-ack", 202, number)], "refused": [_received("a-ack", 503, number)]}
    signal = (
        b'{"topic":"org.acme/lamp/things/twin/commands/modify","headers":{"correlation-id":"%b","requested-acks":'
        b'["a-ack"],"timeout":"20s"},"path":"/attributes/x","value":1}' % key.encode()
    )
    # ten fields of a record, without the topic that later versions add
    later = [LATER, 0, 0, OPEN + number, hash_of(key), key, b"key", signal, len(signal), {}]
    fields = [
        key, hash_of(key), _request(awaited, key, "live" if kind == "device" else "modify"), STARTED,
        STARTED + TIMEOUT, f"{number:032x}", "replies", None, arrived.get(kind, []), None,
        [later] if kind == "reused" else [], b'{"correlation-id":"%b","response-required":false}' % key.encode(),
    ]  # fmt: skip
    return msgspec.msgpack.encode(fields + [number % 4] * (kind == "answered"))


def _state() -> bytes:
    """Return a state of version 6: shelves of entries (hash, time, body) and no pieces; no memory, no claims."""
    entries = [[hash_of(f"c-{number}"), STARTED + TIMEOUT, _pending(number)] for number in range(OPEN)]
    pieces: list[list[Any]] = [[], []]
    return msgspec.msgpack.encode([[entries, pieces], [[], pieces], [[], pieces], [], {}])


def _batch(state: tuple[int, bytes], records: list[Record], tick: int) -> tuple[tuple[int, bytes], list[Emission]]:
    """Process a batch as Spark does, which takes what a shard has written before all is done."""
    writer, emissions = Writer(TOPICS, "query", 1), list[Emission]()
    shard = CorrelateShard(Correlate(), TOPICS, writer)
    shard.load(*state)
    for _ in shard.process(Share(records), tick):
        emissions += writer.take()
    found = shard.dump()
    assert found is not None
    return found, emissions + writer.take()


EXPECTED = {
    "answered": (200, "acknowledgements", []),
    "refused": (424, "timeout", ["b-ack"]),
    "silent": (408, "timeout", ["a-ack"]),
    "device": (204, "response", []),
    "reused": (408, "timeout", ["a-ack"]),
}


def _answers(log: Log) -> list[Record]:
    """Return an acknowledgement or response for each request that gets one."""
    found = []
    for number in range(0, OPEN, len(KINDS)):
        found.append(log.ack(STARTED + 500, "b-ack", 200, f"c-{number}"))
        key = f"c-{number + KINDS.index('device')}"
        found.append(log.response(STARTED + 600, 204, key, topic="things/live/commands/modify"))
    return found


def test_100_000_open_requests_of_version_6_are_decided_as_before() -> None:
    state, emissions = _batch((OLDEST_VERSION, _state()), _answers(Log()), STARTED + TIMEOUT + 1)
    assert state[0] == STATE_VERSION
    # the second uses of ids have begun
    assert len(decode_state(*state).open.entries) == OPEN // len(KINDS)
    emissions += _batch(state, [], LATER + TIMEOUT + 1)[1]
    outcomes: dict[str, list[tuple[int, str, list[str]]]] = {}
    for emission in emissions:
        if emission.topic == TOPICS.ledger and (found := read_ledger(emission.value or b"").outcome) is not None:
            outcomes.setdefault(found.correlation_id, []).append((found.status, found.completed_by, found.missing))
    assert len(outcomes) == OPEN
    for number in range(OPEN):
        kind = KINDS[number % len(KINDS)]
        assert outcomes[f"c-{number}"] == [EXPECTED[kind]] * (2 if kind == "reused" else 1), kind
    replies = {emission.key: emission for emission in emissions if emission.topic == TOPICS.replies}
    answered = replies[b"c-5"]
    assert (answered.reply_id, answered.partition) == (f"{5:032x}", 1)
    assert msgspec.json.decode(answered.value or b"")["value"]["a-ack"] == {
        "status": 202,
        "payload": {"n": 1},
        "headers": {"response-required": False},
    }
