"""Reading publishers' messages and saying, message by message, that the application has finished with them."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ackstream.client.errors import ClientError, ReaderClosedError, SettleTimeout
from ackstream.client.labels import Labels
from ackstream.client.outbox import Outbox
from ackstream.client.readers.feed import SampleFeed
from ackstream.client.readers.label_acks import LabelAcks
from ackstream.client.readers.prefetch_buffer import PrefetchBuffer
from ackstream.client.readers.qos import ReaderQos
from ackstream.client.receipts import ReaderStatistics
from ackstream.errors import InconsistentQosError
from ackstream.kafka.clients import Closing
from ackstream.protocol.patterns import matches_any
from ackstream.protocol.readers import ReaderStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ackstream.client.readers.samples import Sample
    from ackstream.protocol.readers import AutoReason
    from ackstream.settings import Kafka, Lake

log = logging.getLogger(__name__)

MAX_SAMPLES = 10_000
MAX_NAME_CHARACTERS = 255
ANY = 2**31
"""Of the samples that are there."""

START_TIMEOUT = 60.0


class SampleReader(Closing):
    """Gets each message that is stored and not refused, a writer's in their order, and acknowledges it to its writer.

    What counts as acknowledged is the kind of ``qos``: ``protocol``, the message is here; ``application-auto`` (the
    default), the application has accessed it; ``application-explicit``, it says so. ``name`` is durable: what was
    acknowledged under it does not come again, everything else does, from Kafka or from the table ``messages``.

    Two styles. With a ``handler`` it is called for one sample after the other, in a thread of its own;
    ``application-auto`` acknowledges when it has returned. Without one the application takes copies (:meth:`take`), or
    borrows (:meth:`loan`). A sample whose handler or ``with`` block raises stays unacknowledged and comes again with
    the next start.

    Samples of other ``topics``, or that ``filter`` does not want, are acknowledged as ``filtered``: their writers do
    not wait for code that will never see them. Safe to use from several threads.
    """

    def __init__(  # noqa: PLR0913 - what a reader can be told is many things, each with a default
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
        """Connect and begin; when this returns, settle knows this reader, and the writers wait for it.

        :param name: unique; a second reader of the name ends the first
        :param role: the required subscription it serves
        :param durable: samples are kept for it while it is away, without a role, too
        :param writers: whose messages it reads; ``*`` stands for any run of characters
        :param topics: which subjects it wants of them
        :param filter: what it wants of those, by their content
        :param labels: those that it issues for messages that request them; see ``label_acks``
        :param lake: where the tables are, for what Kafka has deleted; ``None``: Kafka alone
        :param max_samples: so many may wait, or be with the application unacknowledged, before no more are read
        :param start_timeout: seconds that settle may take to answer
        :raises InconsistentQosError: settings that contradict each other
        :raises DittoError: 409, others have the labels; 400, a label is invalid
        :raises UnreachableError: no broker, or a topic is missing; with the remedy
        :raises SettleTimeout: nobody answers
        """
        self._qos = qos or ReaderQos(kind="application-auto")
        self._topics = tuple(topics)
        self._filter = filter
        self._stays = durable or role is not None
        issued = frozenset(labels)
        start = ReaderStart(name, time.time_ns() // 1_000_000, role, durable, tuple(writers))
        _check(self._qos, start, issued, max_samples)
        self._inbox = PrefetchBuffer(self._qos, name, epoch=start.epoch, role=role, wanted=self._wants, told=self._tell)
        self._closed = threading.Event()
        self._handling = threading.Thread(
            target=self._handle_all, args=(handler,), name="ackstream-samples", daemon=True
        )
        with ExitStack() as stack:
            self._labels = Labels(stack, kafka, issued, None)
            self._feed = SampleFeed(
                kafka, self, self._inbox, start, max_samples=max_samples, lake=lake, turn=self._turn
            )
            self._outbox = Outbox(self._feed.producer, kafka.topic("acks"))
            self._label_acks = LabelAcks(self._labels, self._outbox)
            with ExitStack() as failing:
                failing.callback(self._feed.close, leave=False)
                self._feed.run()
                if not self._feed.started.wait(start_timeout):
                    raise SettleTimeout(
                        f"No answer to the start of {name} within {start_timeout:g} s: start the job that settles"
                        " acknowledgements (`ackstream submit settle`)."
                    )
                failing.pop_all()
            self._connected = stack.pop_all()
        if handler is not None:
            self._handling.start()

    # -- for the application -----------------------------------------------------------------------------------------

    def take(self, max_samples: int = ANY, timeout: float | None = 0.0) -> list[Sample]:
        """Return copies of samples that were not handed out yet; ``application-auto`` acknowledges them with it.

        :param timeout: seconds to wait where there are none; ``None``: for ever
        :raises ReaderClosedError: the reader was closed
        :raises TakenOverError: another one has begun under this name
        """
        return self._inbox.take(max_samples, timeout)

    @contextmanager
    def loan(self, max_samples: int = ANY, timeout: float | None = 0.0) -> Iterator[list[Sample]]:
        """Lend samples as :meth:`take` does; ``application-auto`` acknowledges them when the block has ended well."""
        lent = self._inbox.lend(max_samples, timeout)
        yield lent.samples
        self._inbox.give_back(lent)

    def acknowledge_sample(self, sample: Sample, response: bytes | None = None) -> None:
        """Say that the application has finished with a sample, in any order, from any thread; a second time is nothing.

        :param response: what its writer gets to see, at most ``max_response_length`` bytes of the qos
        :raises PreconditionNotMetError: it was not handed out
        :raises BadParameterError: the response is too long; nothing is acknowledged
        """
        self._inbox.acknowledge(sample.writer, sample.seq, response)

    def acknowledge_all(self, response: bytes | None = None) -> None:
        """Acknowledge everything that was handed out, and nothing that was not.

        :raises BadParameterError: the response is too long; nothing is acknowledged
        """
        self._inbox.acknowledge_all(response)

    def reject_sample(self, sample: Sample, reason: str, status: int = 400) -> None:
        """Say that the application could not do it, to whoever requested a label of this reader.

        Towards its writer it stays unacknowledged, as Connext has no other word: it comes again with the next start.
        """
        self._inbox.counts["rejected"] += 1
        self._label_acks.rejected(sample, reason, status)

    @property
    def labels(self) -> frozenset[str]:
        """The labels that are ours at the moment."""
        return self._labels.held

    @property
    def statistics(self) -> ReaderStatistics:
        """What has happened so far."""
        counts = self._inbox.counts
        names = set(ReaderStatistics.__struct_fields__) - {"waiting", "unreadable"}
        return ReaderStatistics(
            **{name: counts[name] for name in names}, waiting=self._inbox.held, unreadable=self._feed.unreadable
        )

    def close(self, *, leave: bool = True) -> None:
        """Stop after the sample at hand, send what is acknowledged (for at most 5 s), give the labels back.

        :param leave: a reader that is neither durable nor in a role says that it will not come back, so that nobody
            waits for it; without, its samples are kept until its lease ends
        """
        if self._closed.is_set():
            return
        self._closed.set()
        self._inbox.end(ReaderClosedError("The reader is closed."))
        if self._handling.ident is not None and self._handling is not threading.current_thread():
            self._handling.join()
        self._feed.close(leave=leave and not self._stays)
        self._connected.close()

    # -- in the threads ----------------------------------------------------------------------------------------------

    def _handle_all(self, handler: Callable[[Sample], object]) -> None:
        """Call the handler for one sample after the other, until the reader ends."""
        while True:
            try:
                lent = self._inbox.lend(1, None)
            except ClientError as end:
                if not isinstance(end, ReaderClosedError):
                    log.error("The reader has ended: %s", end)  # noqa: TRY400 - the sentence is all there is to say
                return
            (sample,) = lent.samples
            try:
                handler(sample)
            except Exception as error:
                self._inbox.counts["failed"] += 1
                log.exception("The handler failed for message %s of %s.", sample.seq, sample.writer)
                self._label_acks.failed(sample, error)
            else:
                self._inbox.give_back(lent)

    def _turn(self, now: float) -> None:
        self._labels.keep(now)
        self._outbox.turn(now)

    def _wants(self, sample: Sample) -> bool:
        return matches_any(self._topics, sample.topic or "") and (self._filter is None or self._filter(sample))

    def _tell(self, sample: Sample, response: bytes | None, auto: AutoReason | None) -> None:
        self._label_acks.acknowledged(sample, response, auto)


def _check(qos: ReaderQos, start: ReaderStart, labels: frozenset[str], max_samples: int) -> None:
    for what, name in (("name", start.reader), ("role", start.role)):
        if name is not None and not 0 < len(name) <= MAX_NAME_CHARACTERS:
            raise InconsistentQosError(f"A reader's {what} has 1 to {MAX_NAME_CHARACTERS} characters, not {len(name)}.")
    if not qos.reliable:
        raise InconsistentQosError("This reader acknowledges: make it reliable, or read the topic with any consumer.")
    if labels and qos.kind == "protocol":
        raise InconsistentQosError("Labels say what the application has done: take an application kind for them.")
    if max_samples < 1:
        raise InconsistentQosError(f"max_samples is {max_samples}; it must be at least 1.")
