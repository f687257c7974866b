"""The durable subscriptions of all readers: which there are, and how one is deleted (Connext 31.13, R21).

Each name of a durable reader is a subscription: samples are kept for it while no reader of the name runs. It begins
with the first start of a reader, and ends here, with ``SampleReader.unregister``, or after ``settle.durable_lease``.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

import msgspec

from ackstream.client.errors import SettleTimeout
from ackstream.client.reading._reader_session import START_SECONDS
from ackstream.client.reading.samples import check_name
from ackstream.kafka.reader import ClientConnection
from ackstream.protocol.readers import (
    KnownReader,
    KnownReaders,
    ReaderRemoved,
    ReadersRequest,
    ReaderStop,
    read_answer,
    write,
)
from ackstream.settings import Kafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ackstream.protocol.readers import Answer, ConsumerRecord

TIMEOUT = 60.0
ASKING = "ackstream-readers"
"""The name under which the readers are asked for. Two who ask at once get each other's answers: these are the same."""


def delete_durable_subscription(bootstrap_servers: str | Kafka, *, name: str, timeout: float = TIMEOUT) -> None:
    """Remove a reader for good: no writer waits for it, and its name begins anew; one that is running ends.

    What its required role has acknowledged still counts.

    :param bootstrap_servers: the brokers, ``host:port`` with commas between, or the Kafka of the settings
    :param timeout: seconds to wait for the settle job
    :raises InconsistentQosError: no reader can have the name
    :raises SettleTimeout: the settle job does not answer
    :raises UnreachableError: no broker, or a topic is missing
    """
    kafka = Kafka.of(bootstrap_servers)
    check_name("name", name)
    removed: set[int] = set()
    for answer in _answers(kafka, name, lambda: ReaderStop(name), timeout):
        if isinstance(answer, ReaderRemoved):
            removed.add(answer.shard)
            if len(removed) == answer.shards:
                return
    raise SettleTimeout(
        f"The removal of reader {name} was not confirmed within {timeout:g} s: start the job that settles"
        " acknowledgements (`ackstream submit settle`)."
    )


def known_readers(bootstrap_servers: str | Kafka, *, timeout: float = TIMEOUT) -> list[KnownReader]:
    """Return the readers that are known, temporary ones too, the one that was silent for longest first.

    :param bootstrap_servers: the brokers, ``host:port`` with commas between, or the Kafka of the settings
    :param timeout: seconds to wait for the settle job
    :raises SettleTimeout: the settle job does not answer
    :raises UnreachableError: no broker, or a topic is missing
    """
    kafka = Kafka.of(bootstrap_servers)
    # by number of the question: it is repeated, and a reader may be in another part of the answer by then
    answers: dict[int, dict[tuple[int, int], KnownReaders]] = {}
    for answer in _answers(kafka, ASKING, lambda: ReadersRequest(ASKING, 1 + secrets.randbits(62)), timeout):
        if isinstance(answer, KnownReaders):
            # a release that knows no numbers may have answered before, in more parts or fewer
            known = answers.get(answer.number, {}).items()
            parts = {at: part for at, part in known if at[0] != answer.shard or part.parts == answer.parts}
            answers[answer.number] = parts
            parts[answer.shard, answer.part] = answer
            expected = {part.shard: part.parts for part in parts.values()}
            if len(expected) == answer.shards and sum(expected.values()) == len(parts):
                return _merged(reader for part in parts.values() for reader in part.readers)
    raise SettleTimeout(
        f"The readers were not reported within {timeout:g} s: start the job that settles acknowledgements"
        " (`ackstream submit settle`)."
    )


def _merged(readers: Iterator[KnownReader]) -> list[KnownReader]:
    """Merge what the shards know of each reader."""
    found: dict[str, KnownReader] = {}
    for reader in readers:
        known = found.setdefault(reader.reader, reader)
        if known is not reader:
            found[reader.reader] = msgspec.structs.replace(
                known,
                present=known.present or reader.present,
                seen=max(known.seen, reader.seen),
                unacknowledged=known.unacknowledged + reader.unacknowledged,
            )
    return sorted(found.values(), key=lambda reader: (reader.seen, reader.reader))


def _answers(kafka: Kafka, name: str, question: Callable[[], ConsumerRecord], timeout: float) -> Iterator[Answer]:
    """Send a record, and yield the answers to the name; send another one now and then."""
    until, ask_at = time.monotonic() + timeout, 0.0
    with ClientConnection(kafka, name, sends="app-acks", addressed="publisher-acks") as link:
        while (now := time.monotonic()) < until:
            if now >= ask_at:
                link.send(write(question()))
                ask_at = now + START_SECONDS
            for record in link.read():
                if (answer := read_answer(record.value)) is not None:
                    yield answer
