"""What a shard counts for operators: all that it decides, each once, and what it holds."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.correlate import shard as shard_module
from ackstream.jobs.correlate.records import RequestFigures, Writer
from ackstream.jobs.correlate.shard import CorrelateShard
from ackstream.jobs.correlate.topics import CorrelateTopics
from ackstream.observe import metrics
from ackstream.protocol import ledger
from ackstream.protocol.ledger import OutcomeRow
from ackstream.settings import Correlate
from ackstream.testing.system import process
from tests.jobs.correlate.shards import Log

if TYPE_CHECKING:
    from ackstream.jobs.correlate.state import Record

TOPICS = CorrelateTopics()
NOW_MS = 20_000


def _measured(monkeypatch: pytest.MonkeyPatch, records: list[Record], watermark: int) -> tuple[metrics.Tally, Writer]:
    monkeypatch.setattr(shard_module, "time_ns", lambda: NOW_MS * 1_000_000)
    writer = Writer(TOPICS, "query", 0)
    shard = CorrelateShard(Correlate(), TOPICS, writer)
    process(shard, records, watermark)
    shard.dump()
    tally = metrics.Tally()
    shard.measure(tally)
    return tally, writer


def test_what_is_decided_counts_as_the_ledger_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    records = [
        log.command(1_000, "ok", requested_acks=["a-ack"], timeout="5s"),
        log.ack(1_200, "a-ack", correlation_id="ok"),
        log.ack(1_300, "a-ack", correlation_id="ok"),
        log.command(1_000, "late", requested_acks=["a-ack"], timeout="5s"),
        log.command(1_000, "wrong", requested_acks=["a-ack"], timeout="never"),
        log.command(1_400, "ok", requested_acks=["a-ack"]),
        log.command(1_500, "open", requested_acks=["a-ack"], timeout="60s"),
        log.ack(9_000, "a-ack", correlation_id="nobody"),
    ]
    tally, writer = _measured(monkeypatch, records, 10_000)
    assert tally.counters == {
        (metrics.REQUESTS.name, "acknowledgements", "2xx"): 1,
        (metrics.REQUESTS.name, "timeout", "4xx"): 1,
        (metrics.REQUESTS.name, "invalid", "4xx"): 1,
        (metrics.ACKS.name, "accepted"): 1,
        (metrics.ACKS.name, "late"): 1,
        (metrics.DEAD_LETTERS.name, "correlate", "duplicate"): 1,
        (metrics.DEAD_LETTERS.name, "correlate", "timeout.invalid"): 1,
    }
    assert tally.gauges == {
        (metrics.OPEN_REQUESTS.name,): 1,
        (metrics.EARLY_ACKS.name,): 1,
        (metrics.OLDEST_REQUEST.name,): 1.5,
        (metrics.DEADLINE.name,): 61.5,
    }
    written = [ledger.decode(one.value or b"") for one in writer.emissions if one.topic == TOPICS.ledger]
    outcomes = Counter((one.outcome.completed_by, one.outcome.status // 100) for one in written if one.outcome)
    assert outcomes == {("acknowledgements", 2): 1, ("timeout", 4): 1, ("invalid", 4): 1}
    assert tally.histograms[metrics.DECISION.name, "acknowledgements"][-1] == pytest.approx(0.2)
    # its sender waits until the batch ends
    assert tally.histograms[metrics.REPLY.name, "acknowledgements"][-1] == pytest.approx(19)
    assert tally.histograms[metrics.REPLY.name, "timeout"][-1] == pytest.approx(19)


def test_nothing_open_has_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _measured(monkeypatch, [], 1_000)[0].gauges == {
        (metrics.OPEN_REQUESTS.name,): 0,
        (metrics.EARLY_ACKS.name,): 0,
    }


outcomes = st.lists(st.tuples(st.sampled_from(["timeout", "error"]), st.integers(-5, 700), st.integers(0, 10**8)))


@given(outcomes)
def test_counts_and_buckets_are_those_of_counting_one_by_one(found: list[tuple[str, int, int]]) -> None:
    figures, tally = RequestFigures(), metrics.Tally()
    for completed_by, status, latency in found:
        row = OutcomeRow("c", None, status, completed_by, (), [], 0, latency, latency, "r", None)
        figures.decided(row, 0)
    figures.measure(tally, 10**6)
    expected = metrics.Tally()
    for completed_by, status, latency in found:
        known = 100 <= status < 600
        expected.count(metrics.REQUESTS, completed_by, f"{status // 100}xx" if known else "other")
        expected.observe(metrics.DECISION, completed_by, values=(latency / 1000,))
        expected.observe(metrics.REPLY, completed_by, values=(1000.0,))
    assert tally.counters == expected.counters
    assert tally.histograms.keys() == expected.histograms.keys()
    for key, counted in expected.histograms.items():
        assert tally.histograms[key] == pytest.approx(counted)
