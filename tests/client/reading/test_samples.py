from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from ackstream.client.reading.samples import ReaderQos, Sample, WriterQos, of_record, of_row
from ackstream.errors import BadParameterError, InconsistentQosError
from ackstream.jobs.persist.records import HEADER_COLUMNS
from ackstream.protocol import record_headers


def _record(value: bytes | None = b"v", **headers: bytes | None) -> Any:
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return SimpleNamespace(headers=named, value=value, timestamp=7, partition=1, offset=5)


def _facts(sample: Sample) -> tuple[Any, ...]:
    return (sample.publisher, sample.seq, sample.topic, sample.key, sample.value, dict(sample.headers))


def test_a_record_is_a_message_with_the_applications_own_headers() -> None:
    sample = of_record(_record(client=b"w1", seq=b"12", topic=b"orders", key=b"k", ack=b"persisted", colour=b"red"))
    assert sample is not None
    assert _facts(sample) == ("w1", 12, "orders", b"k", b"v", {"colour": b"red"})
    assert (sample.timestamp_ms, sample.partition, sample.offset) == (7, 1, 5)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"client": b"", "seq": b"1"},
        {"client": b"w1"},
        {"client": b"w1", "seq": b"-1"},
        {"client": b"w1", "seq": b"x"},
        {"client": b"w1", "seq": b"9" * 5000},
        {"client": b"w1", "seq": None},
        {"client": b"w1", "seq": b"9223372036854775808"},
        {"client": b"w1", "seq": b"1", "command": b"logon"},
    ],
)
def test_what_is_no_numbered_message_of_a_client_is_passed_over(headers: dict[str, bytes]) -> None:
    assert of_record(_record(**headers)) is None


def test_a_message_has_the_session_of_its_publisher_and_one_in_the_table_has_none() -> None:
    named = of_record(_record(client=b"w1", seq=b"1", publisher_session=b"s" * 70))
    nameless = of_record(_record(client=b"w1", seq=b"1"))
    assert [sample and sample.session for sample in (named, nameless)] == ["s" * 64, ""]


def test_a_row_of_the_table_is_the_same_message() -> None:
    row = {
        "client": "w1",
        "seq": 12,
        "subject": None,
        "key": None,
        "value": b"v",
        "headers": [{"name": "colour", "value": b"red"}],
        "received_at": datetime.fromtimestamp(0.007, timezone.utc),
        "partition": 1,
        "offset": 5,
    }
    sample = of_row(row)
    assert _facts(sample) == ("w1", 12, None, None, b"v", {"colour": b"red"})
    assert sample.timestamp_ms == 7
    assert of_row(row | {"headers": None}).headers == {}
    assert sample.session is None


def test_the_table_keeps_the_same_headers_as_the_applications_own() -> None:
    assert {*HEADER_COLUMNS.values(), record_headers.KEY} == record_headers.PUBLISHER


def test_a_sample_without_a_reader_is_a_value() -> None:
    sample = of_record(_record(client=b"w1", seq=b"1"))
    assert sample is not None
    sample.acknowledge()
    sample.reject("no")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"max_response_length": 40_000}, "max_response_length is 40000; it must be 0 to 32768 bytes"),
        ({"max_response_length": -1}, "max_response_length is -1"),
        ({"kind": "application-auto", "reliable": False}, "cannot acknowledge as application-auto; make it reliable"),
        ({"depth": 0}, "depth is 0; it must be at least 1"),
        ({"samples_per_app_ack": 0}, "samples_per_app_ack is 0"),
        ({"app_ack_period_ms": 0}, "app_ack_period_ms is 0"),
        ({"response_keep_ms": -1}, "response_keep_ms is -1"),
        ({"minimum_separation_ms": -1}, "minimum_separation_ms is -1"),
    ],
)
def test_a_reader_that_contradicts_itself_is_not_created(values: dict[str, Any], text: str) -> None:
    with pytest.raises(InconsistentQosError, match=text):
        ReaderQos(**values)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"max_samples": 0}, "max_samples is 0"),
        ({"max_blocking_ms": -1}, "max_blocking_ms is -1"),
        ({"required": {"Logger": 0}}, "The quorum of Logger is 0; it must be at least 1"),
        ({"required": {f"r{number}": 1 for number in range(101)}}, "at most 100 roles, not 101"),
        ({"required": {"": 1}}, "role has 0 characters: give 1 to 255"),
        ({"required": {"Logger": 1}, "reliable": False}, "best-effort writer waits for no reader"),
    ],
)
def test_a_writer_that_contradicts_itself_is_not_created(values: dict[str, Any], text: str) -> None:
    with pytest.raises((BadParameterError, InconsistentQosError), match=text):
        WriterQos(**values)


def test_a_reader_acknowledges_what_the_application_has_accessed_unless_it_asks_for_another_kind() -> None:
    assert (ReaderQos().kind, ReaderQos(history="keep-last").kind) == ("application-auto", "application-auto")


def test_the_longest_response_is_allowed() -> None:
    assert ReaderQos(max_response_length=32_768).max_response_length == 32_768
