"""The twin on the real broker, real Spark and real tables, alone and behind correlate, failed and killed."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaAdminClient
from pyspark.errors import StreamingQueryException

from ackstream.errors import StartError
from ackstream.jobs.twin import job as twin_job
from ackstream.kafka.topics import ensure_topics
from ackstream.settings import Kafka, Quota, Settings, Twin
from tests.harness import lake
from tests.harness.processes import Job
from tests.harness.system import System
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


pytestmark = pytest.mark.integration


@pytest.fixture
def system(kafka: Kafka, tmp_path: Path) -> Iterator[System]:
    with closing(twin_system(kafka, tmp_path)) as system:
        yield system


def twin_system(kafka: Kafka, path: Path, **correlate: Any) -> System:
    system = System(kafka, path, **correlate)
    system.settings = system.settings.model_copy(update={"twin": Twin(index_trigger="1s")})
    ensure_topics(system.settings, twin_job.JOB.topics)
    return system


def command(action: str, key: str, path: str = "/", value: Any = None, name: str = "lamp", **headers: Any) -> Any:
    named = {header.replace("_", "-"): text for header, text in headers.items()} | {"correlation-id": key}
    body = {"topic": f"org.acme/{name}/things/twin/commands/{action}", "headers": named, "path": path}
    return body if value is None else body | {"value": value}


def rows(settings: Settings, table: str) -> list[dict[str, Any]]:
    return lake.rows(settings.lake, table)


def bodies(system: System, topic: str) -> list[Any]:
    return [json.loads(record.value) for record in system.records(topic)]


def test_commands_are_answered_through_correlate_and_tables_and_events_follow(
    spark: SparkSession, system: System
) -> None:
    sent = [
        command("create", "made", value={"attributes": {"city": "Berlin"}}, requested_acks=["search-persisted"]),
        command("create", "twice", value={}),
        command("modify", "changed", "/attributes/city", "Bonn", requested_acks=["twin-persisted", "search-persisted"]),
        command("merge", "merged", "/features/a~1b", {"properties": {"on": True, "old": None}}),
        command("modify", "stale", "/attributes/city", "Ulm", if_match='"rev:1"'),
        command("modify", "same", "/attributes/city", "Bonn", requested_acks=["search-persisted"]),
        command("retrieve", "asked", "/features/a~1b/properties/on"),
        {**command("retrieve", "found", "/search/things", {"filter": 'eq(attributes/city,"Bonn")'}),
         "topic": "_/_/things/twin/commands/retrieve"},
    ]  # fmt: skip
    with system.correlate(spark) as correlate, system.twin(spark) as (twin, index):
        for body in [b"garbage", {"topic": "org.acme/lamp/things/live/messages/x", "path": "/"}, *sent]:
            system.send("signals", body)
        system.send("signals", command("retrieve", "json"), {"correlation-id": b"\xff"})

        def answered() -> dict[str, Any] | None:
            assert index.isActive, index.exception()
            assert twin.isActive, twin.exception()
            found = system.replies()
            return found if all(body["headers"]["correlation-id"] in found for body in sent) else None

        replies = eventually(answered, "all replies", correlate)
    statuses = {key: reply["status"] for key, reply in replies.items()}
    expected = {"made": 204, "twice": 409, "changed": 200, "merged": 204, "stale": 412, "same": 200, "asked": 200}
    assert expected.items() <= statuses.items()
    assert {label: entry["status"] for label, entry in replies["changed"]["value"].items()} == {
        "twin-persisted": 204,
        "search-persisted": 204,
    }
    assert replies["same"]["headers"]["ditto-weak-ack"] is True
    assert replies["stale"]["value"]["error"] == "things:precondition.failed"
    assert replies["asked"]["value"] is True
    assert [thing["thingId"] for thing in replies["found"]["value"]["items"]] == ["org.acme:lamp"]
    events = bodies(system, "events")
    assert [(event["revision"], event["topic"].rpartition("/")[2], event["path"]) for event in events] == [
        (1, "created", "/"), (2, "modified", "/attributes/city"), (3, "merged", "/features/a~1b"),
        (4, "modified", "/attributes/city"),
    ]  # fmt: skip
    assert all("requested-acks" not in event["headers"] for event in events)
    (thing,) = rows(system.settings, "things")
    assert (thing["revision"], thing["deleted"]) == (4, False)
    assert json.loads(thing["thing"])["attributes"] == {"city": "Bonn"}
    index_rows = {(row["path"], row["text"], row["flag"]) for row in rows(system.settings, "things_search")}
    assert {("attributes/city", "Bonn", None), ("features/a~1b/properties/on", None, True)} < index_rows
    assert len(index_rows) == 4


def test_a_quota_counts_the_things_of_before_a_restart(spark: SparkSession, system: System) -> None:
    quota = Quota(name="acme", namespaces=("org.acme",), max_things=2)
    system.settings = system.settings.model_copy(update={"quotas": (quota,)})

    def statuses(*sent: Any) -> list[int]:
        with system.twin(spark) as (twin, _index):
            for body in sent:
                system.send("signals", body)
            last = sent[-1]["headers"]["correlation-id"]
            keys = {body["headers"]["correlation-id"]: body for body in sent}

            def answers() -> dict[str, int] | None:
                found = [message for message in bodies(system, "twin-acks") if "status" in message]
                seen = {message["headers"]["correlation-id"]: message["status"] for message in found}
                return seen if last in seen else None

            seen = eventually(answers, "the answers", twin)
        return [seen[key] for key in keys]

    names = ("one", "two", "three")
    assert statuses(*[command("create", f"made-{name}", value={}, name=name) for name in names]) == [201, 201, 403]
    again = command("create", "again", value={}, name="three")
    gone = command("delete", "gone", name="one")
    room = command("create", "room", value={}, name="three")
    assert statuses(again, gone, room) == [403, 204, 201]


def test_a_batch_that_died_after_its_commit_says_the_same_again_and_changes_nothing(
    spark: SparkSession, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    system.send("signals", command("create", "first", value={"attributes": {"n": 0}}))
    real, said = twin_job.send, []

    def recording(*arguments: Any) -> None:
        # the index sends through here too, but has nothing to send
        if arguments[-1]:
            said.append(arguments[-1])
        real(*arguments)

    def dying(*arguments: Any) -> None:
        recording(*arguments)
        if arguments[-1]:
            raise OSError("killed before Spark's own commit")

    monkeypatch.setattr(twin_job, "send", recording)
    with system.twin(spark) as (twin, index):
        eventually(lambda: rows(system.settings, "things"), "the thing", twin)
        said.clear()
        monkeypatch.setattr(twin_job, "send", dying)
        for number in range(5):
            system.post("signals", command("modify", f"change-{number}", "/attributes/n", number))
            system.post("signals", command("create", f"refused-{number}", value={}))
        system.producer.flush()
        with pytest.raises(StreamingQueryException, match="killed before"):
            twin.awaitTermination(PATIENCE_SECONDS)
        # the index may be ahead of the twin
        eventually(lambda: rows(system.settings, "things")[0]["revision"] > 1, "the index", index)
    first = said.pop()
    monkeypatch.setattr(twin_job, "send", recording)
    with system.twin(spark) as (twin, _):
        eventually(lambda: len({row["revision"] for row in rows(system.settings, "thing_events")}) == 6, "all", twin)
        eventually(lambda: sum(map(len, said)) >= 15, "all answers", twin)
    assert first == said[0]
    assert sorted(row["revision"] for row in rows(system.settings, "thing_events")) == [1, 2, 3, 4, 5, 6]


def test_a_merge_that_fails_is_told_with_500_and_tried_again_after_a_restart(
    spark: SparkSession, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_spark: Any, _lake: Any, events: Any) -> None:
        # the first batch may have no rows yet
        if not events.isEmpty():
            raise OSError("the store is away")

    def told() -> list[int]:
        return [body["status"] for body in bodies(system, "twin-acks") if body["topic"].endswith("/acks")]

    system.send("signals", command("create", "made", value={}, requested_acks=["search-persisted"]))
    with monkeypatch.context() as patch:
        patch.setattr(twin_job.things, "merge_values", failing)
        with (
            system.twin(spark) as (_, index),
            pytest.raises(StreamingQueryException, match="the store is away"),
        ):
            index.awaitTermination(PATIENCE_SECONDS)
        assert told() == [500]
    with system.twin(spark) as (twin, _):
        eventually(lambda: told() == [500, 204], "the second try", twin)
    assert len(rows(system.settings, "things_search")) == 2


def test_a_new_checkpoint_skips_nothing_of_a_topic_that_was_created_anew(spark: SparkSession, system: System) -> None:
    for number in range(20):
        system.post("signals", command("create", f"before-{number}", value={}, name=f"before-{number}"))
    system.producer.flush()
    with twin_job.JOB.running(spark, system.settings) as twin:
        eventually(lambda: len(rows(system.settings, "thing_events")) == 20, "the things", twin)
    with closing(KafkaAdminClient(bootstrap_servers=system.settings.kafka.bootstrap)) as admin:
        admin.delete_topics([system.settings.kafka.topic("signals")])
        eventually(lambda: system.settings.kafka.topic("signals") not in admin.list_topics(), "the end of the topic")
    ensure_topics(system.settings, ["signals"])
    for number in range(30):
        system.post("signals", command("create", f"after-{number}", value={}, name=f"after-{number}"))
    system.producer.flush()
    with pytest.raises(StartError, match=r"it was re-created, or .*, or start with a new checkpoint"):
        twin_job.JOB.start(spark, system.settings)
    shutil.rmtree(system.settings.lake.checkpoint("twin"))
    with pytest.raises(StartError, match=r"The journal .* set twin.starting to earliest or latest"):
        twin_job.JOB.start(spark, system.settings)
    begins = system.settings.model_copy(update={"twin": Twin(starting="earliest")})
    with twin_job.JOB.running(spark, begins) as twin:
        eventually(lambda: len(rows(system.settings, "thing_events")) == 50, "the things of the new topic", twin)
    # from then on it counts the offsets of the new one
    with twin_job.JOB.running(spark, system.settings):
        pass


COMMANDS, THINGS = 3_000, 50
KILLS = ("thing_events", "events", "thing_events")
"""What has just been written when the job is killed: the journal, before it is told; the events, before Spark knows."""


@pytest.mark.long
def test_kill_9_skips_and_doubles_no_revision_and_acknowledges_nothing_that_is_not_stored(
    kafka: Kafka, tmp_path: Path
) -> None:
    portion = COMMANDS // (len(KILLS) + 1)
    with closing(twin_system(kafka, tmp_path)) as system:

        def written(what: str) -> int:
            return system.end(what) if what == "events" else len(rows(system.settings, what))

        def answered() -> set[str]:
            return {body["headers"]["correlation-id"] for body in bodies(system, "twin-acks")}

        job = Job("twin", system.settings, tmp_path)
        try:
            for start, what in zip(range(0, COMMANDS, portion), (*KILLS, None), strict=True):
                before = 0 if what is None else written(what)
                for number in range(start, start + portion):
                    post(
                        system, command("merge", f"c-{number}", value={"attributes": {"n": number}}, name=thing(number))
                    )
                system.producer.flush()
                if what is not None:
                    eventually(lambda: job.check() or written(what) > before, "the twin to work")  # noqa: B023
                    job.kill()
                    job.start()
            eventually(lambda: job.check() or len(answered()) >= COMMANDS, "all answers")
        finally:
            job.kill()
        journal = rows(system.settings, "thing_events")
        events = [(e["topic"].split("/")[1], e["revision"], json.dumps(e)) for e in bodies(system, "events")]
        acks = {(a["headers"]["correlation-id"], json.dumps(a)) for a in bodies(system, "twin-acks")}
    revisions = {(thing(number), revision + 1) for number in range(THINGS) for revision in range(COMMANDS // THINGS)}
    assert Counter((row["thing_id"].partition(":")[2], row["revision"]) for row in journal) == Counter(revisions)
    # told at least once, and always the same
    assert {event[:2] for event in events} == revisions
    assert len(set(events)) == len(revisions)
    assert len(acks) == len({key for key, _ in acks}) == COMMANDS
    # nothing was acknowledged that is not stored
    assert {key for key, _ in acks} == {row["correlation_id"] for row in journal}


def thing(number: int) -> str:
    return f"lamp-{number % THINGS}"


def post(system: System, body: Any) -> None:
    """Send a command keyed by its thing, without waiting for the broker."""
    name = body["topic"].split("/")[1]
    system.producer.send(system.settings.kafka.topic("signals"), key=name.encode(), value=json.dumps(body).encode())
