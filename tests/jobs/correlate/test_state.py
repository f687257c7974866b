"""The format of the checkpoints, and the size of the state."""

from __future__ import annotations

import base64

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ackstream.jobs.correlate import pending
from ackstream.jobs.correlate.state import BUCKETS_OF_A_TIMEOUT, STATE_VERSION, Pending, Recent, decode_state
from ackstream.protocol.durations import Duration
from tests.harness.pieces import MemoryPieces
from tests.jobs.correlate.shards import Log, Run

VERSION_1 = base64.b64decode(
    "lYGkb3BlbsUCUpukb3Blbs8ecfFpP7Lo95ytb3JnLmFjbWU6bGFtcKRsaXZlpGxpdmWTrWxpdmUtcmVzcG9uc2WlYS1hY2ulYi1hY2vDw81OIISu"
    "Y29ycmVsYXRpb24taWSkb3Blbqd0aW1lb3V0ozIwc7FyZXNwb25zZS1yZXF1aXJlZMKnY2hhbm5lbKRsaXZlqGNvbW1hbmRzpm1vZGlmecCtL2F0"
    "dHJpYnV0ZXMveM0D6M1SCNkgYjcxMzBkYzdiODk3ODA1MjJjNzRkMjdhMThlNDI5YzOncmVwbGllc8QCAQKRmaVhLWFja8zKxAh7Im4iOiAxfYKu"
    "Y29ycmVsYXRpb24taWSkb3BlbrFyZXNwb25zZS1yZXF1aXJlZMLNBLAAAADC2V5FbnRpdHkgSUQgb2YgbGl2ZSByZXNwb25zZSA8b3JnLmFjbWU6"
    "b3RoZXI+IGRpZmZlcnMgZnJvbSBlbnRpdHkgSUQgb2YgY29tbWFuZCA8b3JnLmFjbWU6bGFtcD4ukZrOAAFzGAAAAs8ecfFpP7Lo96RvcGVuxANr"
    "ZXnEsXsidG9waWMiOiAib3JnLmFjbWUvbGFtcC90aGluZ3MvdHdpbi9jb21tYW5kcy9tb2RpZnkiLCAiaGVhZGVycyI6IHsiY29ycmVsYXRpb24t"
    "aWQiOiAib3BlbiIsICJyZXF1ZXN0ZWQtYWNrcyI6IFsiYS1hY2siXSwgInRpbWVvdXQiOiAiMTBzIn0sICJwYXRoIjogIi9hdHRyaWJ1dGVzL3gi"
    "LCAidmFsdWUiOiAxfcyxgJKSzRdwpGRvbmWSzVIIpG9wZW6BpWVhcmx5kZrNBdwBAAPTiaHiQP6Z3LylZWFybHnEA2tlecR1eyJ0b3BpYyI6ICJv"
    "cmcuYWNtZS9sYW1wL3RoaW5ncy90d2luL2Fja3MvYS1hY2siLCAiaGVhZGVycyI6IHsiY29ycmVsYXRpb24taWQiOiAiZWFybHkifSwgInBhdGgi"
    "OiAiLyIsICJzdGF0dXMiOiAyMDB9dYCRks0s7KVlYXJseZGSzgABB6zECMBKtWQJsRfG"
)
"""A live request ``open`` with one acknowledgement, a rejected response and a successor; a decided request ``done``; an
acknowledgement ``early`` that is held."""


def test_a_checkpoint_of_version_1_is_continued() -> None:
    log, run = Log(), Run()
    run.state = (1, VERSION_1)
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


