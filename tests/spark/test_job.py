from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from kafka.errors import KafkaConnectionError
from py4j.protocol import Py4JNetworkError
from pyspark.errors import StreamingQueryException

from ackstream.errors import StartError, TakenError
from ackstream.jobs.archive.job import JOB as ARCHIVE
from ackstream.jobs.correlate.job import JOB as CORRELATE
from ackstream.jobs.persist.job import JOB as PERSIST
from ackstream.jobs.query.job import JOB as QUERY
from ackstream.jobs.queues.job import JOB as QUEUES
from ackstream.jobs.settle.job import JOB as SETTLE
from ackstream.jobs.twin.job import INDEX
from ackstream.jobs.twin.job import JOB as TWIN
from ackstream.kafka.topics import CLOCK, LEASE, TOPICS
from ackstream.settings import Kafka, Lake, Log, Metrics, Persist, Settings
from ackstream.settings.jobs import QueueJob, QueueSettings, Settle
from ackstream.settings.loading import with_values
from ackstream.spark import job as spark_job
from ackstream.spark.checkpoint import (
    DRAFT,
    REMEMBERED,
    TOPIC_ID,
    Checkpoint,
    CheckpointRules,
    compare_rules,
    compare_values,
    deciding_values,
    fixed_values,
    guard_checkpoint,
    is_new_checkpoint,
)
from ackstream.spark.job import POOL, Job
from ackstream.spark.kafka import ANY_RUN, REHEARSAL
from ackstream.spark.operator import SHUFFLE_PARTITIONS
from tests.harness.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

JOBS = {job.name: job for job in (ARCHIVE, CORRELATE, PERSIST, QUERY, QUEUES, SETTLE, TWIN)}
SETTINGS = Settings(kafka=Kafka(topic_prefix="x-"))


def _anew(_key: str) -> str:
    return "begin anew"


def test_other_values_are_refused_with_the_key_both_values_and_the_ways_out() -> None:
    with pytest.raises(StartError) as refused:
        compare_values({"x.shards": 6, "x.store": "hdfs"}, {"x.shards": 6, "x.store": "rocksdb"}, "/c/x", _anew)
    assert str(refused.value) == (
        "The checkpoint /c/x was made with x.store = rocksdb, the settings say hdfs. Set x.store back to that, "
        "or begin anew."
    )


@pytest.mark.parametrize("theirs", [{"x.shards": 6}, {}, {"x.shards": 6, "x.gone": 1}])
def test_the_same_values_pass_and_so_do_those_that_an_older_release_did_not_write(theirs: dict[str, object]) -> None:
    compare_values({"x.shards": 6}, theirs, "/c/x", _anew)


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_no_checkpoint_of_a_job_can_be_started_with_another_value_of_what_it_was_made_with(job: Job) -> None:
    fixed = fixed_values(SETTINGS, job.keeps.fixed)
    assert fixed["kafka.topic_prefix"] == "x-"
    for key in fixed:
        with pytest.raises(StartError, match=f"made with {key} = other, the settings say .* or {job.remedy(key)[:20]}"):
            compare_values(fixed, {**fixed, key: "other"}, "/c/x", job.remedy)


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_what_a_migration_can_change_is_fixed_otherwise_and_the_remedy_names_it(job: Job) -> None:
    assert set(job.keeps.movable) <= set(job.keeps.fixed)
    assert "kafka.topic_prefix" not in job.keeps.movable
    for key in job.keeps.fixed:
        assert (f"`ackstream migrate {job.name}`" in job.remedy(key)) is (key in job.keeps.movable)
    if job.keeps.resharding is not None:
        assert job.keeps.shards in job.keeps.movable


def test_settings_take_other_values_by_their_full_keys() -> None:
    changed = with_values(SETTINGS, {"correlate.shards": 12, "settle.shards": 3, "correlate.state_store": "rocksdb"})
    assert (changed.correlate.shards, changed.correlate.state_store, changed.settle.shards) == (12, "rocksdb", 3)
    assert (changed.kafka, SETTINGS.correlate.shards) == (SETTINGS.kafka, 2)


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_the_settings_and_topics_that_a_job_names_exist(job: Job) -> None:
    assert set(job.topics) <= TOPICS.keys()
    assert {*job.reads, *filter(None, [job.ticks, job.lease])} <= set(job.topics)
    for key, value in fixed_values(SETTINGS, [job.trigger]).items():
        assert isinstance(value, int | str), key
    assert all(isinstance(value, str) for value in job.conf(SETTINGS).values())


