"""Reading publishers' messages, and acknowledging each when the application has finished with it."""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.client.errors import ReaderClosedError
from ackstream.client.group import Work
from ackstream.client.labels import Labels
from ackstream.client.reader_history import ReaderHistory
from ackstream.client.reader_session import ReaderSession
from ackstream.client.samples import ReaderQos, text
from ackstream.client.worker import Outbox
from ackstream.errors import ClientError, InconsistentQosError
from ackstream.kafka.clients import Closing
from ackstream.protocol.ditto.acknowledgements import OK, Acknowledgement, issued_ack, write_ack
from ackstream.protocol.ditto.envelopes import raw
from ackstream.protocol.ditto.headers import CHANNEL, CORRELATION_ID, REQUESTED_ACKS, WEAK_ACK, requested_acks_in
from ackstream.protocol.ditto.subscriptions import FILTERED
from ackstream.protocol.json import UNREADABLE
from ackstream.protocol.patterns import matches_any
from ackstream.protocol.readers import ReaderStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ackstream.client.samples import Sample
    from ackstream.protocol.readers import AutoReason
    from ackstream.settings import Kafka, Lake


log = logging.getLogger(__name__)

MAX_SAMPLES = 10_000
MAX_NAME_CHARACTERS = 255
ANY = 2**31
"""As many samples as are available."""

START_TIMEOUT = 60.0
ENTITY_ID = "ditto-entity-id"


