"""Records of the consumer plane: reports of readers and writers about samples, and the answers to them.

A sample is identified by its writer and the writer's sequence number. The shapes of AppAck and AppAckConf are those of
brokers.md 2.2; ``start``, ``auto`` and ``role`` are additions, as are all other records. Reports are on the topic
``app-acks``, with the reporting reader or writer as key; answers on ``publisher-acks``, with the addressee as key.
"""

from collections.abc import Callable
from typing import Annotated, Literal, TypeAlias

import msgspec

from ackstream.protocol.json import optional_reader, reader

MAX_RESPONSE_BYTES = 32 * 1024
"""Maximum size of the response data of one acknowledgement (RTI-RN: Connext 7.0)."""

SKEW_MS = 1_000
"""How far the clocks of two brokers may differ: of two records this close, either may have come first."""

AutoReason: TypeAlias = Literal["filtered", "replaced"]
"""Why a sample was acknowledged unseen: a filter excluded it, or a newer sample replaced it under KEEP_LAST."""

SampleOutcome: TypeAlias = Literal["accepted", "failed", "rejected"]
"""How a consumer settles a message: done, retry, or give up (AMPS: ack, cancel, expire)."""

MAX_NAME = 255
Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
"""A reader, a writer, a role, a queue or a consumer; short enough for a record key with other parts (255: R19)."""

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""The number of a sample, an epoch or an AppAck; 64 bits, as in the tables."""

Quorum: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
MAX_ROLES = MAX_WRITERS = 100
Quorums: TypeAlias = Annotated[dict[Name, Quorum], msgspec.Meta(max_length=MAX_ROLES)]
"""By required role, the number of its readers that must acknowledge each sample (R19)."""


class AckInterval(msgspec.Struct, frozen=True, omit_defaults=True):
    """Samples ``first`` to ``last`` with one response and one reason; ``reported``: an earlier AppAck had them, too."""

    first: Number
    last: Number
    response: bytes | None = None
    auto: AutoReason | None = None
    reported: bool = False


class AppAck(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="app_ack"):
    """All samples of a writer that a reader has acknowledged.

    ``epoch`` grows with each start of the reader, ``count`` with each AppAck of an epoch; ``start`` is the first sample
    that the reader expects.
    """

    reader: Name
    writer: Name
    epoch: Number
    count: Number
    intervals: tuple[AckInterval, ...]
    role: Name | None = None
    start: Number = 1


class ProtocolAck(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="protocol_ack"):
    """A reader of the kind ``protocol`` has all samples up to ``up_to``; it reports nothing else."""

    reader: Name
    writer: Name
    epoch: Number
    up_to: Number
    role: Name | None = None
    start: Number = 1


class ReaderStart(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="reader_start"):
    """A reader starts; earlier acknowledgements of its name stay valid.

    Each shard answers with a :class:`ReaderState`; the reader repeats the record until it has all of them. The answer
    to an epoch that is not the newest names the newest: the reader takes a later one. A running reader that may have
    missed a record of ``stored`` sends its start again. A reader that is neither durable nor of a required role is
    removed after ``settle.reader_lease`` without a record.

    :ivar durable: samples are kept for it while it is away, until a :class:`ReaderStop`, or until it was silent for
        ``settle.durable_lease``
    :ivar writers: the writers it reads; ``*`` stands for any run of characters. Other writers do not wait for it
    """

    reader: Name
    epoch: Number
    role: Name | None = None
    durable: bool = False
    writers: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MAX_WRITERS)] = ("*",)


class ReaderAlive(msgspec.Struct, frozen=True, tag_field="type", tag="reader_alive"):
    """Renews the lease of a reader; sent every third of it."""

    reader: Name
    epoch: Number


class ReaderStop(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="reader_stop"):
    """A reader leaves for good; only required roles still wait, for their quorum (R20).

    :ivar epoch: ``None`` removes the reader of any epoch, with its state; each shard answers with a
        :class:`ReaderRemoved`
    """

    reader: Name
    epoch: Number | None = None


class WriterStateRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="writer_asks"):
    """Requests the state of a writer's samples: :class:`WriterState`.

    :ivar required: the roles that its samples need from now on, besides those of the settings; they apply until it
        names others, or none. ``None`` changes nothing
    """

    writer: Name
    required: Quorums | None = None


class ReadersRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="readers_asked"):
    """Requests the known readers; each shard sends :class:`KnownReaders`.

    :ivar name: the key of the answers
    :ivar number: number of the request, repeated in its answers. Of several in one batch only the last is answered
    """

    name: Name
    number: Number = 0


class AppAckConf(msgspec.Struct, frozen=True, tag_field="type", tag="app_ack_conf"):
    """The AppAck with this count is stored."""

    reader: str
    writer: str
    epoch: int
    count: int


class ApplicationAcknowledged(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="application_ack"):
    """Newly acknowledged samples; one event per sample and reader."""

    writer: str
    reader: str
    first: int
    last: int
    role: str | None = None
    response: bytes | None = None
    auto: AutoReason | None = None


class SamplesDone(msgspec.Struct, frozen=True, tag_field="type", tag="samples_done"):
    """Samples of a writer that all required readers have acknowledged, as all up to ``released``."""

    writer: str
    intervals: tuple[tuple[int, int], ...]
    released: int


class KnownWriter(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a writer for a starting reader. Runs are ascending and do not touch.

    Everything after ``written`` is for the reader too; the topic ``stored`` determines which samples may be shown.

    :ivar start: the first sample that concerns the reader, as in its :class:`AppAck`
    :ivar written: the last sample that was stored
    :ivar acknowledged: samples that the reader has acknowledged, and refused numbers, which are not samples
    :ivar undelivered: stored samples still to be delivered: neither acknowledged nor done without the reader
    :ivar sessions: the sessions of those, as in ``stored``; numbers between the runs are not known, or are not samples
    """

    writer: str
    start: int
    written: int
    acknowledged: tuple[tuple[int, int], ...] = ()
    undelivered: tuple[tuple[int, int], ...] = ()
    sessions: tuple[tuple[int, int, str | None], ...] = ()


