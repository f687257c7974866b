"""One batch of signals folded over the things: commands in order, each with its own answer.

Pure: records and things in; journal rows, messages and the changed things out. The same records over the same things
give the same, so that a batch that runs again after a crash says the same again; and it does not matter where batches
are cut.
"""

from __future__ import annotations

import logging
from collections import ChainMap
from heapq import merge
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from ackstream.protocol.envelopes import Envelope, decode, encode, json_text
from ackstream.protocol.errors import DittoError
from ackstream.protocol.headers import CORRELATION_ID
from ackstream.protocol.labels import SEARCH_PERSISTED, TWIN_PERSISTED
from ackstream.protocol.requests import Request, read_request
from ackstream.twin import answers, searching
from ackstream.twin.applying import apply, tag_of
from ackstream.twin.commands import read_command
from ackstream.twin.errors import internal_error
from ackstream.twin.resources import resource
from ackstream.twin.things import Thing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ackstream.twin.applying import Change, Outcome
    from ackstream.twin.commands import Command

log = logging.getLogger(__name__)

EVENTS, ACKS = "events", "acks"


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record of the signals topic; ``timestamp`` is the broker's, in epoch milliseconds.

    ``correlation_id`` is that of the record headers, ``None`` where the JSON or the coordinates tell it.
    """

    timestamp: int
    partition: int
    offset: int
    correlation_id: str | None
    value: bytes | None


class Limits(msgspec.Struct, frozen=True):
    """What is refused: by correlate, so that the twin must not act on it either (records, labels), and by the twin."""

    signals: str = "signals"
    max_value_bytes: int = 1_000_000
    max_labels: int = 100
    max_thing_bytes: int = 102_400

    @property
    def max_answer_bytes(self) -> int:
        """How much of values an answer may have: the rest of what correlate takes is for its headers."""
        return self.max_value_bytes // 2


class Row(msgspec.Struct, frozen=True, gc=False):
    """A row of the journal: a change of a thing, and the command that made it. JSON is text; times are milliseconds.

    ``visible`` tells whether the thing's content changed; ``search_persisted`` whether that acknowledgement is awaited.
    The ``last`` row of a thing in a batch has the whole ``thing``, unless it is deleted.
    """

    thing_id: str
    revision: int
    created_at: int
    modified_at: int
    action: str
    path: str
    value: str | None
    deleted: bool
    visible: bool
    search_persisted: bool
    correlation_id: str
    partition: int
    offset: int
    last: bool = False
    thing: str | None = None


class Message(msgspec.Struct, frozen=True, gc=False):
    """A record to write, once the journal has the rows: ``topic`` is :data:`EVENTS` or :data:`ACKS`."""

    topic: str
    key: str
    value: bytes
    correlation_id: str


class Result(msgspec.Struct):
    """What a batch came to."""

    rows: list[Row] = []
    messages: list[Message] = []
    changed: dict[str, Thing] = {}


def fold(records: Iterable[Record], things: dict[str, Thing], limits: Limits) -> Result:
    """Let the commands among the records act on the things, in order; the things themselves stay as they are.

    Signals that are not for the twin, and what correlate refuses, are passed over: correlate tells the requester.
    """
    folding = _Folding(things, limits)
    for record in in_order(records):
        folding.take(record)
    return folding.result()


def in_order(records: Iterable[Record]) -> Iterator[Record]:
    """Return the records by time, the order within a partition kept in any case.

    A broker's clock may be set back; a partition's records then count with the latest time seen before them.
    """
    by_place = sorted(records, key=lambda record: (record.partition, record.offset))
    partitions = [list(_timed(group)) for _, group in groupby(by_place, key=lambda record: record.partition)]
    return (record for *_, record in merge(*partitions, key=lambda entry: entry[:2]))


def _timed(records: Iterable[Record]) -> Iterator[tuple[int, int, Record]]:
    latest = 0
    for record in records:
        latest = max(latest, record.timestamp)
        yield latest, record.partition, record


class _Folding:
    """The state of a fold."""

    def __init__(self, things: dict[str, Thing], limits: Limits) -> None:
        self._limits = limits
        self._changed: dict[str, Thing] = {}
        self._things: ChainMap[str, Thing] = ChainMap(self._changed, things)
        self._rows: list[Row] = []
        self._messages: list[Message] = []

    def take(self, record: Record) -> None:
        """Let one record act."""
        found = read(record, self._limits)
        if found is None:
            return
        command, request = found
        try:
            self._do(command, request, record)
        except DittoError as error:
            self._fail(command, request, error)
        except Exception:
            # a fault of ours in one command must not hold up all others for ever
            log.exception("A command was not done: %s-%s-%s", self._limits.signals, record.partition, record.offset)
            self._fail(command, request, internal_error())

    def result(self) -> Result:
        """Return what came out; of several changes of a thing the last row has the thing."""
        rows = []
        done: set[str] = set()
        for row in reversed(self._rows):
            thing_id = row.thing_id
            if thing_id not in done:
                content = self._changed[thing_id].content
                row = msgspec.structs.replace(row, last=True, thing=None if content is None else content.decode())  # noqa: PLW2901
                done.add(thing_id)
            rows.append(row)
        return Result(rows[::-1], self._messages, self._changed)

    def _do(self, command: Envelope, request: Request, record: Record) -> None:
        if searching.concerns_many(command):
            value = searching.answer(command, self._things, record.timestamp, self._limits.max_answer_bytes)
            self._messages.append(_message(ACKS, request, answers.query_response(command, request, value)))
            return
        asked = read_command(command, record.timestamp)
        outcome = apply(self._things.get(asked.thing_id), asked, self._limits.max_thing_bytes)
        said = []
        if outcome.change is not None:
            said.append(_message(EVENTS, request, answers.event(command, request, outcome, outcome.change)))
        if request.response_required or TWIN_PERSISTED in request.awaited:
            said.append(_message(ACKS, request, answers.response(command, request, outcome)))
        # nothing can fail from here on
        if outcome.change is not None:
            self._changed[asked.thing_id] = outcome.thing
            self._rows.append(_row(asked, request, outcome, outcome.change, record))
        self._messages += said

    def _fail(self, command: Envelope, request: Request, error: DittoError) -> None:
        """Tell whoever waits for anything; of a failed precondition with the entity tag that is there."""
        if not (request.response_required or request.awaited):
            return
        tag = None
        if error.error.startswith("things:precondition."):
            tag = tag_of(self._things.get(command.topic.thing_id), resource(command.path))
        self._messages.append(_message(ACKS, request, answers.failure(request, error, tag)))


def _row(command: Command, request: Request, outcome: Outcome, change: Change, record: Record) -> Row:
    thing = outcome.thing
    return Row(
        thing_id=command.thing_id,
        revision=thing.revision,
        created_at=thing.created,
        modified_at=thing.modified,
        action=change.action,
        path=command.resource.path,
        value=None if change.value is msgspec.UNSET else json_text(change.value),
        deleted=thing.content is None,
        visible=change.visible,
        search_persisted=SEARCH_PERSISTED in request.awaited,
        correlation_id=request.headers[CORRELATION_ID],
        partition=record.partition,
        offset=record.offset,
    )


def _message(topic: str, request: Request, envelope: Envelope) -> Message:
    return Message(topic, request.thing_id or "", encode(envelope), request.headers[CORRELATION_ID])


def read(record: Record, limits: Limits) -> tuple[Envelope, Request] | None:
    """Return the twin command a record is, and what its requester waits for; ``None`` for everything else.

    Not for the twin: live commands, messages, policies, and what correlate refuses and answers itself.
    """
    if record.value is None or len(record.value) > limits.max_value_bytes:
        return None
    try:
        command = decode(record.value)
        topic = command.topic
        if topic.group != "things" or topic.channel != "twin" or topic.criterion != "commands":
            return None
        request = read_request(command)
    except DittoError:
        return None
    if request.kind not in ("twin", "twinQuery") or len(request.awaited) > limits.max_labels:
        return None
    request.headers[CORRELATION_ID] = _correlation_id(record, command, limits)
    return command, request


def _correlation_id(record: Record, command: Envelope, limits: Limits) -> str:
    if record.correlation_id is not None:
        return record.correlation_id
    for name in (CORRELATION_ID, "Correlation-Id"):
        if command.headers.get(name):
            return str(command.headers[name])
    return f"{limits.signals}-{record.partition}-{record.offset}"
