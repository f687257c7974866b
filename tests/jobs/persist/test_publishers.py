from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ackstream.jobs.persist import publishers
from ackstream.jobs.persist.decisions import Admission
from ackstream.jobs.persist.job import fold
from ackstream.jobs.persist.records import MessageMetadata, MessageRun, PersistResult, RejectedRecord, is_durability_ack
from ackstream.jobs.persist.state import PublisherState
from ackstream.protocol.intervals import Intervals
from ackstream.protocol.messages import StoredRange, write_stored
from ackstream.settings import Persist, PublishRule

LIMITS = Persist(
    entitlements=(PublishRule(clients=("*",), topics=("open*",)),), max_message_bytes=100, daily_quota_bytes=1000
)


def _message(offset: int, seq: int | str | None, **fields: Any) -> MessageMetadata:
    text = None if seq is None else str(seq)
    defaults = {"client": "p1", "ack": "persisted", "topic": "open"}
    return MessageMetadata(0, offset, 1000 + offset, fields.pop("size", 10), seq=text, **(defaults | fields))


def _messages(*numbers: int, **fields: Any) -> list[MessageMetadata]:
    return [_message(offset, seq, **fields) for offset, seq in enumerate(numbers)]


def _logon(offset: int, **fields: Any) -> MessageMetadata:
    return _message(offset, None, command="logon", cid="l", **fields)


def _fold(
    records: list[MessageMetadata | MessageRun],
    states: dict[str, PublisherState] | None = None,
    limits: Persist = LIMITS,
    *,
    again: bool = False,
) -> PersistResult:
    """Fold a batch; its records are later than those of the states, unless they are read ``again``."""
    known = states or {}
    if known and not again:
        later = 1 + max(newest for state in known.values() for _, newest in [*state.read.values(), (0, -1)])
        records = [msgspec.structs.replace(one, timestamp=one.timestamp + later) for one in records]  # type: ignore[type-var]
    return fold(records, known, Admission(limits), floor_ms=500, batch=7)


def _stored(first: int, last: int, *absent: tuple[int, int], session: str | None = "") -> StoredRange:
    return StoredRange("p1", first, last, 7, absent, session)


def _told(result: PersistResult) -> list[tuple[str, str | None, int | None, str | None]]:
    return [(ack.ack_type, ack.cid, ack.seq, ack.reason) for _, ack in result.acks]


def test_the_example_of_the_document() -> None:
    messages = [_message(seq, seq, topic="secret" if seq == 3 else "open") for seq in range(1, 6)]
    result = _fold(messages)
    assert _told(result) == [
        ("persisted", None, 2, None),
        ("persisted", None, 3, "not entitled"),
        ("persisted", None, 5, None),
    ]
    assert result.rejected == [RejectedRecord(0, 3, "not entitled")]
    assert result.changed["p1"].watermark == 5


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"topic": "secret"}, "not entitled"),
        ({"size": 101}, "message too large"),
        ({"ttl": "1"}, "message expired"),
        ({"ttl": "60000"}, None),
    ],
)
def test_verdicts(fields: dict[str, Any], reason: str | None) -> None:
    result = _fold([_message(0, 1, **fields), _message(5, 2)])
    assert _told(result)[0][3] == reason


@pytest.mark.parametrize(("reject", "reason"), [(True, "spool over quota"), (False, None)])
def test_a_quota_holds_for_a_day(reject: bool, reason: str | None) -> None:  # noqa: FBT001
    limits = Persist(daily_quota_bytes=25, reject_over_quota=reject)
    result = _fold(_messages(1, 2, 3), limits=limits)
    assert result.rejected == [RejectedRecord(0, 2, reason)]
    tomorrow = [MessageMetadata(0, 9, 86_400_000, 10, "p1", "4", ack="persisted")]
    assert _fold(tomorrow, result.changed, limits).rejected == []


@pytest.mark.parametrize(("reject", "reason"), [(True, "no subscription match"), (False, None)])
def test_a_message_without_a_matching_subscription(reject: bool, reason: str | None) -> None:  # noqa: FBT001
    result = _fold(_messages(1), limits=Persist(subscriptions=("other",), reject_no_match=reject))
    assert result.rejected == [RejectedRecord(0, 0, reason)]
    assert _told(result) == [("persisted", None, 1, reason)]


def test_a_repeated_message_is_stored_once_and_acknowledged() -> None:
    first = _fold(_messages(1, 2, 2))
    assert first.rejected == [RejectedRecord(0, 2, None)]
    again = _fold(_messages(2, 3), first.changed)
    assert _told(again) == [("persisted", None, 2, "duplicate"), ("persisted", None, 3, None)]
    assert again.rejected == [RejectedRecord(0, 0, None)]


def test_a_repeated_rejection_keeps_its_reason() -> None:
    first = _fold(_messages(1, topic="secret"))
    assert _told(_fold(_messages(1), first.changed)) == [("persisted", None, 1, "not entitled")]


