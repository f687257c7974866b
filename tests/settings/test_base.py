from __future__ import annotations

import re
from pathlib import Path

import pytest

from ackstream.errors import SettingsError
from ackstream.settings import load
from ackstream.settings.base import without_secrets

CONNECTION = '[[connections]]\nid = "x"\n'


def _refusal(path: Path, text: str) -> str:
    (path / "a.toml").write_text(text, "utf-8")
    with pytest.raises(SettingsError) as refused:
        load(path / "a.toml", {})
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[correlate]\nshards = 'many'", "correlate.shards is 'many': must be a whole number."),
        ("[gateway]\nport = 3.5", "gateway.port is 3.5: must be a whole number."),
        (
            "[correlate]\ndefault_timeout = '5m'",
            "correlate.default_timeout is '5m': must be 65s or less, as connections and WebSockets wait no longer",
        ),
        ("[kafka]\npartitions = 0", "kafka.partitions is 0: must be 1 or more."),
        ("[local]\nport = 65536", "local.port is 65536: must be 65535 or less."),
        ("[kafka]\nbootstrap = ''", "kafka.bootstrap is '': must not be empty."),
        ("[lake]\npath = 3", "lake.path is 3: must be a text."),
        ("[correlate]\nreply_topics = 3", "correlate.reply_topics: must be a list."),
        ("kafka = 3", "kafka: must be a table."),
        ("[correlate]\nstate_store = 'rock'", "correlate.state_store is 'rock': must be 'hdfs' or 'rocksdb'."),
        ("[local]\nheap = 'big'", "local.heap is 'big': must be a whole number with k, m or g, such as 512m."),
        (
            "[kafka]\ntopic_prefix = 'a b'",
            "kafka.topic_prefix is 'a b': may have letters, digits, dots, ",
        ),
        (
            "[correlate]\ntrigger = 'every minute'",
            "correlate.trigger is 'every minute': a duration is a text with ",
        ),
        ("[correlate]\ntrigger = '5 seconds'", "correlate.trigger is '5 seconds': a duration is a text with its unit"),
        ("[correlate]\norphan_hold = '10'", "correlate.orphan_hold is '10': a duration is a text with its unit, such"),
        (
            "[correlate]\norphan_hold = '99999999999999999d'",
            "correlate.orphan_hold is '99999999999999999d': a duration of mil",
        ),
        (f"{CONNECTION}type = 'amqp'", "connections.0.type is 'amqp': must be one of 'kafka', 'mqtt', 'mqtt-5', "),
        (CONNECTION, "connections.0.type is missing: write it in the settings file or in ACKSTREAM_CONNECTIONS."),
        ("[[queues]]\nname = 'q'", "queues.0.topics is missing: write it in the settings file or in ACKSTREAM_QUEUES."),
    ],
)
def test_what_is_wrong_is_said_in_words_of_the_product(tmp_path: Path, text: str, sentence: str) -> None:
    assert _refusal(tmp_path, text).startswith(f"The setting {sentence}")


HOSTS = [
    "[gateway]",
    "[metrics]",
    *(f"{CONNECTION}type = '{kind}'" for kind in ("mqtt", "mqtt-5", "amqp-10", "amqp-091")),
]


@pytest.mark.parametrize("part", HOSTS)
@pytest.mark.parametrize(
    "host",
    [
        "mqtt://me:47110815@h.example",
        "me:47110815@h.example",
        "47110815@h",
        "h.example:1883",
        "h.example/x",
        "[::1]:80",
        "a b",
        "",
    ],
)
def test_a_host_is_a_name_or_address_without_scheme_user_and_port(tmp_path: Path, part: str, host: str) -> None:
    refusal = _refusal(tmp_path, f"{part}\nhost = '{host}'")
    assert ".host" in refusal
    assert "it is not the name or address of a host: write it without scheme, user and port" in refusal
    assert "47110815" not in refusal


@pytest.mark.parametrize("part", HOSTS)
@pytest.mark.parametrize(
    "host", ["h", "my_host-1.example", "10.0.0.7", "::1", "[fe80::1%eth0]", "::ffff:10.0.0.7", "bücher.example"]
)
def test_a_host_has_any_name_or_address(tmp_path: Path, part: str, host: str) -> None:
    users = "users.ada = 'x'\n" if part == "[gateway]" else ""
    (tmp_path / "a.toml").write_text(f"{part}\n{users}host = '{host}'", "utf-8")
    assert f"host='{host}'" in repr(load(tmp_path / "a.toml", {}))


@pytest.mark.parametrize("part", ["[kafka]", f"{CONNECTION}type = 'kafka'", "[[routes]]\nname = 'x'"])
def test_brokers_are_named_without_a_user(tmp_path: Path, part: str) -> None:
    refusal = _refusal(tmp_path, f"{part}\nbootstrap = 'kafka://me:47110815@h.example:9092'")
    assert "bootstrap is 'kafka://…h.example:9092': it names a user: write host:port" in refusal
    assert "47110815" not in refusal


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("events/lamp-7", "events/lamp-7"),
        ("POST:/events/{{ thing:id }}", "POST:/events/{{ thing:id }}"),
        ("POST:/x?key=47110815", "POST:/x?…"),
        ("https://h.example/a?key=47110815#c", "https://h.example/a?…"),
        ("https://h.example/a?key=47110815&mail=a@b#c", "https://…"),
        ("https://me:47110815@h.example/a", "https://…h.example/a"),
        ("https://47110815@h.example:1/a", "https://…h.example:1/a"),
        ("mqtt://me:47110815@h.example", "mqtt://…h.example"),
        ("mqtt://me:471/10815@h.example", "mqtt://…"),
        ("me:47110815@h.example", "…h.example"),
        ("47110815@h.example", "…h.example"),
        ("me:471/10815@h.example:1883", "…"),
        ("me:x\n47110815@h.example", "…h.example"),
        ("127.0.0.1:9092,[::1]:9092", "127.0.0.1:9092,[::1]:9092"),
    ],
)
def test_an_address_is_shown_without_its_user_and_query(address: str, shown: str) -> None:
    assert without_secrets(address) == shown


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    text = (
        "[gatway]\nport = 1\n[correlate]\nshrads = 1\nshards = 0\nmode = 2\n[[connections]]\nid = 'x'\ntype = 'mqtt'\n"
        "[[connections.sources]]\naddreses = ['in']\nqos = 9\n"
    )
    keys = [re.match(r"The setting (\S+)", line) for line in _refusal(tmp_path, text).splitlines()]
    assert {found[1] for found in keys if found} == {
        "gatway",
        "correlate.shrads",
        "correlate.shards",
        "correlate.mode",
        "connections.0.sources.0.addreses",
        "connections.0.sources.0.addresses",
        "connections.0.sources.0.qos",
    }
    assert None not in keys


def test_a_key_that_resembles_no_other_is_answered_with_all(tmp_path: Path) -> None:
    assert _refusal(tmp_path, "[local]\nwhatever = 1").startswith(
        "The setting local.whatever is not known; known are data"
    )


def test_a_trigger_may_have_no_pause(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[correlate]\ntrigger = '0s'\n[archive]\ntrigger = '2m'", "utf-8")
    settings = load(tmp_path / "a.toml", {})
    assert (settings.correlate.trigger, settings.archive.trigger) == (0, 120_000)
