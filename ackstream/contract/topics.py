"""What each topic carries: the one table, over all topics of :mod:`ackstream.kafka.topics`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackstream.contract import consumers, requests, storage
from ackstream.kafka.parties import PARTIES
from ackstream.kafka.topics import CLOCK, LEASE, TOPICS

if TYPE_CHECKING:
    from ackstream.contract.formats import TopicFormat

FORMATS: dict[str, TopicFormat] = {
    "signals": requests.SIGNALS,
    "acks": requests.ACKS,
    "twin-acks": requests.TWIN_ACKS,
    "replies": requests.REPLIES,
    "events": requests.EVENTS,
    "declarations": requests.DECLARATIONS,
    "ledger": requests.LEDGER,
    "audit": requests.AUDIT,
    "messages": storage.MESSAGES,
    "publisher-acks": consumers.PUBLISHER_ACKS,
    "stored": storage.STORED,
    "destinations": storage.DESTINATIONS,
    "app-acks": consumers.APP_ACKS,
    "queue-deliveries": consumers.QUEUE_DELIVERIES,
    "queries": storage.QUERIES,
    "query-results": storage.QUERY_RESULTS,
    "dead-letters": consumers.DEAD_LETTERS,
}
FORMATS |= {name: consumers.CLOCK for name, topic in TOPICS.items() if topic is CLOCK}
FORMATS |= {name: consumers.LEASE for name, topic in TOPICS.items() if topic is LEASE}

SYSTEM = tuple(name for name, party in PARTIES.items() if party.job or name in ("gateway", "connect"))
"""The parties that are parts of the system; all others are its clients."""


def writers(topic: str) -> list[str]:
    """Return the parties that write a topic."""
    return [name for name, party in PARTIES.items() if topic in party.writes]


def readers(topic: str) -> list[str]:
    """Return the parties that read a topic."""
    return [name for name, party in PARTIES.items() if topic in party.reads]
