"""Rows become requests that correlate accepts, under ids that follow from them; batches become acknowledgements."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from ackstream.client import Ack, BadParameterError, DittoError
from ackstream.dataframe import acknowledge, requests
from ackstream.dataframe.requests import RowRequests, digest, read_options
from ackstream.errors import AckstreamError, SettingsError, UnreachableError
from ackstream.protocol.ditto.record_requests import read_record
from ackstream.settings import Correlate, Kafka, Settings

OPTIONS = {"topic": "orders", "labels": "b:done, c:done", "timeout": "1h"}
KAFKA = Kafka(bootstrap="localhost:1", topic_prefix="t-")
SETTINGS = Settings(kafka=KAFKA, correlate=Correlate(max_timeout="2h", request_topics=("orders", r"own-\d+")))


def test_a_row_becomes_a_record_with_the_headers_of_a_request() -> None:
    columns = {"key": "string", "value": "binary", "headers": "map<string,string>"}
    rows = RowRequests.of(columns, OPTIONS, Settings())
    topic, key, value, headers = rows.record(("k", b"\xff", [("ack-quorum", "1")]))
    assert (topic, key, value) == ("orders", b"k", b"\xff")
    named = dict(headers)
    assert named.pop("correlation-id") == digest("orders", b"k", b"\xff", ("b:done", "c:done"))
    request, _ = read_record(named, default_timeout_ms=1, max_timeout_ms=10**8)
    assert (request.awaited, request.timeout_ms, request.quorum) == (("b:done", "c:done"), 3_600_000, {"": 1})
    assert not request.response_required


@pytest.mark.parametrize(
    ("columns", "row", "expected"),
    [
        ({"topic": "string", "key": "string"}, ("own", "k"), ("own", b"k", ["b:done", "c:done"], b"1h")),
        ({"topic": "string", "key": "string"}, (None, "k"), ("orders", b"k", ["b:done", "c:done"], b"1h")),
        ({"key": "binary", "labels": "array<string>"}, (b"k", ["a:b"]), ("orders", b"k", ["a:b"], b"1h")),
        ({"key": "string", "labels": "string"}, ("k", '["a:b"]'), ("orders", b"k", ["a:b"], b"1h")),
        ({"key": "string", "labels": "array<string>"}, ("k", None), ("orders", b"k", ["b:done", "c:done"], b"1h")),
        ({"key": "string", "timeout": "string"}, ("k", "5s"), ("orders", b"k", ["b:done", "c:done"], b"5s")),
        ({"key": "string", "timeout": "string"}, ("k", None), ("orders", b"k", ["b:done", "c:done"], b"1h")),
        ({"correlation_id": "string"}, ("id-1",), ("orders", "id-1", ["b:done", "c:done"], b"1h")),
    ],
)
def test_a_column_wins_over_its_option(
    columns: dict[str, str], row: tuple[Any, ...], expected: tuple[Any, ...]
) -> None:
    topic, key, _, headers = RowRequests.of(columns, OPTIONS, Settings()).record(row)
    named = dict(headers)
    assert (topic, key, json.loads(named["requested-acks"]), named["timeout"]) == expected


def test_a_row_without_key_has_its_id_as_key_so_that_copies_share_a_partition() -> None:
    rows = RowRequests.of({"key": "string", "value": "string"}, OPTIONS, Settings())
    _, key, value, headers = rows.record((None, "v"))
    assert (key, value) == (dict(headers)["correlation-id"], b"v")


parts = st.none() | st.binary(max_size=3)
labels = st.lists(st.sampled_from(["a:b", "b:c"]), max_size=2)


@given(st.tuples(st.text(max_size=2), parts, parts, labels), st.tuples(st.text(max_size=2), parts, parts, labels))
def test_rows_have_one_id_exactly_if_they_are_equal(one: Any, other: Any) -> None:
    assert (digest(*one) == digest(*other)) == (one == other)


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ({"keys": "string"}, {}, "There is no column keys, the nearest known one is key: rename or remove it."),
        ({"key": "struct<a:int>"}, {}, "The column key is struct<a:int>: cast it to string or binary."),
        ({"labels": "array<int>", "key": "string"}, {}, "cast it to string or array<string>."),
        ({"timeout": "int", "key": "string"}, {}, "The column timeout is int: cast it to string."),
        ({"key": "string"}, {"topic": ""}, "The option topic is missing: set it, or add a column topic."),
        ({"key": "string"}, {"labels": ""}, "The option labels is missing: set it, or add a column labels."),
        ({"timeout": "string"}, {}, "The columns are timeout: add the request itself, key or value."),
        ({"key": "string"}, {"labels": "no label"}, "no label"),
        ({"key": "string"}, {"labels": "twin-persisted"}, "twin-persisted"),
        ({"key": "string"}, {"timeout": "5 parsecs"}, "5 parsecs"),
        ({"key": "string"}, {"timeout": "0"}, "must not be zero"),
        ({"key": "string"}, {"timeout": "121m"}, "The timeout is 121m, but correlate.max_timeout is 7200s"),
        (
            {"key": "string"},
            {"topic": "t-ledger"},
            "The topic t-ledger is one of the system: name a topic of your own.",
        ),
        ({"key": "string"}, {"topic": "t-signals"}, "The topic t-signals is one of the system"),
        (
            {"key": "string"},
            {"topic": "ledger"},
            r"The topic ledger matches no pattern of correlate.request_topics, orders, own-\d+, so correlate does not",
        ),
        ({"key": "string"}, {"topic": "own-7-"}, "add the topic there and restart correlate, or correct its name."),
    ],
)
def test_wrong_columns_and_options_are_refused(columns: dict[str, str], options: dict[str, str], sentence: str) -> None:
    with pytest.raises(AckstreamError) as raised:
        RowRequests.of(columns, OPTIONS | options, SETTINGS)
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ((None, "k", ["a:b"], "1s", None), "It has no topic or no labels"),
        (("t", "k", None, "1s", None), "It has no topic or no labels"),
        (("t", "k", [], "1s", None), "It has no topic or no labels"),
        (("t", "k", ["a:b", None], "1s", None), "acks has None"),
        (("t", "k", ["a b"], "1s", None), "A label has 3 to 165 characters"),
        (("t", "k", ["a:b"], "soon", None), 'this one is "soon". Please choose a valid timeout.'),
        (("t", "k", ["a:b"], "1s", {"timeout": "2s"}), "headers has timeout, which is the service's own"),
        (("t", "k", ["a:b"], "1s", {"x": None}), "headers['x'] is None"),
        (("t", "k", ["a:b"], "1s", {"ack-quorum": "9"}), "ack-quorum"),
    ],
)
def test_a_row_that_cannot_be_a_request_is_refused_by_name(row: tuple[Any, ...], why: str) -> None:
    rows = RowRequests(("topic", "key", "labels", "timeout", "headers"))
    with pytest.raises(BadParameterError) as raised:
        rows.record(row)
    assert why in str(raised.value)
    assert f"key 'k', labels {row[2]!r}" in str(raised.value)


@pytest.mark.parametrize(
    ("topic", "timeout", "why"),
    [
        ("own-7", "2h", None),
        ("own-7", "2h1s", "a duration"),
        ("own-7", "7201s", "correlate.max_timeout is 7200s, to which correlate would cut it"),
        ("t-acks", "1h", "one of the system"),
        ("own-x", "1h", "matches no pattern"),
    ],
)
def test_the_settings_limit_each_row(topic: str, timeout: str, why: str | None) -> None:
    rows = RowRequests.of({"topic": "string", "timeout": "string", "key": "string"}, OPTIONS, SETTINGS)
    if why is None:
        assert rows.record((topic, timeout, "k"))[0] == topic
        return
    with pytest.raises(BadParameterError, match="The row: topic") as raised:
        rows.record((topic, timeout, "k"))
    assert why.lower() in str(raised.value).lower()


def test_settings_that_name_no_topics_allow_any_of_an_application() -> None:
    assert RowRequests.of({"key": "string"}, OPTIONS | {"topic": "ledgers"}, Settings()).topic == "ledgers"


def test_options_name_the_kafka(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('[kafka]\nbootstrap = "a:1"\ntopic_prefix = "p-"\n', "utf-8")
    found, options = read_options({"Settings": str(path), "LABEL": "x", "path": "ignored"}, ("label",))
    assert (found.kafka.bootstrap, found.kafka.topic("acks"), options["label"]) == ("a:1", "p-acks", "x")
    found, _ = read_options({"settings": str(path), "bootstrap": "b:2"}, ())
    assert (found.kafka.bootstrap, found.kafka.topic_prefix) == ("b:2", "p-")
    with pytest.raises(BadParameterError, match="There is no option servers, known are label, bootstrap, settings"):
        read_options({"servers": "b:2"}, ("label",))
    with pytest.raises(SettingsError, match="does not exist"):
        read_options({"settings": str(tmp_path / "none")}, ())


class Sent(list[Any]):
    """In place of an outbox and a connection: the calls, in order."""

    def __call__(self, kafka: Kafka) -> Sent:
        assert kafka == KAFKA
        return self

    def consumer(self, writes: Sequence[str]) -> Sent:
        if writes == ["missing"]:
            raise UnreachableError("There is no topic missing")
        self.append(("topic", *writes))
        return self

    def send(self, records: list[Any]) -> None:
        self.append([(record[0], record[1]) for record in records])

    def close(self) -> None:
        self.append("closed")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    found = Sent()
    monkeypatch.setattr(requests, "Outbox", found)
    monkeypatch.setattr(requests, "Connection", found)
    monkeypatch.setattr(requests, "AT_ONCE", 2)
    return found


ROWS = [("x", "1"), ("x", "2"), ("y", "3")]
EXPECTED = [
    ("topic", "x"), "closed", [("x", b"1"), ("x", b"2")], ("topic", "y"), "closed", [("y", b"3")], "closed",
]  # fmt: skip


@pytest.mark.parametrize("arrow", [True, False])
def test_a_task_sends_its_rows_in_parts_and_looks_up_each_topic_before(sent: Sent, *, arrow: bool) -> None:
    writer = requests._Writer(RowRequests(("topic", "key"), labels=("a:b",)), KAFKA)
    batches = [pa.RecordBatch.from_pydict({"topic": [topic], "key": [key]}) for topic, key in ROWS]
    writer.write(iter(batches if arrow else ROWS))
    assert sent == EXPECTED


def test_a_missing_topic_fails_before_its_first_record(sent: Sent) -> None:
    writer = requests._Writer(RowRequests(("topic", "key"), labels=("a:b",)), KAFKA)
    with pytest.raises(UnreachableError):
        writer.write(iter([("missing", "1")]))
    assert sent == ["closed"]


SCHEMA = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "own.toml"
    path.write_text(
        '[kafka]\nbootstrap = "localhost:1"\ntopic_prefix = "t-"\n[correlate]\nmax_timeout = "2h"\n', "utf-8"
    )
    return {**OPTIONS, "settings": str(path)}


def test_the_driver_refuses_a_wrong_timeout_or_topic_and_looks_up_the_broker_before_any_task(
    sent: Sent, options: dict[str, str]
) -> None:
    with pytest.raises(BadParameterError, match=r"The timeout is 3h, but correlate\.max_timeout is 7200s"):
        requests._RequestSource({**options, "timeout": "3h"}).writer(SCHEMA, overwrite=False)
    assert sent == []
    requests._RequestSource(options).writer(SCHEMA, overwrite=False)
    assert sent == [("topic", "orders"), "closed"]
    del sent[:]
    of_rows = StructType([StructField("topic", StringType()), StructField("key", StringType())])
    requests._RequestSource({**options, "topic": ""}).writer(of_rows, overwrite=False)
    assert sent == [("topic",), "closed"]


def test_the_driver_finds_that_a_topic_or_its_broker_is_missing(sent: Sent, options: dict[str, str]) -> None:
    with pytest.raises(UnreachableError, match="There is no topic missing"):
        requests._RequestSource({**options, "topic": "missing"}).streamWriter(SCHEMA, overwrite=False)
    assert sent == []


def test_the_source_plans_writers_that_can_be_sent_to_workers(sent: Sent, options: dict[str, str]) -> None:
    source, schema = requests._RequestSource(options), SCHEMA
    for writer in (source.writer(schema, overwrite=False), source.streamWriter(schema, overwrite=False)):
        copy = pickle.loads(pickle.dumps(writer))
        assert (copy.kafka, copy.requests.names, copy.requests.labels) == (
            KAFKA,
            ("key", "value"),
            ("b:done", "c:done"),
        )
        assert copy.requests.record(("k", b"v")) == writer.requests.record(("k", b"v"))
    assert sent == [("topic", "orders"), "closed"] * 2
    with pytest.raises(BadParameterError, match="The mode is overwrite"):
        source.writer(schema, overwrite=True)


def row(headers: dict[str, bytes]) -> dict[str, Any]:
    """Return a row of Spark's Kafka source."""
    found = [{"key": name, "value": value} for name, value in headers.items()]
    return {"topic": "orders", "partition": 1, "offset": 7, "key": b"k", "value": None, "headers": found or None}