VERSION_2 = base64.b64decode(
    "l4Gkb3BlbsUBTZukb3Blbs8ecfFpP7Lo95ytb3JnLmFjbWU6bGFtcKR0d2lupHR3aW6TrnR3aW4tcGVyc2lzdGVkpWEtYWNrpWMtYWNrw8PNTiCDrm"
    "NvcnJlbGF0aW9uLWlkpG9wZW6ndGltZW91dKMyMHOxcmVzcG9uc2UtcmVxdWlyZWTCqGNvbW1hbmRzpm1vZGlmecCtL2F0dHJpYnV0ZXMveM0D6M1S"
    "CNkgYjcxMzBkYzdiODk3ODA1MjJjNzRkMjdhMThlNDI5YzOncmVwbGllc8CSmq50d2luLXBlcnNpc3RlZMzJwIKuY29ycmVsYXRpb24taWSkb3Blbr"
    "FyZXNwb25zZS1yZXF1aXJlZMLNBLAAAADCApqlYS1hY2vMysCCrmNvcnJlbGF0aW9uLWlkpG9wZW6xcmVzcG9uc2UtcmVxdWlyZWTCzQUUAAAAwgHA"
    "kJGSzVIIpG9wZW6BpWVhcmx5kZrNBdwCAAHTiaHiQP6Z3LylZWFybHnEA2tlecTKeyJ0b3BpYyI6ICJvcmcuYWNtZS9sYW1wL3RoaW5ncy90d2luL2"
    "Vycm9ycyIsICJoZWFkZXJzIjogeyJjb3JyZWxhdGlvbi1pZCI6ICJlYXJseSJ9LCAicGF0aCI6ICIvIiwgInZhbHVlIjogeyJzdGF0dXMiOiA0MDQs"
    "ICJlcnJvciI6ICJ0aGluZ3M6dGhpbmcubm90Zm91bmQiLCAibWVzc2FnZSI6ICJJdCB3ZW50IHdyb25nLiJ9LCAic3RhdHVzIjogNDA0fczKgahyZX"
    "BseS1pZMQgMzYzOWU3NGVkMWNiZWM1MGMwYjAzZjExODk0MmM0YzaRks0s7KVlYXJseZCCpWEtYWNrkZLNAfTNdySlYi1hY2uRks0B9M13JJGazQV4"
    "AQABzx5x8Wk/suj3pG9wZW7EA2tlecR0eyJ0b3BpYyI6ICJvcmcuYWNtZS9sYW1wL3RoaW5ncy90d2luL2Fja3MvYy1hY2siLCAiaGVhZGVycyI6IH"
    "siY29ycmVsYXRpb24taWQiOiAib3BlbiJ9LCAicGF0aCI6ICIvIiwgInN0YXR1cyI6IDIwMH10gA=="
)
"""Declared ``a-ack`` and ``b-ack``; a request ``open`` with the twin's response and ``a-ack``, for which an undeclared
``c-ack`` waits; an error ``early`` of the twin that is held. Undeclared labels are refused."""


def test_a_checkpoint_of_version_2_is_continued() -> None:
    log, run = Log(), Run(refuse_undeclared=True)
    run.state = (2, VERSION_2)
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


VERSION_3 = base64.b64decode(
    "l4Gkb3BlbsUBr5ykb3Blbs8ecfFpP7Lo95ytb3JnLmFjbWU6bGFtcKR0d2lupHR3aW6TrnR3aW4tcGVyc2lzdGVkpWEtYWNrpWMtYWNrw8PNTiCBrmNvcn"
    "JlbGF0aW9uLWlkpG9wZW6oY29tbWFuZHOmbW9kaWZ5wK0vYXR0cmlidXRlcy94zQPozVII2SBiNzEzMGRjN2I4OTc4MDUyMmM3NGQyN2ExOGU0MjljM6dy"
    "ZXBsaWVzwJKarnR3aW4tcGVyc2lzdGVkzMnAxDN7ImNvcnJlbGF0aW9uLWlkIjoib3BlbiIsInJlc3BvbnNlLXJlcXVpcmVkIjpmYWxzZX3NBLAAAADCAp"
    "qlYS1hY2vMysDEM3siY29ycmVsYXRpb24taWQiOiJvcGVuIiwicmVzcG9uc2UtcmVxdWlyZWQiOmZhbHNlfc0FFAAAAMIBwJDEZXsiY29ycmVsYXRpb24t"
    "aWQiOiJvcGVuIiwidGltZW91dCI6IjIwcyIsInJlc3BvbnNlLXJlcXVpcmVkIjpmYWxzZSwiY29udGVudC10eXBlIjoiYXBwbGljYXRpb24vanNvbiJ9kZ"
    "LNUgikb3BlboGlZWFybHmRms0F3AIAAdOJoeJA/pncvKVlYXJsecQDa2V5xMp7InRvcGljIjogIm9yZy5hY21lL2xhbXAvdGhpbmdzL3R3aW4vZXJyb3Jz"
    "IiwgImhlYWRlcnMiOiB7ImNvcnJlbGF0aW9uLWlkIjogImVhcmx5In0sICJwYXRoIjogIi8iLCAidmFsdWUiOiB7InN0YXR1cyI6IDQwNCwgImVycm9yIj"
    "ogInRoaW5nczp0aGluZy5ub3Rmb3VuZCIsICJtZXNzYWdlIjogIkl0IHdlbnQgd3JvbmcuIn0sICJzdGF0dXMiOiA0MDR9zMqBqHJlcGx5LWlkxCAzNjM5"
    "ZTc0ZWQxY2JlYzUwYzBiMDNmMTE4OTQyYzRjNpGSzSzspWVhcmx5kIKlYS1hY2uRks0B9M13JKViLWFja5GSzQH0zXckkZrNBXgBAAHPHnHxaT+y6Pekb3"
    "BlbsQDa2V5xHR7InRvcGljIjogIm9yZy5hY21lL2xhbXAvdGhpbmdzL3R3aW4vYWNrcy9jLWFjayIsICJoZWFkZXJzIjogeyJjb3JyZWxhdGlvbi1pZCI6"
    "ICJvcGVuIn0sICJwYXRoIjogIi8iLCAic3RhdHVzIjogMjAwfXSA"
)
"""The same, with the headers of requests and acknowledgements as JSON text."""