def test_behind_a_hole_everything_waits_over_batches() -> None:
    first = _fold([*_messages(1, 3), _message(5, 4, topic="secret"), _message(6, None, command="flush", cid="f")])
    assert _told(first) == [("persisted", None, 1, None)]
    second = _fold([_message(7, 2)], first.changed)
    assert _told(second) == [
        ("persisted", None, 3, None),
        ("persisted", None, 4, "not entitled"),
        ("persisted", "f", None, None),
    ]
    assert second.rejected == []


def test_a_logon_and_a_flush_have_the_acks_that_they_ask_for() -> None:
    """The matrix of docs/compatibility/amps.md, on the topic of publishers."""
    ask = "received,processed,persisted,completed"
    logon = _logon(0, ack="received,processed", session="s")
    flush = {"command": "flush", "session": "s"}
    first = _fold([logon, _message(1, 1, session="s"), _message(2, 3, session="s"),
                   _message(3, None, cid="f", ack=ask, **flush),
                   _message(4, None, cid="g", ack="none", **flush)])  # fmt: skip
    assert _told(first) == [
        ("received", "l", None, None), ("processed", "l", 0, None),
        ("received", "f", None, None), ("processed", "f", None, None), ("persisted", None, 1, None),
    ]  # fmt: skip
    state = msgspec.json.decode(msgspec.json.encode(first.changed["p1"]), type=PublisherState)
    second = _fold([_message(5, 2, session="s"), _message(6, None, cid="h", ack="stats", **flush)], {"p1": state})
    assert _told(second) == [
        ("processed", "h", None, "not supported"), ("persisted", None, 3, None),
        ("persisted", "f", None, None), ("completed", "f", None, None),
        ("persisted", "g", None, None), ("persisted", "h", None, None),
    ]  # fmt: skip
    assert second.changed["p1"].completing == []


def test_a_flush_that_is_one_too_many_behind_a_hole_has_one_verdict() -> None:
    waiting = [
        _message(at, None, command="flush", cid=f"f{at}", ack="none") for at in range(2, 2 + publishers.MAX_FLUSHES)
    ]
    ask = "received,processed,persisted,completed"
    last = _message(2 + publishers.MAX_FLUSHES, None, command="flush", cid="last", ack=ask)
    told = _told(_fold([_message(0, 1), _message(1, 3), *waiting, last]))
    assert [one for one in told if one[1] == "last"] == [
        ("received", "last", None, None),
        ("processed", "last", None, "sequence gap"),
    ]


def test_flushes_behind_a_hole_are_limited_and_those_before_it_do_not_count() -> None:
    def flushes(first: int, count: int) -> list[MessageMetadata]:
        return [_message(at, None, command="flush", cid=f"f{at}") for at in range(first, first + count)]

    first = _fold([_message(0, 1), *flushes(1, 600), _message(601, 3), *flushes(602, 401)])
    assert first.changed["p1"].flushes == [(3, f"f{at}") for at in range(602, 1003)]
    second = _fold(flushes(1003, 600), first.changed)
    assert len(second.changed["p1"].flushes) == 1_000
    assert _told(second) == [("processed", "f1602", None, "sequence gap")]
    last = _fold([_message(1603, 2), *flushes(1604, 1)], second.changed)
    assert last.changed["p1"].flushes == []
    answered = [cid for _, cid, *_ in _told(last)]
    assert answered == [None, *[f"f{at}" for at in (*range(602, 1602), 1604)]]


def test_a_logon_reports_the_watermark_and_repeats_rejections() -> None:
    first = _fold([*_messages(1, 2), _message(3, 3, topic="secret")])
    result = _fold([_logon(4, first="2", conflation="100ms")], first.changed)
    assert _told(result) == [("persisted", None, 3, "not entitled"), ("processed", "l", 3, None)]
    assert result.acks[-1][1].effective_conflation_ms == 500
    assert _told(_fold([_logon(5, first="4", conflation="900ms")], result.changed)) == [("processed", "l", 3, None)]


@pytest.mark.parametrize(
    ("conflation", "kept", "effective"),
    [
        (None, 1_000, None), ("250ms", 250, 500), ("500ms", 500, None), ("5000ms", 5_000, None), ("2000", 1_000, 1_000),
        ("0ms", 0, 500), ("5s", 5_000, None), ("1h", 60_000, 60_000), ("9999999ms", 60_000, 60_000),
        ("soon", 1_000, 1_000), ("5 s", 1_000, 1_000), ("", 1_000, 1_000),
    ],
)  # fmt: skip
def test_a_logon_sets_the_interval_of_merged_acks_and_learns_of_another_one(
    conflation: str | None, kept: int, effective: int | None
) -> None:
    result = _fold([_logon(0, conflation=conflation, window="30")])
    assert (result.changed["p1"].conflation, result.changed["p1"].window) == (kept, 30)
    assert result.acks[-1][1].effective_conflation_ms == effective
    # the next logon names neither
    assert _fold([_logon(1)], result.changed).changed["p1"].conflation == 1_000


@pytest.mark.parametrize(
    ("records", "urgent"),
    [
        (_messages(1, 2), False),
        ([_message(0, 1), _message(1, 2, immediately="true")], True),
        ([_message(0, 1, immediately="false")], False),
        (_messages(1, 1), True),
        ([_message(0, 1), _message(1, None, command="flush", cid="f")], True),
        ([_logon(0)], True),
    ],
)
def test_who_waits_for_an_answer_gets_it_at_once(records: list[Any], urgent: bool) -> None:  # noqa: FBT001
    assert _fold(records).urgent == ({"p1"} if urgent else set())


