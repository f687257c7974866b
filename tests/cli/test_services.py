from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from ackstream.kafka import clients
from tests.cli.commands import run
from tests.harness.ports import free_ports


@pytest.fixture(autouse=True)
def _no_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_without_connections_there_is_nothing_to_run() -> None:
    result = run("connect")
    assert result.exit_code == 2
    assert "[[connections]]" in result.stderr


def test_without_the_system_s_broker_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv("ACKSTREAM_KAFKA_BOOTSTRAP", f"localhost:{port}")
    monkeypatch.setenv("ACKSTREAM_CONNECTIONS", json.dumps([{"id": "plant", "type": "mqtt"}]))
    monkeypatch.setitem(clients._COMMON, "bootstrap_timeout_ms", 200)
    result = run("connect")
    assert result.exit_code == 3
    assert "ackstream up" in result.stderr


def test_a_log_of_json_has_the_reason_why_a_program_does_not_start() -> None:
    result = run("gateway", ACKSTREAM_GATEWAY_HOST="0.0.0.0", ACKSTREAM_LOG_FORMAT="json")
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    assert (result.exit_code, lines[-1]["level"], "gateway.host" in lines[-1]["message"]) == (2, "error", True)


def test_an_open_gateway_on_an_address_others_reach_does_not_start() -> None:
    result = run("gateway", ACKSTREAM_GATEWAY_HOST="0.0.0.0")
    assert result.exit_code == 2
    assert "gateway.host" in result.stderr
    assert "gateway.users" in result.stderr


def test_a_port_that_another_program_uses_is_no_wrong_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        result = run("gateway", ACKSTREAM_METRICS_PORT=str(other.getsockname()[1]))
    # systemd starts it again, unlike after 2
    assert (result.exit_code, "The metrics cannot be served at 127.0.0.1:" in result.stderr) == (1, True)


def test_without_kafka_it_says_what_to_do() -> None:
    result = run("gateway", ACKSTREAM_KAFKA_BOOTSTRAP="localhost:1")
    assert result.exit_code == 3
    assert "ackstream up" in result.stderr


def test_without_routes_the_command_says_what_to_add() -> None:
    result = run("route")
    assert (result.exit_code, "add [[routes]]" in result.stderr) == (2, True)
