from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ackstream.jobs.settle.completion import Retention
from ackstream.jobs.settle.records import REPORTS, STORED, TICK, TOPICS, ReportRecord, Settled
from ackstream.jobs.settle.shard import SettleShard
from ackstream.observe import metrics
from ackstream.observe.metrics import Tally
from ackstream.protocol.readers import (
    SKEW_MS,
    AckInterval,
    AppAck,
    AppAckConf,
    ApplicationAcknowledged,
    KnownReader,
    KnownReaders,
    KnownWriter,
    ProtocolAck,
    ReaderAlive,
    ReaderRemoved,
    ReadersRequest,
    ReaderState,
    ReaderStop,
    SamplesDone,
    WriterState,
    WriterStateRequest,
)
from ackstream.settings import RequiredRole, Settle
from tests.jobs.settle.logs import PLAIN, ROLES, RULES, Log, Run, reasons, tick

SECOND = 1_000
LATER = 10**9


@pytest.fixture
def log() -> Log:
    return Log()


# -- reports


def test_a_report_becomes_rows_then_events_and_a_confirmation(log: Log) -> None:
    settled = Run(RULES).feed(log.stored(1, 9), log.ack("L1", 4, (1, 3), (5, 5)))
    rows = [
        (row["id"], row.get("first"), row.get("last"), row["role"], row["acknowledged_at"], row["offset"])
        for row in settled.deliveries
    ]
    assert rows == [("w1/L1/1", 1, 3, "Logger", 1_002, 1), ("w1/L1/5", 5, 5, "Logger", 1_002, 1)]
    assert settled.confs == [AppAckConf("L1", "w1", 1, 4)]
    assert settled.events[0] == ApplicationAcknowledged("w1", "L1", 1, 3, "Logger")
    assert (settled.done, settled.ignored) == ([], [])


def test_publishers_receive_the_done_samples_and_the_watermark(log: Log) -> None:
    run = Run(RULES)
    run.feed(log.stored(1, 5), log.ack("L1", 1, (1, 5)), log.ack("P1", 1, (2, 5)))
    assert run.feed(log.ack("L2", 1, (1, 3), (5, 5))).done == [SamplesDone("w1", ((2, 3), (5, 5)), 0)]
    assert run.feed(log.ack("P1", 2, (1, 1))).done == [SamplesDone("w1", ((1, 1),), 3)]


def test_records_apply_in_the_order_of_their_times_and_at_equal_times_stored_messages_come_first() -> None:
    log = Log()
    late, early = log.ack("A", 2, (1, 2), at=20), log.say(b"{}", at=10)
    settled = Run().feed(late, early, log.stored(1, 2, at=20))
    assert [(row["id"], row["reason"], row["received_at"]) for row in settled.ignored] == [
        ("app-acks-0-2-0", "unreadable", 10)
    ]
    assert [row.get("last") for row in settled.deliveries] == [2]


@pytest.mark.parametrize("cut", range(4))
def test_rows_do_not_depend_on_batch_cuts_although_a_brokers_clock_was_set_back(log: Log, cut: int) -> None:
    records = [log.stored(1, 9, at=5_000), log.ack("A", 1, (1, 2), at=5_001), log.ack("A", 2, (3, 4), at=1_000)]
    run = Run()
    run.feed(*records[:cut])
    run.feed(*records[cut:])
    run.feed(watermark=LATER)
    assert [(row.get("first"), row.get("last")) for row in run.settled.deliveries] == [(1, 2), (3, 4)]
    assert reasons(run.settled) == []


def test_an_ignored_report_has_a_row_with_the_reason(log: Log) -> None:
    run = Run()
    run.feed(log.stored(1, 5), log.ack("A", 3, (1, 1)))
    run.feed(log.ack("A", 2, (1, 5)), log.ack("A", 4, (2, 2), (9, 8), (6, 7)))
    run.feed(watermark=LATER)
    rows = [
        (row["id"], row["reason"], row.get("writer"), row["reader"], row.get("first"), row.get("last"))
        for row in run.settled.ignored
    ]
    assert rows == [
        ("app-acks-0-2-0", "stale-count", "w1", "A", None, None),
        ("app-acks-0-3-0", "reversed", "w1", "A", 9, 8),
        ("app-acks-0-3-1", "never-delivered", "w1", "A", 6, 7),
    ]
    assert [conf.count for conf in run.settled.confs] == [3]


@pytest.mark.parametrize("value", [None, b"", b"{}", b'{"type": "horoscope"}', b"\xff" * 100_000])
@pytest.mark.parametrize("source", [STORED, REPORTS])
def test_an_unreadable_record_has_a_row_with_its_value(log: Log, source: int, value: bytes | None) -> None:
    (row,) = Run().feed(log.garbage(source, value)).ignored
    assert (row["reason"], row["topic"], row["value"]) == ("unreadable", TOPICS[source], value and value[:4_096])
    assert row["detail"] is not None
    assert row["detail"].startswith("This is not a record of ")


