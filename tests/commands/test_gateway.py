"""``ackstream gateway`` as far as it goes without Kafka, and ``ackstream password``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from ackstream.cli import app
from ackstream.gateway.passwords import matches

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_hash_of_a_password_is_printed_for_the_settings() -> None:
    result = CliRunner().invoke(app, ["password"], input="sesame\nsesame\n")
    assert result.exit_code == 0
    hashed = result.stdout.strip().splitlines()[-1]
    assert matches("sesame", hashed)
    assert "sesame" not in result.stdout


def test_an_open_gateway_on_an_address_others_reach_does_not_start() -> None:
    result = CliRunner().invoke(app, ["gateway"], env={"ACKSTREAM_GATEWAY_HOST": "0.0.0.0"})
    assert result.exit_code == 2
    assert "gateway.host" in result.stderr
    assert "gateway.users" in result.stderr


def test_without_kafka_it_says_what_to_do() -> None:
    result = CliRunner().invoke(app, ["gateway"], env={"ACKSTREAM_KAFKA_BOOTSTRAP": "localhost:1"})
    assert result.exit_code == 1
    assert "ackstream up" in result.stderr