@pytest.mark.parametrize(
    ("theirs", "refused"),
    [({}, True), ({"rules": 3}, True), ({"rules": 2}, False)],
    ids=["first-release", "later-release", "same-rules"],
)
def test_a_batch_that_other_rules_have_begun_is_finished_by_them(theirs: dict[str, object], *, refused: bool) -> None:
    way_out = r"another release has begun.*Start the other release once more.*set rules to 2 in .* ackstream\.json"
    with pytest.raises(StartError, match=way_out) if refused else nullcontext():
        compare_rules({"rules": 2}, theirs, "/c/x")


def test_jobs_whose_rules_are_no_longer_those_of_the_first_release_say_so() -> None:
    changed = {name: job.keeps.rules for name, job in JOBS.items() if job.keeps.rules != 1}
    assert changed == {"correlate": 10, "query": 3, "queues": 6, "settle": 4, "twin": 5}


def test_a_batch_that_tables_have_is_finished_by_the_settings_that_decided_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    location = str(tmp_path / "checkpoints/x")

    def guard(limit: int | None, end: int | None, *, stored: bool = False) -> None:
        decides = {"x.limit": limit}
        guard_checkpoint(Checkpoint(spark, location), {"rules": 1}, _anew, decides=decides, stored=stored, end=end)

    guard(None, None)
    # the newest batch is finished, or nobody has been told of it
    guard(5, None, stored=True)
    guard(4, 7)
    with pytest.raises(
        StartError, match=r"decided with x\.limit = 4.*settings now have its default.*Set x\.limit back"
    ):
        guard(None, 7, stored=True)
    guard(4, 7, stored=True)
    guard(None, None)


def test_jobs_name_the_settings_that_they_decide_by() -> None:
    own = Settings(persist=Persist(max_message_bytes=7), queues=(QueueSettings(name="q", topics=("a",)),))
    found = deciding_values(own, [key for job in JOBS.values() for key in job.keeps.decides])
    assert json.loads(json.dumps(found)) == found
    assert {key: value for key, value in found.items() if value is not None} == {
        "persist.max_message_bytes": 7,
        "queues": [{"name": "q", "topics": ["a"], "max_lease": 86_400_000}],
    }
    for job, changed in (
        (SETTLE, Settings(settle=Settle(max_offsets_per_trigger=5))),
        (QUEUES, Settings(queue=QueueJob(max_bytes_per_trigger=5))),
    ):
        assert set(deciding_values(changed, job.keeps.decides).values()) == {None}
    operated = {"interval", "trigger", "max_offsets_per_trigger", "shards", "shuffle_partitions", "starting"}
    operated |= {"index_trigger", "index_partitions"}
    for name in ("persist", "settle", "query", "twin"):
        fields = set(type(getattr(SETTINGS, name)).model_fields) - operated
        assert fields == {key.partition(".")[2] for key in JOBS[name].keeps.decides if key.startswith(f"{name}.")}
    # what they take from other parts
    assert {"correlate.max_value_bytes", "correlate.max_labels", "correlate.reply_topics", "quotas"} < {
        *TWIN.keeps.decides
    }
    assert "queues" in PERSIST.keeps.decides


def test_a_checkpoint_remembers_the_values_of_its_first_start(spark: SparkSession, tmp_path: Path) -> None:
    location = str(tmp_path / "checkpoints/x")
    assert is_new_checkpoint(spark, location)
    guard_checkpoint(Checkpoint(spark, location), {"x.shards": 6}, _anew)
    assert not is_new_checkpoint(spark, location)
    guard_checkpoint(Checkpoint(spark, location), {"x.shards": 6}, _anew)
    with pytest.raises(StartError, match=r"made with x\.shards = 6, the settings say 3"):
        guard_checkpoint(Checkpoint(spark, location), {"x.shards": 3}, _anew)


