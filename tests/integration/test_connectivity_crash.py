"""Kill -9 of ``ackstream connect`` in the middle of 2,000 messages, on every transport: none is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ackstream.kafka.topics import ensure_topics
from ackstream.settings import Kafka, Settings
from tests.harness.connections import TOPICS, connected, ids, plain
from tests.harness.counterpart import Counterpart
from tests.harness.processes import Program
from tests.harness.remotes import REMOTES, Remote
from tests.harness.waiting import eventually

pytestmark = pytest.mark.integration

NUMBER = 2_000


@pytest.fixture(params=REMOTES, ids=lambda remote: remote.__name__)
def remote(request: pytest.FixtureRequest, kafka: Kafka, tmp_path: Path) -> Iterator[Remote]:
    with request.param.broker(tmp_path) as running:
        found = request.param(running, kafka.topic_prefix.rstrip("-"))
        yield found
        found.close()


def command(identity: str) -> dict[str, Any]:
    headers = {"correlation-id": identity, "requested-acks": ["my-ack"]}
    topic = "org.acme/lamp/things/twin/commands/modify"
    return {"topic": topic, "headers": headers, "path": "/attributes/x", "value": 1}


@pytest.mark.long
def test_kill_9_of_the_connector_loses_no_message(remote: Remote, kafka: Kafka, tmp_path: Path) -> None:
    settings = Settings(kafka=kafka, connections=(remote.connection(max_in_flight=100),))
    ensure_topics(settings, TOPICS)
    with connected(settings):
        # from now on the broker keeps what is sent to an MQTT subscription
        pass
    for number in range(NUMBER):
        remote.send(command(f"n{number}"))
    kills = [NUMBER // 10, NUMBER // 3, NUMBER * 2 // 3]
    connections = [each.model_dump(mode="json") for each in settings.connections]
    more = {"ACKSTREAM_CONNECTIONS": json.dumps(connections)}
    with Counterpart(kafka) as job:
        connector = Program("connect", ["connect"], settings, tmp_path, more)
        try:
            for seen in kills:
                eventually(lambda at=seen: len(set(plain(job))) >= at, f"{seen} signals")  # type: ignore[misc]
                connector.kill()
                connector.start()
            eventually(lambda: len(set(plain(job))) == NUMBER, "all signals")
            eventually(lambda: remote.depth() == 0, "the settlement of all messages")
        finally:
            connector.kill()
    # a message that is marked as delivered before is a request of its own; Artemis does not mark one if the client is
    # back before it has noticed the loss: correlate takes it for what it is, a copy
    assert len(set(ids(job))) == len(job.seen) or remote.settings["type"].startswith(("mqtt", "amqp-10"))
    assert not remote.rejected()
