"""Sending requests and waiting for their answers."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from kafka.errors import KafkaError

from ackstream.client.errors import (
    ClosedError,
    NoReplyExpectedError,
    NotSentError,
    RequestError,
    RequestTimeout,
)
from ackstream.client.open_requests import OpenRequest, OpenRequests
from ackstream.client.receipts import RequesterStatistics, Stored
from ackstream.client.replies import Reply, read_reply
from ackstream.kafka import clients
from ackstream.kafka.clients import Closing
from ackstream.kafka.reader import TopicReader
from ackstream.protocol.ditto.envelopes import Envelope, encode
from ackstream.protocol.ditto.errors import DittoError
from ackstream.protocol.ditto.headers import REQUESTED_ACKS, RESPONSE_REQUIRED, TIMEOUT
from ackstream.protocol.ditto.requests import Request, read_request
from ackstream.protocol.durations import Duration
from ackstream.protocol.record_headers import CORRELATION_ID, REPLY_ID, REPLY_TO, header
from ackstream.settings import Kafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from ackstream.protocol.ditto.envelopes import Envelope


log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_SECONDS = 65.0
GRACE_SECONDS = 10.0
DELIVERY_SECONDS = 120.0
MAX_TIMEOUT_MS = 86_400_000
_CLOSE_SECONDS = 5.0


class Requester(Closing):
    """Sends commands and messages; each gets a future that ends with its reply.

    Thousands may be in flight: one thread reads the replies for all of them. Safe to use from several threads. Done
    callbacks of futures run in that thread and should be quick.

    While the broker is away, requests are kept and sent when it is back; a reply that comes twice counts once. A future
    always ends: with the reply, or with an error that names the correlation-id, at the latest when the broker has
    stored the request and then its own timeout and ``grace`` have passed.
    """

    def __init__(
        self,
        kafka: Kafka | None = None,
        *,
        bootstrap: str = "localhost:9092",
        topic_prefix: str = "",
        reply_to: str | None = None,
        default_timeout: float = DEFAULT_TIMEOUT_SECONDS,
        grace: float = GRACE_SECONDS,
        delivery_timeout: float = DELIVERY_SECONDS,
    ) -> None:
        """Connect. Replies are read from now on, before the first request can be sent.

        :param kafka: the broker as in the settings; else ``bootstrap`` and ``topic_prefix``
        :param reply_to: a reply topic of one's own (its real name), which the service has to allow
            (``correlate.reply_topics``); for many requesters, each of which would read all replies otherwise
        :param default_timeout: seconds, for requests without a timeout: the service's ``correlate.default_timeout``
        :param grace: seconds a reply may come later than the request's timeout
        :param delivery_timeout: seconds within which the broker has to take a request
        :raises UnreachableError: no broker, or a topic is missing; with the remedy
        """
        self._kafka = kafka or Kafka(bootstrap=bootstrap, topic_prefix=topic_prefix)
        self._signals = self._kafka.topic("signals")
        self._replies = reply_to or self._kafka.topic("replies")
        self._reply_to = [] if reply_to is None else [(REPLY_TO, reply_to.encode())]
        self._default_timeout_ms = round(default_timeout * 1000)
        self._grace = grace
        self._delivery_timeout = delivery_timeout
        self._requests = OpenRequests()
        self._closing = threading.Event()
        self._foreign = self._malformed = 0
        consumer = clients.connect_consumer(self._kafka, None, auto_offset_reset="earliest")
        try:
            clients.check_topics(consumer, self._kafka, self._signals, self._replies)
            clients.subscribe_at_end(consumer, self._kafka, self._replies)
            self._producer = clients.connect_producer(self._kafka, self._signals, delivery_timeout=delivery_timeout)
        except BaseException:
            consumer.close()
            raise
        self._reader = TopicReader(consumer, self._closing)
        self._thread = threading.Thread(target=self._run, name="ackstream-replies", daemon=True)
        self._thread.start()

    @property
    def statistics(self) -> RequesterStatistics:
        """What has happened so far."""
        counts = self._requests.counts
        return RequesterStatistics(
            sent=counts["sent"],
            answered=counts["answered"],
            published=counts["published"],
            open=len(self._requests),
            no_reply=counts["no_reply"],
            not_sent=counts["not_sent"],
            repeats=counts["repeats"],
            foreign=self._foreign,
            malformed=self._malformed,
            unreadable=self._reader.unreadable,
        )

    def send(
        self,
        command: Envelope,
        *,
        timeout: float | str | None = None,
        acks: Iterable[str] | None = None,
        response_required: bool | None = None,
        correlation_id: str | None = None,
        on_stored: Callable[[], None] | None = None,
    ) -> Future[Reply]:
        """Send a request; the future ends with its reply.

        The parameters set the command's headers; ``None`` leaves a header as it is. Whether the request is valid is for
        the service to say: it answers an invalid one with an error.

        :param timeout: seconds, or a text such as ``"500ms"``
        :param acks: labels of the acknowledgements to wait for
        :param correlation_id: else that of the command's headers, else a new one
        :param on_stored: called in the producer's thread when the broker has the request; should be quick
        :return: a future that fails with ``RequestTimeout`` (no reply at all), ``NotSentError`` or ``ClosedError``
        :raises NoReplyExpectedError: the request asks for no response: use ``publish``
        :raises CorrelationIdInUseError: a request with the correlation-id is open
        :raises ClosedError: the requester is closed
        """
        envelope, identity = address(
            command, timeout=timeout, acks=acks, response_required=response_required, correlation_id=correlation_id
        )
        facts = self._facts(envelope)
        if facts is not None and not facts.response_required:
            raise NoReplyExpectedError(
                "The request has response-required false, so that no reply would ever come: use publish(), or require "
                "a response."
            )
        timeout_ms = self._default_timeout_ms if facts is None else facts.timeout_ms
        return self._open(envelope, identity, timeout_ms / 1000 + self._grace, on_stored).future

    def request(
        self,
        command: Envelope,
        *,
        timeout: float | str | None = None,
        acks: Iterable[str] | None = None,
        correlation_id: str | None = None,
    ) -> Reply:
        """Send a request and wait for its reply; parameters and errors are those of ``send`` and its future."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("request() in a done callback would wait for itself: use send() there.")
        return self.send(command, timeout=timeout, acks=acks, correlation_id=correlation_id).result()

    def publish(
        self,
        command: Envelope,
        *,
        timeout: float | str | None = None,
        acks: Iterable[str] | None = None,
        correlation_id: str | None = None,
    ) -> Future[Stored]:
        """Send a request that is not answered (response-required false); requested acknowledgements are recorded.

        :return: a future that ends when the broker has stored it; fails with ``NotSentError`` or ``ClosedError``. Its
            callbacks run in the producer's thread
        :raises CorrelationIdInUseError: a request with the correlation-id is open
        :raises ClosedError: the requester is closed
        """
        envelope, identity = address(
            command, timeout=timeout, acks=acks, response_required=False, correlation_id=correlation_id
        )
        return self._open(envelope, identity, None).future

    def close(self) -> None:
        """Send what was accepted (for at most 5 s), then fail the futures that are open; may be called twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        clients.close_producer(self._producer, _CLOSE_SECONDS)
        self._thread.join()
        self._reader.consumer.close(timeout_ms=1_000)
        for request in self._requests.close_all():
            _fail(
                request,
                ClosedError(
                    f"The requester was closed before the reply to {request.correlation_id} came.",
                    request.correlation_id,
                ),
            )

    def _facts(self, envelope: Envelope) -> Request | None:
        """Read what the request asks for; ``None`` where it is invalid, which the service answers."""
        try:
            return read_request(envelope, default_timeout_ms=self._default_timeout_ms, max_timeout_ms=MAX_TIMEOUT_MS)
        except DittoError:
            return None

    def _open(
        self, envelope: Envelope, identity: str, wait: float | None, on_stored: Callable[[], None] | None = None
    ) -> OpenRequest:
        now = time.monotonic()
        headers = [(CORRELATION_ID, identity.encode()), *self._reply_to]
        record = (self._signals, encode(envelope), envelope.topic.thing_id.encode(), headers)
        request = OpenRequest(identity, wait, now + self._delivery_timeout, record, on_stored)
        self._requests.add(request, now)
        self._hand_over(request)
        return request

    def _hand_over(self, request: OpenRequest) -> None:
        if request.record is None:
            return
        try:
            sent = self._producer.send(*request.record)
        except (KafkaError, ValueError) as error:
            self._failed(request, error)
        else:
            sent.add_callback(partial(self._stored, request))
            sent.add_errback(partial(self._failed, request))

    def _stored(self, request: OpenRequest, metadata: Any) -> None:
        if request.on_stored is not None:
            request.on_stored()
        if self._requests.stored(request, time.monotonic()) and request.future.set_running_or_notify_cancel():
            place = Stored(
                request.correlation_id, metadata.topic, metadata.partition, metadata.offset, metadata.timestamp
            )
            request.future.set_result(place)

    def _failed(self, request: OpenRequest, error: BaseException) -> None:
        retriable = isinstance(error, clients.SEND_AGAIN)
        self._requests.failed(request, error, time.monotonic(), retriable=retriable)

    def _run(self) -> None:
        while not self._closing.is_set():
            for record in self._reader.read():
                try:
                    self._receive(record)
                except Exception:
                    # whatever a foreign record does, the other replies have to arrive
                    self._malformed += 1
                    log.exception("A record of %s was left out (offset %s).", record.topic, record.offset)
            for request, verdict in self._requests.due(time.monotonic()):
                if verdict == "resend":
                    self._hand_over(request)
                elif verdict == "not sent":
                    _fail(request, _not_sent(request, request.error))
                else:
                    _fail(request, self._timed_out(request))

    def _receive(self, record: Any) -> None:
        keys = {name: value for name, value in record.headers if name in (CORRELATION_ID, REPLY_ID)}
        key, reply_id = keys.get(CORRELATION_ID), keys.get(REPLY_ID)
        if key is None or reply_id is None or not self._requests.knows(key):
            # not even the JSON of other people's replies is looked at; a late repeat counts among them
            self._foreign += 1
            return
        reply = read_reply(record.headers, record.value, record.timestamp)
        if reply is None:
            self._malformed += 1
            log.warning("A record of %s has no headers of a reply (offset %s).", record.topic, record.offset)
            return
        request = self._requests.answer(key, reply_id)
        if request is not None and request.future.set_running_or_notify_cancel():
            request.future.set_result(reply)

    def _timed_out(self, request: OpenRequest) -> RequestTimeout:
        hint = " and that correlate.reply_topics allows the topic" if self._reply_to else ""
        return RequestTimeout(
            f"No reply to {request.correlation_id} came to {self._replies} within {request.wait:g} s: check that the "
            f"correlate job runs{hint}.",
            request.correlation_id,
        )


def _fail(request: OpenRequest, error: RequestError) -> None:
    if request.future.set_running_or_notify_cancel():
        request.future.set_exception(error)


def _not_sent(request: OpenRequest, error: BaseException | None) -> NotSentError:
    reason = "no answer in time" if error is None else str(error)
    found = NotSentError(f"Kafka did not take the request {request.correlation_id}: {reason}.", request.correlation_id)
    found.__cause__ = error
    return found


# -- What a sender adds to a command: its deadline, whom it waits for, and its correlation-id.


def address(
    command: Envelope,
    *,
    timeout: float | str | None = None,
    acks: Iterable[str] | None = None,
    response_required: bool | None = None,
    correlation_id: str | None = None,
) -> tuple[Envelope, str]:
    """Return a copy of the command with its headers set, and its correlation-id; ``None`` leaves a header as it is.

    :param timeout: seconds, or a text of the protocol such as ``"500ms"``
    :param acks: labels of the acknowledgements to wait for
    :param correlation_id: else that of the command's headers, else a new one
    :raises DittoError: a negative number of seconds
    """
    identity = str(correlation_id or header(command.headers, CORRELATION_ID) or uuid.uuid4())
    headers = {name: value for name, value in command.headers.items() if name.lower() != CORRELATION_ID}
    headers[CORRELATION_ID] = identity
    if timeout is not None:
        headers[TIMEOUT] = timeout if isinstance(timeout, str) else str(Duration.of_milliseconds(round(timeout * 1000)))
    if acks is not None:
        headers[REQUESTED_ACKS] = list(acks)
    if response_required is not None:
        headers[RESPONSE_REQUIRED] = response_required
    return msgspec.structs.replace(command, headers=headers), identity
