"""Spark jobs of applications ask, see outcomes and acknowledge, on the real broker and the real correlate."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.client import Ack
from ackstream.dataframe import acknowledge, register
from ackstream.dataframe.requests import AT_ONCE
from tests.harness import pages
from tests.harness.programs import ASKING
from tests.harness.scripts import module_of
from tests.harness.system import System
from tests.harness.waiting import PATIENCE_SECONDS, eventually
from tests.integration.test_record_requests import _create

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from ackstream.settings import Kafka

pytestmark = pytest.mark.integration


@pytest.fixture
def system(kafka: Kafka, tmp_path: Path) -> Iterator[System]:
    _create(kafka, "orders")
    with closing(System(kafka, tmp_path, request_topics=(re.escape(kafka.topic("orders")),))) as system:
        yield system


@pytest.fixture
def options(kafka: Kafka, tmp_path: Path) -> dict[str, str]:
    """Return the options of the formats: the settings of the system as a file."""
    path = tmp_path / "ackstream.toml"
    path.write_text(f'[kafka]\nbootstrap = "{kafka.bootstrap}"\ntopic_prefix = "{kafka.topic_prefix}"\n', "utf-8")
    return {"settings": str(path)}


def outcomes(spark: SparkSession, options: dict[str, str], **further: str) -> list[Any]:
    found = spark.read.format("ackstream.outcomes").options(**options, **further).load()
    return found.orderBy("correlation_id").collect()


def requests(spark: SparkSession, kafka: Kafka) -> DataFrame:
    """Return the records of the topic of requests as Spark's Kafka source reads them."""
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
    return source.option("subscribe", kafka.topic("orders")).option("includeHeaders", "true").load()


def test_each_row_is_a_request_and_its_outcome_a_row(
    spark: SparkSession, kafka: Kafka, system: System, options: dict[str, str]
) -> None:
    register(spark)
    orders = kafka.topic("orders")
    rows = [("order-1", "k", b"7", ["bank:paid", "stock:packed"], "1m"), ("order-2", None, b"8", None, None)]
    frame = spark.createDataFrame(
        rows, "correlation_id string, key string, value binary, labels array<string>, timeout string"
    )
    with system.correlate(spark) as query:
        writer = frame.write.format("ackstream").mode("append").options(**options)
        writer.options(topic=orders, labels="bank:paid", timeout="10s").save()
        assert acknowledge("bank:paid", Ack(201, {"invoice": 7}), kafka).after(requests(spark, kafka)) == 2
        eventually(lambda: outcomes(spark, options), "the first outcome", query)
        assert acknowledge("stock:packed", Ack(409, "none left"), kafka).after(requests(spark, kafka)) == 1
        eventually(lambda: len(outcomes(spark, options)) == 2, "all outcomes", query)
    first, second = outcomes(spark, options)
    assert (first.correlation_id, first.status, first.completed_by, first.requested, first.missing) == (
        "order-1", 424, "acknowledgements", ["bank:paid", "stock:packed"], [],
    )  # fmt: skip
    assert {(ack.label, ack.status, ack.payload) for ack in first.acks} == {
        ("bank:paid", 201, '{"invoice":7}'),
        ("stock:packed", 409, '"none left"'),
    }
    assert (second.correlation_id, second.status, second.requested) == ("order-2", 201, ["bank:paid"])
    assert (second.decided_at - second.started_at) / timedelta(milliseconds=1) == second.latency_ms
    assert [row.id for row in outcomes(spark, options, label="stock:packed")] == [first.id]
    assert [row.id for row in outcomes(spark, options, status="200, 201", completed_by="acknowledgements")] == [
        second.id
    ]
    assert outcomes(spark, options, correlation_id="order-3,order-4") == []
    assert outcomes(spark, options, since="2999-01-01T00:00:00Z") == []
    assert system.replies() == {}


