"""Every side played by the command, as a process of its own on the real broker; the jobs are played by threads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ackstream.kafka.topics import ensure_topics
from ackstream.protocol.ditto.envelopes import decode
from ackstream.settings import Kafka, Settings
from tests.harness.acknowledging import TOPICS, Acknowledging
from tests.harness.counterpart import Counterpart
from tests.harness.kafka import records
from tests.harness.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.integration


class Terminal:
    """Starts the command in a directory of its own."""

    def __init__(self, kafka: Kafka, directory: Path) -> None:
        own = {"ACKSTREAM_KAFKA_BOOTSTRAP": kafka.bootstrap, "ACKSTREAM_KAFKA_TOPIC_PREFIX": kafka.topic_prefix}
        self._options: dict[str, Any] = {
            "env": {**os.environ, **own, "ACKSTREAM_KAFKA_PARTITIONS": str(kafka.partitions)},
            "cwd": directory,
            "text": True,
        }

    def run(self, *arguments: str, stdin: str = "") -> list[Any]:
        """Run a command to its end; return its lines of JSON."""
        command = [sys.executable, "-m", "ackstream", *arguments, "--json"]
        done = subprocess.run(
            command, input=stdin, capture_output=True, timeout=PATIENCE_SECONDS, check=False, **self._options
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command until it says that Ctrl-C stops it, and through the block."""
        command = [sys.executable, "-m", "ackstream", *arguments, "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **self._options) as process:
            try:
                assert process.stderr is not None
                lines = []
                for line in process.stderr:
                    lines.append(line)
                    if "Ctrl-C stops it." in line:
                        break
                else:
                    pytest.fail("".join(lines))
                yield process
            finally:
                process.kill()


def told(process: subprocess.Popen[str]) -> list[Any]:
    """Wait for the end of a command; return its lines of JSON."""
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    return [json.loads(line) for line in output.splitlines()]


def test_a_request_is_acknowledged_from_another_terminal(kafka: Kafka, tmp_path: Path) -> None:
    ensure_topics(Settings(kafka=kafka), ("signals", "acks", "replies", "declarations"))
    terminal = Terminal(kafka, tmp_path)
    with Counterpart(kafka), terminal.running("ack", "fleet:done", "--status", "204", "--count", "1") as party:
        (reply,) = terminal.run("send", "org.acme:lamp", "/attributes/on", "true", "--ack", "fleet:done")
        assert reply["status"] == 200
        (line,) = told(party)
    assert (line["correlation_id"], line["labels"], line["value"]) == (reply["correlation_id"], ["fleet:done"], True)
    (ack,) = [decode(record.value) for record in records(kafka, "acks")]
    assert (ack.status, str(ack.topic)) == (204, "org.acme/lamp/things/twin/acks/fleet:done")


def test_messages_go_from_one_terminal_to_another(kafka: Kafka, tmp_path: Path) -> None:
    ensure_topics(Settings(kafka=kafka), TOPICS)
    terminal = Terminal(kafka, tmp_path)
    with Acknowledging(kafka), terminal.running("read", "--topic", "or*", "--count", "2") as reader:
        receipts = terminal.run("publish", "--topic", "orders", "--name", "orders-1", stdin="one\ntwo\n")
        assert [(receipt["message"], receipt["stage"]) for receipt in receipts] == [
            ("orders-1/1", "persisted"),
            ("orders-1/2", "persisted"),
        ]
        assert [(line["publisher"], line["seq"], line["value"]) for line in told(reader)] == [
            ("orders-1", 1, "one"),
            ("orders-1", 2, "two"),
        ]


@pytest.mark.parametrize("arguments", [("ack", "fleet:done"), ("read",)], ids=lambda arguments: arguments[0])
def test_one_ctrl_c_ends_it_in_order(kafka: Kafka, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ensure_topics(Settings(kafka=kafka), ("signals", *TOPICS))
    with Acknowledging(kafka), Terminal(kafka, tmp_path).running(*arguments) as process:
        process.send_signal(signal.SIGINT)
        assert told(process) == []