def test_a_job_that_is_killed_while_it_writes_what_its_checkpoint_remembers_forgets_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    location, place = str(tmp_path / "checkpoints/x"), tmp_path / "checkpoints/x"
    # of the first start of all
    Checkpoint(spark, location).write(f".{REMEMBERED}.draft", '{"x.sh')
    assert is_new_checkpoint(spark, location)
    guard_checkpoint(Checkpoint(spark, location), {"x.shards": 6}, _anew)
    (place / f".{REMEMBERED}.draft").write_text('{"x.sh')
    with pytest.raises(StartError, match=r"made with x\.shards = 6, the settings say 3"):
        guard_checkpoint(Checkpoint(spark, location), {"x.shards": 3}, _anew)
    guard_checkpoint(Checkpoint(spark, location), {"x.shards": 6, "x.more": 1}, _anew)
    assert Checkpoint(spark, location).remembered.items() >= {"x.shards": 6, "x.more": 1}.items()


def test_a_checkpoint_of_an_earlier_release_remembers_the_topics_from_its_next_start_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    location = str(tmp_path / "checkpoints/x")
    guard_checkpoint(Checkpoint(spark, location), {"x.shards": 6}, _anew)
    guard_checkpoint(Checkpoint(spark, location), {"x.shards": 6, f"{TOPIC_ID}signals": "one"}, _anew)
    guard_checkpoint(Checkpoint(spark, location), {"x.shards": 6}, _anew)
    with pytest.raises(StartError, match="the topic signals with the id one, but the topic now has the id two"):
        guard_checkpoint(Checkpoint(spark, location), {"x.shards": 6, f"{TOPIC_ID}signals": "two"}, _anew)


def test_ticks_of_a_run_count_in_the_batch_that_it_has_left_unfinished(spark: SparkSession, tmp_path: Path) -> None:
    location = str(tmp_path / "checkpoints/x")

    def start(run: str, end: int | None = None) -> str | None:
        return guard_checkpoint(Checkpoint(spark, location), {"x.shards": 6}, _anew, run=run, end=end)

    assert start("7") is None
    # it is killed within a batch, as are those that replay it
    assert start("12", 30) == "7"
    assert start("31", 30) == "7"
    # this one finishes it, and is killed within a later one
    assert start("44", 50) == "31"
    # a migration finishes that, without a clock, and is killed within one of its own
    assert start(ANY_RUN, 50) == "31"
    assert start("60", 55) == ANY_RUN
    assert start("70") is None
    assert start("80", 90) == "70"


