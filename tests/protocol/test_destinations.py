from __future__ import annotations

import pytest

from ackstream.protocol import destinations
from ackstream.protocol.destinations import NO_BATCH, Replicated, needed_position
from ackstream.protocol.json import RecordError


def test_a_record_of_a_destination() -> None:
    record = Replicated("standby", "t-1", 7)
    written = b'{"type":"replicated","destination":"standby","source":"t-1","batch":7}'
    assert destinations.write_replicated(record) == written
    assert destinations.read_replicated(written) == record


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"7", b'{"type":"replicated","destination":"standby"}'])
def test_an_unreadable_record_of_a_destination_is_refused_with_the_reason(value: bytes | None) -> None:
    with pytest.raises(RecordError, match=r"^This is no record of a destination: "):
        destinations.read_replicated(value)


@pytest.mark.parametrize(
    ("batch", "newest_with_messages", "needed"),
    [(7, 7, 7), (7, 9, 7), (7, 5, 5), (7, NO_BATCH, NO_BATCH), (0, 0, 0)],
)
def test_a_batch_without_messages_needs_those_before_it(batch: int, newest_with_messages: int, needed: int) -> None:
    assert needed_position(batch, newest_with_messages) == needed
