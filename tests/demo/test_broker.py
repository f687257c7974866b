from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
from kafka import TopicPartition
from kafka.errors import NotLeaderForPartitionError

from ackstream.errors import LocalError
from ackstream.local import jars
from ackstream.local.machine import command_line
from ackstream.settings import Kafka, Local, Settings
from tests.demo import broker
from tests.demo.broker import CLUSTER_ID, Broker
from tests.harness.ports import free_ports
from tests.local.programs import java_home

# Stands for Kafka: leaves its pid, says what it is told to say, and goes on until it is ended
KAFKA = """
import os, pathlib
home = pathlib.Path(sys.argv[-1]).parent
if "kafka.tools.StorageTool" in sys.argv:
    print("said by the format", flush=True)
    sys.exit({format_code})
(home / "started").write_text(str(os.getpid()))
print({says!r}, flush=True)
if {dies}:
    sys.exit(1)
import signal
signal.pause()
"""


@pytest.fixture(autouse=True)
def fake_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        jars, "resolve", lambda *_: [Path("/jars/kafka-clients-4.1.0.jar"), Path("/jars/kafka_2.13-4.1.0.jar")]
    )


@pytest.fixture
def local(tmp_path: Path) -> Local:
    port, controller_port = free_ports(2)
    return Local(data=tmp_path / "data", port=port, controller_port=controller_port, start_timeout="20s")


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def fake_kafka(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, says: str = "", dies: bool = False, format_code: int = 0
) -> None:
    home = java_home(tmp_path / "java", KAFKA.format(says=says, dies=dies, format_code=format_code))
    monkeypatch.setenv("JAVA_HOME", str(home))


def test_without_java_nothing_is_started(local: Local, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(LocalError, match=r"^JAVA_HOME is /nowhere"):
        Broker(Settings(local=local)).start()
    assert not local.data.exists()


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("port", r"local\.port \(ACKSTREAM_LOCAL_PORT\) and kafka\.bootstrap \(ACKSTREAM_KAFKA_BOOTSTRAP\)"),
        ("controller_port", r"local\.controller_port \(ACKSTREAM_LOCAL_CONTROLLER_PORT\)"),
    ],
)
def test_a_port_in_use_is_reported_with_its_owner_and_its_setting(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: int, key: str, settings: str
):
    fake_kafka(tmp_path, monkeypatch)
    sentence = rf"^Port {listener} is in use by .*{os.getpid()}.*: stop that, or set {settings} to a free one\.$"
    with pytest.raises(LocalError, match=sentence):
        Broker(Settings(local=local.model_copy(update={key: listener}))).start()