def test_whatever_one_record_causes_the_others_count(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(self: Retention, report: Any) -> Any:
        if report.reader == "poison":
            raise ZeroDivisionError("a bug")
        return whole(self, report)

    whole = Retention.take
    monkeypatch.setattr(Retention, "take", take)
    monkeypatch.setattr("ackstream.jobs.settle.shard.Presence", lambda *_: 1 / 0)
    run = Run()
    run.feed(log.stored(1, 5), log.ack("poison", 1, (1, 1)), log.start("A"), log.stored(6, 6))
    monkeypatch.undo()
    run.feed(log.ack("A", 1, (1, 6)))
    assert [(row["reason"], row["offset"]) for row in run.settled.ignored] == [("failed", 1), ("failed", 2)]
    assert "ZeroDivisionError" in run.settled.ignored[0]["detail"]
    assert [(row["first"], row["last"]) for row in run.settled.deliveries] == [(1, 6)]


def test_a_record_that_all_shards_receive_has_its_row_in_one(log: Log) -> None:
    broken = log.say(b'{"type": "reader_start", "reader": "A"}')
    assert [len(Run(index=index).feed(broken).ignored) for index in (0, 1)] == [1, 0]


@pytest.mark.parametrize("run", [(5, 4), (-1, 4), (1, 2**63)])
def test_a_run_of_messages_that_cannot_be_is_a_row(log: Log, run: tuple[int, int]) -> None:
    settled = Run().feed(log.stored(*run))
    assert (reasons(settled), settled.done) == ([("unreadable", None, None)], [])


def test_protocol_acknowledgements_release_without_rows(log: Log) -> None:
    settled = Run().feed(log.stored(1, 3), log.say(ProtocolAck("A", "w1", 1, 2)))
    assert (settled.deliveries, settled.confs) == ([], [])


# -- samples


def test_a_writer_begins_with_its_first_number_and_rejected_numbers_are_done(log: Log) -> None:
    run = Run(RULES)
    assert run.feed(log.stored(100, 109, (100, 101), (105, 105))).done == [
        SamplesDone("w1", ((100, 101), (105, 105)), 101)
    ]
    assert run.feed(log.stored(110, 111)).done == []


def test_samples_without_readers_are_done_when_they_are_stored(log: Log) -> None:
    assert Run().feed(log.stored(1, 5), log.stored(6, 9)).done == [SamplesDone("w1", ((1, 9),), 9)]


def test_stored_twice_counts_once(log: Log) -> None:
    run = Run()
    run.feed(log.stored(1, 5))
    assert run.feed(log.stored(1, 5, (3, 3))).done == []


def test_a_report_waits_for_its_samples_while_they_may_still_arrive() -> None:
    log, run = Log(), Run()
    late = log.stored(1, 5, at=900)
    assert run.feed(log.ack("A", 1, (1, 5), at=1_000), log.ack("A", 2, (1, 1), at=1_001), watermark=800) == Settled()
    assert run.next_timeout == 1_000 + SKEW_MS
    assert [conf.count for conf in run.feed(late, watermark=850).confs] == [1, 2]


def test_a_report_counts_if_its_samples_are_later_by_no_more_than_the_skew() -> None:
    log, run = Log(), Run()
    assert run.feed(log.ack("A", 1, (1, 1), at=1_000), log.stored(1, 1, at=1_000 + SKEW_MS)).ignored == []
    assert run.settled.confs == [AppAckConf("A", "w1", 1, 1)]


def test_a_report_of_samples_stored_after_it_is_ignored() -> None:
    log, run = Log(), Run()
    run.feed(log.stored(1, 5, at=900), log.ack("A", 1, (1, 6), at=1_000))
    settled = run.feed(log.stored(6, 6, at=1_001 + SKEW_MS))
    assert (reasons(settled), settled.deliveries, settled.confs) == ([("never-delivered", 1, 6)], [], [])


def test_a_report_about_a_writer_that_never_was_leaves_nothing_but_its_row(log: Log) -> None:
    run = Run()
    run.feed(log.ack("A", 1, (1, 5), writer="nobody"))
    assert reasons(run.feed(watermark=LATER)) == [("never-delivered", 1, 5)]
    assert run.feed(log.say(WriterStateRequest("nobody"))).states == [WriterState("nobody", 0, 0)]
    assert run.state is not None
    assert b"nobody" not in run.state[1]


# -- readers


def test_a_starting_reader_receives_its_acknowledged_and_undelivered_samples(log: Log) -> None:
    run = Run(Settle(required=(RequiredRole(role="Logger", quorum=1),), reader_lease="6s", shards=4), index=2)
    run.feed(log.stored(1, 9, (4, 4)), log.stored(1, 2, writer="w2"), log.ack("L1", 1, (1, 2), (6, 6)))
    settled = run.feed(log.start("L1", epoch=2), watermark=500)
    known = KnownWriter("w1", 1, 9, ((1, 2), (4, 4), (6, 6)), ((3, 3), (5, 5), (7, 9)))
    assert settled.states == [
        ReaderState("L1", 2, 2, 4, 500, (known, KnownWriter("w2", 1, 2, (), ((1, 2),))), lease_ms=6_000)
    ]
    assert [key for key, _ in settled.messages()] == ["L1"]


def test_a_plain_reader_begins_with_new_samples_and_a_durable_one_with_the_retained_ones(log: Log) -> None:
    run = Run(RULES)
    run.feed(log.stored(1, 5))
    states = run.feed(log.start("A"), log.start("B", durable=True)).states
    assert [state.writers for state in states if isinstance(state, ReaderState)] == [
        (KnownWriter("w1", 6, 5),),
        (KnownWriter("w1", 1, 5, (), ((1, 5),)),),
    ]


def test_the_writers_a_reader_reads_wait_for_it_also_those_that_start_later(log: Log) -> None:
    run = Run()
    run.feed(log.start("A", writers=("w*",)), log.stored(1, 2), log.stored(1, 2, writer="v"))
    assert (run.done(), run.done("v")) == (set(), {1, 2})
    run.feed(log.start("A", epoch=2, writers=("v",)))
    assert run.done() == {1, 2}


def test_asking_twice_is_answered_once_a_batch(log: Log) -> None:
    settled = Run().feed(
        log.start("A"), log.start("A"), log.say(WriterStateRequest("w1")), log.say(WriterStateRequest("w1"))
    )
    assert [type(state) for state in settled.states] == [ReaderState, WriterState]


def test_a_state_request_is_answered_with_who_is_waited_for(log: Log) -> None:
    run = Run(RULES)
    run.feed(log.stored(1, 5, (1, 1)), log.start("A"), log.stored(6, 6), log.ack("L1", 1, (2, 6)))
    run.feed(log.ack("L2", 1, (2, 2), (4, 6)), log.ack("P1", 1, (2, 6)))
    assert run.feed(log.say(WriterStateRequest("w1"))).states == [WriterState("w1", 6, 2, ((4, 5),), ("Logger",))]
    run.feed(log.ack("L2", 2, (2, 6)))
    assert run.feed(log.say(WriterStateRequest("w1"))).states == [WriterState("w1", 6, 5, (), ("A",))]


def test_a_role_that_is_no_longer_required_releases_samples_at_the_next_state_request(log: Log) -> None:
    run = Run(RULES)
    run.feed(log.stored(1, 5))
    run.rules = PLAIN
    settled = run.feed(log.say(WriterStateRequest("w1")))
    assert (settled.done, settled.states) == ([SamplesDone("w1", ((1, 5),), 5)], [WriterState("w1", 5, 5)])


# -- readers that are silent


def test_a_plain_reader_that_is_silent_for_its_lease_leaves_by_the_watermark() -> None:
    log, run = Log(), Run()
    run.feed(log.start("A", at=10 * SECOND), log.stored(1, 5, at=20 * SECOND))
    run.feed(log.say(ReaderAlive("A", 1), at=30 * SECOND))
    run.feed(watermark=58 * SECOND)
    assert run.next_timeout == 60 * SECOND
    run.feed(watermark=60 * SECOND)
    assert run.done() == set()
    run.feed(watermark=60 * SECOND + 1)
    assert run.done() == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("tick_first", [True, False])
@pytest.mark.parametrize("away_ms", [20_000, 60_000, 86_400_000])
def test_time_in_which_kafka_was_away_is_no_readers_silence(away_ms: int, *, tick_first: bool) -> None:
    log, run = Log(), Run(Settle(shards=1, reader_lease="15s"))
    run.feed(log.stored(1, 5, at=0), log.start("A", at=1), *(log.start(name, at=1, writers=("w1",)) for name in "BC"))
    run.feed(log.stored(6, 9, at=2), log.stored(1, 1, writer="w2", at=2))
    run.feed(log.say(ReaderAlive("A", 1), at=8 * SECOND), log.say(ReaderAlive("B", 1), at=9 * SECOND))
    run.feed(watermark=10 * SECOND)
    back = 10 * SECOND + away_ms
    if tick_first:
        run.batch(tick(back), watermark=back)
    # the readers send what they had kept one after the other
    run.batch(log.say(ReaderAlive("A", 1), at=back + 1))
    run.batch(tick(back + SECOND), watermark=back + SECOND)
    run.batch(log.say(ReaderAlive("B", 1), at=back + 3 * SECOND))
    assert (_present(run, log), run.done()) == (["A", "B"], {1, 2, 3, 4, 5}), "C was silent before, for 15 s"
    assert run.done("w2") == set(), "A has been waited for"
    run.feed(watermark=back + 15 * SECOND + 1)
    assert _present(run, log) == ["A", "B"]
    run.feed(watermark=back + 16 * SECOND + 1)
    assert _present(run, log) == ["B"], "silence counts again from the first tick after the outage on"
    run.feed(watermark=back + 18 * SECOND + 1)
    assert (_present(run, log), run.done()) == ([], set(range(1, 10)))


def _present(run: Run, log: Log) -> list[str]:
    (listed,) = [
        state for state in run.batch(log.say(ReadersRequest("ops", 1))).states if isinstance(state, KnownReaders)
    ]
    return [reader.reader for reader in listed.readers if reader.present]


def test_a_silent_reader_is_asked_for_no_tick_once_it_is_gone() -> None:
    log, run = Log(), Run(Settle(shards=1, reader_memory="100s"))
    run.feed(log.start("A", at=0), log.start("D", durable=True, at=0))
    run.feed(watermark=20 * SECOND)
    assert run.next_timeout == 30 * SECOND
    run.feed(watermark=31 * SECOND)
    assert run.next_timeout == 100 * SECOND


@pytest.mark.parametrize(("readers", "changed"), [([], 0), ([True], 0), ([False], 5), ([True, False], 5)])
def test_ticks_change_the_state_only_while_there_are_temporary_readers(readers: list[bool], changed: int) -> None:
    log, run = Log(), Run()
    run.feed(log.stored(1, 5, at=1), *(log.start(f"R{durable}", durable=durable, at=2) for durable in readers))
    states = [run.state]
    for second in range(20, 60, 5):
        run.batch(tick(second * SECOND), watermark=second * SECOND)
        states.append(run.state)
    assert sum(before != after for before, after in pairwise(states)) == changed, "the lease ends after 35 s"


@pytest.mark.parametrize("cuts", [[4], [0, 4], [1, 4], [0, 1, 2, 3, 4]])
def test_readers_lapse_at_a_tick_in_whichever_batch_they_return(cuts: list[int]) -> None:
    log, run = Log(), Run()
    run.feed(log.stored(0, 0, at=0), log.start("A", at=1), log.start("B", at=1), log.stored(1, 5, at=2))
    run.feed(watermark=29 * SECOND)
    back = [log.say(ReaderAlive("A", 1), at=32 * SECOND), log.say(ReaderAlive("B", 1), at=33 * SECOND)]
    records = [tick(30 * SECOND), tick(31 * SECOND), *back, tick(34 * SECOND)]
    first = 0
    for cut in cuts:
        run.batch(*records[first : cut + 1])
        first = cut + 1
    assert run.done() == {0, 1, 2, 3, 4, 5}


def test_a_reader_that_writes_is_present_while_a_clock_is_set_back() -> None:
    log, run = Log(), Run(Settle(shards=1, reader_lease="15s"))
    run.feed(log.stored(0, 0, at=0), log.start("A", at=200 * SECOND), log.stored(1, 5, at=201 * SECOND))
    run.feed(log.say(ReaderAlive("A", 1), at=204 * SECOND), watermark=204 * SECOND)
    for second in range(85, 206, 5):
        run.batch(log.say(ReaderAlive("A", 1), at=second * SECOND), watermark=204 * SECOND)
    assert run.done() == {0}


def test_a_lapsed_reader_had_left_even_if_its_own_next_record_reveals_it() -> None:
    log, run = Log(), Run()
    run.feed(log.start("A", at=0), log.stored(1, 5, at=1))
    run.feed(watermark=30 * SECOND)
    run.feed(log.say(ReaderAlive("A", 1), at=30 * SECOND + 1), log.stored(6, 7, at=40 * SECOND))
    assert run.done() == {1, 2, 3, 4, 5}, "it was away in between, and is waited for again"


def test_a_lapsed_reader_returns_only_to_the_writers_it_reads() -> None:
    log, run = Log(), Run()
    run.feed(log.stored(0, 0, at=0), log.stored(0, 0, writer="w2", at=0), log.start("A", at=1))
    run.feed(log.start("A", 2, writers=("w2",), at=2))
    run.feed(log.say(ReaderAlive("A", 2), at=90 * SECOND), watermark=90 * SECOND)
    run.feed(log.stored(1, 1, at=90 * SECOND), log.stored(1, 1, writer="w2", at=90 * SECOND))
    assert (run.done(), run.done("w2")) == ({0, 1}, {0})


@pytest.mark.parametrize("others", [{"durable": True}, {"role": "Logger"}])
def test_durable_readers_and_required_roles_are_waited_for_without_records(others: dict[str, Any]) -> None:
    required = Settle(required=(RequiredRole(role="Logger", quorum=1, writers=("w1",)),))
    log, run = Log(), Run(required if "role" in others else PLAIN)
    run.feed(log.start("A", **others), log.stored(1, 5))
    run.feed(watermark=LATER)
    assert run.done() == set()


def test_a_reader_that_stops_is_no_longer_waited_for_durable_or_not(log: Log) -> None:
    run = Run()
    run.feed(log.start("A", durable=True), log.stored(1, 5), log.say(ReaderStop("A", 1)))
    assert run.done() == {1, 2, 3, 4, 5}
    assert run.feed(log.stored(6, 6)).done == [SamplesDone("w1", ((6, 6),), 6)]


def test_of_two_readers_of_one_name_the_later_epoch_counts_and_one_shard_records_the_other(log: Log) -> None:
    stored, newer = log.stored(1, 1), log.start("A", 2)
    stale = [log.start("A", 1), log.say(ReaderAlive("A", 1)), log.say(ReaderStop("A", 1))]
    acks = log.ack("A", 1, (1, 1))
    for index, rows in ((0, 4), (1, 1)):
        run = Run(index=index)
        run.feed(stored, newer, *stale, acks)
        assert reasons(run.settled) == [("stale-epoch", None, None)] * rows
        assert [state.epoch for state in run.settled.states if isinstance(state, ReaderState)] == [2]


def test_a_present_reader_cannot_change_its_role(log: Log) -> None:
    settled = Run().feed(log.start("A"), log.start("A", role="Logger"))
    assert reasons(settled) == [("role-changed", None, None)]


def test_records_of_a_reader_that_never_started_are_ignored(log: Log) -> None:
    run = Run()
    run.feed(log.say(ReaderAlive("A", 1)), log.say(ReaderStop("A", 1)))
    assert (run.settled, run.next_timeout) == (Settled(), None)


def test_a_plain_reader_is_forgotten_in_the_end() -> None:
    log, run = Log(), Run(Settle(shards=1, reader_memory="100s"))
    run.feed(log.start("A", at=0), log.stored(1, 1, at=1), log.ack("A", 1, (1, 1), at=2))
    run.feed(watermark=31 * SECOND)
    assert run.next_timeout == 100 * SECOND + 2
    run.feed(watermark=101 * SECOND)
    assert run.next_timeout is None
    assert run.state is not None
    assert b"A" not in run.state[1]


def test_a_start_with_an_older_epoch_is_answered_with_the_epoch_to_exceed(log: Log) -> None:
    run = Run()
    run.feed(log.stored(1, 1), log.start("A", 9_000))
    (state,) = run.feed(log.start("A", 7)).states
    assert isinstance(state, ReaderState)
    assert (state.epoch, [known.writer for known in state.writers]) == (9_000, ["w1"])
    (state,) = run.feed(log.start("A", 9_001)).states
    assert isinstance(state, ReaderState)
    assert state.epoch == 9_001


def test_a_durable_reader_that_was_silent_for_its_lease_is_removed_with_a_row_and_learns_it() -> None:
    rules = Settle(shards=1, reader_lease="30s", durable_lease="1h")
    for index, rows in ((0, [("reader-expired", None, None)]), (1, [])):
        log, run = Log(), Run(rules, index)
        run.feed(log.start("A", durable=True, at=0), log.stored(1, 5, at=1), log.say(ReaderAlive("A", 1), 60 * SECOND))
        assert run.next_timeout == 3_660 * SECOND
        assert (run.feed(watermark=3_660 * SECOND).states, run.done()) == ([], set())
        settled = run.feed(watermark=3_660 * SECOND + 1)
        assert (settled.states, run.done()) == ([ReaderRemoved("A", index, 1, 1)], {1, 2, 3, 4, 5})
        assert reasons(settled) == rows
        assert [(row["id"], row["reader"], row["received_at"]) for row in settled.ignored] == [
            (f"reader-A-1-{3_660 * SECOND}", "A", 3_660 * SECOND)
        ] * len(rows)


def test_an_expired_reader_that_starts_again_begins_anew_and_is_not_ended() -> None:
    log, run = Log(), Run(Settle(shards=1, reader_lease="30s", durable_lease="1h"))
    run.feed(log.start("A", durable=True, at=0), log.stored(1, 5, at=1))
    (state,) = run.feed(log.start("A", 2, durable=True, at=2 * 3_600 * SECOND)).states
    assert isinstance(state, ReaderState)
    assert ([known.undelivered for known in state.writers], run.done()) == ([()], {1, 2, 3, 4, 5})
    assert reasons(run.settled) == [("reader-expired", None, None)]


def test_without_a_lease_a_durable_reader_is_waited_for_however_long_it_is_silent(log: Log) -> None:
    run = Run()
    run.feed(log.start("A", durable=True), log.stored(1, 5))
    run.feed(watermark=LATER)
    assert (run.done(), run.next_timeout) == (set(), None)


def test_a_writer_requires_roles_of_its_own_from_before_its_first_sample_on(log: Log) -> None:
    run = Run()
    (state,) = run.feed(log.say(WriterStateRequest("w1", {"Auditor": 2}))).states
    assert state == WriterState("w1", 0, 0, required={"Auditor": 2})
    run.feed(log.stored(1, 2), log.stored(1, 2, writer="w2"))
    assert (run.done(), run.done("w2")) == (set(), {1, 2})
    run.feed(log.ack("A1", 1, (1, 2), role="Auditor"))
    (state,) = run.feed(log.say(WriterStateRequest("w1"))).states
    assert state == WriterState("w1", 2, 0, (), ("Auditor",), {"Auditor": 2})
    run.feed(log.ack("A2", 1, (1, 1), role="Auditor"))
    assert run.done() == {1}


def test_roles_of_a_writer_hold_while_it_is_away_and_end_when_it_names_none(log: Log) -> None:
    run = Run(Settle(shards=1, reader_memory="100s"))
    run.feed(
        log.say(WriterStateRequest("w1", {"Auditor": 1})), log.stored(1, 1), log.ack("A1", 1, (1, 1), role="Auditor")
    )
    run.feed(watermark=10**6)
    run.feed(log.stored(2, 2, at=10**6))
    assert run.done() == {1}
    run.feed(log.say(WriterStateRequest("w1", {})))
    assert run.done() == {1, 2}


def test_roles_of_a_writer_that_never_comes_back_are_forgotten_after_the_lease_of_durable_names() -> None:
    log, run = Log(), Run(Settle(shards=1, reader_memory="100s", durable_lease="1h"))
    run.feed(log.say(WriterStateRequest("w1", {"Auditor": 1}), 0), log.say(WriterStateRequest("w2", {"Auditor": 1}), 0))
    run.feed(log.stored(1, 1, at=60 * SECOND), log.ack("A1", 1, (1, 1), role="Auditor", at=61 * SECOND))
    run.feed(watermark=3_601 * SECOND)
    assert run.state is not None
    assert (b"w1" in run.state[1], b"w2" in run.state[1]) == (True, False)
    run.feed(log.stored(2, 2, at=3_602 * SECOND), log.stored(1, 1, writer="w2", at=3_602 * SECOND))
    assert (run.done(), run.done("w2")) == ({1}, {1})
    run.feed(watermark=10 * 3_600 * SECOND)
    assert run.done() == {1}, "open samples wait for their roles"


def test_roles_of_a_writer_that_names_them_now_and_then_hold_however_long_it_publishes_nothing() -> None:
    log, run = Log(), Run(Settle(shards=1, reader_memory="100s", durable_lease="1h"))
    for minutes in range(0, 300, 10):
        at = minutes * 60 * SECOND
        run.feed(log.say(WriterStateRequest("w1", {"Auditor": 1}), at), watermark=at)
    run.feed(log.stored(1, 1, at=300 * 60 * SECOND))
    assert run.done() == set()


def test_a_writer_that_requires_roles_learns_how_long_it_may_be_silent() -> None:
    log, run = Log(), Run(Settle(shards=1, durable_lease="5m"))
    asked = [log.say(WriterStateRequest("w1", {"Auditor": 1})), log.say(WriterStateRequest("w2"))]
    assert [getattr(state, "lease_ms", 0) for state in run.feed(*asked).states] == [300_000, None]


def test_of_a_role_that_settings_and_writer_require_the_greater_quorum_counts(log: Log) -> None:
    run = Run(RULES)
    run.feed(log.say(WriterStateRequest("w1", {"Logger": 1, "Processor": 2})), log.stored(1, 1))
    run.feed(*(log.ack(reader, 1, (1, 1)) for reader in ("L1", "P1")))
    (state,) = run.feed(log.say(WriterStateRequest("w1"))).states
    assert state == WriterState("w1", 1, 0, (), ("Logger", "Processor"), {"Logger": 1, "Processor": 2})


@pytest.mark.parametrize("required", [{"": 1}, {"Logger": 0}, {"x" * 256: 1}, {"Logger": "1"}])
def test_roles_that_no_reader_can_fill_are_an_unreadable_record(log: Log, required: dict[str, Any]) -> None:
    run = Run()
    run.feed(log.say(json.dumps({"type": "writer_asks", "writer": "w1", "required": required}).encode()))
    run.feed(log.stored(1, 1))
    assert (reasons(run.settled), run.done()) == ([("unreadable", None, None)], {1})


def test_an_operator_learns_which_readers_there_are_and_what_is_kept_for_each(log: Log) -> None:
    run = Run(Settle(shards=4, required=(RequiredRole(role="Logger", writers=("w1",)),)), index=2)
    run.feed(log.start("A", durable=True), log.start("L1"), log.start("T", writers=("x",)), log.stored(1, 9, (4, 4)))
    run.feed(log.ack("A", 1, (1, 2)), log.ack("L1", 1, (1, 3)))
    (known,) = run.feed(log.say(ReadersRequest("ops", 6)), log.say(ReadersRequest("ops", 7))).states
    assert known == KnownReaders(
        "ops",
        2,
        4,
        (
            KnownReader("A", None, durable=True, seen=1_005, unacknowledged=6),
            KnownReader("L1", "Logger", seen=1_006, unacknowledged=5),
            KnownReader("T", seen=1_003),
        ),
        number=7,
    )
    assert [key for key, _ in run.settled.messages()][-1] == "ops"


def test_a_durable_reader_can_be_removed_whatever_its_epoch(log: Log) -> None:
    run = Run()
    run.feed(log.start("A", 2**62, durable=True), log.stored(1, 5))
    settled = run.feed(log.say(ReaderStop("A")))
    assert (settled.states, run.done()) == ([ReaderRemoved("A", 0, 1, 2**62)], {1, 2, 3, 4, 5})
    assert run.state is not None
    assert b"A" not in run.state[1]
    (state,) = run.feed(log.start("A", 1, durable=True)).states
    assert isinstance(state, ReaderState)
    assert state.epoch == 1
    assert run.feed(log.say(ReaderStop("unknown"))).states == [ReaderRemoved("unknown", 0, 1, 0)]


def test_reports_of_a_removed_reader_that_wait_for_their_samples_do_not_bring_it_back(log: Log) -> None:
    run = Run()
    run.feed(log.start("A", durable=True), log.stored(1, 1))
    run.feed(log.ack("A", 1, (1, 2)), log.ack("A", 1, (1, 1), writer="w2"))
    run.feed(log.say(ReaderStop("A")))
    assert reasons(run.settled) == [("reader-removed", None, None)] * 2
    run.feed(log.stored(2, 2), log.stored(1, 1, writer="w2"), log.stored(3, 3))
    assert (run.done(), run.done("w2")) == ({1, 2, 3}, {1})


def test_a_removed_reader_of_a_required_role_stays_as_long_as_its_acknowledgements_count(log: Log) -> None:
    run = Run(RULES)
    run.feed(log.stored(1, 2), log.start("L1", 9), log.ack("L1", 1, (1, 1), epoch=9), log.ack("P1", 1, (1, 2)))
    run.feed(log.say(ReaderStop("L1")))
    assert run.feed(log.ack("L2", 1, (1, 2))).done == [SamplesDone("w1", ((1, 1),), 1)]
    assert run.feed(log.ack("L1", 1, (2, 2))).done == [SamplesDone("w1", ((2, 2),), 2)], "under any epoch"


# -- names are forgotten


def test_a_silent_reader_of_a_required_role_is_forgotten_once_none_of_its_acknowledgements_counts() -> None:
    log, run = Log(), Run(Settle(shards=1, reader_memory="100s", required=(RequiredRole(role="Logger", quorum=2),)))
    run.feed(log.stored(1, 1, at=0), log.ack("L1", 1, (1, 1), at=1), log.start("L1", at=2))
    run.feed(watermark=31 * SECOND)
    run.feed(watermark=150 * SECOND)
    assert run.state is not None
    assert b"L1" in run.state[1]
    run.feed(log.ack("L2", 1, (1, 1), at=160 * SECOND))
    assert run.done() == {1}
    run.feed(watermark=300 * SECOND)
    assert b"L1" not in run.state[1]


def test_a_writer_without_open_samples_is_forgotten_and_begins_again_with_its_next_sample() -> None:
    log, run = Log(), Run(Settle(shards=1, reader_memory="100s"))
    run.feed(log.start("A", durable=True, at=0), log.stored(1, 5, at=1), log.ack("A", 1, (1, 5), at=2))
    run.feed(log.stored(1, 5, writer="w2", at=3))
    run.feed(watermark=100 * SECOND + 2)
    assert run.state is not None
    assert b"w1" in run.state[1]
    run.feed(watermark=100 * SECOND + 3)
    assert (b"w1" in run.state[1], b"w2" in run.state[1]) == (False, True), "w2 has open samples"
    (state,) = run.feed(log.say(WriterStateRequest("w1"), 110 * SECOND)).states
    assert state == WriterState("w1", 0, 0)
    run.feed(log.stored(6, 7, at=120 * SECOND), log.ack("A", 2, (1, 6), at=121 * SECOND))
    assert run.done() == {1, 2, 3, 4, 5, 6}
    (state,) = run.feed(log.start("A", 2, durable=True, writers=("w1",), at=122 * SECOND)).states
    assert isinstance(state, ReaderState)
    assert KnownWriter("w1", 6, 7, ((6, 6),), ((7, 7),)) in state.writers


# -- state


def test_an_untouched_writer_is_carried_along_as_it_is(log: Log) -> None:
    run = Run(RULES)
    run.feed(log.stored(1, 5), log.stored(1, 5, (3, 3), writer="w2"))
    run.feed(log.ack("L1", 1, (2, 4)), log.ack("L1", 1, (1, 1), writer="w2"))
    run.feed(log.ack("L2", 1, (1, 2)))
    (state,) = run.feed(log.start("L1", 2)).states
    assert isinstance(state, ReaderState)
    assert [known.undelivered for known in state.writers] == [((1, 1), (5, 5)), ((2, 2), (4, 5))]


def test_many_holes_are_small(log: Log) -> None:
    run = Run(Settle(required=(RequiredRole(role="Logger", quorum=1),), max_holes=100_000))
    odd = [(number, number) for number in range(10**15 + 1, 10**15 + 100_001, 2)]
    run.feed(log.stored(10**15, 10**15 + 100_000), log.ack("L1", 1, *odd))
    assert run.state is not None
    assert len(run.state[1]) < 2 * 2 * len(odd) + 200, "the runs of the reader, and of what is done: two bytes each"


# -- the law

READERS = [*ROLES, "A", "B"]
runs = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 4)).map(lambda pair: (pair[0], sum(pair))), max_size=4)
actions = st.tuples(
    st.integers(0, 20).map(lambda tenths: tenths * 4 * SECOND),
    st.sampled_from(["stored", "stored", "ack", "ack", "ack", "start", "alive", "stop", "remove", "asks"]),
    st.sampled_from(READERS),
    st.integers(1, 3),
    st.integers(1, 6),
    runs,
    st.booleans(),
)


