"""The topics of consumers: what readers and workers report, and what they are answered."""

from __future__ import annotations

from typing import Any

from ackstream.contract.formats import BYTES, TEXT, Example, RecordFormat, TopicFormat
from ackstream.contract.schemas import plain
from ackstream.contract.storage import COMMAND_ACK
from ackstream.protocol import queues, readers
from ackstream.protocol.record_headers import REASON, TOPIC

_READER = "billing"
_WRITER = "orders-1"
_WORKER = ("work", "worker-1", 1_767_268_800)


def _of(*examples: Any) -> RecordFormat:
    """Describe the records of a type, whose tag is their name and whose docstring says what they are."""
    kind = type(examples[0])
    about = plain((kind.__doc__ or "").split("\n\n")[0])
    return RecordFormat(
        name=kind.__struct_config__.tag.replace("_", "-"),
        about=about,
        value=kind,
        examples=tuple(Example(about, example) for example in examples),
    )


APP_ACKS = TopicFormat(
    "What readers, publishers and workers report to settle and to the queues.",
    "The name of who reports.",
    tuple(
        map(
            _of,
            (
                readers.ReaderStart(_READER, 1_767_268_800_000, "Logger", durable=True, writers=("orders-*",)),
                readers.AppAck(
                    _READER, _WRITER, 1_767_268_800_000, 3,
                    (readers.AckInterval(1, 40, reported=True), readers.AckInterval(41, 41, b"shipped")), "Logger",
                ),
                readers.ProtocolAck(_READER, _WRITER, 1_767_268_800_000, 41),
                readers.ReaderAlive(_READER, 1_767_268_800_000),
                readers.ReaderStop(_READER, 1_767_268_800_000),
                readers.WriterStateRequest(_WRITER, {"Auditor": 1}),
                readers.ReadersRequest("console-1", 1),
                queues.Bind(*_WORKER, backlog=10, outcomes=("failed",)),
                queues.Alive(*_WORKER, received=7),
                queues.SettleMessages(*_WORKER, ("messages-3-1042",)),
                queues.Unbind(*_WORKER),
            ),
        )
    ),
)  # fmt: skip

PUBLISHER_ACKS = TopicFormat(
    "What persist acknowledges to publishers, and settle to publishers and readers.",
    "The name of the publisher, reader or operator who is addressed.",
    (
        COMMAND_ACK,
        *map(
            _of,
            (
                readers.ReaderState(
                    _READER, 1_767_268_800_000, 0, 1, 1_767_268_799_000,
                    (readers.KnownWriter(_WRITER, 1, 45, ((1, 40),), ((41, 45),)),),
                ),
                readers.AppAckConf(_READER, _WRITER, 1_767_268_800_000, 3),
                readers.ApplicationAcknowledged(_WRITER, _READER, 41, 41, "Logger", b"shipped"),
                readers.SamplesDone(_WRITER, ((1, 41),), 41),
                readers.WriterState(_WRITER, 45, 41, waiting_for=(_READER,), required={"Auditor": 1}),
                readers.ReaderRemoved(_READER, 0, 1, 3),
                readers.KnownReaders("console-1", 0, 1, (readers.KnownReader(_READER, durable=True),), number=1),
            ),
        ),
    ),
)  # fmt: skip

QUEUE_DELIVERIES = TopicFormat(
    "What queues answer to workers: deliveries by the coordinates of their messages.",
    "The name of the worker.",
    tuple(
        map(
            _of,
            (
                queues.Bound(*_WORKER, 1, 10, 30_000, 30_000),
                queues.MessageDelivered(*_WORKER, 2, "messages-3-1042", "messages", 3, 1042, 17, 1, "orders"),
                queues.NotSettled(*_WORKER, 3, "messages-3-1042", "accepted", "not-held"),
                queues.Unbound(*_WORKER, "closed"),
            ),
        )
    ),
)

DEAD_LETTERS = TopicFormat(
    "Records and messages that were given up, with the reason.",
    "That of the original record.",
    (
        RecordFormat(
            name="dead-letter",
            about="The original value, with the reason; of a message that left a queue, its own headers, too.",
            value={"description": "As it was: anything."},
            schema="DeadLetterValue",
            content_type=BYTES,
            required=(REASON,),
            optional=("queue", "message", "deliveries", TOPIC, "partition", "offset"),
            examples=(Example("A signal.", "not JSON", {REASON: "json.invalid: it is no JSON (signals-3-7)"}),),
        ),
    ),
)

CLOCK = TopicFormat(
    "For the jobs themselves: up to which time all records have been read.",
    "The run of the job.",
    (
        RecordFormat(
            name="tick",
            about="All records before this time (epoch milliseconds) have been read by the end of the batch.",
            value={"type": "integer", "minimum": 0, "description": "Epoch milliseconds, as decimal text."},
            schema="Tick",
            content_type=TEXT,
            optional=("owner",),
            examples=(Example("", 1_767_268_800_000),),
        ),
    ),
)

LEASE = TopicFormat(
    "For the jobs themselves: which run of a job alone may go on.",
    "The run, or `claim` to begin one.",
    (
        RecordFormat(
            name="sign",
            about="A claim (an empty value), or a sign of life (`0`).",
            value={"type": "string", "enum": ["", "0"], "description": "As text, without quotes."},
            schema="Lease",
            content_type=TEXT,
            optional=("owner",),
            examples=(Example("", "0"),),
        ),
        RecordFormat(name="end", about="The end of a run: a record without a value.", optional=("owner",)),
    ),
)