@pytest.mark.parametrize(
    ("headers", "identity"),
    [
        ({"requested-acks": b"a:b,stock:loaded", "correlation-id": b"id-1"}, "id-1"),
        ({"requested-acks": b'["stock:loaded"]'}, "orders-1-7"),
        ({"ce_requestedacks": b"stock:loaded", "ce_id": b"event"}, "event"),
        ({"requested-acks": b"a:b", "correlation-id": b"id-1"}, None),
        ({"requested-acks": b"not a label,stock:loaded"}, None),
        ({}, None),
    ],
)
def test_a_row_that_requests_the_label_is_acknowledged(headers: dict[str, bytes], identity: str | None) -> None:
    acknowledger = acknowledge("stock:loaded", Ack(201, {"rows": 5}), KAFKA)
    found = acknowledger.record(row(headers))
    if identity is None:
        assert found is None
        return
    assert found is not None
    topic, key, value, written = found
    assert (topic, key, written) == ("t-acks", identity, [("correlation-id", identity)])
    message = json.loads(value or b"")
    assert (message["topic"], message["status"], message["value"]) == (
        "unknown/unknown/things/live/acks/stock:loaded", 201, {"rows": 5},
    )  # fmt: skip
    assert found == acknowledger.record(row(headers))


def test_a_label_that_only_the_service_issues_is_refused() -> None:
    with pytest.raises(DittoError):
        acknowledge("live-response", kafka=KAFKA)


def test_pandas_is_missed_before_the_work_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"(?i)pandas.*must be installed"):
        acknowledge("stock:loaded", kafka=KAFKA)


def test_a_batch_without_headers_is_refused_with_the_option() -> None:
    class Frame:
        columns = ("topic", "partition", "offset", "key", "value")

    with pytest.raises(BadParameterError, match="The batch has no column headers: read Kafka with the option include"):
        acknowledge("stock:loaded", kafka=KAFKA).after(Frame())  # type: ignore[arg-type]