def test_a_broker_that_dies_is_reported_with_its_first_error_and_its_last_lines(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trace = [f"\tat kafka.Kafka.line{number}" for number in range(20)]
    cause = "2026-01-01 00:00:00.000 ERROR Kafka$: java.io.IOException: No space left on device"
    fake_kafka(tmp_path, monkeypatch, says="\n".join([cause, *trace]), dies=True)
    broker = Broker(Settings(local=local))
    with pytest.raises(LocalError) as caught:
        broker.start()
    first, *shown = str(caught.value).splitlines()
    assert first.startswith(f"Kafka ended while it started: fix what its log {broker.log} reports and start it again.")
    assert [line.strip() for line in shown] == [cause, *(line.strip() for line in trace[-5:])]
    assert broker.pid() is None


def test_a_broker_that_does_not_get_ready_is_killed(local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake_kafka(tmp_path, monkeypatch)
    broker = Broker(Settings(local=local.model_copy(update={"start_timeout": 2000})))
    with pytest.raises(
        LocalError, match=r"did not start within 2 s \(local\.start_timeout, ACKSTREAM_LOCAL_START_TIMEOUT\)"
    ):
        broker.start()
    assert command_line(int((local.data / "kafka" / "started").read_text())) == ""
    assert broker.pid() is None


def test_a_broker_that_starts_and_does_not_answer_is_killed(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fake_kafka(tmp_path, monkeypatch, says="Kafka Server started")
    with pytest.raises(LocalError, match=r"^Kafka started but does not answer"):
        Broker(Settings(local=local.model_copy(update={"start_timeout": 2000}))).start()
    assert command_line(int((local.data / "kafka" / "started").read_text())) == ""


def test_a_format_that_fails_is_reported_with_its_log(local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake_kafka(tmp_path, monkeypatch, format_code=1)
    with pytest.raises(LocalError, match=r"^Kafka could not format its data directory: .*\n  said by the format$"):
        Broker(Settings(local=local)).start()


def test_the_properties_name_a_directory_outside_ascii_as_java_reads_it(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fake_kafka(tmp_path, monkeypatch, format_code=1)
    broker = Broker(Settings(local=local.model_copy(update={"data": tmp_path / "Pr\u00fcfung \U0001f600"})))
    with pytest.raises(LocalError):
        broker.start()
    assert "/Pr\\u00fcfung \\ud83d\\ude00/" in broker._properties.read_bytes().decode("ascii")


@pytest.mark.parametrize(
    ("meta", "other"), [("version=1\ncluster.id=ABC\nnode.id=1\n", "ABC"), ("version=1\n", "without an id")]
)
def test_data_of_another_cluster_are_left_alone(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meta: str, other: str
):
    fake_kafka(tmp_path, monkeypatch)
    broker = Broker(Settings(local=local))
    broker.data.mkdir(parents=True)
    (broker.data / "meta.properties").write_text(meta)
    with pytest.raises(
        LocalError, match=rf"belong to another Kafka cluster \({other}\): move it away, or set local\.data"
    ):
        broker.start()


@pytest.mark.parametrize(("before", "refused"), [("4.2.0", True), ("4.10.0", True), ("4.1.0", False), ("4.0.1", False)])
def test_data_of_a_newer_kafka_are_refused(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, *, refused: bool
):
    fake_kafka(tmp_path, monkeypatch, dies=True)
    broker = Broker(Settings(local=local))
    broker.data.mkdir(parents=True)
    (broker.data / "meta.properties").write_text(f"cluster.id={CLUSTER_ID}\n")
    (broker.data.parent / "kafka-version").write_text(before)
    sentence = f"were written by Kafka {before}, which is newer" if refused else "ended while it started"
    with pytest.raises(LocalError, match=sentence):
        broker.start()


def test_broker_jars_without_kafka_are_refused(local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake_kafka(tmp_path, monkeypatch)
    monkeypatch.setattr(jars, "resolve", lambda *_: [])
    with pytest.raises(LocalError, match=r"^The broker jars of .*ivy.xml do not include Kafka"):
        Broker(Settings(local=local)).start()


def test_a_data_directory_that_cannot_be_written_is_named(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fake_kafka(tmp_path, monkeypatch)
    local.data.write_text("a file where a directory should be")
    with pytest.raises(LocalError, match=r"cannot be written \(.*\): set local\.data \(ACKSTREAM_LOCAL_DATA\)"):
        Broker(Settings(local=local)).start()


def test_a_stale_pid_file_is_removed(local: Local):
    broker = Broker(Settings(local=local))
    pid_file = local.data / "kafka" / "broker.pid"
    pid_file.parent.mkdir(parents=True)
    # alive, and not Kafka
    pid_file.write_text(str(os.getpid()))
    assert broker.pid() is None
    assert not pid_file.exists()
    assert not broker.stop()


def _created(monkeypatch: pytest.MonkeyPatch, refusals: int, timeout: str) -> tuple[list[str], int]:
    """Create topics on a broker that refuses some lookups of offsets; return the new ones and the number of lookups."""
    lookups: list[Any] = []

    def ends(_admin: Any, partitions: Any) -> dict[Any, int]:
        lookups.append(partitions)
        if len(lookups) <= refusals:
            raise NotLeaderForPartitionError
        return dict.fromkeys(partitions, 0)

    monkeypatch.setattr(broker, "connect_admin", lambda _: nullcontext())
    monkeypatch.setattr(broker.topics, "ensure_topics", lambda *_: ["x-acks"])
    monkeypatch.setattr(broker.topics, "replicas", lambda _, names: {TopicPartition(name, 0): {1} for name in names})
    monkeypatch.setattr(broker.topics, "ends", ends)
    settings = Settings(local=Local(start_timeout=timeout), kafka=Kafka(topic_prefix="x-"))
    created = broker.create_topics(settings)
    assert {partition.topic for partition in lookups[0]} == {f"x-{name}" for name in broker.topics.TOPICS}
    return created, len(lookups)


def test_topics_are_created_once_the_leaders_of_all_topics_answer(monkeypatch: pytest.MonkeyPatch):
    assert _created(monkeypatch, 2, "60s") == (["x-acks"], 3)


def test_topics_whose_leaders_do_not_answer_in_time_are_an_error(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(LocalError, match=r"^Kafka has no leader for each topic \(.*NotLeader"):
        _created(monkeypatch, 1_000_000, "100ms")


OBEDIENT = "print(flush=True); sys.stdin.read()"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); sys.stdin.read()"


@contextmanager
def running(mark: str, body: str = OBEDIENT) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a mark in its command line; it has come to its last statement."""
    command = [sys.executable, "-S", "-c", f"import signal, sys; {body}", mark]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def played(local: Local) -> Broker:
    """A broker whose directory exists; the tests play its process."""
    broker = Broker(Settings(local=local))
    broker._pid_file.parent.mkdir(parents=True)
    return broker


def test_a_process_that_was_written_is_read(played: Broker):
    with running(str(played._properties)) as process:
        played._pid_file.write_text(str(process.pid))
        assert played.pid() == process.pid


def test_without_a_file_there_is_no_process(played: Broker):
    assert played.pid() is None
    assert not played.stop()


@pytest.mark.parametrize("content", ["", "text", "-1", "0", "4194305"])
def test_a_file_that_names_no_process_is_removed(played: Broker, content: str):
    played._pid_file.write_text(content)
    assert played.pid() is None
    assert not played._pid_file.exists()


def test_a_pid_that_now_belongs_to_another_program_is_never_killed(played: Broker):
    with running("/elsewhere/broker.properties") as other:
        played._pid_file.write_text(str(other.pid))
        assert not played.stop()
        assert other.poll() is None
    assert not played._pid_file.exists()


@pytest.mark.parametrize(("body", "asked"), [(OBEDIENT, ["terminate"]), (STUBBORN, ["terminate", "kill"])])
def test_a_process_is_asked_to_end_and_then_killed(
    played: Broker, monkeypatch: pytest.MonkeyPatch, body: str, asked: list[str]
):
    found: list[str] = []

    def note(name: str) -> None:
        ask = getattr(psutil.Process, name)
        monkeypatch.setattr(psutil.Process, name, lambda self: (found.append(name), ask(self)))

    note("terminate")
    note("kill")
    monkeypatch.setattr(broker, "_GRACE_SECONDS", 0.2)
    with running(str(played._properties), body) as process:
        played._pid_file.write_text(str(process.pid))
        assert played.stop()
        assert found == asked
        assert not psutil.pid_exists(process.pid)
    assert not played._pid_file.exists()


def test_a_process_that_ended_and_was_not_reaped_has_ended(played: Broker):
    with running(str(played._properties)) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        played._pid_file.write_text(str(process.pid))
        assert played.pid() is None
