"""Receiving signals: responders to commands and messages, and subscribers under declared labels."""

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from ackstream.client.core.arguments import Retry, check_type, check_word, names, takes
from ackstream.client.core.connection import connection_of
from ackstream.client.core.group import COMMIT_SECONDS
from ackstream.client.core.labels import Labels
from ackstream.client.core.lifetime import Client, Lifetime
from ackstream.client.core.messages import Answers, Work
from ackstream.client.core.worker import Worker
from ackstream.client.options import ReceiverOptions, ResponderOptions, SubscriberOptions
from ackstream.client.parties import answers, signals
from ackstream.client.parties.answers import Ack, Answer, Inbox, OpenDelivery, Orders, read_order
from ackstream.client.parties.signals import Delivered, Expired, ResponderStatistics, Signal, SubscriberStatistics
from ackstream.errors import BadParameterError
from ackstream.protocol.ditto.acknowledgements import issued_ack, write_ack
from ackstream.protocol.ditto.labels import LIVE_RESPONSE
from ackstream.protocol.ditto.signal_defaults import STREAM_TIMEOUT_MS
from ackstream.protocol.ditto.twin import subscriptions as rules
from ackstream.settings.kafka import real

log = logging.getLogger(__name__)

TOPIC_OF = {"events": "events", "live-events": "events", "live-commands": "signals", "messages": "signals"}
_OUTCOMES = ("handled", "dropped", "expired", "cancelled", "repeated")
AnyStatistics = TypeVar("AnyStatistics", bound=ResponderStatistics)


class _Receiver(Client, Generic[AnyStatistics]):
    """A worker, its labels and its handler, and the counts of its signals."""

    _kind: type[AnyStatistics]
    _worker: Worker
    _labels: Labels
    _inbox: Inbox | None = None

    def __init__(self, options: ReceiverOptions) -> None:
        check_word("expired", options.expired, Expired)
        check_type("retry", options.retry, Retry, optional=True)
        self._connection = connection_of(options.bootstrap_servers)
        self._handler: Callable[[Any], Answer] = options.handler
        self._skips, self._retry = options.expired == "skip", options.retry
        self._counts: Counter[str] = Counter()
        self._orders, self._connected = Orders(answers.MAX_ORDERS), ExitStack()
        name = f"The {type(self).__name__} {options.group or ''}".rstrip()
        self._life = Lifetime(None, options.on_error, options.on_connection, name)

    def _start(self, options: ReceiverOptions, topics: Sequence[str], declared: frozenset[str]) -> None:
        connection, life, group = self._connection, self._life, options.group
        try:
            labels = self._labels = Labels(self._connected, connection, declared, group)
            self._worker = Worker(connection, topics, self._handle, group, options.start, labels=labels, life=life)
            self._worker.turn = self._turn
            self._worker.notice = self._orders.note
            # lets others have the labels
            self._worker.release = self._connected.close
            if set(topics) - {"events"}:
                # commands, messages and records have deadlines
                self._worker.begin = self._worker.ask_time
            self._worker.run()
        except BaseException:
            self._connected.close()
            raise

    def _handle(self, record: Any, work: Work) -> None:
        if read_order(record) is None:
            self._receive(record, work)

    @abstractmethod
    def _receive(self, record: Any, work: Work) -> None:
        """Handle a record that cancels none."""

    def _turn(self, now: float) -> None:
        self._labels.keep(now)
        if number := self._counts["expired"] - self._counts["reported"]:
            self._counts["reported"] += number
            log.warning("%d commands were not handled, as their deadline was over; expired='handle' does.", number)

    def _answer(self, signal: Signal, opened: OpenDelivery, *, automatic: bool = False) -> None:
        """Call the handler and send its answers; with ``automatic`` acknowledge the labels that it left open."""
        # the reply-id is a hash, and nearly always there are no cancellations
        opened.is_cancelled = lambda: (
            bool(self._orders) and (signal.topic, signal.correlation_id, signal.reply_id) in self._orders
        )
        if opened.is_cancelled():
            self._counts["cancelled"] += 1
            opened.give_up()
            return
        self._counts["handled"] += 1
        keep = None if self._inbox is None else partial(self._inbox.add, signal.identity)
        try:
            answer = answers.call(self._handler, signal, self._retry, self._worker)
            opened.send(signals.messages(signal, answer), keep=keep)
            if automatic:
                opened.send(signals.messages(signal, Ack()), missing=True)
        except answers.HandlerStoppedError:
            opened.leave()
        except Exception as error:
            self._counts["failed"] += 1
            log.exception("The handler failed for %s.", signal.correlation_id)
            opened.send(signals.failure(signal, error), missing=True, keep=keep)

    def close(self) -> None:
        """Stop after the current signal, store the answers (for at most 5 s), commit, release the labels.

        The group handles signals with delayed answers again. May be called twice; a handler's call returns at once.
        """
        self._worker.close()

    @property
    def _outbox(self) -> Answers:
        return self._worker.outbox  # as a property it is an error in a forked process

    @property
    def labels(self) -> frozenset[str]:
        """The declared labels that are held now: all or none."""
        return self._labels.held

    @property
    def statistics(self) -> AnyStatistics:
        """The counts since the start."""
        counts, outbox, kind = self._counts, self._worker.outbox, self._kind
        others = {
            "received": self._worker.skipped + sum(counts[each] for each in _OUTCOMES),
            "skipped": self._worker.skipped,
            "answers": outbox.stored,
            "delayed": outbox.waiting,
            "sending": outbox.sending,
            "lost": outbox.lost,
            "unreadable": self._worker.reader.unreadable,
        }
        return kind(**{name: counts[name] for name in kind.__struct_fields__} | others)