class ReaderStatistics(msgspec.Struct, frozen=True):
    """Samples of publishers' messages by outcome.

    ``received`` samples were stored and not refused; the application got the ``handed_out`` ones, acknowledged the
    ``acknowledged`` ones, and never saw ``filtered`` and ``replaced`` ones. ``failed`` ended in an exception of the
    handler; the application rejected the ``rejected`` ones. ``waiting`` messages are not known to be stored yet.
    ``repeats`` are duplicates or were acknowledged before, ``fetched`` were read from the table, ``lost`` are no longer
    in Kafka and could not be read from a table.
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


class SampleReader(Closing):
    """Receives each message that is stored and not refused, in its writer's order, and acknowledges it to its writer.

    The kind of ``qos`` defines when a sample is acknowledged: ``protocol``, when this library has it;
    ``application-auto`` (the default), when the application has accessed it; ``application-explicit``, when the
    application says so. ``name`` is durable: what was acknowledged under it is not received again; everything else is,
    from Kafka or from the table ``messages``.

    There are two styles. A ``handler`` is called for one sample after the other, in a thread of its own;
    ``application-auto`` acknowledges the sample when the handler has returned. Without a handler the application takes
    copies (:meth:`take`) or loans (:meth:`loan`). A sample whose handler or ``with`` block raises stays unacknowledged
    and is received again at the next start.

    Samples of other ``topics``, or that ``filter`` rejects, are acknowledged as ``filtered``: their writers do not wait
    for code that will never see them. Safe to use from several threads.
    """

    def __init__(  # noqa: PLR0913 - a reader has many independent settings, each with a default
        self,
        kafka: Kafka,
        name: str,
        handler: Callable[[Sample], object] | None = None,
        *,
        qos: ReaderQos | None = None,
        role: str | None = None,
        durable: bool = False,
        writers: Iterable[str] = ("*",),
        topics: Iterable[str] = ("*",),
        filter: Callable[[Sample], bool] | None = None,  # noqa: A002 - the field's word
        labels: Iterable[str] = (),
        lake: Lake | None = None,
        max_samples: int = MAX_SAMPLES,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        """Connect and begin; when this returns, the settle job knows this reader, and the writers wait for it.

        :param name: unique; a second reader of the name ends the first
        :param role: the required subscription it serves
        :param durable: samples are kept for it while it is away, even without a role
        :param writers: whose messages it reads; ``*`` stands for any run of characters
        :param topics: which of their subjects it wants
        :param filter: which samples of those subjects it wants, by their content
        :param labels: those that it issues for messages that request them
        :param lake: where the tables are, for what Kafka has deleted; ``None``: read from Kafka only
        :param max_samples: reading pauses while as many are waiting, or are unacknowledged
        :param start_timeout: seconds to wait for the settle job
        :raises InconsistentQosError: settings that contradict each other
        :raises DittoError: 409, others have the labels; 400, a label is invalid
        :raises UnreachableError: no broker, or a topic is missing; with the remedy
        :raises SettleTimeout: the settle job does not answer
        """
        self._qos = qos or ReaderQos(kind="application-auto")
        self._topics = tuple(topics)
        self._filter = filter
        self._stays = durable or role is not None
        self._counts: Counter[str] = Counter()
        issued = frozenset(labels)
        start = ReaderStart(name, time.time_ns() // 1_000_000, role, durable, tuple(writers))
        _check(self._qos, start, issued, max_samples)
        self._history = ReaderHistory(self._qos, start, wanted=self._wants, on_acknowledged=self._on_acknowledged)
        self._closed = threading.Event()
        self._handling = threading.Thread(
            target=self._handle_all, args=(handler,), name="ackstream-samples", daemon=True
        )
        with ExitStack() as stack:
            self._labels = Labels(stack, kafka, issued, None)
            self._session = ReaderSession(
                kafka,
                start,
                self._history,
                self,
                max_samples=max_samples,
                lake=lake,
                after_poll=self._after_poll,
            )
            stack.callback(self._session.close)
            self._outbox = Outbox(self._session.link.producer, kafka)
            self._label_acks = LabelAcks(self._labels, self._outbox)
            self._session.begin(start_timeout)
            self._connected = stack.pop_all()
        if handler is not None:
            self._handling.start()

    # -- for the application -----------------------------------------------------------------------------------------

    def take(self, max_samples: int = ANY, timeout: float | None = 0.0) -> list[Sample]:
        """Return copies of samples that were not handed out yet; ``application-auto`` acknowledges them at once.

        :param timeout: seconds to wait if none is available; ``None``: for ever
        :raises ReaderClosedError: the reader was closed
        :raises TakenOverError: another reader has started under this name
        """
        return self._history.take(max_samples, timeout)

    @contextmanager
    def loan(self, max_samples: int = ANY, timeout: float | None = 0.0) -> Iterator[list[Sample]]:
        """Lend samples as :meth:`take` does; ``application-auto`` acknowledges them if the block does not raise."""
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
        """Acknowledge every sample that was handed out, but none that is only available; errors as above."""
        self._history.acknowledge_all(response)

    def reject_sample(self, sample: Sample, reason: str, status: int = 400) -> None:
        """Reject a sample towards the requester of a label of this reader.

        Towards its writer it stays unacknowledged, since Connext has no negative acknowledgement: it is received again
        at the next start.
        """
        self._counts["rejected"] += 1
        self._label_acks.rejected(sample, reason, status)

    @property
    def labels(self) -> frozenset[str]:
        """The labels that are ours at the moment."""
        return self._labels.held

    @property
    def statistics(self) -> ReaderStatistics:
        """Counts since the reader began."""
        counters = (self._counts, self._history.counts, self._session.counts)
        names = set(ReaderStatistics.__struct_fields__) - {"waiting", "unreadable"}
        counts = {name: sum(counter[name] for counter in counters) for name in names}
        return ReaderStatistics(**counts, waiting=self._history.waiting, unreadable=self._session.link.unreadable)

    def close(self, *, leave: bool = True) -> None:
        """Finish the current sample, report what is acknowledged (for at most 5 s), and release the labels.

        :param leave: a reader that is neither durable nor in a role reports that it will not come back, so that no
            writer waits for it; otherwise its samples are kept until its lease expires
        """
        if self._closed.is_set():
            return
        self._closed.set()
        self._history.end(ReaderClosedError("The reader is closed."))
        if self._handling.ident is not None and self._handling is not threading.current_thread():
            self._handling.join()
        self._session.close(leave=leave and not self._stays)
        self._connected.close()

    # -- in the threads ----------------------------------------------------------------------------------------------

    def _handle_all(self, handler: Callable[[Sample], object]) -> None:
        """Call the handler for one sample after the other, until the reader ends."""
        while True:
            try:
                samples = self._history.loan(1, None)
            except ClientError as end:
                if not isinstance(end, ReaderClosedError):
                    log.error("The reader has ended: %s", end)  # noqa: TRY400 - the traceback would add nothing
                return
            (sample,) = samples
            try:
                handler(sample)
            except Exception as error:
                self._counts["failed"] += 1
                log.exception("The handler failed for message %s of %s.", sample.seq, sample.writer)
                self._label_acks.failed(sample, error)
            else:
                self._history.return_loan(samples)

    def _after_poll(self, now: float) -> None:
        self._labels.keep(now)
        self._outbox.turn(now)

    def _wants(self, sample: Sample) -> bool:
        return matches_any(self._topics, sample.topic or "") and (self._filter is None or self._filter(sample))

    def _on_acknowledged(self, sample: Sample, response: bytes | None, auto: AutoReason | None) -> None:
        self._label_acks.acknowledged(sample, response, auto)


def _check(qos: ReaderQos, start: ReaderStart, labels: frozenset[str], max_samples: int) -> None:
    for what, name in (("name", start.reader), ("role", start.role)):
        if name is not None and not 0 < len(name) <= MAX_NAME_CHARACTERS:
            raise InconsistentQosError(f"A reader's {what} has 1 to {MAX_NAME_CHARACTERS} characters, not {len(name)}.")
    if not qos.reliable:
        raise InconsistentQosError("This reader acknowledges: make it reliable, or read the topic with any consumer.")
    if labels and qos.kind == "protocol":
        raise InconsistentQosError(
            "Labels report that the application has finished with a sample: choose an application kind for them."
        )
    if max_samples < 1:
        raise InconsistentQosError(f"max_samples is {max_samples}; it must be at least 1.")


class LabelAcks:
    """Acknowledges the declared labels that a message requests, to the request with the message's correlation-id.

    The message has the record headers ``correlation-id`` and ``requested-acks`` (a JSON list of labels). Its thing is
    named by the header ``ditto-entity-id``, or else by the key if that is an id (``namespace:name``).
    """

    def __init__(self, labels: Labels, outbox: Outbox) -> None:
        """Acknowledge ``labels`` through ``outbox``."""
        self._labels, self._outbox = labels, outbox

    def acknowledged(self, sample: Sample, response: bytes | None, auto: AutoReason | None) -> None:
        """Acknowledge that the application has finished with a sample; weakly if it never saw the sample."""
        payload, weak = (_payload(response), {}) if auto is None else (raw(FILTERED), {WEAK_ACK: True})
        self._issue(sample, lambda label, headers: Acknowledgement(label, OK, payload, headers | weak))

    def rejected(self, sample: Sample, reason: str, status: int) -> None:
        """Report that the application rejected a sample."""
        self._issue(sample, lambda label, headers: Acknowledgement(label, status, raw(reason), headers))

    def failed(self, sample: Sample, error: BaseException) -> None:
        """Report that the handler failed."""
        self._issue(sample, lambda label, headers: issued_ack(label, error, headers))

    def _issue(self, sample: Sample, write: Callable[[str, dict[str, Any]], Acknowledgement]) -> None:
        """Send what ``write`` returns for each requested label and the headers of its acknowledgement."""
        requested, correlation_id = text(sample.headers.get(REQUESTED_ACKS)), text(sample.headers.get(CORRELATION_ID))
        held = self._labels.held
        if not requested or not held or not correlation_id:
            return
        headers = {CORRELATION_ID: correlation_id}
        if sample.headers.get(CHANNEL) == b"live":
            headers[CHANNEL] = "live"
        labels = [label for label in requested_acks_in(requested) if isinstance(label, str) and label in held]
        for label in dict.fromkeys(labels):
            message = write_ack(write(label, headers), _thing_id(sample))
            self._outbox.send(correlation_id, message, Work(sample.offset))


def _thing_id(sample: Sample) -> str:
    for id_ in (text(sample.headers.get(ENTITY_ID)).removeprefix("thing:"), text(sample.key)):
        namespace, _, name = id_.partition(":")
        if namespace and name and "/" not in id_:
            return id_
    return "unknown:unknown"


def _payload(response: bytes | None) -> Raw | UnsetType:
    """Return a response as a JSON value: itself if it is JSON, else its text, else its base64."""
    if response is None:
        return UNSET
    try:
        return raw(msgspec.json.decode(response))
    except (*UNREADABLE, OverflowError):
        pass
    try:
        return raw(response.decode())
    except UnicodeDecodeError:
        return raw(base64.b64encode(response).decode())
