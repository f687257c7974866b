from __future__ import annotations

import pytest

from ackstream.protocol import replicated
from ackstream.protocol.replicated import Replicated, ReplicatedError


def test_the_shape_of_a_record() -> None:
    record = Replicated("standby", "t-1", 7)
    written = b'{"type":"replicated","destination":"standby","source":"t-1","batch":7}'
    assert replicated.write(record) == written
    assert replicated.read(written) == record


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"7", b'{"type":"replicated","destination":"standby"}'])
def test_what_is_no_record_is_said(value: bytes | None) -> None:
    with pytest.raises(ReplicatedError, match=r"^This is no record of a destination: "):
        replicated.read(value)
