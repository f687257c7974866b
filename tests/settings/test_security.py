"""Secrets, certificates and logins: what is taken, and a sentence for what is missing, unfit or without effect."""

from __future__ import annotations

import json
import logging
import pickle
import ssl
from pathlib import Path
from typing import Any

import pytest

from ackstream.errors import SettingsError
from ackstream.settings import Kafka, load
from ackstream.settings.security import Secret, Tls
from tests.harness.certificates import Authority

LOGIN = {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", "username": "me", "password": "47110815"}
TOKEN_URL = "https://login.example/token"
OAUTH = {"token_url": TOKEN_URL, "client_id": "me", "client_secret": "47110815"}


def read(security: dict[str, Any], **environment: str) -> Kafka:
    return load(environment={"ACKSTREAM_KAFKA_SECURITY": json.dumps(security), **environment}).kafka


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_a_secret_is_a_text_a_file_or_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("of the file \n", "utf-8")
    for given, text in (
        ("plain", "plain"),
        ({"file": str(file)}, "of the file "),
        ({"environment": "MINE"}, "of the variable"),
    ):
        password = read(LOGIN | {"password": given}, MINE="of the variable").security.password
        assert password is not None
        assert password.reveal() == text


def test_a_secret_in_the_environment_may_be_a_table_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("x" * 40 + "\n")
    monkeypatch.setenv("ACKSTREAM_KAFKA_ORIGINATOR_KEY", json.dumps({"file": str(tmp_path / "key")}))
    key = load().kafka.originator_key
    assert key is not None
    assert key.reveal() == "x" * 40
    # a text that only begins like one is itself
    for text in ("{" * 40, '{"password": "' + "y" * 40 + '"}'):
        monkeypatch.setenv("ACKSTREAM_KAFKA_ORIGINATOR_KEY", text)
        key = load().kafka.originator_key
        assert key is not None
        assert key.reveal() == text


def test_no_text_made_of_settings_has_a_secret() -> None:
    kafka = read(LOGIN)
    shown = (repr(kafka), str(kafka), str(kafka.model_dump()), kafka.model_dump_json(), f"{kafka.security.password}")
    assert not any("47110815" in text for text in shown)
    # executors need it
    assert pickle.loads(pickle.dumps(kafka)).security.password.reveal() == "47110815"


def test_each_key_of_an_inner_section_has_a_name_in_the_environment() -> None:
    variables = {"PROTOCOL": "SASL_SSL", "MECHANISM": "OAUTHBEARER"}
    variables |= {f"OAUTH_{key.upper()}": value for key, value in OAUTH.items()}
    variables |= {"TLS_VERIFY_HOSTNAME": "false"}
    security = load(environment={f"ACKSTREAM_KAFKA_SECURITY_{name}": text for name, text in variables.items()}).kafka
    assert (security.security.mechanism, security.security.tls.verify_hostname) == ("OAUTHBEARER", False)
    assert security.security.oauth.token_url == TOKEN_URL


def test_the_environment_completes_what_stands_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "ackstream.toml"
    file.write_text("[kafka.security]\nprotocol = 'SASL_SSL'\nmechanism = 'PLAIN'\nusername = 'me'\n", "utf-8")
    security = load(file, {"ACKSTREAM_KAFKA_SECURITY_PASSWORD": "p"}).kafka.security
    assert (security.username, security.password) == ("me", Secret("p"))


@pytest.mark.parametrize(
    ("security", "words"),
    [
        (LOGIN | {"password": ""}, ["SCRAM-SHA-512 needs both username and password"]),
        (LOGIN | {"username": ""}, ["SCRAM-SHA-512 needs both username and password"]),
        (LOGIN | {"mechanism": ""}, ["SASL_SSL needs a mechanism"]),
        (LOGIN | {"protocol": "SSL"}, ["the protocol SSL has no login: write SASL_SSL"]),
        ({"password": "47110815"}, ["the protocol PLAINTEXT has no login"]),
        ({"tls": {"verify_hostname": False}}, ["tls has no effect with the protocol PLAINTEXT: write SSL"]),
        (LOGIN | {"protocol": "SASL_PLAINTEXT", "tls": {"verify_hostname": False}}, ["write SASL_SSL"]),
        (LOGIN | {"oauth": OAUTH}, ["oauth has no effect with the mechanism SCRAM-SHA-512: write OAUTHBEARER"]),
        (LOGIN | {"mechanism": "OAUTHBEARER"}, ["OAUTHBEARER takes no username and password"]),
        (
            {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "oauth": {"client_id": "me"}},
            ["OAUTHBEARER needs oauth.token_url, oauth.client_secret"],
        ),
        (LOGIN | {"mechanism": "SCRAM-SHA-1"}, ["kafka.security.mechanism", "'SCRAM-SHA-1'", "'SCRAM-SHA-256'"]),
        ({"oauth": OAUTH | {"token_url": "http://login.example/"}}, ["oauth.token_url", "must begin with https://"]),
        ({"oauth": OAUTH | {"token_url": "https://me:x@login.example/"}}, ["oauth.token_url", "names a user"]),
        (LOGIN | {"password": {"file": "/none"}}, ["security.password", "/none cannot be read (No such file"]),
        (LOGIN | {"password": {"environment": "NONE"}}, ["security.password", "no environment variable NONE"]),
        (LOGIN | {"password": {"fil": "47110815"}}, ["security.password", "{file ="]),
    ],
)
def test_a_login_that_is_incomplete_or_without_effect_is_refused(security: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        read(security)
    assert all(part in str(caught.value) for part in ["The setting kafka.security", *words]), str(caught.value)
    assert "47110815" not in str(caught.value)


def test_certificates_are_those_of_the_files(authority: Authority) -> None:
    certificate, key = authority.issue_pair("me", password="p")
    tls = Tls(ca=authority.ca, certificate=certificate, key=key, key_password=Secret("p"), verify_hostname=False)
    context = tls.client_context()
    assert [found["subject"] for found in context.get_ca_certs()] == [((("commonName", "ackstream local authority"),),)]
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_REQUIRED)
    assert Tls().client_context().check_hostname


def test_a_key_may_stand_in_the_file_of_its_certificate(authority: Authority) -> None:
    tls = Tls(certificate=authority.issue("me"))
    assert (tls.chain.count("-----BEGIN"), tls.chain.count("KEY-----")) == (1, 0)
    assert tls.private_key().startswith("-----BEGIN PRIVATE KEY-----")


@pytest.mark.parametrize(
    ("tls", "sentence"),
    [
        ({"ca": "none.pem"}, "none.pem cannot be read (No such file or directory): correct the path or its rights"),
        ({"ca": "empty.pem"}, "empty.pem has no certificate in PEM"),
        ({"ca": "keys.p12"}, "keys.p12 is not a text: name one in PEM"),
        ({"certificate": "me.pem"}, "me.pem has no private key in PEM: name the one of "),
        ({"certificate": "me.pem", "key": "locked.key"}, "locked.key cannot be read: correct key_password"),
        (
            {"certificate": "locked.pem", "key": "locked.key", "key_password": "wrong"},
            "locked.key cannot be read: correct key_password",
        ),
        ({"certificate": "me.pem", "key": "other.key"}, "other.key is not that of the certificate "),
        ({"certificate": "old.pem", "key": "old.key"}, "old.pem expired at 20"),
        ({"key": "me.key"}, "there is a key without a certificate"),
    ],
)
def test_a_file_that_is_missing_or_unfit_is_named(authority: Authority, tls: dict[str, str], sentence: str) -> None:
    directory = authority.ca.parent
    for name in ("me", "other"):
        authority.issue_pair(name)
    authority.issue_pair("locked", password="right")
    authority.issue_pair("old", expired=True)
    (directory / "empty.pem").touch()
    (directory / "keys.p12").write_bytes(b"\x80\x81")
    named = {key: value if key == "key_password" else str(directory / value) for key, value in tls.items()}
    with pytest.raises(SettingsError) as caught:
        read({"protocol": "SSL", "tls": named})
    assert sentence in str(caught.value)
    assert "The setting kafka.security.tls" in str(caught.value)


@pytest.mark.parametrize("library", ["python", "java"])
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("acks", "acks is set by ackstream itself, whose guarantees depend on it: remove it"),
        ("enable.idempotence", "is set by ackstream itself"),
        ("isolation_level", "is set by ackstream itself"),
        ("bootstrap.servers", "is set by ackstream itself"),
        ("group.id", "is set by ackstream itself"),
        ("security.protocol", "security.protocol is set in kafka.security, for all clients at once: move it there"),
        ("ssl.truststore.location", "is set in kafka.security"),
        ("sasl.mechanism", "is set in kafka.security"),
        ("sasl.jaas.config", "is set in kafka.security"),
    ],
)
def test_no_option_is_taken_that_security_or_a_promise_hangs_on(library: str, name: str, sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(environment={f"ACKSTREAM_KAFKA_OPTIONS_{library.upper()}": json.dumps({name: "47110815"})})
    assert sentence in str(caught.value)
    assert "47110815" not in str(caught.value)


def test_a_mechanism_that_the_libraries_set_up_each_in_its_way_takes_their_options() -> None:
    options = {"ACKSTREAM_KAFKA_OPTIONS_JAVA": '{"sasl.kerberos.service.name": "kafka"}'}
    kafka = read({"protocol": "SASL_SSL", "mechanism": "GSSAPI"}, **options)
    assert kafka.options.java == {"sasl.kerberos.service.name": "kafka"}
    with pytest.raises(SettingsError, match=r"sasl\.kerberos\.service\.name is set in kafka\.security"):
        read(LOGIN, **options)


@pytest.mark.parametrize(
    ("bootstrap", "protocol", "warned"),
    [
        ("kafka.example:9092", "SASL_PLAINTEXT", True),
        ("localhost:9092,kafka.example:9092", "SASL_PLAINTEXT", True),
        ("localhost:9092,127.0.0.1:1,[::1]:9092", "SASL_PLAINTEXT", False),
        ("kafka.example:9092", "SASL_SSL", False),
    ],
)
def test_a_login_on_an_open_line_to_another_machine_warns(
    bootstrap: str,
    protocol: str,
    warned: bool,  # noqa: FBT001 - a case
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        read(LOGIN | {"protocol": protocol}, ACKSTREAM_KAFKA_BOOTSTRAP=bootstrap)
    assert ("can read passwords, tokens and records" in caplog.text) == warned


def test_a_connection_and_a_route_have_the_same_security() -> None:
    own = {"id": "plant", "type": "kafka", "bootstrap": "plant:9092", "security": LOGIN}
    route = {"name": "plant", "topic_prefix": "plant-"}
    tables = {"ACKSTREAM_CONNECTIONS": json.dumps([own]), "ACKSTREAM_ROUTES": json.dumps([route])}
    settings = load(environment={**tables, "ACKSTREAM_KAFKA_SECURITY": json.dumps(LOGIN | {"username": "system"})})
    (connection,) = settings.connections
    assert settings.routes[0].target(settings.kafka).security.username == "system"
    assert "47110815" not in repr(connection)
    elsewhere = {"ACKSTREAM_CONNECTIONS": json.dumps([own | {"options": {"acks": "1"}}])}
    with pytest.raises(SettingsError, match=r"connections\.0\.options: acks is set by ackstream itself"):
        load(environment=elsewhere)


def test_a_key_that_signs_is_long_and_is_not_shown() -> None:
    key = "0123456789abcdef0123456789abcdef"
    kafka = load(environment={"ACKSTREAM_KAFKA_ORIGINATOR_KEY": key}).kafka
    assert kafka.originator_key is not None
    assert (kafka.originator_key.reveal(), key in repr(kafka)) == (key, False)
    with pytest.raises(SettingsError, match=r"kafka\.originator_key: must have 32 random characters") as refused:
        load(environment={"ACKSTREAM_KAFKA_ORIGINATOR_KEY": key[:-1]})
    assert key[:-1] not in str(refused.value)
    assert load(environment={"ACKSTREAM_KAFKA_ORIGINATOR_KEY": ""}).kafka.originator_key is None
