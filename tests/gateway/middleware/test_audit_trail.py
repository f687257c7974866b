"""The audit's records on their way: numbered, none lost while the gateway lives, and nobody waits for them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError

from ackstream.gateway.middleware import audit
from ackstream.gateway.middleware.audit import Audit, AuditTrail
from ackstream.kafka import clients
from ackstream.settings import Kafka
from tests.harness.waiting import eventually


class Broker:
    """Stores what is sent, or does not, as the test says."""

    def __init__(self) -> None:
        self.away = False
        self.values: list[dict[str, Any]] = []
        self.keys: set[bytes] = set()

    def send(
        self,
        _producer: Any,
        stored: Callable[[Any], None],
        failed: Callable[[BaseException], None],
        topic: str,
        **record: Any,
    ) -> None:
        assert topic == "x-audit"
        if self.away:
            failed(KafkaTimeoutError("it is away"))
        else:
            self.values.append(json.loads(record["value"]))
            self.keys.add(record["key"])
            stored(None)

    @property
    def numbers(self) -> list[int]:
        return [value["batch_id"] for value in self.values]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Broker:
    found = Broker()
    monkeypatch.setattr(clients, "connect_producer", lambda *_, **__: None)
    monkeypatch.setattr(clients, "close_producer", lambda *_: None)
    monkeypatch.setattr(clients, "send", found.send)
    monkeypatch.setattr(audit, "RESEND_SECONDS", 0.01)
    monkeypatch.setattr(audit, "TURN_SECONDS", 0.01)
    return found


@contextmanager
def trail() -> Iterator[tuple[AuditTrail, Audit]]:
    records = Audit("changes")
    with AuditTrail(Kafka(topic_prefix="x-"), records) as found:
        yield found, records


def test_records_are_numbered_without_gaps_within_their_run_and_share_a_key(store: Broker) -> None:
    runs = set()
    for _ in range(2):
        store.values.clear()
        with trail() as (_, records):
            for number in range(100):
                records.read_rules(f"file {number}", None)
        assert store.numbers == list(range(1, 101))
        (run,) = {value["query_id"] for value in store.values}
        assert [value["id"] for value in store.values] == [f"{run}-{number}" for number in store.numbers]
        runs.add(run)
    assert {key.decode() for key in store.keys} == runs
    assert len(runs) == 2


def test_what_the_broker_does_not_store_is_sent_again_until_it_does(
    store: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    store.away = True
    with trail() as (found, records):
        for _ in range(5):
            records.read_rules("file", None)
        eventually(lambda: "does not store records of the audit" in caplog.text, "the warning")
        store.away = False
        eventually(lambda: not found._unstored, "the records")
    assert set(store.numbers) == {1, 2, 3, 4, 5}
    assert caplog.text.count("does not store") == 1


def test_a_full_trail_is_known_before_anything_is_done_and_is_bounded(
    store: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_WAITING", 10)
    monkeypatch.setattr(audit, "RESEND_SECONDS", 3600.0)
    store.away = True
    with trail() as (found, records):
        for number in range(100):
            assert records._full() is (number >= 10)
            records.read_rules("file", None)
        assert found._unstored == 20


def test_a_gateway_that_stops_sends_what_is_left_and_says_what_it_could_not(
    store: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    store.away = True
    with caplog.at_level(logging.ERROR), trail() as (_, records):
        for _ in range(3):
            records.read_rules("file", None)
    assert "3 records of the audit were not stored" in caplog.text
