"""A record of the topic ``queries``: one command of a client, as it is to be carried out or why it cannot be.

The client's name is the record's key; everything else is in record headers, of which the last of a name counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from ackstream.jobs.query.filters import FilterSyntaxError, read_filter
from ackstream.protocol import queries
from ackstream.protocol.messages import SUPPORTED
from ackstream.protocol.queries import NOT_SUPPORTED, QueryCommand

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NO_CLIENT, NO_COMMAND, TOO_LONG = "no client name", "no such command", "a name is too long"
NO_TOPIC, INVALID_TOPIC, INVALID_SUB_ID = "no topic", "invalid topic", "invalid subId"
INVALID_OPTIONS, INVALID_ORDER_BY = "invalid options", "invalid order by"
NOTHING_TO_DELETE, AMBIGUOUS = "no filter or keys", "more than one of filter and keys"

MAX_FILTER: Final = 10_000
"""Characters of a filter at most."""

MAX_NAME: Final = 1_000
"""Characters of what comes back with every record: the client's name, the command's, subscription's and topic's."""

UNSERVED: Final = frozenset({"publish", "delta_publish", "delta_subscribe", "sow_and_delta_subscribe"})
"""Messages are published on their own topic, and are whole: there are no deltas."""

WITH_TOPIC: Final = frozenset({"subscribe", "sow", "sow_and_subscribe", "sow_delete"})
_INTERVALS: Final = frozenset({"ack_conflation", "heartbeat"})
_OPTIONS: Final = {"subscribe": {"replace"}, "sow_and_subscribe": {"replace"}, "logon": _INTERVALS}
_ORDER = re.compile(r"((?:/@?[A-Za-z_][\w.-]*)+)(?:\s+(ASC|DESC))?", re.IGNORECASE)
_INTERVAL = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class UnreadableError(ValueError):
    """A record that is no command of anybody; the text says why."""


class OrderKey(NamedTuple):
    """A path in the message by which records are ordered."""

    path: tuple[str, ...]
    descending: bool


@dataclass(frozen=True)
class QueryRequest:
    """One command of a client.

    :param origin: where the command stands in its topic, ``partition-offset``: what it brings is named after it
    :param time: the broker's time of it, epoch milliseconds
    :param bookmark: as the client has written it
    :param conflation_ms: how often bookmarks shall come
    :param heartbeat_ms: how often a heartbeat comes (0: no more)
    :param reason: why it cannot be done, as far as it tells by itself
    """

    client: str
    origin: str
    time: int
    command: QueryCommand
    topic: str = ""
    sub_id: str = ""
    bookmark: str | None = None
    keys: tuple[str, ...] = ()
    order_by: tuple[OrderKey, ...] = ()
    options: frozenset[str] = frozenset()
    conflation_ms: int | None = None
    heartbeat_ms: int | None = None
    reason: str | None = None

    def refused(self, reason: str) -> QueryRequest:
        """Return the request with a reason, unless it has one."""
        return self if self.reason else replace(self, reason=reason)


def read(key: bytes | None, headers: Iterable[tuple[str, bytes | None]], origin: str, time: int) -> QueryRequest:
    """Read a record.

    :raises UnreadableError: nobody can be answered
    """
    client = (key or b"").decode("utf-8", "replace")
    if not client:
        raise UnreadableError(NO_CLIENT)
    said = {name: value.decode("utf-8", "replace") for name, value in headers if value is not None}
    name = said.get("command", "")
    if any(len(text) > MAX_NAME for text in (client, name, *map(said.get, ("cid", "sub_id", "topic"))) if text):
        raise UnreadableError(TOO_LONG)
    command = QueryCommand(name, said.get("cid"), queries.asked(said.get("ack", "").replace(" ", "").split(",")))
    request = QueryRequest(client, origin, time, command, sub_id=said.get("sub_id") or said.get("cid", ""))
    if name not in SUPPORTED:
        # it has a right to know, whatever it asked for
        asked = command.asked | {"processed"}
        return replace(request, command=replace(command, asked=asked), reason=NO_COMMAND)
    if name in UNSERVED:
        return request.refused(NOT_SUPPORTED)
    try:
        return _checked(_filled(request, said))
    except _WrongError as error:
        return request.refused(str(error))


class _WrongError(ValueError):
    """A header cannot be understood; the text is the reason."""


def _filled(request: QueryRequest, said: Mapping[str, str]) -> QueryRequest:
    name = request.command.name
    words = [word.strip() for word in said.get("options", "").split(",") if word.strip()]
    options, intervals = (frozenset(), _heartbeat(words)) if name == "heartbeat" else _options(name, words)
    top_n, seq = said.get("top_n"), said.get("seq")
    if not all(number is None or re.fullmatch(r"\d{1,18}", number) for number in (top_n, seq)):
        raise _WrongError(INVALID_OPTIONS)
    keys = tuple(filter(None, said.get("sow_keys", "").split(",")))
    command = replace(
        request.command,
        seq=int(seq) if seq is not None else None,
        filter=said.get("filter") or None,
        top_n=int(top_n) if top_n is not None else None,
    )
    return replace(
        request,
        command=command,
        topic=said.get("topic", ""),
        bookmark=said.get("bookmark") or None,
        keys=keys,
        order_by=_order_by(said.get("order_by", "")),
        options=options,
        conflation_ms=intervals.get("ack_conflation"),
        heartbeat_ms=intervals.get("heartbeat"),
    )


def _checked(request: QueryRequest) -> QueryRequest:
    command = request.command
    name = command.name
    if name in WITH_TOPIC and not request.topic:
        return request.refused(NO_TOPIC)
    if "subscribe" in name and not request.sub_id:
        return request.refused(INVALID_SUB_ID)
    if name == "sow_delete" and bool(command.filter) == bool(request.keys):
        return request.refused(AMBIGUOUS if request.keys else NOTHING_TO_DELETE)
    if request.bookmark and name != "subscribe":
        return request.refused(NOT_SUPPORTED)
    if not _is_filter(command.filter):
        return request.refused(queries.BAD_FILTER)
    reason = queries.refusal(command)
    return request if reason is None else request.refused(reason)


def _is_filter(text: str | None) -> bool:
    if text is None:
        return True
    if len(text) > MAX_FILTER:
        return False
    try:
        read_filter(text)
    except FilterSyntaxError:
        return False
    return True


def _options(name: str, words: list[str]) -> tuple[frozenset[str], dict[str, int]]:
    """Return the options that are words, and those that are intervals."""
    plain, intervals = set(), {}
    for word in words:
        key, sign, value = word.partition("=")
        if key not in _OPTIONS.get(name, ()) or bool(sign) != (key in _INTERVALS):
            raise _WrongError(INVALID_OPTIONS)
        if sign:
            intervals[key] = _milliseconds(value)
        else:
            plain.add(key)
    return frozenset(plain), intervals


def _heartbeat(words: list[str]) -> dict[str, int]:
    """Read ``start,10`` (seconds, or with a unit), ``stop``, ``beat`` or nothing."""
    match words:
        case ["start", interval]:
            return {"heartbeat": _milliseconds(interval if not interval.isdecimal() else f"{interval}s")}
        case ["stop"]:
            return {"heartbeat": 0}
        case ["beat"] | []:
            return {}
        case _:
            raise _WrongError(INVALID_OPTIONS)


def _milliseconds(text: str) -> int:
    found = _INTERVAL.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise _WrongError(INVALID_OPTIONS)
    return int(found[1]) * _UNITS[found[2]]


def _order_by(text: str) -> tuple[OrderKey, ...]:
    keys = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = _ORDER.fullmatch(part)
        if found is None:
            raise _WrongError(INVALID_ORDER_BY)
        path = tuple(found[1].replace("/@", "/").split("/")[1:])
        keys.append(OrderKey(path, (found[2] or "").upper() == "DESC"))
    return tuple(keys)
