"""How often the batches of a query call the JVM: each call takes a millisecond where the cores are busy."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from py4j.clientserver import ClientServerConnection

from ackstream.telemetry import logs

if TYPE_CHECKING:
    import pytest


def count_calls(monkeypatch: pytest.MonkeyPatch, query: str) -> Counter[int]:
    """Return the numbers of calls by the number of the batch; they grow as it works."""
    counted: Counter[int] = Counter()
    original = ClientServerConnection.send_command

    def send_command(connection: Any, command: str, *rest: Any, **options: Any) -> Any:
        about = logs._about.get() or {}
        if about.get("query") == query:
            counted[about["batch"]] += 1  # type: ignore[index]
        return original(connection, command, *rest, **options)

    monkeypatch.setattr(ClientServerConnection, "send_command", send_command)
    return counted
