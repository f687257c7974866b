"""What judges ``python -m benchmarks.records``: it agrees with the shard of correlate, and finds what is wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest

from ackstream.jobs.correlate.state import ACKS, LARGEST_NUMBER, OWN, SIGNALS, Record
from ackstream.jobs.correlate.topics import CorrelateTopics
from ackstream.protocol.ledger import LedgerRecord, decode
from ackstream.settings import Correlate
from ackstream.testing.system import ShardRun, hash_of
from benchmarks.asking import plan
from benchmarks.asking.oracle import Answered, Asked, Oracle
from benchmarks.asking.orders import protobuf

REQUESTS = 3_000
START = 1_700_000_000_000


class World:
    """All records of the plan, in the order of their times; batches are cut at random."""

    def __init__(self) -> None:
        self.oracle, chance = Oracle(REQUESTS), random.Random(7)
        self.offsets: dict[str, int] = {}
        sent: list[tuple[int, int, int, int]] = []
        for number in range(REQUESTS):
            asked = START + 5 * number
            sent.append((asked, number, -1, 0))
            for label in range(len(plan.LABELS)):
                for turn, one in enumerate(plan.answers(number, label)):
                    sent.append((asked + int(1_000 * one.after) + chance.randrange(80), number, label, turn))
        identities: dict[int, str] = {}
        records: list[Record] = []
        for time, number, label, turn in sorted(sent):
            if label < 0:
                topic = plan.REQUEST_TOPICS[number % 2]
                offset = self._offset(topic)
                head, _, value = plan.line(number).rstrip(b"\n").split(b"\t")
                headers = dict(part.split(b":", 1) for part in head.split(b";"))
                found = headers.get(b"correlation-id") or headers.get(b"ce_id")
                identities[number] = found.decode() if found else f"{topic}-0-{offset}"
                self.oracle.ask(number, Asked(identities[number], topic, 0, offset, time))
                records.append(_record(SIGNALS, time, topic, offset, identities[number], value, headers))
                continue
            topic, value_, pairs = plan.written(number, label, turn, identities[number].encode())
            offset = self._offset(topic)
            one = plan.answers(number, label)[turn]
            given = Answered(time, topic, 0, offset, label, one.status, one.weak, 1_000 * one.extend)
            self.oracle.answers[number].append(given)
            headers = {name.encode(): text for name, text in pairs}
            records.append(_record(ACKS, time, topic, offset, identities[number], value_, headers))
        self.oracle.decide()
        shard = ShardRun(Correlate(), CorrelateTopics())
        self.replies: list[tuple[dict[str, bytes], bytes, bytes]] = []
        self.ledger: list[LedgerRecord] = []
        while records:
            cut = chance.randrange(1, 2_000)
            batch, records = records[:cut], records[cut:]
            self._take(shard.process(batch, records[0].timestamp if records else batch[-1].timestamp + 10**6))

    def _offset(self, topic: str) -> int:
        self.offsets[topic] = offset = self.offsets.get(topic, -1) + 1
        return offset

    def _take(self, emissions: list[Any]) -> None:
        for one in emissions:
            if one.reply_id is not None:
                pairs = {"correlation-id": one.key, "reply-id": one.reply_id.encode(), "status": one.status.encode()}
                self.replies.append((pairs | {"completed-by": one.completed_by.encode()}, one.key, one.value))
            else:
                self.ledger.append(decode(one.value))

    def rows(self, part: str) -> list[dict[str, Any]]:
        """Return what archive makes rows of."""
        found: list[Any] = []
        for record in self.ledger:
            if part == "acks":
                found += record.acks or ()
            elif (one := getattr(record, part)) is not None:
                found.append(one)
        return [
            {name: list(value) if isinstance(value := getattr(one, name), tuple) else value
             for name in one.__struct_fields__} for one in found
        ]  # fmt: skip


def _record(
    role: int, time: int, topic: str, offset: int, identity: str, value: bytes | None, headers: dict[bytes, bytes]
) -> Record:
    own = topic != "acks"
    source = role + (OWN * (crc32(topic.encode()) & LARGEST_NUMBER) if own else 0)
    return Record(
        time, source, 0, offset, hash_of(identity), identity, b"key", value, len(value or b""),
        {name.decode(): text for name, text in headers.items()}, topic if own else None,
    )  # fmt: skip


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def _judge(world: World) -> Oracle:
    oracle = world.oracle
    for reply in world.replies:
        oracle.reply(*reply)
    oracle.finish_replies()
    oracle.outcomes(world.rows("outcome"))
    oracle.signals(world.rows("signal"))
    oracle.acknowledgements(world.rows("acks"))
    return oracle


def test_the_shard_decides_all_requests_of_the_plan_as_the_oracle_expects(world: World) -> None:
    oracle = _judge(world)
    assert oracle.words == []
    found = dict(oracle.summary())
    assert found["by_case"].keys() == plan.CASES.keys()
    assert {"accepted", "late", "duplicate", "unrequested", "progress"} <= {
        name for names in found["by_fate"] for name in names.split(" or ")
    }


def _reply(world: World, change: Callable[[list[tuple[dict[str, bytes], bytes, bytes]]], None]) -> Oracle:
    """Let a copy of the oracle judge changed replies."""
    oracle = Oracle(REQUESTS)
    oracle.asked, oracle.expected, oracle.numbers = world.oracle.asked, world.oracle.expected, world.oracle.numbers
    replies = list(world.replies)
    change(replies)
    for one in replies:
        oracle.reply(*one)
    oracle.finish_replies()
    return oracle


def _altered(replies: list[Any], name: str, text: bytes) -> None:
    headers, key, value = replies[7]
    replies[7] = (headers | {name: text}, key, value)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda replies: replies.pop(), "no reply"),
        (lambda replies: _altered(replies, "reply-id", b"0" * 32), "a reply with wrong headers"),
        (lambda replies: _altered(replies, "status", b"299"), "a reply with wrong headers"),
        (lambda replies: _altered(replies, "completed-by", b"response"), "a reply with wrong headers"),
        (
            lambda replies: replies.append((*replies[3][:2], replies[3][2].replace(b'"path"', b'"Path"'))),
            "two different replies",
        ),
        (
            lambda replies: replies.__setitem__(0, (*replies[0][:2], replies[0][2].replace(b"packed", b"picked"))),
            "a wrong reply",
        ),
        (lambda replies: replies.append((replies[0][0], b"nobody", replies[0][2])), "a reply to no request"),
    ],
)
def test_a_wrong_reply_is_found(world: World, change: Callable[[Any], None], kind: str) -> None:
    assert dict(_reply(world, change).violations) == {kind: 1}


def test_a_repeated_reply_is_counted_and_no_violation(world: World) -> None:
    oracle = _reply(world, lambda replies: replies.append(replies[5]))
    assert (oracle.repeated, oracle.violations) == (1, {})


@pytest.mark.parametrize(
    ("part", "judge", "name"),
    [("outcome", "outcomes", "completed_by"), ("signal", "signals", "offset"), ("acks", "acknowledgements", "label")],
)
def test_rows_that_are_missing_doubled_or_wrong_are_found(world: World, part: str, judge: str, name: str) -> None:
    def found(change: Callable[[list[dict[str, Any]]], object]) -> list[str]:
        oracle, rows = Oracle(REQUESTS), world.rows(part)
        oracle.asked, oracle.expected, oracle.numbers = world.oracle.asked, world.oracle.expected, world.oracle.numbers
        change(rows)
        getattr(oracle, judge)(rows)
        return list(oracle.violations)

    (missing,) = found(lambda rows: rows.pop())
    (double,) = found(lambda rows: rows.append(rows[0]))
    (wrong,) = found(lambda rows: rows[0].update({name: -1}))
    assert missing.endswith("has no row")
    assert double.endswith("has two rows")
    assert wrong.startswith("a wrong ")


def _decoded(data: bytes) -> list[Any]:
    """Read fields 1, 2 and 3 of a message of Protobuf."""
    found: list[Any] = []
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while position < len(data):
        if varint() & 7 == 2:
            length = varint()
            found.append(data[position : position + length])
            position += length
        else:
            found.append(varint())
    return found


@pytest.mark.parametrize("number", [0, 127, 128, 300, 999_999])
def test_an_order_is_a_message_of_protobuf(number: int) -> None:
    assert _decoded(protobuf(number, b"article", number % 10_000)) == [number, b"article", number % 10_000]
