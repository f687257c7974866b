from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ackstream.cli.demo import environment as environments
from ackstream.cli.demo.environment import demo_settings, environment
from ackstream.errors import LocalError
from ackstream.settings import Archive, Kafka, Lake, Local, Settings
from ackstream.settings.security import KafkaSecurity


class Machine:
    """In place of brokers: notes what happens to them, by their data directories."""

    def __init__(self) -> None:
        self.answers = False
        self.events: list[str] = []

    def __call__(self, settings: Settings) -> Machine.Broker:
        return Machine.Broker(self, settings.local)

    class Broker:
        def __init__(self, machine: Machine, local: Local) -> None:
            self.machine = machine
            self.local = local

        def answers(self) -> bool:
            return self.machine.answers

        def start(self, _console: Console) -> None:
            self.machine.events.append(f"start {self.local.data}")

        def stop(self) -> None:
            self.machine.events.append(f"stop {self.local.data}")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    monkeypatch.chdir(tmp_path)
    machine = Machine()
    monkeypatch.setattr(environments, "Broker", machine)
    monkeypatch.setattr(environments.topics, "ensure_topics", lambda *_: machine.events.append("topics"))
    monkeypatch.setattr(environments, "_delete_topics", lambda own: machine.events.append(own.kafka.topic_prefix))
    return machine


def test_a_kafka_of_its_own_is_started_and_stopped(machine: Machine):
    with environment(Settings(), Console()) as own:
        assert own.kafka.topic_prefix == ""
        # one that a killed demo left behind is stopped first
        assert machine.events == ["stop .ackstream/demo", "start .ackstream/demo", "topics"]
    assert machine.events[3:] == ["stop .ackstream/demo"]


def test_a_kafka_that_runs_is_used_and_its_topics_are_taken_away(machine: Machine):
    machine.answers = True
    with environment(Settings(), Console()) as own:
        prefix = own.kafka.topic_prefix
        assert prefix.startswith("demo-")
    assert machine.events == ["stop .ackstream/demo", "topics", prefix]


@pytest.mark.usefixtures("machine")
def test_it_starts_empty_and_touches_nothing_else():
    own = [Path(".ackstream/demo") / name for name in ("kafka/data/x", "lake/outcomes", "checkpoints/correlate")]
    others = [
        Path(".ackstream") / name for name in ("kafka/data/x", "lake/outcomes", "checkpoints/correlate", "demo/logs/x")
    ]
    for path in own + others:
        path.mkdir(parents=True)
    with environment(Settings(), Console()):
        assert not any(path.exists() for path in own)
    assert all(path.exists() for path in others)


@pytest.mark.usefixtures("machine")
def test_one_demo_runs_at_a_time():
    with environment(Settings(), Console()):
        pass
    with Path(".ackstream/demo/lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with (
            pytest.raises(LocalError, match=r"Another demo is running in .ackstream/demo"),
            environment(Settings(), Console()),
        ):
            pass


@pytest.mark.usefixtures("machine")
def test_a_directory_that_cannot_be_written_is_a_sentence():
    Path("file").touch()
    settings = Settings(local=Local(data=Path("file")))
    with pytest.raises(LocalError, match="cannot be written"), environment(settings, Console()):
        pass


def test_its_settings_are_those_of_the_user_where_nobody_is_disturbed():
    changes: dict[str, Any] = {
        "local": Local(port=1234, heap="300m"),
        "kafka": Kafka(bootstrap="far.away:9092", partitions=7, security=KafkaSecurity(protocol="SSL")),
        "lake": Lake(path="s3://bucket/lake", checkpoints="s3://bucket/checkpoints"),
        "archive": Archive(max_offsets_per_trigger=7),
    }
    own = demo_settings(Settings(**changes), Path("home"), "p-")
    assert own.kafka == Kafka(bootstrap="localhost:1234", topic_prefix="p-", partitions=7)
    assert own.local == Local(port=1234, heap="300m", data=Path("home"))
    assert (own.lake.path, own.lake.checkpoints) == ("home/lake", "home/checkpoints")
    assert own.archive.max_offsets_per_trigger == 7
