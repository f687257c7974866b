from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from ackstream import client
from ackstream.cli.demo import run as runs
from ackstream.cli.main import Commands, app
from ackstream.client import SettleTimeout
from ackstream.errors import LocalError, SettingsError, StartError
from ackstream.gateway.passwords import matches
from ackstream.kafka import clients
from ackstream.protocol.readers import KnownReader
from tests.harness.ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("error", "code"),
    [(SettingsError("One setting."), 2), (LocalError("No [Java] here."), 1), (StartError("Not like this. " * 20), 1)],
)
def test_an_error_of_the_product_is_its_sentence_and_an_exit_code(error: Exception, code: int):
    failing = typer.Typer(cls=Commands)

    @failing.command()
    def first() -> None:
        raise error

    failing.command("second")(lambda: None)
    result = CliRunner().invoke(failing, ["first"])
    assert result.exit_code == code
    assert result.stderr == f"{error}\n"
    assert result.stdout == ""


def test_an_error_of_the_program_is_not_hidden():
    failing = typer.Typer(cls=Commands)

    @failing.command()
    def first() -> None:
        raise ZeroDivisionError

    failing.command("second")(lambda: None)
    assert isinstance(CliRunner().invoke(failing, ["first"]).exception, ZeroDivisionError)


def test_without_a_command_the_help_is_shown():
    result = CliRunner().invoke(app, [])
    assert "Usage" in result.output
    for command in ("up", "down", "status", "jars", "submit", "conformance"):
        assert f" {command} " in result.output


# -- ackstream demo ----------------------------------------------------------------------------------------------------


def ending(monkeypatch: pytest.MonkeyPatch, end: Any) -> list[Any]:
    asked: list[Any] = []

    def demo(_settings: Any, _console: Any, number: int, rate: float, *, secure: bool) -> bool:
        asked.append((number, rate, secure))
        if isinstance(end, BaseException):
            raise end
        return bool(end)

    monkeypatch.setattr(runs, "demo", demo)
    return asked


@pytest.mark.parametrize(("good", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_tells_whether_it_adds_up(monkeypatch: pytest.MonkeyPatch, *, good: bool, code: int):
    asked = ending(monkeypatch, good)
    assert CliRunner().invoke(app, ["demo"]).exit_code == code
    assert asked == [(2_000, 50, False)]


def test_the_number_and_the_rate_may_be_chosen(monkeypatch: pytest.MonkeyPatch):
    asked = ending(monkeypatch, end=True)
    CliRunner().invoke(app, ["demo", "--commands", "10", "--rate", "5", "--secure"])
    assert asked == [(10, 5, True)]


def test_ctrl_c_is_a_sentence_and_the_code_of_shells(monkeypatch: pytest.MonkeyPatch):
    ending(monkeypatch, KeyboardInterrupt())
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 130
    assert result.stdout == "Stopped; nothing is left running.\n"


def test_what_is_missing_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    ending(monkeypatch, LocalError("No Java was found."))
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 1
    assert result.stderr == "No Java was found.\n"


# -- ackstream connect, gateway and password ---------------------------------------------------------------------------


def test_without_connections_there_is_nothing_to_run() -> None:
    result = CliRunner().invoke(app, ["connect"])
    assert result.exit_code == 2
    assert "[[connections]]" in result.stderr


def test_without_the_system_s_broker_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv("ACKSTREAM_KAFKA_BOOTSTRAP", f"localhost:{port}")
    monkeypatch.setenv("ACKSTREAM_CONNECTIONS", json.dumps([{"id": "plant", "type": "mqtt"}]))
    monkeypatch.setitem(clients._COMMON, "bootstrap_timeout_ms", 200)
    result = CliRunner().invoke(app, ["connect"])
    assert result.exit_code == 1
    assert "ackstream up" in result.stderr


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


def test_a_reader_is_forgotten_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[tuple[str, float]] = []
    monkeypatch.setattr(
        client, "delete_durable_subscription", lambda _kafka, name, timeout: removed.append((name, timeout))
    )
    result = CliRunner().invoke(app, ["readers", "forget", "billing[old]", "--timeout", "5"])
    assert (result.exit_code, result.stdout) == (0, "The reader billing[old] is removed.\n")
    assert removed == [("billing[old]", 5)]


def test_a_reader_that_settle_does_not_remove_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def remove(_kafka: Any, _name: str, _timeout: float) -> None:
        raise SettleTimeout("Start the job.")

    monkeypatch.setattr(client, "delete_durable_subscription", remove)
    result = CliRunner().invoke(app, ["readers", "forget", "billing"])
    assert (result.exit_code, result.stderr) == (1, "Start the job.\n")


def test_readers_are_listed_with_how_long_they_were_silent_and_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns() // 1_000_000
    known = [
        KnownReader("billing[old]", durable=True, seen=now - 90 * 86_400_000, unacknowledged=12_000),
        KnownReader("l1", "Logger", present=False, seen=now - 500),
    ]
    monkeypatch.setattr(client, "known_readers", lambda _kafka, _timeout: known)
    result = CliRunner().invoke(app, ["readers", "list"])
    head, first, second = (line.split() for line in result.stdout.splitlines())
    assert head == ["reader", "kind", "role", "silent", "for", "not", "acknowledged"]
    assert first == ["billing[old]", "durable", "2160h", "12,000"]
    assert second[:3] == ["l1", "gone", "Logger"]


def test_without_routes_the_command_says_what_to_add() -> None:
    result = CliRunner().invoke(app, ["route"])
    assert (result.exit_code, "add [[routes]]" in result.stderr) == (2, True)
