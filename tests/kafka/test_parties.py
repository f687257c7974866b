"""The table of parties is what the programs do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ackstream.gateway.exchange import TOPICS as OF_GATEWAY
from ackstream.jobs.archive.job import JOB as ARCHIVE
from ackstream.jobs.correlate.job import JOB as CORRELATE
from ackstream.jobs.persist.job import JOB as PERSIST
from ackstream.jobs.query.job import JOB as QUERY
from ackstream.jobs.queues.job import JOB as QUEUES
from ackstream.jobs.settle.job import JOB as SETTLE
from ackstream.jobs.twin.job import JOB as TWIN
from ackstream.kafka.parties import PARTIES
from ackstream.kafka.topics import TOPICS
from ackstream.settings import Kafka
from ackstream.settings.kafka import job_group

if TYPE_CHECKING:
    from ackstream.spark.job import Job

JOBS = (ARCHIVE, CORRELATE, PERSIST, QUERY, QUEUES, SETTLE, TWIN)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_job_does_what_its_party_may(job: Job) -> None:
    party = PARTIES[job.name]
    assert set(job.reads) <= set(party.reads)
    # its clock and its lease are its own
    own = {job.ticks, job.lease} - {None}
    assert own <= set(party.reads) & set(party.writes)
    assert party.job


def test_a_clock_and_a_lease_have_one_writer() -> None:
    for topic in TOPICS:
        if topic.endswith(("clock", "lease")):
            assert [name for name, party in PARTIES.items() if topic in party.writes] == [
                {"clock": "correlate", "queue-clock": "queues"}.get(topic, topic.partition("-")[0])
            ]


@pytest.mark.parametrize(
    ("topic", "writers"),
    [
        ("replies", {"correlate"}),
        ("ledger", {"correlate"}),
        ("audit", {"gateway"}),
        ("twin-acks", {"twin"}),
        ("stored", {"persist"}),
        ("destinations", {"mirror"}),
        ("query-results", {"query"}),
        ("queue-deliveries", {"queues"}),
        ("publisher-acks", {"persist", "settle"}),
    ],
)
def test_what_one_job_decides_nobody_else_can_write(topic: str, writers: set[str]) -> None:
    assert {name for name, party in PARTIES.items() if topic in party.writes} == writers


def test_no_job_depends_on_what_the_gateway_writes_beside_the_twin() -> None:
    assert {name for name, party in PARTIES.items() if "events" in party.writes} == {"twin", "gateway"}
    assert {name for name, party in PARTIES.items() if "events" in party.reads} == {"gateway", "connect", "subscriber"}


def test_no_connection_may_commit_offsets_of_a_job() -> None:
    groups = {job_group(job.name) for job in (ARCHIVE, CORRELATE, PERSIST, QUERY, QUEUES, SETTLE, TWIN)}
    assert not [group for group in groups if group.startswith(PARTIES["connect"].groups)]


def test_the_table_names_topics_that_exist_and_leaves_none_out() -> None:
    named = {topic for party in PARTIES.values() for topic in (*party.topics, *party.looks_up)}
    assert named == set(TOPICS)
    gateway = PARTIES["gateway"]
    assert set(OF_GATEWAY) <= set(gateway.topics) | set(gateway.looks_up)


def test_the_page_has_the_table() -> None:
    def names(topics: tuple[str, ...]) -> str:
        return ", ".join(f"`{topic}`" for topic in topics) or "-"

    page = (Path(__file__).parents[2] / "docs/operate/security.md").read_text("utf-8")
    wanted = [
        f"| {name}: {party.about} | {names(party.reads)} | {names(party.writes)} |" for name, party in PARTIES.items()
    ]
    assert "| party | reads | writes |\n| --- | --- | --- |\n" + "\n".join(wanted) + "\n\n" in page


def test_each_job_that_reads_may_commit_to_its_group_and_the_gateway_may_look_at_it() -> None:
    kafka = Kafka(topic_prefix="plant-")
    own = {job.name: kafka.group_of(job.name) for job in JOBS}
    assert own["correlate"] == "plant-ackstream-correlate"
    assert {name: kafka.group(PARTIES[name].groups[0]) for name in own} == own
    assert {kafka.group(name) for name in PARTIES["gateway"].watches} == set(own.values())