def test_a_topic_without_a_log_has_an_ack_for_each_message_and_no_row() -> None:
    limits = Persist(unlogged=("fast",), entitlements=(PublishRule(clients=("*",), topics=("open", "fast")),))
    fast = [_message(seq - 1, seq, topic="fast", cid=f"c{seq}") for seq in (2, 3)]
    result = _fold([_message(0, 1), *fast, _message(3, 4, topic="fast"), _message(4, 5)], limits=limits)
    assert _told(result) == [
        ("persisted", None, 1, None),
        ("persisted", "c2", 2, None),
        ("persisted", "c3", 3, None),
        ("persisted", "4", 4, None),
        ("persisted", None, 5, None),
    ]
    assert result.rejected == [RejectedRecord(0, offset, None) for offset in (1, 2, 3)]
    assert result.stored == [_stored(1, 5, (2, 4))]


def test_a_single_ack_waits_behind_a_hole_with_its_command_id() -> None:
    limits = Persist(unlogged=("fast",))
    first = _fold([_message(0, 1), _message(1, 3, topic="fast", cid="c")], limits=limits)
    assert _told(first) == [("persisted", None, 1, None)]
    second = _fold([_message(2, 2)], first.changed, limits)
    assert _told(second) == [("persisted", None, 2, None), ("persisted", "c", 3, None)]
    assert second.changed["p1"].single == {}


def test_many_logons_do_not_repeat_many_rejections_without_end() -> None:
    refused = [_message(seq, seq, topic="secret") for seq in range(1, 1_001)]
    logons = [_logon(2_000 + number, first="1", session=str(number)) for number in range(300)]
    result = _fold([*refused, *logons])
    told = [ack for _, ack in result.acks]
    assert sum(ack.ack_type == "processed" for ack in told) == 300
    assert len(told) < 1_000 + publishers.MAX_REPEATED + 300 + 1
    # who is told nothing of them sends again all it keeps
    assert told[-1].seq == 0


def test_a_logon_without_kept_messages_gets_no_rejections() -> None:
    first = _fold([*_messages(1, 2), _message(3, 3, topic="secret")])
    result = _fold([_logon(4)], first.changed)
    assert _told(result) == [("processed", "l", 3, None)]
    assert result.acks[0][1].bookmark == 4


def test_a_client_that_begins_higher_leaves_no_hole() -> None:
    first = _fold(_messages(1, 2))
    result = _fold([_logon(3, first="900"), _message(4, 900)], first.changed)
    assert _told(result) == [("processed", "l", 2, None), ("persisted", None, 900, None)]


def test_a_client_that_does_not_go_on_higher_after_all_has_jumped_nowhere() -> None:
    told = _fold([_logon(3, first="900")], _fold(_messages(1, 2)).changed)
    again = _fold([_logon(4, first="3"), _message(5, 3)], told.changed)
    assert _told(told) == [("processed", "l", 2, None)]
    assert _told(again) == [("processed", "l", 2, None), ("persisted", None, 3, None)]
    assert again.stored == [_stored(3, 3)]


def test_a_client_without_a_logon_begins_with_its_first_message() -> None:
    assert _told(_fold(_messages(41, 42))) == [("persisted", None, 42, None)]


def test_stored_ranges_are_published_whether_or_not_acks_are_requested() -> None:
    first = _fold([*_messages(41, 42, ack="none"), _message(3, 43, topic="secret"), _message(4, 44)])
    assert first.stored == [_stored(41, 44, (43, 43))]
    assert _fold(_messages(44), first.changed).stored == []
    assert _fold(_messages(45, 47), first.changed).stored == [_stored(45, 45)]


def test_a_stored_range_includes_absent_numbers_from_behind_the_hole() -> None:
    limits = Persist(daily_quota_bytes=45, reject_over_quota=False)
    first = _fold(_messages(1, 3, 4, 5, 6), limits=limits)
    assert first.stored == [_stored(1, 1)]
    second = _fold(_messages(2), first.changed, Persist())
    assert second.stored == [_stored(2, 6, (6, 6))]


def test_a_range_with_very_many_runs_is_divided_without_a_gap() -> None:
    start = 10**18
    topics = ["secret" if at % 2 else "open" for at in range(50_001)]
    result = _fold([_message(at, start + at, topic=topic, size=0) for at, topic in enumerate(topics)])
    assert [(one.first - start, one.last - start) for one in result.stored] == [
        (0, 20_000), (20_001, 40_000), (40_001, 50_000),
    ]  # fmt: skip
    absent = [run for one in result.stored for run in one.refused]
    assert absent == [(start + at, start + at) for at in range(1, 50_000, 2)]
    assert max(len(write_stored(one)) for one in result.stored) < 500_000