VERSION_4 = base64.b64decode(
    "mICQgaVlYXJseZGazQXcAgAB04mh4kD+mdy8pWVhcmx5xANrZXnEynsidG9waWMiOiAib3JnLmFjbWUvbGFtcC90aGluZ3MvdHdpbi9lcnJvcnMiLC"
    "AiaGVhZGVycyI6IHsiY29ycmVsYXRpb24taWQiOiAiZWFybHkifSwgInBhdGgiOiAiLyIsICJ2YWx1ZSI6IHsic3RhdHVzIjogNDA0LCAiZXJyb3Ii"
    "OiAidGhpbmdzOnRoaW5nLm5vdGZvdW5kIiwgIm1lc3NhZ2UiOiAiSXQgd2VudCB3cm9uZy4ifSwgInN0YXR1cyI6IDQwNH3MyoGocmVwbHktaWTEID"
    "M2MzllNzRlZDFjYmVjNTBjMGIwM2YxMTg5NDJjNGM2kZLNLOylZWFybHmQgqVhLWFja5GSzQH0zXckpWItYWNrkZLNAfTNdySRms0FeAEAAc8ecfFp"
    "P7Lo96RvcGVuxANrZXnEdHsidG9waWMiOiAib3JnLmFjbWUvbGFtcC90aGluZ3MvdHdpbi9hY2tzL2MtYWNrIiwgImhlYWRlcnMiOiB7ImNvcnJlbG"
    "F0aW9uLWlkIjogIm9wZW4ifSwgInBhdGgiOiAiLyIsICJzdGF0dXMiOiAyMDB9dICSkZe6MS03OGExNzI0OGZkMTFkZjZkZDQ1MDkzZGLNAd8BAQDN"
    "UgjEAJA="
)
PIECE_OF_4 = base64.b64decode(
    "AQAAAAAAAAD36LI/afFxHghSAAAAAAAAAAAAAAAAAAAAAAAAAAAAAK8BAAAAAAAAnKRvcGVuzx5x8Wk/suj3nK1vcmcuYWNtZTpsYW1wpHR3aW6kdH"
    "dpbpOudHdpbi1wZXJzaXN0ZWSlYS1hY2ulYy1hY2vDw81OIIGuY29ycmVsYXRpb24taWSkb3Blbqhjb21tYW5kc6Ztb2RpZnnArS9hdHRyaWJ1dGVz"
    "L3jNA+jNUgjZIGI3MTMwZGM3Yjg5NzgwNTIyYzc0ZDI3YTE4ZTQyOWMzp3JlcGxpZXPAkpqudHdpbi1wZXJzaXN0ZWTMycDEM3siY29ycmVsYXRpb2"
    "4taWQiOiJvcGVuIiwicmVzcG9uc2UtcmVxdWlyZWQiOmZhbHNlfc0EsAAAAMICmqVhLWFja8zKwMQzeyJjb3JyZWxhdGlvbi1pZCI6Im9wZW4iLCJy"
    "ZXNwb25zZS1yZXF1aXJlZCI6ZmFsc2V9zQUUAAAAwgHAkMRleyJjb3JyZWxhdGlvbi1pZCI6Im9wZW4iLCJ0aW1lb3V0IjoiMjBzIiwicmVzcG9uc2"
    "UtcmVxdWlyZWQiOmZhbHNlLCJjb250ZW50LXR5cGUiOiJhcHBsaWNhdGlvbi9qc29uIn0="
)
"""The same, with the open request in a piece, and that piece."""


def _version_4() -> Run:
    run = Run(refuse_undeclared=True, store=MemoryPieces())
    run.store.found["1-78a17248fd11df6dd45093db"] = PIECE_OF_4
    run.state = (4, VERSION_4)
    return run


def test_requests_of_an_earlier_version_are_put_aside_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "HOT_BYTES", 0)
    monkeypatch.setattr(pending, "TOUCHED_BYTES", 0)
    run = Run(refuse_undeclared=True, store=MemoryPieces())
    run.state = (3, VERSION_3)
    run.feed()
    assert list(run.store.found.values()) == [PIECE_OF_4]