def _log(steps: list[Any]) -> list[ReportRecord]:
    log, last, found = Log(), {"w1": 0, "w2": 0}, []
    for time, what, reader, epoch, number, intervals, flag in sorted(steps, key=lambda step: step[0]):
        writer = "w2" if flag else "w1"
        if what == "stored":
            first, last[writer] = last[writer] + 1, last[writer] + number
            refused = [run for run in intervals if run[0] >= first]
            found.append(log.stored(first, last[writer], *refused, writer=writer, at=time))
        elif what == "ack":
            found.append(log.ack(reader, number, *intervals, writer=writer, epoch=epoch, at=time))
        elif what == "start":
            found.append(log.start(reader, epoch, durable=flag and number == 1, at=time))
        elif what == "asks":
            found.append(log.say(WriterStateRequest(writer, OWN_ROLES[number % len(OWN_ROLES)]), time))
        elif what == "remove":
            found.append(log.say(ReaderStop(reader), time))
        else:
            found.append(log.say((ReaderAlive if what == "alive" else ReaderStop)(reader, epoch), time))
    return found


def _told(run: Run) -> tuple[Any, ...]:
    settled = run.settled
    events = [(event.writer, event.reader, event.first, event.last) for event in settled.events]
    ignored = sorted((row["id"], row["reason"], row.get("first"), row.get("last")) for row in settled.ignored)
    rows = sorted((row["id"], row.get("last"), row["role"], row["epoch"], row["offset"]) for row in settled.deliveries)
    confs = sorted((conf.reader, conf.writer, conf.epoch, conf.count) for conf in settled.confs)
    return sorted(events), ignored, rows, confs, run.done("w1"), run.done("w2")


