"""Records of the consumer plane: what readers say of samples, and what is answered.

A sample is named by its writer and the writer's sequence number. Shapes of AppAck and AppAckConf: brokers.md 2.2, one
record for one reader and one writer; ``start``, ``auto`` and ``role`` are ours, as all the others are.

The topic ``app-acks`` has what readers and writers say, keyed by who says it; ``publisher-acks`` has the answers, keyed
by whom they are for.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from ackstream.protocol.json import UNREADABLE, decoded

MAX_RESPONSE_BYTES = 32 * 1024
"""Of the response data of one acknowledgement (RTI-RN: Connext 7.0)."""

AutoReason: TypeAlias = Literal["filtered", "replaced"]
"""Why a sample was acknowledged though no code saw it: a filter excluded it, or KEEP_LAST gave its place away."""

SampleOutcome: TypeAlias = Literal["accepted", "failed", "rejected"]
"""How a consumer settles a message: done; try again; never again. AMPS calls them ack, cancel, expire."""

Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
"""Of a reader, a writer or a role: a name must fit in a record key whatever else is there (R19 has the 255)."""

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Of a sample, an epoch or an AppAck: as tables can hold it."""


class AckInterval(msgspec.Struct, frozen=True, omit_defaults=True):
    """Samples ``first`` to ``last`` of the writer, with one response and one reason.

    ``reported``: an earlier AppAck has said so already.
    """

    first: Number
    last: Number
    response: bytes | None = None
    auto: AutoReason | None = None
    reported: bool = False


class AppAck(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="app_ack"):
    """All that a reader has acknowledged of a writer's samples.

    ``epoch`` grows with each start of the reader, ``count`` with each AppAck of an epoch; ``start`` is the first sample
    the reader expects.
    """

    reader: Name
    writer: Name
    epoch: Number
    count: Number
    intervals: tuple[AckInterval, ...]
    role: Name | None = None
    start: Number = 1


class ProtocolAck(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="protocol_ack"):
    """A reader of the kind ``protocol`` has all samples up to ``up_to`` in its library; that is all it will say."""

    reader: Name
    writer: Name
    epoch: Number
    up_to: Number
    role: Name | None = None
    start: Number = 1


class ReaderStart(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="reader_start"):
    """A reader begins, or begins again: what it acknowledged under this name before counts.

    It is answered by a :class:`ReaderState` of each shard, and sent again until all are there. A reader that is neither
    durable nor of a required role leaves when it was silent for ``settle.reader_lease``.

    :ivar durable: samples are kept for it while it is away, until it says :class:`ReaderStop`
    :ivar writers: whose samples it reads; ``*`` stands for any run of characters. Writers that are not among them do
        not wait for it
    """

    reader: Name
    epoch: Number
    role: Name | None = None
    durable: bool = False
    writers: Annotated[tuple[Name, ...], msgspec.Meta(max_length=100)] = ("*",)


class ReaderAlive(msgspec.Struct, frozen=True, tag_field="type", tag="reader_alive"):
    """A reader is there still; sent every third of its lease."""

    reader: Name
    epoch: Number


class ReaderStop(msgspec.Struct, frozen=True, tag_field="type", tag="reader_stop"):
    """A reader will not come back: nobody waits for it any longer, except a required role for its quorum (R20)."""

    reader: Name
    epoch: Number


class WriterAsks(msgspec.Struct, frozen=True, tag_field="type", tag="writer_asks"):
    """A writer wants to know how far its samples are; it is answered by a :class:`WriterState`."""

    writer: Name


class AppAckConf(msgspec.Struct, frozen=True, tag_field="type", tag="app_ack_conf"):
    """The AppAck with this count is stored: the reader need not send it again."""

    reader: str
    writer: str
    epoch: int
    count: int


class ApplicationAcknowledged(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="application_ack"):
    """A reader has acknowledged samples that it had not before; for each sample there is one such event a reader."""

    writer: str
    reader: str
    first: int
    last: int
    role: str | None = None
    response: bytes | None = None
    auto: AutoReason | None = None

    @property
    def valid_response(self) -> bool:
        """Tell whether there is response data: none was given, or it was kept no longer."""
        return self.response is not None


class SamplesDone(msgspec.Struct, frozen=True, tag_field="type", tag="samples_done"):
    """Samples of a writer that everybody who matters has acknowledged; all up to ``released`` are.

    What a publisher's ``wait_for_acknowledgments`` waits for.
    """

    writer: str
    intervals: tuple[tuple[int, int], ...]
    released: int


class KnownWriter(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a reader that begins must know of a writer. Runs are ascending and do not touch.

    Behind ``written`` all that comes is for the reader, too; what of it may be shown the topic ``stored`` says.

    :ivar start: the first sample the reader is concerned with, as :class:`AppAck` wants it
    :ivar written: the last sample that was stored
    :ivar acknowledged: what the reader has acknowledged, and the numbers that are no samples because they were refused
    :ivar undelivered: what it has still to get of what is stored: neither acknowledged by it nor done without it
    """

    writer: str
    start: int
    written: int
    acknowledged: tuple[tuple[int, int], ...] = ()
    undelivered: tuple[tuple[int, int], ...] = ()


class ReaderState(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="reader_state"):
    """What one shard knows of the writers of a reader: the answer to its :class:`ReaderStart`.

    The answer is whole when each shard of ``0 … shards - 1`` has come with each part of ``0 … parts - 1``. A writer
    that is in none of them has nothing stored yet.

    :ivar as_of: all records of the topic ``stored`` before this time (epoch milliseconds) are counted in ``writers``:
        read that topic from there on, and pass over what ``written`` includes
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


class WriterState(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="writer_state"):
    """How far a writer's samples are: the answer to :class:`WriterAsks`, in several where there are very many runs.

    :ivar written: the last sample that was stored; 0 where there is none
    :ivar released: everybody who matters has acknowledged all up to this one
    :ivar done: runs behind ``released`` of which the same is true
    :ivar waiting_for: who has not acknowledged the oldest open sample: plain readers by name, then required roles
    """

    writer: str
    written: int
    released: int
    done: tuple[tuple[int, int], ...] = ()
    waiting_for: tuple[str, ...] = ()


ConsumerRecord: TypeAlias = AppAck | ProtocolAck | ReaderStart | ReaderAlive | ReaderStop | WriterAsks
"""What is said on the topic ``app-acks``, but for what queues alone understand."""

Answer: TypeAlias = AppAckConf | ApplicationAcknowledged | SamplesDone | ReaderState | WriterState
"""What settle says on the topic ``publisher-acks``."""

_decoder: msgspec.json.Decoder[ConsumerRecord] = msgspec.json.Decoder(ConsumerRecord)
_answer: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
_encode = msgspec.json.Encoder().encode


class ConsumerRecordError(ValueError):
    """A record of a consumer cannot be read; the text says what is wrong with it."""


def read(value: bytes) -> ConsumerRecord:
    """Read what a consumer sent.

    :raises ConsumerRecordError: it is no JSON of one of these records
    """
    return decoded(_decoder, value, "a consumer", ConsumerRecordError)


def read_answer(value: bytes) -> Answer | None:
    """Read what settle said; ``None`` for all else on that topic, such as the acknowledgements of persist."""
    try:
        return _answer.decode(value)
    except UNREADABLE:
        return None


def write(record: ConsumerRecord | Answer) -> bytes:
    """Return the JSON of a record; response data is base64."""
    return _encode(record)
