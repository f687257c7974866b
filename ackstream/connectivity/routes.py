"""Routes: messages of publishers, forwarded to another system and acknowledged hop by hop (Connext 31.12.8, R23).

A route reads like any reader, and publishes in the other system like any publisher. It acknowledges a message once the
other system has stored it; an end-to-end acknowledgement is a label, which is requested by the message. A message is
forwarded at least once, with its origin, and never by a route whose name it already has.
"""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ackstream.client import ClientError, Publisher, ReaderQos, Receipt, Sample, SampleReader, WriterQos
from ackstream.client.core.connection import connection_of
from ackstream.client.core.labels import Labels
from ackstream.client.core.lifetime import Client, Lifetime
from ackstream.client.core.messages import Answers, LabelAcks, text
from ackstream.client.errors import FlushTimeout, HandlerFailedError, ReaderClosedError, RefusedError, WouldBlockError
from ackstream.client.reading.samples import usable_lake
from ackstream.connectivity.transports.transport import EXPECTED, OPEN_SECONDS, TURN_SECONDS, Runner
from ackstream.errors import BadParameterError
from ackstream.kafka.clients import CLOSE_SECONDS, MAX_BACKOFF_SECONDS, backoff
from ackstream.observe.endpoint import HEALTH
from ackstream.observe.metrics import FIGURES, ROUTE_OPEN
from ackstream.protocol.record_headers import ORIGINAL_SEQ, ORIGINAL_WRITER, ROUTED_BY
from ackstream.settings import Kafka, Lake, RouteSettings, Settings

log = logging.getLogger(__name__)

PREFIX = "route-"
"""Prefix of a route's name: the result is its name as a reader here, and as a publisher there."""

END_TO_END_SECONDS = 0.5
MAX_AWAITING = 10_000
"""Limit of end-to-end acknowledgements that are due; beyond it the oldest are given up and time out."""


def headers_behind(route: str, sample: Sample) -> list[tuple[str, bytes]]:
    """Return the headers of a message after a route: its own, the route's name, and its origin."""
    passed = _passed(sample)
    origin = {} if passed else {ORIGINAL_WRITER: sample.publisher.encode(), ORIGINAL_SEQ: b"%d" % sample.seq}
    headers = {name: value or b"" for name, value in sample.headers.items()}
    return [*(headers | origin | {ROUTED_BY: f"{passed},{route}".lstrip(",").encode()}).items()]


def has_passed(route: str, sample: Sample) -> bool:
    """Return whether a message has passed a route of this name."""
    return route in _passed(sample).split(",")


def _passed(sample: Sample) -> str:
    """Return the routes that a message has passed; the header of any other publisher is ignored."""
    return text(sample.headers.get(ROUTED_BY)) if sample.publisher.startswith(PREFIX) else ""


