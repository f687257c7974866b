from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ackstream.jobs.settle.state import STATE_VERSION, EarlyReports
from ackstream.protocol.readers import AppAck, ReaderState, read
from ackstream.settings import RequiredRole, Settle
from tests.jobs.settle.logs import RULES, Log, Run, reasons

if TYPE_CHECKING:
    from ackstream.jobs.settle.completion import Report


def _early(*told: tuple[str, int, int]) -> EarlyReports:
    """Return reports of a reader, with a count, at a time."""
    log = Log()
    return EarlyReports(log.ack(reader, count, (1, 1), at=at) for reader, count, at in told)


def _counts(early: EarlyReports, before: int, *lacking: int) -> list[int]:
    def lacks(report: Report) -> bool:
        return isinstance(report, AppAck) and report.count in lacking

    return [report.count for _, report in early.take("w1", before, lacks) if isinstance(report, AppAck)]


def test_a_report_waits_until_its_samples_arrive_or_no_longer_can() -> None:
    early = _early(("A", 1, 10))
    assert (_counts(early, 10, 1), early.deadline, early.writers) == ([], 10, ["w1"])
    assert _counts(early, 11, 1) == [1]
    assert (early.deadline, early.writers, early.records) == (None, [], [])


def test_a_readers_later_reports_wait_too_those_of_others_do_not() -> None:
    early = _early(("A", 1, 10), ("A", 2, 11), ("B", 3, 12))
    assert _counts(early, 0, 1) == [3]
    assert _counts(early, 0) == [1, 2]


def test_early_reports_survive_saving_and_loading() -> None:
    early = _early(("A", 1, 10), ("B", 2, 11))
    again = EarlyReports(early.records)
    assert again.records == early.records
    assert [report for _, report in again.take("w1", 99, lambda _: True)] == [
        read(record.value or b"") for record in early.records
    ]
    assert again.take("another", 99, lambda _: True) == []


def test_of_several_rules_for_a_role_the_first_that_matches_the_writer_counts() -> None:
    plant = RequiredRole(role="Logger", quorum=2, writers=("plant-*",))
    rules = Settle(required=(plant, RequiredRole(role="Logger", quorum=1)))
    assert rules.quorums("plant-7") == {"Logger": 2}
    assert rules.quorums("depot") == {"Logger": 1}


@pytest.mark.parametrize("version", [STATE_VERSION - 1, STATE_VERSION + 1])
def test_a_state_of_an_unknown_version_is_refused(version: int) -> None:
    run = Run()
    run.state = (version, b"")
    with pytest.raises(ValueError, match=f"The state has version {version}; this release reads version 6"):
        run.feed()


STATE = (
    b"\x96\x82\xa2w1\x98\x01\t\x92\x06\x00\x83\xa2L1\x96\x01\x96\x00\x02\x02\x00\x02\x00\xa6Logger\xc3\x01\x04"
    b"\xa2P1\x96\x01\x92\x00\x08\xa9Processor\xc3\x01\x01\xa1A\x96\x01\x92\x06\x00\xc0\xc3\x01\x01\x92\x06\x00"
    b"\xcd\x03\xed\x92\x00\x08\x91\x93\x04\x06\xa1s\xa2w2\x98\x01\x05\x92\x00\x04\x80\x90\xcd\x03\xe9\x92\x00"
    b"\x04\x90\x83\xa2L1\x97\x01\xa6Logger\xcd\x03\xeb\xc3\x91\xa2w*\xc3\x00\xa2P1\x97\x01\xa9Processor\xcd\x03"
    b"\xec\xc2\x90\xc3\x00\xa1A\x97\x01\xc0\xcd\x03\xed\xc2\x90\xc3\x07\x91\x95\xcd\x03\xed\x01\x00\x04\xc4f"
    b'{"type":"app_ack","reader":"A","writer":"w1","epoch":1,"count":1,"intervals":[{"first":20,"last":21}]}'
    b"\x81\xa2w2\xcd\x03\xe9\x81\xa2w3\x92\x81\xa7Auditor\x01\xcd\x03\xe9\xcd\x07\xd0"
)
"""Of w1 samples 1 to 9, of which 7 was refused, and 4 to 6 are of the session s: L1 has 1 to 3 and 5, P1 all; the plain
A is early with 20 and 21, and 7 ms do not count as its silence. All samples of w2 are done; w3, of which nothing is
stored, requires an Auditor. The last tick was at 2,000."""


def test_a_saved_state_continues() -> None:
    log, run = Log(), Run(RULES)
    run.state = (STATE_VERSION, STATE)
    run.feed(log.stored(10, 21, at=2_000), log.ack("L2", 1, (1, 5)), log.ack("A", 2, (1, 19)))
    assert run.done() >= {1, 2, 3, 5}
    early = run.settled.deliveries[0]
    assert (early["reader"], early["first"], early["last"]) == ("A", 20, 21)
    run.feed(log.ack("L1", 3, (1, 9)))
    assert reasons(run.settled) == [("stale-count", None, None)]


def test_a_state_is_encoded_as_this_version_always_was() -> None:
    run = Run(RULES)
    run.state = (STATE_VERSION, STATE)
    run.feed()
    assert run.state == (STATE_VERSION, STATE)


def test_a_reader_that_starts_learns_the_sessions_of_the_samples_that_it_has_not_got() -> None:
    log, run = Log(), Run()
    run.feed(
        log.start("D", durable=True),
        log.stored(1, 2, session="a"),
        log.stored(3, 4),
        log.stored(5, 9, (5, 5), session="b"),
    )
    run.feed(log.ack("D", 1, (1, 1)))
    run.feed(log.start("D", 2, durable=True))
    state = run.settled.states[-1]
    assert isinstance(state, ReaderState)
    assert [(known.undelivered, known.sessions) for known in state.writers] == [
        (((2, 4), (6, 9)), ((2, 2, "a"), (5, 9, "b")))
    ]
    run.feed(log.ack("D", 1, (1, 6), epoch=2))
    assert run.state is not None
    assert b"\xa1a" not in run.state[1]


def test_the_sessions_of_the_newest_samples_are_remembered() -> None:
    log, run = Log(), Run()
    run.feed(log.start("D", durable=True), *[log.stored(seq, seq, session=f"s{seq}") for seq in range(1, 1_502)])
    run.feed(log.start("D", 2, durable=True))
    state = run.settled.states[-1]
    assert isinstance(state, ReaderState)
    assert [known.sessions[0] for known in state.writers] == [(502, 502, "s502")]


def test_roles_that_the_settings_require_from_a_start_on_count_no_sample_that_their_readers_have_not_acknowledged() -> (
    None
):
    log, run = Log(), Run()
    run.feed(log.start("D", durable=True), log.stored(1, 5))
    run.feed(log.start("L1"), log.stored(6, 6), log.ack("L1", 1, (6, 6), start=6))
    run.rules = Settle(shards=1, required=(RequiredRole(role="Logger"),))
    run.feed(log.ack("D", 1, (1, 6)))
    assert run.done() == {6}
