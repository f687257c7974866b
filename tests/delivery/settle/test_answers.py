from __future__ import annotations

from ackstream.delivery.settle.rules import RequiredRole, SettleRules
from ackstream.protocol.app_acks import ReaderState, WriterAsks, WriterState
from tests.delivery.logs import Log, Run


def test_a_shard_with_very_many_runs_answers_in_several_messages() -> None:
    log = Log()
    rules = SettleRules((RequiredRole("L", 1),), max_holes=100_000)
    odd = [(number, number) for number in range(1, 100_000, 2)]
    run = Run(rules)
    run.feed(log.stored(1, 100_000), log.ack("A", 1, *odd, role="L"))
    states = run.feed(log.start("A", 2, role="L"), log.say(WriterAsks("w1"))).states
    parts = [state for state in states if isinstance(state, ReaderState)]
    assert [(part.part, part.parts) for part in parts] == [(0, 2), (1, 2)]
    known = [known for part in parts for known in part.writers]
    assert [run for entry in known for run in entry.acknowledged] == odd
    assert sum(len(entry.undelivered) for entry in known) == 50_000
    assert [run for state in states if isinstance(state, WriterState) for run in state.done] == odd[1:]
    assert max(len(message) for _, message in run.settled.messages()) < 5_000_000
