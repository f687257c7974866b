from __future__ import annotations

import pytest

from ackstream.protocol import messages
from ackstream.protocol.messages import Replicated, ReplicatedError


def test_the_shape_of_a_record() -> None:
    record = Replicated("standby", "t-1", 7)
    written = b'{"type":"replicated","destination":"standby","source":"t-1","batch":7}'
    assert messages.write_replicated(record) == written
    assert messages.read_replicated(written) == record


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"7", b'{"type":"replicated","destination":"standby"}'])
def test_what_is_no_record_is_said(value: bytes | None) -> None:
    with pytest.raises(ReplicatedError, match=r"^This is no record of a destination: "):
        messages.read_replicated(value)
