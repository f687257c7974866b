"""The demo as a user runs it: in a process of its own, in an empty directory."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ackstream.kafka.clients import connect_admin
from ackstream.local.machine import is_free
from ackstream.settings import Kafka, Lake, Local, Settings
from tests.demo.broker import Broker
from tests.harness.lake import rows
from tests.harness.ports import free_ports
from tests.harness.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parent.parent.parent
PROC = Path("/proc")
DEMO = [sys.executable, "-c", "from ackstream.cli.main import app; app()", "demo"]


class Place:
    """An empty directory and free ports for a demo."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port, self.controller_port = free_ports(2)
        self.out = directory / "out.txt"

    @property
    def environment(self) -> dict[str, str]:
        mine = {
            "ACKSTREAM_LOCAL_PORT": str(self.port),
            "ACKSTREAM_LOCAL_CONTROLLER_PORT": str(self.controller_port),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "COLUMNS": "100",
        }
        return {name: value for name, value in os.environ.items() if not name.startswith("ACKSTREAM_")} | mine

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the demo as the leader of a process group, as a shell does."""
        with self.out.open("wb") as out:
            return subprocess.Popen(
                [*DEMO, *arguments], cwd=self.directory, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def said(self) -> str:
        return self.out.read_text("utf-8", "replace")

    def processes(self) -> dict[int, str]:
        """The living processes that were started here, by their working directory."""
        found = {}
        for entry in PROC.glob("[0-9]*"):
            try:
                if (entry / "cwd").readlink().is_relative_to(self.directory):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
            except OSError:
                # of another user, or gone meanwhile
                continue
        return {pid: command for pid, command in found.items() if command}


def expected(labels: Collection[str], acks: Iterable[dict[str, Any]], deadline: datetime) -> tuple[int, str]:
    """Compute how a command must end, independently of the product: status and ``completed_by``.

    The first acknowledgement of a label counts, an error ends the wait, and a label missing at the deadline gets 408.

    :param acks: rows of the command, in time order
    """
    statuses: dict[str, int] = {}
    for ack in acks:
        if ack["received_at"] > deadline or statuses.keys() >= set(labels):
            break
        if ack["label"] is None and ack["status"] >= 400:
            return ack["status"], "error"
        if ack["label"] in labels:
            statuses.setdefault(ack["label"], ack["status"])
    failed = any(statuses.get(label, 408) >= 400 for label in labels)
    return 424 if failed else 200, "acknowledgements" if statuses.keys() >= set(labels) else "timeout"


def assert_outcomes_follow_from_acknowledgements(lake: Lake) -> None:
    """Compare each outcome, and each entry of its reply, with the stored acknowledgements of the devices."""
    acks: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(rows(lake, "acknowledgements"), key=lambda row: (row["received_at"], row["offset"])):
        acks[row["correlation_id"]].append(row)
    outcomes = {row["correlation_id"]: row for row in rows(lake, "outcomes")}
    commands = [row for row in rows(lake, "signals") if row["correlation_id"].startswith("demo-")]
    assert len(commands) == 300
    for command in commands:
        key = command["correlation_id"]
        deadline = command["received_at"] + timedelta(milliseconds=command["timeout_ms"])
        assert (outcomes[key]["status"], outcomes[key]["completed_by"]) == expected(
            command["requested_acks"], acks[key], deadline
        ), (command, acks[key], outcomes[key])
        if outcomes[key]["completed_by"] == "error":
            continue
        entries = json.loads(outcomes[key]["reply"])["value"]
        for label in command["requested_acks"]:
            found = [ack["status"] for ack in acks[key] if ack["label"] == label and ack["received_at"] <= deadline]
            assert entries[label]["status"] == (found or [408])[0], (key, label)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path.resolve())


def test_everything_adds_up_and_the_tables_can_be_queried_as_it_says(place: Place):
    process = place.start("--commands", "300", "--rate", "60")
    assert process.wait(PATIENCE_SECONDS) == 0, place.said()
    said = place.said()
    assert "300 commands sent = 300 replies received = 300 rows in outcomes = 300 rows in signals" in said
    # 50 devices, six commands each: 43 do as they are told, 5 let it time out, 2 say no
    # the twin has a thing a device, answered for its making and for every command; an error of a device is a nack for
    # each label
    totals = ["acknowledgements", "932"], ["things", "50"], ["thing_events", "350"]
    for words in (["answered", "258"], ["timed", "out", "30"], ["failed", "12"], *totals):
        assert words in [line.split()[: len(words)] for line in said.splitlines()], said
    assert said.count("yes  ") == 3
    assert "NO" not in said
    assert_outcomes_follow_from_acknowledgements(Lake(path=str(place.directory / ".ackstream" / "demo" / "lake")))
    assert not re.search(r"\b(WARN|ERROR|Traceback)\b", said), "the log of the JVM is no part of the output"
    eventually(lambda: not place.processes(), "the end of all that was started")
    lines = said.partition("How to query them")[2].splitlines()
    ways = [line for above, line in pairwise(lines) if above.startswith("# ")]
    assert len(ways) == 2
    for way in ways:
        answer = subprocess.run(
            way, shell=True, cwd=place.directory, env=place.environment, capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, (way, answer.stderr)
        assert "fleet" in answer.stdout or "acknowledgements" in answer.stdout, (way, answer.stdout)


# by default test_secured shows the logins and ACLs of the parties, and test_broker the commands for such a Kafka
@pytest.mark.long
def test_everything_adds_up_where_each_party_has_a_login_and_its_acls_alone(place: Place):
    process = place.start("--secure", "--commands", "100", "--rate", "20")
    assert process.wait(timeout=300) == 0, place.said()
    assert "started for the demo, with a login for each party" in place.said()
    assert re.search(r"(?m)^yes  100 commands sent = 100 replies received", place.said())
    home = place.directory / ".ackstream" / "demo"
    passwords = [file.read_text("ascii") for file in (home / "secured").glob("*.password")]
    logs = place.said() + "".join(file.read_text("utf-8", "replace") for file in (home / "logs").iterdir())
    assert len(passwords) > 10
    assert not [password for password in passwords if password in logs]
    eventually(lambda: is_free(place.port), "the end of its Kafka")


@pytest.mark.long
@pytest.mark.skipif(not PROC.exists(), reason="processes are looked up in /proc")
@pytest.mark.parametrize(
    ("after", "delay", "group"),
    [
        ("", 4.0, True),
        ("To watch from another terminal", 8.0, False),
    ],
    ids=["at once", "while Spark starts"],
)
def test_ctrl_c_leaves_no_process_behind(place: Place, after: str, delay: float, *, group: bool):
    delay = random.uniform(0, delay)
    process = place.start("--rate", "100")
    try:
        eventually(lambda: after in place.said() or process.poll() is not None, "the demo to be so far")
        time.sleep(delay)
        assert process.poll() is None, place.said()
        # a terminal tells the whole group, `kill` one process
        (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
        code = process.wait(PATIENCE_SECONDS)
    finally:
        process.kill()
    told = f"after {delay:.3f} s: {place.said()}"
    eventually(lambda: not place.processes(), "the end of all that was started")
    assert is_free(place.port)
    if after or "Stopped" in place.said():
        assert code == 130, told
        assert place.said().endswith("Stopped; nothing is left running.\n"), told
        assert "Traceback" not in told
    else:
        # Python was still importing
        assert code != 0, told


@pytest.fixture
def running(place: Place) -> Iterator[Settings]:
    """Start a Kafka as `ackstream up` does, where the demo finds it."""
    local = Local(data=place.directory / ".ackstream", port=place.port, controller_port=place.controller_port)
    settings = Settings(local=local, kafka=Kafka(bootstrap=f"localhost:{place.port}"))
    broker = Broker(settings)
    broker.start()
    try:
        yield settings
    finally:
        broker.stop()


@pytest.mark.long
@pytest.mark.skipif(not PROC.exists(), reason="processes are looked up in /proc")
def test_ctrl_c_while_commands_are_sent_leaves_a_kafka_that_ran_before_as_it_was(place: Place, running: Settings):
    before, others = Broker(running).pid(), set(place.processes())
    process = place.start("--rate", "100")
    try:
        eventually(lambda: "Spark runs correlate" in place.said() or process.poll() is not None, "the demo to run")
        delay = random.uniform(0, 12)
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGINT)
        # a quick machine may have finished
        assert process.wait(PATIENCE_SECONDS) in (130, 0), place.said()
    finally:
        process.kill()
    told = f"after {delay:.3f} s: {place.said()}"
    assert f"Kafka at localhost:{place.port}, which was running" in told
    eventually(lambda: set(place.processes()) == others, "the end of all that was started")
    assert Broker(running).pid() == before
    with connect_admin(running.kafka) as client:
        eventually(lambda: not [name for name in client.list_topics() if name.startswith("demo-")], "no topics")


def test_a_port_that_is_taken_is_a_sentence(place: Place):
    with (
        subprocess.Popen(
            [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(place.port)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as other
    ):  # fmt: skip
        try:
            eventually(lambda: not is_free(place.port), "the port to be taken")
            assert place.start().wait(PATIENCE_SECONDS) == 1
        finally:
            other.terminate()
    assert re.fullmatch(rf"Port {place.port} is in use by .*: stop that, or set local.port .*\n", place.said())


def test_no_java_is_a_sentence(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert place.start().wait(PATIENCE_SECONDS) == 1
    assert place.said() == (
        "JAVA_HOME is /nowhere, but there is no program /nowhere/bin/java: correct JAVA_HOME or unset it.\n"
    )
