"""Asks about an order by record headers, or confirms orders, with kafka-python alone.

``orders.py BOOTSTRAP PREFIX ask TOPIC KEY VALUE LABEL…`` prints the status, what completed the request, and the reply.
``orders.py BOOTSTRAP PREFIX confirm TOPIC GROUP LABEL COUNT`` prints each order that it confirms, and ends after COUNT.
"""

from __future__ import annotations

import json
import re
import sys
import time
import uuid
from itertools import chain

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

TIMEOUT, PATIENCE = 30, 60
"""Seconds that ackstream waits for confirmations, and that this program waits for the reply, which comes later."""
SECONDS = {"ms": 0.001, "s": 1, "": 1, "m": 60, "h": 3600}


def ask(bootstrap: str, prefix: str, topic: str, key: str, value: str, *labels: str) -> None:
    """Send an order, and print its reply: all labels are acknowledged, or the timeout has passed."""
    options = {"isolation_level": "read_committed", "enable_auto_commit": False}
    with (
        KafkaConsumer(bootstrap_servers=bootstrap, **options) as replies,
        KafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer,
    ):
        name = f"{prefix}replies"
        replies.assign([TopicPartition(name, number) for number in replies.partitions_for_topic(name)])
        replies.seek_to_end()
        for partition in replies.assignment():
            # seeks at once: a reply that arrives before would be missed
            replies.position(partition)
        correlation_id = str(uuid.uuid4()).encode()
        # with it the reply can be found later
        print("correlation-id", correlation_id.decode(), file=sys.stderr)  # noqa: T201
        headers = [
            ("correlation-id", correlation_id),
            ("requested-acks", ",".join(labels).encode()),
            ("timeout", f"{TIMEOUT}s".encode()),
        ]
        producer.send(topic, key=key.encode(), value=value.encode(), headers=headers).get(timeout=PATIENCE)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for reply in chain.from_iterable(replies.poll(timeout_ms=100).values()):
                found = dict(reply.headers)
                if found["correlation-id"] == correlation_id:
                    print(found["status"].decode(), found["completed-by"].decode(), reply.value.decode())  # noqa: T201
                    return
    sys.exit("No reply arrived: check that correlate runs, and that correlate.request_topics names the topic.")


def is_over(timestamp: int, timeout: str) -> bool:
    """Return whether the timeout of an order is over: its confirmation would be late."""
    duration = re.fullmatch(r"([0-9]+)(ms|s|m|h|)", timeout)
    return duration is not None and timestamp / 1000 + int(duration[1]) * SECONDS[duration[2]] < time.time()


def confirm(bootstrap: str, prefix: str, topic: str, group: str, label: str, count: str) -> None:
    """Acknowledge the orders that request a label; processes of a group share them."""
    options = {"isolation_level": "read_committed", "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    left = int(count)
    with (
        KafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=prefix + group, **options) as orders,
        KafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer,
    ):
        while left:
            order = next(orders)
            found = dict(order.headers)
            # without a header it is correlate.default_timeout, by default 60 s
            over = is_over(order.timestamp, found.get("timeout", b"60s").decode())
            # a JSON array, or separated by commas
            if not over and label in re.findall(r"[\w:-]+", found.get("requested-acks", b"").decode()):
                # without an id of its own a request has its coordinates
                coordinates = f"{order.topic}-{order.partition}-{order.offset}".encode()
                correlation_id = found.get("correlation-id", coordinates)
                headers = [
                    ("correlation-id", correlation_id),
                    ("label", label.encode()),
                    ("content-type", b"application/json"),
                ]
                payload = json.dumps({"confirmed": order.value.decode()}).encode()
                producer.send(f"{prefix}acks", key=correlation_id, value=payload, headers=headers).get(timeout=PATIENCE)
                print("confirmed", correlation_id.decode(), order.value.decode())  # noqa: T201
                left -= 1
            # first the answer, then the progress: after a crash an order may be confirmed again, and none is left out
            orders.commit()


if __name__ == "__main__":
    servers, its_prefix, action, *rest = sys.argv[1:]
    {"ask": ask, "confirm": confirm}[action](servers, its_prefix, *rest)
