from __future__ import annotations

from ackstream.jobs.settle.records import RUNS, Settled, pieces
from ackstream.protocol.readers import (
    AppAckConf,
    ApplicationAcknowledged,
    KnownReaders,
    ReadersRequest,
    ReaderState,
    SamplesDone,
    WriterState,
    WriterStateRequest,
    read_answer,
)
from ackstream.settings import RequiredRole, Settle
from tests.jobs.settle.logs import Log, Run


def test_a_shard_with_very_many_runs_answers_in_several_messages() -> None:
    log = Log()
    rules = Settle(required=(RequiredRole(role="L", quorum=1),), max_holes=100_000)
    odd = [(number, number) for number in range(1, 100_000, 2)]
    run = Run(rules)
    run.feed(log.stored(1, 100_000), log.ack("A", 1, *odd, role="L"))
    states = run.feed(log.start("A", 2, role="L"), log.say(WriterStateRequest("w1"))).states
    parts = [state for state in states if isinstance(state, ReaderState)]
    assert [(part.part, part.parts) for part in parts] == [(number, 10) for number in range(10)]
    known = [known for part in parts for known in part.writers]
    assert [run for entry in known for run in entry.acknowledged] == odd
    assert sum(len(entry.undelivered) for entry in known) == 50_000
    assert [run for state in states if isinstance(state, WriterState) for run in state.done] == odd[1:]
    assert max(len(message) for _, message in run.settled.messages()) < 1_000_000


def test_many_writers_are_divided_among_parts_that_a_topic_with_kafkas_own_limit_takes() -> None:
    log, run = Log(), Run(Settle(required=(RequiredRole(role="L", quorum=1),)))
    # the longest names, of characters that JSON writes with six bytes
    names = [f"{number:03}" + "\x01" * 252 for number in range(600)]
    run.feed(*(log.stored(1, 2, writer=name) for name in names), log.start("A", 1, role="L"))
    sizes = [len(value) for key, value in run.settled.messages() if key == "A"]
    assert sum(sizes) > 900_000
    assert max(sizes) < 520_000


def test_many_readers_are_listed_in_parts_that_a_topic_with_kafkas_own_limit_takes() -> None:
    log, run = Log(), Run()
    names = [f"{number:03}" + "\x01" * 252 for number in range(250)]
    run.feed(*(log.start(name, role="\x01" * 255) for name in names))
    states = run.feed(log.say(ReadersRequest("ops"))).states
    parts = [state for state in states if isinstance(state, KnownReaders)]
    assert [(part.part, part.parts) for part in parts] == [(0, 3), (1, 3), (2, 3)]
    assert [reader.reader for part in parts for reader in part.readers] == names
    assert max(len(value) for key, value in run.settled.messages() if key == "ops") < 520_000


def test_each_message_has_the_key_of_whom_it_is_for() -> None:
    conf, event = AppAckConf("R", "w", 1, 2), ApplicationAcknowledged("w", "R", 1, 2)
    done, reader, writer = SamplesDone("w", ((1, 2),), 2), ReaderState("R", 1, 0, 1, 5), WriterState("w", 2, 2)
    messages = list(Settled([], [], [conf], [event], [done], [reader, writer]).messages())
    assert [key for key, _ in messages] == ["R", "w", "w", "R", "w"]
    assert [read_answer(value) for _, value in messages] == [conf, event, done, reader, writer]


def test_many_runs_are_divided_and_none_are_one_piece() -> None:
    runs = [(number, number) for number in range(0, 4 * RUNS, 2)]
    assert [len(piece) for piece in pieces([*runs, (10**9, 10**9)])] == [RUNS, RUNS, 1]
    assert pieces([]) == [()]
