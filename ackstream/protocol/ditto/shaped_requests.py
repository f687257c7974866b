"""Requests whose headers have a shape that was seen before, and what an aggregate repeats of these headers.

The requests of a producer differ in their ids, traces and payloads, rarely in the names of their headers and in the
values that decide what is awaited. So what these come to is found once, by ``read_request``, and remembered. What is
unusual, or wrong, goes through that door itself, with the same result.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from ackstream.protocol.ditto.aggregates import headers_text, read_text
from ackstream.protocol.ditto.envelopes import Envelope
from ackstream.protocol.ditto.headers import CONTENT_TYPE, CORRELATION_ID, DEFINITIONS, TEXTS
from ackstream.protocol.ditto.requests import Request, read_request
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.errors import DittoError

_encode = msgspec.json.Encoder().encode
_SOME_TEXT = "text"


def answered(request: Request, correlation_id: str) -> tuple[Request, bytes]:
    """Return a request whose only header is its correlation-id, and as text what an aggregate repeats of them all."""
    own = {CORRELATION_ID: correlation_id}
    return msgspec.structs.replace(request, headers=own), bytes(headers_text(request.headers | own))


def read_shaped(
    envelope: Envelope, correlation_id: str, default_timeout_ms: int, max_timeout_ms: int
) -> tuple[Request, bytes] | None:
    """Return what :func:`answered` does of a request as ``read_request`` reads it.

    :param envelope: a small one; headers of its shape are remembered
    :param correlation_id: of the record, which is not too long
    :return: ``None`` for everything unusual, right or wrong
    """
    headers, topic = envelope.headers, envelope.topic
    if (
        envelope.status is not None
        or headers.get(CORRELATION_ID, correlation_id) != correlation_id
        or not correlation_id
    ):
        return None
    names = tuple(headers)
    texts, typed, spelled = _names(names)
    if not spelled:
        return None
    for name in texts:
        if type(headers[name]) is not str:
            return None
    values = [headers[name] for name in typed]
    try:
        shape = _shape(
            (topic.group, topic.channel, topic.criterion, topic.action, topic.subject is None, topic.stream_action),
            names,
            default_timeout_ms,
            max_timeout_ms,
            *map(_comparable, values),
        )
    except (DittoError, TypeError):
        # wrong, or of a type that cannot be compared
        return None
    like, repeated, own = shape
    answer = repeated.copy()
    for name in own:
        answer[name] = headers[name]
    answer[CORRELATION_ID] = correlation_id
    request = Request(
        None if like.thing_id is None else topic.thing_id,
        like.channel,
        like.kind,
        like.awaited,
        like.response_required,
        like.waits_for_acks,
        like.timeout_ms,
        {CORRELATION_ID: correlation_id},
        topic.criterion,
        topic.action,
        topic.subject,
        envelope.path,
    )
    return request, _encode(answer)


def _comparable(value: Any) -> Any:
    """Return a list of texts as a tuple; one of anything else stays as it is, because ``[1]`` equals ``[True]``."""
    return tuple(value) if type(value) is list and all(type(item) is str for item in value) else value


@lru_cache(maxsize=4096)
def _names(names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Divide the names of headers: those whose values are any text, and those whose values matter.

    :return: both, and whether all known ones are in lower case, as they are written again
    """
    texts = tuple(name for name in names if name in TEXTS or name not in DEFINITIONS)
    typed = tuple(name for name in names if name not in texts and name != CORRELATION_ID)
    return texts, typed, all(name in DEFINITIONS or name.lower() not in DEFINITIONS for name in names)


@lru_cache(maxsize=4096, typed=True)
def _shape(
    topic: tuple[Any, ...], names: tuple[str, ...], default_timeout_ms: int, max_timeout_ms: int, *values: Any
) -> tuple[Request, dict[str, Any], tuple[str, ...]]:
    """Read a request like those of a shape.

    :param values: of the headers that are no texts
    :return: the request, the headers that an aggregate repeats, and the names of those with the values of each request
    """
    group, channel, criterion, action, whole, stream_action = topic
    texts, typed, _ = _names(names)
    known = {name: list(value) if type(value) is tuple else value for name, value in zip(typed, values, strict=True)}
    headers = {name: known.get(name, _SOME_TEXT) for name in names}
    path = TopicPath("ns", "name", group, channel, criterion, action, None if whole else _SOME_TEXT, stream_action)
    request = read_request(
        Envelope(path, headers), default_timeout_ms=default_timeout_ms, max_timeout_ms=max_timeout_ms
    )
    repeated = read_text(answered(request, _SOME_TEXT)[1])
    return request, repeated, tuple(name for name in texts if name in repeated and name != CONTENT_TYPE)