class ReaderState(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="reader_state"):
    """The state of a reader's writers in one shard: the answer to :class:`ReaderStart`.

    The answer is complete when each shard of ``0 … shards - 1`` has sent each part of ``0 … parts - 1``. A writer that
    occurs in none of them has nothing stored yet.

    :ivar as_of: ``writers`` includes all records of the topic ``stored`` before this time (epoch milliseconds): read
        that topic from there on, and skip what ``written`` includes
    :ivar lease_ms: how long a reader that is neither durable nor of a required role may be silent
    """

    reader: str
    epoch: int
    shard: int
    shards: int
    as_of: int
    writers: tuple[KnownWriter, ...] = ()
    part: int = 0
    parts: int = 1
    lease_ms: int = 30_000


class ReaderRemoved(msgspec.Struct, frozen=True, tag_field="type", tag="reader_removed"):
    """One of ``shards`` shards removed a reader, by :class:`ReaderStop` without an epoch or for its silence.

    :ivar epoch: the last one that it knew of, 0: none; a reader that has started since is not affected
    """

    reader: str
    shard: int
    shards: int
    epoch: int


class KnownReader(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a reader in a shard.

    :ivar present: samples wait for it; of a required role they wait for the role in any case
    :ivar seen: the broker's time of its last record, epoch milliseconds
    :ivar unacknowledged: how many retained samples of the shard's writers it has not acknowledged
    """

    reader: str
    role: str | None = None
    durable: bool = False
    present: bool = True
    seen: int = 0
    unacknowledged: int = 0


class KnownReaders(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="readers_known"):
    """A part of a shard's answer to :class:`ReadersRequest`; ``number`` is that of the request."""

    name: str
    shard: int
    shards: int
    readers: tuple[KnownReader, ...] = ()
    part: int = 0
    parts: int = 1
    number: int = 0


class WriterState(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="writer_state"):
    """The state of a writer's samples, in parts if they are many: the answer to :class:`WriterStateRequest`.

    :ivar written: the last sample that was stored, else 0
    :ivar released: all required readers have acknowledged everything up to this sample
    :ivar done: runs after ``released`` that all required readers have acknowledged
    :ivar waiting_for: without an acknowledgement of the oldest open sample: plain readers by name, then roles
    :ivar required: the roles that the writer itself requires
    :ivar lease_ms: how long the writer may be silent before these are forgotten; ``None``: forever
    """

    writer: str
    written: int
    released: int
    done: tuple[tuple[int, int], ...] = ()
    waiting_for: tuple[str, ...] = ()
    required: dict[str, int] = {}
    lease_ms: int | None = None


ConsumerRecord: TypeAlias = (
    AppAck | ProtocolAck | ReaderStart | ReaderAlive | ReaderStop | WriterStateRequest | ReadersRequest
)
"""Records of the topic ``app-acks``, except those that are addressed to queues."""

Answer: TypeAlias = (
    AppAckConf | ApplicationAcknowledged | SamplesDone | ReaderState | ReaderRemoved | WriterState | KnownReaders
)
"""Records that settle publishes on the topic ``publisher-acks``."""

read: Callable[[bytes], ConsumerRecord] = reader(ConsumerRecord, "a consumer")
write = msgspec.json.Encoder().encode
"""Return the JSON of a record; response data is base64."""

read_answer: Callable[[bytes | None], Answer | None] = optional_reader(Answer)
"""Read a record of settle; ``None`` for everything else on that topic, such as acknowledgements of persist."""
