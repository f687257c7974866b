"""The format of the checkpoints, and the size of the state."""

from __future__ import annotations

import base64

import pytest

from ackstream.jobs.correlate.state import STATE_VERSION, decode_state
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


def test_a_state_is_encoded_as_this_version_always_was() -> None:
    run = Run()
    run.state = (1, VERSION_1)
    run.feed()
    assert run.state == (STATE_VERSION, VERSION_1)


@pytest.mark.parametrize("version", [0, STATE_VERSION + 1])
def test_a_state_of_another_version_is_refused(version: int) -> None:
    run = Run()
    run.state = (version, VERSION_1)
    with pytest.raises(ValueError, match=f"The state has version {version}; this release reads version 1"):
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
    assert (len(state.open), len(state.held)) == (1, 1)
    assert len(state.deadlines) <= 2
    assert len(state.hold_ends) <= 2