OWN_ROLES: tuple[dict[str, int] | None, ...] = (None, {}, {"Logger": 3}, {"Auditor": 1})
"""What a writer requires itself."""

FORGETFUL = Settle(shards=1, required=RULES.required, reader_lease="8s", reader_memory="15s")
EXPIRING = Settle(shards=1, required=RULES.required, reader_lease="4s", durable_lease="9s", reader_memory="15s")


@pytest.mark.parametrize("rules", [RULES, FORGETFUL, EXPIRING], ids=["remembering", "forgetful", "expiring"])
@settings(max_examples=100)
@given(st.lists(actions, max_size=25), st.data())
def test_the_output_does_not_depend_on_where_batches_are_cut(
    rules: Settle, steps: list[Any], data: st.DataObject
) -> None:
    ticks = data.draw(
        st.lists(st.integers(0, 120).map(SECOND.__mul__), max_size=20) | st.just([*range(0, 120_000, 2_000)])
    )
    records = sorted([*_log(steps), *map(tick, ticks)], key=lambda record: (record.timestamp, record.source == TICK))
    whole = Run(rules)
    whole.batch(*records)
    whole.batch(watermark=LATER)
    cut = Run(rules)
    watermark, left = 0, list(records)
    while left:
        count = data.draw(st.integers(0, len(left)))
        batch, left = left[:count], left[count:]
        # a batch without a tick goes by the second of the last one
        cut.batch(*batch, watermark=max(0, watermark - data.draw(st.sampled_from([0, SECOND - 1]))))
        # the tick that may be published now counts from the next batch on
        watermark = max(watermark, data.draw(st.integers(0, left[0].timestamp if left else LATER)))
    cut.batch(watermark=LATER)
    assert _told(cut) == _told(whole)


