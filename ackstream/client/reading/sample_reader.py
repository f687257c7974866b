"""Reading publishers' messages, and acknowledging each when the application has finished with it."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import msgspec

from ackstream.client.core.arguments import Retry, check_length, check_type, handler_of, names, takes
from ackstream.client.core.connection import Loop, connection_of
from ackstream.client.core.labels import Labels
from ackstream.client.core.lifetime import Client, Ending, Lifetime
from ackstream.client.core.messages import Answers, LabelAcks
from ackstream.client.errors import ReaderClosedError
from ackstream.client.options import ReaderOptions
from ackstream.client.reading._reader_history import ReaderHistory
from ackstream.client.reading._reader_link import ReaderLink
from ackstream.client.reading._sample_cache import FailedSamples
from ackstream.client.reading.samples import MAX_NAME_CHARACTERS, ReaderQos, Sample, check_at_least, check_lake
from ackstream.errors import ClientError, InconsistentQosError, UnreachableError
from ackstream.protocol.readers import MAX_WRITERS, AutoReason, ReaderStart
from ackstream.protocol.record_headers import FOR_QUEUE
from ackstream.protocol.rql.patterns import matches_any

log = logging.getLogger(__name__)

ANY = 2**31
"""All available samples."""


class ReaderStatistics(msgspec.Struct, frozen=True):
    """Samples of publishers' messages by outcome.

    ``received`` samples were stored and not refused; the application got the ``handed_out`` ones, acknowledged the
    ``acknowledged`` ones, and never saw ``filtered`` and ``replaced`` ones. ``failed`` ended in an exception of the
    handler; the application rejected the ``rejected`` ones. ``waiting`` messages are not known to be stored yet.
    ``repeats`` are duplicates or were acknowledged before, ``fetched`` were read from the table, ``lost`` are neither
    in Kafka nor in the table: they stay unacknowledged.
    """

    received: int
    handed_out: int
    acknowledged: int
    filtered: int
    replaced: int
    failed: int
    rejected: int
    waiting: int
    repeats: int
    fetched: int
    lost: int
    unreadable: int


class SampleReader(Client):
    """Receives each message that is stored and not refused, in its writer's order, and acknowledges it to its writer.

    The kind of ``qos`` defines when a sample is acknowledged: ``protocol``, when this library has it;
    ``application-auto`` (the default), when the application has accessed it; ``application-explicit``, on an explicit
    call. ``name`` is durable: samples acknowledged under it are not received again; all others are, from Kafka or from
    the table ``messages``, also those published while no reader of the name ran. Its writers wait for it until it is
    removed (:meth:`unregister`), or was silent for ``settle.durable_lease``, if that is set. With ``durable=False`` the
    reader is temporary: each start begins with the next message, and no writer waits for it once it has closed, or was
    silent for ``settle.reader_lease``.

    A ``handler`` is called for one sample after the other, in a thread of its own; ``application-auto`` acknowledges
    the sample when it has returned. Without a handler the application takes copies (:meth:`take`) or loans
    (:meth:`loan`), or reads and leaves the samples in the cache (:meth:`read`). A sample whose handler or ``with``
    block raises stays unacknowledged. The handler is called with it again, alone: after a second, then each time after
    twice as long, up to a minute; others are handled meanwhile. Without a handler it is received again at the next
    start. With ``protocol`` it was acknowledged before, and neither happens.

    With ``retry`` the order of each writer is kept: its later samples wait in the cache, those of other writers are
    handled, and reading pauses once the cache is full. After the last attempt the sample stays unacknowledged until the
    next start, the labels that it requests get a negative acknowledgement with the error's text, and the next one is
    handled.

    If another reader of the name starts, or Kafka has deleted unacknowledged samples and there is no ``lake``, the
    reader ends with an error: ``on_error`` is called with it, and every method that waits raises it. Samples of other
    ``topics``, or that ``filter`` rejects, are acknowledged as ``filtered``: their writers do not wait for code that
    will never see them. Safe to use from several threads.
    """

    @takes(ReaderOptions)
    def __init__(self, options: ReaderOptions) -> None:
        """Connect and begin; when this returns, the settle job knows this reader, and the writers wait for it.

        :param bootstrap_servers: ``host:port,…`` or the Kafka of the settings; without a broker ``BadParameterError``
        :param name: unique; a second reader of the name ends the first
        :param handler: called with each sample, in a thread of its own; ``None``: the application takes them
        :param batch_handler: instead of ``handler``: gets a list of those at hand, acknowledged together or not at all
        :param max_batch: how many it is called with at most
        :param retry: how often it is called for a sample, in order; ``None``: without limit, others meanwhile
        :param qos: when it acknowledges, and how many samples it keeps; ``None``: the defaults of ``ReaderQos``
        :param role: the required subscription it serves
        :param durable: samples are kept for it while it is away; ``False``: a temporary reader
        :param writers: publishers whose messages it reads; ``*`` stands for any run of characters
        :param topics: which of their subjects it wants
        :param filter: which samples of those subjects it wants, by their content
        :param labels: those that it issues for messages that request them
        :param lake: where the tables are, for samples that Kafka has deleted; ``None``: missing ones end the reader.
            It is opened at once
        :param max_samples: reading pauses while this number waits to be stored, or is unacknowledged
        :param max_bytes: reading pauses while this number of bytes does
        :param start_timeout: seconds to wait for the settle job
        :param on_error: called with the error that ends the reader, if one does
        :param on_connection: called when ``connected``, or ``disconnected``: its reports are not stored, or settle has
            not confirmed them for 10 s, or three reports if that is longer
        :raises InconsistentQosError: settings that contradict each other; ``BadParameterError``: a name without or with
            too many characters
        :raises DittoError: 409, others have the labels; 400, a label is invalid
        :raises UnreachableError: no broker, or a topic is missing; with the remedy
        :raises StartError: the table of ``lake`` cannot be read
        :raises MissingExtraError: the extra is not installed that reads it
        :raises SettleTimeout: the settle job does not answer
        """
        connection = connection_of(options.bootstrap_servers)
        self._qos = options.qos or ReaderQos()
        self._topics, self._filter = names("topics", options.topics), options.filter
        labels = frozenset(names("labels", options.labels))
        epoch = time.time_ns() // 1_000  # of two that start at once, one is later
        start = ReaderStart(options.name, epoch, options.role, options.durable, names("writers", options.writers))
        check_lake(options.lake)
        limits: dict[str, Any] = {"max_samples": options.max_samples, "max_bytes": options.max_bytes}
        _check(self._qos, start, labels, **limits)
        self._history = ReaderHistory(
            self._qos, start, wanted=self._wants, on_acknowledged=self._on_acknowledged, **limits
        )
        self._life = Lifetime(self._end, options.on_error, options.on_connection, f"The reader {options.name}")
        self._ending = Ending(self._life, self._finish)
        self._leave, self._left = False, True
        self._handler = handler_of(options.handler, options.batch_handler, options.max_batch)
        check_type("retry", options.retry, Retry, optional=True)
        if options.retry is not None and (self._handler is None or self._qos.kind == "protocol"):
            raise InconsistentQosError("retry is for samples whose handler fails: give one, and an application kind.")
        self._retry = options.retry
        with ExitStack() as stack:
            self._labels = Labels(stack, connection.kafka, labels, None)
            self._link = ReaderLink(
                connection, self._history, self, life=self._life, lake=options.lake, after_poll=self._after_poll
            )
            stack.callback(self._link.close)
            self._outbox = Answers(self._link.producer, connection, self._labels)
            self._label_acks = LabelAcks(self._labels, self._outbox)
            self._link.begin(options.start_timeout)
            self._connected = stack.pop_all()
        if self._handler is not None:
            self._ending.start(Loop(partial(self._ending.handle, self._handle_all), "ackstream-samples"))

    def take(self, max_samples: int = ANY, timeout: float | None = 0.0) -> list[Sample]:
        """Remove samples from the reader's cache; ``application-auto`` acknowledges them at once.

        :param timeout: seconds to wait if none is available; ``None``: forever
        :raises ReaderClosedError: the reader was closed
        :raises TakenOverError: another reader has started under this name
        """
        return self._history.take(max_samples, timeout)

    def read(self, max_samples: int = ANY, timeout: float | None = 0.0, *, unread: bool = False) -> list[Sample]:
        """Return copies of samples, which stay in the reader's cache; ``application-auto`` acknowledges them at once.

        They stay, and count for ``max_samples`` of the reader, until they are taken, or replaced under KEEP_LAST.

        :param timeout: seconds to wait if none is available; ``None``: forever
        :param unread: only those that were not accessed before
        :raises ClientError: as :meth:`take`
        """
        return self._history.read(max_samples, timeout, unread=unread)

    @contextmanager
    def loan(self, max_samples: int = ANY, timeout: float | None = 0.0) -> Iterator[list[Sample]]:
        """Lend samples as :meth:`take` does; ``application-auto`` acknowledges them if the block does not raise.

        :raises ClientError: as :meth:`take`; also where the block ends after the reader, which acknowledges nothing
        """
        samples = self._history.loan(max_samples, timeout)
        yield samples
        self._history.return_loan(samples)

    def acknowledge_sample(self, sample: Sample, response: bytes | None = None) -> None:
        """Acknowledge a sample, in any order and from any thread; a second time has no effect.

        :param response: data for its writer, at most ``max_response_length`` bytes of the qos
        :raises PreconditionNotMetError: it was not handed out
        :raises BadParameterError: the response is too long; nothing is acknowledged
        """
        self._history.acknowledge_sample(sample, response)

    def acknowledge_all(self, response: bytes | None = None) -> None:
        """Acknowledge every sample that was read or taken, but none that is only available; errors as above."""
        self._history.acknowledge_all(response)

    def reject_sample(self, sample: Sample, reason: str, status: int = 400) -> None:
        """Reject a sample towards the requester of a label of this reader.

        Connext has no negative acknowledgement for its writer: it stays unacknowledged, and returns at the next start.
        """
        self._history.counts["rejected"] += 1
        self._label_acks.rejected(sample, reason, status)

    @property
    def full(self) -> bool:
        """Whether it holds as much as it may: reading pauses until samples are acknowledged, or taken."""
        return self._history.full

    @property
    def labels(self) -> frozenset[str]:
        """The labels that are held at the moment."""
        return self._labels.held

    @property
    def statistics(self) -> ReaderStatistics:
        """Counts since the reader began."""
        names = set(ReaderStatistics.__struct_fields__) - {"waiting", "unreadable"}
        counts = {name: self._history.counts[name] for name in names}
        return ReaderStatistics(**counts, waiting=self._history.waiting, unreadable=self._link.link.unreadable)

    def close(self, *, leave: bool = True) -> None:
        """Finish the current sample, report acknowledged samples (for at most 5 s), and release the labels.

        Called by the handler, or meanwhile by ``on_error``, it returns at once, and all this follows when the handler
        has returned.

        :param leave: no writer waits for a temporary reader; otherwise its samples are kept until its lease ends
        """
        self._close(leave=leave and not self._history.start.durable)

    def unregister(self) -> None:
        """Close the reader for good: no writer waits for its name any more.

        :raises UnreachableError: Kafka did not store that; `ackstream readers forget` repeats it
        :raises ReaderClosedError: the reader was closed before
        """
        self._close(leave=True)
        if not self._leave:
            raise ReaderClosedError("The reader is closed: run `ackstream readers forget` with its name.")
        if not self._left:
            raise UnreachableError(
                f"Kafka did not store that the reader {self._history.start.reader} is gone, and writers still wait for"
                " it: run `ackstream readers forget` with its name."
            )

    def _close(self, *, leave: bool) -> None:
        if not self._ending.closing.is_set():
            self._leave = leave
        self._history.end(ReaderClosedError("The reader is closed."))
        self._ending.close(inside=self._life.inside)

    def _finish(self) -> None:
        """Report and disconnect, after the last handler."""
        self._left = self._link.close(leave=self._leave)
        self._connected.close()
        self._life.close()

    def _end(self, error: Exception) -> None:
        """End every wait, and the reports: another reader of the name may have taken over."""
        self._history.end(error)
        self._link.link.stop.set()

    def _handle_all(self) -> None:
        """Call the handler with the present samples, and with one for which it has failed, until the reader ends."""
        failed = FailedSamples(self._retry)
        while self._handler is not None:
            handler, most = self._handler
            try:
                samples = self._history.loan(most, failed.wait(time.monotonic()), failed.writers)
            except ClientError:
                # closed, perhaps by the handler, or ended by an error that was reported to the application
                return
            if samples:
                self._handle(handler, samples, failed)
            again = None if self._history.ended else failed.take(time.monotonic())
            if again is not None and self._history.waits_for(again):
                self._handle(handler, [again], failed)
            elif again is not None:
                failed.forget(again)

    def _handle(self, handler: Callable[[list[Sample]], object], samples: list[Sample], failed: FailedSamples) -> None:
        try:
            handler(samples)
        except Exception as error:
            for sample in samples:
                self._history.counts["failed"] += 1
                log.exception("The handler failed for message %s of %s.", sample.seq, sample.publisher)
                if failed.add(sample, time.monotonic()):
                    self._label_acks.failed(sample, error)
        else:
            self._history.return_loan(samples)
            for sample in samples:
                failed.forget(sample)

    def _after_poll(self, now: float) -> None:
        self._labels.keep(now)
        self._outbox.turn(now)

    def _wants(self, sample: Sample) -> bool:
        if FOR_QUEUE in sample.headers or not matches_any(self._topics, sample.topic or ""):
            return False
        return self._filter is None or self._filter(sample)

    def _on_acknowledged(self, sample: Sample, response: bytes | None, auto: AutoReason | None) -> None:
        self._label_acks.acknowledged(sample, response, auto)


def _check(qos: ReaderQos, start: ReaderStart, labels: frozenset[str], **limits: int) -> None:
    given = [("name", start.reader), *(("writers", name) for name in start.writers)]
    for argument, text in [*given, ("role", start.role)] if start.role is not None else given:
        check_length(argument, text, MAX_NAME_CHARACTERS)
    if len(start.writers) > MAX_WRITERS:
        raise InconsistentQosError(f"writers has {len(start.writers)} names: give {MAX_WRITERS}, or patterns with *.")
    if not qos.reliable:
        raise InconsistentQosError("This reader acknowledges: make it reliable, or read the topic with any consumer.")
    if labels and qos.kind == "protocol":
        raise InconsistentQosError(
            "Labels report that the application has finished with a sample: choose an application kind for them."
        )
    check_at_least(1, **limits)
