"""The Kafka side of connections: requests go to ``signals``, answers to ``acks``, unusable ones to ``dead-letters``."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import msgspec

from ackstream.client import NotSentError, Reply, Requester, RequestTimeout, fields_of
from ackstream.connectivity.transports.transport import OF_RECORD, ExternalMessage
from ackstream.kafka import clients
from ackstream.kafka.clients import Closing
from ackstream.observe.outcomes import Outcomes, RequestOutcome
from ackstream.protocol.ditto.acknowledgements import read_issued
from ackstream.protocol.ditto.connection_rules import SettlementAnswer
from ackstream.protocol.ditto.correlation_ids import Latest, suffixed
from ackstream.protocol.ditto.envelopes import Envelope, encode
from ackstream.protocol.errors import DittoError, shown
from ackstream.protocol.ledger import DEAD_LETTER_BYTES
from ackstream.protocol.record_headers import CORRELATION_ID, REASON

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from ackstream.connectivity.inbound import InboundRequest
    from ackstream.settings import Kafka

    Received = Callable[["SettlementAnswer | SourceFailure | Exception | None"], None]
    Replied = Callable[[Envelope], None]

log = logging.getLogger(__name__)

EXTRA_TIMEOUT = "20s"
"""How long to wait for the twin to return extra fields."""

STORED = SettlementAnswer(())
"""The broker has the request, and no answer is awaited."""


class SourceFailure(msgspec.Struct, frozen=True):
    """The status of an error received in place of an answer."""

    status: int


class System(Closing):
    """Sends the signals of sources; thread-safe. Callbacks run in client threads."""

    def __init__(self, kafka: Kafka) -> None:
        self._identities = Identities()
        self._lock = threading.Lock()
        self._acks, self._dead_letters = kafka.topic("acks"), kafka.topic("dead-letters")
        with ExitStack() as stack:
            self._requester = stack.enter_context(Requester(kafka))
            self.extra = fields_of(self._requester, EXTRA_TIMEOUT)
            self._outcomes = stack.enter_context(Outcomes(kafka))
            self._producer = clients.connect_producer(kafka, self._acks)
            stack.callback(clients.close_producer, self._producer)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Flush accepted records for at most 5 s and drop open waits."""
        self._stack.close()

    def ask(self, asked: InboundRequest, *, redelivered: bool, replied: Replied, received: Received) -> None:
        """Send a request, perhaps ``redelivered``; ``replied`` is called with its reply, if one is required.

        :param received: called once: with the answer for the requesting message, with ``None`` if no answer will
            arrive, or with the error of a request that can never be sent; if no answer is awaited, as soon as the
            broker has the request
        """
        request = asked.request
        with self._lock:
            identity = self._identities.take(asked.envelope.headers[CORRELATION_ID], redelivered=redelivered)
        if not request.response_required:
            self._publish(asked.envelope, identity, received, waits=request.waits_for_acks)
            return
        stored = None if request.waits_for_acks else partial(received, STORED)
        future = self._requester.send(asked.envelope, correlation_id=identity, on_stored=stored)
        future.add_done_callback(partial(_replied, asked, replied, received))

    def relay(self, envelope: Envelope, received: Received) -> None:
        """Forward an acknowledgement or a live response; ``received`` as for :meth:`ask`."""
        clients.send(
            self._producer,
            lambda _metadata: received(STORED),
            partial(_not_sent, received),
            self._acks,
            value=encode(envelope),
            key=envelope.topic.thing_id.encode(),
            headers=[(CORRELATION_ID, str(envelope.headers[CORRELATION_ID]).encode())],
        )

    def give_up(
        self,
        message: ExternalMessage,
        reason: str,
        received: Received,
        answer: SettlementAnswer | SourceFailure = STORED,
    ) -> None:
        """Store an unusable message as a dead letter; ``received`` gets ``answer``, or ``None`` if that fails."""
        log.warning("A message is a dead letter (%s): %s", message.identity, reason)

        def failed(error: BaseException) -> None:
            log.warning("A dead letter was not stored (%s): %s", message.identity, error)
            received(None)

        clients.send(
            self._producer,
            lambda _metadata: received(answer),
            failed,
            self._dead_letters,
            value=message.payload[:DEAD_LETTER_BYTES],
            key=message.headers.get("kafka.key", message.identity).encode()[:DEAD_LETTER_BYTES],
            headers=[(REASON, f"{shown(reason)} ({shown(message.identity)})".encode())],
        )

    def _publish(self, envelope: Envelope, identity: str, received: Received, *, waits: bool) -> None:
        """Send a request without reply; if acknowledgements are awaited, its outcome is read from the ledger."""
        waiting = ExitStack()
        if waits:
            outcome = waiting.enter_context(self._outcomes.expect(identity, envelope.topic.thing_id))
            outcome.add_done_callback(partial(_decided, waiting, received))

        def published(future: Future[Any]) -> None:
            error = future.exception()
            if error is not None:
                waiting.close()
                _not_sent(received, error)
            elif not waits:
                received(STORED)

        try:
            stored = self._requester.publish(envelope, correlation_id=identity)
        except BaseException:
            waiting.close()
            raise
        stored.add_done_callback(published)