def test_a_wrong_option_fails_before_the_first_record_and_a_wrong_row_names_itself(
    spark: SparkSession, kafka: Kafka, system: System, options: dict[str, str]
) -> None:
    register(spark)
    orders = kafka.topic("orders")

    def write(frame: DataFrame, mode: str = "append", **further: str) -> str:
        with pytest.raises(Exception, match=r"\w") as raised:
            frame.write.format("ackstream").mode(mode).options(**options, **further).save()
        return str(raised.value)

    frame = spark.createDataFrame([("a", "5 parsecs")], "key string, timeout string")
    assert "There is no option lables, the nearest known one is labels" in write(frame, topic=orders, lables="a:b")
    assert "The mode is overwrite" in write(frame, "overwrite", topic=orders, labels="a:b")
    assert f"There is no topic {orders}x at" in write(frame.select("key"), topic=f"{orders}x", labels="a:b")
    failed = write(frame, topic=orders, labels="a:b")
    assert "A row cannot be a request. A duration is a whole number and a unit, such as 10s, 500ms or 1m" in failed
    assert 'this one is "5 parsecs". Please choose a valid timeout. The row: ' in failed
    assert "key 'a', timeout '5 parsecs'" in failed
    assert system.end("orders") == 0


def test_streams_ask_and_see_each_outcome_once(
    spark: SparkSession, kafka: Kafka, system: System, options: dict[str, str], tmp_path: Path
) -> None:
    register(spark)
    seen: list[str] = []

    def ask(*keys: str) -> None:
        frame = spark.createDataFrame(
            [(key, {"ack-quorum": "1"}) for key in keys], "key string, headers map<string,string>"
        )
        frame.coalesce(1).write.mode("append").parquet(str(tmp_path / "rows"))
        rows = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "rows"))
        writer = rows.writeStream.format("ackstream").option("checkpointLocation", str(tmp_path / "asking"))
        writer = writer.options(**options, topic=kafka.topic("orders"), labels='["a:b"]', timeout="1m")
        writer.trigger(availableNow=True).start().awaitTermination(PATIENCE_SECONDS)

    def see() -> list[str]:
        source = spark.readStream.format("ackstream.outcomes").options(**options, label="a:b").load()
        writer = source.writeStream.option("checkpointLocation", str(tmp_path / "seeing"))
        writer = writer.foreachBatch(lambda batch, _: seen.extend(row.correlation_id for row in batch.collect()))
        writer.trigger(availableNow=True).start().awaitTermination(PATIENCE_SECONDS)
        return seen

    with system.correlate(spark) as query:
        for number, keys in enumerate((["k-1", "k-2"], ["k-3"])):
            ask(*keys)
            acknowledge("a:b", kafka=kafka).after(requests(spark, kafka))
            eventually(lambda: len(see()) == 2 + number, "the outcomes", query)  # noqa: B023 - it is called here
    asked = {dict(record.headers)["correlation-id"].decode() for record in system.records("orders")}
    assert sorted(seen) == sorted(asked)