@settings(max_examples=100)
@given(st.lists(actions, max_size=25))
def test_a_reader_acknowledges_a_sample_once_and_every_message_is_true(steps: list[Any]) -> None:
    run = Run(RULES)
    run.feed(*_log(steps))
    run.feed(watermark=LATER)
    numbers = [
        (event.writer, event.reader, number)
        for event in run.settled.events
        for number in range(event.first, event.last + 1)
    ]
    assert len(numbers) == len(set(numbers))
    assert len({row["id"] for row in run.settled.deliveries}) == len(run.settled.deliveries)
    assert len({row["id"] for row in run.settled.ignored}) == len(run.settled.ignored)
    believed = set(numbers)
    refused = _refused(steps)
    for writer in ("w1", "w2"):
        for number in run.done(writer) - refused[writer]:
            assert sum((writer, reader, number) in believed for reader in ("L1", "L2")) == 2
            assert (writer, "P1", number) in believed


def _refused(steps: list[Any]) -> dict[str, set[int]]:
    last, found = {"w1": 0, "w2": 0}, {"w1": set[int](), "w2": set[int]()}
    for _, what, _, _, number, intervals, flag in sorted(steps, key=lambda step: step[0]):
        if what == "stored":
            writer = "w2" if flag else "w1"
            first, last[writer] = last[writer] + 1, last[writer] + number
            found[writer] |= {
                seq for begin, end in intervals if begin >= first for seq in range(begin, min(end, last[writer]) + 1)
            }
    return found


