"""Spans of OpenTelemetry: from a request to its reply, a message until its receipt, the processing of a record.

Without the extra ``tracing`` nothing is traced; without a tracer provider OpenTelemetry itself drops the spans.
Source of names and kinds: OpenTelemetry's semantic conventions for messaging.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from ackstream import __version__
from ackstream.client.publishing.publications import Receipt
from ackstream.client.requests.replies import Reply
from ackstream.protocol.errors import DittoError
from ackstream.protocol.record_headers import TRACEPARENT

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from opentelemetry.trace import Span, Tracer

    from ackstream.protocol.ditto.topics import TopicPath

W = TypeVar("W")
"""The work of a record."""


@cache
def _tracer() -> Tracer | None:
    try:
        from opentelemetry import trace  # noqa: PLC0415 - of the extra, and half of the time of importing the client
    except ModuleNotFoundError:
        return None
    return trace.get_tracer(__package__, __version__)


def trace_request(topic: str, command: TopicPath, correlation_id: str, future: Future[Any]) -> list[tuple[str, bytes]]:
    """Begin the span of a request, which ends with its future; it belongs to the span of the caller, if there is one.

    :param topic: the Kafka topic that the request is sent to
    :return: the record header that carries the trace
    """
    attributes = {"messaging.message.conversation_id": correlation_id, "ackstream.thing_id": command.thing_id}
    return _begin("CLIENT", topic, attributes, future)


def trace_message(topic: str, name: str, future: Future[Any]) -> list[tuple[str, bytes]]:
    """Begin the span of a publisher's message, which ends with the future of its receipt.

    :param topic: the Kafka topic that it is sent to
    :param name: that of the publisher
    :return: the record header that carries the trace, stored with the message and delivered to its readers
    """
    return _begin("PRODUCER", topic, {"messaging.client.id": name}, future)


def _begin(kind: str, topic: str, attributes: dict[str, str], future: Future[Any]) -> list[tuple[str, bytes]]:
    tracer = _tracer()
    if tracer is None:
        return []
    from opentelemetry.trace import SpanKind, set_span_in_context  # noqa: PLC0415

    named = {**_messaging(topic, "send"), **attributes}
    span = tracer.start_span(f"send {topic}", kind=SpanKind[kind], attributes=named)
    carrier: dict[str, str] = {}
    _propagator().inject(carrier, set_span_in_context(span))
    future.add_done_callback(partial(_end, span))
    return [(TRACEPARENT, carrier[TRACEPARENT].encode())] if TRACEPARENT in carrier else []


def traced(handle: Callable[[Any, W], None]) -> Callable[[Any, W], None]:
    """Return a function that handles a record of Kafka within a span; it belongs to the trace of the record."""
    tracer = _tracer()
    if tracer is None:
        return handle
    from opentelemetry.trace import SpanKind  # noqa: PLC0415

    def handle_traced(record: Any, work: W) -> None:
        carrier = {name: value.decode("latin-1") for name, value in record.headers if name == TRACEPARENT and value}
        with tracer.start_as_current_span(
            f"process {record.topic}",
            context=_propagator().extract(carrier),
            kind=SpanKind.CONSUMER,
            attributes={**_messaging(record.topic, "process"), "messaging.kafka.offset": record.offset},
        ):
            handle(record, work)

    return handle_traced


@cache
def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    return TraceContextTextMapPropagator()


def _messaging(topic: str, operation: str) -> dict[str, str]:
    return {
        "messaging.system": "kafka",
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


def _end(span: Span, future: Future[Any]) -> None:
    from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415

    if future.cancelled():
        span.set_status(Status(StatusCode.ERROR, "cancelled"))
    elif (error := future.exception()) is not None:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    elif isinstance(reply := future.result(), Reply):
        span.set_attribute("ackstream.status", reply.status)
        span.set_attribute("ackstream.completed_by", reply.completed_by)
        if not reply.ok and span.is_recording():
            # decoded apart: who asked may change the message before it reads it
            own = replace(reply)
            # a reply that is no message of the protocol has no further attributes
            with suppress(DittoError):
                span.set_attribute("ackstream.missing", own.missing)
                span.set_status(Status(StatusCode.ERROR, own.explanation))
    elif isinstance(receipt := future.result(), Receipt):
        span.set_attribute("ackstream.seq", receipt.seq)
        span.set_attribute("ackstream.stage", receipt.stage)
        span.set_attribute("ackstream.duplicate", receipt.duplicate)
    span.end()
