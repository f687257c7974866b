"""One setting, in the words of both libraries."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer

from ackstream.kafka.security import TokenProvider, java_security, python_security, tokens_of
from ackstream.settings.kafka import KafkaSecurity
from tests.harness.certificates import Authority

OAUTH = {"token_url": "https://login.example/token", "client_id": "me", "client_secret": 'a"b\\c', "scope": "kafka"}
BEARER = {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "oauth": OAUTH}


def _security(**values: Any) -> KafkaSecurity:
    return KafkaSecurity.model_validate(values)


def test_without_security_both_say_so() -> None:
    assert python_security(KafkaSecurity()) == {"security_protocol": "PLAINTEXT"}
    assert java_security(KafkaSecurity()) == {"security.protocol": "PLAINTEXT"}


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", "plain.PlainLoginModule"), ("SCRAM-SHA-256", "scram.ScramLoginModule"), ("SCRAM-SHA-512", "scram.")],
)
def test_a_password_is_given_to_both(mechanism: str, module: str) -> None:
    security = _security(protocol="SASL_PLAINTEXT", mechanism=mechanism, username="me", password="secret")
    assert python_security(security) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "me",
        "sasl_plain_password": "secret",
    }
    found = java_security(security)
    assert found.keys() == {"security.protocol", "sasl.mechanism", "sasl.jaas.config"}
    assert (found["security.protocol"], found["sasl.mechanism"]) == ("SASL_PLAINTEXT", mechanism)
    assert found["sasl.jaas.config"].startswith(f"org.apache.kafka.common.security.{module}")
    assert found["sasl.jaas.config"].endswith(' required username="me" password="secret";')


def test_no_password_ends_its_entry_of_jaas() -> None:
    password = 'a"; org.example.Evil required x="\\" \n\r'
    security = _security(protocol="SASL_SSL", mechanism="PLAIN", username="me", password=password)
    entry = java_security(security)["sasl.jaas.config"]
    assert entry.endswith(r' password="a\"; org.example.Evil required x=\"\\\" \n\r";')


def test_certificates_are_a_context_for_python_and_texts_for_java(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue_pair("me", password="p")
    tls = {"ca": authority.ca, "certificate": certificate, "key": key, "key_password": "p", "verify_hostname": False}
    security = _security(protocol="SSL", tls=tls)
    context = python_security(security)["ssl_context"]
    assert isinstance(context, ssl.SSLContext)
    assert not context.check_hostname
    found = java_security(security)
    assert found.pop("ssl.keystore.key").startswith("-----BEGIN PRIVATE KEY-----")
    assert found == {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority.ca.read_text(),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": certificate.read_text(),
        "ssl.endpoint.identification.algorithm": "",
    }


def test_without_a_ca_the_authorities_of_the_system_are_trusted() -> None:
    assert java_security(_security(protocol="SSL")) == {"security.protocol": "SSL"}
    assert python_security(_security(protocol="SSL"))["ssl_context"].check_hostname


def test_tokens_are_fetched_by_each_library_itself(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    security = _security(**BEARER | {"oauth": OAUTH | {"ca": authority.ca}})
    assert isinstance(python_security(security)["sasl_oauth_token_provider"], TokenProvider)
    # one for all clients of the process
    assert python_security(security)["sasl_oauth_token_provider"] is tokens_of(security.oauth)
    found = java_security(security)
    login = found.pop("sasl.jaas.config")
    assert found == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
        ),
        "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
        "sasl.oauthbearer.header.urlencode": "true",
    }
    assert r'clientId="me" clientSecret="a\"b\\c" scope="kafka" ssl.truststore.type="PEM"' in login
    assert r'ssl.truststore.certificates="-----BEGIN CERTIFICATE-----\n' in login


def test_python_knows_every_option_that_it_is_given() -> None:
    for security in (
        _security(protocol="SASL_SSL", mechanism="PLAIN", username="a", password="b"),
        _security(**BEARER),
    ):
        assert python_security(security).keys() <= KafkaConsumer.DEFAULT_CONFIG.keys()
