"""Examples of requesters and receivers, as they stand in the pages."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaAdminClient

from ackstream.kafka.topics import ensure_topics
from ackstream.settings import Kafka, Settings
from tests.harness import pages
from tests.harness.counterpart import Counterpart
from tests.harness.system import System
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

TOPICS = ("signals", "acks", "replies", "events", "declarations")
FOUND = [
    pytest.param(example, id=f"{page}-{number}")
    for page in ("README.md", "docs/guides/subscribers.md", "docs/guides/send-a-command.md", "docs/guides/orders.md")
    for number, example in enumerate(pages.examples(page))
    if any(f"{client}(" in example for client in ("Requester", "Responder", "Subscriber", "KafkaProducer"))
]
ORDERS = [found for found in FOUND if re.search(r'_record\("orders"|\["orders"]|send\("orders"', found.values[0])]
"""Those of records of any kind."""
EXAMPLES = [found for found in FOUND if found not in ORDERS]


def test_the_pages_have_an_example_of_each() -> None:
    assert (len(EXAMPLES), len(ORDERS)) == (4, 4)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example: str) -> None:
    ensure_topics(Settings(kafka=kafka), TOPICS)
    with Counterpart(kafka):
        pages.run(example, Settings(kafka=kafka), tmp_path, monkeypatch)


@pytest.fixture
def orders(kafka: Kafka) -> Iterator[str]:
    """Create the topic that the pages name, without a prefix, for the time of a test."""
    name = "orders"
    with KafkaAdminClient(bootstrap_servers=kafka.bootstrap) as admin:
        admin.create_topics({name: {"num_partitions": 2, "replication_factor": 1}})
        admin.wait_for_topics([name])
        yield name
        admin.delete_topics([name])


def test_the_examples_of_records_of_any_kind_run(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, orders: str
) -> None:
    with (
        closing(System(kafka, tmp_path, clock=True, request_topics=(orders,))) as system,
        system.correlate(spark) as query,
    ):
        for found in ORDERS:
            # the plain clients of Kafka, which have no settings
            example = found.values[0].replace(f'servers="{pages.BROKERS}"', f'servers="{kafka.bootstrap}"')
            example = example.replace('"acks"', f'"{kafka.topic("acks")}"')
            # nobody presses Ctrl-C
            pages.run(example.replace("wait_closed()", "wait_closed(0)"), system.settings, tmp_path, monkeypatch)
        # as the console producer of Kafka does it
        system.send("acks", b"parcel 7", {"correlation-id": b"order-17", "label": b"warehouse:packed"})
        reply = eventually(lambda: system.replies().get("order-17"), "the reply to order-17", query)
        statuses = sorted(found["status"] for found in system.replies().values())
    (shown,) = re.findall(r"```json\n(.*?)```", (pages.ROOT / "docs/guides/orders.md").read_text("utf-8"), re.DOTALL)
    assert reply["record"]["completed-by"] == b"acknowledgements"
    assert {name: part for name, part in reply.items() if name != "record"} == json.loads(shown)
    # nobody confirms that of README
    assert statuses == [200, 200, 424]
