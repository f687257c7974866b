"""One batch of signals folded over the things: commands in order, each with its own answer.

Pure: records and things in; journal rows, messages and the changed things out, in parts of a limited size. The same
records over the same things give the same parts, wherever batches are cut, so a replayed batch sends the same messages.
"""

import logging
from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from ackstream.jobs.twin import search
from ackstream.jobs.twin.changes import OK, CommandResult, QuotaUsage, Thing, apply, instant, tag_of
from ackstream.jobs.twin.records import ACKS, EVENTS, JournalRow, SignalRecord, TwinCommand, TwinMessage, read_command
from ackstream.protocol.ditto import headers as names
from ackstream.protocol.ditto.acknowledgements import Acknowledgement
from ackstream.protocol.ditto.aggregates import headers_text, write_aggregate, write_text
from ackstream.protocol.ditto.correlation_ids import is_too_long, of_json
from ackstream.protocol.ditto.envelopes import JSON_CONTENT_TYPE, Envelope, decode, error_envelope, json_text, raw
from ackstream.protocol.ditto.labels import BUILT_IN, SEARCH_PERSISTED, TWIN_PERSISTED
from ackstream.protocol.ditto.requests import Request, check_available, read_request
from ackstream.protocol.ditto.signal_defaults import TWIN_KINDS
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.ditto.twin.things import resource
from ackstream.protocol.errors import DittoError, live_channel_condition_unfit, twin_failed
from ackstream.protocol.ledger import reply_id
from ackstream.settings import Settings
from ackstream.spark.records import guarded

log = logging.getLogger(__name__)

PART_BYTES = 64 * 1024 * 1024
"""The bytes of a result after which the next command begins another part: the driver lays out a part at once, Spark
sends it in one task (at most 128 MB). Finish any batch before changing this: it cuts the parts."""
ETAG, ENTITY_REVISION = "etag", "entity-revision"
COMMAND_MARKS = (b"/things/twin/commands", b"\\/", b"\\u")
"""A record without any of them is not a twin command: it lacks the topic, and JSON's escapes that might hide it."""


class TwinResult(msgspec.Struct):
    """The result of a batch or of a part of it."""

    rows: list[JournalRow] = []
    messages: list[TwinMessage] = []
    changed: dict[str, Thing] = {}


def fold(
    records: Iterable[SignalRecord],
    things: dict[str, Thing],
    settings: Settings,
    part_bytes: int = PART_BYTES,
    usage: QuotaUsage | None = None,
) -> Iterator[TwinResult]:
    """Apply the twin commands among the records to the things; yield the result in parts, the last one maybe empty."""
    # Records are in order. Signals that are not for the twin are ignored, and so are those that correlate rejects and
    # answers itself. ``things`` and ``usage`` (of the quotas; counted if left out) get the changes of a part when the
    # next one is requested: until then that part may fail.
    usage = usage or QuotaUsage(settings.quotas, things)
    folding = _TwinBatch(things, usage.copy(), settings)
    for record in records:
        if folding.size >= part_bytes:
            yield (result := folding.result())
            things.update(result.changed)
            usage.take(folding.usage)
            folding = _TwinBatch(things, usage.copy(), settings)
        folding.add(record)
    yield (result := folding.result())
    things.update(result.changed)
    usage.take(folding.usage)


def cut(sizes: Sequence[int], limit: int) -> Iterator[slice]:
    """Cut a sequence, given by its sizes, into runs that are each within a limit or a single entry."""
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > limit:
            yield slice(start, index)
            start, total = index, 0
        total += size
    if sizes:
        yield slice(start, len(sizes))


