"""``[[connections]]``: what is taken, and a sentence for everything that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ackstream.errors import SettingsError
from ackstream.settings import load
from ackstream.settings.connections import HttpPushConnection, KafkaConnection, MqttConnection
from ackstream.settings.security import Tls
from tests.harness.certificates import Authority

SOURCE: dict[str, Any] = {"addresses": ["in"]}
EVENTS = "_/_/things/twin/events"
TARGET: dict[str, Any] = {"address": "out", "topics": [EVENTS]}


HTTP: dict[str, Any] = {
    "type": "http-push",
    "url": "https://plant.example/api",
    "targets": [TARGET | {"address": "POST:/events/{{ thing:id }}"}],
}


TELLING = "org.acme/lamp/things/live/messages/{{ header:subject }}"


def made(topic: str, **parts: Any) -> dict[str, Any]:
    return SOURCE | {"payload_mapping": [{"topic": topic, **parts}]}


def read(*connections: dict[str, Any]) -> Any:
    return load(environment={"ACKSTREAM_CONNECTIONS": json.dumps(connections)}).connections


def connection(**parts: Any) -> dict[str, Any]:
    return {"id": "plant", "type": "kafka", **parts}


def test_connections_stand_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ackstream.toml"
    path.write_text(
        """
        [[connections]]
        id = "plant"
        type = "kafka"
        bootstrap = "elsewhere:9092"
        [[connections.sources]]
        addresses = ["telemetry"]
        qos = 1
        acknowledgement_requests = { includes = ["plant:stored"], filter = "fn:filter(header:qos,'ne','0')" }
        payload_mapping = ["ditto", { topic = "org.acme/{{ header:device }}/things/twin/commands/modify" }]
        [connections.sources.reply_target]
        address = "answers/{{ header:device }}"
        [[connections.targets]]
        address = "events#1"
        topics = ["_/_/things/twin/events"]
        issued_ack = "plant:delivered"
        [[connections]]
        id = "field"
        type = "mqtt"
        password = "secret"
        """,
        "utf-8",
    )
    plant, field = load(path, {}).connections
    assert isinstance(plant, KafkaConnection)
    assert plant.sources[0].reply_target is not None
    assert plant.sources[0].reply_target.expected == ("response", "error", "nack")
    assert plant.labels.to_declare == ("plant:delivered",)
    assert isinstance(field, MqttConnection)
    assert "secret" not in repr(field)


def test_the_environment_gives_all_of_them_as_json() -> None:
    assert read(connection(sources=[SOURCE]))[0].sources[0].qos == 0


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"sources": [SOURCE | {"qso": 1}]}, ["connections.0.sources.0.qso", "qos"]),
        ({"sourcs": []}, ["connections.0.sourcs", "sources"]),
        ({"type": "amqp", "x": "geheim"}, ["connections.0", "kafka", "mqtt", "amqp-10", "amqp-091", "http-push"]),
        ({"type": "amqp-10", "sources": [SOURCE | {"qos": 2}]}, ["connections.0.sources.0.qos"]),
        ({"type": "http-push", "targets": [TARGET]}, ["connections.0.url"]),
        (HTTP | {"sources": [SOURCE]}, ["connections.0.sources", "have no sources; remove them"]),
        (HTTP | {"targets": [TARGET]}, ["connections.0.targets.0.address", "'out'", "POST:/events"]),
        (HTTP | {"unavailable_statuses": ["2xx"]}, ["connections.0.unavailable_statuses.0", "'2xx'", "such as 5xx"]),
        (HTTP | {"targets": []}, ["connections.0.targets"]),
        (HTTP | {"url": "ftp://x:geheim@y"}, ["connections.0.url", "https://service.example"]),
        ({"sources": [{"addresses": []}]}, ["connections.0.sources.0.addresses", "ACKSTREAM_CONNECTIONS."]),
        ({"sources": [SOURCE | {"declared_acks": ["other:ack"]}]}, ["other:ack", "<id>:"]),
        ({"sources": [SOURCE | {"declared_acks": ["x"]}]}, ["declared_acks", "<x>"]),
        ({"targets": [TARGET | {"issued_ack": "plant:a"}] * 2}, ["one target"]),
        ({"targets": [TARGET | {"topics": ["_/_/things/twin/event"]}]}, ["topics.0", "_/_/things/twin/events"]),
        ({"targets": [TARGET | {"topics": [f"{EVENTS}?filters=x"]}]}, ["'filters'", "namespaces, filter"]),
        ({"targets": [TARGET | {"topics": [f"{EVENTS}?filter=eq(x"]}]}, ["topics.0", "eq(x"]),
        ({"targets": [TARGET | {"address": "a b"}]}, ["targets.0.address", "a b"]),
        ({"targets": [TARGET | {"address": "a#x"}]}, ["a#x", "partition"]),
        ({"targets": [TARGET | {"address": "{{ thing:colour }}"}]}, ["thing:colour", "thing:name"]),
        ({"sources": [SOURCE | {"subjects": ["connection:*"]}]}, ["sources.0.subjects.0", "connection:*"]),
        ({"sources": [SOURCE | {"enforcement": {"input": "{{ header:x }}"}}]}, ["enforcement.filters"]),
        ({"sources": [SOURCE | {"header_mapping": {"Ditto-Sudo": "true"}}]}, ["Ditto-Sudo", "only the system sets"]),
        ({"sources": [made(TELLING, headers={"ditto-originator": "x"})]}, ["ditto-originator", "only the system"]),
        ({"sources": [made("org.acme/{{ header:topic }}")]}, ["payload_mapping.0", "no group part"]),
        ({"sources": [made("org.acme/a/things/twin/commands/{{ header:x }}")]}, ["Action name <x> is unknown"]),
        ({"sources": [made("org.acme/a/things/twin/commands/modify/{{ header:x }}")]}, ["continues after"]),
        ({"sources": [made("org.acme/a/things/twin/acks/x")]}, ["not the topic of a command or a message"]),
        ({"sources": [made(TELLING, path="{{ header:x }}")]}, ["payload_mapping.0", "must begin with a slash"]),
        ({"type": "mqtt", "tls": {"ca": "/none.pem"}}, ["connections.0.tls", "/none.pem"]),
        ({"type": "mqtt", "tls": {"key": "/none.pem"}}, ["connections.0.tls", "a key without a certificate"]),
        ({"type": "mqtt", "tls": "yes"}, ["connections.0.tls"]),
        ({"type": "mqtt", "password": {"file": "/none"}}, ["connections.0.password", "/none"]),
        (HTTP | {"url": "http://x", "tls": True}, ["tls has no effect", "https://"]),
        (
            {"sources": [SOURCE | {"acknowledgement_requests": {"filter": "fn:fliter('a')"}}]},
            ["fn:fliter", "fn:filter"],
        ),
    ],
)
def test_a_wrong_setting_is_a_sentence_that_names_it(parts: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        read(connection(**parts))
    assert all(part in str(caught.value) for part in words), str(caught.value)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("identity", "qos", "accepted"),
    [
        ("kafka-config-qos-0", 0, True),
        ("kafka-config-qos-1", 1, True),
        ("kafka-config-qos-2", 2, False),
        ("kafka-config-qos--1", -1, False),
    ],
)
def test_prose_quality_of_service(identity: str, qos: int, accepted: bool) -> None:  # noqa: FBT001 - a case
    assert identity.endswith(str(qos))
    given_ = connection(sources=[SOURCE | {"qos": qos}])
    if accepted:
        assert read(given_)[0].sources[0].qos == qos
    else:
        with pytest.raises(SettingsError, match=r"sources\.0\.qos"):
            read(given_)


def test_prose_kafka_config_qos_none_is_at_most_once() -> None:
    assert read(connection(sources=[SOURCE]))[0].sources[0].qos == 0


def test_two_connections_have_different_ids() -> None:
    with pytest.raises(SettingsError, match="two connections have the id 'plant'"):
        read(connection(), connection())


@pytest.mark.parametrize("kind", ["mqtt", "mqtt-5", "amqp-10", "amqp-091"])
def test_by_default_a_broker_s_message_is_settled_after_its_acknowledgements(kind: str) -> None:
    assert read(connection(type=kind, sources=[SOURCE]))[0].sources[0].qos == 1


@pytest.mark.parametrize("address", ["events", "events/", "events/k", "/queue", "{{ header:x }}"])
def test_an_amqp_091_target_names_an_exchange_and_a_routing_key(address: str) -> None:
    given_ = connection(type="amqp-091", targets=[TARGET | {"address": address}])
    if address == "events":
        with pytest.raises(SettingsError, match=r"'events': it has no slash: write exchange/routing-key"):
            read(given_)
    else:
        assert read(given_)[0].targets[0].address == address


def test_a_wrong_header_is_named_without_its_text() -> None:
    given_ = connection(targets=[TARGET | {"header_mapping": {"authorization": "Bearer geheim {{ x"}}])
    with pytest.raises(SettingsError, match=r"targets\.0\.header_mapping\.authorization: a placeholder") as caught:
        read(given_)
    assert "geheim" not in str(caught.value)


def test_http_targets_are_a_method_and_a_path() -> None:
    (found,) = read(connection(**HTTP))
    assert isinstance(found, HttpPushConnection)
    assert (found.parallelism, found.timeout) == (1, 60_000)


# -- TLS and passwords -------------------------------------------------------------------------------------------------

BROKERS = ["mqtt", "mqtt-5", "amqp-10", "amqp-091"]


@pytest.mark.parametrize("kind", BROKERS)
def test_tls_is_that_of_the_system_or_has_an_authority_and_a_certificate_of_its_own(kind: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue_pair("plant", password="47110815")
    own = {"ca": str(authority.ca), "certificate": str(certificate), "key": str(key), "key_password": "47110815"}
    none, system, found = (read(connection(type=kind, tls=tls))[0].tls for tls in (False, True, own))
    assert (none, system) == (None, Tls())
    assert (found.ca, found.certificate, found.verify_hostname) == (authority.ca, certificate, True)
    assert "47110815" not in repr(found)


def test_a_password_is_read_from_a_file_or_a_variable(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("of the file\n", "utf-8")
    for given, text in (({"file": str(tmp_path / "password")}, "of the file"), ("plain", "plain")):
        (found,) = read(connection(type="mqtt", username="me", password=given))
        assert found.secret == text
        assert text not in repr(found)


MAPPED = {"header_mapping": {"authorization": "Bearer {{ header:x }}"}}
PUSHED = HTTP | {"url": "https://plant.example/hook", "targets": [TARGET | MAPPED | {"address": "POST:/x?key=1"}]}
REPLIES = {"sources": [SOURCE | MAPPED | {"reply_target": MAPPED | {"address": "out/{{ header:x }}"}}]}
ELSEWHERE = [
    pytest.param(PUSHED, ("url",), id="url"),
    pytest.param(PUSHED, ("targets", 0, "address"), id="an HTTP address"),
    pytest.param(PUSHED, ("targets", 0, "header_mapping", "authorization"), id="a header of a target"),
    pytest.param({"targets": [TARGET | {"address": "t/k"}]}, ("targets", 0, "address"), id="a Kafka address"),
    pytest.param({"type": "mqtt", "targets": [TARGET]}, ("targets", 0, "address"), id="an MQTT address"),
    pytest.param(
        {"type": "amqp-091", "targets": [TARGET | {"address": "/q"}]}, ("targets", 0, "address"), id="an exchange"
    ),
    pytest.param(REPLIES, ("sources", 0, "header_mapping", "authorization"), id="a header of a source"),
    pytest.param(REPLIES, ("sources", 0, "reply_target", "address"), id="of replies"),
    pytest.param(REPLIES, ("sources", 0, "reply_target", "header_mapping", "authorization"), id="a header of replies"),
    pytest.param(
        {"sources": [made(TELLING, headers={"x": "a"})]},
        ("sources", 0, "payload_mapping", 0, "headers", "x"),
        id="of a payload",
    ),
]


def put(parts: dict[str, Any], path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy with another value, and the value that was there."""
    found = copied = json.loads(json.dumps(connection(**parts)))
    for step in path[:-1]:
        found = found[step]
    before, found[path[-1]] = found[path[-1]], value
    return copied, before


