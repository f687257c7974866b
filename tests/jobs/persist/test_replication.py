from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.persist.replication import Backlog, DestinationChange, Replication
from ackstream.settings import Destination


def _destination(name: str, type: str = "sync", **ages: str) -> Destination:  # noqa: A002 - the setting's name
    return Destination(name=name, path=f"lakes/{name}", type=type, **ages)


def _replication(*names: str, **ages: str) -> Replication:
    return Replication([_destination(name, **ages) for name in names])


def test_persisted_is_what_every_sync_destination_has() -> None:
    replication = _replication("a", "b")
    replication.append(1, 0)
    replication.append(2, 0)
    replication.report("a", 2)
    assert replication.durable == 0
    replication.report("b", 1)
    assert replication.durable == 1


def test_without_sync_destinations_everything_is_durable_at_once() -> None:
    replication = Replication([_destination("some-async-one", "async")])
    replication.append(7, 0)
    replication.report("some-async-one", 3)
    assert replication.durable == 7


def test_a_destination_that_is_too_old_is_waited_for_no_longer_and_again_when_it_has_caught_up() -> None:
    replication = _replication("a", "b", check_interval="15s", downgrade_age="60s", upgrade_age="10s")
    replication.append(1, 10)
    replication.report("a", 1)
    assert replication.check(60_000) == []
    assert replication.check(75_000) == [DestinationChange("b", "async", 74_990, 0)]
    assert replication.durable == 1
    assert replication.check(90_000) == []
    replication.report("b", 1)
    assert replication.check(105_000) == [DestinationChange("b", "sync", 0, 1)]
    replication.append(2, 106_000)
    replication.report("a", 2)
    assert replication.durable == 1


def test_each_destination_has_its_own_rules() -> None:
    replication = Replication([_destination("a", check_interval="1s", downgrade_age="1ms"), _destination("b")])
    replication.append(1, 0)
    assert replication.check(999) == []
    assert replication.check(1000) == [DestinationChange("a", "async", 1000, 0)]
    assert replication.check(9000) == []
    assert replication.durable == 0


def test_a_report_does_not_go_back() -> None:
    replication = _replication("a")
    replication.append(5, 0)
    replication.report("a", 5)
    replication.report("a", 3)
    assert replication.durable == 5


def test_what_a_destination_has_already_does_not_grow_old() -> None:
    replication = _replication("a", check_interval="1ms", downgrade_age="1s")
    replication.report("a", 5)
    replication.append(5, 0)
    assert replication.check(60_000) == []


# -- batches ----------------------------------------------------------------------------------------------------------


def _backlog(acknowledged: int = -1, stored: int = -1, **ages: str) -> Backlog:
    return Backlog(_replication("a", **ages), acknowledged=acknowledged, stored=stored)


def test_a_batch_is_told_when_the_destination_has_it() -> None:
    backlog = _backlog()
    backlog.add(0, 0)
    backlog.add(1, 0)
    assert backlog.ready(100) == -1
    backlog.report("a", 0)
    assert backlog.ready(100) == 0
    backlog.confirm(0)
    assert (backlog.acknowledged, backlog.ready(100)) == (0, 0)


def test_a_batch_without_messages_waits_for_those_before_it_alone() -> None:
    backlog = _backlog()
    backlog.add(0, 0, stored=False)
    assert backlog.ready(100) == 0
    backlog.add(1, 0)
    backlog.add(2, 0, stored=False)
    assert backlog.ready(100) == 0
    backlog.report("a", 1)
    assert backlog.ready(100) == 2


def test_after_a_restart_what_was_not_told_waits_for_what_is_there() -> None:
    backlog = _backlog(acknowledged=3, stored=5)
    for batch in (4, 6):
        backlog.add(batch, 0, stored=False)
    backlog.report("a", 4)
    assert backlog.ready(100) == 4
    backlog.report("a", 5)
    assert backlog.ready(100) == 6


def test_what_waited_for_a_destination_that_is_there_no_more_is_told_at_once() -> None:
    backlog = Backlog(Replication([_destination("some-async-one", "async")]), acknowledged=3, stored=5)
    backlog.add(4, 0, stored=False)
    backlog.add(5, 0, stored=False)
    assert backlog.ready(100) == 5


def test_a_batch_that_runs_again_is_known() -> None:
    backlog = _backlog()
    backlog.add(0, 0)
    backlog.report("a", 0)
    backlog.confirm(backlog.ready(100))
    backlog.add(0, 5)
    assert (backlog.ready(100), backlog.acknowledged) == (0, 0)


def test_a_long_backlog_is_told_in_parts() -> None:
    backlog = _backlog(check_interval="1s", downgrade_age="1s")
    for batch in range(10):
        backlog.add(batch, 0)
    assert backlog.check(1000) == [DestinationChange("a", "async", 1000, -1)]
    assert backlog.ready(4) == 3
    backlog.confirm(3)
    assert backlog.ready(4) == 7


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
@given(data=st.data())
def test_nothing_is_told_before_every_sync_destination_has_it(names: tuple[str, ...], data: st.DataObject) -> None:
    backlog = Backlog(_replication(*names), acknowledged=-1, stored=-1)
    reported = dict.fromkeys(names, -1)
    brought: list[int] = []
    count = 0
    for _ in range(data.draw(st.integers(0, 30))):
        if data.draw(st.booleans()):
            stored = data.draw(st.booleans())
            backlog.add(count, 0, stored=stored)
            brought += [count] if stored else []
            count += 1
        else:
            name = data.draw(st.sampled_from(names))
            reported[name] = max(reported[name], data.draw(st.integers(-1, 30)))
            backlog.report(name, reported[name])
        ready = backlog.ready(100)
        lacking = [batch for batch in brought if batch > min(reported.values())]
        assert ready == (lacking[0] - 1 if lacking else count - 1)
