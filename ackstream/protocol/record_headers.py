"""Names of Kafka record headers; each is compared exactly."""

from __future__ import annotations

from typing import Final

# requests, acknowledgements and replies
CORRELATION_ID: Final = "correlation-id"
REPLY_ID: Final = "reply-id"
"""Of a reply; and in an answer of the twin the id of the reply to the very command that it answers."""
REPLY_TO: Final = "reply-to"
ORIGINATOR_SIGNATURE: Final = "originator-signature"
"""Of a request of a gateway or connection: who sent it has been established."""
STATUS: Final = "status"
COMPLETED_BY: Final = "completed-by"
CONTENT_TYPE: Final = "content-type"
SPRING_CORRELATION_ID: Final = "kafka_correlationId"
SPRING_REPLY_TOPIC: Final = "kafka_replyTopic"
SPRING_REPLY_PARTITION: Final = "kafka_replyPartition"

# dead letters
REASON: Final = "reason"

# publishers' messages and commands, queries and their results
CLIENT: Final = "client"
SEQ: Final = "seq"
COMMAND: Final = "command"
CID: Final = "cid"
ACK: Final = "ack"
TOPIC: Final = "topic"
TTL: Final = "ttl"
FIRST: Final = "first"
ACK_CONFLATION: Final = "ack-conflation"
SESSION: Final = "publisher-session"
WINDOW: Final = "publish-window"
ACK_IMMEDIATELY: Final = "ack-immediately"
KEY: Final = "key"

# queries and their results alone
ID: Final = "id"
SUB_ID: Final = "sub_id"
BOOKMARK: Final = "bookmark"
TIMESTAMP: Final = "timestamp"
FILTER: Final = "filter"
OPTIONS: Final = "options"
ORDER_BY: Final = "order_by"
SOW_KEYS: Final = "sow_keys"
TOP_N: Final = "top_n"
OMITTED: Final = "omitted"
"""In a copy of a message that would be too large for Kafka: the bytes that are left out, to be read from the table."""
APPLICATION: Final = "header-"
"""Before the names of the application's own headers in a query's results."""

PUBLISHER: Final = frozenset(
    {CLIENT, SEQ, COMMAND, CID, ACK, TOPIC, TTL, FIRST, ACK_CONFLATION, SESSION, WINDOW, ACK_IMMEDIATELY, KEY}
)
"""Headers of the topic ``messages`` that are the service's; all others are the application's own."""
