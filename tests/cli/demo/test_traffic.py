from __future__ import annotations

import io
import json
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

import pytest
from rich.console import Console

from ackstream.cli.demo import traffic
from ackstream.cli.demo.fleet import LABELS, fleet
from ackstream.cli.demo.traffic import send_all
from ackstream.client import Reply

if TYPE_CHECKING:
    from ackstream.client import Requester
    from ackstream.protocol.ditto.envelopes import Envelope

MESSAGE = {
    "topic": "a/b/things/twin/acks",
    "path": "/",
    "status": 200,
    "value": {"a:b": {"status": 200, "headers": {}}},
}


class Service:
    """In place of a requester: answers everything at once."""

    def __init__(self) -> None:
        self.sent: list[tuple[Envelope, dict[str, Any]]] = []

    def send(self, envelope: Envelope, **options: Any) -> Future[Reply]:
        self.sent.append((envelope, options))
        future: Future[Reply] = Future()
        identity = options["correlation_id"]
        future.set_result(Reply(identity, f"r-{identity}", 200, "acknowledgements", json.dumps(MESSAGE).encode()))
        return future


class Time:
    """A clock that only sleeping moves on."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(traffic, "time", time)
    return time


def test_commands_are_sent_at_the_rate_to_the_devices_in_turn(time: Time):
    service, devices, console = Service(), fleet(13), Console(file=io.StringIO(), width=80)
    asked: list[float] = []
    tally = send_all(cast("Requester", service), devices, 40, 10, console, healthy=lambda: asked.append(time.now))
    assert time.now == pytest.approx(100 + 39 / 10)
    assert [envelope.topic.thing_id for envelope, _ in service.sent[:14]] == [
        *(device.thing_id for device in devices), devices[0].thing_id
    ]  # fmt: skip
    assert all(options["acks"] == LABELS for _, options in service.sent)
    assert len({options["correlation_id"] for _, options in service.sent}) == 40
    assert len(tally.sent) == len(tally.replies) == len(tally.latencies) == 40
    # once a second at least
    assert [round(moment) for moment in asked[:4]] == [100, 101, 102, 103]


@pytest.mark.usefixtures("time")
def test_what_makes_waiting_vain_ends_it():
    def broken() -> None:
        raise RuntimeError("The job has ended.")

    with pytest.raises(RuntimeError, match="The job has ended"):
        send_all(cast("Requester", Service()), fleet(13), 40, 10, Console(file=io.StringIO()), broken)
