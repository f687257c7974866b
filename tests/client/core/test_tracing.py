"""Spans of OpenTelemetry: what a request and its receivers tell a tracer provider of the application."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, ProxyTracer, SpanContext, SpanKind, StatusCode, TraceFlags, use_span

from ackstream.client import RequestTimeout
from ackstream.client.core import tracing
from ackstream.client.publishing import publications
from ackstream.client.publishing.publications import Receipt
from ackstream.client.requests import replies
from ackstream.client.requests.replies import Reply
from ackstream.protocol.record_headers import TRACEPARENT, checked_trace

TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> TracerProvider:
    made = TracerProvider()
    monkeypatch.setattr(tracing, "_tracer", lambda: made.get_tracer("test"))
    return made


@pytest.fixture
def spans(provider: TracerProvider) -> list[ReadableSpan]:
    """Return the spans that have ended, as they end."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter._finished_spans  # type: ignore[no-any-return]


def reply(status: int, completed_by: str, value: dict[str, Any]) -> Reply:
    message = {"topic": "org.acme/lamp/things/twin/acks", "headers": {}, "path": "/", "value": value, "status": status}
    return Reply("c-1", "r-1", status, completed_by, msgspec.json.encode(message))


def request(future: Future[Any]) -> list[tuple[str, bytes]]:
    attributes = {"messaging.message.conversation_id": "c-1", "ackstream.thing_id": "org.acme:lamp"}
    return tracing.trace_sending("CLIENT", "signals", attributes, future, replies.described)


def message(future: Future[Any]) -> list[tuple[str, bytes]]:
    return tracing.trace_sending("PRODUCER", "messages", {}, future, publications.described)


def test_a_request_is_a_span_until_its_reply_and_its_record_carries_the_trace(spans: list[ReadableSpan]) -> None:
    future: Future[Any] = Future()
    ((name, value),) = request(future)
    assert not spans
    future.set_result(reply(200, "acknowledgements", {}))
    (span,) = spans
    assert (name, checked_trace(value)) == (TRACEPARENT, value)
    assert value.split(b"-")[1:3] == [b"%032x" % span.context.trace_id, b"%016x" % span.context.span_id]
    assert (span.name, span.kind, span.status.status_code) == ("send signals", SpanKind.CLIENT, StatusCode.UNSET)
    assert dict(span.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.destination.name": "signals",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.message.conversation_id": "c-1",
        "ackstream.thing_id": "org.acme:lamp",
        "ackstream.status": 200,
        "ackstream.completed_by": "acknowledgements",
    }


def test_a_request_belongs_to_the_span_in_which_it_is_sent(provider: TracerProvider, spans: list[ReadableSpan]) -> None:
    future: Future[Any] = Future()
    with provider.get_tracer("application").start_as_current_span("outer"):
        request(future)
    future.cancel()
    outer, span = spans
    assert span.parent == outer.context
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "cancelled")


def test_a_timeout_names_who_is_missing(spans: list[ReadableSpan]) -> None:
    future: Future[Any] = Future()
    request(future)
    late = {"status": 408, "headers": {}}
    answer = reply(424, "timeout", {"a:b": {"status": 200, "headers": {}}, "c:d": late})
    future.set_result(answer)
    (span,) = spans
    named = {"correlation_id", "reply_id", "status", "completed_by", "data", "timestamp", "version"}
    assert vars(answer).keys() == named, (
        "nothing of it is decoded: a gateway writes its client's ids into the message first"
    )
    assert (span.attributes or {})["ackstream.missing"] == ("c:d",)
    assert span.status.description == "The deadline passed before this arrived: c:d."


def test_an_error_and_a_reply_that_cannot_be_read_end_the_span_too(spans: list[ReadableSpan]) -> None:
    for outcome in (RequestTimeout("No reply.", "c-1"), Reply("c-1", "r-1", 500, "error", b"{not JSON")):
        future: Future[Any] = Future()
        request(future)
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
    failed, unreadable = spans
    assert (failed.status.status_code, [event.name for event in failed.events]) == (StatusCode.ERROR, ["exception"])
    assert (unreadable.attributes or {})["ackstream.status"] == 500


def test_a_message_is_a_span_until_its_receipt_and_takes_the_trace_with_it(spans: list[ReadableSpan]) -> None:
    future: Future[Any] = Future()
    ((name, value),) = message(future)
    future.set_result(Receipt(7, "persisted", None, 7, 1_000, duplicate=True))
    (span,) = spans
    assert (name, checked_trace(value)) == (TRACEPARENT, value)
    assert (span.name, span.kind, span.status.status_code) == ("send messages", SpanKind.PRODUCER, StatusCode.UNSET)
    told = {key: value for key, value in (span.attributes or {}).items() if not key.startswith("messaging.")}
    assert told == {"ackstream.seq": 7, "ackstream.stage": "persisted", "ackstream.duplicate": True}


def test_a_record_of_no_trace_is_handled_without_a_span_while_there_is_no_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(ProxyTracer, "start_as_current_span", lambda _self, name, **_: nullcontext(begun.append(name)))
    handled: list[int] = []
    handle = tracing.traced(lambda record, _work: handled.append(record.offset))
    for offset, headers in enumerate(([("x", b"y")], [(TRACEPARENT, TRACE)])):
        handle(SimpleNamespace(topic="signals", offset=offset, headers=headers), "work")
    assert handled == [0, 1]
    assert begun == ["process signals"]


def test_without_a_provider_a_record_carries_the_trace_in_which_it_is_sent_if_there_is_one() -> None:
    context = SpanContext(
        0x4BF92F3577B34DA6A3CE929D0E0E4736, 0xF067AA0BA902B7, is_remote=True, trace_flags=TraceFlags(1)
    )
    future: Future[Any] = Future()
    assert request(future) == []
    # nothing waits for its end
    assert not future._done_callbacks  # type: ignore[attr-defined]
    with use_span(NonRecordingSpan(context)):
        assert request(future) == [(TRACEPARENT, TRACE)]


def test_a_receiver_handles_a_record_in_its_trace(spans: list[ReadableSpan]) -> None:
    handled: list[Any] = []
    handle = tracing.traced(lambda record, work: handled.append((record.offset, work)))
    handle(SimpleNamespace(topic="signals", offset=7, headers=[("x", b"y"), (TRACEPARENT, TRACE)]), "work")
    handle(SimpleNamespace(topic="signals", offset=8, headers=[(TRACEPARENT, None)]), "work")
    assert handled == [(7, "work"), (8, "work")]
    traced, alone = spans
    assert (traced.name, traced.kind) == ("process signals", SpanKind.CONSUMER)
    assert (f"{traced.context.trace_id:x}", alone.parent) == ("4bf92f3577b34da6a3ce929d0e0e4736", None)


def test_without_the_package_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    tracing._tracer.cache_clear()
    try:
        assert request(Future()) == []
        assert tracing.traced(print) is print
    finally:
        tracing._tracer.cache_clear()
