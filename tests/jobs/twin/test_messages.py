from __future__ import annotations

import msgspec
import pytest

from ackstream.jobs.twin.batch import search_persisted
from ackstream.protocol.ditto.acknowledgements import read_acks
from ackstream.protocol.ditto.envelopes import decode


@pytest.mark.parametrize(("visible", "status", "weak"), [(True, 204, False), (False, 200, True), (None, 500, False)])
def test_search_persisted_is_an_aggregate_that_correlate_takes(
    *, visible: bool | None, status: int, weak: bool
) -> None:
    message = search_persisted("a:b", "c-1", "reply-1", visible=visible)
    assert message.reply_id == "reply-1"
    written = decode(message.value)
    (ack,) = read_acks(written)
    assert (ack.label, ack.status, ack.weak, ack.payload) == ("search-persisted", status, weak, msgspec.UNSET)
    assert (str(written.topic), written.headers["correlation-id"]) == ("a/b/things/twin/acks", "c-1")