def test_skipped_numbers_are_absent_from_the_stored_range() -> None:
    first = _fold(_messages(1, 2, 5))
    second = _fold([_logon(3, first="9"), _message(4, 9), _message(5, 11)], first.changed)
    assert second.stored == [_stored(3, 9, (3, 4), (6, 8))]
    assert _fold([_logon(0, first="9")]).stored == []
    assert _fold([_message(0, 10)], _fold([_logon(0, first="9")]).changed).stored == []
    assert _fold([_message(0, 9)], _fold([_logon(0, first="9")]).changed).stored == [_stored(9, 9)]


def test_messages_beyond_skipped_numbers_are_not_stored_twice() -> None:
    first = _fold(_messages(1, 9))
    second = _fold([_logon(3, first="8"), _message(4, 9), _message(5, 8)], first.changed)
    assert second.rejected == [RejectedRecord(0, 3, None), RejectedRecord(0, 4, None)]
    assert second.changed["p1"].watermark == 9


@pytest.mark.parametrize("text", ["9" * 5000, str(2**63), "-1", "1.5"])
def test_an_invalid_number_stops_nothing(text: str) -> None:
    result = _fold([_logon(0, first=text, conflation=text), _message(1, text), _message(2, 1, ttl=text)])
    assert result.rejected == [RejectedRecord(0, 0, None), RejectedRecord(0, 1, "no sequence number")]
    assert result.changed["p1"].watermark == 1


def test_messages_behind_a_hole_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishers, "MAX_HELD", 2)
    first = _fold(_messages(1, 3, 4, 5, ack="processed,persisted"))
    assert first.rejected == [RejectedRecord(0, 3, "sequence gap")]
    assert _told(first)[-2:] == [("processed", None, None, "sequence gap"), ("persisted", None, 1, None)]
    # what is held already comes again as it may, and behind the filled hole there is room
    second = _fold([_message(7, 4), _message(8, 2), _message(9, 5)], first.changed)
    assert second.rejected == [RejectedRecord(0, 7, None)]
    assert second.stored == [_stored(2, 5)]


def test_a_run_that_is_too_long_to_wait_is_accepted_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishers, "MAX_HELD", 2)
    members = _messages(3, 4, 5)
    members = [msgspec.structs.replace(member, offset=member.offset + 1) for member in members]
    run = MessageRun(members[0], range(3, 6), 30, 10, 1002, 3, lambda: members)
    first = _fold([*_messages(1), run])
    assert first.rejected == [RejectedRecord(0, 3, "sequence gap")]
    assert first.changed["p1"].held == [(3, 4)]


def test_no_refusal_is_forgotten_for_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishers, "MAX_REJECTIONS", 2)
    first = _fold([_message(seq, seq, topic="open" if seq in (1, 4) else "secret") for seq in range(1, 7)])
    assert sorted(first.changed["p1"].refused) == [5, 6]
    # it keeps what it has of these: nothing is called stored before each was asked for
    second = _fold([_logon(7, first="2")], first.changed)
    assert _told(second) == [("processed", "l", 1, None)]
    third = _fold([_message(seq, seq) for seq in range(2, 7)], second.changed)
    assert _told(third) == [
        ("persisted", None, 2, "outcome unknown"),
        ("persisted", None, 3, "outcome unknown"),
        ("persisted", None, 4, "duplicate"),
        ("persisted", None, 5, "not entitled"),
        ("persisted", None, 6, "not entitled"),
    ]
    assert third.stored == []
    assert _told(_fold([_logon(8, first="5")], third.changed))[-1] == ("processed", "l", 6, None)


def test_a_forgotten_rejection_is_never_answered_as_a_success() -> None:
    first = _fold([*_messages(1, 2), _message(3, 3, topic="secret"), _logon(4, first="4")])
    assert _told(_fold([_message(5, 3)], first.changed)) == [("persisted", None, 3, "outcome unknown")]


def test_a_message_with_the_number_zero_is_stored_once() -> None:
    first = _fold(_messages(0))
    assert first.stored == [_stored(0, 0)]
    assert _fold(_messages(0), first.changed).rejected == [RejectedRecord(0, 0, None)]


def test_a_batch_knows_whether_it_stores_messages() -> None:
    assert _fold(_messages(1)).stores(1)
    assert _fold([_message(0, 1, client=None)]).stores(1)
    assert not _fold([_logon(0)]).stores(1)


@pytest.mark.parametrize("cid", [None, "l"])
def test_acks_of_durability_wait_and_acks_of_arrival_do_not(cid: str | None) -> None:
    asked = {"ack": "received,processed,persisted,completed"}
    result = _fold([_message(0, 1, cid=cid, **asked), _logon(1), _message(2, None, command="flush", cid="f")])
    assert [ack.ack_type for _, ack in result.acks if not is_durability_ack(ack)] == [
        "received",
        "processed",
        "completed",
    ]
    assert [(ack.ack_type, ack.cid) for _, ack in result.acks if is_durability_ack(ack)] == [
        ("persisted", None), ("processed", "l"), ("persisted", "f"),
    ]  # fmt: skip


def test_without_requested_acks_none_is_sent() -> None:
    assert _fold(_messages(1, ack="none")).acks == []


def test_single_acks_carry_the_command_id() -> None:
    result = _fold(_messages(1, ack="received,processed,completed,persisted", cid="c"))
    assert [entry[:2] for entry in _told(result)] == [
        ("received", "c"), ("processed", "c"), ("completed", "c"), ("persisted", None),
    ]  # fmt: skip
    assert {client for client, _ in result.acks} == {"p1"}


