"""Where a new checkpoint starts to read, what is for options to change, and which ticks count."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from contextlib import contextmanager
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pandas as pd
import pytest
from kafka.structs import OffsetAndTimestamp
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.types import StructType

from ackstream.protocol.ditto.correlation_ids import of_json
from ackstream.protocol.ditto.envelopes import decode
from ackstream.protocol.record_headers import SPRING_CORRELATION_ID
from ackstream.settings import Kafka
from ackstream.settings.kafka import KafkaOptions, KafkaSecurity
from ackstream.settings.security import Secret, Tls
from ackstream.spark import kafka as spark_kafka
from ackstream.spark.kafka import CLOCK, COPY_BYTES, EARLIEST, FORMER_RUN, LATEST, MAX_COPY_BYTES, RUN, reading_tasks
from ackstream.spark.operator import operate
from tests.harness.certificates import Authority
from tests.harness.ports import free_ports
from tests.harness.waiting import PATIENCE_SECONDS
from tests.protocol.ditto.test_correlation_ids import OF_SPRING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from kafka import TopicPartition
    from pyspark.sql import SparkSession

    from ackstream.spark.operator import ShardBatch

PREFIXED = Kafka(topic_prefix="x-")


@pytest.mark.parametrize(
    ("master", "conf", "tasks"),
    [
        ("local[4]", {}, 4),
        # its executors may register after the query was built
        ("spark://host:7077", {}, None),
        ("yarn", {"spark.default.parallelism": "100"}, 100),
    ],
)
def test_as_many_tasks_read_as_there_are_cores_which_a_cluster_does_not_know(
    master: str, conf: dict[str, str], tasks: int | None
) -> None:
    context: Any = SimpleNamespace(master=master, defaultParallelism=4, getConf=lambda: conf)
    assert reading_tasks(context) == tasks


class Broker:
    """Partitions 0 and 1 of each topic, with ten records each, of the seconds 0 to 9; partition 1 ends at second 4."""

    def describe_topics(self, topics: list[str]) -> list[dict[str, Any]]:
        partitions = [{"partition_index": number, "replica_nodes": [1]} for number in (0, 1)]
        return [{"name": topic, "error_code": 0, "partitions": partitions} for topic in topics]

    def list_partition_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        found = {}
        for partition, time in wanted.items():
            end = 10 - 5 * partition.partition
            second = -(-time // 1000)
            offset = end if time == LATEST else second if second < end else -1
            found[partition] = OffsetAndTimestamp(offset, -1, None)
        return found


@pytest.fixture(autouse=True)
def _broker(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connect(_: Kafka) -> Iterator[Broker]:
        yield Broker()

    monkeypatch.setattr(spark_kafka, "connect_admin", connect)


def _starts(**starts: Any) -> Any:
    found = spark_kafka._starting_offsets(PREFIXED, starts)
    return found if found == "earliest" else json.loads(found)


def test_all_topics_from_their_beginning_need_no_look_at_the_broker() -> None:
    assert _starts(signals=EARLIEST, acks=EARLIEST) == "earliest"


def test_the_latest_offsets_are_those_of_now_and_given_ones_stay() -> None:
    assert _starts(signals=LATEST, acks=EARLIEST, clock={0: 7}) == {
        "signals": {"0": 10, "1": 5},
        "acks": {"0": EARLIEST, "1": EARLIEST},
        "clock": {"0": 7, "1": EARLIEST},
    }


def test_a_time_is_the_first_record_of_then_or_later_and_the_end_where_there_is_none() -> None:
    time = datetime.fromtimestamp(6.001, tz=timezone.utc)
    assert _starts(signals=time) == {"signals": {"0": 7, "1": 5}}


@pytest.mark.parametrize(("on_data_loss", "fails"), [("stop", "true"), ("continue", "false")])
def test_records_that_were_deleted_unread_stop_a_job_unless_the_settings_say_otherwise(
    on_data_loss: Any, fails: str
) -> None:
    options = KafkaOptions(java={"fetch.max.wait.ms": "500", "max.poll.records": "500"})
    spark, kafka = mock.MagicMock(), Kafka(on_data_loss=on_data_loss, options=options)
    spark_kafka.source(spark, kafka, {"signals": EARLIEST}, job="mine", limit=5, headers=False)
    given = spark.readStream.format.return_value.options
    assert given.call_args.kwargs["kafka.fetch.max.wait.ms"] == "5"
    assert given.call_args.kwargs["kafka.max.poll.records"] == "10000"
    assert given.call_args.kwargs["kafka.isolation.level"] == "read_committed"
    assert given.return_value.option.call_args.args == ("failOnDataLoss", fails)
    loss = given.return_value.option.return_value
    assert loss.option.call_args.args == ("groupIdPrefix", "ackstream-mine")


def test_no_option_lets_a_sink_lose_or_repeat_records() -> None:
    kafka = Kafka(options=KafkaOptions(java={"compression.type": "zstd", "batch.size": "7"}))
    found = spark_kafka.sink_options(kafka, {"batch.size": "9"})
    assert (found["kafka.acks"], found["kafka.enable.idempotence"], found["kafka.batch.size"]) == ("all", "true", "9")
    assert found["kafka.compression.type"] == "zstd"


SOURCE = "topic STRING, key BINARY, value BINARY, timestamp TIMESTAMP, offset LONG"
TICKS: dict[str, tuple[bytes | None, bytes | None, int]] = {
    "own": (b"42", b"5000", 5_000),
    "at most its append time": (b"42", b"4102444800000", 9_000),
    "of the greatest number": (b"42", b"9223372036854775807", 9_000),
    "before all time": (b"42", b"-1", 0),
    "no number": (b"42", b"soon", 0),
    "larger than any number": (b"42", b"99999999999999999999999999", 0),
    "the end of the run": (b"42", None, 0),
    "empty": (b"42", b"", 0),
    "of another run": (b"41", b"5000", 0),
    "a claim": (b"claim", b"", 0),
    "of nobody": (None, b"5000", 0),
}


def test_a_tick_counts_for_its_own_run_and_up_to_its_append_time(spark: SparkSession) -> None:
    own, at = spark.newSession(), datetime.fromtimestamp(9, tz=timezone.utc)
    rows = [(name, "x-clock", key, value, at, 7) for name, (key, value, _) in TICKS.items()]
    ticks = own.createDataFrame(rows, f"name STRING, {SOURCE}")

    def times() -> dict[str, int]:
        found = spark_kafka.ticked(ticks, "x-clock").select("name", "timestamp").collect()
        return dict.fromkeys(TICKS, 0) | {row["name"]: row["timestamp"] for row in found}

    own.conf.set(RUN, "42")
    assert times() == {name: time for name, (*_, time) in TICKS.items()}
    # in a batch that is replayed, those of the run before, up to its end
    own.conf.set(FORMER_RUN, json.dumps(["41", 8]))
    assert times() == {name: time for name, (*_, time) in TICKS.items()} | {"of another run": 5_000}
    own.conf.set(FORMER_RUN, json.dumps(["41", 7]))
    assert times() == {name: time for name, (*_, time) in TICKS.items()}
    # where something else publishes the clock
    own.conf.unset(RUN)
    assert set(times().values()) == {0}


def test_each_tick_of_a_second_reaches_a_shard_and_the_watermark_is_that_second(
    spark: SparkSession, tmp_path: Path
) -> None:
    own = spark.newSession()
    own.conf.set(RUN, "42")
    own.conf.set("spark.sql.shuffle.partitions", "1")
    # a batch each: ticks, and a record
    values = [5_200, 5_700, None, 6_000, 6_999, 7_001]
    for number, value in enumerate(values):
        tick = {"topic": "x-clock", "key": b64encode(b"42").decode(), "value": b64encode(str(value).encode()).decode()}
        row = {"topic": "other"} if value is None else tick
        file = tmp_path / f"in-{number}.json"
        file.write_text(json.dumps({**row, "timestamp": "1970-01-01T00:00:09Z", "offset": number}))
        os.utime(file, (number, number))

    def handle(batch: ShardBatch) -> Iterator[pd.DataFrame]:
        timestamps = [time for frame in batch.frames for time in frame["timestamp"]]
        yield pd.DataFrame({"found": [json.dumps([batch.watermark, batch.ticks, timestamps])]})

    source = own.readStream.schema(SOURCE).option("maxFilesPerTrigger", 1).json(f"{tmp_path}/in-*.json")
    rows = spark_kafka.ticked(source, "x-clock").select(F.lit(0).alias("shard"), "timestamp", CLOCK)
    found = operate(rows, "shard", handle, StructType().add("found", "string"))
    written = found.writeStream.queryName("ticks").format("memory").option("checkpointLocation", f"{tmp_path}/own")
    query = written.outputMode("append").trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(PATIENCE_SECONDS)
        assert [json.loads(row["found"]) for row in own.table("ticks").collect()] == [
            [0, [5_200], []],
            [5_000, [5_700], []],
            [5_000, [], [9_000]],
            [5_000, [6_000], []],
            [6_000, [6_999], []],
            [6_000, [7_001], []],
        ]
    finally:
        query.stop()


QUICKLY = {"default.api.timeout.ms": "900", "request.timeout.ms": "800", "max.block.ms": "500"}


@pytest.mark.parametrize("side", ["source", "sink"])
def test_no_error_of_a_query_shows_a_login(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str], side: str
) -> None:
    (port,) = free_ports(1)
    certificate, key = Authority(tmp_path).issue_pair("me")
    security = KafkaSecurity(
        protocol="SASL_SSL",
        mechanism="PLAIN",
        username="me",
        password=Secret("47110815"),
        tls=Tls(certificate=certificate, key=key),
    )
    options = KafkaOptions(java=QUICKLY | ({"delivery.timeout.ms": "1000"} if side == "sink" else {}))
    kafka = Kafka(bootstrap=f"localhost:{port}", security=security, options=options)
    if side == "source":
        stream = spark_kafka.source(spark, kafka, {"signals": EARLIEST}, job="mine", limit=1, headers=False)
        writer = stream.writeStream.format("noop")
    else:
        stream = spark.readStream.format("rate").load().select(F.col("value").cast("string"))
        writer = stream.writeStream.format("kafka").options(**spark_kafka.sink_options(kafka)).option("topic", "t")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(PATIENCE_SECONDS)
    query.explain(extended=True)
    stream.explain(extended=True)
    # Java's own text has the plan of the query; those of batches show options in this form
    shown = f"{caught.value}{query._jsq.exception().get().toString()}{capfd.readouterr()}"
    given = spark._jvm.PythonUtils.toScalaMap(spark_kafka.sink_options(kafka))
    redacted = spark._jsparkSession.sessionState().conf().redactOptions(given).toString()
    assert "kafka.sasl.jaas.config -> *********(redacted)" in redacted
    shown += redacted
    assert not [secret for secret in ("47110815", *key.read_text().splitlines()) if secret in shown]


@pytest.mark.parametrize(
    ("limits", "copied"),
    [({"x-t": 1_048_588}, 1_048_588 - 65_536), ({"x-t": 10**8}, MAX_COPY_BYTES), ({}, MAX_COPY_BYTES)],
)
def test_copies_are_as_large_as_their_topic_takes_and_no_larger_than_a_record(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], copied: int
) -> None:
    monkeypatch.setattr(
        spark_kafka.kafka_topics, "largest_records", lambda _, names: limits if names == ["x-t"] else {}
    )
    session = mock.MagicMock()
    spark_kafka.limit_copies(session, PREFIXED, "t")
    session.conf.set.assert_called_once_with(COPY_BYTES, str(copied))


def test_springs_correlation_id_is_the_same_text_in_spark(spark: SparkSession) -> None:
    named = [([(SPRING_CORRELATION_ID, bytearray(value))],) for value, _ in OF_SPRING] + [([],)]
    records = spark.createDataFrame(named, "headers array<struct<key: string, value: binary>>")
    found = records.select(spark_kafka.spring_correlation()).collect()
    assert [row[0] for row in found] == [*(text for _, text in OF_SPRING), None]


@pytest.mark.parametrize(
    "headers",
    [
        '{"correlation-id":"a"}',
        '{"Correlation-Id":"a"}',
        '{"Correlation-Id":"b","correlation-id":"a"}',
        '{"correlation-id":"","Correlation-Id":"a"}',
        '{"correlation-id":null}',
        '{"correlation-id":12345678901234567890}',
        '{"correlation-id":"\\u00e4 \\ud83d\\ude00"}',
        "{}",
        "null",
        # of a repeated name the last one counts, as of a repeated record header
        '{"correlation-id":"a","correlation-id":"b"}',
        '{"correlation-id":"a","correlation-id":null}',
        '{"correlation-id":"a"},"headers":{}',
        '{},"headers":{"correlation-id":"a"}',
    ],
)
def test_the_correlation_id_in_json_is_the_same_in_spark(spark: SparkSession, headers: str) -> None:
    text = f'{{"topic":"ns/thing/things/twin/commands/modify","headers":{headers},"path":"/","value":{{"a":[1]}}}}'
    found = spark.createDataFrame([(text,)], "text string").select(spark_kafka.json_correlation_id(F.col("text")))
    assert found.collect()[0][0] == of_json(decode(text.encode()).headers)


def test_a_text_that_is_no_message_has_no_correlation_id(spark: SparkSession) -> None:
    texts = [
        "",
        "x",
        "1",
        "[]",
        '{"headers":1}',
        '{"headers":["correlation-id"]}',
        '{"headers":{"correlation-id":"a"',
        None,
    ]
    rows = spark.createDataFrame([(text,) for text in texts], "text string")
    found = rows.select(spark_kafka.json_correlation_id(F.col("text"))).collect()
    assert [row[0] for row in found] == [None] * len(texts)