class _TwinBatch:
    """The accumulated changes of a batch, over the things before it."""

    def __init__(self, things: dict[str, Thing], usage: QuotaUsage, settings: Settings) -> None:
        self.usage = usage
        self._settings = settings
        self._signals = settings.kafka.topic("signals")
        self._result = TwinResult()
        self.size = 0
        """Bytes of the accumulated result: values of rows and messages, and the changed things."""
        self._things: ChainMap[str, Thing] = ChainMap(self._result.changed, things)
        self._command: tuple[Envelope, Request] | None = None

    def add(self, record: SignalRecord) -> None:
        """Apply one record; a defect in one command stops no other."""
        guarded(record, self._decide, self._refuse, (self._result.rows, self._result.messages))

    def result(self) -> TwinResult:
        """Return the result; of several changes of a thing the last row holds the thing."""
        rows, changed = self._result.rows, self._result.changed
        last = {row.thing_id: number for number, row in enumerate(rows)}
        for thing_id, number in last.items():
            content = changed[thing_id].content
            thing = None if content is None else content.decode()
            rows[number] = msgspec.structs.replace(rows[number], last=True, thing=thing)
        return self._result

    def _decide(self, record: SignalRecord) -> None:
        self._command = None
        self._command = self._read(record)
        if self._command is not None:
            self._apply(*self._command, record)

    def _refuse(self, record: SignalRecord, error: Exception) -> None:
        """Answer a command that has failed, even if it awaits nothing; a record that cannot be read has no answer."""
        if not isinstance(error, DittoError):
            log.error("A command failed: %s-%s-%s", self._signals, record.partition, record.offset, exc_info=error)
            error = twin_failed()
        if self._command is None:
            return
        (command, request), tag = self._command, None
        if error.error.startswith("things:precondition."):
            # the current one
            tag = tag_of(self._things.get(command.topic.thing_id), resource(command.path))
        headers = request.headers if tag is None else request.headers | {ETAG: tag}
        envelope = error_envelope(error, thing_id=request.thing_id, channel="twin", headers=headers)
        self._send(self._answer(request, envelope, record))

    def _read(self, record: SignalRecord) -> tuple[Envelope, Request] | None:
        """Return the twin command in a record and its request; ``None`` for live commands, messages and policies."""
        limits = self._settings.correlate
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
        if request.kind not in TWIN_KINDS or len(request.awaited) > limits.max_labels:
            return None
        correlation_id = record.correlation_id
        if correlation_id is None:
            correlation_id = of_json(command.headers) or f"{self._signals}-{record.partition}-{record.offset}"
        replies = self._settings.kafka.topic("replies")
        chosen = replies if record.reply_topic is None else record.reply_topic.decode("utf-8", "replace")
        if is_too_long(correlation_id) or not limits.accepts_reply_topic(chosen, replies):
            return None
        request.headers[names.CORRELATION_ID] = correlation_id
        return command, request

    def _apply(self, envelope: Envelope, request: Request, record: SignalRecord) -> None:
        headers = names.read_headers(envelope.headers)
        check_available(headers)
        # a query with this header never gets here: correlate refuses it
        if names.LIVE_CHANNEL_CONDITION in headers:
            raise live_channel_condition_unfit()
        if envelope.topic.namespace == envelope.topic.entity == "_":
            # correlate accepts twice this: the other half is for the headers of the answer
            limit = self._settings.correlate.max_value_bytes // 2
            value = search.answer(envelope, self._things, record.timestamp, limit)
            self._send(self._answer(request, response(envelope, request, OK, value), record))
            return
        limit = self._settings.twin.max_thing_bytes
        command = read_command(envelope, headers, record.timestamp, limit)
        before = self._things.get(command.thing_id)
        result = apply(before, command, limit)
        self.usage.check(command.thing_id, before, result.thing)
        messages = []
        if result.event is not None:
            messages.append(TwinMessage.of(EVENTS, request, event(envelope, request, result)))
        if request.response_required or TWIN_PERSISTED in request.awaited:
            revision, tag = result.thing.revision, result.tag
            answer = response(envelope, request, result.status, result.value, revision=revision, tag=tag)
            messages.append(self._answer(request, answer, record))
        # no step can fail from here on
        if result.event is not None:
            row = _row(command, request, result, result.event, record)
            self.size += len(row.value or "") + _size(result.thing) - _size(self._result.changed.get(command.thing_id))
            self.usage.add(command.thing_id, before, result.thing)
            self._result.changed[command.thing_id] = result.thing
            self._result.rows.append(row)
        self._send(*messages)

    def _answer(self, request: Request, envelope: Envelope, record: SignalRecord) -> TwinMessage:
        of = request.headers[names.CORRELATION_ID], self._signals, record.partition, record.offset
        return TwinMessage.of(ACKS, request, envelope, reply_id(*of) if request.awaits else None)

    def _send(self, *messages: TwinMessage) -> None:
        self.size += sum(len(message.value) for message in messages)
        self._result.messages += messages


def _size(thing: Thing | None) -> int:
    return 0 if thing is None or thing.content is None else len(thing.content)


def _row(command: TwinCommand, request: Request, result: CommandResult, event: str, record: SignalRecord) -> JournalRow:
    thing = result.thing
    return JournalRow(
        thing_id=command.thing_id,
        revision=thing.revision,
        created_at=thing.created,
        modified_at=thing.modified,
        action=event,
        path=command.resource.path,
        value=None if result.change is UNSET else json_text(result.change),
        deleted=thing.content is None,
        visible=result.visible,
        search_persisted=SEARCH_PERSISTED in request.awaited,
        correlation_id=request.headers[names.CORRELATION_ID],
        partition=record.partition,
        offset=record.offset,
    )


def response(
    command: Envelope, request: Request, status: int, value: Any, *, revision: int | None = None, tag: str | None = None
) -> Envelope:
    """Return the response to a successful command or query: its own topic and path, with a status."""
    # a query over many things has neither ``revision`` nor tag
    headers = {
        ENTITY_REVISION: revision,
        ETAG: tag,
        names.RESPONSE_REQUIRED: False,
        names.CONTENT_TYPE: None if value is UNSET else JSON_CONTENT_TYPE,
    }
    return Envelope(
        command.topic,
        request.headers | {name: header for name, header in headers.items() if header is not None},
        command.path or "/",
        UNSET if value is UNSET else raw(value),
        status=status,
    )


def event(command: Envelope, request: Request, result: CommandResult) -> Envelope:
    """Return the event of a change, which requests only the acknowledgements of subscribers."""
    # if no requested one is left, the header is omitted; an explicit [] stays
    topic = command.topic
    custom = [label for label in request.awaited if label not in BUILT_IN]
    acks = {names.REQUESTED_ACKS: custom} if custom or not request.awaited else {}
    return Envelope(
        TopicPath(topic.namespace, topic.entity, "things", "twin", "events", result.event),
        request.headers | {names.RESPONSE_REQUIRED: False} | acks,
        command.path or "/",
        UNSET if result.change is UNSET else raw(result.change),
        revision=result.thing.revision,
        timestamp=instant(result.thing.modified),
    )


def search_persisted(thing_id: str, correlation_id: str, reply_id: str, *, visible: bool | None) -> TwinMessage:
    """Return the acknowledgement of a change in the search index, a weak one if it is invisible there."""
    # ``visible``: None: indexing failed; ``reply_id``: of the reply to the command that made the change
    status = {None: 500, True: 204, False: 200}[visible]
    ack = Acknowledgement(SEARCH_PERSISTED, status, headers={names.WEAK_ACK: True} if visible is False else {})
    headers = headers_text({names.CORRELATION_ID: correlation_id})
    _, value = write_aggregate([write_text(ack)], thing_id=thing_id, channel="twin", headers=headers)
    return TwinMessage(ACKS, thing_id, value, correlation_id, reply_id)
