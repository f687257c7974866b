"""The format of the checkpoints, and the size of the state."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ackstream.jobs.correlate import pending
from ackstream.jobs.correlate.state import (
    BUCKETS_OF_A_TIMEOUT,
    OLDEST_VERSION,
    STATE_VERSION,
    Pending,
    Recent,
    decode_state,
    open_requests,
)
from ackstream.protocol.durations import Duration
from tests.harness.pieces import MemoryPieces
from tests.jobs.correlate.shards import Log, Run

REQUESTS = base64.b64decode(
    "lZKRk88ecfFpP7Lo981SCMUCq5ykb3Blbs8ecfFpP7Lo95ytb3JnLmFjbWU6bGFtcKRsaXZlpGxpdmWTrWxpdmUtcmVzcG9uc2WlYS1hY2ulYi1hY2"
    "vDw81OIIGuY29ycmVsYXRpb24taWSkb3Blbqhjb21tYW5kc6Ztb2RpZnnArS9hdHRyaWJ1dGVzL3jNA+jNUgjZIGI3MTMwZGM3Yjg5NzgwNTIyYzc0"
    "ZDI3YTE4ZTQyOWMzp3JlcGxpZXPEAgECkZmlYS1hY2vMysQIeyJuIjogMX3EM3siY29ycmVsYXRpb24taWQiOiJvcGVuIiwicmVzcG9uc2UtcmVxdW"
    "lyZWQiOmZhbHNlfc0EsAAAAMLZXkVudGl0eSBJRCBvZiBsaXZlIHJlc3BvbnNlIDxvcmcuYWNtZTpvdGhlcj4gZGlmZmVycyBmcm9tIGVudGl0eSBJ"
    "RCBvZiBjb21tYW5kIDxvcmcuYWNtZTpsYW1wPi6Rms4AAXMYAAACzx5x8Wk/suj3pG9wZW7EA2tlecSxeyJ0b3BpYyI6ICJvcmcuYWNtZS9sYW1wL3"
    "RoaW5ncy90d2luL2NvbW1hbmRzL21vZGlmeSIsICJoZWFkZXJzIjogeyJjb3JyZWxhdGlvbi1pZCI6ICJvcGVuIiwgInJlcXVlc3RlZC1hY2tzIjog"
    "WyJhLWFjayJdLCAidGltZW91dCI6ICIxMHMifSwgInBhdGgiOiAiL2F0dHJpYnV0ZXMveCIsICJ2YWx1ZSI6IDF9zLGAxHZ7ImNvcnJlbGF0aW9uLW"
    "lkIjoib3BlbiIsInRpbWVvdXQiOiIyMHMiLCJjaGFubmVsIjoibGl2ZSIsInJlc3BvbnNlLXJlcXVpcmVkIjpmYWxzZSwiY29udGVudC10eXBlIjoi"
    "YXBwbGljYXRpb24vanNvbiJ9kpCQkpGT04mh4kD+mdy8zSzsxJSazQXcAQAD04mh4kD+mdy8pWVhcmx5xANrZXnEdXsidG9waWMiOiAib3JnLmFjbW"
    "UvbGFtcC90aGluZ3MvdHdpbi9hY2tzL2EtYWNrIiwgImhlYWRlcnMiOiB7ImNvcnJlbGF0aW9uLWlkIjogImVhcmx5In0sICJwYXRoIjogIi8iLCAi"
    "c3RhdHVzIjogMjAwfXWAkpCQkpCSkJCRks4AAQesxAjASrVkCbEXxoA="
)
"""A live request ``open`` with one acknowledgement, a rejected response and a successor; a decided request ``done``; an
acknowledgement ``early`` that is held."""


def test_a_checkpoint_is_continued() -> None:
    log, run = Log(), Run()
    run.state = (OLDEST_VERSION, REQUESTS)
    run.feed(
        log.command(1600, "early", requested_acks=["a-ack"]),
        log.command(1700, "done", requested_acks=["a-ack"]),
        log.ack(1800, "b-ack", 200, "open"),
        watermark=21_001,
    )
    early, opened = run.replies()
    assert (early["status"], list(early["value"])) == (200, ["a-ack"])
    assert (opened["status"], opened["completed-by"]) == (424, "timeout")
    assert {label: entry["status"] for label, entry in opened["value"].items()} == {
        "live-response": 408,
        "a-ack": 202,
        "b-ack": 200,
    }
    assert len(run.reasons()) == 1
    run.feed(log.ack(96_000, "a-ack", 200, "open"))
    assert (run.outcomes()[-1]["started_at"], run.outcomes()[-1]["status"]) == (95_000, 200)
    assert [emission.spring_correlation for emission in run.emissions if emission.reply_id] == [None, b"\x01\x02", None]


DECLARED = base64.b64decode(
    "lZKRk88ecfFpP7Lo981SCMUBr5ykb3Blbs8ecfFpP7Lo95ytb3JnLmFjbWU6bGFtcKR0d2lupHR3aW6TrnR3aW4tcGVyc2lzdGVkpWEtYWNrpWMtYW"
    "Nrw8PNTiCBrmNvcnJlbGF0aW9uLWlkpG9wZW6oY29tbWFuZHOmbW9kaWZ5wK0vYXR0cmlidXRlcy94zQPozVII2SBiNzEzMGRjN2I4OTc4MDUyMmM3"
    "NGQyN2ExOGU0MjljM6dyZXBsaWVzwJKarnR3aW4tcGVyc2lzdGVkzMnAxDN7ImNvcnJlbGF0aW9uLWlkIjoib3BlbiIsInJlc3BvbnNlLXJlcXVpcm"
    "VkIjpmYWxzZX3NBLAAAADCApqlYS1hY2vMysDEM3siY29ycmVsYXRpb24taWQiOiJvcGVuIiwicmVzcG9uc2UtcmVxdWlyZWQiOmZhbHNlfc0FFAAA"
    "AMIBwJDEZXsiY29ycmVsYXRpb24taWQiOiJvcGVuIiwidGltZW91dCI6IjIwcyIsInJlc3BvbnNlLXJlcXVpcmVkIjpmYWxzZSwiY29udGVudC10eX"
    "BlIjoiYXBwbGljYXRpb24vanNvbiJ9kpCQkpGT04mh4kD+mdy8zSzsxQEVms0F3AIAAdOJoeJA/pncvKVlYXJsecQDa2V5xMp7InRvcGljIjogIm9y"
    "Zy5hY21lL2xhbXAvdGhpbmdzL3R3aW4vZXJyb3JzIiwgImhlYWRlcnMiOiB7ImNvcnJlbGF0aW9uLWlkIjogImVhcmx5In0sICJwYXRoIjogIi8iLC"
    "AidmFsdWUiOiB7InN0YXR1cyI6IDQwNCwgImVycm9yIjogInRoaW5nczp0aGluZy5ub3Rmb3VuZCIsICJtZXNzYWdlIjogIkl0IHdlbnQgd3Jvbmcu"
    "In0sICJzdGF0dXMiOiA0MDR9zMqBqHJlcGx5LWlkxCAzNjM5ZTc0ZWQxY2JlYzUwYzBiMDNmMTE4OTQyYzRjNpKQkJKRk88ecfFpP7Lo980FeMSSms"
    "0FeAEAAc8ecfFpP7Lo96RvcGVuxANrZXnEdHsidG9waWMiOiAib3JnLmFjbWUvbGFtcC90aGluZ3MvdHdpbi9hY2tzL2MtYWNrIiwgImhlYWRlcnMi"
    "OiB7ImNvcnJlbGF0aW9uLWlkIjogIm9wZW4ifSwgInBhdGgiOiAiLyIsICJzdGF0dXMiOiAyMDB9dICSkJCQgqVhLWFja5GSzQH0zXckpWItYWNrkZ"
    "LNAfTNdyQ="
)
"""Declared ``a-ack`` and ``b-ack``; a request ``open`` with the twin's response and ``a-ack``, for which an undeclared
``c-ack`` waits; an error ``early`` of the twin that is held. Undeclared labels are refused."""


def test_a_checkpoint_with_declared_labels_is_continued() -> None:
    log, run = Log(), Run(refuse_undeclared=True)
    run.state = (OLDEST_VERSION, DECLARED)
    run.feed(log.claim(1350, "c-ack"), log.command(1600, "early"))
    opened, early = run.replies()
    assert {label: entry["status"] for label, entry in opened["value"].items()} == {
        "twin-persisted": 201,
        "a-ack": 202,
        "c-ack": 200,
    }
    assert (early["status"], early["completed-by"]) == (404, "error")
    rows = [(ack["label"], ack["topic"]) for record in run.ledger() for ack in record.get("acks", ())]
    assert rows == [("twin-persisted", "twin-acks"), ("a-ack", "acks"), ("c-ack", "acks"), (None, "twin-acks")]


PIECE = base64.b64decode(
    "AQAAAAAAAAD36LI/afFxHghSAAAAAAAAAAAAAAAAAAAAAAAAAAAAAK8BAAAAAAAAnKRvcGVuzx5x8Wk/suj3nK1vcmcuYWNtZTpsYW1wpHR3aW6kdH"
    "dpbpOudHdpbi1wZXJzaXN0ZWSlYS1hY2ulYy1hY2vDw81OIIGuY29ycmVsYXRpb24taWSkb3Blbqhjb21tYW5kc6Ztb2RpZnnArS9hdHRyaWJ1dGVz"
    "L3jNA+jNUgjZIGI3MTMwZGM3Yjg5NzgwNTIyYzc0ZDI3YTE4ZTQyOWMzp3JlcGxpZXPAkpqudHdpbi1wZXJzaXN0ZWTMycDEM3siY29ycmVsYXRpb2"
    "4taWQiOiJvcGVuIiwicmVzcG9uc2UtcmVxdWlyZWQiOmZhbHNlfc0EsAAAAMICmqVhLWFja8zKwMQzeyJjb3JyZWxhdGlvbi1pZCI6Im9wZW4iLCJy"
    "ZXNwb25zZS1yZXF1aXJlZCI6ZmFsc2V9zQUUAAAAwgHAkMRleyJjb3JyZWxhdGlvbi1pZCI6Im9wZW4iLCJ0aW1lb3V0IjoiMjBzIiwicmVzcG9uc2"
    "UtcmVxdWlyZWQiOmZhbHNlLCJjb250ZW50LXR5cGUiOiJhcHBsaWNhdGlvbi9qc29uIn0="
)
"""The open request of it in a piece, whose file has no version."""


def test_a_piece_is_written_as_it_always_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "HOT_BYTES", 0)
    monkeypatch.setattr(pending, "TOUCHED_BYTES", 0)
    run = Run(refuse_undeclared=True, store=MemoryPieces())
    run.state = (STATE_VERSION, DECLARED)
    run.feed()
    assert list(run.store.found.values()) == [PIECE]


WITH_PARTITION = base64.b64decode(
    "lZKRk88ecfFpP7Lo981SCMUBBJ2kb3Blbs8ecfFpP7Lo95ytb3JnLmFjbWU6bGFtcKR0d2lupHR3aW6RpWEtYWNrw8PNTiCBrmNvcnJlbGF0aW9uLW"
    "lkpG9wZW6oY29tbWFuZHOmbW9kaWZ5wK0vYXR0cmlidXRlcy94zQPozVII2SBiNzEzMGRjN2I4OTc4MDUyMmM3NGQyN2ExOGU0MjljM6dyZXBsaWVz"
    "wJDAkMRleyJjb3JyZWxhdGlvbi1pZCI6Im9wZW4iLCJ0aW1lb3V0IjoiMjBzIiwicmVzcG9uc2UtcmVxdWlyZWQiOmZhbHNlLCJjb250ZW50LXR5cG"
    "UiOiJhcHBsaWNhdGlvbi9qc29uIn0DkpCQkpGT04mh4kD+mdy8zSyIxJSazQV4AQAA04mh4kD+mdy8pWVhcmx5xANrZXnEdXsidG9waWMiOiAib3Jn"
    "LmFjbWUvbGFtcC90aGluZ3MvdHdpbi9hY2tzL2EtYWNrIiwgImhlYWRlcnMiOiB7ImNvcnJlbGF0aW9uLWlkIjogImVhcmx5In0sICJwYXRoIjogIi"
    "8iLCAic3RhdHVzIjogMjAwfXWAkpCQkpCSkJCQgA=="
)
"""Of version 6: a request ``open`` that awaits ``a-ack``, its reply in partition 3; a record ``early`` that is held."""

WITH_TOPIC = base64.b64decode(
    "lZKRk88ecfFpP7Lo981SCMUBB5+kb3Blbs8ecfFpP7Lo952tb3JnLmFjbWU6bGFtcKR0d2lupHR3aW6RpWEtYWNrw8PNTiCBrmNvcnJlbGF0aW9u"
    "LWlkpG9wZW6oY29tbWFuZHOmbW9kaWZ5wK0vYXR0cmlidXRlcy94wM0D6M1SCNkgYjcxMzBkYzdiODk3ODA1MjJjNzRkMjdhMThlNDI5YzOncmVw"
    "bGllc8CQwJDEZXsiY29ycmVsYXRpb24taWQiOiJvcGVuIiwidGltZW91dCI6IjIwcyIsInJlc3BvbnNlLXJlcXVpcmVkIjpmYWxzZSwiY29udGVu"
    "dC10eXBlIjoiYXBwbGljYXRpb24vanNvbiJ9A4AAkpCQkpGT04mh4kD+mdy8zSyIxJWbzQV4AQAA04mh4kD+mdy8pWVhcmx5xANrZXnEdXsidG9w"
    "aWMiOiAib3JnLmFjbWUvbGFtcC90aGluZ3MvdHdpbi9hY2tzL2EtYWNrIiwgImhlYWRlcnMiOiB7ImNvcnJlbGF0aW9uLWlkIjogImVhcmx5In0s"
    "ICJwYXRoIjogIi8iLCAic3RhdHVzIjogMjAwfXWAwJKQkJKQkpCQkIA="
)
"""The same, of version 7."""

WITH_AMEND = base64.b64decode(
    "lpKRk88ecfFpP7Lo981SCMUBDNwAEKRvcGVuzx5x8Wk/suj3n61vcmcuYWNtZTpsYW1wpHR3aW6kdHdpbpGlYS1hY2vDw81OIIGuY29ycmVsYXRpb2"
    "4taWSkb3Blbqhjb21tYW5kc6Ztb2RpZnnArS9hdHRyaWJ1dGVzL3jAwgDNA+jNUgjZIGI3MTMwZGM3Yjg5NzgwNTIyYzc0ZDI3YTE4ZTQyOWMzp3Jl"
    "cGxpZXPAkMCQxGV7ImNvcnJlbGF0aW9uLWlkIjoib3BlbiIsInRpbWVvdXQiOiIyMHMiLCJyZXNwb25zZS1yZXF1aXJlZCI6ZmFsc2UsImNvbnRlbn"
    "QtdHlwZSI6ImFwcGxpY2F0aW9uL2pzb24ifQOAAJCSkJCSkZPTiaHiQP6Z3LzNLIjElZvNBXgBAADTiaHiQP6Z3LylZWFybHnEA2tlecR1eyJ0b3Bp"
    "YyI6ICJvcmcuYWNtZS9sYW1wL3RoaW5ncy90d2luL2Fja3MvYS1hY2siLCAiaGVhZGVycyI6IHsiY29ycmVsYXRpb24taWQiOiAiZWFybHkifSwgIn"
    "BhdGgiOiAiLyIsICJzdGF0dXMiOiAyMDB9dYDAkpCQkpCSkJCQgJKQkpCQ"
)
"""The same as this version writes it."""


def test_a_state_is_encoded_as_this_version_always_was() -> None:
    run = Run(partitions={"replies": 4})
    chosen = {"kafka_replyPartition": (3).to_bytes(4, "big")}
    asking = Log().command(1000, "open", requested_acks=["a-ack"], timeout="20s")
    run.feed(msgspec.structs.replace(asking, headers=chosen), Log().ack(1400, "a-ack", correlation_id="early"))
    assert run.state == (STATE_VERSION, WITH_AMEND)


def test_a_state_of_the_version_before_is_read_as_this_version_writes_it() -> None:
    run = Run(partitions={"replies": 4})
    run.state = (7, WITH_TOPIC)
    run.feed()
    assert run.state is not None
    new, old = (open_requests(decode_state(*state), None) for state in (run.state, (STATE_VERSION, WITH_AMEND)))
    assert new == old


def test_an_open_request_keeps_the_partition_for_its_reply_if_it_has_one() -> None:
    run, without = Run(partitions={"replies": 4}), Run(refuse_undeclared=True)
    run.state, without.state = (OLDEST_VERSION, WITH_PARTITION), (OLDEST_VERSION, DECLARED)
    run.feed(Log().ack(1350, "a-ack", correlation_id="open"))
    without.feed(Log().claim(1350, "c-ack"))
    assert [reply["in-partition"] for reply in [*run.replies(), *without.replies()]] == [3, None]


@pytest.mark.parametrize("version", [OLDEST_VERSION - 1, STATE_VERSION + 1])
def test_a_state_of_another_version_is_refused(version: int) -> None:
    run = Run()
    run.state = (version, REQUESTS)
    with pytest.raises(ValueError, match=f"The state has version {version}; this release reads"):
        run.feed()


def test_the_state_grows_with_open_requests_only() -> None:
    log, run = Log(), Run()
    run.feed(log.command(0, "open", requested_acks=["a-ack"]), log.ack(0, "a-ack", correlation_id="held"))
    for number in range(50):
        key = f"id-{number}"
        run.feed(log.ack(number, "a-ack", correlation_id=key))
        run.feed(log.command(number, key, requested_acks=["a-ack"]))
    assert len(run.replies()) == 50
    assert run.state is not None
    state = decode_state(*run.state)
    assert (len(state.open.entries), len(state.held.entries)) == (1, 1)


def test_those_that_were_not_decided_time_out_in_the_order_of_their_deadlines() -> None:
    log, run = Log(), Run()
    seconds = [1, 2, 30, 4, 5, 40, 50, 8, 9, 10]
    run.feed(*(log.command(0, f"id-{n}", requested_acks=["a-ack"], timeout=f"{n}s") for n in seconds))
    decided = [1, 2, 4, 8, 9, 5]
    run.feed(*(log.ack(10, "a-ack", correlation_id=f"id-{n}") for n in decided))
    assert run.next_timeout == 10_000
    run.feed(watermark=30_001)
    timed_out = [outcome["correlation_id"] for outcome in run.outcomes() if outcome["completed_by"] == "timeout"]
    assert timed_out == ["id-10", "id-30"]
    assert run.next_timeout == 40_000


def test_those_whose_request_did_not_come_are_held_to_the_end_of_their_hold() -> None:
    log, run = Log(), Run()
    run.feed(*(log.ack(number, "a-ack", correlation_id=f"early-{number}") for number in (3, 1, 2, 9, 8, 10, 7)))
    run.feed(*(log.command(11, f"early-{number}", requested_acks=["a-ack"]) for number in (1, 2, 3, 7)))
    assert run.next_timeout == 10_008
    run.feed(watermark=10_009)
    assert [ack for ack in run.acks() if ack[1] == "orphan"] == [("a-ack", "orphan")]
    assert run.next_timeout == 10_009


def _remembered(run: Run) -> list[tuple[int, bytes]]:
    assert run.state is not None
    return decode_state(*run.state).recent


def test_a_decided_request_leaves_eight_bytes_however_long_its_timeout_was() -> None:
    log, run = Log(), Run()
    for number in range(100):
        key = f"id-{number}"
        run.feed(log.command(60_000 * number, key, requested_acks=["a-ack"], timeout="24h", filler="x" * 1000))
        run.feed(log.ack(60_000 * number + 1, "a-ack", correlation_id=key))
    assert sum(len(packed) for _, packed in _remembered(run)) == 800
    assert run.state is not None
    assert len(run.state[1]) < 1500


@pytest.mark.parametrize("timeout", ["1s", "65s", "32m", "33m", "5h", "24h"])
def test_every_batch_searches_a_few_hundred_buckets_however_long_timeouts_are(timeout: str) -> None:
    recent = Recent(60_000)
    length = Duration.parse(timeout).milliseconds
    ends = {recent.end(_decided(start, start + length)) for start in range(0, 3 * length, max(1, length // 1000))}
    assert len(ends) <= 3 * BUCKETS_OF_A_TIMEOUT + 1


@example(0, 1_920_001)
@given(st.integers(0, 10**13), st.integers(1, 86_400_000))
def test_a_request_claims_its_id_until_its_deadline_and_memory_and_hardly_longer(start: int, timeout: int) -> None:
    end = Recent(60_000).end(_decided(start, start + timeout))
    least = start + timeout + 60_000
    assert least < end <= least + max(7_500, timeout // 128 + 1)
    if timeout <= 256 * 7_500:
        assert end == (least // 7_500 + 1) * 7_500, "as it always was"


def _decided(started_at: int, deadline: int) -> Pending:
    request: Any = SimpleNamespace(amend_ms=0)
    return Pending("c", 1, request, started_at, deadline, "r", "replies")


def test_what_was_remembered_in_this_batch_is_found() -> None:
    recent = Recent(60_000)
    end = recent.remember(_decided(0, 5_000))
    assert recent.look_up(np.array([1, 2])) == {1: end}
    recent.forget(end)
    assert recent.look_up(np.array([1, 2])) == {1: end}
    recent.forget(end + 1)
    assert recent.look_up(np.array([1, 2])) == {}
    # nor is anything left of what ended within its batch
    recent.remember(_decided(0, 5_000))
    recent.forget(end + 1)
    assert recent.dump() == []
