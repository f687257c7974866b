"""The Kafka side of connections: requests go to ``signals``, answers to ``acks``, unusable ones to ``dead-letters``."""

import logging
import threading
from bisect import insort
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple
from uuid import uuid4

import msgspec

from ackstream.client import NotSentError, Reply, Requester, RequestTimeout, fields_of
from ackstream.connectivity.inbound import InboundRequest
from ackstream.connectivity.transports.transport import ExternalMessage
from ackstream.kafka import clients
from ackstream.observe.outcomes import Outcomes, RequestOutcome
from ackstream.protocol.ditto.acknowledgements import is_success, read_issued
from ackstream.protocol.ditto.connection_rules import SettlementAnswer
from ackstream.protocol.ditto.correlation_ids import Latest, suffixed
from ackstream.protocol.ditto.envelopes import Envelope, encode
from ackstream.protocol.errors import DittoError, shown
from ackstream.protocol.ledger import DEAD_LETTER_BYTES
from ackstream.protocol.record_headers import CORRELATION_ID, REASON
from ackstream.settings import Kafka

log = logging.getLogger(__name__)

EXTRA_TIMEOUT = "20s"
"""How long to wait for the twin to return extra fields."""

STORED = SettlementAnswer(())
"""The broker has the request, and no answer is awaited."""


class SourceFailure(msgspec.Struct, frozen=True):
    """The status of an error received in place of an answer."""

    status: int


Verdict = SettlementAnswer | SourceFailure
Answer = Verdict | Exception | None
Received = Callable[[Answer], None]
Replied = Callable[[Envelope], None]


class System(clients.Closing):
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
        headers = [(CORRELATION_ID, str(envelope.headers[CORRELATION_ID]).encode())]
        record: Any = {"value": encode(envelope), "key": envelope.topic.thing_id.encode(), "headers": headers}
        clients.send(self._producer, lambda _: received(STORED), partial(_not_sent, received), self._acks, **record)

    def give_up(self, message: ExternalMessage, reason: str, received: Received, answer: Verdict = STORED) -> None:
        """Store an unusable message as a dead letter; ``received`` gets ``answer``, or ``None`` if that fails."""
        log.warning("A message is a dead letter (%s): %s", message.identity, reason)

        def failed(error: BaseException) -> None:
            log.warning("A dead letter was not stored (%s): %s", message.identity, error)
            received(None)

        key = message.headers.get("kafka.key", message.identity).encode()[:DEAD_LETTER_BYTES]
        headers = [(REASON, f"{shown(reason)} ({shown(message.identity)})".encode())]
        record: Any = {"value": message.payload[:DEAD_LETTER_BYTES], "key": key, "headers": headers}
        clients.send(self._producer, lambda _: received(answer), failed, self._dead_letters, **record)

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


def verdict(answer: Envelope, *, completed_by: str, live: bool) -> Verdict:
    """Return the meaning of an answer, or of the end of the wait (``completed_by``), for settling its message."""
    if answer.topic.criterion == "acks":
        # a quorum may be reached although some have refused
        found, status = statuses(answer), answer.status or 0
        return SettlementAnswer(found if not is_success(status) or all(map(is_success, found)) else (status,))
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
    answer: Verdict | None = None
    try:
        answer = verdict(reply.envelope, completed_by=reply.completed_by, live=request.live)
        replied(reply.envelope)
    except DittoError as malformed:
        log.warning("The reply to %s cannot be read: %s", reply.correlation_id, malformed)
    except Exception:
        # the message is settled nevertheless: another delivery would have the same reply
        log.exception("The reply to %s was not delivered.", reply.correlation_id)
    if request.waits_for_acks:
        received(answer)


def _decided(waiting: ExitStack, received: Received, future: Future[RequestOutcome]) -> None:
    waiting.close()
    outcome = future.result()
    if outcome.completed_by in ("error", "invalid", "cancelled"):
        received(SourceFailure(outcome.status))
    elif is_success(outcome.status):
        received(SettlementAnswer((outcome.status,)))
    else:
        received(SettlementAnswer(tuple(ack.status for ack in outcome.entries)))


def _not_sent(received: Received, error: BaseException) -> None:
    log.warning("A signal of a connection was not answered: %s", error)
    cause = error.__cause__ if isinstance(error, NotSentError) else error
    # any other may be temporary
    received(cause if isinstance(cause, clients.OF_RECORD) else None)


REMEMBERED = 100_000


class Identities:
    """Assigns each signal a correlation-id that was not used recently: correlate takes a repeated one for a retry."""

    def __init__(self) -> None:
        self._used: Latest[str, None] = Latest(REMEMBERED)

    def take(self, correlation_id: str, *, redelivered: bool) -> str:
        """Return it, with a suffix if used before, perhaps elsewhere (``AcknowledgementForwarderActorStarter``)."""
        fresh = correlation_id not in self._used and not redelivered
        identity = correlation_id if fresh else suffixed(correlation_id, uuid4().hex[:8])
        self._used[identity] = None
        return identity