def test_the_end_of_a_batch_among_the_ticks_is_in_the_offset_log(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "x/offsets/7"
    log.parent.mkdir(parents=True)
    log.write_text('v1\n{"batchWatermarkMs":0}\n{"reservoirVersion":3}\n-\n{"x-clock":{"0":12},"x-signals":{"0":40}}')
    assert Checkpoint(spark, str(tmp_path / "x")).planned_end(7, "x-clock") == 12
    assert Checkpoint(spark, str(tmp_path / "x")).planned_end(7, "y-clock") == 0


def test_a_query_does_not_start_from_its_first_batch_if_the_tables_have_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x/metadata").write_text('{"id":"q"}')
    rules = CheckpointRules(committed=lambda _, __, query_id: {"q": 7}[query_id])
    job = Job(name="x", build=lambda *_: pytest.fail("it started"), trigger="archive.trigger", keeps=rules)
    with pytest.raises(StartError, match="is older than the tables: it has no batch, they have batch 7"):
        job.start(spark, Settings(lake=Lake(checkpoints=str(tmp_path))))
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["metadata"]


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda _: None,
    "empty": lambda _: b"",
    "cut": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)),
    "zeros at the end": lambda content: content[: len(content) // 2] + bytes(len(content) // 2),
    "a wrong byte": lambda content: content[: len(content) // 2] + b"\xff" + content[len(content) // 2 + 1 :],
}


@pytest.mark.parametrize(("store", "file"), [("HDFSBacked", "2.delta"), ("RocksDB", "2.changelog")])
def test_a_state_that_cannot_be_read_is_named_with_the_way_out_and_no_batch_is_finished(
    spark: SparkSession, tmp_path: Path, store: str, file: str
) -> None:
    own, whole, source = spark.newSession(), tmp_path / "whole", tmp_path / "in"
    stores = "spark.sql.streaming.stateStore"
    own.conf.set(SHUFFLE_PARTITIONS, "1")
    own.conf.set(f"{stores}.providerClass", f"org.apache.spark.sql.execution.streaming.state.{store}StateStoreProvider")
    own.conf.set(f"{stores}.rocksdb.changelogCheckpointing.enabled", "true")
    source.mkdir()
    counted = own.readStream.option("maxFilesPerTrigger", 1).text(str(source)).groupBy("value").count()
    query = counted.writeStream.format("noop").outputMode("update").trigger(availableNow=True)

    def run(checkpoint: Path, *files: str) -> None:
        for one in files:
            (source / one).write_text("\n".join(f"{one}{number}" for number in range(50)))
        query.option("checkpointLocation", str(checkpoint)).start().awaitTermination(PATIENCE_SECONDS)

    run(whole, "a", "b")
    for number, damage in enumerate(DAMAGES.values()):
        settings = SETTINGS.model_copy(update={"lake": Lake(checkpoints=str(tmp_path / str(number)))})
        checkpoint = Path(settings.lake.checkpoint("x"))
        shutil.copytree(whole, checkpoint)
        damaged = checkpoint / "state/0/0" / file
        content = damage(damaged.read_bytes())
        damaged.unlink()
        if content is not None:
            damaged.write_bytes(content)
        with pytest.raises(StreamingQueryException) as failed:
            run(checkpoint, "c")
        said = str(spark_job._failed(settings, "x", failed.value)).replace("file:", "")
        assert said.startswith(f"The file {damaged} is missing or damaged: put a copy"), str(failed.value)
        assert not (checkpoint / "commits/2").exists()
    # of a whole checkpoint, the disk was away for a moment
    settings = SETTINGS.model_copy(update={"lake": Lake(checkpoints=str(tmp_path))})
    shutil.move(whole, settings.lake.checkpoint("x"))
    away = StreamingQueryException(
        "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error: s3a://b/x/state/0/0/1.delta: away"
    )
    assert str(spark_job._failed(settings, "x", away)).startswith("The query x has failed: ")


@pytest.mark.parametrize(("answers", "pool"), [(True, "answering"), (False, "following")])
def test_the_tasks_of_a_job_are_in_a_pool_with_those_that_are_as_urgent(
    spark: SparkSession,
    kafka: Kafka,
    tmp_path: Path,
    answers: bool,  # noqa: FBT001 - a parameter
    pool: str,
) -> None:
    seen: list[str | None] = []

    def build(own: SparkSession, settings: Settings, trigger: Any) -> Any:
        def write(_frame: Any, _number: int) -> None:
            seen.append(own.sparkContext.getLocalProperty(POOL))

        stream = own.readStream.format("rate").load().writeStream.foreachBatch(write)
        return stream.option("checkpointLocation", settings.lake.checkpoint("x")).trigger(**trigger).start()

    settings = Settings(kafka=kafka, lake=Lake(checkpoints=str(tmp_path)))
    job = Job(name="x", build=build, trigger="archive.trigger", answers=answers)
    job.start(spark, settings, available_now=True).awaitTermination(PATIENCE_SECONDS)
    assert seen
    assert set(seen) == {pool}
    # what this thread does otherwise is in no pool
    assert spark.sparkContext.getLocalProperty(POOL) is None
    scheduler = spark.sparkContext._jsc.sc()
    assert scheduler.getSchedulingMode().toString() == "FAIR"
    assert scheduler.getPoolForName(pool).get().weight() == (8 if answers else 1)


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_every_job_that_reads_kafka_remembers_which_topics_it_counts_offsets_of(job: Job) -> None:
    assert job.reads


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_every_job_shows_on_a_topic_of_its_own_that_it_runs(job: Job) -> None:
    assert [name for name, other in JOBS.items() if job.lease == other.lease] == [job.name]
    assert TOPICS[job.lease or ""] is LEASE
    assert job.ticks is None or TOPICS[job.ticks] is CLOCK


@pytest.mark.parametrize("ticks", [True, False])
def test_a_job_without_a_clock_claims_its_lease_before_its_query_starts_and_ends_if_it_loses_it(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    ticks: bool,  # noqa: FBT001 - a parameter
) -> None:
    seen: list[object] = []

    @contextmanager
    def clock(_: Settings, lease: str, topic: str | None, reads: tuple[str, ...]) -> Iterator[Any]:
        seen.append(("claims", lease, topic, reads))
        yield "clock"
        seen.append("ends")

    query = SimpleNamespace(stop=lambda: seen.append("stops"), isActive=False, lastProgress=None)
    monkeypatch.setattr(spark_job, "clock", clock)
    monkeypatch.setattr(spark_job, "prepare", lambda *_: None)
    monkeypatch.setattr(Job, "start", lambda *_, clock, **__: seen.append(("starts", clock)) or query)
    job = Job(name="archive", build=lambda *_: None, trigger="archive.trigger")  # type: ignore[arg-type]
    last = 7 if ticks else -1
    monkeypatch.setattr(spark_job, "Checkpoint", lambda *_: SimpleNamespace(last=lambda _: last))
    with caplog.at_level("INFO"), job.running(None, Settings(), ticks=ticks):  # type: ignore[arg-type]
        assert seen == [("claims", "archive-lease", None, ()), ("starts", "clock")]
    assert seen[2:] == ["stops", "ends"]
    assert caplog.messages == [f"Stopped: archive {'after batch 7' if ticks else 'before its first batch'}."]


def test_no_new_checkpoint_takes_the_place_of_one_whose_migration_was_interrupted(
    spark: SparkSession, tmp_path: Path
) -> None:
    location = str(tmp_path / "checkpoints/x")
    guard_checkpoint(Checkpoint(spark, location + DRAFT), {"x.shards": 3}, _anew)
    with pytest.raises(StartError, match=r"The migration of the checkpoint .*/x was interrupted: repeat `ackstream mi"):
        guard_checkpoint(Checkpoint(spark, location), {"x.shards": 3}, _anew)


def _main(
    monkeypatch: pytest.MonkeyPatch,
    wait: Callable[[threading.Event], bool],
    stop: threading.Event | None = None,
    settings: Settings | None = None,
) -> list[str]:
    """Run two jobs whose queries wait like this, for a signal among other things; return what happened to them."""
    stop, seen = stop or threading.Event(), []

    @contextmanager
    def running(name: str, *_: object) -> Iterator[Any]:
        seen.append(f"{name} starts")
        yield SimpleNamespace(awaitTermination=lambda _seconds: wait(stop), lastProgress="a batch")
        seen.append(f"{name} stops")

    @contextmanager
    def driver(*_: object) -> Iterator[Any]:
        yield None, stop

    monkeypatch.setattr(spark_job, "driver", driver)
    monkeypatch.setattr("ackstream.settings.load", lambda: settings or Settings())
    spark_job.main(*(SimpleNamespace(name=name, running=partial(running, name)) for name in "xy"))  # type: ignore[arg-type]
    return seen


def test_jobs_are_ready_once_each_has_looked_for_records_and_the_line_names_their_metrics(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = count()

    class Query:
        """It waits for records from its third look on, and ends some looks later."""

        lastProgress = None  # noqa: N815 - Spark's name

        @property
        def status(self) -> dict[str, str]:
            assert "Ready" not in caplog.text
            assert spark_job.HEALTH.ready(time.monotonic()) == ("The first batch: no sign yet.",)
            return {"message": "Waiting for next trigger" if next(looks) > 3 else "Initializing sources"}

        def awaitTermination(self, _seconds: float) -> bool:  # noqa: N802 - Spark's name
            if "Ready" not in caplog.text:
                return False
            assert not spark_job.HEALTH.ready(time.monotonic())
            return True

    @contextmanager
    def driver(*_: object) -> Iterator[Any]:
        yield None, threading.Event()

    monkeypatch.setattr(spark_job, "driver", driver)
    for metrics, where in (
        (Metrics(port=9), "Metrics are at http://127.0.0.1:9/metrics"),
        (Metrics(), "Metrics are off (metrics.port = 0)."),
    ):
        caplog.clear()
        monkeypatch.setattr(spark_job, "run_with_settings", lambda run, _, own=metrics: run(Settings(metrics=own)))
        with caplog.at_level("INFO"):
            spark_job.main(*(SimpleNamespace(name=name, running=lambda *_: nullcontext(Query())) for name in "xy"))  # type: ignore[arg-type]
        assert [line for line in caplog.messages if line.startswith("Ready: x, y. ") and where in line]


def test_a_query_with_batches_is_ready_even_if_it_never_waits() -> None:
    behind = {"message": "Processing new data"}
    assert spark_job.has_looked(SimpleNamespace(lastProgress=object(), status=behind))  # type: ignore[arg-type]
    assert not spark_job.has_looked(SimpleNamespace(lastProgress=None, status=behind))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (
            CORRELATE,
            "reads x-signals, x-acks, x-twin-acks, x-declarations, orders; writes x-replies, x-ledger, x-dead-letters",
        ),
        (ARCHIVE, "reads x-ledger, x-audit, orders; writes tables in /lake"),
        (PERSIST, "reads x-messages, orders; writes x-publisher-acks, x-stored, tables in /lake"),
        (INDEX, "reads orders; writes tables in /lake"),
    ],
    ids=lambda value: value.name if isinstance(value, Job) else "",
)
def test_a_start_names_the_topics_and_tables_of_a_job(job: Job, said: str) -> None:
    settings = SETTINGS.model_copy(update={"lake": Lake(path="/lake")})
    assert job._ways(settings, ["=orders"]) == f"{said}; uses Kafka at localhost:9092"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("ModuleNotFoundError", "No module named 'ackstream'"),
        ("ModuleNotFoundError", "No module named 'ackstream.spark'"),
        (
            "a.b.PySparkImportError",
            "[PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however, it was not found",
        ),
        (
            "a.b.PySparkRuntimeError",
            "[PYTHON_VERSION_MISMATCH] Python in worker has another version: 3.9 than the driver: 3.11",
        ),
    ],
)
def test_workers_that_cannot_run_the_product_are_named_with_the_fix(kind: str, said: str) -> None:
    stack = f"Job aborted: Traceback (most recent call last):\n  File x\n{kind}: {said}.\n\n\tat a.b"
    error = spark_job._failed(SETTINGS, "x", StreamingQueryException(f"Query terminated with exception: {stack}"))
    assert isinstance(error, StartError)
    assert str(error) == (
        f"Python on a worker cannot run the query x ({said}): each machine with executors needs Python "
        f"3.{sys.version_info[1]} with 'ackstream[spark]', at PYSPARK_PYTHON or in spark.archives."
    )


