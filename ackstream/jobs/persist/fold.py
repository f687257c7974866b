"""A batch of records, folded over the states of their publishers."""

from __future__ import annotations

import logging
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from ackstream.jobs.persist.metadata import MessageMetadata, MessageRun
from ackstream.jobs.persist.publishers import PublisherBatch
from ackstream.jobs.persist.state import RejectedRecord
from ackstream.protocol.dispositions import NOT_PROCESSED
from ackstream.protocol.messages import MAX_CLIENT_CHARACTERS, CommandAck, StoredRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ackstream.jobs.persist.admission import Admission
    from ackstream.jobs.persist.state import PublisherState

log = logging.getLogger(__name__)

STORED, NO_ROW = "stored", "no row"
"""What becomes of a record: a message in the table; or nothing, as of commands, and of messages that are repeated."""


class PersistResult(NamedTuple):
    """The result of a batch; all records that are not rejected are messages to store.

    :ivar urgent: the clients whose acks are not held back
    """

    rejected: list[RejectedRecord]
    acks: list[tuple[str, CommandAck]]
    stored: list[StoredRange]
    changed: dict[str, PublisherState]
    urgent: frozenset[str]

    def stores(self, records: int) -> bool:
        """Return whether the batch, which has this many records, adds rows to the table."""
        return records > sum(rejected.reason is None for rejected in self.rejected)

    def ends(self, records: int) -> dict[str, int]:
        """Count the records of the batch, which has this many, by what became of them: stored, or why not."""
        found = Counter(rejected.reason or NO_ROW for rejected in self.rejected)
        return {STORED: records - len(self.rejected), **found}


def is_durability_ack(ack: CommandAck) -> bool:
    """Return whether an ack reports what is durable, as a logon's does: it waits for the sync destinations."""
    return ack.ack_type == "persisted" or ack.bookmark is not None


def state_name(client: str | None) -> str:
    """Return the name of the state in which a record is noted: records without a client, or a valid one, share one."""
    return client if client and len(client) <= MAX_CLIENT_CHARACTERS else ""


def fold(
    records: Iterable[MessageMetadata | MessageRun],
    states: Mapping[str, PublisherState],
    admission: Admission,
    *,
    floor_ms: int,
    batch: int,
) -> PersistResult:
    """Apply a batch of records to the states of their publishers; the given states stay as they are.

    :param records: those of each partition in the order of their offsets
    :param floor_ms: the shortest interval of merged acks
    """
    rejected: list[RejectedRecord] = []
    clients: dict[str, list[MessageMetadata | MessageRun]] = {}
    nameless: list[MessageMetadata] = []
    newest = 0
    for item in records:
        message, timestamp = (item.first, item.newest) if isinstance(item, MessageRun) else (item, item.timestamp)
        newest = max(newest, timestamp)
        if client := state_name(message.client):
            clients.setdefault(client, []).append(item)
        else:
            nameless += _members(item)
    if nameless:
        # under the empty name it is only noted which of them were read
        clients[""] = sorted(nameless, key=attrgetter("partition", "offset"))
    acks: list[tuple[str, CommandAck]] = []
    stored: list[StoredRange] = []
    changed: dict[str, PublisherState] = {}
    urgent: set[str] = set()
    for client, own in clients.items():
        publisher = PublisherBatch(client, states.get(client), admission, floor_ms, newest)
        try:
            for item in own:
                publisher.add(item)
            changed[client] = publisher.close()
        except Exception:
            log.exception("The records of the publisher %.80r in batch %d are refused.", client, batch)
            records_of = (message for item in own for message in _members(item))
            for message in records_of:
                rejected.append(RejectedRecord(message.partition, message.offset, NOT_PROCESSED))
                if message.command == "logon":
                    acks.append((client, _retry(client, message.cid)))
            continue
        rejected += publisher.rejected
        acks += [(client, ack.identified()) for ack in publisher.acks]
        stored += publisher.stored(batch)
        if publisher.urgent:
            urgent.add(client)
    return PersistResult(rejected, acks, stored, changed, frozenset(urgent))


def _retry(client: str, cid: str | None) -> CommandAck:
    """Return the answer to a logon that failed: a later one may not, and its publisher waits."""
    ack = CommandAck(ack_type="processed", status="retry", client=client, cid=cid, reason=NOT_PROCESSED)
    return ack.identified()


def _members(item: MessageMetadata | MessageRun) -> list[MessageMetadata]:
    return item.members() if isinstance(item, MessageRun) else [item]
