"""Topics that operators and producers change under a running job, on the real broker."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType

from ackstream.errors import StoppedError
from ackstream.jobs.archive.job import JOB as ARCHIVE
from ackstream.kafka.clients import connect_admin
from ackstream.kafka.topics import TIMESTAMP_TYPE
from ackstream.observe.metrics import FIGURES, TRANSACTION
from ackstream.settings import Kafka, Lake, Settings
from ackstream.settings.kafka import KafkaOptions
from ackstream.spark import progress
from tests.harness.kafka import Observer
from tests.harness.system import System
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(progress, "TRANSACTION_SECONDS", 1.0)


def _run_archive(spark: SparkSession, settings: Settings, change: Callable[[Any], object]) -> None:
    with ARCHIVE.running(spark, settings) as query, connect_admin(settings.kafka) as admin:
        change(admin)
        assert query.awaitTermination(PATIENCE_SECONDS)


def test_a_job_whose_topic_gets_the_time_stamps_of_producers_stops_with_the_command_that_corrects_it(
    spark: SparkSession, kafka: Kafka, lake: Lake
) -> None:
    name = kafka.topic("ledger")
    changed = ConfigResource(ConfigResourceType.TOPIC, name, {TIMESTAMP_TYPE: "CreateTime"})
    said = rf"^The topic {name} has message\.timestamp\.type=CreateTime.* --topic {name} .*changed while archive ran\.$"
    with pytest.raises(StoppedError, match=said):
        _run_archive(spark, Settings(kafka=kafka, lake=lake), lambda admin: admin.alter_configs([changed]))


def test_a_transaction_that_a_producer_leaves_open_is_seen(
    spark: SparkSession, kafka: Kafka, lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    def seconds() -> Any:
        return FIGURES.read().gauges.get((TRANSACTION.name, "archive", "ledger"), 0)

    with (
        ARCHIVE.running(spark, Settings(kafka=kafka, lake=lake)),
        closing(KafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=kafka.topic("x"))) as producer,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        place = producer.send(kafka.topic("ledger"), b"{}").get(PATIENCE_SECONDS)
        eventually(lambda: seconds() >= 1, "the figure")
        where = f"{place.topic}, partition {place.partition}, holds back all records from offset {place.offset} on"
        assert [where in line for line in caplog.messages].count(True) == 1
        producer.abort_transaction()
        eventually(lambda: seconds() == 0, "the end of the transaction")


def _answered(kafka: Kafka) -> set[str]:
    with closing(Observer(kafka, "replies")) as observer:
        return {record.key.decode() for record in observer.read("replies")}


def _lose_a_partition(system: System, spark: SparkSession, ids: set[str]) -> None:
    kafka, name = system.settings.kafka, system.settings.kafka.topic("replies")
    with system.correlate(spark) as query, connect_admin(kafka) as admin:
        system.command("before", requested_acks=["nobody:here"], timeout="1s")
        # from now on the job's producer knows both partitions
        eventually(lambda: _answered(kafka), "the first answer", query)
        admin.delete_topics([name])
        eventually(lambda: name not in admin.list_topics(), "the end of the topic")
        admin.create_topics({name: {"num_partitions": 1, "configs": {TIMESTAMP_TYPE: "LogAppendTime"}}})
        for identity in ids:
            system.command(identity, requested_acks=["nobody:here"], timeout="1s")
        assert query.awaitTermination(60), "it waits for the partition that is gone"


def test_replies_made_anew_with_fewer_partitions_delay_nobody_for_longer_than_a_restart(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    ids = {f"after-{number}" for number in range(20)}
    with closing(System(kafka, tmp_path, clock=True)) as system:
        with pytest.raises(
            StoppedError, match="replies was re-created with 1 partitions while correlate ran, and had 2"
        ):
            _lose_a_partition(system, spark, ids)
        # a program that starts again has a producer of its own: Spark keeps one for the same options
        options = KafkaOptions(java={"client.id": "restarted"})
        changed = kafka.model_copy(update={"options": options})
        system.settings = system.settings.model_copy(update={"kafka": changed})
        with system.correlate(spark) as query:
            eventually(lambda: _answered(kafka) >= ids, "the answers", query)
