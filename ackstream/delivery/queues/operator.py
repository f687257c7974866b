"""The operator of the queues: applyInPandasWithState around :class:`Endpoint`, one group a queue.

A queue's order needs one place, so it is the group; its state is a version and one blob.
"""

from __future__ import annotations

import gc
from itertools import starmap
from typing import TYPE_CHECKING, Any

import msgspec
import pandas as pd
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from ackstream.delivery.queues.endpoint import Endpoint, answer_unknown
from ackstream.delivery.queues.records import Arrival, Said
from ackstream.protocol import queues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql.streaming.state import GroupState

    from ackstream.delivery.queues.records import Event, Unreadable
    from ackstream.delivery.queues.rules import QueueRules
    from ackstream.protocol.queues import ServiceRecord

# a Python worker of Spark runs gc.collect() after every task: what is alive now need not be looked at then
gc.collect()
gc.freeze()

STATE_SCHEMA = StructType([StructField("version", IntegerType()), StructField("blob", BinaryType())])
OUTPUT_SCHEMA = StructType(
    [
        StructField("kind", StringType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("reason", StringType()),
    ]
)
"""``kind`` is ``answer`` (to the consumer ``key``), ``event`` or ``unreadable`` (with its reason)."""

ARRIVAL, SAID = 0, 1
"""Values of ``kind`` in the input."""

_ARRIVAL = (
    "timestamp", "topic", "partition", "offset", "batch", "subject", "ttl_ms", "eligible", "barrier",
)  # fmt: skip
_SAID = ("timestamp", "partition", "offset", "key", "value")
_encode_event = msgspec.json.Encoder().encode


def queue_function(
    rules: Mapping[str, QueueRules], session_ms: int
) -> Callable[[tuple[str], Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """Return the function that Spark calls for each queue with records, or whose timeout has come.

    :param rules: by the queues' names; who asks for others is told that there is none, and what a queue held that is
        no longer there stays in its state
    """

    def serve(key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        (name,) = key
        arrivals, said = read_frames(frames)
        if name not in rules:
            yield write_frame(*answer_unknown(name, said))
            return
        endpoint = Endpoint(name, rules[name], session_ms)
        if state.exists:
            version, blob = state.get
            endpoint.load(version, bytes(blob))
        watermark = max(state.getCurrentWatermarkMs(), 0)
        endpoint.process(arrivals, said, watermark)
        dumped = endpoint.dump()
        if dumped is not None:
            state.update(dumped)
            if endpoint.next_timeout is not None:
                state.setTimeoutTimestamp(max(endpoint.next_timeout, watermark + 1))
        elif state.exists:
            state.remove()
        yield write_frame(endpoint.answers, endpoint.unreadable, endpoint.events)

    return serve


def read_frames(frames: Iterable[pd.DataFrame]) -> tuple[list[Arrival], list[Said]]:
    """Read the rows of the input (see ``query.records``)."""
    arrivals: list[Arrival] = []
    said: list[Said] = []
    for frame in frames:
        spoken = frame["kind"] == SAID
        arrivals.extend(starmap(Arrival, _rows(frame[~spoken], _ARRIVAL)))
        said.extend(starmap(Said, _rows(frame[spoken], _SAID)))
    return arrivals, said


def _rows(frame: pd.DataFrame, names: Iterable[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(frame[name].tolist() for name in names), strict=True)


def write_frame(
    answers: Iterable[ServiceRecord], unreadable: Iterable[Unreadable], events: Iterable[Event] = ()
) -> pd.DataFrame:
    """Lay out what there is to say in the columns of :data:`OUTPUT_SCHEMA`."""
    rows = [
        *(("answer", answer.consumer.encode(), queues.write(answer), None) for answer in answers),
        *(("event", None, _encode_event(event), None) for event in events),
        *(("unreadable", record.key, record.value, record.reason) for record in unreadable),
    ]
    return pd.DataFrame(rows, columns=OUTPUT_SCHEMA.names, dtype=object)