def test_another_failure_is_not_taken_for_one_of_the_workers() -> None:
    error = spark_job._failed(SETTINGS, "x", StreamingQueryException("[STREAM_FAILED] Query: ValueError: no module"))
    assert str(error).startswith("The query x has failed: ")


def _fail(error: Exception, *, stopped: bool = False) -> Callable[[threading.Event], bool]:
    def wait(stop: threading.Event) -> bool:
        if stopped:
            stop.set()
        raise error

    return wait


def test_a_signal_stops_all_jobs_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = ["x starts", "y starts", "y stops", "x stops"]
    assert _main(monkeypatch, lambda stop: bool(stop.set())) == everything
    assert _main(monkeypatch, lambda _: True) == everything


class _Batches:
    """A query whose batches end at the third look; without work it waits after that, otherwise the next one follows."""

    isActive = True  # noqa: N815 - Spark's name

    def __init__(self, *, behind: bool) -> None:
        self.looks, self.behind, self.stopped_in = 0, behind, 0

    @property
    def status(self) -> dict[str, bool]:
        self.looks += 1
        return {"isTriggerActive": self.behind or self.looks < 3}

    @property
    def lastProgress(self) -> SimpleNamespace | None:  # noqa: N802 - Spark's name
        return None if self.looks < 3 else SimpleNamespace(batchId=self.looks // 3 - 1)

    def stop(self) -> None:
        self.stopped_in = self.looks


def test_a_job_stops_at_the_end_of_its_batch_even_if_the_next_one_follows_at_once() -> None:
    for query in (_Batches(behind=False), _Batches(behind=True)):
        spark_job.stop_in_order(query)  # type: ignore[arg-type]
        assert query.stopped_in == 3


def _standing_by(monkeypatch: pytest.MonkeyPatch, *taken: str, arguments: Sequence[str] = ("--standby",)) -> list[str]:
    """Run two jobs, of which others have some until a standby has waited for them; return what happened to them."""
    seen, held = list[str](), set(taken)

    class Waiting(Job):
        @contextmanager
        def running(self, *_: Any, **__: Any) -> Iterator[Any]:
            if self.name in held:
                raise TakenError("it is taken")
            seen.append(f"{self.name} starts")
            yield SimpleNamespace(awaitTermination=lambda _seconds: "y starts" in seen)

        def stand_by(self, _spark: Any, _settings: Any, over: Callable[[], bool]) -> bool:
            seen.append(f"{self.name} waits")
            over()
            assert not spark_job.HEALTH.ready(time.monotonic())
            held.discard(self.name)
            return not over()

    @contextmanager
    def driver(*_: object) -> Iterator[Any]:
        yield None, threading.Event()

    monkeypatch.setattr(spark_job, "driver", driver)
    monkeypatch.setattr("ackstream.settings.load", Settings)
    monkeypatch.setattr("sys.argv", ["x.py", *arguments])
    spark_job.main(*(Waiting(name=name, build=lambda *_: None, trigger="") for name in "xy"))  # type: ignore[arg-type,return-value]
    return seen


@pytest.mark.parametrize(
    ("taken", "seen"),
    [
        ("", ["x starts", "y starts"]),
        ("x", ["x waits", "x starts", "y starts"]),
        ("y", ["x starts", "y waits", "y starts"]),
        ("xy", ["x waits", "x starts", "y waits", "y starts"]),
    ],
)
def test_a_standby_waits_for_the_jobs_that_others_run(
    monkeypatch: pytest.MonkeyPatch, taken: str, seen: list[str]
) -> None:
    assert _standing_by(monkeypatch, *taken) == seen


def test_without_the_wish_to_stand_by_a_job_that_another_process_runs_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SystemExit, match="it is taken"):
        _standing_by(monkeypatch, "x", arguments=())


