"""Receiving commands and messages and acknowledging them, as devices, gateways to devices and services do."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from ackstream.client.receipts import ResponderStatistics
from ackstream.client.signals import Answer, Signal, failure, messages, read_signal
from ackstream.client.worker import Start, Worker
from ackstream.kafka.clients import Closing
from ackstream.protocol.errors import DittoError
from ackstream.settings import Kafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackstream.client.group import Work

log = logging.getLogger(__name__)


class Responder(Closing):
    """Calls a handler for each signal and sends the answers that it returns, all in one thread.

    The handler is called for commands and messages in the order of each partition, which keeps the signals of one
    thing in order. It returns ``Ack``, ``Response``, a ``DittoError``, ``After`` one of these, several in a list, or
    ``None``. It should be quick: answer slow work with ``After``, or add responders to the group. An exception becomes
    a nack with status 500 (a ``DittoError``: its own) and the error's text.

    Invalid requests are skipped with a warning; the service answers them. With a group, offsets are committed when the
    answers are stored: after a crash or a restart some signals are handled again, none is missed.
    """

    def __init__(
        self,
        kafka: Kafka | None,
        handler: Callable[[Signal], Answer],
        *,
        labels: Iterable[str] | None = None,
        group: str | None = None,
        start: Start = "latest",
        bootstrap: str = "localhost:9092",
        topic_prefix: str = "",
    ) -> None:
        """Connect and begin; when this returns, every signal sent from now on will be handled (by the group).

        :param kafka: the broker as in the settings; ``None`` for ``bootstrap`` and ``topic_prefix``
        :param labels: those this responder issues, with ``live-response`` if it responds to live commands and messages;
            the handler does not see a signal's other labels. ``None``: all
        :param group: the consumer group whose members share the work; ``None``: alone, with all signals from now on
        :param start: where a group without offsets begins
        :raises UnreachableError: no broker, or a topic is missing; with the remedy
        """
        self._handler = handler
        self._labels = None if labels is None else frozenset(labels)
        self._counts: Counter[str] = Counter()
        settings = kafka or Kafka(bootstrap=bootstrap, topic_prefix=topic_prefix)
        self._worker = Worker(settings, ["signals"], self._handle, group, start)
        self._worker.run()

    @property
    def statistics(self) -> ResponderStatistics:
        """The counts since the start."""
        counts, outbox = self._counts, self._worker.outbox
        skipped = counts["skipped"] + self._worker.skipped
        return ResponderStatistics(
            received=counts["handled"] + skipped,
            handled=counts["handled"],
            skipped=skipped,
            failed=counts["failed"],
            answers=outbox.stored,
            delayed=outbox.delayed,
            sending=outbox.sending,
            lost=outbox.lost,
            unreadable=self._worker.unreadable,
        )

    def close(self) -> None:
        """Stop after the signals already read, store their answers (for at most 5 s) and commit; may be called twice.

        Delayed answers that are not due are dropped; a member of the group handles their signals again.
        """
        self._worker.close()

    def _handle(self, record: Any, work: Work) -> None:
        try:
            signal = read_signal(record, self._labels)
        except DittoError as error:
            self._counts["skipped"] += 1
            log.warning("A record of %s was skipped (offset %s): %s", record.topic, record.offset, error)
            return
        self._counts["handled"] += 1
        try:
            for delay, message in messages(signal, self._handler(signal)):
                self._worker.send(signal.correlation_id, message, work, delay)
        except Exception as error:
            self._counts["failed"] += 1
            log.exception("The handler failed for %s.", signal.correlation_id)
            for message in failure(signal, error):
                self._worker.send(signal.correlation_id, message, work)
