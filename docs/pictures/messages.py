"""Scenarios of publishers, readers, queues and queries."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from operator import itemgetter
from typing import Any

from ackstream.client import (
    Publisher,
    QueryClient,
    QueueConsumer,
    ReaderTimeout,
    RefusedError,
    SampleReader,
    WriterQos,
)
from docs.pictures.drawing import Picture
from docs.pictures.running import Run
from tests.harness.lake import rows


def share_work(run: Run) -> Picture:
    """Let two workers share three messages; one fails once, one is rejected."""

    def work(message: Any) -> None:
        order = json.loads(message.value)["order"]
        time.sleep(0.6)
        outcomes = {(7, 1): "failed", (9, 1): "rejected"}
        message.settle(outcomes.get((order, message.count), "accepted"))

    # the first delivery takes seconds
    with (
        QueueConsumer(run.bootstrap, name="warm-up", queue="orders") as consumer,
        Publisher(run.bootstrap, name="warm-up") as publisher,
    ):
        publisher.publish(b"1", topic="orders/warm-up")
        consumer.receive(timeout=60).settle()
        run.table("queue_events", 1, event="left")
    options = {"queue": "orders", "handler": work, "backlog": 1, "outcomes": ("failed", "rejected")}
    with (
        QueueConsumer(run.bootstrap, name="packer-1", **options),
        QueueConsumer(run.bootstrap, name="packer-2", **options),
        Publisher(run.bootstrap, name="counter-1") as publisher,
    ):
        for order in (7, 8, 9):
            publisher.publish(b'{"order": %d}' % order, topic="orders/new")
        run.table("queue_events", 4, event="left")
    published = sorted(run.table("messages", 3, client="counter-1"), key=itemgetter("seq"))
    lanes = {f"{row['topic']}-{row['partition']}-{row['offset']}": f"order {row['seq'] + 6}" for row in published}
    for row, lane in zip(published, lanes.values(), strict=True):
        run.bar(lane, "published", row["received_at"], None, "plain")
    held: dict[str, tuple[str, Any]] = {}
    for row in sorted(rows(run.settings.lake, "queue_events"), key=itemgetter("at")):
        lane = lanes.get(row["message"], "")
        if lane and row["event"] == "delivered":
            held[lane] = f"{row['consumer']}, delivery {row['count']}", row["at"]
        elif lane in held:
            text, begin = held.pop(lane)
            ended = "failed" if row["event"] == "returned" else row["outcome"]
            run.bar(lane, f"{text}: {ended}", begin, row["at"], "good" if ended == "settled" else "bad")
    about = "Two workers share three orders. One fails at its first delivery, and is delivered again; one is rejected."
    return run.picture("timeline", "Three messages of a queue, two workers", about, *lanes.values())


def who_has_finished(run: Run) -> Picture:
    """Wait for a reader, and for a role that no reader has yet."""
    qos = WriterQos(required={"Auditor": 1})

    def handle(_: Any) -> None:
        time.sleep(0.5)

    with (
        SampleReader(run.bootstrap, name="bookkeeping", handler=handle, writers=["shop-2"]),
        Publisher(run.bootstrap, name="shop-2", writer_qos=qos) as publisher,
    ):
        begin = time.time()
        for number in range(3):
            publisher.publish(b'{"price": %d}' % number, topic="orders")
        with suppress(ReaderTimeout):
            publisher.wait_for_acknowledgments(max_wait=5)
        again = time.time()
        with SampleReader(run.bootstrap, name="auditor-1", handler=handle, role="Auditor", writers=["shop-2"]):
            publisher.wait_for_acknowledgments(max_wait=60)
            end = time.time()
    run.bar("shop-2 waits", "ReaderTimeout: role Auditor is missing", begin, again, "bad")
    run.bar("shop-2 waits", "all have finished", again, end, "good")
    stored = sorted(run.table("messages", 3, client="shop-2"), key=itemgetter("seq"))
    run.bar("published", f"{stored[0]['seq']} to {stored[-1]['seq']}", stored[-1]["received_at"], None, "plain")
    for reader in ("bookkeeping", "auditor-1"):
        for row in sorted(run.table("deliveries", 1, writer="shop-2", reader=reader), key=itemgetter("first")):
            text = str(row["first"]) if row["first"] == row["last"] else f"{row['first']} to {row['last']}"
            run.bar(reader, text, row["acknowledged_at"], None, "good")
    about = "A publisher waits for the readers of three messages: in vain until a reader with the role Auditor starts."
    return run.picture(
        "timeline", "Readers that finish over time", about, "published", "bookkeeping", "auditor-1", "shop-2 waits"
    )


def publish_safely(run: Run) -> Picture:
    """Publish messages of each stage, and one that is refused."""

    def read(sample: Any) -> None:
        run.note("messages", "reader", f"seq {sample.seq}")

    with (
        SampleReader(run.bootstrap, name="billing", handler=read, writers=["orders-1"]),
        Publisher(run.bootstrap, name="quick-1", stage="accepted") as quick,
        Publisher(run.bootstrap, name="orders-1", writer_qos=WriterQos()) as publisher,
    ):
        run.note("publisher", "Kafka", 'stage="accepted"')
        receipt = quick.publish(b'{"price": 7}', topic="orders").result(60)
        run.note("Kafka", "publisher", f"receipt: {receipt.stage}", "good")
        run.note("publisher", "Kafka", 'stage="persisted"')
        receipt = publisher.publish(b'{"price": 7}', topic="orders").result(60)
        run.note("messages", "publisher", f"receipt: {receipt.stage}", "good")
        publisher.wait_for_acknowledgments(max_wait=60)
        run.note("reader", "publisher", "finished: every reader has acknowledged", "good")
        run.note("publisher", "Kafka", 'topic "secret"')
        try:
            publisher.publish(b"{}", topic="secret").result(60)
        except RefusedError as refusal:
            run.note("messages", "publisher", f"refused: {refusal.reason}", "bad")
    about = "A message is accepted by Kafka, persisted in the table messages, finished by its reader; one is refused."
    return run.picture("sequence", "How safe is a message?", about, "publisher", "Kafka", "messages", "reader")


def query_messages(run: Run) -> Picture:
    """Query the current records of a topic and follow it."""
    with (
        Publisher(run.bootstrap, name="prices-1") as publisher,
        QueryClient(run.bootstrap, name="analyst-1") as client,
    ):

        def publish(price: int) -> None:
            run.note("shop", "messages", f'key {price}: {{"price": {price}}}')
            value = b'{"price": %d}' % price
            publisher.publish(value, topic="orders-eu", key=str(price).encode()).result(60)

        # compiles the plans of both: the first query takes seconds
        warm = client.sow_and_subscribe("orders-warm", "/price > 0")
        publisher.publish(b'{"price": 1}', topic="orders-warm", key=b"1")
        warm.receive(timeout=60)
        client.unsubscribe(warm)
        for price in (8, 12, 15):
            publish(price)
        run.note("analyst", "messages", 'sow_and_subscribe("/price > 10")')
        stream = client.sow_and_subscribe("orders-eu", "/price > 10")
        for count in (1, 2):
            message = stream.receive(timeout=60)
            run.note("messages", "analyst", f"{message.value.decode()}", "good")
            if count == 2:  # noqa: PLR2004 - all that are there
                publish(9)
                publish(20)
        message = stream.receive(timeout=60)
        run.note("messages", "analyst", f"new: {message.value.decode()}", "good")
    about = "An analyst gets the current records with a price above 10, and then each new one, without a gap."
    return run.picture("sequence", "Current records, then new ones", about, "shop", "messages", "analyst")
