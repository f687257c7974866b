from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ackstream import client
from ackstream.client import SettleTimeout
from ackstream.protocol.readers import KnownReader
from tests.cli.commands import run


@pytest.fixture(autouse=True)
def _no_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_reader_is_forgotten_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[tuple[str, float]] = []
    monkeypatch.setattr(
        client, "delete_durable_subscription", lambda _kafka, *, name, timeout: removed.append((name, timeout))
    )
    result = run("readers", "forget", "billing[old]", "--timeout", "5s")
    assert (result.exit_code, result.stdout) == (0, "The reader billing[old] is removed.\n")
    assert removed == [("billing[old]", 5)]


def test_a_reader_that_settle_does_not_remove_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def remove(_kafka: Any, **_: Any) -> None:
        raise SettleTimeout("Start the job.")

    monkeypatch.setattr(client, "delete_durable_subscription", remove)
    result = run("readers", "forget", "billing")
    assert (result.exit_code, result.stderr) == (3, "Start the job.\n")


def test_readers_are_listed_with_how_long_they_were_silent_and_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns() // 1_000_000
    known = [
        KnownReader("billing[old]", durable=True, seen=now - 90 * 86_400_000, unacknowledged=12_000),
        KnownReader("l1", "Logger", present=False, seen=now - 500),
    ]
    monkeypatch.setattr(client, "known_readers", lambda _kafka, *, timeout: known if timeout == 60 else [])
    result = run("readers", "list", COLUMNS="120")
    head, first, second = (line.split() for line in result.stdout.splitlines())
    assert head == ["reader", "kind", "role", "silent", "for", "not", "acknowledged"]
    assert first == ["billing[old]", "durable", "2160h", "12,000"]
    assert second[:3] == ["l1", "gone", "Logger"]
    lines = [json.loads(line) for line in run("readers", "list", "--json").stdout.splitlines()]
    assert [(line["reader"], line["durable"], line["present"]) for line in lines] == [
        ("billing[old]", True, True),
        ("l1", False, False),
    ]
