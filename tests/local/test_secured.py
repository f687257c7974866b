"""Files of the secured local Kafka; that it runs is in tests/integration."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ackstream.kafka.parties import PARTIES
from ackstream.local.broker import CLUSTER_ID
from ackstream.local.secured import SecuredBroker
from ackstream.settings import Local, Settings


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
