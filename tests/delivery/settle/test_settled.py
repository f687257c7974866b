from __future__ import annotations

from ackstream.delivery.settle.settled import RUNS, Settled, pieces
from ackstream.protocol.app_acks import (
    AppAckConf,
    ApplicationAcknowledged,
    ReaderState,
    SamplesDone,
    WriterState,
    read_answer,
)


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
