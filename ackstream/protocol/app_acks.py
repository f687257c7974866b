"""Records of the consumer plane: what readers say of samples, and what is answered.

A sample is named by its writer and the writer's sequence number. Shapes: brokers.md 2.2, one record for one reader and
one writer; ``start``, ``auto`` and ``role`` are ours.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

MAX_RESPONSE_BYTES = 32 * 1024
"""Of the response data of one acknowledgement (RTI-RN: Connext 7.0)."""

AutoReason: TypeAlias = Literal["filtered", "replaced"]
"""Why a sample was acknowledged though no code saw it: a filter excluded it, or KEEP_LAST gave its place away."""

Outcome: TypeAlias = Literal["accepted", "failed", "rejected"]
"""How a consumer settles a message: done; try again; never again. AMPS calls them ack, cancel, expire."""


class AckInterval(msgspec.Struct, frozen=True, omit_defaults=True):
    """Samples ``first`` to ``last`` of the writer, with one response and one reason.

    ``reported``: an earlier AppAck has said so already.
    """

    first: int
    last: int
    response: bytes | None = None
    auto: AutoReason | None = None
    reported: bool = False


class AppAck(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="app_ack"):
    """All that a reader has acknowledged of a writer's samples.

    ``epoch`` grows with each start of the reader, ``count`` with each AppAck of an epoch; ``start`` is the first sample
    the reader expects.
    """

    reader: str
    writer: str
    epoch: int
    count: int
    intervals: tuple[AckInterval, ...]
    role: str | None = None
    start: int = 1


class ProtocolAck(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="protocol_ack"):
    """A reader of the kind ``protocol`` has all samples up to ``up_to`` in its library; that is all it will say."""

    reader: str
    writer: str
    epoch: int
    up_to: int
    role: str | None = None
    start: int = 1


class Settlement(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="settle"):
    """A consumer has decided about one message of a queue; ``delivery`` 1 is the message's first."""

    consumer: str
    message: str
    outcome: Outcome
    delivery: int = 1
    reason: str | None = None


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


ConsumerRecord: TypeAlias = AppAck | ProtocolAck | Settlement

_decoder: msgspec.json.Decoder[ConsumerRecord] = msgspec.json.Decoder(ConsumerRecord)
_encode = msgspec.json.Encoder().encode


class ConsumerRecordError(ValueError):
    """A record of a consumer cannot be read; the text says what is wrong with it."""


def read(value: bytes) -> ConsumerRecord:
    """Read what a consumer sent.

    :raises ConsumerRecordError: it is no JSON of one of these records
    """
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConsumerRecordError(f"This is no record of a consumer: {error}.") from error


def write(record: ConsumerRecord | AppAckConf | ApplicationAcknowledged | SamplesDone) -> bytes:
    """Return the JSON of a record; response data is base64."""
    return _encode(record)