VERSION_5 = base64.b64decode(
    "mIGkb3BlbsUBBJ2kb3Blbs8ecfFpP7Lo95ytb3JnLmFjbWU6bGFtcKR0d2lupHR3aW6RpWEtYWNrw8PNTiCBrmNvcnJlbGF0aW9uLWlkpG9wZW6oY2"
    "9tbWFuZHOmbW9kaWZ5wK0vYXR0cmlidXRlcy94zQPozVII2SBiNzEzMGRjN2I4OTc4MDUyMmM3NGQyN2ExOGU0MjljM6dyZXBsaWVzwJDAkMRleyJj"
    "b3JyZWxhdGlvbi1pZCI6Im9wZW4iLCJ0aW1lb3V0IjoiMjBzIiwicmVzcG9uc2UtcmVxdWlyZWQiOmZhbHNlLCJjb250ZW50LXR5cGUiOiJhcHBsaW"
    "NhdGlvbi9qc29uIn0DkZLNUgikb3BlboCQkICQkpCQ"
)
"""A request ``open`` that awaits ``a-ack``, with its reply in partition 3."""


VERSION_6 = base64.b64decode(
    "lZKRk88ecfFpP7Lo981SCMUBBJ2kb3Blbs8ecfFpP7Lo95ytb3JnLmFjbWU6bGFtcKR0d2lupHR3aW6RpWEtYWNrw8PNTiCBrmNvcnJlbGF0aW9uLW"
    "lkpG9wZW6oY29tbWFuZHOmbW9kaWZ5wK0vYXR0cmlidXRlcy94zQPozVII2SBiNzEzMGRjN2I4OTc4MDUyMmM3NGQyN2ExOGU0MjljM6dyZXBsaWVz"
    "wJDAkMRleyJjb3JyZWxhdGlvbi1pZCI6Im9wZW4iLCJ0aW1lb3V0IjoiMjBzIiwicmVzcG9uc2UtcmVxdWlyZWQiOmZhbHNlLCJjb250ZW50LXR5cG"
    "UiOiJhcHBsaWNhdGlvbi9qc29uIn0DkpCQkpGT04mh4kD+mdy8zSyIxJSazQV4AQAA04mh4kD+mdy8pWVhcmx5xANrZXnEdXsidG9waWMiOiAib3Jn"
    "LmFjbWUvbGFtcC90aGluZ3MvdHdpbi9hY2tzL2EtYWNrIiwgImhlYWRlcnMiOiB7ImNvcnJlbGF0aW9uLWlkIjogImVhcmx5In0sICJwYXRoIjogIi"
    "8iLCAic3RhdHVzIjogMjAwfXWAkpCQkpCSkJCQgA=="
)
"""The same, and a record ``early`` that is held."""


def test_a_state_is_encoded_as_this_version_always_was() -> None:
    run = Run(partitions={"replies": 4})
    chosen = {"kafka_replyPartition": (3).to_bytes(4, "big")}
    asking = Log().command(1000, "open", requested_acks=["a-ack"], timeout="20s")
    run.feed(msgspec.structs.replace(asking, headers=chosen), Log().ack(1400, "a-ack", correlation_id="early"))
    assert run.state == (STATE_VERSION, VERSION_6)


def test_an_open_request_keeps_the_partition_for_its_reply_and_an_earlier_one_has_none() -> None:
    run, before = Run(partitions={"replies": 4}), _version_4()
    run.state = (5, VERSION_5)
    run.feed(Log().ack(1350, "a-ack", correlation_id="open"))
    before.feed(Log().claim(1350, "c-ack"))
    assert [reply["in-partition"] for reply in [*run.replies(), *before.replies()]] == [3, None]


@pytest.mark.parametrize(("version", "blob"), [(1, VERSION_1), (2, VERSION_2), (3, VERSION_3), (5, VERSION_5)])
def test_a_state_of_an_earlier_version_becomes_one_of_this_version(version: int, blob: bytes) -> None:
    run = Run(refuse_undeclared=version in (2, 3))
    run.state = (version, blob)
    run.feed()
    assert run.state is not None
    assert run.state[0] == STATE_VERSION
    now, before = decode_state(*run.state), decode_state(version, blob)
    assert now == before
    assert (bool(now.declared), bool(now.undeclared)) == (version in (2, 3), version in (2, 3))


def test_the_same_requests_are_answered_alike_whichever_version_their_state_has() -> None:
    log = Log()
    ending = [log.claim(1350, "c-ack"), log.command(1600, "early")]
    replies = [_version_4().feed(*ending)]
    for version, blob in ((2, VERSION_2), (3, VERSION_3)):
        run = Run(refuse_undeclared=True)
        run.state = (version, blob)
        replies.append(run.feed(*ending))
    assert replies[0] == replies[1] == replies[2]


@pytest.mark.parametrize("version", [0, STATE_VERSION + 1])
def test_a_state_of_another_version_is_refused(version: int) -> None:
    run = Run()
    run.state = (version, VERSION_1)
    with pytest.raises(ValueError, match=f"The state has version {version}; this release reads versions 1"):
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
    return Pending("c", 1, None, started_at, deadline, "r", "replies")  # type: ignore[arg-type]


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