@pytest.mark.parametrize(
    ("fact", "reason"),
    [(_message(0, 1, client=None), "no client name"), (_message(0, None), "no sequence number"),
     (_message(0, "x"), "no sequence number"), (_message(0, "-1"), "no sequence number")],
)  # fmt: skip
def test_an_invalid_record_is_kept_with_its_reason(fact: MessageMetadata, reason: str) -> None:
    assert _fold([fact]).rejected == [RejectedRecord(0, 0, reason)]


def test_an_unknown_command_is_answered() -> None:
    result = _fold([_message(0, None, command="dance", cid="c")])
    assert _told(result) == [("processed", "c", None, "no such command")]


@given(numbers=st.lists(st.integers(1, 12) | st.sampled_from(["3", "9"]), max_size=40), cut=st.integers(0, 40))
@example(numbers=[1, 8, "9", "9", 8], cut=4)
@example(numbers=[1, 8, "9", 1, "9", 8], cut=6)
def test_it_does_not_matter_where_batches_are_cut(numbers: list[int | str], cut: int) -> None:
    records = [_logon(0, first="1")]
    for at, seq in enumerate(numbers, start=1):
        if isinstance(seq, str):
            records.append(_logon(at, first=seq))
        else:
            records.append(_message(at, seq, topic="secret" if seq % 4 == 0 else "open"))
    whole = _fold(records)
    first = _fold(records[:cut])
    second = _fold(records[cut:], first.changed, again=True)
    assert {item.offset: item.reason for item in (*first.rejected, *second.rejected)} == {
        item.offset: item.reason for item in whole.rejected
    }
    assert (first.changed | second.changed) == whole.changed
    assert _learnt(first, second) == _learnt(whole)
    assert _relied_on(first, second) == _relied_on(whole)


def _learnt(*folds: PersistResult) -> dict[int, str | None]:
    """Return what became of each number; the answers to what came again say nothing new."""
    learnt: dict[int, str | None] = {}
    for result in folds:
        for _, ack in result.acks:
            if ack.ack_type == "persisted" and ack.seq is not None and ack.first is not None:
                for seq in range(ack.first, ack.seq + 1):
                    if ack.reason not in ("duplicate", "outcome unknown"):
                        assert learnt.setdefault(seq, ack.reason) == ack.reason
    return learnt


