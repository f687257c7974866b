from __future__ import annotations

import json
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from ackstream.cli import app
from ackstream.client import connection
from tests.conftest import free_ports

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_without_connections_there_is_nothing_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["connect"])
    assert result.exit_code == 2
    assert "[[connections]]" in result.stderr


def test_without_the_system_s_broker_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (port,) = free_ports(1)
    monkeypatch.setenv("ACKSTREAM_KAFKA_BOOTSTRAP", f"localhost:{port}")
    monkeypatch.setenv("ACKSTREAM_CONNECTIONS", json.dumps([{"id": "plant", "type": "mqtt"}]))
    monkeypatch.setitem(connection._COMMON, "bootstrap_timeout_ms", 200)
    result = CliRunner().invoke(app, ["connect"])
    assert result.exit_code == 1
    assert "ackstream up" in result.stderr
