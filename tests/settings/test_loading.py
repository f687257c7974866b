"""Environment over file over defaults, the sections, and a sentence for everything that is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from ackstream.errors import SettingsError
from ackstream.settings import Correlate, Destination, Gateway, Lake, Settings, Settle, load
from ackstream.settings.loading import Local
from ackstream.settings.security import Secret


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "ackstream.toml"
        path.write_text(text, "utf-8")
        return path

    return write


def test_without_a_file_the_defaults_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(environment={}) == Settings()


def test_the_environment_wins_over_the_file(written: Callable[[str], Path]) -> None:
    path = written("[correlate]\nshards = 3\nmax_labels = 5\n")
    settings = load(path, {"ACKSTREAM_CORRELATE_SHARDS": "7", "ACKSTREAM_CORRELATE_REPLY_TOPICS": '["mine.*"]'})
    assert (settings.correlate.shards, settings.correlate.max_labels) == (7, 5)
    assert settings.correlate.reply_topics == ("mine.*",)


def test_the_environment_names_the_file(written: Callable[[str], Path]) -> None:
    path = written("[kafka]\ntopic_prefix = 'mine-'\n")
    assert load(environment={"ACKSTREAM_CONF": str(path)}).kafka.topic("signals") == "mine-signals"


def test_durations_are_read_as_milliseconds(written: Callable[[str], Path]) -> None:
    settings = load(written("[correlate]\norphan_hold = '250ms'\nmax_timeout = 'P2D'\n"), {})
    assert (settings.correlate.orphan_hold, settings.correlate.max_timeout) == (250, 172_800_000)


@pytest.mark.parametrize("text", ["2026-11-22T08:00:00Z", "'2026-11-22T09:00:00+01:00'"])
def test_a_job_can_start_at_a_time(written: Callable[[str], Path], text: str) -> None:
    starting = load(written(f"[correlate]\nstarting = {text}\n"), {}).correlate.starting
    assert starting == datetime(2026, 11, 22, 8, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "environment", "words"),
    [
        ("[correlate]\nshard = 3", {}, ["correlate.shard is not known", "shards"]),
        ("[corelate]\nshards = 3", {}, ["corelate", "correlate"]),
        ("[correlate]\nshards = 0", {}, ["correlate.shards", "0", "ACKSTREAM_CORRELATE_SHARDS"]),
        ("[correlate]\nshards = 'many'", {}, ["correlate.shards", "'many'"]),
        ("[correlate]\norphan_hold = 10", {}, ["correlate.orphan_hold", "10", "250ms"]),
        ("[correlate]\norphan_hold = '-1s'", {}, ["correlate.orphan_hold", "-1s"]),
        ("[correlate]\norphan_hold = '0s'", {}, ["correlate.orphan_hold", "longer than zero"]),
        ("[correlate]\nreply_topics = ['(']", {}, ["correlate.reply_topics", "regular expression"]),
        ("[correlate]\nstarting = 'now'", {}, ["correlate.starting is 'now': must be earliest, latest, or a time"]),
        ("", {"ACKSTREAM_CORRELATE_STARTING": "2026-11-22T08:00:00"}, ["correlate.starting", "a time with its zone"]),
        ("[lake\n", {}, ["not valid TOML"]),
        ("", {"ACKSTREAM_CORRELATE_SHARD": "1"}, ["correlate.shard (variable ACKSTREAM_CORRELATE_SHARD) ", "shards"]),
        ("", {"ACKSTREAM_CORELATE_SHARDS": "1"}, ["ACKSTREAM_CORELATE_SHARDS", "ACKSTREAM_CORRELATE_"]),
        ("", {"ACKSTREAM_KAFKA_OPTIONS_PYTHON": "x=1"}, ["ACKSTREAM_KAFKA_OPTIONS_PYTHON", "JSON"]),
        ("", {"ACKSTREAM_KAFKA_SECURITY_PROTOCL": "SSL"}, ["kafka.security.protocl", "protocol"]),
        ("[kafka.security]\nprotocol = 'TLS'", {}, ["'TLS'", "'SASL_SSL'", "ACKSTREAM_KAFKA_SECURITY_PROTOCOL."]),
        ("kafka = 3", {"ACKSTREAM_KAFKA_SECURITY_PROTOCOL": "SSL"}, ["The setting kafka:"]),
        ("", {"ACKSTREAM_CONF": "/nowhere.toml"}, ["/nowhere.toml", "ACKSTREAM_CONF"]),
    ],
)
def test_a_wrong_setting_is_a_sentence_that_names_it(
    written: Callable[[str], Path], text: str, environment: dict[str, str], words: list[str]
) -> None:
    path = None if "ACKSTREAM_CONF" in environment else written(text)
    with pytest.raises(SettingsError) as caught:
        load(path, environment)
    assert all(part in str(caught.value) for part in words), str(caught.value)


@pytest.mark.parametrize("service", ["ACKSTREAM", "ACKSTREAM_GATEWAY", "ACKSTREAM_KAFKA", "ACKSTREAM_LAKE_STORE"])
def test_the_variables_that_kubernetes_sets_for_a_service_are_no_settings(service: str, tmp_path: Path) -> None:
    port = f"{service}_PORT"
    variables = {
        f"{service}_SERVICE_HOST": "10.0.0.1",
        f"{service}_SERVICE_PORT": "8080",
        f"{service}_SERVICE_PORT_HTTP": "8080",
        port: "tcp://10.0.0.1:8080",
        f"{port}_8080_TCP": "tcp://10.0.0.1:8080",
        f"{port}_8080_TCP_PROTO": "tcp",
        f"{port}_8080_TCP_PORT": "8080",
        f"{port}_8080_TCP_ADDR": "10.0.0.1",
    }
    own = {"ACKSTREAM_GATEWAY_PORT": "9090"} if service != "ACKSTREAM_GATEWAY" else {}
    (tmp_path / "empty.toml").touch()
    settings = load(tmp_path / "empty.toml", variables | own)
    assert settings.gateway.port == (9090 if own else 8080)


BROKER = '[[connections]]\nid = "x"\ntype = "mqtt"\n'
SERVICE = '[[connections]]\nid = "x"\ntype = "http-push"\n'
KAFKA = '[[connections]]\nid = "x"\ntype = "kafka"\n'
FROM, TO = '[[connections.sources]]\naddresses = ["in"]\n', "[[connections.targets]]\n"
HEADER = f'{SERVICE}url = "https://x"\n[[connections.targets]]\naddress = "POST:/e"\ntopics = []\n{{}}'
MADE = '[[connections.sources]]\naddresses = ["in"]\n[[connections.sources.payload_mapping]]\ntopic = "x"\n'


@pytest.mark.parametrize(
    ("text", "environment"),
    [
        pytest.param(f"{BROKER}password = 47110815", {}, id="a number"),
        pytest.param(f"{BROKER}password = ['47110815']", {}, id="a list"),
        pytest.param(f"{BROKER}sources = ['47110815']", {}, id="in place of a table"),
        pytest.param(f'{SERVICE}url = "https://user:47110815@service.example"', {}, id="in a URL"),
        pytest.param(
            HEADER.format("header_mapping = { authorization = 'Bearer 47110815 {{ x' }"), {}, id="in a header"
        ),
        pytest.param(HEADER.format('header_mapping = { x = "{{ fn:default(\'47110815 }}" }'), {}, id="in its template"),
        pytest.param(
            f"{BROKER}{MADE}headers = {{ authorization = 'Bearer 47110815 }}{{{{ x' }}", {}, id="of a payload"
        ),
        pytest.param(
            f"{SERVICE}url = 'https://x'\n{TO}address = 'POST:/x?key=47110815{{{{oops'\ntopics = []",
            {},
            id="in a query",
        ),
        pytest.param(
            f"{SERVICE}url = 'https://x'\n{TO}address = 'POSTS:/x?key=47110815'\ntopics = []", {}, id="of no method"
        ),
        pytest.param(f"{KAFKA}{TO}address = 'a b?key=47110815'\ntopics = []", {}, id="of no topic"),
        pytest.param(
            f'{BROKER}{FROM}reply_target = {{ address = "x?key=47110815{{{{oops" }}',
            {},
            id="of a reply target",
        ),
        pytest.param(
            "[[gateway.issuers]]\nissuer = 'me'\naudience = ['x']\njwks_url = 'http://me:47110815@h.example/?key=47110815'",
            {},
            id="in the URL of keys",
        ),
        pytest.param("[kafka.options]\npython = {'sasl.password' = 47110815}", {}, id="an option of Kafka"),
        pytest.param("[kafka.security]\npassword = 47110815", {}, id="of Kafka"),
        pytest.param("[kafka.security.tls]\nkey_password = ['47110815']", {}, id="of a key"),
        pytest.param("[kafka.security.oauth]\nclient_secret = 47110815", {}, id="of a client"),
        pytest.param("[kafka.security]\nusername = 'me'\npassword = '47110815'", {}, id="of nobody"),
        pytest.param("[kafka.security]\noauth = '47110815'", {}, id="in place of a table of Kafka's"),
        pytest.param("[lake.storage_options]\nsecret = 47110815", {}, id="an option of the object store"),
        pytest.param("", {"ACKSTREAM_CONNECTIONS": '[{"password": "47110815",}]'}, id="no JSON"),
        pytest.param("", {"ACKSTREAM_CONNECTIONS": '"[{47110815}]"'}, id="JSON of JSON"),
        pytest.param("", {"ACKSTREAM_KAFKA_OPTIONS_JAVA": '"sasl.password=47110815"'}, id="a text of options"),
    ],
)
def test_no_sentence_about_a_wrong_setting_has_a_password(
    written: Callable[[str], Path], text: str, environment: dict[str, str]
) -> None:
    with pytest.raises(SettingsError) as caught:
        load(written(text), environment)
    assert "47110815" not in str(caught.value)


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(Exception, match="frozen"):
        Settings().correlate.shards = 5  # type: ignore[misc]


def test_quorums_of_a_writer_are_those_of_the_first_matching_rules() -> None:
    required = [
        {"role": "Logger", "quorum": 2, "writers": ["plant-*"]},
        {"role": "Logger"},
        {"role": "Alarm", "writers": ["x", "plant-[ab]"]},
    ]
    settle = Settle.model_validate({"required": required})
    assert settle.quorums("plant-1") == {"Logger": 2}
    assert settle.quorums("x") == {"Logger": 1, "Alarm": 1}
    assert settle.quorums("plant-a") == {"Logger": 2}


def test_a_durable_reader_is_waited_for_without_end_unless_a_lease_is_set() -> None:
    assert load(None, {}).settle.durable_lease == 2**63 - 1
    assert load(None, {"ACKSTREAM_SETTLE_DURABLE_LEASE": "90d"}).settle.durable_lease == 90 * 86_400_000


@pytest.mark.parametrize(
    ("lease", "words"),
    [
        ("30s", "The setting settle: durable_lease must be longer than reader_lease, and than any outage"),
        ("0s", "settle.durable_lease is '0s': must be longer than zero"),
        ("ever", "settle.durable_lease is 'ever'"),
    ],
)
def test_a_lease_that_would_remove_readers_that_run_is_refused(lease: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load(None, {"ACKSTREAM_SETTLE_DURABLE_LEASE": lease})


def test_a_request_may_choose_existing_topics_that_a_pattern_matches_whole() -> None:
    correlate = Correlate(reply_topics=("mine-.*", "other"))
    topics = ["mine-1", "not-mine-1", "other", "others", "mine-" + "x" * 245, "mine-/"]
    assert list(filter(correlate.allows_reply_topic, topics)) == ["mine-1", "other"]
    assert not Correlate().allows_reply_topic("replies")


def test_what_correlate_must_be_able_to_write_follows_from_what_it_accepts() -> None:
    assert Correlate().record_bytes == 4_466_944
    assert Correlate(max_value_bytes=140_000).record_bytes < 1_048_588, "Kafka's default is enough"


STANDBY = {"name": "standby", "path": "/standby", "type": "sync"}


def _destinations(*destinations: dict[str, Any], **environment: str) -> Any:
    return load(None, {"ACKSTREAM_DESTINATIONS": json.dumps(destinations), **environment}).destinations


def test_the_ages_of_a_destination_are_off_unless_they_are_given() -> None:
    (plain,) = _destinations(STANDBY)
    assert (plain.ack_conflation_interval, plain.downgrade_age, plain.upgrade_age) == (1000, None, None)
    (ruled,) = _destinations({**STANDBY, "downgrade_age": "60s", "upgrade_age": "30s", "check_interval": "5s"})
    assert (ruled.downgrade_age, ruled.upgrade_age, ruled.check_interval) == (60_000, 30_000, 5_000)


@pytest.mark.parametrize(
    ("destinations", "words"),
    [
        ([{"name": "standby", "path": "/standby"}], ["destinations.0.type is missing"]),
        ([{**STANDBY, "type": "both"}], ["destinations.0.type is 'both'", "'sync' or 'async'"]),
        ([{**STANDBY, "name": "a/b"}], ["destinations.0.name is 'a/b'"]),
        ([{**STANDBY, "path": ""}], ["destinations.0.path is ''"]),
        ([{**STANDBY, "downgrade_age": "0s"}], ["destinations.0.downgrade_age is '0s'", "longer than zero"]),
        ([{**STANDBY, "ack_conflation": "1s"}], ["destinations.0.ack_conflation is not known", "ack_conflation_inter"]),
        ([{**STANDBY, "upgrade_age": "30s"}], ["never downgraded: set downgrade_age"]),
        ([{**STANDBY, "upgrade_age": "9s", "downgrade_age": "9s"}], ["set upgrade_age below downgrade_age"]),
        ([{**STANDBY, "type": "async", "downgrade_age": "9s"}], ["nothing waits for standby, which is async"]),
        ([STANDBY, {**STANDBY, "path": "/other"}], ["two destinations have the name 'standby': give each its own"]),
        ([STANDBY, {**STANDBY, "name": "other"}], ["the path of other is that of standby"]),
        ([{**STANDBY, "path": "/lake/sub/../"}], ["the path of standby is the lake's own (lake.path)"]),
        ([{**STANDBY, "path": "s3a://b/l/"}, {**STANDBY, "name": "o", "path": "s3a://b/l"}], ["is that of standby"]),
    ],
)
def test_a_wrong_destination_is_reported_with_key_value_and_remedy(
    destinations: list[dict[str, Any]], words: list[str]
) -> None:
    with pytest.raises(SettingsError) as refusal:
        _destinations(*destinations, ACKSTREAM_LAKE_PATH="/lake")
    for word in words:
        assert word in str(refusal.value)


LOGIN = "protocol = 'SASL_SSL'\nmechanism = 'PLAIN'\nusername = 'me'\n"


def test_a_tilde_is_the_home_directory_as_in_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    lake = Lake(path="~/lake", checkpoints="s3a://bucket/~/checkpoints")
    assert (lake.path, lake.checkpoints) == (f"{tmp_path}/lake", "s3a://bucket/~/checkpoints")
    assert Local(data=Path("~/data")).data == tmp_path / "data"
    assert Destination(name="x", path="~/other", type="async").path == f"{tmp_path}/other"
    (tmp_path / "access.toml").touch()
    assert Gateway(access_file=Path("~/access.toml")).access_file == tmp_path / "access.toml"
    assert Gateway().access_file is None
    (tmp_path / "password").write_text("hunter2\n", "utf-8")
    (tmp_path / "a.toml").write_text(f"[kafka.security]\npassword = {{ file = '~/password' }}\n{LOGIN}", "utf-8")
    settings = load(environment={"ACKSTREAM_CONF": "~/a.toml", "HOME": str(tmp_path)})
    assert settings.kafka.security.password == Secret("hunter2")


def test_a_tilde_of_a_user_without_a_home_is_a_sentence() -> None:
    values = {"ACKSTREAM_KAFKA_SECURITY_PASSWORD": '{"file": "~no-such-user-xyz/password"}'}
    with pytest.raises(SettingsError, match="the file ~no-such-user-xyz/password cannot be read"):
        load(environment=values)