def _relied_on(*folds: PersistResult) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the numbers that were told, in order, and the runs of them that are not there."""
    records = [record for result in folds for record in result.stored]
    numbers = [seq for record in records for seq in range(record.first, record.last + 1)]
    return numbers, list(Intervals(run for record in records for run in record.refused))


STATE = (
    b'{"watermark":2,"highest":7,"begins":0,"held":[[4,5],[7,7]],"absent":[[5,5]],"refused":{"5":"not entitled"},'
    b'"doubt":2,"asked":[[4,5]],"flushes":[[7,"f"]],"day":0,"stored":30,"sessions":[[4,4,""],[7,7,""]]}'
)
"""A row of ``publishers``: 2 was rejected and is forgotten; 4, 5 (rejected) and 7 wait behind 3; a flush waits."""


def test_a_stored_state_is_continued() -> None:
    state = msgspec.json.decode(STATE, type=PublisherState)
    result = _fold([_message(10, 2), _message(11, 3), _message(12, 6)], {"p1": state})
    assert _told(result) == [
        ("persisted", None, 2, "outcome unknown"),
        ("persisted", None, 4, None),
        ("persisted", None, 5, "not entitled"),
        ("persisted", None, 7, None),
        ("persisted", "f", None, None),
    ]
    assert result.stored == [_stored(3, 7, (5, 5))]


STATE_WITH_SESSIONS = (
    b'{"watermark":2,"highest":9,"begins":0,"held":[[4,9]],"absent":[[5,8]],"refused":{},"doubt":-1,"asked":[[4,4],[9,9]],'
    b'"flushes":[],"day":0,"stored":30,"withdrawn":[[5,8]],"session":"b","superseded":["a"],"read":{"1":[12,1012]},'
    b'"began":0,"conflation":1000,"window":0,"single":{},"sessions":[[4,4,"b"],[9,9,"b"]],"takeovers":[],"completing":[]}'
)
"""A row of ``publishers``: 5 to 8 were withdrawn and, with 4 and 9, wait behind 3; session b has superseded a."""


def test_a_state_with_sessions_is_continued() -> None:
    state = msgspec.json.decode(STATE_WITH_SESSIONS, type=PublisherState)
    assert msgspec.json.encode(state) == STATE_WITH_SESSIONS
    records = [
        MessageMetadata(1, 12, 1012, 10, "p1", "3", ack="persisted"),
        MessageMetadata(1, 13, 1013, 10, "p1", "3", ack="persisted", topic="open", session="a"),
        MessageMetadata(1, 14, 1014, 10, "p1", "3", ack="persisted", topic="open", session="b"),
    ]
    result = _fold(records, {"p1": state}, again=True)
    assert result.rejected == [RejectedRecord(1, 12, None), RejectedRecord(1, 13, "session over")]
    assert _told(result) == [
        ("persisted", None, 4, None), ("persisted", None, 9, None), ("processed", "a", None, "session over"),
    ]  # fmt: skip
    assert result.stored == [_stored(3, 9, (5, 8), session="b")]


def test_a_later_publisher_of_the_name_ends_the_session_of_the_first() -> None:
    first = _fold([_logon(0, session="a"), *[_message(at, at, session="a") for at in (1, 2)]])
    late = [_message(5, 3, session="a", ack="processed,persisted", cid="c"), _message(6, 3, session="b")]
    second = _fold([_logon(4, session="b"), *late], first.changed)
    # the 3 of the first is another message than the 3 of the second, which alone has the number
    assert second.rejected == [RejectedRecord(0, 4, None), RejectedRecord(0, 5, "session over")]
    assert _told(second) == [("processed", "l", 2, None), ("processed", "c", None, "session over"),
                             ("persisted", None, 3, None), ("processed", "a", None, "session over")]  # fmt: skip


def test_a_stored_range_names_the_session_that_has_the_numbers() -> None:
    first = _fold([_logon(0, session="a"), *[_message(at, at, session="a") for at in (1, 2, 4)]])
    assert first.stored == [_stored(1, 2, session="a")]
    # the messages behind a hole keep theirs, whoever fills it
    state = msgspec.json.decode(msgspec.json.encode(first.changed["p1"]), type=PublisherState)
    late = [_message(6, 3, session="a"), *[_message(at, at - 4, session="b") for at in (7, 9, 10)]]
    second = _fold([_logon(5, session="b", first="3"), *late, _message(11, 7)], {"p1": state})
    assert second.stored == [
        _stored(3, 3, session="b"),
        _stored(4, 4, session="a"),
        _stored(5, 6, session="b"),
        _stored(7, 7),
    ]
    assert second.changed["p1"].sessions == []


def test_a_run_of_a_superseded_session_is_refused() -> None:
    members = [_message(at, at, session="a") for at in (3, 4)]
    run = MessageRun(members[0], range(3, 5), 20, 10, 1004, 4, lambda: members)
    result = _fold([_logon(0, session="a"), _logon(1, session="b"), run])
    assert [item.reason for item in result.rejected] == [None, None, "session over", "session over"]


def test_a_session_that_never_logged_on_and_a_message_without_one_are_accepted() -> None:
    first = _fold([_logon(0, session="a"), _message(1, 1, session="new"), _message(2, 2)])
    assert first.changed["p1"].watermark == 2


def test_only_so_many_sessions_are_remembered() -> None:
    state = _fold([_logon(at, session=f"s{at}" + "x" * 1000) for at in range(20)]).changed["p1"]
    assert [text[:3] for text in state.superseded] == ["s11", "s12", "s13", "s14", "s15", "s16", "s17", "s18"]
    assert {len(text) for text in (*state.superseded, state.session)} == {64}


def test_the_answer_to_a_logon_names_the_sessions_with_which_other_stores_followed() -> None:
    first = _fold([_logon(0, session="a", store="x"), _message(1, 1, session="a"), _logon(2, session="b", store="x")])
    second = _fold([_logon(3, session="c"), _message(4, 2, session="c"), _logon(5, session="d")], first.changed)
    third = _fold([_logon(6, session="e", store="x")], second.changed)
    answers = [ack.takeovers for result in (first, second, third) for _, ack in result.acks if ack.cid == "l"]
    known = [("a", 0), ("c", 1), ("e", 2)]
    assert answers == [tuple(known[:count]) for count in (1, 1, 2, 2, 3)]
    more = _fold([_logon(at, session=f"s{at}", store=f"x{at}" * 99) for at in range(20)]).changed["p1"]
    assert [(len(store), session, seen) for store, session, seen in more.takeovers] == [
        (64, f"s{at}", 0) for at in range(12, 20)
    ]


def test_a_publisher_that_keeps_nothing_begins_behind_the_holes_of_its_last_run() -> None:
    first = _fold(_messages(1, 2, 3, 4, 6, 7))
    second = _fold([_logon(7, session="b"), _message(8, 8, session="b")], first.changed)
    assert _told(second) == [("processed", "l", 7, None), ("persisted", None, 8, None)]
    assert second.rejected == [RejectedRecord(0, 7, None)]
    assert second.stored == [_stored(5, 7, (5, 5)), _stored(8, 8, session="b")]


def test_a_publisher_that_keeps_messages_learns_where_new_numbers_begin() -> None:
    first = _fold(_messages(1, 2, 3, 4, 6, 7))
    answer = _fold([_logon(7, first="5")], first.changed).acks[-1][1]
    assert (answer.seq, answer.highest) == (4, 7)


def test_withdrawn_numbers_hold_nothing_up() -> None:
    withdraw = {"command": "withdraw", "first": "2", "cid": "w", "ack": "none"}
    first = _fold([_message(0, 1), _message(1, 4, **withdraw), _message(2, 5)])
    assert first.stored == [_stored(1, 5, (2, 4))]
    assert [(ack.first, ack.seq, ack.reason) for _, ack in first.acks] == [(1, 1, None), (5, 5, None)]
    assert first.rejected == [RejectedRecord(0, 1, None)]


def test_a_single_number_that_is_withdrawn_is_answered() -> None:
    withdraw = {"command": "withdraw", "ack": "persisted"}
    first = _fold([_message(0, 1), _message(1, 2, first="2", **withdraw)])
    assert _told(first) == [("persisted", None, 1, None), ("persisted", None, 2, "withdrawn")]
    # what is in the table after all cannot be taken back
    second = _fold([_message(2, 1, first="1", **withdraw), _message(3, 2, first="2", **withdraw)], first.changed)
    assert _told(second) == [("persisted", None, 1, "duplicate"), ("persisted", None, 2, "withdrawn")]
    assert _fold([_message(4, 2)], first.changed).rejected == [RejectedRecord(0, 4, None)]


def test_a_session_with_numbers_of_its_own_begins_behind_the_withdrawn_ones() -> None:
    withdraw = {"command": "withdraw", "ack": "none"}
    new = _fold([_logon(0, session="a"), _message(1, 900, first="1", **withdraw), _message(2, 901)])
    assert new.stored == [_stored(901, 901)]
    old = _fold([_logon(0, session="b"), _message(1, 2000, first="1", **withdraw), _message(2, 2001)], new.changed)
    assert old.stored == [_stored(902, 2001, (902, 2000))]
    assert _told(old) == [("processed", "l", 901, None), ("persisted", None, 2001, None)]


@pytest.mark.parametrize(("first", "last"), [("x", 3), (None, 3), ("4", 3), ("1", "x")])
def test_an_invalid_withdrawal_is_answered(first: str | None, last: int | str) -> None:
    result = _fold([_message(0, last, command="withdraw", cid="w", first=first)])
    assert _told(result) == [("processed", "w", None, "no sequence number")]


def test_a_withdrawal_of_a_superseded_session_is_refused() -> None:
    logons = [_logon(0, session="a"), _logon(1, session="b")]
    result = _fold([*logons, _message(2, 9, command="withdraw", cid="w", first="1", session="a")])
    assert _told(result)[-2:] == [("processed", "w", None, "session over"), ("processed", "a", None, "session over")]


def _on(partition: int, timestamp: int, message: MessageMetadata) -> MessageMetadata:
    return msgspec.structs.replace(message, partition=partition, timestamp=timestamp)


def test_a_logon_that_is_read_late_ends_no_later_session() -> None:
    # the publisher's records went to another partition, which is read first, once partitions were added
    new = _fold(
        [_on(1, 2000, _logon(0, session="b")), *[_on(1, 2000 + at, _message(at, at, session="b")) for at in (1, 2)]]
    )
    old = [_on(0, 1000, _logon(0, session="a")), *[_on(0, 1000 + at, _message(at, at, session="a")) for at in (1, 2)]]
    late = _fold(old, new.changed, again=True)
    assert [item.reason for item in late.rejected] == [None, "session over", "session over"]
    assert {(ack.cid, ack.reason) for _, ack in late.acks} == {("l", "session over"), ("a", "session over")}
    after = _fold([_on(1, 2003, _message(3, 3, session="b"))], late.changed, again=True)
    assert (after.rejected, _told(after)) == ([], [("persisted", None, 3, None)])


def test_a_later_logon_counts_although_the_brokers_clock_was_set_back() -> None:
    first = _fold([_on(0, 9000, _logon(0, session="a"))])
    second = _fold(
        [_on(0, 1000, _logon(1, session="b")), _on(0, 1001, _message(2, 1, session="b"))], first.changed, again=True
    )
    assert second.changed["p1"].session == "b"
    assert second.rejected == [RejectedRecord(0, 1, None)]


def test_a_new_checkpoint_does_not_answer_what_was_answered_before() -> None:
    records = [
        _logon(0, session="a"),
        *[_message(at, at, session="a") for at in (1, 2)],
        _message(3, None, client=None),
    ]
    first = _fold(records)
    again = _fold([*records, _message(4, 3, session="a")], first.changed, again=True)
    assert again.rejected == [RejectedRecord(0, at, None) for at in (0, 1, 2, 3)]
    assert _told(again) == [("persisted", None, 3, None)]


def test_a_topic_that_was_made_anew_is_read() -> None:
    first = _fold(_messages(1, 2))
    again = _fold(_messages(3, 4), first.changed)
    assert again.changed["p1"].watermark == 4


@pytest.mark.parametrize(("name", "reason"), [("x" * 255, None), ("x" * 256, "invalid client name")])
def test_a_name_that_no_report_could_contain_is_refused(name: str, reason: str | None) -> None:
    result = _fold([_message(0, 1, client=name)])
    assert [item.reason for item in result.rejected] == [reason][: reason is not None]


Step = st.tuples(st.sampled_from("mmmmwl"), st.integers(1, 12), st.integers(0, 4), st.integers(0, 2))


@given(steps=st.lists(Step, max_size=40), cut=st.integers(0, 40))
def test_sessions_and_withdrawals_do_not_depend_on_where_batches_are_cut(
    steps: list[tuple[str, int, int, int]], cut: int
) -> None:
    sessions, records = ["s0"], [_logon(0, session="s0", first="1")]
    for at, (what, seq, more, back) in enumerate(steps, start=1):
        session = sessions[-1 - min(back, len(sessions) - 1)]
        if what == "l":
            sessions.append(f"s{at}")
            records.append(_logon(at, session=sessions[-1], first=str(seq) if more else None))
        elif what == "w":
            records.append(_message(at, seq + more, command="withdraw", first=str(seq), session=session))
        else:
            records.append(_message(at, seq, topic="secret" if seq % 4 == 0 else "open", session=session))
    whole = _fold(records)
    first = _fold(records[:cut])
    second = _fold(records[cut:], first.changed, again=True)
    assert (first.changed | second.changed) == whole.changed
    assert sorted([*first.rejected, *second.rejected]) == sorted(whole.rejected)
    assert _learnt(first, second) == _learnt(whole)
    assert _relied_on(first, second) == _relied_on(whole)
    # a new checkpoint reads everything once more, and adds nothing
    again = _fold(records, whole.changed, again=True)
    assert ({item.reason for item in again.rejected}, again.acks, again.stored) == ({None}, [], [])
    # what is reported as stored has a row, and what was refused or withdrawn has none
    rows = {int(one.seq or 0) for one in records if one.command is None} - {0}
    rejected = {item.offset for item in whole.rejected}
    stored = {int(one.seq or 0) for one in records if one.command is None and one.offset not in rejected}
    numbers, absent = _relied_on(whole)
    assert {seq for seq in numbers if not any(low <= seq <= high for low, high in absent)} <= stored
    assert stored <= rows
    # each under the session of its record
    named = {seq: one.session for one in (*first.stored, *second.stored) for seq in range(one.first, one.last + 1)}
    for record in records:
        if record.command is None and record.offset not in rejected and int(record.seq or 0) in named:
            assert named[int(record.seq or 0)] == record.session


def test_a_publisher_that_decisions_fail_on_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Admission.judge

    def failing(self: Admission, client: str, *names: Any, **facts: Any) -> Any:
        if client == "odd":
            raise ZeroDivisionError
        return judge(self, client, *names, **facts)

    monkeypatch.setattr(Admission, "judge", failing)
    result = _fold([_message(0, 1, client="odd"), _message(1, 1), _logon(2, client="odd")])
    answers = [ack for client, ack in result.acks if client == "odd"]
    assert [(ack.ack_type, ack.status, ack.cid) for ack in answers] == [("processed", "retry", "l")]
    assert result.rejected == [RejectedRecord(0, 0, "not processed"), RejectedRecord(0, 2, "not processed")]
    assert result.changed.keys() == {"p1"}


NUMBERS = ["0", "1", "2", "7", "007", str(2**63 - 1), str(2**63), "-1", "1.5", "\u0663", "x", ""]
NUMBER = st.sampled_from(NUMBERS) | st.text(max_size=3)
TEXT = (
    st.none() | st.text(max_size=5) | st.sampled_from(["p", "p", "persisted", "received,processed", "none", "s", "t"])
)
COMMAND = st.none() | st.sampled_from(["publish", "logon", "flush", "withdraw", "dance", ""])


@given(
    headers=st.lists(
        st.builds(
            dict,
            client=st.none() | st.sampled_from(["p", "p", "q", "", "x" * 300]),
            seq=st.none() | NUMBER,
            command=COMMAND,
            cid=TEXT,
            ack=TEXT,
            topic=TEXT,
            ttl=st.none() | NUMBER,
            first=st.none() | NUMBER,
            conflation=st.none() | NUMBER,
            session=TEXT,
            window=st.none() | NUMBER,
            immediately=TEXT,
        ),
        max_size=30,
    ),
    cut=st.integers(0, 30),
)
def test_no_record_stops_the_fold_and_none_vanishes(headers: list[dict[str, Any]], cut: int) -> None:
    records = [MessageMetadata(0, offset, 1000 + offset, 10, **fields) for offset, fields in enumerate(headers)]
    first = _fold(records[:cut])
    second = _fold(records[cut:], first.changed, again=True)
    rejected = {item.offset: item.reason for item in (*first.rejected, *second.rejected)}
    assert "not processed" not in rejected.values()
    # every record is a row, with a reason or without one, a command, or a copy of a decided number
    numbered = {(one.client, int(one.seq or 0)) for one in records if one.offset not in rejected}
    for one in records:
        if rejected.get(one.offset, "") is None and one.command in (None, "publish"):
            assert (one.seq or "").isascii()
            assert int(one.seq or 0) >= 0
    assert len(numbered) == sum(one.offset not in rejected for one in records)
    msgspec.json.decode(msgspec.json.encode(first.changed | second.changed), type=dict[str, PublisherState])


def test_each_record_of_a_batch_counts_once_by_what_became_of_it() -> None:
    records = [*_messages(0, 1, 1), _message(3, 2, topic="closed"), _message(4, 3, size=1_000), _logon(5)]
    result = _fold(records)
    assert result.ends(len(records)) == {
        "stored": 2, "no row": 2, "not entitled": 1, "message too large": 1,
    }  # fmt: skip
