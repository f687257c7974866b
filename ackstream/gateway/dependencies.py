"""The parts of one gateway, which all its routes share, and their connection to Kafka."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ackstream.client import Requester
from ackstream.gateway.access.authentication import Authenticator, access_of, watched_files
from ackstream.gateway.exchange import Exchange
from ackstream.gateway.middleware.audit import Audit
from ackstream.gateway.middleware.audit_trail import recording
from ackstream.gateway.middleware.connections import check_transport
from ackstream.gateway.middleware.limits import Limits, OpenCounts
from ackstream.gateway.streaming import Streaming, UnreadTotal
from ackstream.kafka.topics import ensure_topics
from ackstream.observe.live import Live
from ackstream.observe.meter import Outcomes
from ackstream.settings.access import FileWatch
from ackstream.settings.gateway import with_access_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import HTTPConnection

    from ackstream.gateway.access.authentication import Identity
    from ackstream.protocol.ditto.access import Access
    from ackstream.settings import Settings


@dataclass(frozen=True)
class Dependencies:
    """The parts of one gateway, given to every route.

    ``authenticator`` identifies the subjects of an HTTP request or WebSocket, ``access`` decides what they may do,
    ``exchange`` sends requests and awaits replies, ``live`` feeds the page, ``streaming`` feeds WebSockets, and
    ``audit`` records who did what.
    """

    settings: Settings
    authenticator: Authenticator
    access: Access
    exchange: Exchange
    live: Live
    streaming: Streaming
    audit: Audit = field(default_factory=Audit)

    @cached_property
    def open_requests(self) -> OpenCounts:
        """The requests that are open, of those whose number a quota limits."""
        return OpenCounts(self.settings.quotas, "requests")

    @cached_property
    def limits(self) -> Limits:
        """What one subject, or one address, may have of this gateway."""
        return Limits(self.settings.gateway)

    async def admit(self, connection: HTTPConnection) -> Identity:
        """Return who sends a request or opens a WebSocket.

        :raises DittoError: as ``Authenticator.admit`` does; 429, its address or subject sends too many
        """
        with self.audit.refusals(connection):
            self.limits.arrive(connection)
        identity = await self.authenticator.admit(connection)
        with self.audit.refusals(connection, identity.subjects):
            self.limits.admit(identity.subjects[0])
        return identity

    @cached_property
    def open_sockets(self) -> OpenCounts:
        """The WebSockets and event streams that are open, of those whose number a quota limits."""
        return OpenCounts(self.settings.quotas, "sockets")

    @contextmanager
    def socket(self, connection: HTTPConnection, subjects: tuple[str, ...]) -> Iterator[None]:
        """Count a WebSocket or an event stream for the time of the block.

        :raises DittoError: 429 ``too.many.requests``: the subject, its address or its tenant has as many as it may have
        """
        with ExitStack() as opened:
            with self.audit.refusals(connection, subjects):
                opened.enter_context(self.limits.socket(connection, subjects[0]))
                opened.enter_context(self.open_sockets.one(subjects))
            yield

    @cached_property
    def unread(self) -> UnreadTotal:
        """What all clients have not read yet."""
        return UnreadTotal()


TOPICS = ("signals", "acks", "twin-acks", "replies", "ledger", "audit", "events", "declarations")
"""The topics the gateway reads and writes, without the prefix."""


@contextmanager
def connected(settings: Settings) -> Iterator[Dependencies]:
    """Connect to Kafka for the duration of the block.

    :raises SettingsError: the authentication settings are invalid
    :raises LocalError: the broker is unavailable or cannot create missing topics
    """
    gateway = with_access_file(settings.gateway)
    audit = Audit(gateway.audit)
    with Authenticator(gateway, audit.failed) as authenticator:
        access = access_of(gateway, authenticator)
        check_transport(gateway, authenticated=authenticator.required)
        ensure_topics(settings, TOPICS)
        watched = watched_files(settings.gateway, authenticator, access)
        with (
            recording(audit, settings.kafka),
            FileWatch(watched, audit.read_rules),
            _exchanging(settings) as (exchange, live, streaming),
        ):
            yield Dependencies(settings, authenticator, access, exchange, live, streaming, audit)


@contextmanager
def _exchanging(settings: Settings) -> Iterator[tuple[Exchange, Live, Streaming]]:
    """Connect what sends requests and reads what comes back."""
    gateway = settings.gateway
    with (
        Outcomes(settings.kafka) as outcomes,
        Requester(
            settings.kafka,
            default_timeout=gateway.max_timeout / 1000,
            delivery_timeout=gateway.delivery_timeout / 1000,
        ) as requester,
        Live(settings) as live,
        Streaming(settings, exchange := Exchange(requester, outcomes)) as streaming,
    ):
        yield exchange, live, streaming
