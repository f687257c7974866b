"""One batch of records of the messages topic, folded over what is known of each client.

Pure: facts of the records and the clients' ledgers in; verdicts, acks and the changed ledgers out. The same records
over the same ledgers give the same, so that a batch that runs again after a crash says the same again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ackstream.publishing.persist.account import Account, Ledger, Refused
from ackstream.publishing.persist.facts import Fact, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ackstream.protocol.stored import Stored
    from ackstream.publishing.acks import Ack
    from ackstream.publishing.persist.verdicts import Rules

NO_CLIENT = "no client name"


class Fold(NamedTuple):
    """What a batch comes to; all other records are messages that are stored."""

    refused: list[Refused]
    acks: list[tuple[str, Ack]]
    stored: list[Stored]
    changed: dict[str, Ledger]

    def stores(self, records: int) -> bool:
        """Tell whether the batch, of so many records, has rows in the table."""
        return records > sum(refused.reason is None for refused in self.refused)


def waits(ack: Ack) -> bool:
    """Tell whether an ack says what is durable, as a logon's does: it waits for the sync destinations."""
    return ack.ack_type == "persisted" or ack.bookmark is not None


def fold(
    facts: Iterable[Fact | Run], ledgers: Mapping[str, Ledger], rules: Rules, *, floor_ms: int, batch: int
) -> Fold:
    """Fold a batch.

    :param facts: of each partition in the order of its offsets
    :param floor_ms: how often merged acks can come at best
    :param batch: its number
    """
    refused: list[Refused] = []
    clients: dict[str, list[Fact | Run]] = {}
    newest = 0
    for item in facts:
        fact, time = (item.fact, item.newest) if isinstance(item, Run) else (item, item.timestamp)
        newest = max(newest, time)
        if fact.client:
            clients.setdefault(fact.client, []).append(item)
        else:
            members = item.members() if isinstance(item, Run) else [item]
            refused += [Refused(member.partition, member.offset, NO_CLIENT) for member in members]
    acks: list[tuple[str, Ack]] = []
    stored: list[Stored] = []
    changed: dict[str, Ledger] = {}
    for client, own in clients.items():
        account = Account(client, ledgers.get(client), rules, floor_ms, newest)
        for item in own:
            account.take(item)
        changed[client] = account.close()
        refused += account.refused
        acks += [(client, ack.identified()) for ack in account.acks]
        if (found := account.stored(batch)) is not None:
            stored.append(found)
    return Fold(refused, acks, stored, changed)