class Responder(_Receiver[ResponderStatistics]):
    """Calls a handler for each signal and sends the answers that it returns, all in one thread.

    Commands and messages are handled in the order of each partition, which keeps the signals of one thing in order. The
    handler returns ``Ack``, ``Response`` (if live), a ``DittoError``, ``After`` one of these, several in a list, or
    ``None``. While it works, the other signals of its partitions wait: add responders to the group for slow work. An
    exception becomes a nack with status 500 (a ``DittoError``: its own) and the error's text; with ``retry`` after the
    last attempt, or as soon as the next one would begin after the deadline.

    A command whose timeout has passed is not handled, as its sender has been answered, but counted (``expired``) and
    logged; with ``expired="handle"`` it is handled, and ``signal.expired`` is true. The clock is the broker's. One that
    its requester cancelled before is not handled either (``cancelled``); a handler at work sees ``signal.cancelled``.

    With ``topics`` it handles the records of these that request acknowledgements, as :class:`RecordSignal`, instead of
    commands and messages. Records that request none are ignored, and no record has a response.

    The labels belong to this responder, or to its group, as long as it runs and reaches the broker. If their lease
    could not be renewed in time, signals wait until it is. Invalid requests are skipped with a warning; the service
    answers them. With a group, offsets are committed when the answers are stored: after a crash or a restart some
    signals are handled again, none is missed. With ``once`` those that this process has carried out are answered as
    before (``repeated``); the handler is not called.
    """

    _kind = ResponderStatistics

    @takes(ResponderOptions)
    def __init__(self, options: ResponderOptions) -> None:
        """Connect and begin; when this returns, every signal sent from now on will be handled (by the group).

        :param bootstrap_servers: ``host:port,…`` or the Kafka of the settings; without a broker ``BadParameterError``
        :param handler: called with each signal; returns the answer to send
        :param labels: those this responder issues, with ``live-response`` if it responds to live commands and messages;
            the others are declared. The handler does not see a signal's other labels
        :param topics: real names of topics, which ``correlate.request_topics`` allows; without ``live-response``
        :param group: its members share the work and exactly these labels; ``None``: alone, all signals from now on
        :param start: where a group without offsets begins
        :param expired: ``skip`` or ``handle`` commands whose timeout has passed
        :param retry: how often the handler is called for a signal for which it raises an error other than a
            ``DittoError``; its thread waits meanwhile. Closed then, it leaves the signal to its group
        :param once: the file of this member of a group, created if it does not exist, with the requests that it has
            carried out, and their answers; ``None``: it may carry a request out again after a crash
        :param on_error: called with the error that ends the responder, if one does
        :param on_connection: called when ``connected``, or ``disconnected``: Kafka does not store answers, or no broker
            was reached for 10 s
        :raises DittoError: 409, another client has one of the labels; 400, one is invalid or built in
        :raises StoreError: the file of ``once`` cannot be used
        :raises UnreachableError: no broker, or a topic is missing; with the remedy
        """
        super().__init__(options)
        wanted = frozenset(names("labels", options.labels))
        self._responds = wanted & {LIVE_RESPONSE}
        self._topics = list(map(real, names("topics", options.topics)))
        if self._topics and self._responds:
            raise BadParameterError("labels has live-response, which no record requests: with topics give others.")
        if options.once is not None:
            check_type("once", options.once, str, Path)
            if options.group is None:
                raise BadParameterError("once is set without a group: no request is read again then. Give a group.")
            self._inbox = Inbox(Path(options.once), options.group, self._life.fail)
            self._connected.callback(self._inbox.close)
        self._start(options, self._topics or ["signals"], wanted - self._responds)

    def _receive(self, record: Any, work: Work) -> None:
        issued, worker = self._labels.issued, self._worker
        signal: Signal | None
        if self._topics:
            signal = signals.read_record_signal(record, issued, worker.is_over)
        else:
            signal = signals.read_signal(record, issued | self._responds, worker.originator_key, worker.is_over)
        if signal is None:
            return
        opened = OpenDelivery(lambda: self._outbox, work, signal.correlation_id, issued)
        # after its first timeout, too, it may still count
        known = None if self._inbox is None else self._inbox.get(signal.identity)
        if known is not None:
            opened.repeat(known)
            self._counts["repeated"] += 1
        elif signal.expired and self._skips:
            self._counts["expired"] += 1
        else:
            self._answer(replace(signal, _open=opened), opened)


