"""Receiving signals and acknowledging them: what a device, a gateway to devices or a service does."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from ackstream.client.receipts import ResponderStatistics
from ackstream.client.signals import Answer, Signal, failure, messages, read_signal
from ackstream.client.worker import Start, Worker
from ackstream.kafka.clients import Closing
from ackstream.protocol.ditto.errors import DittoError
from ackstream.settings import Kafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackstream.client.outbox import Work

log = logging.getLogger(__name__)


class Responder(Closing):
    """Calls a handler for each signal and sends what it answers; one thread for all of it.

    The handler is called for commands and messages in the order of each partition (signals of one thing keep theirs).
    It returns ``Ack``, ``Response``, a ``DittoError``, ``After`` one of these, several in a list, or ``None``; see
    ``answers``. It should be quick: what takes time is answered with ``After``, or by more responders in the group. An
    exception becomes a nack with status 500 (a ``DittoError``: its own) and the error's text.

    Signals that are no valid requests are skipped with a warning; the service answers them. With a group, offsets are
    committed when the answers are stored: after a crash or a restart some signals are handled again, none is left out.
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
        :param labels: those this responder issues, with ``live-response`` where it responds to live commands and
            messages; a signal's other labels are not shown to the handler. ``None``: all
        :param group: the consumer group whose members share the work; ``None``: alone, with all signals from now on
        :param start: where a group begins that has no offsets
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
        """What has happened so far."""
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
        """Stop after the signals at hand, store their answers (for at most 5 s) and commit; may be called twice.

        Delayed answers whose time has not come are not sent; a member of a group gets their signals again.
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
