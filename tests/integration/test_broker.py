"""The real one-node Kafka, in a directory and on ports of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError
from typer.testing import CliRunner

from ackstream.cli.main import app
from ackstream.client import Requester, Responder
from ackstream.client.core import lifetime
from ackstream.errors import LocalError
from ackstream.kafka import clients
from ackstream.kafka.topics import TOPICS, ensure_topics
from ackstream.local import machine
from ackstream.local.machine import command_line, is_free
from ackstream.settings import Kafka, Local, Settings
from tests.demo.broker import Broker
from tests.demo.secured import SecuredBroker
from tests.harness.kafka import records
from tests.harness.ports import free_ports
from tests.harness.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    port, controller_port = free_ports(2)
    settings = Settings(
        local=Local(data=tmp_path / "data", port=port, controller_port=controller_port),
        kafka=Kafka(bootstrap=f"localhost:{port}", partitions=1),
    )
    yield settings
    Broker(settings).stop()


def send(settings: Settings, value: bytes) -> None:
    with KafkaProducer(bootstrap_servers=settings.kafka.bootstrap, max_request_size=20_000_000) as producer:
        producer.send("signals", value).get(PATIENCE_SECONDS)


def values(settings: Settings, number: int) -> list[bytes]:
    found = eventually(lambda: found if len(found := records(settings.kafka, "signals")) >= number else None, "values")
    return [record.value for record in found]


def test_a_broker_is_started_once_and_stopped_once(settings: Settings):
    broker = Broker(settings)
    assert broker.start()
    pid = broker.pid()
    assert broker.answers()
    assert broker.bootstrap == settings.kafka.bootstrap
    assert "-Xmx512m" in command_line(pid or 0)
    # by the pid file: another object, as it would be another process
    assert not Broker(settings).start()
    assert Broker(settings).pid() == pid
    assert Broker(settings).stop()
    assert command_line(pid or 0) == ""
    assert broker.pid() is None
    assert not broker.stop()


def test_data_are_kept_over_a_stop_and_over_a_kill(settings: Settings):
    broker = Broker(settings)
    broker.start()
    ensure_topics(settings)
    send(settings, b"before the stop")
    assert broker.stop()
    assert broker.start()
    send(settings, b"before the kill")
    os.kill(broker.pid() or 0, signal.SIGKILL)
    # the system takes a moment to close what a killed process had open
    eventually(lambda: is_free(settings.local.port), "the port of the killed broker")
    # the pid file is stale now, which a start repairs
    assert broker.start()
    send(settings, b"x" * 9_000_000)
    assert [value[:20] for value in values(settings, 3)] == [b"before the stop", b"before the kill", b"x" * 20]
    assert ensure_topics(settings) == []


def test_clients_report_that_their_broker_is_away_and_that_it_is_back(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lifetime, "LASTING_SECONDS", 1.0)
    broker, kafka, states = Broker(settings), settings.kafka, [list[str]() for _ in range(3)]
    broker.start()
    ensure_topics(settings)
    with (
        Requester(kafka, on_connection=states[0].append),
        Responder(kafka, handler=print, on_connection=states[1].append),
        Responder(kafka, handler=print, group="g", on_connection=states[2].append),
    ):
        eventually(lambda: states == [["connected"]] * 3, "they are connected")
        broker.stop()
        eventually(lambda: states == [["connected", "disconnected"]] * 3, "the broker is away")
        broker.start()
        eventually(lambda: states == [["connected", "disconnected", "connected"]] * 3, "the broker is back")


def test_a_second_broker_on_the_same_port_is_told_who_has_it(settings: Settings, tmp_path: Path):
    broker = Broker(settings)
    broker.start()
    other = Broker(Settings(local=settings.local.model_copy(update={"data": tmp_path / "other"})))
    sentence = rf"^Port {settings.local.port} is in use by java \(process {broker.pid()} in .*\): stop that"
    with pytest.raises(LocalError, match=sentence):
        other.start()
    assert other.pid() is None
    assert not other.stop()
    assert broker.answers()


def test_a_topic_that_was_not_created_is_an_error(kafka: Kafka):
    with (
        KafkaProducer(bootstrap_servers=kafka.bootstrap, max_block_ms=1000) as producer,
        pytest.raises(KafkaTimeoutError),
    ):
        producer.send(kafka.topic("signals"), b"x").get(PATIENCE_SECONDS)


def test_up_status_and_down_are_the_commands_for_it(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(settings.local.data.parent)
    monkeypatch.setenv("ACKSTREAM_LOCAL_DATA", str(settings.local.data))
    monkeypatch.setenv("ACKSTREAM_LOCAL_PORT", str(settings.local.port))
    monkeypatch.setenv("ACKSTREAM_LOCAL_CONTROLLER_PORT", str(settings.local.controller_port))
    monkeypatch.setenv("ACKSTREAM_KAFKA_BOOTSTRAP", settings.kafka.bootstrap)

    def run(command: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, [command])
        return result.exit_code, result.stdout

    kafka = f"Kafka is up at {settings.kafka.bootstrap}; its log is {settings.local.data}/logs/kafka.log\n"
    # in the language whose upper case of i is another letter
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Duser.language=tr")
    assert run("up") == (0, f"{kafka}Topics: {len(TOPICS)}, {len(TOPICS)} of them new\n")
    # each topic takes a record at once
    options = {"bootstrap_servers": settings.kafka.bootstrap, "retries": 0, "enable_idempotence": False}
    with KafkaProducer(**options) as producer:
        sent = [producer.send(topic, b"{}", key=b"key", partition=0) for topic in TOPICS]
        assert {future.get(PATIENCE_SECONDS).topic for future in sent} == TOPICS.keys()
    code, text = run("up")
    assert code == 0
    assert "was already up" in text
    assert f"{len(TOPICS)}, 0 of them new" in text
    code, text = run("status")
    assert code == 0
    assert f"responding at {settings.kafka.bootstrap}" in text
    assert run("down") == (0, f"Kafka is stopped; its data stays in {settings.local.data}/kafka/data\n")
    assert machine.is_free(settings.local.port)
    assert run("status")[0] == 3


def test_a_secured_broker_is_started_used_and_stopped_by_the_same_commands(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    local = settings.local
    monkeypatch.setenv("ACKSTREAM_LOCAL_DATA", str(local.data))
    monkeypatch.setenv("ACKSTREAM_LOCAL_PORT", str(local.port))
    monkeypatch.setenv("ACKSTREAM_LOCAL_CONTROLLER_PORT", str(local.controller_port))
    monkeypatch.setenv("ACKSTREAM_KAFKA_BOOTSTRAP", settings.kafka.bootstrap)
    monkeypatch.setenv("COLUMNS", "300")
    # without a login there is no answer
    monkeypatch.setitem(clients._COMMON, "bootstrap_timeout_ms", 2_000)
    try:
        for is_new in (True, False):
            started = CliRunner().invoke(app, ["up", "--secure"])
            assert started.exit_code == 0, started.output
            assert f"Topics: {len(TOPICS)}, {len(TOPICS) if is_new else 0} of them new" in started.stdout
            assert f"ACKSTREAM_CONF={local.data}/secured/operator.toml" in started.stdout
            refused = CliRunner().invoke(app, ["up"])
            assert (refused.exit_code, refused.stderr) == (
                1,
                "Kafka runs with --secure: stop it first with `ackstream down`.\n",
            )
            assert "expects TLS: set kafka.security.protocol" in CliRunner().invoke(app, ["status"]).stdout
            monkeypatch.setenv("ACKSTREAM_CONF", str(local.data / "secured" / "operator.toml"))
            status = CliRunner().invoke(app, ["status"])
            assert status.exit_code == 0
            assert f"topics       {len(TOPICS)}" in status.stdout
            assert CliRunner().invoke(app, ["acls", "--apply"]).stdout.endswith("ACLs: 0 of them new.\n")
            monkeypatch.setenv("ACKSTREAM_CONF", str(local.data / "secured" / "requester.toml"))
            denied = CliRunner().invoke(app, ["acls", "--apply"])
            assert denied.exit_code == 1
            assert "does not allow requester to create the topic" in denied.stderr
            monkeypatch.delenv("ACKSTREAM_CONF")
            assert "Kafka is stopped" in CliRunner().invoke(app, ["down"]).stdout
    finally:
        SecuredBroker(settings).stop()
