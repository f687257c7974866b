from __future__ import annotations

import pytest

from ackstream.protocol import stored
from ackstream.protocol.stored import Stored, StoredError


def test_the_shape_of_a_record() -> None:
    record = Stored("p1", 3, 9, 7, ((3, 4), (6, 6)))
    written = b'{"type":"stored","client":"p1","first":3,"last":9,"batch":7,"refused":[[3,4],[6,6]]}'
    assert stored.write(record) == written
    assert stored.read(written) == record
    assert stored.read(b'{"type":"stored","client":"p1","first":3,"last":9,"batch":7}').refused == ()


@pytest.mark.parametrize(
    "value", [None, b"", b"\xff", b"{}", b'{"type":"stored","client":"p1"}', b'{"type":"app_ack"}']
)
def test_what_is_no_record_is_said(value: bytes | None) -> None:
    with pytest.raises(StoredError, match=r"^This is no record of stored messages: "):
        stored.read(value)
