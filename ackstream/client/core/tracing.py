"""Spans of OpenTelemetry: from a request to its reply, a message until its receipt, the processing of a record.

Without the extra ``tracing`` nothing is traced; without a tracer provider OpenTelemetry itself drops the spans.
Source of names and kinds: OpenTelemetry's semantic conventions for messaging.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ackstream import __version__
from ackstream.protocol.record_headers import TRACEPARENT

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

W = TypeVar("W")
"""The work of a record."""


@cache
def _tracer() -> Tracer | None:
    try:
        from opentelemetry import trace  # noqa: PLC0415 - of the extra, and half of the time of importing the client
    except ModuleNotFoundError:
        return None
    return trace.get_tracer(__package__, __version__)


def trace_sending(
    kind: Literal["CLIENT", "PRODUCER"],
    topic: str,
    attributes: dict[str, str],
    future: Future[Any],
    describe: Callable[[Any], tuple[dict[str, Any], str | None]],
) -> list[tuple[str, bytes]]:
    """Begin a record's span, in the caller's if there is one; return the trace header. The span ends with the future.

    ``describe`` returns the attributes of an outcome of the future, and the reason if it is a failure.
    """
    tracer = _tracer()
    if tracer is None:
        return []
    from opentelemetry.trace import INVALID_SPAN, SpanKind, get_current_span, set_span_in_context  # noqa: PLC0415

    if get_current_span() is INVALID_SPAN and _is_idle(tracer):
        return []
    named = {**_messaging(topic, "send"), **attributes}
    span = tracer.start_span(f"send {topic}", kind=SpanKind[kind], attributes=named)
    carrier: dict[str, str] = {}
    _propagator().inject(carrier, set_span_in_context(span))
    future.add_done_callback(partial(_end, span, describe))
    return [(TRACEPARENT, carrier[TRACEPARENT].encode())] if TRACEPARENT in carrier else []


def traced(handle: Callable[[Any, W], None]) -> Callable[[Any, W], None]:
    """Return a function that handles a record of Kafka within a span; it belongs to the trace of the record."""
    tracer = _tracer()
    if tracer is None:
        return handle
    from opentelemetry.trace import SpanKind  # noqa: PLC0415

    def handle_traced(record: Any, work: W) -> None:
        carrier = {name: value.decode("latin-1") for name, value in record.headers if name == TRACEPARENT and value}
        if not carrier and _is_idle(tracer):
            handle(record, work)
            return
        with tracer.start_as_current_span(
            f"process {record.topic}",
            context=_propagator().extract(carrier),
            kind=SpanKind.CONSUMER,
            attributes={**_messaging(record.topic, "process"), "messaging.kafka.offset": record.offset},
        ):
            handle(record, work)

    return handle_traced


def _is_idle(tracer: Tracer) -> bool:
    """Return whether a span without a trace would be dropped, which costs more than the rest: no provider yet."""
    from opentelemetry.trace import ProxyTracer, ProxyTracerProvider, get_tracer_provider  # noqa: PLC0415

    return isinstance(tracer, ProxyTracer) and isinstance(get_tracer_provider(), ProxyTracerProvider)


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


def _end(span: Span, describe: Callable[[Any], tuple[dict[str, Any], str | None]], future: Future[Any]) -> None:
    from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415

    if future.cancelled():
        span.set_status(Status(StatusCode.ERROR, "cancelled"))
    elif (error := future.exception()) is not None:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    elif span.is_recording():
        attributes, failure = describe(future.result())
        span.set_attributes(attributes)
        if failure is not None:
            span.set_status(Status(StatusCode.ERROR, failure))
    span.end()