def at(found: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        found = found[step] if isinstance(step, int) or isinstance(found, dict) else getattr(found, step)
    return found


@pytest.mark.parametrize(("parts", "path"), ELSEWHERE)
def test_a_text_that_may_be_a_secret_may_stand_in_a_file_or_a_variable(
    parts: dict[str, Any], path: tuple[Any, ...], tmp_path: Path
) -> None:
    of_file, text = put(parts, path, {"file": str(tmp_path / "secret")})
    (tmp_path / "secret").write_text(f"{text}\n", "utf-8")
    assert at(read(of_file)[0], path) == text
    of_variable, _ = put(parts, path, {"environment": "PLANT_KEY"})
    environment = {"ACKSTREAM_CONNECTIONS": json.dumps([of_variable]), "PLANT_KEY": text}
    assert at(load(environment=environment).connections[0], path) == text


@pytest.mark.parametrize(("parts", "path"), ELSEWHERE)
def test_an_error_about_such_a_text_names_its_place_and_does_not_show_it(
    parts: dict[str, Any], path: tuple[Any, ...], tmp_path: Path
) -> None:
    wrong, _ = put(parts, path, {"file": str(tmp_path / "secret")})
    name = ".".join(map(str, path[:4]))
    with pytest.raises(SettingsError, match=rf"{name}.*{tmp_path}/secret cannot be read \(No such file"):
        read(wrong)
    (tmp_path / "secret").write_text("geheim b{{ geheim", "utf-8")
    with pytest.raises(SettingsError, match=f"{name}.*: the text that is read from there is not accepted") as caught:
        read(wrong)
    assert "geheim" not in str(caught.value)


SERVICE = {"password": "47110815", "username": "me"}


@pytest.mark.parametrize(
    ("given_", "warns"),
    [
        *[(connection(type=kind, host="broker.example", **SERVICE), True) for kind in BROKERS],
        (connection(type="mqtt", host="broker.example"), False),
        (connection(type="mqtt", host="broker.example", tls=True, **SERVICE), False),
        (connection(type="mqtt", **SERVICE), False),
        (connection(**HTTP | SERVICE), False),
        (connection(**HTTP | SERVICE | {"url": "http://plant.example/api"}), True),
        (connection(**HTTP | SERVICE | {"url": "http://127.0.0.1:9/api"}), False),
    ],
)
def test_a_password_that_goes_unencrypted_over_a_network_warns_at_the_start(
    given_: dict[str, Any],
    warns: bool,  # noqa: FBT001 - a table
    caplog: pytest.LogCaptureFixture,
) -> None:
    read(given_)
    said = [each.getMessage() for each in caplog.records if "can read the password" in each.getMessage()]
    assert bool(said) is warns
    assert not any("47110815" in each for each in said)
