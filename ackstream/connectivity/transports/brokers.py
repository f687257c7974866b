"""Message brokers: a connection, a source that the broker pushes to, and a publisher that waits for confirmations."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

from ackstream.connectivity.transports import transport
from ackstream.connectivity.transports.transport import Confirm, ExternalMessage, OutgoingMessage, Receiver
from ackstream.errors import UnreachableError
from ackstream.kafka.clients import CLOSE_SECONDS
from ackstream.protocol.ditto.connection_rules import Settlement
from ackstream.protocol.ditto.correlation_ids import Latest
from ackstream.protocol.errors import UNAVAILABLE
from ackstream.settings import Kafka
from ackstream.settings.connections import Source

log = logging.getLogger(__name__)


def unreachable(connection: Any, reason: str | BaseException) -> UnreachableError:
    """Report that the broker of a connection does not respond as expected."""
    protocol, host = ("MQTT", "") if connection.type.startswith("mqtt") else ("AMQP", "virtual_host, ")
    why = reason if isinstance(reason, str) else repr(reason)
    return UnreachableError(
        f"The connection {connection.id} cannot use the {protocol} broker at {connection.host}:{connection.port} "
        f"({why}): start the broker, or correct connections.host, port, tls, {host}username or password."
    )


class RejectedError(Exception):
    """The broker does not take a message, now or for good."""


class BrokerLink(ABC):
    """A connection to a broker, used by one thread: ``turn`` exchanges data; ``reason`` says why it has ended."""

    def __init__(self, connection: Any) -> None:
        self.reason: BaseException | str | None = None
        self._settings = connection

    def wait(self, until: Callable[[], bool], seconds: float = transport.CONNECT_SECONDS) -> None:
        """Exchange data until a condition holds; after ``seconds`` disconnect and raise ``UnreachableError``."""
        limit = time.monotonic() + seconds
        try:
            while not until():
                if time.monotonic() > limit:
                    raise unreachable(self._settings, "it did not answer in time")
                self.turn(transport.TURN_SECONDS)
        except UnreachableError:
            self.close()
            raise

    def turn(self, seconds: float) -> None:
        """Exchange data, for at most ``seconds``; raise ``UnreachableError`` from the client's error if it is lost."""
        self._exchange(seconds)
        if self.reason is not None:
            cause = self.reason if isinstance(self.reason, BaseException) else None
            raise unreachable(self._settings, self.reason) from cause

    @abstractmethod
    def _exchange(self, seconds: float) -> None:
        """Exchange data, waiting at most ``seconds`` for it; note the reason if the connection is lost."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect within a few seconds; the broker delivers unsettled messages again."""


POLL_SECONDS = 0.02

TAKE_SECONDS = 1.0
"""Maximum time between exchanges of data, so that heartbeats are sent while Kafka is slow."""


