from __future__ import annotations

from ackstream.publishing.replication import AgeRule, Change, Replication


def test_persisted_is_what_every_sync_destination_has() -> None:
    replication = Replication(["a", "b"], ["c"])
    replication.append(1, 0)
    replication.append(2, 0)
    replication.report("a", 2)
    assert replication.durable == 0
    replication.report("b", 1)
    assert replication.durable == 1


def test_without_sync_destinations_everything_is_durable_at_once() -> None:
    replication = Replication([], ["c"])
    replication.append(7, 0)
    assert replication.durable == 7


def test_a_destination_that_is_too_old_is_waited_for_no_longer_and_again_when_it_has_caught_up() -> None:
    replication = Replication(["a", "b"], downgrade=AgeRule(15_000, 60_000), upgrade=AgeRule(15_000, 10_000))
    replication.append(1, 10)
    replication.report("a", 1)
    assert replication.check(60_000) == []
    assert replication.check(75_000) == [Change("b", "async", 74_990)]
    assert replication.durable == 1
    assert not replication.waiting
    assert replication.check(90_000) == []
    replication.report("b", 1)
    assert replication.check(105_000) == [Change("b", "sync", 0)]
    replication.append(2, 106_000)
    replication.report("a", 2)
    assert replication.durable == 1


def test_rules_are_checked_at_their_times_alone() -> None:
    replication = Replication(["a"], downgrade=AgeRule(1000, 1))
    replication.append(1, 0)
    assert replication.check(999) == []
    assert replication.check(1000) == [Change("a", "async", 1000)]


def test_a_report_does_not_go_back() -> None:
    replication = Replication(["a"])
    replication.append(5, 0)
    replication.report("a", 5)
    replication.report("a", 3)
    assert replication.durable == 5
