"""Sending requests and receiving their replies."""

import logging
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ackstream.client.core.arguments import check_type, takes
from ackstream.client.core.connection import ReliableSender, RequestFuture, Sending, connection_of
from ackstream.client.core.lifetime import Client, Lifetime, call_handler
from ackstream.client.core.tracing import trace_sending
from ackstream.client.errors import ClosedError, NoReplyExpectedError, RequestError, RequestTimeout
from ackstream.client.options import CommandRequest, RecordRequest, RequesterOptions
from ackstream.client.requests import replies
from ackstream.client.requests.commands import RECORD, address, address_record, fields_in, retrieval, signed
from ackstream.client.requests.open_requests import OpenRequest, OpenRequests
from ackstream.errors import BadParameterError
from ackstream.protocol.ditto.envelopes import Envelope
from ackstream.protocol.ditto.headers import TIMEOUT
from ackstream.protocol.ditto.requests import read_request
from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import DittoError
from ackstream.protocol.ledger import reply_id
from ackstream.protocol.record_headers import AMEND, CANCEL, CORRELATION_ID, PROGRESS, REPLY_TO

log = logging.getLogger(__name__)

MAX_TIMEOUT_MS = 86_400_000


class Requester(Client):
    """Sends commands, messages and records, and returns a future for each reply. Safe to use from several threads.

    Thousands may be in flight: one thread reads all replies and runs the futures' callbacks, which should be quick.
    While the broker is unavailable, requests are kept and sent afterwards; duplicates of a reply are dropped. Every
    future ends, with the reply or with an error that names the correlation-id, at the latest when the request's timeout
    and ``grace`` have passed since the broker stored it.
    """

    @takes(RequesterOptions)
    def __init__(self, options: RequesterOptions) -> None:
        """Connect. Replies are read from now on, before the first request can be sent.

        :param bootstrap_servers: ``host:port,…`` or the Kafka of the settings; without a broker ``BadParameterError``
        :param reply_to: a separate reply topic (its real name, allowed by ``correlate.reply_topics``); with many
            requesters each would otherwise read all replies
        :param default_timeout: seconds, for requests without a timeout: the service's ``correlate.default_timeout``
        :param grace: seconds to wait for a reply after the request's timeout
        :param delivery_timeout: seconds within which the broker has to store a request
        :param on_error: called with the error that ends the requester, if one does
        :param on_connection: called when ``connected``, or ``disconnected``: Kafka does not store requests, or is not
            reached for 10 s
        :param on_amended: called in the thread of replies with the second reply (``completed_by`` ``amended``) of each
            of the last 16,384 requests that had the header ``amend``, and ended by timeout
        :raises UnreachableError: no broker, or a topic is missing; with the remedy
        """
        self._options, self._connection = options, connection_of(options.bootstrap_servers)
        self._kafka = self._connection.kafka
        self._signals = self._kafka.topic("signals")
        self._replies = options.reply_to or self._kafka.topic("replies")
        self._reply_to = [] if options.reply_to is None else [(REPLY_TO, options.reply_to.encode())]
        self._requests = OpenRequests(options.on_amended)
        self._life = Lifetime(self._end, options.on_error, options.on_connection, "The requester")
        self._reader = self._connection.reader(self._replies, writes=(self._signals,))
        try:
            self._producer = self._connection.producer(self._signals, delivery_timeout=options.delivery_timeout)
        except BaseException:
            self._reader.close()
            raise
        self._sender = ReliableSender(self._producer)
        self._reader.start("ackstream-replies", self._requests.receive, self._turn, guard=self._life.guard)

    @property
    def statistics(self) -> replies.RequesterStatistics:
        """The counts since the start."""
        counts = {name: self._requests.counts[name] for name in replies.RequesterStatistics.__struct_fields__}
        counts |= {"open": len(self._requests), "unreadable": self._reader.unreadable}
        counts["malformed"] += self._reader.skipped
        return replies.RequesterStatistics(**counts)

    @takes(CommandRequest)
    def send(self, new: CommandRequest) -> RequestFuture[replies.Reply]:
        """Send a request; the future ends with its reply. The service answers an invalid request with an error.

        The parameters set the command's headers; ``None`` leaves a header unchanged.

        :param timeout: seconds, or a duration such as ``"500ms"``
        :param acks: labels of the acknowledgements to wait for
        :param correlation_id: defaults to that of the command's headers, else to a new one
        :param on_stored: called in the producer's thread when the broker has stored the request; should be quick
        :return: a future that may fail with ``RequestTimeout`` (no reply at all), ``NotSentError`` or ``ClosedError``
        :raises NoReplyExpectedError: the request requires no response: use ``publish``
        :raises CorrelationIdInUseError: a request with the correlation-id is open
        :raises ValueError: the correlation-id has more than 1,024 bytes in JSON
        :raises ClosedError: the requester is closed
        """
        return self._send(_addressed(new), new.on_stored)

    def _send(
        self, envelope: Envelope, on_stored: Callable[[], None] | None, updates: replies.Updates | None = None
    ) -> RequestFuture[replies.Reply]:
        timeout_ms = round(self._options.default_timeout * 1000)
        # an invalid request is sent, too: the service answers it
        with suppress(DittoError):
            request = read_request(envelope, default_timeout_ms=timeout_ms, max_timeout_ms=MAX_TIMEOUT_MS)
            timeout_ms = request.timeout_ms
            if not request.response_required:
                raise NoReplyExpectedError(
                    "The request has response-required false, so that no reply would ever come: use publish(), or"
                    " require a response."
                )
        wait = timeout_ms / 1000 + self._options.grace
        return self._open(self._record(envelope), envelope, wait, on_stored, updates)

    @takes(CommandRequest)
    def stream(self, new: CommandRequest) -> replies.Updates:
        """Send a request, and iterate over its acknowledgements as they come; the last one is the reply.

        Its header ``progress`` is set. Parameters and errors are those of :meth:`send`; those of its future are raised
        by the iteration.
        """
        self._check_thread()
        envelope, updates = _addressed(new), replies.Updates(self._connection.future)
        envelope.headers[PROGRESS] = True
        self._send(envelope, new.on_stored, updates)
        return updates

    @takes(CommandRequest)
    def request(self, new: CommandRequest) -> replies.Reply:
        """Send a request and wait for its reply; see ``send`` for parameters and errors."""
        self._check_thread()
        return self.send(**vars(new)).result()

    @takes(CommandRequest)
    def publish(self, new: CommandRequest) -> RequestFuture[replies.Stored]:
        """Send a request without a reply (response-required false); requested acknowledgements are recorded.

        The future ends when the broker has stored the request, or fails with ``NotSentError`` or ``ClosedError``; its
        callbacks run in the producer's thread. Parameters and errors are those of :meth:`send` but
        ``NoReplyExpectedError``; with ``response_required`` it is a ``BadParameterError``.
        """
        if new.response_required:
            raise BadParameterError("publish has response_required, but no future for the response: use send().")
        envelope = _addressed(replace(new, response_required=False))
        return self._open(self._record(envelope), envelope, None, new.on_stored)

    @takes(RecordRequest)
    def send_record(self, new: RecordRequest) -> RequestFuture[replies.Reply]:
        """Send a record of any kind that requests acknowledgements; the future ends with its reply.

        Its headers have the request; the service does not read its value. The other parameters and errors are those of
        :meth:`send`. The first record of a topic waits until the broker names the topic's partitions.

        :param topic: its real name, which ``correlate.request_topics`` allows; otherwise no reply arrives
        :param headers: further record headers
        :raises DittoError: the timeout is negative, or not a duration
        :raises UnreachableError: the topic does not exist, or no broker answers
        """
        return self._send_record(new)

    def _send_record(self, new: RecordRequest, updates: replies.Updates | None = None) -> RequestFuture[replies.Reply]:
        check_type("value", new.value, bytes, optional=True)
        check_type("key", new.key, bytes, optional=True)
        asked, headers = address_record(
            new.headers or {}, timeout=new.timeout, acks=new.acks, correlation_id=new.correlation_id
        )
        seconds = self._options.default_timeout
        if TIMEOUT in asked.headers:
            seconds = Duration.parse(asked.headers[TIMEOUT]).capped(MAX_TIMEOUT_MS) / 1000
        self._producer.prepare(new.topic)
        record = {"topic": new.topic, "value": new.value, "key": new.key, "headers": headers}
        return self._open(record, asked, seconds + self._options.grace, new.on_stored, updates)

    @takes(RecordRequest)
    def stream_record(self, new: RecordRequest) -> replies.Updates:
        """Send a record as :meth:`send_record` does, and iterate over its acknowledgements as :meth:`stream` does."""
        self._check_thread()
        updates = replies.Updates(self._connection.future)
        self._send_record(replace(new, headers={**(new.headers or {}), PROGRESS: "true"}), updates)
        return updates

    @takes(RecordRequest)
    def request_record(self, new: RecordRequest) -> replies.Reply:
        """Send a record and wait for its reply; see :meth:`send_record` for parameters and errors."""
        self._check_thread()
        return self.send_record(**vars(new)).result()

    def cancel(self, correlation_id: str) -> bool:
        """Cancel a request, once it is stored: its future ends with the status 499, or with a reply decided before.

        :return: whether the request is open and awaits a reply; otherwise the call has no effect
        """
        request = self._requests.find(correlation_id.encode())
        if request is None or request.wait is None:
            return False
        # the thread of the producer, which reports the storage, does not send
        at = 0.0 if request.place.done() else self._connection.now()
        request.place.add_done_callback(lambda place: self._cancel(request, place.result(), at))
        return True

    def _cancel(self, request: OpenRequest, place: tuple[str, int], at: float) -> None:
        (topic, partition), identity = place, (request.reply_id or "").encode()
        # a compacted topic needs a key, and would delete the request itself under the key that it has
        record = {"topic": topic, "partition": partition, "key": b"cancel-%b" % identity, "value": None}
        headers = [(CORRELATION_ID, request.key), (CANCEL, identity)]

        def finished(error: BaseException | None) -> None:
            if error is not None:
                log.warning("Kafka did not store the cancellation of %s: %s", request.correlation_id, error)

        until = self._connection.now() + self._options.delivery_timeout
        self._sender.submit(Sending(record | {"headers": headers}, finished, give_up_at=until), at)

    def _check_thread(self) -> None:
        if threading.current_thread() is self._reader.thread:
            raise RuntimeError("A request in a done callback would wait for itself: use send() or send_record() there.")

    def close(self) -> None:
        """Send buffered requests (for at most 5 s), then fail the open futures; may be called twice."""
        if self._reader.stop.is_set():
            return
        self._reader.stop.set()
        try:
            self._producer.close()
            self._reader.close()
        finally:
            self._end(None)
            self._life.close()

    def _end(self, error: Exception | None) -> None:
        for request in self._requests.close_all():
            identity = request.correlation_id
            closed = ClosedError(f"The requester was closed before the reply to {identity} arrived.", identity)
            closed.__cause__ = error
            request.end(closed)

    def _record(self, envelope: Envelope) -> dict[str, Any]:
        value, headers = signed(envelope, self._kafka.originator_key)
        return {"topic": self._signals, "value": value, "key": envelope.topic.thing_id.encode(), "headers": headers}

    def _open(
        self,
        record: dict[str, Any],
        asked: Envelope,
        wait: float | None,
        on_stored: Callable[[], None] | None = None,
        updates: replies.Updates | None = None,
    ) -> RequestFuture[Any]:
        now, identity, command = self._connection.now(), asked.headers[CORRELATION_ID], asked.topic
        future = self._connection.future() if updates is None else updates.reply
        future.correlation_id = identity
        future.set_running_or_notify_cancel()  # it is not cancelled without its request
        attributes = {"messaging.message.conversation_id": identity, "ackstream.thing_id": command.thing_id}
        record["headers"] += self._reply_to
        record["headers"] += trace_sending("CLIENT", record["topic"], attributes, future, replies.described)
        give_up_at = now + self._options.delivery_timeout
        request = OpenRequest(identity, wait, give_up_at, command, on_stored, future)
        request.amendable = self._options.on_amended is not None and AMEND in map(str.lower, asked.headers)
        if updates is not None:
            updates.correlation_id, request.updates = identity, weakref.ref(updates)
        try:
            self._requests.add(request, now)
        except RequestError as error:
            # ends the span
            future.set_exception(error)
            raise
        finished, stored = partial(self._finished, request), partial(self._stored, request)
        self._sender.submit(Sending(record, finished, stored, give_up_at=give_up_at))
        return future

    def _stored(self, request: OpenRequest, metadata: Any) -> None:
        call_handler(request.on_stored)
        identity = reply_id(request.correlation_id, metadata.topic, metadata.partition, metadata.offset)
        if self._requests.stored(request, self._connection.now(), identity):
            location = (metadata.topic, metadata.partition, metadata.offset, metadata.timestamp)
            request.end(replies.Stored(request.correlation_id, *location))
        request.place.set_result((metadata.topic, metadata.partition))
        for reply in request.early:
            if reply.reply_id == identity:
                self._requests.counts["foreign"] -= 1
                self._requests.answer(request.key, reply)

    def _finished(self, request: OpenRequest, error: BaseException | None) -> None:
        if error is not None and self._requests.refused(request):
            request.end(request.not_sent(error))

    def _turn(self, now: float) -> None:
        self._sender.turn(now)
        for request, verdict in self._requests.due(now):
            request.end(request.not_sent() if verdict == "not_sent" else self._timed_out(request))
        sender = self._sender
        self._life.look(now, away=sender.away, waits=sender.waits or not self._reader.reached)

    def _timed_out(self, request: OpenRequest) -> RequestTimeout:
        identity = request.correlation_id
        hint = f" and that correlate.reply_topics allows {self._replies}" if self._reply_to else ""
        if request.topic == RECORD.topic:
            hint += f" and that correlate.request_topics allows {request.place.result()[0]}"
        return RequestTimeout(
            f"No reply to {identity} arrived in {self._replies} within {request.wait:g} s (timeout and grace): check "
            f"that the correlate job runs{hint}. A party may have extended it: Requester(grace=…) waits longer. Or the "
            f"correlation-id was used a moment ago: ackstream outcomes story {identity}",
            identity,
        )


def _addressed(new: CommandRequest) -> Envelope:
    given = {name: value for name, value in vars(new).items() if name not in ("command", "on_stored")}
    return address(new.command, **given)[0]


def fields_of(requester: Requester, timeout: float | str | None = None) -> Callable[[str, str], dict[str, Any]]:
    """Return a ``Subscriber``'s ``extra``: queries the twin for fields, for ``timeout`` seconds or a duration each."""

    def extra(thing_id: str, fields: str) -> dict[str, Any]:
        return fields_in(requester.request(retrieval(thing_id, fields), timeout=timeout), thing_id)

    return extra