MAX_ASIDE = 500
"""Limit of messages that wait behind a failing one; beyond it there are no pauses while others are accepted."""
HOPELESS = 3
"""Number of messages to an address given up in a row after which waiting ones are given up with them."""
AWAY_SECONDS = 60.0
"""A system that has accepted no message for this time after a failure counts as unavailable."""


class Place(NamedTuple):
    """A message to a target: topic, partition and offset of its signal, its number among its messages, the address."""

    topic: str
    partition: int
    offset: int
    number: int
    address: str


@dataclass(eq=False)
class _Lane:
    accepted: int
    waiting: list[Place] = field(default_factory=list)
    trying: Place | None = None
    attempts: int = 0
    due: float = 0.0
    healed: bool = False
    given_up: int = 0


class Lanes:
    """Decides when messages to an address that did not accept one are published again, and when one is given up.

    Behind a message that failed, those to the same address wait, and it is retried alone; the others continue. An
    attempt counts if any message of the connection was accepted since the one before; if none was, the other system is
    unavailable, and the worker ends. The next one reads the signals again: it publishes none that was settled, and
    those that failed after the others. Methods are called with ``changed`` held; times are monotonic seconds.
    """

    def __init__(self, max_attempts: int) -> None:
        self.changed = threading.Condition()
        self._max = max_attempts
        self._accepted = 0
        # time of the first failure since a message was accepted
        self._failing_since: float | None = None
        self._lanes: dict[str, _Lane] = {}
        self._known: Latest[Place, None] = Latest(REMEMBERED)
        # failures of a message while others were accepted, and the number of these at its last failure
        self._failures: Latest[Place, tuple[int, int]] = Latest(REMEMBERED)

    def begin(self) -> None:
        """Start again with a worker; accepted messages and counted failures are remembered."""
        self._lanes.clear()
        self._failing_since = None

    def settled_before(self, place: Place) -> bool:
        """Return whether a message was accepted, refused or given up before."""
        return place in self._known

    def waits(self, place: Place, now: float) -> bool:
        """Return whether a message of a signal that was read has to wait, and add it to those that wait."""
        if place not in self._failures and place.address not in self._lanes:
            return False
        insort(self._lane(place, now + 1.0).waiting, place)
        return True

    def next(self, now: float) -> Place | None:
        """Return a message that has waited, to publish it now."""
        # too many wait: lanes that failed before others were accepted are tried at once
        crowded = sum(len(each.waiting) for each in self._lanes.values()) > MAX_ASIDE
        for address, lane in list(self._lanes.items()):
            if not lane.waiting and lane.trying is None:
                del self._lanes[address]
            elif lane.healed:
                return lane.waiting.pop(0)
            elif lane.trying is None and (lane.due <= now or (crowded and self._accepted > lane.accepted)):
                lane.trying = lane.waiting.pop(0)
                return lane.trying
        return None

    def failed(self, place: Place, now: float, *, doubtful: bool = False) -> Literal["waits", "away"] | list[Place]:
        """Note a failure; return the fate of the message, or a list of those to give up, which are settled later.

        After several were given up, those that have waited for as many attempts are given up with it.
        """
        lane = self._lane(place, now)
        self._failing_since = since = now if self._failing_since is None else self._failing_since
        tried, lane.healed = place is lane.trying or not lane.attempts, False
        insort(lane.waiting, place)
        if tried:
            lane.trying, lane.attempts = None, lane.attempts + 1
            lane.due = now + clients.backoff(lane.attempts)
            for each in lane.waiting:
                count, accepted = self._failures.get(each, (0, self._accepted))
                self._failures[each] = count + (accepted != self._accepted), self._accepted
            if self._failures[place][0] >= self._max:
                lane.waiting.remove(place)
                lane.trying, lost = place, [place]
                if lane.given_up + 1 >= HOPELESS:
                    lost += [each for each in lane.waiting if self._failures.get(each, (0, 0))[0] >= self._max]
                    lane.waiting = sorted({*lane.waiting}.difference(lost))
                return lost
            if lane.attempts > 1 and lane.accepted == self._accepted:
                # otherwise a message on which a service always fails would stop a target with one address
                self._failures[place] = self._failures[place][0] + doubtful, self._accepted
                return "away"
            lane.accepted = self._accepted
        return "away" if now - since >= AWAY_SECONDS else "waits"

    def settled(self, place: Place, *, accepted: bool) -> None:
        """Note that a message was accepted, refused or given up."""
        self._failures.pop(place, None)
        self._known[place] = None
        lane = self._lanes.get(place.address)
        if lane is not None and lane.trying is place:
            lane.trying, lane.due, lane.healed = None, 0.0, accepted
            lane.attempts, lane.given_up = (0, 0) if accepted else (lane.attempts, lane.given_up + 1)
        if accepted:
            self._accepted += 1
            self._failing_since = None

    def _lane(self, place: Place, due: float) -> _Lane:
        return self._lanes.setdefault(place.address, _Lane(self._accepted, due=due))
