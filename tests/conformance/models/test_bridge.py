from __future__ import annotations

import pytest

from ackstream.client.readers.qos import ReaderQos
from ackstream.protocol.readers import AckInterval, AppAckConf, ApplicationAcknowledged
from tests.conformance.models.bridge import EndToEnd, endpoints


@pytest.mark.parametrize(
    ("persistence", "direct", "told"),
    [
        (False, True, ("writer",)),
        (True, True, ("writer", "persistence")),
        (True, False, ("persistence",)),
    ],
)
def test_who_hears_of_an_acknowledgement(persistence: bool, direct: bool, told: tuple[str, ...]) -> None:  # noqa: FBT001
    assert endpoints(persistence=persistence, direct_communication=direct) == told


def test_the_named_extra_carries_the_last_readers_acknowledgement_upstream() -> None:
    extra = EndToEnd(ReaderQos(kind="application-explicit", max_response_length=8), "delivered", "w1")
    extra.forwarded(10, 1)
    extra.forwarded(12, 2)
    extra.acknowledged(ApplicationAcknowledged("bridge", "S", 2, 3, None, b"ok"), 900)
    app_ack = extra.due(900)
    assert app_ack is not None
    assert (app_ack.reader, app_ack.role, app_ack.writer) == ("delivered", "delivered", "w1")
    assert app_ack.intervals == (AckInterval(12, 12, b"ok"),)
    assert extra.deadline == 5_900
    assert extra.confirm(AppAckConf("delivered", "w1", 1, 1))
    assert (extra.deadline, extra.due(9_000)) == (None, None)
