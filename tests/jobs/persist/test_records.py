from __future__ import annotations

from datetime import datetime, timezone
from operator import itemgetter
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.persist.decisions import Admission
from ackstream.jobs.persist.job import fold
from ackstream.jobs.persist.records import (
    HEADER_COLUMNS,
    MessageMetadata,
    MessageRun,
    projected,
    read_metadata,
)
from ackstream.protocol.messages import encode_ack
from ackstream.settings import Persist, PublishRule
from tests.harness.sessions import SETTINGS, other_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from ackstream.jobs.persist.records import RejectedRecord

ADMISSION = Admission(Persist(entitlements=(PublishRule(clients=("*",), topics=("open",)),), max_message_bytes=100))

TIME = datetime(2026, 11, 22, tzinfo=timezone.utc)


def _table(messages: Sequence[MessageMetadata]) -> Iterator[MessageMetadata | MessageRun]:
    hints = get_type_hints(MessageMetadata)
    types = {name: pa.int64() if hint is int else pa.string() for name, hint in hints.items()}
    rows = [msgspec.structs.asdict(message) for message in messages]
    return read_metadata(pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()}))


def _message(offset: int, seq: Any, client: str | None = "p", **fields: Any) -> MessageMetadata:
    text = None if seq is None else str(seq)
    return MessageMetadata(0, offset, 5, 10, client, text, **({"ack": "persisted", "topic": "open"} | fields))


def _shapes(*messages: MessageMetadata) -> list[Any]:
    return [
        (item.numbers[0], item.numbers[-1]) if isinstance(item, MessageRun) else item.seq for item in _table(messages)
    ]


def test_consecutive_numbers_are_a_run_even_interleaved_with_other_clients() -> None:
    messages = [
        _message(0, 1),
        _message(1, 7, "q"),
        _message(2, 2),
        _message(3, 8, "q"),
        _message(4, 3),
        _message(5, 9, "q"),
    ]
    assert _shapes(*messages) == [(1, 3), (7, 9)]


@pytest.mark.parametrize(
    "odd",
    [
        _message(2, 4),
        _message(2, 3, topic="secret"),
        _message(2, 3, ack="none"),
        _message(2, 3, cid="c"),
        _message(2, 3, session="s"),
        _message(2, 3, immediately="true"),
        _message(2, 3, ttl="5"),
        _message(2, 3, command="logon"),
        _message(2, "x"),
        _message(2, None),
        _message(2, "9" * 30),
        MessageMetadata(0, 2, 86_400_005, 10, "p", "3", ack="persisted", topic="open"),
    ],
)
def test_any_other_difference_ends_a_run(odd: MessageMetadata) -> None:
    assert _shapes(_message(0, 1), _message(1, 2), odd) == [(1, 2), odd.seq]


def test_an_empty_batch_has_no_messages() -> None:
    assert list(_table([])) == []


@pytest.mark.parametrize(("key", "value"), SETTINGS)
def test_no_value_depends_on_a_setting_of_the_session(spark: SparkSession, key: str, value: str) -> None:
    def rows(session: SparkSession) -> list[Any]:
        times = [datetime(2026, 11, day, hour, 30, tzinfo=timezone.utc) for day in (1, 2) for hour in (0, 12, 23)]
        headers = [("client", b"p"), ("seq", b"7"), ("ttl", b"99999999999999999999"), ("Topic", b"x"), ("topic", b"y")]
        columns = "topic STRING, partition INT, offset LONG, timestamp TIMESTAMP, key BINARY, value BINARY"
        records = [("messages", 0, number, time, b"k", b"v", headers) for number, time in enumerate(times)]
        kind = f"{columns}, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
        return sorted(projected(session.createDataFrame(records, kind)).toArrow().to_pylist(), key=itemgetter("offset"))

    with other_session(spark, key, value) as other:
        found = rows(other)
    assert found == rows(spark)
    assert {str(row["day"]) for row in found} == {"2026-11-01", "2026-11-02"}


def test_headers_of_any_length_reach_the_driver_in_part(spark: SparkSession) -> None:
    fine = {header: f"{name}-{header}" for name, header in HEADER_COLUMNS.items()}
    rows = []
    for offset, value in enumerate((None, b"\x01" * 5_000_000, "€".encode() * 400)):
        headers = [(header, text.encode() if value is None else value) for header, text in fine.items()]
        rows.append(("messages", 0, offset, TIME, b"value", headers))
    frame = spark.createDataFrame(
        rows,
        "topic STRING, partition INT, offset LONG, timestamp TIMESTAMP, value BINARY,"
        " headers ARRAY<STRUCT<key: STRING, value: BINARY>>",
    )
    first, second, third = projected(frame).select("metadata.*").toArrow().sort_by("offset").to_pylist()
    assert {name: first[name] for name in HEADER_COLUMNS} == {
        name: fine[header] for name, header in HEADER_COLUMNS.items()
    }
    assert {len(second[name]) for name in HEADER_COLUMNS} == {65, 1_025}
    # a cut character still counts, so that the topic is too long
    assert (third["topic"][:-1], len(third["topic"].encode())) == ("€" * 341, 341 * 3 + 3)
    result = fold(read_metadata(projected(frame).select("metadata.*").toArrow()), {}, ADMISSION, floor_ms=500, batch=7)
    assert all(len(encode_ack(ack)) < 20_000 for _, ack in result.acks)


MESSAGES = st.lists(
    st.tuples(
        st.integers(1, 9),
        st.sampled_from(["p", "p", "q", None]),
        st.sampled_from(
            [{}, {}, {}, {"topic": "secret"}, {"command": "logon", "cid": "l"}, {"size": 500}, {"cid": "c"}]
        ),
    ),
    max_size=40,
)


def _offset(rejected: RejectedRecord) -> int:
    return rejected.offset


@given(drawn=MESSAGES, ordered=st.booleans())
def test_a_run_gives_the_same_result_as_its_messages_one_by_one(drawn: list[Any], ordered: bool) -> None:  # noqa: FBT001
    if ordered:
        drawn.sort(key=lambda entry: entry[0])
    messages = []
    for offset, (seq, client, fields) in enumerate(drawn):
        named = {name: value for name, value in fields.items() if name != "size"}
        messages.append(msgspec.structs.replace(_message(offset, seq, client, **named), size=fields.get("size", 10)))
    singly, together = (fold(given, {}, ADMISSION, floor_ms=500, batch=7) for given in (messages, _table(messages)))
    assert sorted(together.rejected, key=_offset) == sorted(singly.rejected, key=_offset)
    assert together.changed == singly.changed
    assert {record.client: record for record in together.stored} == {record.client: record for record in singly.stored}
    for client in singly.changed:
        assert [ack for name, ack in together.acks if name == client] == [
            ack for name, ack in singly.acks if name == client
        ]