def responder(*labels: str, **options: Any) -> Callable[[Callable[[Any], Answer]], Callable[..., Responder]]:
    """Make a handler a function that starts its responder: ``with handler("localhost:9092"): …``.

    ``labels`` and ``options`` are those of a :class:`Responder`, such as ``topics``; the call may add further ones.
    """
    return lambda handler: partial(Responder, handler=handler, labels=names("labels", labels), **options)


class Subscriber(_Receiver[SubscriberStatistics]):
    """Calls a handler for each signal that it subscribed to, and sends weak acknowledgements for all others.

    Signals are handled in the order of each partition, which keeps those of one thing in order. The ``labels`` of a
    signal are the requested ones that this subscriber declared. They are acknowledged with 200 when the handler
    returns, unless it answered them with ``signal.ack(…)`` or returns an answer, such as ``Ack(204)``, or ``Response``
    to a live command or message. If it raises, they get a nack. Signals that its filter drops, that ``visible`` hides
    or that it has no subscription for are acknowledged weakly, so that no requester waits for this subscriber.

    The labels belong to this subscriber, or to its group, as those of a :class:`Responder` do. If another client has
    them once their lease could not be renewed in time, it continues without them and declares them again.
    """

    _kind = SubscriberStatistics

    @takes(SubscriberOptions)
    def __init__(self, options: SubscriberOptions) -> None:
        """Connect, declare the labels and begin; when this returns, every signal sent from now on will be handled.

        :param bootstrap_servers: ``host:port,…`` or the Kafka of the settings; without a broker ``BadParameterError``
        :param handler: called with each signal that it subscribed to; returns the answer to send
        :param subscriptions: made by ``ackstream.client.subscription``, one per stream
        :param labels: those that this subscriber issues
        :param group: its members share the signals and exactly these labels; ``None``: alone, all signals from now on
        :param start: where a group without offsets begins
        :param expired: ``skip`` or ``handle`` live commands and messages whose timeout has passed, as a ``Responder``
        :param retry: as of a ``Responder``
        :param automatic: acknowledge when the handler returns; otherwise the application calls ``signal.ack(…)``, in
            any thread, and signals that it has not acknowledged are handled again after a crash
        :param visible: the access rules; signals for which it returns false are hidden
        :param extra: returns the fields of a thing (its id, a selector) for subscriptions with ``extra_fields``
        :param on_error: called with the error that ends the subscriber, if one does
        :param on_connection: as of a ``Responder``
        :raises DittoError: 409, another subscriber has the labels; 400, a label is invalid
        :raises UnreachableError: no broker, or a topic is missing; with the remedy
        """
        super().__init__(options)
        self._automatic, self._visible, self._extra = options.automatic, options.visible, options.extra
        self._subscriptions = {each.stream: each for each in options.subscriptions}
        declared = frozenset(names("labels", options.labels))
        # until when to wait for the labels of each
        self._held: dict[OpenDelivery, float] = {}
        self._look_at = 0.0
        # with labels all topics, since any signal may request these
        streams = rules.STREAMS if declared else self._subscriptions
        self._start(options, sorted({TOPIC_OF[stream] for stream in streams}), declared)

    def _receive(self, record: Any, work: Work) -> None:
        signal = signals.read_publication(record, self._worker.originator_key)
        if signal is None:
            return
        asks = signal.stream in ("live-commands", "messages") and (signal.response_required or signal.labels)
        expired = bool(asks) and self._worker.is_over(record, signal.timeout_ms)
        if expired and self._skips:
            self._counts["expired"] += 1
            return
        try:
            decision = self._decide(signal, record.timestamp)
        except Exception as error:
            # nacks, as Ditto's connections send them
            log.exception("Retrieving the extra fields for %s failed.", signal.correlation_id)
            self._counts["failed"] += 1
            labels = [label for label in signal.labels if label in self._labels.issued]
            acks = [issued_ack(label, error, signal.envelope.headers) for label in labels]
        else:
            if not isinstance(decision, rules.Drop):
                self._deliver(signal, decision, record, work, expired=expired)
                return
            acks = rules.weak_acks(signal, decision)
            self._counts["weak"] += len(acks)
        self._counts["dropped"] += 1
        for ack in acks:
            self._worker.outbox.send(signal.correlation_id, write_ack(ack, signal.thing_id), work)

    def _decide(self, signal: rules.Publication, timestamp: int) -> rules.SignalDelivery | rules.Drop:
        who = rules.SubscriberState(self._labels.issued, self._subscriptions)
        visible = self._visible is None or self._visible(signal)
        wanted = who.subscriptions.get(signal.stream)
        extra = None
        if visible and self._extra is not None and wanted is not None and wanted.extra_fields and wanted.covers(signal):
            extra = self._extra(signal.thing_id, wanted.extra_fields)
        moment = datetime.fromtimestamp(timestamp / 1000, timezone.utc)
        return rules.decide(who, signal, visible=visible, extra=extra, time=moment)

    def _deliver(
        self, publication: rules.Publication, decision: rules.SignalDelivery, record: Any, work: Work, *, expired: bool
    ) -> None:
        request, held, asked = publication.correlation_id, not self._automatic, publication.response_required
        opened = OpenDelivery(lambda: self._outbox, work, request, decision.labels, held=held)
        channel = "twin" if publication.stream == "events" else "live"
        signal = Delivered(
            request, decision.envelope, channel, decision.labels, asked, asked, publication.timeout_ms,
            record.timestamp, record.topic, record.partition, record.offset, expired=expired, _open=opened,
        )  # fmt: skip
        if opened.held:
            self._held[opened] = self._worker.now() + (signal.timeout_ms or STREAM_TIMEOUT_MS) / 1000
        self._answer(signal, opened, automatic=self._automatic)

    def _turn(self, now: float) -> None:
        super()._turn(now)
        if now < self._look_at:
            return
        # thousands may be held
        self._look_at = now + COMMIT_SECONDS
        for opened, until in list(self._held.items()):
            if opened.held and now < until:
                continue
            if opened.held and opened.extension:
                self._held[opened], opened.extension = now + opened.extension, 0.0
            else:
                # answered, or its requester has stopped waiting
                del self._held[opened]
                self._counts["unanswered"] += opened.give_up()
