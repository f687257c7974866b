from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

import pytest

from ackstream.client.errors import NotEntitledError
from ackstream.client.publish_window import PublishWindow
from ackstream.client.storage import MemoryMessages
from ackstream.client.unacknowledged import Handlers, Kept, Outstanding
from ackstream.protocol.messages import CommandAck

if TYPE_CHECKING:
    from ackstream.client.receipts import FailedMessage, Receipt


def test_a_refusal_is_handed_over_before_the_message_is_let_go() -> None:
    kept: list[tuple[int, bytes | None, int]] = []
    messages = MemoryMessages()

    def failed(message: FailedMessage) -> None:
        kept.append((message.seq, message.value, len(messages)))

    outstanding = Outstanding(
        messages, PublishWindow(), "persisted", Handlers(None, failed, None), windowed=False, error_on_gap=False
    )
    futures: list[Future[Receipt]] = [Future(), Future()]
    for number, future in enumerate(futures, 1):
        outstanding.add(Kept(b"%d" % number, []), future, None, None)
    outstanding.acknowledged(CommandAck(ack_type="persisted", status="failure", seq=1, reason="not entitled"))
    assert kept == [(1, b"1", 2)]
    assert outstanding.unpersisted == [2]
    with pytest.raises(NotEntitledError):
        futures[0].result(0)
    assert not futures[1].done()
