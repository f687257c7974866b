"""Closed sets of words for the fate of acknowledgements, requests, published messages and queued messages.

Each word stands here once, with its meaning. Records and tables keep these words, so a release may add some but never
renames one. Wire formats take any text in their place, so that a reader accepts the words of a later release.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

AckDisposition: TypeAlias = Literal[
    "accepted", "progress", "duplicate", "unrequested", "late", "orphan", "undeclared", "invalid"
]

ACKNOWLEDGEMENTS: Final[dict[AckDisposition, str]] = {
    "accepted": "it counts",
    "progress": "its party works on it (status 102)",
    "duplicate": "the label was acknowledged before, and the request was open",
    "unrequested": "its label was not requested",
    "late": "the request was decided; also if the label was acknowledged before",
    "orphan": "there is no such request, or it was decided long ago",
    "undeclared": "no party had declared the label",
    "invalid": "it does not fit its request, see reason",
}
"""Dispositions of acknowledgements, responses and errors: correlate, the table ``acknowledgements``."""

Completion: TypeAlias = Literal["acknowledgements", "response", "timeout", "amended", "cancelled", "error", "invalid"]

COMPLETIONS: Final[dict[Completion, str]] = {
    "acknowledgements": "all requested acknowledgements arrived, or as many as decide its quorum",
    "response": "the single response that the request waits for arrived",
    "timeout": "the deadline passed",
    "amended": "late acknowledgements made it succeed after its timeout: a second reply, and a second row",
    "cancelled": "its requester cancelled it",
    "error": "the twin reported an error",
    "invalid": "the request cannot be accepted",
}
"""Causes of the end of a request: the header ``completed-by``, the table ``outcomes``."""

# -- published messages ------------------------------------------------------------------------------------------------

NO_CLIENT: Final = "no client name"
INVALID_CLIENT: Final = "invalid client name"
NO_NUMBER: Final = "no sequence number"
SEQUENCE_GAP: Final = "sequence gap"
NOT_ENTITLED: Final = "not entitled"
INVALID_TOPIC: Final = "invalid topic"
NO_SUBSCRIPTION_MATCH: Final = "no subscription match"
TOO_LARGE: Final = "message too large"
EXPIRED: Final = "message expired"
OVER_QUOTA: Final = "spool over quota"
QUEUE_SHUTDOWN: Final = "queue shutdown"
SESSION_OVER: Final = "session over"
NOT_PROCESSED: Final = "not processed"

REFUSALS: Final[dict[str, str]] = {
    NO_CLIENT: "the record names no publisher",
    INVALID_CLIENT: "the name of the publisher is too long",
    NO_NUMBER: "the message has no sequence number",
    SEQUENCE_GAP: "too many messages wait for a missing number; accepted when sent again after that one has arrived",
    NOT_ENTITLED: "no entry of persist.entitlements covers the client and the topic",
    INVALID_TOPIC: "no entry of persist.topics matches, or the name is too long",
    NO_SUBSCRIPTION_MATCH: "no entry of persist.subscriptions matches",
    TOO_LARGE: "the value is larger than persist.max_message_bytes",
    EXPIRED: "the message was older than its time to live when persist read it",
    OVER_QUOTA: "the client has stored persist.daily_quota_bytes today",
    QUEUE_SHUTDOWN: "a queue that takes the topic has ingress = refuse",
    SESSION_OVER: "another publisher of the name has logged on",
    NOT_PROCESSED: "persist failed on the records of the publisher in this batch",
}
"""Reasons for which persist refuses a message: its ack, and the column ``reason`` of the table ``messages``."""

# reasons in acks of numbers that were decided before; the message has no row of its own
DUPLICATE: Final = "duplicate"
"""A message of this number was stored before."""
WITHDRAWN: Final = "withdrawn"
"""The publisher took the number back, because Kafka refused its message for good."""
OUTCOME_UNKNOWN: Final = "outcome unknown"
"""The number was decided before the remembered refusals: its message may have been refused."""

# -- queued messages ---------------------------------------------------------------------------------------------------

MessageDisposition: TypeAlias = Literal["settled", "dead-letter", "discarded"]

MESSAGES: Final[dict[MessageDisposition, str]] = {
    "settled": "a consumer is finished with it, or no consumer has to be",
    "dead-letter": "the queue gave it up and wrote it to the topic dead-letters",
    "discarded": "the queue gave it up and keeps no copy",
}
"""Outcomes of messages that leave a queue: the table ``queue_events``."""

ExitReason: TypeAlias = Literal[
    "accepted",
    "sent",
    "rejected",
    "drained",
    "unavailable",
    "max-deliveries",
    "max-failures",
    "expired",
    "queue-full",
    "settled-early",
    "barrier",
    "error",
]

EXITS: Final[dict[ExitReason, str]] = {
    "accepted": "its consumer accepted it",
    "sent": "the queue delivers at most once, and it was delivered",
    "rejected": "its consumer rejected it",
    "drained": "an operator drained the queue",
    "unavailable": "none of its consumers could read it",
    "max-deliveries": "it was delivered as often as the queue allows",
    "max-failures": "it failed as often as the queue allows",
    "expired": "its time to live has passed",
    "queue-full": "the queue had no room for it",
    "settled-early": "its settlement arrived before it",
    "barrier": "it is a barrier, and the last of its consumers is finished with it",
    "error": "the queue failed on it",
}
"""Reasons for which messages leave a queue: the table ``queue_events``, the header ``reason`` of dead letters."""


def explained(words: Mapping[Any, str]) -> str:
    """Return all words of a set with their meanings, as one text."""
    return "; ".join(f"{word}: {meaning}" for word, meaning in words.items())
