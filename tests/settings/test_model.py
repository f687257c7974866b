"""Settings: environment over file over defaults, and a sentence for everything that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ackstream.errors import SettingsError
from ackstream.settings import Settings, load

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "ackstream.toml"
        path.write_text(text, "utf-8")
        return path

    return write


def test_the_file_we_ship_says_the_defaults_and_names_every_key() -> None:
    path = REPOSITORY / "conf" / "ackstream.toml"
    assert load(path, {}) == Settings()
    text = path.read_text("utf-8")
    for part, field in Settings.model_fields.items():
        assert f"[{part}]" in text
        for key in getattr(type(field.default), "model_fields", ()):
            assert f"\n{key} = " in text


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
    settings = load(written("[correlate]\norphan_hold = '250ms'\nmax_timeout = '2d'\n"), {})
    assert (settings.correlate.orphan_hold, settings.correlate.max_timeout) == (250, 172_800_000)


@pytest.mark.parametrize(
    ("text", "environment", "said"),
    [
        ("[correlate]\nshard = 3", {}, ["correlate.shard", "shards"]),
        ("[corelate]\nshards = 3", {}, ["corelate", "correlate"]),
        ("[correlate]\nshards = 0", {}, ["correlate.shards", "0", "ACKSTREAM_CORRELATE_SHARDS"]),
        ("[correlate]\nshards = 'many'", {}, ["correlate.shards", "'many'"]),
        ("[correlate]\norphan_hold = 10", {}, ["correlate.orphan_hold", "10", "250ms"]),
        ("[correlate]\norphan_hold = '-1s'", {}, ["correlate.orphan_hold", "-1s"]),
        ("[correlate]\norphan_hold = '0s'", {}, ["correlate.orphan_hold", "longer than zero"]),
        ("[correlate]\nreply_topics = ['(']", {}, ["correlate.reply_topics", "regular expression"]),
        ("[lake\n", {}, ["not valid TOML"]),
        ("", {"ACKSTREAM_CORRELATE_SHARD": "1"}, ["correlate.shard", "shards"]),
        ("", {"ACKSTREAM_CORELATE_SHARDS": "1"}, ["ACKSTREAM_CORELATE_SHARDS", "ACKSTREAM_CORRELATE_"]),
        ("", {"ACKSTREAM_KAFKA_OPTIONS": "x=1"}, ["ACKSTREAM_KAFKA_OPTIONS", "JSON"]),
        ("", {"ACKSTREAM_CONF": "/nowhere.toml"}, ["/nowhere.toml", "ACKSTREAM_CONF"]),
    ],
)
def test_a_wrong_setting_is_a_sentence_that_names_it(
    written: Callable[[str], Path], text: str, environment: dict[str, str], said: list[str]
) -> None:
    path = None if "ACKSTREAM_CONF" in environment else written(text)
    with pytest.raises(SettingsError) as caught:
        load(path, environment)
    assert all(part in str(caught.value) for part in said), str(caught.value)


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(Exception, match="frozen"):
        Settings().correlate.shards = 5  # type: ignore[misc]
