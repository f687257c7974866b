"""When signals are published again, acknowledged or given up; the system's Kafka and the other system are played."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from ackstream.client.core.group import Work
from ackstream.connectivity import outbound as outbound_module
from ackstream.connectivity.outbound import ROUNDS, AloneAway, OutboundWorker
from ackstream.connectivity.system import STORED
from ackstream.connectivity.transport import Published, TargetPublisher, not_published
from ackstream.kafka.clients import CLOSE_SECONDS
from ackstream.protocol.ditto.access import OPEN
from ackstream.protocol.ditto.acknowledgements import read_issued
from ackstream.settings.connections import KafkaConnection
from tests.connectivity.test_outbound import EVENTS, event, target


class Outbox:
    """Of a worker without Kafka."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def hold(self, work: Work) -> None:
        work.remaining += 1

    def release(self, work: Work) -> None:
        work.remaining -= 1

    def send(self, _correlation_id: str, message: Any, _work: Work) -> None:
        self.sent.append(message)


class Other(TargetPublisher):
    """The other system: accepts nothing, or answers when the test does."""

    def __init__(self, result: Published | None = None) -> None:
        self.result = result
        self.open: list[Any] = []
        self.halted = False

    def halt(self) -> None:
        self.halted = True

    def publish(self, _message: Any, done: Any) -> None:
        if self.result is None:
            self.open.append(done)
        else:
            done(self.result)

    def close(self) -> None: ...


class Running:
    """A worker on a Kafka that is played."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, publisher: Other, *labels: str) -> None:
        self.outbox = Outbox()
        self.closed_with: int | None = None
        self.labels = SimpleNamespace(complete=True, taken=False)
        self.made: dict[str, Any] = {}
        made = SimpleNamespace(
            run=lambda: None,
            life=SimpleNamespace(alive=True),
            outbox=self.outbox,
            close=self._close,
            originator_key=None,
        )

        def make(*_: Any, **options: Any) -> Any:
            self.made = options
            return made

        monkeypatch.setattr(outbound_module, "Worker", make)
        monkeypatch.setattr(outbound_module, "read_publication", lambda record, _key: record.signal)
        parts = {"issued_ack": labels[0]} if labels else {}
        connection = KafkaConnection(id="c", type="kafka", targets=[target(EVENTS, **parts)])
        self.given_up: list[tuple[Any, str]] = []
        self.stores = True
        kafka: Any = None
        held: Any = self.labels
        system: Any = SimpleNamespace(extra=dict, give_up=self._give_up)
        self.publisher = publisher
        self.signal = event(*labels)
        self.away = AloneAway()
        self.open = partial(OutboundWorker, connection, kafka, publisher, system, held, self.away, OPEN)
        self.worker = self.open()

    def handle(self, offset: int = 0) -> Work:
        work = Work(offset)
        record = SimpleNamespace(signal=self.signal, timestamp=0, topic="events", partition=0, offset=offset)
        self.worker._handle(record, work)
        return work

    @property
    def statuses(self) -> list[int]:
        return [ack.status for message in self.outbox.sent for ack in read_issued(message)]

    def _close(self) -> None:
        self.closed_with = self.worker._publishing

    def _give_up(self, message: Any, reason: str, received: Any) -> None:
        self.given_up.append((message, reason))
        received(STORED if self.stores else None)


@pytest.mark.parametrize(
    ("away", "label", "alive", "remaining"),
    [
        pytest.param(True, None, False, 1, id="nobody would learn of it: published again"),
        pytest.param(True, "c:one", True, 0, id="its requester learns of it"),
        pytest.param(False, None, True, 0, id="it would fail again"),
    ],
)
def test_a_signal_that_a_target_did_not_accept_is_kept_or_acknowledged(
    monkeypatch: pytest.MonkeyPatch, *, away: bool, label: str | None, alive: bool, remaining: int
) -> None:
    other = Other(not_published(TimeoutError("expired"), 503 if away else 400))
    running = Running(monkeypatch, other, *([] if label is None else [label]))
    work = running.handle()
    assert (running.worker.alive, work.remaining, other.halted) == (alive, remaining, not alive)
    assert running.statuses == ([503] if label else [])


def test_a_signal_whose_labels_were_lost_before_it_failed_is_published_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requester would not learn that it failed."""
    running = Running(monkeypatch, Other(), "c:one")
    work = running.handle()
    running.labels.complete, running.labels.taken = False, True
    running.publisher.open[0](not_published(ConnectionError("gone"), 503))
    assert (running.worker.alive, work.remaining, running.statuses) == (False, 1, [])