class _Rehearsal:
    """The query of a rehearsal: what it ends with, if anything, in its third step."""

    def __init__(self, end: Exception | object) -> None:
        self.end, self.steps, self.stops = end, 0, 0
        self.lastProgress: object = None

    def awaitTermination(self, _seconds: float) -> bool:  # noqa: N802 - Spark's name
        self.steps += 1
        if self.steps == 3 and isinstance(self.end, Exception):
            raise self.end
        self.lastProgress = self.end if self.steps == 3 else None
        return False

    def stop(self) -> None:
        self.stops += 1


def _stand_by(
    monkeypatch: pytest.MonkeyPatch, watch: Iterator[bool], ends: Sequence[Exception | object] = (), stop_at: int = 99
) -> tuple[bool, list[_Rehearsal], list[str]]:
    """Let a job stand by, whose rehearsals end like this; return the result, the queries and their directories."""
    queries, places, looks = list[_Rehearsal](), list[str](), count()

    class Rehearsing(Job):
        def start(self, spark: Any, settings: Settings, **_: Any) -> Any:
            spark.conf.set.assert_called_once_with(REHEARSAL, "x")
            assert settings.correlate.starting == "earliest"
            places.append(settings.lake.checkpoints.removeprefix("file:"))
            assert Path(places[-1]).is_dir()
            queries.append(_Rehearsal(ends[len(queries)]))
            return queries[-1]

    monkeypatch.setattr(spark_job, "LeaseLog", mock.Mock())
    monkeypatch.setattr(spark_job, "watching", lambda *_: watch)
    monkeypatch.setattr(spark_job, "REHEARSAL_SECONDS", 0)
    monkeypatch.setattr(spark_job, "STANDBY_SECONDS", 0)
    spark = mock.Mock()
    spark.sparkContext.master = "local[2]"
    rehearsal = {"correlate.starting": "earliest"} if ends else None
    job = Rehearsing(name="x", build=lambda *_: None, trigger="", rehearsal=rehearsal)  # type: ignore[arg-type,return-value]
    try:
        return job.stand_by(spark, Settings(), lambda: next(looks) >= stop_at), queries, places
    finally:
        assert not [place for place in places if Path(place).exists()]
        assert [query.stops for query in queries] == [1] * len(queries)


