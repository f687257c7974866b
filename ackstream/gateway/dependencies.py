"""What every route is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ackstream.gateway.authentication import Authenticator
    from ackstream.gateway.exchange import Exchange
    from ackstream.gateway.live import Live
    from ackstream.gateway.streaming import Streaming
    from ackstream.protocol.access import Access
    from ackstream.settings import Settings


@dataclass(frozen=True)
class Dependencies:
    """The parts of one gateway.

    A route asks ``authenticator.identify(connection)`` for the subjects (of an HTTP request or a WebSocket), ``access``
    whether they may do it, and ``exchange`` for the answer. ``live`` is what the page shows, ``streaming`` what
    WebSockets hear; ``None``: there is none.
    """

    settings: Settings
    authenticator: Authenticator
    access: Access
    exchange: Exchange
    live: Live | None = None
    streaming: Streaming | None = None
