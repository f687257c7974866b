"""What ``python -m benchmarks peers`` compares: the rules of the contenders, and what is read from their replies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.correlate.records import Writer
from ackstream.jobs.correlate.shard import CorrelateShard
from ackstream.jobs.correlate.topics import CorrelateTopics
from ackstream.settings import Correlate
from ackstream.testing.system import process
from benchmarks import pages
from benchmarks.contenders.joining import ORPHAN_HOLD, complete, receive, reply
from benchmarks.replies import Verdicts, recovery, slope
from benchmarks.workload import LABELS, Workload

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
REQUESTS = 200
START = 1_700_000_000_000
TIMEOUT = 2_000


def test_what_every_contender_has_to_reply_is_what_correlate_decides() -> None:
    workload, writer = Workload(REQUESTS, missing=0.2), Writer(CorrelateTopics(), "query", 1)
    shard = CorrelateShard(Correlate(), CorrelateTopics(), writer)
    process(shard, workload.records(start=START))
    process(shard, [], START + 100 * TIMEOUT)
    replies = {one.key.decode(): one for one in writer.emissions if one.reply_id is not None and one.key is not None}
    assert len(replies) == REQUESTS
    for number, key in enumerate(workload.ids):
        assert json.loads(replies[key].value or b"") == workload.reply(number)
        assert replies[key].completed_by == workload.completed_by(number)


MESSAGES = [json.loads(Workload(1).signal(0)), *(json.loads(Workload(1).ack(0, label)) for label in range(len(LABELS)))]


@given(order=st.permutations(range(3)), late=st.lists(st.booleans(), min_size=2, max_size=2))
def test_an_acknowledgement_counts_by_its_own_time_whatever_is_read_first(
    order: Sequence[int], late: list[bool]
) -> None:
    times = [START, *(START + TIMEOUT + 1 if after else START + TIMEOUT for after in late)]
    entry = None
    for number in order:
        entry = receive(entry, json.loads(json.dumps(MESSAGES[number])), times[number])
    assert entry is not None
    assert entry["due"] == START + TIMEOUT
    assert complete(entry) is not any(late)
    statuses = [ack["status"] for ack in reply(entry)["value"].values()]
    assert statuses == [408 if after else 200 for after in late]


def test_an_acknowledgement_waits_for_its_request_for_a_while() -> None:
    entry = receive(None, MESSAGES[1], START)
    assert entry["due"] == START + ORPHAN_HOLD
    assert not complete(entry)


def _taken(verdicts: Verdicts, workload: Workload, number: int, **changed: Any) -> int | None:
    text = json.dumps(workload.reply(number) | changed).encode()
    return verdicts.take(workload.ids[number].encode(), workload.completed_by(number).encode(), text)


def test_each_reply_is_right_wrong_repeated_contradicted_or_unknown() -> None:
    workload = Workload(3, missing=0)
    verdicts = Verdicts(workload)
    assert [_taken(verdicts, workload, number) for number in (0, 1, 1)] == [0, 1, None]
    assert verdicts.counts == {"acknowledgements": 2, "repeated": 1}
    assert not verdicts.right
    assert _taken(verdicts, workload, 2) == 2
    assert verdicts.right
    assert _taken(verdicts, workload, 2, status=424) is None
    assert verdicts.take(b"another", b"timeout", b"{}") is None
    assert verdicts.counts == {"acknowledgements": 3, "repeated": 1, "contradicted": 1, "unknown": 1}
    assert not verdicts.right


def test_a_timeout_in_place_of_an_answer_and_another_content_are_wrong() -> None:
    workload = Workload(2, missing=0)
    verdicts = Verdicts(workload)
    verdicts.take(workload.ids[0].encode(), b"timeout", json.dumps(workload.reply(0)).encode())
    _taken(verdicts, workload, 1, status=424)
    assert verdicts.counts["wrong"] == 2


@pytest.mark.parametrize("batch", [1, 10, 250])
def test_replies_in_batches_have_the_rate_of_those_that_come_evenly(batch: int) -> None:
    assert slope([number // batch * batch / 100 for number in range(1000)]) == pytest.approx(100, rel=0.05)


def test_a_kill_is_felt_until_the_last_late_reply() -> None:
    steady = [(number / 10, number / 10 + 0.2) for number in range(100)]
    # killed at 10.0; what is due from then on comes at 14.0, and from 14.0 on in time
    delayed = [(number / 10, max(number / 10 + 0.2, 14.0)) for number in range(100, 200)]
    found = recovery([*steady, *delayed], 10.0)
    assert found["silent"] == pytest.approx(14.0 - 10.1)
    assert found["caught_up"] == pytest.approx(4.0)
    assert recovery(steady, 9.0)["caught_up"] == 0


def test_a_part_of_the_page_is_written_between_its_marks() -> None:
    page = "before\n<!-- peers -->\nold\n<!-- end of peers -->\nafter\n"
    written = pages.with_part(page, "peers", "new\nlines")
    assert written == page.replace("old", "new\nlines")
    assert pages.part(written, "peers") == "new\nlines"
    with pytest.raises(ValueError, match="no part 'others'"):
        pages.with_part(page, "others", "new")


def test_the_tables_of_the_page_are_made_of_the_result() -> None:
    text = pages.part((BENCHMARKS / "README.md").read_text("utf-8"), "peers")
    result = BENCHMARKS / "results" / "peers.json"
    assert text == (
        pages.peers(json.loads(result.read_text("utf-8"))) if result.exists() else pages.NOT_MEASURED.format("peers")
    )


def test_a_table_has_a_row_for_each_contender() -> None:
    percentiles = {"p50": 0.25, "p95": None}
    live: dict[str, Any] = dict.fromkeys(("reply", "last_ack", "late"), percentiles)
    live |= {"cores": 0.5, "memory_bytes": 2**30, "kill": {"silent": 3.0, "caught_up": 4.5}}
    contender = {
        "messages_a_second": {"warm": 30_000.0, "whole": 20_000.0},
        "processor_microseconds": 40.0,
        "broker_microseconds": 3.0,
        "memory_bytes": 2**31,
        "live": live | {"counts": {"requests": 9, "repeated": 5, "wrong": 1, "unanswered": 2}},
    }
    twice = contender | {"messages_a_second": {"warm": 60_000.0, "whole": 20_000.0}}
    figures = {"messages": 1000, "rounds": 3, "rate": 500, "contenders": {"ackstream": contender, "other": twice}}
    machine = {"cores": 2, "cpu": "a processor"}
    lines = pages.peers({"figures": figures, "machine": machine, "date": "2026-11-23T08:00:00+00:00"}).splitlines()
    assert "| other | 60,000 | 20,000 | 0.50 | 40 | 3.0 | 2.00 |" in lines
    assert "| other | 0.25 | - | 0.25 | - | 0.25 | - | 0.50 | 1.00 | 3.00 | 4.50 | 5 | 3 |" in lines
    assert len({line.count("|") for line in lines if "other" in line or "contender" in line}) == 2
