"""Dead letters are sent again to where they came from: chosen by SQL, at a rate, each once.

A letter and its row in the audit are sent in one transaction of Kafka. So a letter with a row is never sent again, and
a run that is killed leaves neither. The transactional id is one for the system: a second run ends the first.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kafka import errors

from ackstream.client.errors import RedriveStopped
from ackstream.errors import BadParameterError, UnreachableError
from ackstream.kafka import clients
from ackstream.kafka.library import end_transaction, is_fenced, partition_of, producer_identity
from ackstream.kafka.login import operator
from ackstream.kafka.parties import REDRIVE
from ackstream.kafka.reader import POLL_MS, TopicReader, check_topics
from ackstream.protocol import record_headers
from ackstream.protocol.json import optional_reader
from ackstream.protocol.ledger import AuditRow, LedgerRecord, encode, read
from ackstream.protocol.messages import CommandAck
from ackstream.redriving import letters as dead

if TYPE_CHECKING:
    from ackstream.settings import Settings

FEW, PART = 10, 0.1
"""A run stops if more than this number, and this share, of its sent letters have come back."""

BEHIND_SECONDS = 1.0
"""Maximum delay of sending for reading the letters that came back."""
RETURN_SECONDS = 2.0
"""Time after the last letter in which returning ones are counted."""
END_SECONDS = 60.0
"""Maximum time for Kafka to end a transaction."""
_REFUSALS = (*clients.OF_RECORD, errors.PolicyViolationError)
"""The errors of a broker for a record that it will never store: only that record is at fault."""

AUDIT, MESSAGES, ACKS, DEAD_LETTERS = "audit", "messages", "publisher-acks", "dead-letters"
KEY, EVENT = b"redrive", "redrive"
"""The key of all rows of the audit about redriven letters, which are in one partition, and their event."""

_read_answer: Callable[[bytes | None], CommandAck | None] = optional_reader(CommandAck)


@dataclass
class RedriveReport:
    """The numbers of a run.

    :ivar chosen: letters that the condition selects
    :ivar earlier: those of them that were redriven before
    :ivar redriven: those that were sent; of a dry run, those that would be sent
    :ivar unavailable: the ids of those that cannot be sent: the record is not stored in full any more, its topic does
        not exist, its queue is not in the settings, it has neither key nor value or a header without a value, or the
        broker refuses it, such as for its size with its new header; of a dry run, none
    :ivar returned: redriven letters that have so far become dead letters again, or that persist refused
    """

    chosen: int = 0
    earlier: int = 0
    redriven: int = 0
    unavailable: list[str] = field(default_factory=list)
    returned: int = 0


def redrive(
    settings: "Settings",
    *,
    where: str = "true",
    source: str | None = None,
    to: str | None = None,
    rate: float = 50.0,
    dry_run: bool = False,
    progress: Callable[[RedriveReport], None] = lambda _: None,
) -> RedriveReport:
    """Send dead letters back to their origin, each once; return when all are sent.

    A record goes to its topic, with its key and headers. A message goes to the queue that gave it up, and nowhere else,
    as a new message of the publisher ``redrive-…``. Each has the header ``redriven-from``. A letter that any run has
    sent before is not sent again. Works with an operator's login.

    :param where: a condition in SQL of DuckDB over ``id``, ``reason``, ``queue``, ``subject``, ``topic``,
        ``partition``, ``given_up_at``, ``deliveries`` and ``correlation_id``; with ``source`` over ``id``, ``reason``,
        ``topic``, ``partition``, ``given_up_at``, ``key`` and ``value``
    :param source: the real name of another system's dead letter topic, in place of the tables: of Kafka's share
        groups, Kafka Connect or Spring
    :param to: the real name of a topic to which all are sent, in place of their origins
    :param rate: maximum number of letters a second
    :param dry_run: send nothing, only count
    :param progress: called after each transaction
    :raises InputError: the condition is not SQL
    :raises RedriveStopped: too many came back, or another run has begun
    :raises UnreachableError: no broker answers, or a topic does not exist
    """
    if not 0 < rate < math.inf:
        raise BadParameterError(f"rate is {rate:g}: give the number of letters a second, such as 50.")
    report = RedriveReport()
    with TopicReader(clients.connect_consumer(settings.kafka, None, auto_offset_reset="earliest")) as reader:
        reads = [settings.kafka.topic(AUDIT), *([source] if source else [])]
        check_topics(reader.consumer, settings.kafka, reads=reads, writes=[to] if to else [])
        letters = dead.from_topic(reader, source, where) if source else dead.from_tables(settings.lake, where)
        report.chosen = len(letters)
        if dry_run:
            report.redriven = len(_left(settings, reader, letters, report))
            return report
        with _Run(settings, reader, source, to, report) as run:
            # after its start: the open transaction of a killed run has ended
            run.send(_left(settings, reader, letters, report), rate, progress)
    return report


def _left(
    settings: "Settings", reader: TopicReader, letters: Iterable[dead.Letter], report: RedriveReport
) -> list[dead.Letter]:
    """Return the letters that no run has sent; one that persist refused counts as not sent."""
    from ackstream.lake.reading import database, views  # noqa: PLC0415 - other clients need no tables

    topic = settings.kafka.topic(AUDIT)
    number = len(reader.consumer.partitions_for_topic(topic))
    # the topic may have had fewer partitions when earlier rows were written
    partitions = {partition_of(KEY, count) for count in range(1, number + 1)}
    done: dict[str, str | None] = {}
    for record in dead.all_of(reader, partitions, topic):
        row = read(record.value) if record.key == KEY else None
        if row is not None and row.audit is not None and row.audit.event == EVENT:
            done[row.id] = row.audit.command
    refused: Counter[str] = Counter()
    with database(settings.lake, (AUDIT, MESSAGES)) as connection:
        present = views(connection)
        if AUDIT in present:
            done |= dict(connection.execute("SELECT id, command FROM audit WHERE event = $1", [EVENT]).fetchall())
        if MESSAGES in present:
            query = (
                "SELECT list_filter(headers, lambda header: header.name = $1)[1].value FROM messages"
                " WHERE reason IS NOT NULL AND starts_with(client, 'redrive-')"
            )
            rows = connection.execute(query, [record_headers.REDRIVEN_FROM]).fetchall()
            refused.update(bytes(value).decode() for (value,) in rows if value is not None)
    sent = Counter(done.values())
    left = [letter for letter in letters if sent[letter.id] <= refused[letter.id]]
    report.earlier = report.chosen - len(left)
    return left


class _Run(clients.Closing):
    """Sends letters and their rows of the audit in transactions, and counts those that come back."""

    def __init__(
        self, settings: "Settings", reader: TopicReader, source: str | None, to: str | None, report: RedriveReport
    ) -> None:
        """Begin; an earlier run of this system ends."""
        kafka = settings.kafka
        self._lake, self._reader, self._to, self._report = settings.lake, reader, to, report
        self._audit, self._messages = kafka.topic(AUDIT), kafka.topic(MESSAGES)
        self._queues = {queue.name for queue in settings.queues}
        self._who = operator(kafka)
        # copies of another system's letters come back to its own topic
        back = {kafka.topic(DEAD_LETTERS), kafka.topic(ACKS), *([source] if source else [])}
        self._returning = TopicReader.at_end(kafka, *sorted(back))
        try:
            self._producer = clients.connect_producer(kafka, self._audit, transactional_id=kafka.topic(REDRIVE))
        except BaseException:
            self._returning.close()
            raise
        self._name = f"redrive-{producer_identity(self._producer)}"
        self._rows = self._numbers = 0
        self._sent: set[str] = set()

    def close(self) -> None:
        """End; a transaction that was not committed counts for nothing."""
        self._returning.close()
        clients.close_producer(self._producer)

    def send(self, letters: Sequence[dead.Letter], rate: float, progress: Callable[[RedriveReport], None]) -> None:
        """Send letters; raise RedriveStopped if too many come back, or if another run has begun."""
        turn = time.monotonic()
        for chunk in dead.chunks(letters, max(1, min(dead.AT_ONCE, int(rate)))):
            self._count(turn)
            turn = max(turn, time.monotonic()) + len(chunk) / rate
            try:
                self._send(self._available(chunk))
            except errors.KafkaError as error:
                raise UnreachableError(
                    f"Dead letters were not read or sent: {error}. Run the command again; none is sent twice."
                ) from error
            progress(self._report)
            self._count(time.monotonic())
        # the last ones, too, may come back
        self._count(time.monotonic() + (RETURN_SECONDS if self._sent else 0))

    def _available(self, letters: Sequence[dead.Letter]) -> list[tuple[dead.Letter, str, dead.Content]]:
        """Return the letters that can be sent, with the topic and the content of each; report the others."""
        found, known = dead.contents(self._reader, self._lake, letters), self._reader.consumer.topics()
        able: list[tuple[dead.Letter, str, dead.Content]] = []
        for letter in letters:
            content, topic = found.get(letter.id), self._to or (self._messages if letter.queue else letter.topic)
            exists = topic in known and bool(self._to or not letter.queue or letter.queue in self._queues)
            if exists and content is not None and content.can_be_sent:
                able.append((letter, topic, content))
            else:
                self._report.unavailable.append(letter.id)
        return able

    def _send(self, letters: Sequence[tuple[dead.Letter, str, dead.Content]]) -> None:
        """Send letters in one transaction; if the broker refuses a record, in several, without its letter."""
        if not letters:
            return
        before = self._rows, self._numbers
        stored: list[Any] = []
        try:
            self._producer.begin_transaction()
            stored += [self._submit(*one) for one in letters]
            end_transaction(self._producer, END_SECONDS, commit=True)
        except BaseException as error:
            # the numbers of a publisher and of its rows have no gaps
            self._rows, self._numbers = before
            if isinstance(error, errors.KafkaError) and is_fenced(self._producer, error):
                raise RedriveStopped(
                    f"Another run of redrive has begun, which ends this one, or Kafka did not end a transaction within "
                    f"{clients.TRANSACTION_SECONDS:g} s: run one at a time. Run the command again; none is sent twice."
                ) from None
            # else it hides the records of others in its topics until it times out
            with suppress(errors.KafkaError):
                end_transaction(self._producer, END_SECONDS, commit=False)
            if not isinstance(error, _REFUSALS) and not any(isinstance(one.exception, _REFUSALS) for one in stored):
                raise
        else:
            for metadata in (future.get() for future in stored):
                self._sent.add(f"{metadata.topic}-{metadata.partition}-{metadata.offset}")
            self._report.redriven += len(stored)
            return
        if len(letters) == 1:
            self._report.unavailable.append(letters[0][0].id)
        else:
            half = len(letters) // 2
            self._send(letters[:half])
            self._send(letters[half:])

    def _submit(self, letter: dead.Letter, topic: str, content: dead.Content) -> Any:
        """Send a letter and its row; return the future of the letter."""
        headers = [(name, value) for name, value in content.headers if name != record_headers.REDRIVEN_FROM]
        headers.append((record_headers.REDRIVEN_FROM, letter.id.encode()))
        key = content.key
        if letter.queue and not self._to:
            self._numbers += 1
            publisher = {
                record_headers.CLIENT: self._name,
                record_headers.SEQ: str(self._numbers),
                record_headers.ACK: "persisted",
                record_headers.TOPIC: letter.subject,
                record_headers.FOR_QUEUE: letter.queue,
            }
            headers += [(name, text.encode()) for name, text in publisher.items() if text is not None]
            headers += [(record_headers.KEY, key)] if key is not None else []
            key = self._name.encode()
        future = self._producer.send(topic, value=content.value, key=key, headers=headers)
        self._rows += 1
        row = AuditRow(
            correlation_id=letter.correlation_id, received_at=time.time_ns() // 1_000_000, event=EVENT,
            subject=self._who, roles=(), address=None, method=None, command=letter.id, thing_id=None, path=topic,
            allowed=True, count=1, reason=letter.reason,
        )  # fmt: skip
        record = LedgerRecord("audit", f"{self._name}-{self._rows}", self._name, self._rows, audit=row)
        self._producer.send(self._audit, value=encode(record), key=KEY)
        return future

    def _count(self, until: float) -> None:
        """Count the redriven letters that come back until then; raise RedriveStopped if they are too many."""
        while True:
            left = until - time.monotonic()
            records = self._returning.read(max(1, min(POLL_MS, int(left * 1_000))))
            self._report.returned += sum(came_back(one, self._sent, self._name) for one in records)
            if self._report.returned > max(FEW, PART * self._report.redriven):
                raise RedriveStopped(
                    f"{self._report.returned} of {self._report.redriven} redriven letters are dead letters again: "
                    f"remove the cause first, then run the command again for the rest."
                )
            if left <= -BEHIND_SECONDS or (left <= 0 and not records):
                return


def came_back(record: Any, sent: set[str], publisher: str) -> bool:
    """Return whether a record is the dead letter of a record in ``sent``, or refuses a message of a publisher."""
    if record.key == publisher.encode():
        answer = _read_answer(record.value)
        return answer is not None and answer.status == "failure"
    headers = {name: (value or b"").decode(errors="replace") for name, value in record.headers}
    names = (record_headers.TOPIC, record_headers.PARTITION, record_headers.OFFSET)
    place = "-".join(headers.get(name, "") for name in names)
    original = "{}-{}-{}".format(*dead.letter_of(record).place)
    ids = headers.get(record_headers.MESSAGE), record_headers.letter_id(headers)
    return not sent.isdisjoint({place, original, *ids})
