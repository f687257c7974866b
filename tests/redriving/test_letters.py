"""Dead letters of other systems, and copies that come back."""

from __future__ import annotations

import math
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaError, ProducerFencedError

from ackstream.errors import BadParameterError, InputError
from ackstream.redriving.letters import Content, Letter, contents, from_tables, letter_of
from ackstream.redriving.runs import RETURN_SECONDS, RedriveReport, _Run, came_back, redrive
from ackstream.settings import Lake, Settings
from tests.lake.planes import fill

KAFKA = [
    ("__dlq.errors.topic", b"orders"), ("__dlq.errors.partition", b"2"), ("__dlq.errors.offset", b"12345678"),
    ("__dlq.errors.message", b"rejected"), ("__dlq.errors.group", b"g"),
]  # fmt: skip
CONNECT = [
    ("__connect.errors.topic", b"orders"), ("__connect.errors.partition", b"2"), ("__connect.errors.offset", b"1234"),
    ("__connect.errors.exception.message", b"no JSON"),
]  # fmt: skip
SPRING = [
    ("kafka_dlt-original-topic", b"orders"), ("kafka_dlt-original-partition", b"\0\0\0\2"),
    ("kafka_dlt-original-offset", b"\0\0\0\0\0\0\4\xd2"), ("kafka_dlt-exception-message", b"too late"),
]  # fmt: skip


def record(headers: list[tuple[str, bytes]], key: bytes | None = b"k", value: bytes | None = b"v", **more: Any) -> Any:
    place = {"topic": "orders-dlt", "partition": 1, "offset": 7}
    return SimpleNamespace(headers=headers, key=key, value=value, **(place | more))


@pytest.mark.parametrize(
    ("headers", "reason", "offset"),
    [(KAFKA, "rejected", 12_345_678), (CONNECT, "no JSON", 1_234), (SPRING, "too late", 1_234)],
    ids=["share group", "connect", "spring"],
)
def test_a_dead_letter_of_another_system_names_its_original(headers: list[Any], reason: str, offset: int):
    letter = letter_of(record([("own", b"1"), *headers]))
    assert (letter.id, letter.reason, letter.place) == ("orders-dlt-1-7", reason, ("orders", 2, offset))
    assert letter.copy == ("orders-dlt", 1, 7)
    assert _contents([record([("own", b"1"), *headers])]) == {letter.id: Content(b"k", b"v", [("own", b"1")])}


def test_a_dead_letter_without_a_copy_stands_for_its_original():
    letter, original = letter_of(record(KAFKA, None, None)), record([("own", b"1")], topic="orders", partition=2)
    assert letter.copy is None
    original.offset = letter.offset
    assert _contents([original], [letter]) == {letter.id: Content(b"k", b"v", [("own", b"1")])}


def test_a_letter_that_names_an_original_that_is_nowhere_has_no_content(lake: Lake):
    places = [("elsewhere", 0, 0), ("orders", 9, 0), ("orders", 2, 99), ("orders", 2, -1)]
    letters = [Letter(f"l-{place}", "", None, None, *place) for place in places]
    assert _contents([record([], topic="orders", partition=2)], letters, lake) == {}


def test_the_letters_of_a_topic_hold_nothing_of_their_records():
    value = b"v" * 1_000_000
    letters = [letter_of(record([*KAFKA, ("own", value)], value=value, offset=offset)) for offset in range(10)]
    assert len(pickle.dumps(letters)) < 10_000
    assert len({letter.copy for letter in letters}) == 10


def _contents(records: list[Any], letters: list[Letter] | None = None, lake: Lake | None = None) -> dict[str, Content]:
    """Return the contents of letters, by default those of the records, which are all that Kafka has."""
    parts = {TopicPartition(one.topic, one.partition) for one in records}
    consumer = SimpleNamespace(
        topics=lambda: {one.topic for one in parts},
        partitions_for_topic=lambda topic: {one.partition for one in parts if one.topic == topic},
        end_offsets=lambda wanted: {
            part: 1 + max(one.offset for one in records if (one.topic, one.partition) == part) for part in wanted
        },
    )
    stored = {(one.topic, one.partition, one.offset): one for one in records}
    reader: Any = SimpleNamespace(consumer=consumer, fetch=lambda wanted: {one: stored[one] for one in wanted})
    return contents(reader, lake or Lake(), letters or [letter_of(one) for one in records])


@pytest.mark.parametrize("headers", [[], [("__dlq.errors.topic", b"")], [("topic", b"orders")]])
def test_a_record_that_names_no_original_has_no_topic(headers: list[Any]):
    assert letter_of(record(headers)).topic == ""


