"""A bridge between two writers, and who hears of an acknowledgement.

A bridge is a reader of its own: it acknowledges upstream what it has stored downstream, and its own readers acknowledge
to it (brokers.md R23, Connext 31.12.8). Whoever must know of the last reader asks for a label of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from ackstream.client.readers.reports import AppAcks

if TYPE_CHECKING:
    from ackstream.client.readers.qos import ReaderQos
    from ackstream.protocol.readers import AppAck, AppAckConf, ApplicationAcknowledged

Endpoint: TypeAlias = Literal["writer", "persistence"]


def endpoints(*, persistence: bool, direct_communication: bool = True) -> tuple[Endpoint, ...]:
    """Return who gets a reader's acknowledgements.

    With a persistence service that the reader meets as a peer, writer and service alike, so that the service does not
    send what is acknowledged; without direct communication the reader knows the service only (R22).
    """
    if not persistence:
        return ("writer",)
    return ("writer", "persistence") if direct_communication else ("persistence",)


class EndToEnd:
    """The named extra of a bridge: what a reader downstream acknowledges is acknowledged upstream under a label.

    The label is the reader's name there, so the publisher can require it as a role like any other.
    """

    def __init__(self, qos: ReaderQos, label: str, writer: str, *, epoch: int = 1) -> None:
        """Carry acknowledgements to ``writer``, upstream."""
        self._app_acks = AppAcks(qos, label, writer, epoch=epoch, role=label)
        self._upstream: dict[int, int] = {}

    def forwarded(self, upstream: int, downstream: int) -> None:
        """Note under which number a sample went on."""
        self._upstream[downstream] = upstream

    def acknowledged(self, event: ApplicationAcknowledged, now: int) -> None:
        """Take an event of the writer downstream; what did not come from upstream is none of its business."""
        for seq in range(event.first, event.last + 1):
            upstream = self._upstream.pop(seq, None)
            if upstream is not None:
                self._app_acks.acknowledge(upstream, upstream, now, response=event.response, auto=event.auto)

    def due(self, now: int) -> AppAck | None:
        """Return what to send upstream now; ask again at :attr:`deadline`."""
        return self._app_acks.due(now)

    @property
    def deadline(self) -> int | None:
        """When :meth:`due` must be asked again."""
        return self._app_acks.deadline

    def confirm(self, conf: AppAckConf) -> bool:
        """Take a confirmation from upstream."""
        return self._app_acks.confirm(conf)