@settings(max_examples=100)
@given(st.lists(actions, max_size=20), st.data())
def test_a_partition_that_is_read_late_changes_no_row(steps: list[Any], data: st.DataObject) -> None:
    """Of readers that do not come and go, about samples that were stored before they were acknowledged."""
    log, last, records = Log(), 0, []
    for time, what, reader, _, number, intervals, _ in sorted(steps, key=lambda step: step[0]):
        if what == "stored":
            records.append(log.stored(last + 1, last + number, at=time))
            last += number
        elif what == "ack" and last:
            known = [(begin, min(end, last)) for begin, end in intervals if begin <= last]
            records.append(log.ack(reader, number, *known, at=time))
    whole = Run(RULES)
    whole.feed(*records)
    whole.feed(watermark=LATER)
    late = Run(RULES)
    left = [[record for record in records if record.source == source] for source in (STORED, REPORTS)]
    watermark = 0
    while any(left):
        batch = []
        for partition in left:
            count = data.draw(st.integers(0, len(partition)))
            batch += partition[:count]
            del partition[:count]
        late.feed(*batch, watermark=watermark)
        oldest = min((partition[0].timestamp for partition in left if partition), default=LATER)
        watermark = max(watermark, data.draw(st.integers(0, oldest)))
    late.feed(watermark=LATER)
    assert _told(late)[:4] == _told(whole)[:4]


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=60) | st.none()), max_size=12))
def test_no_bytes_stop_the_operator(values: list[tuple[int, bytes | None]]) -> None:
    log = Log()
    settled = Run().feed(*(log.garbage(source, value) for source, value in values))
    assert len(settled.ignored) == len(values)


