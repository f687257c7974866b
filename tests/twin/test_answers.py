from __future__ import annotations

import msgspec
import pytest

from ackstream.protocol.acknowledgements import read_acks
from ackstream.protocol.envelopes import decode, encode
from ackstream.twin.answers import search_persisted


@pytest.mark.parametrize(("visible", "status", "weak"), [(True, 204, False), (False, 200, True), (None, 500, False)])
def test_search_persisted_is_an_aggregate_that_correlate_takes(
    *, visible: bool | None, status: int, weak: bool
) -> None:
    written = decode(encode(search_persisted("a:b", "c-1", visible=visible)))
    (ack,) = read_acks(written)
    assert (ack.label, ack.status, ack.weak, ack.payload) == ("search-persisted", status, weak, msgspec.UNSET)
    assert (str(written.topic), written.headers["correlation-id"]) == ("a/b/things/twin/acks", "c-1")
