"""One batch of signals folded over the things: commands in order, each with its own answer.

Pure: records and things in; journal rows, messages and the changed things out. The same records over the same things
give the same, so that a batch that runs again after a crash says the same again; and it does not matter where batches
are cut.
"""

from __future__ import annotations

import logging
from collections import ChainMap
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from ackstream.jobs.twin import search
from ackstream.jobs.twin.changes import apply, tag_of
from ackstream.jobs.twin.commands import read_command
from ackstream.jobs.twin.things import Thing, instant
from ackstream.protocol.correlation_ids import of_json
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, write_acks
from ackstream.protocol.ditto.envelopes import (
    JSON_CONTENT_TYPE,
    Envelope,
    decode,
    encode,
    error_envelope,
    json_text,
    raw,
)
from ackstream.protocol.ditto.headers import CONTENT_TYPE, CORRELATION_ID, REQUESTED_ACKS, RESPONSE_REQUIRED, WEAK_ACK
from ackstream.protocol.ditto.labels import SEARCH_PERSISTED, TWIN_PERSISTED, is_built_in
from ackstream.protocol.ditto.requests import Request, read_request
from ackstream.protocol.ditto.thing_errors import internal_error
from ackstream.protocol.ditto.things import resource
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.errors import DittoError
from ackstream.spark.order import in_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackstream.jobs.twin.changes import CommandResult, ThingChange
    from ackstream.jobs.twin.commands import TwinCommand
    from ackstream.protocol.ditto.requests import Request


log = logging.getLogger(__name__)

EVENTS, ACKS = "events", "acks"
_COORDINATES = attrgetter("timestamp", "partition", "offset")


class SignalRecord(msgspec.Struct, frozen=True, gc=False):
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


class TwinMessage(msgspec.Struct, frozen=True, gc=False):
    """A record to write, once the journal has the rows: ``topic`` is :data:`EVENTS` or :data:`ACKS`."""

    topic: str
    key: str
    value: bytes
    correlation_id: str


class Result(msgspec.Struct):
    """What a batch came to."""

    rows: list[Row] = []
    messages: list[TwinMessage] = []
    changed: dict[str, Thing] = {}


def fold(records: Sequence[SignalRecord], things: dict[str, Thing], limits: Limits) -> Result:
    """Let the commands among the records act on the things, in order; the things themselves stay as they are.

    Signals that are not for the twin, and what correlate refuses, are passed over: correlate tells the requester.
    """
    folding = _Folding(things, limits)
    for record in in_order(records, _COORDINATES):
        folding.take(record)
    return folding.result()


class _Folding:
    """The state of a fold."""

    def __init__(self, things: dict[str, Thing], limits: Limits) -> None:
        self._limits = limits
        self._changed: dict[str, Thing] = {}
        self._things: ChainMap[str, Thing] = ChainMap(self._changed, things)
        self._rows: list[Row] = []
        self._messages: list[TwinMessage] = []

    def take(self, record: SignalRecord) -> None:
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

    def _do(self, command: Envelope, request: Request, record: SignalRecord) -> None:
        if search.concerns_many(command):
            value = search.answer(command, self._things, record.timestamp, self._limits.max_answer_bytes)
            self._messages.append(_message(ACKS, request, query_response(command, request, value)))
            return
        asked = read_command(command, record.timestamp)
        outcome = apply(self._things.get(asked.thing_id), asked, self._limits.max_thing_bytes)
        said = []
        if outcome.change is not None:
            said.append(_message(EVENTS, request, event(command, request, outcome, outcome.change)))
        if request.response_required or TWIN_PERSISTED in request.awaited:
            said.append(_message(ACKS, request, response(command, request, outcome)))
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
        self._messages.append(_message(ACKS, request, failure(request, error, tag)))


def _row(
    command: TwinCommand, request: Request, outcome: CommandResult, change: ThingChange, record: SignalRecord
) -> Row:
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


def _message(topic: str, request: Request, envelope: Envelope) -> TwinMessage:
    return TwinMessage(topic, request.thing_id or "", encode(envelope), request.headers[CORRELATION_ID])


def read(record: SignalRecord, limits: Limits) -> tuple[Envelope, Request] | None:
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


def _correlation_id(record: SignalRecord, command: Envelope, limits: Limits) -> str:
    found = of_json(command.headers) if record.correlation_id is None else record.correlation_id
    return f"{limits.signals}-{record.partition}-{record.offset}" if found is None else found


# -- What the twin says: responses, errors, events, and the acknowledgement of the search index.
# Source of the rules: Eclipse Ditto, ``ThingModifyCommandResponse`` and ``ThingEvent`` in its protocol adapters,
# ditto.md 8 and 9.


ETAG, ENTITY_REVISION = "etag", "entity-revision"


def response(command: Envelope, request: Request, outcome: CommandResult) -> Envelope:
    """Return the response to a command that was done: its own topic and path, with a status."""
    entity = {ENTITY_REVISION: outcome.thing.revision} | ({} if outcome.tag is None else {ETAG: outcome.tag})
    return _response(command, request.headers | entity, outcome.status, outcome.value)


def query_response(command: Envelope, request: Request, value: Any) -> Envelope:
    """Return the response to a query on many things."""
    return _response(command, request.headers, 200, value)


def _response(command: Envelope, headers: dict[str, Any], status: int, value: Any) -> Envelope:
    content = {} if value is UNSET else {CONTENT_TYPE: JSON_CONTENT_TYPE}
    return Envelope(
        command.topic,
        headers | {RESPONSE_REQUIRED: False} | content,
        command.path or "/",
        UNSET if value is UNSET else raw(value),
        status=status,
    )


def failure(request: Request, error: DittoError, tag: str | None) -> Envelope:
    """Return the error that a command ends with.

    :param tag: the entity tag of what the command is about; of a precondition that failed the requester learns it
    """
    entity = {} if tag is None else {ETAG: tag}
    return error_envelope(error, thing_id=request.thing_id, channel="twin", headers=request.headers | entity)


def event(command: Envelope, request: Request, outcome: CommandResult, change: ThingChange) -> Envelope:
    """Return the event of a change: of the requested acknowledgements it carries those that subscribers issue.

    Nothing left of some means no header; an explicit ``[]`` stays.
    """
    topic = command.topic
    custom = [label for label in request.awaited if not is_built_in(label)]
    acks = {REQUESTED_ACKS: custom} if custom or not request.awaited else {}
    return Envelope(
        TopicPath(topic.namespace, topic.entity, "things", "twin", "events", change.action),
        request.headers | {RESPONSE_REQUIRED: False} | acks,
        command.path or "/",
        UNSET if change.value is UNSET else raw(change.value),
        revision=outcome.thing.revision,
        timestamp=instant(outcome.thing.modified),
    )


def search_persisted(thing_id: str, correlation_id: str, *, visible: bool | None) -> Envelope:
    """Return the acknowledgement that a change is in the search index.

    :param visible: whether the change changed anything there; if not, it is a weak one; ``None``: it failed
    """
    if visible is None:
        ack = Acknowledgement(SEARCH_PERSISTED, 500)
    elif visible:
        ack = Acknowledgement(SEARCH_PERSISTED, 204)
    else:
        ack = Acknowledgement(SEARCH_PERSISTED, 200, headers={WEAK_ACK: True})
    return write_acks([ack], thing_id=thing_id, channel="twin", headers={CORRELATION_ID: correlation_id})
