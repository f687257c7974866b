"""The queue of docs/guides/share-work.md, its job and its workers together, while one of them, or Kafka, is away."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import tomllib

from ackstream.client.queues._queue_session import AckBatches, QueueSession
from ackstream.client.queues.queued_messages import FlowQos
from ackstream.jobs.queues.endpoint import Endpoint
from ackstream.jobs.queues.records import Arrival, ConsumerReport, Event
from ackstream.protocol import queues
from ackstream.protocol.queues import PREFETCH, Bind, MessageDelivered
from ackstream.settings.jobs import QueueJob, QueueSettings

(SHOWN,) = re.findall(r"```toml\n(.*?)```", Path("docs/guides/share-work.md").read_text("utf-8"), re.DOTALL)
RULES = QueueSettings.model_validate(tomllib.loads(SHOWN)["queues"][0])
SESSION_MS = QueueJob().session
STEP_MS, WORK_MS = 500, 1_000


class Worker:
    """A ``QueueConsumer`` as the page has it, with a handler of a second, but for its threads."""

    def __init__(self, world: World, name: str, work_ms: int = WORK_MS) -> None:
        self.world, self.name, self._work_ms = world, name, work_ms
        self.counts: Counter[str] = Counter()
        self.handled: list[str] = []
        self._number = 0
        self._busy: tuple[int, MessageDelivered] | None = None
        self._begin()

    def _begin(self) -> None:
        self._number += 1
        bind = Bind(RULES.name, self.name, self._number, None, ("failed",))
        self.session = QueueSession(bind, AckBatches(bind), self.counts, FlowQos())
        self._ready: deque[MessageDelivered] = deque()

    def restart(self, *, killed: bool) -> None:
        """End the process, in order or not, and start the next one."""
        if not killed:
            self.world.send(self.session.end())
        self._busy = None
        self._begin()

    def receive(self, answers: Iterable[Any]) -> None:
        for answer in answers:
            if isinstance(news := self.session.receive(answer, self.world.now), MessageDelivered):
                self._ready.append(news)
            if self.session.over is not None:
                self._busy = None
                self._begin()

    def step(self) -> None:
        now = self.world.now
        self.world.send(self.session.due(now))
        if self._busy is not None and now >= self._busy[0]:
            self.world.send(self.session.settle(self._busy[1], "accepted", now))
            self._busy = None
        if self._busy is not None:
            self.world.send(self.session.working(self._busy[1], now))
        while self._ready and self.session.expire(self._ready[0], now):
            self._ready.popleft()
        if self._busy is None and self._ready:
            delivery = self._ready.popleft()
            self.world.send(self.session.hand_out(delivery, now))
            self.handled.append(delivery.message)
            self._busy = now + self._work_ms, delivery


class World:
    """Messages in the table, Kafka's records of consumers, and the job in batches of half a second."""

    def __init__(self, messages: int = 1_000, *, behind_ms: int = 0) -> None:
        self.now = 0
        self.events: list[Event] = []
        self.sent: Counter[str] = Counter()
        self.workers: dict[str, Worker] = {}
        self.kafka_away = self.job_away = False
        self._arrivals = [Arrival(0, "messages", 0, number, 0, "orders/new") for number in range(messages)]
        # what Kafka has not taken yet, and what the job has not read yet
        self._waiting: list[queues.QueueRequest] = []
        self._log: list[ConsumerReport] = []
        self._answers: list[Any] = []
        self._offset, self._behind_ms = 0, behind_ms
        self._endpoint = Endpoint(RULES, SESSION_MS)

    def send(self, records: Iterable[queues.QueueRequest]) -> None:
        records = list(records)
        self.sent.update(type(record).__name__ for record in records)
        self._waiting += records

    def run(self, seconds: int) -> None:
        for _ in range(seconds * 1_000 // STEP_MS):
            self.now += STEP_MS
            if not self.kafka_away:
                answers, self._answers = self._answers, []
                for worker in self.workers.values():
                    worker.receive([one for one in answers if one.consumer == worker.name])
            for worker in self.workers.values():
                worker.step()
            if not self.kafka_away:
                self._store()
                if not self.job_away:
                    self._batch()

    def _store(self) -> None:
        for record in self._waiting:
            self._offset += 1
            value = queues.write(record)
            self._log.append(ConsumerReport(self.now, 0, self._offset, record.consumer.encode(), value))
        self._waiting = []

    def _batch(self) -> None:
        until = self.now - self._behind_ms
        read = [report for report in self._log if report.timestamp <= until]
        for batch in ((self._arrivals, read, 0), ([], [], until)):
            for _ in self._endpoint.process(*batch):
                pass
        self._arrivals, self._log = [], self._log[len(read) :]
        answers, unreadable, events = self._endpoint.take()
        assert unreadable == []
        self._answers += answers
        self.events += events

    def restart_job(self) -> None:
        state, self._endpoint = self._endpoint.dump(), Endpoint(RULES, SESSION_MS)
        assert state is not None
        self._endpoint.load(*state)


@pytest.mark.parametrize("killed", [False, True])
def test_nothing_of_the_page_is_given_up_that_no_handler_saw_whatever_was_away(*, killed: bool) -> None:
    world = World()
    first = world.workers["packer-1"] = Worker(world, "packer-1")
    world.run(30)
    world.job_away = True
    world.run(600)
    world.restart_job()
    world.job_away = False
    world.run(60)
    world.kafka_away = True
    world.run(60)
    world.kafka_away = False
    for _ in range(5):
        world.run(20)
        first.restart(killed=killed)
    world.run(60)
    second = world.workers["packer-2"] = Worker(world, "packer-2")
    before = len(first.handled)
    world.run(200)
    share = len(second.handled), len(first.handled) - before
    assert min(share) > 150, "each has its share of a second's work"
    world.run(1_000)
    left = {event.message: event for event in world.events if event.event == "left"}
    handled = Counter([*first.handled, *second.handled])
    assert len(left) == len(handled) == 1_000
    assert {(event.outcome, event.reason) for event in left.values()} == {("settled", "accepted")}
    # a process that ends takes one message along, and Kafka's absence one
    assert sum(handled.values()) - 1_000 <= 7


def test_a_job_that_is_behind_by_more_than_a_lease_gives_nothing_up_and_delivers_nothing_in_vain() -> None:
    world = World(20, behind_ms=RULES.lease + 10_000)
    worker = world.workers["packer-1"] = Worker(world, "packer-1")
    world.run(600)
    assert sorted(Counter(worker.handled).values()) == [1] * 20
    assert {event.reason for event in world.events if event.event == "left"} == {"accepted"}
    assert worker.counts["expired"] == 0


@pytest.mark.parametrize("restarted", [False, True])
def test_work_of_many_leases_is_done_once_if_it_reports_that_it_goes_on(*, restarted: bool) -> None:
    world = World(2)
    lease, leases = RULES.lease, 10
    worker = world.workers["packer-1"] = Worker(world, "packer-1", work_ms=leases * lease)
    world.workers["packer-2"] = Worker(world, "packer-2")
    world.run(lease // 1_000)
    if restarted:
        world.restart_job()
    world.run((leases + 1) * lease // 1_000)
    assert sorted(worker.handled + world.workers["packer-2"].handled) == ["messages-0-0", "messages-0-1"]
    assert [event.reason for event in world.events if event.event == "left"] == ["accepted"] * 2
    # two settlements, and at most three reports of work a lease
    assert leases < world.sent["SettleMessages"] <= 2 + 3 * leases


def test_a_second_worker_that_is_started_for_a_backlog_has_its_share() -> None:
    world = World(5_000)
    for name in ("packer-1", "packer-2"):
        world.workers[name] = Worker(world, name)
        world.run(2)
    assert Counter(event.consumer for event in world.events if event.event == "delivered")["packer-2"] >= PREFETCH