def verdict(answer: Envelope, *, completed_by: str, live: bool) -> SettlementAnswer | SourceFailure:
    """Return the meaning of an answer, or of the end of the wait (``completed_by``), for settling its message."""
    if answer.topic.criterion == "acks":
        return SettlementAnswer(statuses(answer))
    status = answer.status or 500
    if completed_by != "response":
        return SourceFailure(status)
    # any response to a live command or message counts as processed
    return SettlementAnswer((status,), live=live)


def statuses(answer: Envelope) -> tuple[int, ...]:
    """Return the statuses of an acknowledgement or an aggregate."""
    return tuple(ack.status for ack in read_issued(answer, built_in=True))


def _replied(asked: InboundRequest, replied: Replied, received: Received, future: Future[Reply]) -> None:
    request = asked.request
    error = future.exception()
    if error is not None:
        # without awaited acknowledgements, the request was settled when the broker stored it
        if request.waits_for_acks or not isinstance(error, RequestTimeout):
            _not_sent(received, error)
        else:
            log.warning("%s", error)
        return
    reply = future.result()
    answer: SettlementAnswer | SourceFailure | None = None
    try:
        answer = verdict(reply.envelope, completed_by=reply.completed_by, live=request.live)
        replied(reply.envelope)
    except DittoError as malformed:
        log.warning("The reply to %s cannot be read: %s", reply.correlation_id, malformed)
    except Exception:
        # the message is settled nevertheless: another delivery would have the same reply
        log.exception("The reply to %s was not passed on.", reply.correlation_id)
    if request.waits_for_acks:
        received(answer)


def _decided(waiting: ExitStack, received: Received, future: Future[RequestOutcome]) -> None:
    waiting.close()
    outcome = future.result()
    if outcome.completed_by in ("error", "invalid"):
        received(SourceFailure(outcome.status))
    else:
        received(SettlementAnswer(tuple(ack.status for ack in outcome.entries)))


def _not_sent(received: Received, error: BaseException) -> None:
    log.warning("A signal of a connection was not answered: %s", error)
    cause = error.__cause__ if isinstance(error, NotSentError) else error
    # any other may pass
    received(cause if isinstance(cause, OF_RECORD) else None)


REMEMBERED = 100_000


class Identities:
    """Assigns each signal a correlation-id that was not used recently: correlate takes a repeated one for a retry.

    A redelivered message, or one that reuses an id, needs an answer of its own, so its signal gets a suffix
    (``AcknowledgementForwarderActorStarter``, ditto.md 2).
    """

    def __init__(self) -> None:
        self._used: Latest[str, None] = Latest(REMEMBERED)

    def take(self, correlation_id: str, *, redelivered: bool) -> str:
        """Return the correlation-id, with a suffix if it was used here, or perhaps by another process."""
        fresh = correlation_id not in self._used and not redelivered
        identity = correlation_id if fresh else suffixed(correlation_id, uuid4().hex[:8])
        self._used[identity] = None
        return identity


ROUNDS = 20
"""Rounds in a row in which a message may fail alone: about ten minutes with pauses, in which a full queue gets room."""


class Place(NamedTuple):
    """A message to a target: topic, partition and offset of its signal, and the address."""

    topic: str
    partition: int
    offset: int
    address: str


class AloneAway:
    """Counts the rounds in which a message failed and a later one to the same address was accepted. Thread-safe.

    A message that the other system never accepts while it accepts others would hold back all later ones forever. A
    round is the time of one worker, which ends with the first failure. Other messages in flight to the same address
    show whether the other system is away or refuses this one alone; another address may be a queue that is not full.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rounds: Counter[Place] = Counter()
        # of this round: the messages that failed, and whether alone
        self._failed: dict[Place, bool] = {}

    def begin(self) -> None:
        """Begin a round."""
        with self._lock:
            self._rounds = Counter({place: self._rounds[place] + alone for place, alone in self._failed.items()})
            self._failed.clear()

    def failed(self, place: Place) -> bool:
        """Note that a message failed; return whether it has failed alone too often."""
        with self._lock:
            self._failed.setdefault(place, False)
            return self._rounds[place] >= ROUNDS

    def accepted(self, place: Place) -> None:
        """Note that a message was accepted."""
        with self._lock:
            self._failed.update((each, True) for each in self._failed if each.address == place.address)
