"""Counts of labels and parties, and the latest failures, from the ledger."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from kafka.errors import TopicAuthorizationFailedError

from ackstream.gateway.page import live as module
from ackstream.gateway.page.live import FailureEntry, LabelCounts, LabelTally
from ackstream.kafka.topics import ensure_topics
from ackstream.observe.endpoint import HEALTH
from ackstream.observe.feeds import JobSign, PlaneFeed
from ackstream.observe.outcomes import read_entry
from ackstream.settings import Kafka, Settings
from tests.gateway.page.test_stories import LAMP, ack, outcome
from tests.harness.waiting import eventually
from tests.observe.test_feeds import STORED, write

if TYPE_CHECKING:
    from ackstream.observe.planes import Planes


def take(into: LabelCounts, name: str, value: bytes, at: int) -> None:
    entry = read_entry(name, value, at)
    assert entry is not None
    into.take(entry)


def test_labels_and_parties_are_counted_with_their_latencies() -> None:
    counts = LabelCounts(1000)
    take(counts, "c-1", outcome(424, "timeout", ack("fleet:got", 200, 10), ack("fleet:done", 500, 30)), 200)
    assert counts.tallies(300) == [
        LabelTally("audit:kept", missing=1),
        LabelTally("fleet:done", refused=1, p50=30, p95=30),
        LabelTally("fleet:got", acknowledged=1, p50=10, p95=10),
    ]
    assert counts.tallies(300, parties=True) == [
        LabelTally("fleet", acknowledged=1, refused=1, p50=10, p95=30),
        LabelTally("audit", missing=1),
    ]


def test_what_is_older_than_the_window_counts_no_more() -> None:
    counts = LabelCounts(1000)
    take(counts, "c-1", outcome(), 200)
    assert counts.tallies(1199) != []
    assert counts.tallies(1200) == []


def test_acknowledgements_that_were_not_used_do_not_count() -> None:
    counts = LabelCounts(1000)
    take(counts, "c-1", outcome(424, "timeout", ack("fleet:got", 200, 10, "late")), 200)
    assert {tally.missing for tally in counts.tallies(300)} == {1}


def test_what_is_older_than_the_window_is_forgotten_while_nobody_looks() -> None:
    counts = LabelCounts(1000)
    for number in range(10):
        take(counts, f"c-{number}", outcome(identity=f"r-{number}"), 500 * number)
    assert {seen.at for seen in counts._seen} == {4000, 4500}


def test_the_latest_failure_comes_first() -> None:
    counts = LabelCounts(1000)
    for number in range(module.FAILURES + 2):
        take(counts, f"c-{number}", outcome(424, "timeout", identity=f"r-{number}"), 200 + number)
    take(counts, "good", outcome(identity="good"), 300)
    failures = counts.failures()
    assert len(failures) == module.FAILURES
    assert failures[0] == FailureEntry("c-51", LAMP, 424, "timeout", ["audit:kept"], 251, 151)


def test_a_copy_that_a_replayed_batch_writes_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = read_entry("c-1", outcome(424, "timeout"), module.epoch_milliseconds())
    batches = iter([[entry], [entry]])
    feed, read = mock.MagicMock(), threading.Event()

    def records(_timeout_ms: int) -> list[object]:
        found = next(batches, None)
        if found is None:
            read.set()
        return found or []

    feed.records = records
    feed.signed_at.return_value = None
    monkeypatch.setattr(module, "LedgerFeed", lambda *_: feed)
    with module.Live(Settings()) as live:
        assert read.wait(10)
        view = live.view()
    assert [tally.missing for tally in view.labels] == [1, 1, 1]
    assert len(view.failures) == 1


GONE = "The job correlate has given {}, so no request is answered or times out: is it running?"
NEVER = GONE.format("no sign of life yet")


def looked(signed_at: int, now: int, seconds: int) -> list[tuple[int, int, int]]:
    """Return looks, one each second, of which the last one is the given one."""
    return [(signed_at, now - seconds + passed, passed) for passed in range(seconds + 1)]


@pytest.mark.parametrize(
    ("looks", "missing"),
    [
        # at each look: the last sign of life, this machine's time, and the seconds that have passed here
        ([(None, 1_000, 0)], NEVER),
        ([(None, 1_000, 0), (1_001, 1_002, 2)], ""),
        # it restarts
        (looked(1_000, 1_059, 59), ""),
        (looked(1_000, 1_060, 60), GONE.format("its last sign of life 60 s ago")),
        ([*looked(1_000, 1_060, 60), (1_061, 1_062, 62)], ""),
        # it ended long before this gateway began: certain once it has shown no sign for as long as a pause may take
        (looked(1_000, 9_014, 14), ""),
        (looked(1_000, 9_015, 15), GONE.format("its last sign of life 8015 s ago")),
        # the clocks of two machines differ
        ([*looked(1_000, 9_014, 14), (1_016, 9_016, 16)], ""),
        (looked(9_000, 1_060, 60), GONE.format("its last sign of life 60 s ago")),
        # Kafka was away, and the job gives signs again some seconds after it is back
        ([(1_000, 1_000, 0), (1_000, 1_300, 300), (1_000, 1_310, 310)], ""),
    ],
)
def test_a_job_is_missing_only_once_it_is_certain(looks: list[tuple[int | None, int, int]], missing: str):
    presence = module.JobPresence()
    for signed_at, now, passed in looks:
        presence.look(None if signed_at is None else signed_at * 1000, now * 1000, passed * 1000)
    assert presence.missing == missing


def test_a_missing_job_is_one_warning_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    feed, looked, signs = mock.MagicMock(), threading.Semaphore(0), [None, None]
    feed.records.return_value = []

    def signed_at() -> int | None:
        looked.release()
        return signs.pop() if signs else module.epoch_milliseconds()

    feed.signed_at = signed_at
    caplog.set_level("INFO")
    monkeypatch.setattr(module, "LedgerFeed", lambda *_: feed)
    monkeypatch.setattr(module, "CLOCK_SECONDS", 0)
    with module.Live(Settings()):
        assert all(looked.acquire(timeout=10) for _ in range(5))
    assert caplog.text.count("is it running? Requests that need an answer get 503.") == 1
    assert caplog.text.count("correlate runs again") == 1


def test_a_gateway_is_not_ready_while_kafka_does_not_respond_and_names_the_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    feed, looked = mock.MagicMock(), threading.Semaphore(0)
    feed.records.return_value = []

    def signed_at() -> None:
        looked.release()
        raise TopicAuthorizationFailedError("correlate-lease")

    feed.signed_at = signed_at
    monkeypatch.setattr(module, "LedgerFeed", lambda *_: feed)
    monkeypatch.setattr(module, "CLOCK_SECONDS", 0)
    with HEALTH.expecting(module.KAFKA, module.KAFKA_SECONDS), module.Live(Settings()):
        assert all(looked.acquire(timeout=10) for _ in range(3))
        assert HEALTH.ready(0) == ("Kafka: no sign yet (TopicAuthorizationFailedError).",)
    assert caplog.text.count("Not ready: Kafka: ") == 1
    assert "correlate-lease" in caplog.text


def test_a_tenant_sees_counts_of_its_own_requests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    feed, looked, read = mock.MagicMock(), threading.Event(), threading.Event()
    entries = [
        read_entry("c-1", outcome(424, "timeout", identity=f"r-{n}"), module.epoch_milliseconds()) for n in range(3)
    ]

    def records(_timeout_ms: int) -> list[object]:
        assert looked.wait(10)
        if not entries:
            read.set()
        return [entries.pop()] if entries else []

    feed.records = records
    feed.signed_at.return_value = None
    monkeypatch.setattr(module, "LedgerFeed", lambda *_: feed)
    with module.Live(Settings()) as live:
        for tenant in ("ann", "eve"):
            live.own((tenant,), lambda thing_id, tenant=tenant: tenant == "ann" and thing_id == LAMP)  # type: ignore[misc]
        looked.set()
        assert read.wait(10)
        ann, eve = (live.own((tenant,), lambda _: False) for tenant in ("ann", "eve"))
        assert (ann.counts["timed out"].total, sum(ann.trends["timed out"])) == (3, 3)
        assert (eve.counts["timed out"].total, sum(eve.trends["timed out"]), eve.newest) == (0, 0, None)
        assert live.view().counts["timed out"].total == 3


class Topics:
    """Topics of the planes, with one publisher; ``made`` has those that were connected, ``error`` is raised once."""

    def __init__(self, made: list[Topics], error: list[Exception]) -> None:
        made.append(self)
        self._error = error
        self.outdated = self.closed = False

    def give(self, planes: Planes) -> bool:
        planes.take("stored", mock.Mock(value=STORED, timestamp=module.epoch_milliseconds()))
        return False

    def signs(self) -> list[JobSign]:
        if self._error:
            raise self._error.pop()
        return [JobSign("persist", 5, alive=True, lags=[])]

    def close(self) -> None:
        self.closed = True
        raise OSError("still no broker")


def test_planes_are_followed_while_the_page_is_looked_at_and_anew_with_new_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Topics] = []
    error: list[Exception] = [OSError("no broker")]
    ledger = mock.MagicMock()
    ledger.records.side_effect = lambda _: time.sleep(0.001) or []
    ledger.signed_at.side_effect = module.epoch_milliseconds
    monkeypatch.setattr(module, "LedgerFeed", lambda *_: ledger)
    monkeypatch.setattr(module, "PlaneFeed", lambda *_: Topics(made, error))
    for name in ("VIEW_SECONDS", "SIGNS_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(module, name, 0.0)
    with module.Live(Settings()) as live:
        assert not made
        assert live.whole().jobs == []
        eventually(lambda: "no broker" in live.whole().note or len(made) == 2, "the note, or the next attempt")
        eventually(lambda: publishers(live) and [sign.job for sign in live.whole().jobs] == ["persist"], "the planes")
        eventually(lambda: live.whole().note == "", "the end of the note")
        made[1].outdated = True
        eventually(lambda: len(made) == 3 and made[1].closed, "a new connection")
        monkeypatch.setattr(module, "IDLE_SECONDS", -1.0)
        eventually(lambda: made[2].closed, "the end")
        eventually(lambda: not publishers(live), "an empty page")
    assert len(made) == 3


@pytest.fixture
def settings(kafka: Kafka) -> Settings:
    return Settings(kafka=kafka)


def publishers(live: module.Live) -> bool:
    planes = live.whole().planes
    return planes is not None and bool(planes.publishers)


@pytest.mark.integration
def test_a_topic_that_is_created_later_is_read_too(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIGNS_SECONDS", 0.1)
    ensure_topics(settings, ["ledger"])
    with module.Live(settings) as live:
        live.whole()
        ensure_topics(settings, ["stored", "persist-lease"])
        write(settings, "stored", STORED)
        write(settings, "persist-lease", b"0")
        eventually(lambda: publishers(live), "publishers")
        eventually(lambda: [sign.job for sign in live.whole().jobs] == ["persist"], "the job")


@pytest.mark.integration
def test_nothing_is_read_until_somebody_looks_and_some_time_after(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_topics(settings, ["ledger", "stored"])
    opened: list[Any] = []

    class Counted(PlaneFeed):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            opened.append("opened")

        def close(self) -> None:
            super().close()
            opened.append("closed")

    monkeypatch.setattr(module, "PlaneFeed", Counted)
    with module.Live(settings) as live:
        write(settings, "stored", STORED)
        assert not opened
        eventually(lambda: publishers(live), "publishers")
        assert opened == ["opened"]
        # nobody looks any more
        monkeypatch.setattr(module, "IDLE_SECONDS", 0.0)
        eventually(lambda: opened == ["opened", "closed"], "an end")
        monkeypatch.setattr(module, "IDLE_SECONDS", 60.0)
        eventually(lambda: publishers(live), "publishers")
    assert opened == ["opened", "closed"] * 2