class PushedSource(transport.MessageSource):
    """A source of a broker that pushes messages, up to the limit in flight."""

    def __init__(self, connection: Any, index: int, source: Source, _own: Kafka, intake: Receiver) -> None:
        super().__init__(f"{connection.id}-{index}", intake)
        self._settings = connection
        self._source = source
        # once it is open
        self._link: Any = None
        # of the messages in flight, that of each address
        self._share = max(1, source.max_in_flight // len(source.addresses))
        # the delivery, its message, and how often it was delivered before
        self._arrived: deque[tuple[Any, ExternalMessage, int]] = deque()

    @abstractmethod
    def _settle(self, delivery: Any, settlement: Settlement) -> None:
        """Settle a delivery as the protocol does; a no-op if the broker settled it when sending."""

    def _taking(self, delivery: Any) -> None:
        """Settle a delivery that is never redelivered; called before its message is taken."""

    def _turn(self) -> None:
        # reading appends to ``_arrived``; without it the broker is held back
        if sum(len(message.payload) for _, message, _ in self._arrived) < transport.MAX_BYTES:
            self._link.turn(POLL_SECONDS)
        else:
            self._intake.turn(POLL_SECONDS)
        until = time.monotonic() + TAKE_SECONDS
        while self._arrived and self._intake.room and time.monotonic() < until:
            delivery, message, delivered = self._arrived.popleft()
            self._taking(delivery)
            self._intake.take(message, partial(self._settle, delivery), delivered=delivered)
        self._intake.turn()

    def _disconnect(self) -> None:
        if self._link is not None:
            self._link.close()


DELIVERY_SECONDS = 30.0
"""A system or address that has not stored a message for this time counts as blocked."""
REMEMBERED = 10_000
"""Limit of remembered exchanges and topics that took a message, and of addresses that refused one."""


@dataclass(eq=False)
class Unconfirmed:
    """A message to send, and the callback that reports its result."""

    message: OutgoingMessage
    done: Confirm
    in_doubt: bool = False

    @property
    def exchange(self) -> str:
        """The exchange of its address, ``exchange/routing-key``; with AMQP 1.0 as good as the address."""
        return self.message.address.partition("/")[0]


class Confirms:
    """Decides which message to send next to a broker that ends a channel or link because of a message.

    The reason of the broker names no message: all unconfirmed ones are in doubt, and it has stored most of them. Only a
    message that was sent alone is known to be the reason: the first one to an exchange is, the next one to an address
    that refused one, and every message that was in doubt.
    """

    def __init__(self) -> None:
        self._waiting: deque[Unconfirmed] = deque()
        # by delivery tag, in order
        self._open: dict[int | str, Unconfirmed] = {}
        self._open_alone = False
        # the last confirm
        self._moved_at = 0.0
        self._proven: Latest[str, None] = Latest(REMEMBERED)
        self._refusing: Latest[str, None] = Latest(REMEMBERED)

    @property
    def idle(self) -> bool:
        """Whether every message is confirmed."""
        return not (self._waiting or self._open)

    @property
    def sending(self) -> bool:
        """Whether a message is on its way."""
        return bool(self._open)

    def overdue(self, now: float) -> bool:
        """Return whether messages are unconfirmed, and none was confirmed for too long."""
        return not self.idle and now > self._moved_at + DELIVERY_SECONDS

    def add(self, message: OutgoingMessage, done: Confirm) -> None:
        """Accept a message to send."""
        if self.idle:
            self._moved_at = time.monotonic()
        self._waiting.append(Unconfirmed(message, done))

    def take(self) -> Unconfirmed | None:
        """Return the next message if it may be sent now; then call :meth:`sent`, unless it cannot be."""
        if not self._waiting:
            return None
        first = self._waiting[0]
        alone = first.in_doubt or first.exchange not in self._proven or first.message.address in self._refusing
        if self._open and (alone or self._open_alone):
            return None
        self._open_alone = alone
        return self._waiting.popleft()

    def sent(self, tag: int | str, sending: Unconfirmed) -> None:
        """Record a message as sent."""
        self._open[tag] = sending

    def tags(self, tag: int, *, multiple: bool) -> list[int]:
        """Return the delivery tags, numbers here, that a confirm is about."""
        numbers = (each for each in self._open if isinstance(each, int))
        return list(takewhile(lambda each: each <= tag, numbers)) if multiple else [tag]

    def confirm(self, tag: int | str, *, stored: bool) -> Unconfirmed | None:
        """Return the message that the broker answered, with a positive confirm if ``stored``."""
        sending, self._moved_at = self._open.pop(tag, None), time.monotonic()
        if sending is not None and stored:
            self._proven[sending.exchange] = None
            self._refusing.pop(sending.message.address, None)
        return sending

    def channel_closed(self) -> Unconfirmed | None:
        """Return the message for which the broker ended the channel or link, if known; the others are sent again."""
        left = list(self._open.values())
        self._open.clear()
        if len(left) == 1:
            self._refusing[left[0].message.address] = None
            self._proven.pop(left[0].exchange, None)
            return left[0]
        for sending in reversed(left):
            sending.in_doubt = True
            self._waiting.appendleft(sending)
        return None

    def give_up(self) -> list[Unconfirmed]:
        """Return the unconfirmed messages, in order, and forget them."""
        left = [*self._open.values(), *self._waiting]
        self._open.clear()
        self._waiting.clear()
        return left


class ConfirmingPublisher(transport.TargetPublisher):
    """Publishes in a thread of its own; reports messages confirmed or refused, and those left when it disconnects."""

    _link: BrokerLink

    def __init__(self, name: str) -> None:
        """Prepare the thread, which is started once the connection is open."""
        self._lock = threading.Lock()
        # why the connection ended, since the thread has noticed that
        self._error: BaseException | None = None
        # accepted in any thread, sent in that of the publisher
        self._accepted: deque[tuple[OutgoingMessage, Confirm]] = deque()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ackstream-{name}", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the connection to the broker is open."""
        return self._error is None

    def publish(self, message: OutgoingMessage, done: Confirm) -> None:
        """Send a message; see :class:`.TargetPublisher`."""
        with self._lock:
            error = self._error
            if error is None:
                self._accepted.append((message, done))
                self._wake()
        if error is not None:
            done(transport.not_published(error, UNAVAILABLE))

    def close(self) -> None:
        """Wait for confirmations for at most 5 s, then disconnect."""
        self._closing.set()
        with self._lock:
            if self._error is None:
                self._wake()
        # it may still report messages that are not confirmed
        self._thread.join(3 * CLOSE_SECONDS)

    def _wake(self) -> None:
        """Have the thread send accepted messages now, if it waits longer for data of the broker."""

    @abstractmethod
    def _unconfirmed(self) -> Sequence[Confirms]:
        """Return the messages that were sent, or wait to be sent, over each channel or link."""

    def _turn(self) -> None:
        """Exchange data with the broker, and send accepted messages unless :meth:`_wake` does that."""
        self._link.turn(transport.TURN_SECONDS)

    def _run(self) -> None:
        error: BaseException = ConnectionError("The connection was closed.")
        try:
            while not self._closing.is_set():
                self._turn()
            until = time.monotonic() + CLOSE_SECONDS
            while (self._accepted or not all(each.idle for each in self._unconfirmed())) and time.monotonic() <= until:
                self._turn()
        except UnreachableError as lost:
            error = lost.__cause__ or lost
        except Exception as unexpected:
            log.exception("A thread that publishes died.")
            error = unexpected
        with self._lock:
            self._error = error
            left = [sent.done for each in self._unconfirmed() for sent in each.give_up()]
            left += [done for _, done in self._accepted]
        for done in left:
            done(transport.not_published(error, UNAVAILABLE))
        self._disconnect()

    def _disconnect(self) -> None:
        self._link.close()