def test_a_standby_takes_over_in_the_middle_of_a_rehearsal_and_leaves_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken_over, queries, _ = _stand_by(monkeypatch, iter([False, False, True]), ends=["progress"])
    assert taken_over
    assert queries[0].steps == 2


def test_a_standby_ends_in_the_middle_of_a_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_over, queries, _ = _stand_by(monkeypatch, iter([False] * 9), ends=["progress"], stop_at=2)
    assert not taken_over
    assert queries[0].steps == 2


def test_a_rehearsal_that_fails_is_a_warning_with_its_cause_and_the_next_one_follows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failure = StreamingQueryException("x terminated with exception: No space left on device\n\tat java.io")
    taken_over, queries, _ = _stand_by(monkeypatch, iter([False] * 6 + [True]), ends=[failure, "progress", "unread"])
    assert taken_over
    assert [query.steps for query in queries] == [3, 3, 1]
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warning == "A rehearsal of x failed, so a take-over may take longer: No space left on device"


def test_a_standby_whose_broker_is_away_ends_also_in_the_middle_of_a_rehearsal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def watch() -> Iterator[bool]:
        yield False
        raise KafkaConnectionError

    with pytest.raises(KafkaConnectionError):
        _stand_by(monkeypatch, watch(), ends=["progress"])
    assert "rehearsal" not in caplog.text