class Route(Client):
    """Forwards messages until it is closed, or an error ends it (:meth:`wait_closed`).

    A message that the other system refuses stays unacknowledged, is logged, and is retried at the next start; its
    publisher finds the route in ``waiting_for``. Once the reader's buffer is full of them, the route ends.
    """

    def __init__(self, route: RouteSettings, kafka: Kafka, lake: Lake | None = None, *, timeout: float = 60.0) -> None:
        """Connect both sides and begin; raises ``DittoError`` if another client has the label.

        :param lake: the tables, for messages that Kafka has deleted
        :param timeout: seconds to wait for persist and settle of both systems
        """
        self._route, self._name = route, PREFIX + route.name
        self._closing = threading.Event()
        self._life = Lifetime(lambda _error: self._closing.set())
        self._changed = threading.Condition()
        self._passing = 0
        # by number there: the messages whose end-to-end acknowledgement is due
        self._awaiting: dict[int, Sample] = {}
        self._look_at = 0.0
        self._thread = self._life.thread(self._run, f"ackstream-{self._name}")
        with ExitStack() as stack:
            self._labels = Labels(stack, kafka, frozenset(filter(None, [route.label])), None)
            connection = connection_of(kafka)
            producer: Any = closing(connection.producer(kafka.topic("acks"))) if route.label else nullcontext()
            self._outbox = Answers(stack.enter_context(producer), connection, self._labels)
            self._label_acks = LabelAcks(self._labels, self._outbox)
            # first: no message is read that cannot be forwarded
            self._publisher = Publisher(
                route.target(kafka),
                name=self._name,
                block=False,
                writer_qos=WriterQos() if route.label else None,
                logon_timeout=timeout,
                on_error=self._life.fail,
            )
            # the next run reads and forwards the messages that Kafka lacks
            stack.enter_context(suppress(FlushTimeout))
            stack.callback(self._publisher.close)
            self._reader = SampleReader(
                kafka,
                name=self._name,
                qos=ReaderQos(kind="application-explicit"),
                writers=route.writers,
                topics=route.topics,
                filter=lambda sample: not has_passed(route.name, sample),
                lake=usable_lake(lake),
                start_timeout=timeout,
                on_error=self._life.fail,
            )
            stack.callback(self._reader.close)
            self._thread.start()
            self._connected = stack.pop_all()

    def close(self) -> None:
        """Wait for messages on their way for at most 5 s and acknowledge them; the next run forwards the rest."""
        self._closing.set()
        self._thread.join()
        with suppress(ClientError):
            self._publisher.publish_flush(CLOSE_SECONDS if self.alive else 0.0)
        with self._changed:
            # an answer that was read is not yet an acknowledgement
            self._changed.wait_for(lambda: not self._passing, CLOSE_SECONDS if self.alive else 0.0)
        self._connected.close()
        self._life.close()

    # -- in its thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            self._keep()
            try:
                samples = self._reader.take(timeout=TURN_SECONDS)
            except ReaderClosedError:
                return
            if not samples and not self._passing and self._reader.full:
                raise HandlerFailedError(
                    f"The other system has refused all messages that the route {self._route.name} may hold: remove the"
                    " causes that its log names; they are retried at the next start."
                )
            for sample in samples:
                self._keep()
                self._pass_on(sample)

    def _keep(self) -> None:
        """Keep the label, and issue it where it is due, even while the other system accepts no messages."""
        now = time.monotonic()
        self._labels.keep(now)
        self._outbox.turn(now)
        if now >= self._look_at:
            self._look_at = now + END_TO_END_SECONDS
            self._confirm()

    def _pass_on(self, sample: Sample) -> None:
        with self._changed:
            self._passing += 1
        value, headers = sample.value or b"", headers_behind(self._route.name, sample)
        while not self._closing.is_set():
            try:
                future = self._publisher.publish(value, topic=sample.topic, key=sample.key, headers=headers)
            except WouldBlockError:
                self._keep()
                with self._changed:
                    self._changed.wait(TURN_SECONDS)
            except (RefusedError, BadParameterError) as error:
                self._finish(sample, error)
                return
            else:
                future.add_done_callback(partial(self._answered, sample))
                return
        self._finish(sample, ReaderClosedError("The route is closed."))

    def _confirm(self) -> None:
        """Issue the label for messages that all readers beyond the route have finished with."""
        for seq, sample in list(self._awaiting.items()):
            if self._publisher.is_sample_app_acknowledged(seq):
                self._awaiting.pop(seq, None)
                self._label_acks.acknowledged(sample, None, None)

    # -- in the publisher's thread -------------------------------------------------------------------------------------

    def _answered(self, sample: Sample, future: Future[Receipt]) -> None:
        error = future.exception()
        if error is None and self._label_acks.requested(sample):
            self._awaiting[future.result().seq] = replace(sample, value=None)
            if len(self._awaiting) > MAX_AWAITING:
                log.warning("%s waits for %s messages end to end, and gives the oldest up.", self._name, MAX_AWAITING)
                self._awaiting.pop(next(iter(self._awaiting)), None)
        self._finish(sample, error)

    def _finish(self, sample: Sample, error: BaseException | None) -> None:
        # otherwise the route or its publisher has ended: the message stays unacknowledged
        if error is None:
            self._reader.acknowledge_sample(sample)
        elif isinstance(error, (RefusedError, BadParameterError)):
            log.error("Message %s of %s was not forwarded by %s: %s", sample.seq, sample.publisher, self._name, error)
            self._label_acks.rejected(sample, str(error), 400)
        with self._changed:
            self._passing -= 1
            self._changed.notify_all()


class Router(Runner):
    """Runs routes, each in a thread; one that cannot be opened or has ended is opened again after 0.1 to 60 s."""

    def __init__(self, settings: Settings, routes: Sequence[RouteSettings]) -> None:
        self._settings = settings
        super().__init__({route.name: partial(self._keep_open, route) for route in routes})

    def _keep_open(self, settings: RouteSettings, stop: threading.Event) -> None:
        sign = f"The route {settings.name}"
        with HEALTH.expecting(sign, OPEN_SECONDS):
            attempts = 0
            while not stop.is_set():
                began = time.monotonic()
                FIGURES.set(ROUTE_OPEN, settings.name, value=0)
                try:
                    with Route(settings, self._settings.kafka, self._settings.lake) as route:
                        log.info("The route %s is open.", settings.name)
                        FIGURES.set(ROUTE_OPEN, settings.name, value=1)
                        while route.alive and not stop.wait(TURN_SECONDS):
                            HEALTH.beat(sign, time.monotonic())
                        route.wait_closed(0)
                except Exception as error:
                    FIGURES.set(ROUTE_OPEN, settings.name, value=0)
                    if not isinstance(error, EXPECTED):
                        log.exception("The route %s failed.", settings.name)
                    # any error of a client library: an ended thread would never open the route again
                    attempts = 1 if time.monotonic() - began > MAX_BACKOFF_SECONDS else attempts + 1
                    wait = backoff(attempts)
                    log.warning("The route %s is closed: %s It is opened again in %g s.", settings.name, error, wait)
                    stop.wait(wait)
        FIGURES.set(ROUTE_OPEN, settings.name, value=0)
