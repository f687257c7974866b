"""Files of the secured local Kafka; that it runs is in tests/integration."""

from __future__ import annotations

import fcntl
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ackstream.errors import LocalError
from ackstream.kafka.parties import PARTIES
from ackstream.settings import Archive, Kafka, Lake, Local, Settings
from ackstream.settings.kafka import KafkaSecurity
from ackstream.settings.loading import load
from tests.demo import secured as module
from tests.demo.broker import CLUSTER_ID
from tests.demo.secured import SecuredBroker, demo_settings, environment


@pytest.fixture
def secured(tmp_path: Path) -> SecuredBroker:
    broker = SecuredBroker(Settings(local=Local(data=tmp_path, port=1, controller_port=2)))
    (tmp_path / "secured").mkdir()
    return broker


def _properties(secured: SecuredBroker) -> dict[str, str]:
    lines = [line for line in secured._own_properties().splitlines() if "=" in line and not line.startswith("#")]
    # of two lines with one key Java takes the last
    return dict(line.partition("=")[::2] for line in lines)


def test_everybody_has_to_log_in_and_may_do_nothing_without_an_acl(secured: SecuredBroker) -> None:
    found = _properties(secured)
    assert found["listeners"] == "SECURED://localhost:1,CONTROLLER://localhost:2"
    assert found["listener.security.protocol.map"] == "SECURED:SASL_SSL,CONTROLLER:SSL"
    # without TLS nobody, not even the broker itself, reaches the controller
    assert found["listener.name.controller.ssl.client.auth"] == "required"
    assert found["authorizer.class.name"] == "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    assert found["super.users"] == "User:operator;User:CN=ackstream-broker"
    assert "allow.everyone.if.no.acl.found" not in found


def test_only_the_owner_can_read_passwords_and_keys(secured: SecuredBroker, tmp_path: Path) -> None:
    secured._own_properties()
    arguments = secured._format_arguments()
    home = tmp_path / "secured"
    assert home.stat().st_mode & 0o777 == 0o700
    secret = [file for file in home.iterdir() if file.name != "ca.pem"]
    assert {file.name for file in secret} == {"ca.key", "ackstream-broker.pem", "operator.password", "format"}
    assert {file.stat().st_mode & 0o777 for file in secret} == {0o600}
    # every user of the machine can read those
    assert arguments == [f"@{home / 'format'}"]
    password = (home / "operator.password").read_text("ascii")
    lines = (home / "format").read_text("ascii").splitlines()
    assert lines[-2:] == ["--add-scram", f"SCRAM-SHA-512=[name=operator,password={password}]"]
    assert CLUSTER_ID in lines


def test_passwords_stay_and_are_long(secured: SecuredBroker) -> None:
    secured._own_properties()
    security = secured.kafka.security
    assert security.password is not None
    assert secured.kafka.security == security
    assert len(security.password.reveal()) >= 32
    # nothing that JAAS or the arguments of Kafka's tool would read otherwise
    assert shlex.quote(security.password.reveal()) == security.password.reveal()


def test_each_party_has_a_settings_file(secured: SecuredBroker) -> None:
    assert {secured.settings_file(party).name for party in PARTIES} == {f"{party}.toml" for party in PARTIES}


def test_the_settings_name_tables_and_checkpoints_of_their_own(secured: SecuredBroker) -> None:
    secured._own_properties()
    secured._password("correlate")
    own = Lake(path=str(secured._home / "lake"), checkpoints=str(secured._home / "checkpoints"))
    mine = Lake(path="/mine/\N{GRINNING FACE}", checkpoints="/mine/checkpoints")
    for given, expected in ((Lake(), own), (mine, mine)):
        assert load(secured._write_settings(Settings(lake=given), "correlate", "correlate"), {}).lake == expected


# -- the demo ----------------------------------------------------------------------------------------------------------


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

        def as_user(self, settings: Settings, _user: str) -> Settings:
            return settings

        def admit(self, _settings: Settings) -> list[Path]:
            return []


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    monkeypatch.chdir(tmp_path)
    machine = Machine()
    monkeypatch.setattr(module, "Broker", machine)
    monkeypatch.setattr(module, "create_topics", lambda _: machine.events.append("topics"))
    monkeypatch.setattr(module, "_delete_topics", lambda own: machine.events.append(own.kafka.topic_prefix))
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
    printed = io.StringIO()
    with environment(Settings(), Console(file=printed, width=200)):
        assert not any(path.exists() for path in own)
    replaced = r"Replacing the tables of the demo of \d{4}-\d\d-\d\d \d\d:\d\d UTC in .ackstream/demo/lake\n"
    assert re.fullmatch(replaced, printed.getvalue())
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