def test_numbers_that_are_none_are_not_read():
    wrong = [("__dlq.errors.topic", b"orders"), ("__dlq.errors.partition", b"x"), ("__dlq.errors.offset", b"")]
    assert letter_of(record(wrong)).place == ("orders", -1, -1)
    assert letter_of(record([("__dlq.errors.topic", b"orders"), ("__dlq.errors.offset", b"1" * 5_000)])).offset == -1


@pytest.mark.parametrize(
    ("headers", "back"),
    [
        ([("reason", b"json.invalid: it is no JSON (signals-3-7)")], True),
        ([("reason", b"json.invalid: it is no JSON (signals-3-8)")], False),
        ([("reason", b"it is (signals-3-7) elsewhere")], False),
        ([("message", b"signals-3-7"), ("queue", b"q")], True),
        ([("topic", b"signals"), ("partition", b"3"), ("offset", b"7")], True),
        ([("topic", b"signals")], False),
        ([("__dlq.errors.topic", b"signals"), ("__dlq.errors.partition", b"3"), ("__dlq.errors.offset", b"7")], True),
        ([("__dlq.errors.topic", b"signals"), ("__dlq.errors.partition", b"3"), ("__dlq.errors.offset", b"8")], False),
        ([], False),
    ],
)
def test_a_copy_comes_back_as_a_dead_letter_with_its_coordinates(headers: list[Any], back: bool):  # noqa: FBT001 - a table
    assert came_back(record(headers), {"signals-3-7"}, "redrive-1-0") is back


@pytest.mark.parametrize(
    ("value", "back"),
    [
        (b'{"c": "ack", "a": "persisted", "status": "failure", "first": 1, "s": 1, "reason": "not entitled"}', True),
        (b'{"c": "ack", "a": "persisted", "first": 1, "s": 1}', False),
        (b'{"type": "samples_done"}', False),
        (None, False),
    ],
)
def test_a_copy_that_persist_refuses_comes_back(value: bytes | None, back: bool):  # noqa: FBT001 - a table
    assert came_back(record([], b"redrive-1-0", value), set(), "redrive-1-0") is back


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("true", ["work/messages-0-104", "signals-0-3", "signals-0-4"]),
        ("queue = 'work' AND reason = 'failed'", ["work/messages-0-104"]),
        ("given_up_at > '2026-01-01' AND deliveries >= 1", ["work/messages-0-104"]),
        ("topic = 'signals' AND partition = 0", ["signals-0-3", "signals-0-4"]),
        ("id = 'signals-0-4' OR correlation_id = 'none'", ["signals-0-4"]),
        ("reason = 'none'", []),
    ],
)
def test_letters_are_chosen_by_a_condition_over_the_tables(lake: Lake, where: str, ids: list[str]):
    assert from_tables(lake, where) == []
    fill(lake)
    assert [letter.id for letter in from_tables(lake, where)] == ids


@pytest.mark.parametrize("where", ["", "reason =", "no_column = 1"])
def test_a_condition_that_is_none_is_refused(lake: Lake, where: str):
    fill(lake)
    with pytest.raises(InputError, match="is not a condition over dead letters"):
        from_tables(lake, where)


@pytest.mark.parametrize("rate", [0, -1, math.inf, math.nan])
def test_a_rate_that_sends_nothing_is_refused(rate: float):
    with pytest.raises(BadParameterError, match="number of letters a second"):
        redrive(Settings(), rate=rate)


def test_letters_that_come_back_after_the_last_one_was_sent_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = _Run.__new__(_Run)
    until, report = list[float](), RedriveReport()
    run.__dict__ |= {"_report": report, "_sent": set(), "_available": list, "_count": until.append}
    run._send = run._sent.update
    monkeypatch.setattr("ackstream.redriving.runs.time.monotonic", lambda: 100.0)
    run.send([Letter("l", "", None, None, "orders", 2, 0)], 1, lambda _: None)
    assert until == [100, 100, 100 + RETURN_SECONDS]
    until.clear()
    run._sent.clear()
    run.send([], 1, lambda _: None)
    assert until == [100]


class Fenced:
    """A producer of transactions whose transactional id another one has taken."""

    def __init__(self) -> None:
        def fail() -> None:
            raise KafkaError("in an error state")

        self._transaction_manager = SimpleNamespace(last_error=ProducerFencedError(), begin_abort=fail)

    def begin_transaction(self) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_of_a_run_that_another_one_has_ended_stays_an_interrupt() -> None:
    run: Any = _Run.__new__(_Run)
    run.__dict__ |= {"_producer": Fenced(), "_rows": 0, "_numbers": 0}
    with pytest.raises(KeyboardInterrupt):
        run._send([(None, "orders", None)])
