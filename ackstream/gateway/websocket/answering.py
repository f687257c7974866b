"""Which signals the client of a WebSocket may answer: those that it was sent.

A client that knows the correlation-id of a request could otherwise answer it, or end it, in the place of the party that
was asked. What passes here correlate still compares with the request: its thing, its channel, its label.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ackstream.gateway.errors import answer_not_expected
from ackstream.protocol.correlation_ids import ForwardedIds
from ackstream.protocol.ditto.headers import CORRELATION_ID
from ackstream.protocol.ditto.permissions import check_answer
from ackstream.protocol.ditto.signal_defaults import STREAM_TIMEOUT_MS

if TYPE_CHECKING:
    from ackstream.gateway.websocket.incoming import Incoming
    from ackstream.protocol.ditto.access import Access
    from ackstream.protocol.ditto.subscriptions import Publication
    from ackstream.settings import Correlate


class Answering:
    """The signals that one client was sent and may still answer."""

    def __init__(self, access: Access, limits: Correlate) -> None:
        """Start with none."""
        self._access = access
        self._limits = limits
        self._sent = ForwardedIds(STREAM_TIMEOUT_MS / 1000)

    def send(self, signal: Publication) -> str:
        """Return the correlation-id under which the client is sent a signal that it may answer."""
        limits = self._limits
        timeout = min(signal.timeout_ms or STREAM_TIMEOUT_MS, limits.max_timeout)
        # for so long that an answer which is late has a row that says so
        return self._sent.issue(signal.correlation_id, time.monotonic(), (timeout + limits.recent_memory) / 1000)

    def admit(self, incoming: Incoming, subjects: tuple[str, ...]) -> None:
        """Admit an answer, whose correlation-id becomes that of the signal, or a live event.

        A live command or message that came to the client on another way needs what a live event needs: the right to
        write.

        :raises DittoError: 404, the client may not send it, or was not sent what it acknowledges
        """
        envelope = incoming.envelope
        identity = str(envelope.headers[CORRELATION_ID])
        original = None if incoming.what == "event" else self._sent.original(identity, time.monotonic())
        ack = envelope.topic.criterion == "acks"
        check_answer(self._access, subjects, envelope, event=original is None and not ack)
        if original is None and ack:
            raise answer_not_expected(identity)
        envelope.headers[CORRELATION_ID] = original or identity
