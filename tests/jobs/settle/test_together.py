"""Readers, the shard that settles and the publisher, with everything between them lost now and then."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.publishing._acks import Callback, WriterAcknowledgements
from ackstream.client.reading._reader_history import ReaderHistory
from ackstream.client.reading.samples import ReaderQos, Sample, WriterQos
from ackstream.protocol.intervals import Intervals
from ackstream.protocol.messages import StoredRange
from ackstream.protocol.readers import AppAck, ReaderStart, ReaderState
from tests.jobs.settle.logs import RULES, Log, Run

ROLES = {"L1": "Logger", "L2": "Logger", "L3": "Logger", "P1": "Processor"}
PERIOD = 1_000


class _World:
    def __init__(self) -> None:
        self.now = 0
        self.log, self.run = Log(), Run(RULES)
        self.callbacks: list[Callback] = []
        self.publications = WriterAcknowledgements(WriterQos(), "w1", lambda _: None, self.callbacks.append)
        self.readers: dict[str, ReaderHistory] = {}
        self.taken: dict[str, list[Sample]] = {}
        self.epochs: Counter[str] = Counter()
        self.confirmed = {name: Intervals() for name in ROLES}
        self.processed: Counter[tuple[str, int]] = Counter()
        for name in ROLES:
            self.start(name)

    def start(self, name: str) -> None:
        """Start a reader, again perhaps; what it is given comes from the retained samples."""
        self.epochs[name] += 1
        (state,) = self.run.feed(self.log.start(name, self.epochs[name], role=ROLES[name])).states
        assert isinstance(state, ReaderState)
        qos = ReaderQos(kind="application-explicit", samples_per_app_ack=3, app_ack_period_ms=PERIOD)
        self.readers[name] = ReaderHistory(
            qos,
            ReaderStart(name, self.epochs[name], ROLES[name]),
            wanted=lambda _: True,
            on_acknowledged=lambda *_: None,
            clock=lambda: self.now,
        )
        self.taken[name] = []
        for known in state.writers:
            self.readers[name].begin(known)
            for first, last in known.undelivered:
                for seq in range(first, last + 1):
                    self.deliver(name, seq)

    def deliver(self, name: str, seq: int) -> None:
        self.readers[name].add(Sample("w1", None, None, None, {}, 0, seq, 0, seq))

    def write(self) -> None:
        self.publications.write()
        seq = self.publications.written
        self.run.feed(self.log.stored(seq, seq))
        for name in ROLES:
            self.deliver(name, seq)
            self.readers[name].mark_stored(StoredRange("w1", seq, seq, 0))

    def work(self, name: str, number: int) -> None:
        """Take everything, and acknowledge the last samples."""
        for sample in self.readers[name].take(1_000, 0):
            assert sample.seq not in self.confirmed[name], "redelivered after a confirmed acknowledgement"
            self.taken[name].append(sample)
        for sample in self.taken[name][-number:]:
            self.processed[name, sample.seq] += 1
            self.readers[name].acknowledge_sample(sample, None)
        del self.taken[name][-number:]

    def talk(self, name: str, *, lose_report: bool = False, lose_conf: bool = False, twice: bool = False) -> None:
        reader = self.readers[name]
        reports = [] if lose_report and reader.due() else reader.due()
        for report in reports * (2 if twice else 1):
            assert isinstance(report, AppAck)
            settled = self.run.feed(self.log.say(report))
            for event in settled.events * (2 if twice else 1):
                self.publications.receive(event)
            for done in settled.done:
                self.publications.receive(done)
            for conf in settled.confs:
                self.confirmed[name].merge((run.first, run.last) for run in report.intervals)
                if not lose_conf:
                    reader.confirm(conf)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write")),
        st.tuples(st.just("work"), st.sampled_from([*ROLES]), st.integers(1, 3)),
        st.tuples(st.just("talk"), st.sampled_from([*ROLES]), st.booleans(), st.booleans(), st.booleans()),
        st.tuples(st.just("crash"), st.sampled_from([*ROLES])),
        st.tuples(st.just("time"), st.integers(1, 2 * PERIOD)),
    ),
    max_size=60,
)


@given(steps)
def test_every_role_gets_every_sample_whatever_is_lost(taken: list[Any]) -> None:
    world = _World()
    for op, *values in taken:
        if op == "write":
            world.write()
        elif op == "work":
            world.work(*values)
        elif op == "talk":
            world.talk(values[0], lose_report=values[1], lose_conf=values[2], twice=values[3])
        elif op == "crash":
            world.start(*values)
        else:
            world.now += values[0]
        done = [seq for seq in range(1, world.publications.written + 1) if world.publications.is_complete(seq)]
        for seq in done:
            assert sum(bool(world.processed[name, seq]) for name in ("L1", "L2", "L3")) >= 2
            assert world.processed["P1", seq]
    for _ in range(4):
        world.now += PERIOD
        for name in ("L1", "L2", "P1"):
            world.work(name, 100)
            world.talk(name)
    assert not world.publications.retained
    told = Counter((callback.reader, callback.seq) for callback in world.callbacks)
    assert set(told.values()) <= {1}
    assert {name for name, _ in told} <= set(ROLES)
    assert {(name, seq) for name in ("L1", "L2", "P1") for seq in range(1, world.publications.written + 1)} <= set(told)
