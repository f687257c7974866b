from __future__ import annotations

import pytest

from ackstream.client.errors import NACK_CODES
from tests.conformance.models.admission import Admission, admit


@pytest.mark.parametrize(
    ("queues", "reject", "verdict"),
    [
        ({"a": "ok", "b": "ok"}, "always", Admission(None, ("a", "b"))),
        ({"a": "full", "b": "ok"}, "when-queue-enabled", Admission("SPOOL_OVER_QUOTA", ())),
        ({"a": "full", "b": "ok"}, "never", Admission(None, ("b",))),
        ({"a": "disabled", "b": "ok"}, "when-queue-enabled", Admission(None, ("b",))),
        ({"a": "ok", "b": "disabled"}, "always", Admission("QUEUE_SHUTDOWN", ())),
        ({"a": "disabled", "b": "full"}, "when-queue-enabled", Admission("SPOOL_OVER_QUOTA", ())),
        ({"a": "full"}, "never", Admission(None, ())),
    ],
)
def test_a_message_is_taken_by_all_queues_or_by_none(queues, reject, verdict) -> None:
    assert admit(queues, reject, reject_no_match=True) == verdict
    assert verdict.reason is None or verdict.reason in NACK_CODES


@pytest.mark.parametrize(("reject", "reason"), [(True, "NO_SUBSCRIPTION_MATCH"), (False, None)])
def test_a_message_nobody_subscribes_to_is_refused_or_gone(reject: bool, reason: str | None) -> None:  # noqa: FBT001
    assert admit({}, "always", reject_no_match=reject) == Admission(reason, ())