def test_behind_a_signal_that_is_published_again_nothing_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch, Other())
    running.handle()
    running.publisher.open[0](not_published(ConnectionError("gone"), 503))
    work = running.handle()
    assert (len(running.publisher.open), work.remaining) == (1, 1)


def test_a_worker_that_closes_waits_for_what_is_confirmed_and_publishes_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = Running(monkeypatch, Other(), "c:one")
    first = running.handle()
    closing = threading.Thread(target=running.worker.close)
    closing.start()
    assert running.worker._ended.wait(CLOSE_SECONDS)
    second = running.handle()
    assert (running.closed_with, len(running.publisher.open)) == (None, 1)
    running.publisher.open[0](Published(204))
    closing.join(CLOSE_SECONDS)
    assert (running.closed_with, first.remaining, second.remaining, running.statuses) == (0, 0, 1, [204])


def test_a_worker_that_waits_for_room_ends_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound_module, "MAX_PUBLISHING", 1)
    monkeypatch.setattr(outbound_module, "CLOSE_SECONDS", 0.0)
    running = Running(monkeypatch, Other())
    running.handle()
    works: list[Work] = []
    waiting = threading.Thread(target=lambda: works.append(running.handle()))
    waiting.start()
    running.worker.close()
    waiting.join(CLOSE_SECONDS)
    assert ([work.remaining for work in works], len(running.publisher.open)) == ([1], 1)


def test_while_the_lease_of_the_labels_is_late_signals_and_acknowledgements_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the worker, to which the labels are given."""
    running = Running(monkeypatch, Other(), "c:one")
    assert running.made["labels"] is running.labels
    # a signal whose turn comes when the lease ends, and a result that comes then
    running.labels.complete = False
    work = running.handle()
    running.publisher.open[0](Published(204))
    assert (running.statuses, work.remaining, running.worker.alive) == ([204], 0, True)


def test_a_signal_that_fails_while_the_lease_of_the_labels_is_late_is_published_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another client may have the label before its requester could learn of it."""
    running = Running(monkeypatch, Other(), "c:one")
    work = running.handle()
    running.labels.complete = False
    running.publisher.open[0](not_published(ConnectionError("gone"), 503))
    assert (running.statuses, work.remaining, running.worker.alive) == ([], 1, False)


AWAY = not_published(ConnectionError("gone"), 503)


def rounds(running: Running, count: int, *, others: bool) -> list[Work]:
    """Return the work of the signal that is never accepted, while one behind it is or is not."""
    works = []
    for _ in range(count):
        running.worker = running.open()
        running.publisher.open.clear()
        works.append(running.handle(0))
        running.handle(1)
        never, other = running.publisher.open
        never(AWAY)
        other(Published(204) if others else AWAY)
    return works


def test_a_signal_that_a_target_never_accepts_while_it_accepts_others_becomes_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = Running(monkeypatch, Other())
    before = rounds(running, ROUNDS, others=True)
    assert (running.given_up, running.worker.alive, {work.remaining for work in before}) == ([], False, {1})
    (last,) = rounds(running, 1, others=True)
    ((message, reason),) = running.given_up
    assert (message.identity, message.headers) == ("c-mine", {"kafka.key": "org.acme:lamp"})
    assert reason.startswith("out accepted others, but never this one: 503 {")
    # those behind it are published
    assert (last.remaining, running.worker.alive) == (0, True)


def test_while_a_target_accepts_nothing_a_signal_never_becomes_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch, Other())
    rounds(running, 3 * ROUNDS, others=False)
    assert (running.given_up, running.worker.alive) == ([], False)


def test_a_signal_whose_dead_letter_is_not_stored_is_published_again(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch, Other())
    running.stores = False
    *_, last = rounds(running, ROUNDS + 1, others=True)
    assert (len(running.given_up), last.remaining, running.worker.alive) == (1, 1, False)


def test_only_messages_to_the_same_address_show_that_one_fails_alone() -> None:
    """Of two queues one may be full."""
    away = AloneAway()
    full, free = ("events", 0, 1, "full"), ("events", 0, 2, "free")
    for _ in range(2 * ROUNDS):
        away.begin()
        assert not away.failed(full)
        away.accepted(free)


def test_a_signal_that_failed_alone_and_is_accepted_then_begins_anew() -> None:
    away = AloneAway()
    one, two = ("events", 0, 1, "a"), ("events", 0, 2, "a")
    for _ in range(ROUNDS):
        away.begin()
        away.failed(one)
        away.accepted(two)
    away.begin()
    away.accepted(one)
    away.begin()
    assert not away.failed(one)
