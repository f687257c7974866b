from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaProducer
from rich.console import Console
from typer.testing import CliRunner

from ackstream.cli.console.display import span, watch_screen
from ackstream.cli.main import app
from ackstream.gateway.meter import Lag, Meter
from ackstream.kafka.topics import ensure_topics
from ackstream.settings import Settings
from tests.gateway import ledgers

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

    from ackstream.settings import Kafka


@pytest.fixture
def settings(kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACKSTREAM_KAFKA_BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setenv("ACKSTREAM_KAFKA_TOPIC_PREFIX", kafka.topic_prefix)
    monkeypatch.setenv("COLUMNS", "60")
    return Settings(kafka=kafka)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["watch", *arguments])


@pytest.mark.integration
def test_once_shows_the_last_window(settings: Settings):
    ensure_topics(settings, ("signals", "acks", "ledger"))
    with KafkaProducer(bootstrap_servers=settings.kafka.bootstrap) as producer:
        for number, (status, completed_by) in enumerate(
            [(200, "acknowledgements"), (200, "response"), (424, "timeout"), (404, "error")]
        ):
            record = ledgers.outcome(str(number), status=status, completed_by=completed_by)
            producer.send(settings.kafka.topic("ledger"), value=record)
        producer.send(settings.kafka.topic("ledger"), value=ledgers.signal("open"))
    result = run("--once", "--window", "10m")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["last", "10m", "total", "p50", "p95"] in rows
    assert [row[1:3] for row in rows if row[:1] == ["answered"]] == [["2", "2"]]
    assert [row[2:4] for row in rows if row[:2] == ["timed", "out"]] == [["1", "1"]]
    assert [row[1:3] for row in rows if row[:1] == ["failed"]] == [["1", "1"]]
    assert ["in", "flight", "1"] in rows
    assert [row[1:] for row in rows if row and row[0].endswith("ledger")] == [["unknown", "ackstream-archive"]]


@pytest.mark.integration
def test_without_topics_there_is_a_sentence(settings: Settings):
    result = run("--once")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"There is no topic {settings.kafka.topic('signals')} at ")


def test_a_window_that_is_no_duration_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    result = run("--once", "--window", "soon")
    assert result.exit_code == 1
    assert result.stderr.startswith("--window is 'soon': ")


LAGS = [
    Lag("signals", "ackstream-correlate", 12),
    Lag("acks", "ackstream-correlate", 1_234),
    Lag("ledger", "ackstream-archive", None),
]


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, ""), (0, "0ms"), (999, "999ms"), (1_000, "1s"), (1_240, "1.24s"), (12_449, "12.4s"), (59_999, "60s"),
        (60_000, "1m"), (125_400, "2m05s"), (3_600_000, "1h"), (11_220_000, "3h07m"),
    ],
)  # fmt: skip
def test_a_span_is_short(milliseconds: int | None, text: str):
    assert span(milliseconds) == text


def shown(width: int, note: str = "") -> str:
    meter = Meter(60_000)
    for number in range(1_100):
        meter.decided(str(number), 50_000, "answered", 420)
    meter.decided("t", 50_000, "timed out", 65_400)
    meter.opened("o", 56_000)
    file = io.StringIO()
    Console(file=file, width=width).print(watch_screen(meter.snapshot(60_000), LAGS, note))
    return file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_screen_is_whole_in_a_narrow_terminal(width: int):
    lines = shown(width).splitlines()
    assert all(len(line) <= width for line in lines)
    rows = [line.split() for line in lines if line.strip()]
    assert ["answered", "1,100", "1,100", "420ms", "420ms"] in rows
    assert ["timed", "out", "1", "1", "1m05s", "1m05s"] in rows
    assert ["in", "flight", "1"] in rows
    assert "oldest 4s" in shown(width)
    assert ["signals", "12", "ackstream-correlate"] in rows
    assert ["ledger", "unknown", "ackstream-archive"] in rows


def test_a_note_is_shown_below():
    assert shown(80, "Kafka does not answer").rstrip().endswith("Kafka does not answer")