def test_a_job_without_a_rehearsal_only_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _stand_by(monkeypatch, iter([False] * 3 + [True])) == (True, [], [])


def test_after_a_signal_no_job_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    stop.set()
    assert _main(monkeypatch, lambda _: False, stop) == []


def test_a_query_that_fails_because_everything_is_stopped_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _main(monkeypatch, _fail(StreamingQueryException("Python worker exited unexpectedly"), stopped=True))


@pytest.mark.parametrize("error", [Py4JNetworkError("Answer from Java side is empty"), ConnectionResetError()])
def test_a_jvm_that_ends_is_reported_in_a_sentence(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    with pytest.raises(SystemExit, match=r"^Spark's JVM has ended, and the job with it\.$"):
        _main(monkeypatch, _fail(error))


def test_a_broker_that_goes_away_while_a_job_starts_is_reported_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=r"^No Kafka answers at localhost:9092: "):
        _main(monkeypatch, _fail(KafkaConnectionError("socket disconnected")))


def test_a_log_of_json_has_the_reason_why_a_job_ends_and_all_its_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = Settings(log=Log(format="json"))
    with pytest.raises(SystemExit) as ended:
        _main(monkeypatch, _fail(KafkaConnectionError("socket disconnected")), settings=own)
    last = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (ended.value.code, last["level"], last["program"]) == (1, "error", "x+y")
    assert last["message"].startswith("No Kafka answers at localhost:9092: ")


def test_records_that_were_deleted_unread_end_a_job_with_a_sentence_that_names_the_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(
        SystemExit, match=r"^Kafka deleted records before the job read them.* kafka\.on_data_loss = continue"
    ):
        _main(monkeypatch, _fail(StreamingQueryException("Some data may have been lost ... failOnDataLoss to false")))


_FAILED = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
_PLAN = "\n=== Streaming Query ===\nIdentifier: x [id = 1, runId = 2]\nLogical Plan:\n+- ~Relation[key#850]\n"
_STACK = """Traceback (most recent call last):
  File "inner.py", line 7, in inner
ValueError: inner

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "outer.py", line 8, in outer
    ^^^^^^^
KeyError: 'the store is away'
"""


_PY4J = "py4j.protocol.Py4JJavaError: An error occurred while calling o12.executeCompaction.\n: "
_JAVA = """org.apache.spark.SparkException: Job aborted due to stage failure.
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:1)
Caused by: java.lang.UnsatisfiedLinkError: /tmp/libsnappyjava.so: failed to map segment from shared object
\tat java.base/jdk.internal.loader.NativeLibraries.load(Native Method)
\t... 1 more"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (f"{_FAILED}java.io.IOException: No space left SQLSTATE: XXKST{_PLAN}", "java.io.IOException: No space left"),
        (f"{_FAILED}[USER_FUNCTION] Reason: {_STACK} SQLSTATE: 39000{_PLAN}", "KeyError: 'the store is away'"),
        (
            f"{_FAILED}[FOREACH] Traceback (most recent call last):\n  x\n{_PY4J}{_JAVA}\n{_PLAN}",
            "java.lang.UnsatisfiedLinkError: /tmp/libsnappyjava.so: failed to map segment from shared object",
        ),
        ("anything else.", "anything else"),
    ],
)
def test_a_query_that_fails_ends_its_job_with_the_cause_as_the_last_line_and_the_stack_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, cause: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        _main(monkeypatch, _fail(StreamingQueryException(text)))
    assert str(ended.value) == f"The query x has failed: {cause}. A restart continues from the checkpoint."
    logged = capsys.readouterr().err
    assert "error x+y ackstream.spark.job: The query x has failed." in logged
    assert text.splitlines()[-1] in logged
