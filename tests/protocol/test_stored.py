from __future__ import annotations

import pytest

from ackstream.protocol import messages
from ackstream.protocol.messages import StoredError, StoredRange


def test_the_shape_of_a_record() -> None:
    record = StoredRange("p1", 3, 9, 7, ((3, 4), (6, 6)))
    written = b'{"type":"stored","client":"p1","first":3,"last":9,"batch":7,"refused":[[3,4],[6,6]]}'
    assert messages.write_stored(record) == written
    assert messages.read_stored(written) == record
    assert messages.read_stored(b'{"type":"stored","client":"p1","first":3,"last":9,"batch":7}').refused == ()


@pytest.mark.parametrize(
    "value", [None, b"", b"\xff", b"{}", b'{"type":"stored","client":"p1"}', b'{"type":"app_ack"}']
)
def test_what_is_no_record_is_said(value: bytes | None) -> None:
    with pytest.raises(StoredError, match=r"^This is no record of stored messages: "):
        messages.read_stored(value)