def test_each_row_is_answered_once_though_a_task_is_killed(
    spark: SparkSession, kafka: Kafka, system: System, options: dict[str, str]
) -> None:
    rows, orders = 8 * AT_ONCE, kafka.topic("orders")
    register(spark)
    # some rows of the task that is killed have been asked, as all rows of the other one may have
    sizes = rows, 3 * AT_ONCE, rows // 2 + AT_ONCE
    command = [sys.executable, "-c", ASKING, options["settings"], kafka.bootstrap, orders, *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr[-3_000:]
    copies = system.end("orders") - rows
    assert copies >= AT_ONCE
    with system.correlate(spark) as query:
        assert acknowledge("rows:done", kafka=kafka).after(requests(spark, kafka)) == rows + copies
        eventually(lambda: len(outcomes(spark, options)) >= rows, "all outcomes", query)
        eventually(lambda: system.end("dead-letters") >= copies, "the copies", query)
    found = outcomes(spark, options)
    assert (len(found), len({row.correlation_id for row in found})) == (rows, rows)
    assert {(row.status, row.completed_by) for row in found} == {(200, "acknowledgements")}
    duplicate = "The correlation-id belongs to a request that is open or was decided recently."
    assert system.reasons() == [duplicate] * copies


def test_a_job_hands_a_table_over_and_learns_who_has_not_loaded_it(
    spark: SparkSession, kafka: Kafka, system: System, options: dict[str, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    handover, orders, settings = (
        module_of(pages.ROOT / "docs/clients/handover.py"),
        kafka.topic("orders"),
        options["settings"],
    )

    def write(name: str) -> Any:
        labels = ("reports:loaded", "billing:loaded")
        return handover.write(spark, settings, orders, str(tmp_path / "sales"), name, "1h", *labels)

    def load(*parties: str) -> None:
        for party in parties:
            places = str(tmp_path / party), str(tmp_path / f"{party}-checkpoint")
            handover.load(spark, settings, orders, f"{party}:loaded", *places)

    def tables(name: str) -> int:
        return len([*(tmp_path / "sales").glob(f"{name}-*")])

    with system.correlate(spark) as query, ThreadPoolExecutor() as pool:
        first = pool.submit(write, "monday")
        eventually(lambda: system.end("orders") == 1, "the first request", query)
        again = pool.submit(write, "monday")
        eventually(lambda: system.end("orders") == 2, "a copy of the first request", query)
        load("reports", "billing")
        assert (first.result(PATIENCE_SECONDS).status, first.result().missing) == (200, [])
        assert again.result(PATIENCE_SECONDS) == first.result()
        # a call while the first request is open does not touch its table, and one afterwards writes none
        assert (write("monday").id, tables("monday"), system.end("orders")) == (first.result().id, 2, 2)
        second = pool.submit(write, "tuesday")
        eventually(lambda: system.end("orders") == 3, "the second request", query)
        load("reports")
        asked = system.records("orders")[-1].timestamp
        system.tick(query, asked + 3_600_001)
        outcome = second.result(PATIENCE_SECONDS)
        assert (outcome.status, outcome.completed_by, outcome.missing) == (424, "timeout", ["billing:loaded"])

        def anew(name: str, requests: int) -> None:
            further = pool.submit(write, name)
            eventually(lambda: system.end("orders") == requests, "a further request", query)
            load("reports", "billing")
            assert (further.result(PATIENCE_SECONDS).correlation_id, further.result().status) == (f"{name}.2", 200)

        # a request that has timed out is over, whatever the clock and the timeout of the next call
        anew("tuesday", 4)
        # once the deadline has passed, the former outcome is that of another request
        monkeypatch.setattr(handover, "time", lambda: time.time() + 3_600)
        anew("monday", 5)
    assert [tables(name) for name in ("tuesday", "tuesday.2", "monday.2")] == [1, 1, 1]
    assert spark.read.parquet(str(tmp_path / "reports" / "*")).count() == 4_000
    assert spark.read.parquet(str(tmp_path / "billing" / "*")).count() == 4_000


def test_a_job_gives_up_waiting_where_no_outcome_comes_and_names_the_causes(
    kafka: Kafka, system: System, options: dict[str, str], tmp_path: Path
) -> None:
    arguments = [options["settings"], "write", kafka.topic("orders"), str(tmp_path), "monday", "1s", "reports:loaded"]
    program = f"from docs.clients import handover; handover.GRACE = 1.0; handover.main({arguments!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr[-3_000:]
    expected = r"No outcome of monday arrived within 2 s .*: check that the correlate job runs and that correlate\.req"
    assert re.search(expected, done.stderr)
    assert system.end("orders") == 1


def test_the_examples_of_the_page_run(
    spark: SparkSession, kafka: Kafka, system: System, options: dict[str, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    named = {
        "conf/ackstream.toml": options["settings"],
        '"orders"': f'"{kafka.topic("orders")}"',
        pages.BROKERS: kafka.bootstrap,
        "packed/": f"{tmp_path}/packed/",
        "packed-": f"{tmp_path}/packed-",
    }
    names: dict[str, Any] = {"spark": spark}

    def run(example: str) -> None:
        for text, own in named.items():
            example = example.replace(text, own)
        pages.run(example, system.settings, tmp_path, monkeypatch, names)

    start, ask, look, store = pages.examples("docs/guides/spark-jobs.md")
    with system.correlate(spark) as query:
        for example in (start, ask, store):
            run(example)
        acknowledge("bank:paid", kafka=kafka).after(requests(spark, kafka))
        eventually(lambda: len(outcomes(spark, options, status="200")) == 2, "the outcomes", query)
        run(look)
    assert names["outcomes"].count() == 2
    assert spark.read.parquet(str(tmp_path / "packed" / "*")).count() == 2