def test_the_response_and_its_limit_come_through(log: Log) -> None:
    run = Run()
    told = (AckInterval(1, 1, b"\xfa"), AckInterval(2, 2, b"x" * 40_000), AckInterval(3, 3, auto="replaced"))
    run.feed(log.stored(1, 3), log.say(AppAck("A", "w1", 1, 1, told)))
    assert [(row["response"], row["auto"]) for row in run.settled.deliveries] == [
        (b"\xfa", None),
        (None, None),
        (None, "replaced"),
    ]
    assert reasons(run.settled) == [("response-too-long", 2, 2)]
    assert [conf.count for conf in run.settled.confs] == [1]


def test_its_gauges_are_the_present_readers_once_and_the_writers_with_open_samples(log: Log) -> None:
    def measured(index: int) -> dict[tuple[str, ...], float]:
        shard, tally = SettleShard(RULES, index), Tally()
        shard.process([log.start("A"), log.stored(1, 5), log.start("B"), log.stored(1, 2, writer="w2")], 0)
        shard.dump()
        shard.measure(tally)
        return tally.gauges

    # a reader is known to all shards, a writer to one
    assert measured(0) == {(metrics.OPEN_WRITERS.name,): 2, (metrics.READERS.name,): 2}
    assert measured(1) == {(metrics.OPEN_WRITERS.name,): 2}
