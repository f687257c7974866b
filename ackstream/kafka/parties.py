"""Who reads and writes which topic: the one table of the parties of a system.

With the ACLs of ``ackstream acls`` a broker lets each party do this and nothing else. A party is a program with a login
of its own; one that is several of them (a service that publishes and reads) has one login with the rights of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ackstream.settings.kafka import job_group

if TYPE_CHECKING:
    from ackstream.settings import Kafka


@dataclass(frozen=True, kw_only=True)
class Party:
    """What one kind of program needs of Kafka. Topics are named without the prefix.

    :ivar about: what it is
    :ivar reads: the topics it reads
    :ivar writes: the topics it writes
    :ivar looks_up: further topics of which it needs to know their ends
    :ivar job: whether it is a job, which checks how its topics are configured
    :ivar groups: the beginnings of the names of its consumer groups, without the prefix
    :ivar watches: the groups whose offsets it shows
    """

    about: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    looks_up: tuple[str, ...] = ()
    job: bool = False
    groups: tuple[str, ...] = ()
    watches: tuple[str, ...] = ()

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that it reads or writes."""
        return tuple(dict.fromkeys((*self.reads, *self.writes)))

    def operations(self, kafka: Kafka) -> dict[str, list[str]]:
        """Return the real names of its topics by what it does with them, as Kafka's ACLs call that."""
        named = {"READ": self.reads, "WRITE": self.writes, "DESCRIBE": self.looks_up}
        if self.job:
            named["DESCRIBE_CONFIGS"] = self.topics
        return {operation: [kafka.topic(name) for name in names] for operation, names in named.items()}


LEASED = ("correlate", "archive", "twin", "persist", "settle", "queues", "query")
LEASES = tuple(f"{job}-lease" for job in LEASED)

PARTIES: dict[str, Party] = {
    "correlate": Party(
        about="the job that answers requests",
        reads=("signals", "acks", "twin-acks", "declarations", "clock", "correlate-lease"),
        writes=("replies", "ledger", "dead-letters", "clock", "correlate-lease"),
        job=True,
        groups=(job_group("correlate"),),
    ),
    "archive": Party(
        about="the job that fills the tables of requests",
        reads=("ledger", "audit", "archive-lease"),
        writes=("archive-lease",),
        job=True,
        groups=(job_group("archive"),),
    ),
    "twin": Party(
        about="the job that keeps the things",
        reads=("signals", "twin-lease"),
        writes=("twin-acks", "events", "twin-lease"),
        job=True,
        groups=(job_group("twin"),),
    ),
    "persist": Party(
        about="the job that stores messages",
        reads=("messages", "destinations", "persist-lease"),
        writes=("publisher-acks", "stored", "persist-lease"),
        job=True,
        groups=(job_group("persist"),),
    ),
    "query": Party(
        about="the job that answers commands over messages",
        reads=("queries", "stored", "query-lease"),
        writes=("query-results", "dead-letters", "query-lease"),
        job=True,
        groups=(job_group("query"),),
    ),
    "settle": Party(
        about="the job that settles the acknowledgements of readers",
        reads=("stored", "app-acks", "settle-clock", "settle-lease"),
        writes=("publisher-acks", "settle-clock", "settle-lease"),
        job=True,
        groups=(job_group("settle"),),
    ),
    "queues": Party(
        about="the job that serves the work queues",
        reads=("app-acks", "queue-clock", "queues-lease"),
        writes=("queue-deliveries", "dead-letters", "queue-clock", "queues-lease"),
        job=True,
        groups=(job_group("queues"),),
    ),
    "mirror": Party(about="the job that copies messages to a destination", writes=("destinations",), job=True),
    "gateway": Party(
        about="HTTP, WebSocket and the live page",
        reads=(
            *("replies", "ledger", "events", "signals", "declarations"),
            # of the live page
            *("stored", "app-acks", "queue-deliveries", "dead-letters", "destinations"),
        ),
        writes=("signals", "acks", "events", "declarations", "audit"),
        looks_up=("acks", "twin-acks", "messages", "queries", *LEASES),
        watches=tuple(map(job_group, LEASED)),
    ),
    "connect": Party(
        about="the connections to other systems",
        reads=("replies", "ledger", "events", "signals", "declarations"),
        writes=("signals", "acks", "dead-letters", "declarations"),
        groups=("ackstream-",),
    ),
    "requester": Party(about="a `Requester`", reads=("replies",), writes=("signals",)),
    "responder": Party(
        about="a `Responder`",
        reads=("signals", "declarations"),
        writes=("acks", "declarations"),
        groups=("responder-",),
    ),
    "subscriber": Party(
        about="a `Subscriber`",
        reads=("signals", "events", "declarations"),
        writes=("acks", "declarations"),
        groups=("subscriber-",),
    ),
    "publisher": Party(about="a `Publisher`", reads=("publisher-acks",), writes=("messages", "app-acks")),
    "reader": Party(
        about="a `SampleReader`",
        reads=("messages", "stored", "publisher-acks", "declarations"),
        writes=("app-acks", "acks", "declarations"),
        groups=("reader-",),
    ),
    "worker": Party(about="a `QueueConsumer`", reads=("queue-deliveries", "messages"), writes=("app-acks",)),
    "query-client": Party(about="a `QueryClient`", reads=("query-results",), writes=("queries",)),
}
"""All parties but the operator, who may do everything to the topics of the system."""

OPERATOR = "operator"
