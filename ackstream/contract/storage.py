"""The topics of publishers and of query clients: messages, what is stored of them, commands over them."""

from __future__ import annotations

from ackstream.contract.formats import BYTES, Example, RecordFormat, TopicFormat
from ackstream.protocol.messages import CommandAck, Replicated, StoredRange
from ackstream.protocol.record_headers import (
    ACK,
    ACK_CONFLATION,
    ACK_IMMEDIATELY,
    BOOKMARK,
    CID,
    CLIENT,
    COMMAND,
    CORRELATION_ID,
    FILTER,
    FIRST,
    ID,
    KEY,
    OMITTED,
    OPTIONS,
    ORDER_BY,
    SEQ,
    SESSION,
    SOW_KEYS,
    SUB_ID,
    TIMESTAMP,
    TOP_N,
    TOPIC,
    TTL,
    WINDOW,
)

CLIENT_KEY = "The name of the client: all its records are in one partition, in order."
_OWN = {CLIENT: "orders-1", SESSION: "logon-7f3a"}
_ANY = {"description": "Anything: the value belongs to the application."}


def _command(name: str, about: str, headers: dict[str, str], *optional: str) -> RecordFormat:
    fixed = {COMMAND: name}
    return RecordFormat(
        name=name, about=about, fixed=fixed, required=(CLIENT,), optional=(SESSION, CID, ACK, *optional),
        examples=(Example(about, headers=_OWN | fixed | headers),),
    )  # fmt: skip


MESSAGES = TopicFormat(
    "What publishers send: messages with their numbers, and commands.",
    "The name of the publisher: all its records are in one partition, in order.",
    (
        RecordFormat(
            name="publish",
            about="A message. Numbers grow by one; a gap holds back what follows.",
            value=_ANY,
            schema="MessageValue",
            content_type=BYTES,
            required=(CLIENT, SEQ),
            absent=COMMAND,
            optional=(SESSION, ACK, CID, TOPIC, KEY, TTL, ACK_IMMEDIATELY, CORRELATION_ID, "requested-acks",
                      "ditto-entity-id"),
            examples=(
                Example(
                    "Acknowledged once it is in the table.",
                    {"price": 7},
                    {**_OWN, SEQ: "41", ACK: "persisted", TOPIC: "orders"},
                ),
            ),
        ),
        _command("logon", "Begins a session, and ends that of an earlier publisher of the name.",
                 {CID: "logon-7f3a", ACK: "processed", FIRST: "41", WINDOW: "1000", ACK_CONFLATION: "250ms"},
                 FIRST, WINDOW, ACK_CONFLATION),
        _command("flush", "Is answered once all before it is stored or refused.", {CID: "flush-1", ACK: "persisted"}),
        _command("withdraw", "No messages of these numbers will come.", {FIRST: "42", SEQ: "43", ACK: "none"},
                 FIRST, SEQ),
    ),
)  # fmt: skip

COMMAND_ACK = RecordFormat(
    name="acknowledgement",
    about="How far messages, or a command, have got. A merged one covers the numbers from `first` to `s`; a copy "
    "has the same `ack_id`.",
    value=CommandAck,
    examples=(
        Example("Up to 41 all is in the table.",
                CommandAck(ack_type="persisted", client="orders-1", first=8, seq=41, session="logon-7").identified()),
        Example("One is refused.",
                CommandAck(ack_type="persisted", status="failure", client="orders-1", first=42, seq=42,
                           session="logon-7f3a", reason="not entitled").identified()),
        Example("The answer to a logon: stored up to 41, numbers begin after 43.",
                CommandAck(ack_type="processed", client="orders-1", cid="logon-7f3a", seq=41, session="logon-7f3a",
                           highest=43).identified()),
    ),
)  # fmt: skip

STORED = TopicFormat(
    "Which messages are in the table, and which were refused: a message counts only then.",
    "The name of the publisher.",
    (
        RecordFormat(
            name="stored",
            about="The numbers from `first` to `last` are decided.",
            value=StoredRange,
            examples=(Example("42 was refused.", StoredRange("orders-1", 8, 45, 17, ((42, 42),))),),
        ),
    ),
)

DESTINATIONS = TopicFormat(
    "Up to which batch further lakes are complete.",
    "The name of the destination.",
    (
        RecordFormat(
            name="replicated",
            about="The destination has all rows up to a batch.",
            value=Replicated,
            examples=(Example("", Replicated("standby", "0d6f5c0e", 17)),),
        ),
    ),
)


def _query(name: str, about: str, headers: dict[str, str], *optional: str) -> RecordFormat:
    fixed = {COMMAND: name}
    return RecordFormat(
        name=name, about=about, fixed=fixed, optional=(CID, ACK, *optional),
        examples=(Example(about, headers=fixed | headers),),
    )  # fmt: skip


_SELECTION = (FILTER, ORDER_BY, TOP_N)
QUERIES = TopicFormat(
    "Commands over the messages; all of a command is in record headers.",
    CLIENT_KEY,
    (
        _query("logon", "Begins a session: what an earlier client of the name has subscribed to ends.",
               {CID: "1", ACK: "processed", OPTIONS: "ack_conflation=1s"}, OPTIONS),
        _query("sow", "Returns the newest message of each key.",
               {CID: "2", ACK: "completed,stats", TOPIC: "orders", FILTER: "/price > 10", ORDER_BY: "/price DESC",
                TOP_N: "50"}, TOPIC, *_SELECTION),
        _query("subscribe", "Delivers messages from now on, or from a bookmark.",
               {CID: "3", ACK: "processed,completed", TOPIC: "orders", SUB_ID: "dear", BOOKMARK: "EPOCH"},
               TOPIC, SUB_ID, FILTER, BOOKMARK, OPTIONS),
        _query("sow_and_subscribe", "Both, without a gap between them.",
               {CID: "4", ACK: "completed", TOPIC: "orders"}, TOPIC, SUB_ID, *_SELECTION, OPTIONS),
        _query("sow_delete", "Removes records, by a filter or by their keys.",
               {CID: "5", ACK: "persisted,stats", TOPIC: "orders", SOW_KEYS: "7,8"}, TOPIC, FILTER, SOW_KEYS, SEQ),
        _query("unsubscribe", "Ends a subscription; `all` ends each.", {CID: "6", SUB_ID: "dear"}, SUB_ID),
        _query("flush", "Is answered after all commands before it.", {CID: "7", ACK: "completed"}),
        _query("heartbeat", "Keeps the session: `start,10`, `beat`, `stop`.", {CID: "8", OPTIONS: "beat"}, OPTIONS),
    ),
)  # fmt: skip


def _result(name: str, about: str, headers: dict[str, str], *optional: str, value: object = None) -> RecordFormat:
    fixed = {COMMAND: name}
    return RecordFormat(
        name=name, about=about, value=value, schema="MessageValue" if value is _ANY else "", fixed=fixed,
        required=(ID,), optional=(CID, SUB_ID, *optional), content_type=BYTES if value is _ANY else "application/json",
        examples=(Example(about, {"price": 12} if value is _ANY else None, fixed | headers),),
    )  # fmt: skip


_OF_MESSAGE = {BOOKMARK: "17|3|1042|9a0c5d11", TOPIC: "orders", CLIENT: "orders-1", TIMESTAMP: "1767268800000"}
QUERY_RESULTS = TopicFormat(
    "The results of a client's commands, in one order.",
    CLIENT_KEY,
    (
        RecordFormat(
            name="ack",
            about="An acknowledgement of a command.",
            value=CommandAck,
            fixed={COMMAND: "ack"},
            required=(ID,),
            optional=(CID, SUB_ID),
            examples=(
                Example(
                    "All records were sent.",
                    CommandAck(ack_type="stats", client="analyst-1", cid="2", topic_matches=90, matches=51,
                               records_returned=50),
                    {COMMAND: "ack", ID: "0-7/stats", CID: "2"},
                ),
            ),
        ),
        _result("group_begin", "The records of a `sow` follow.", {ID: "0-7/begin", CID: "2"}),
        _result("sow", "A record.", {ID: "0-7/17|3|1042", CID: "2", **_OF_MESSAGE}, *_OF_MESSAGE, KEY, OMITTED,
                value=_ANY),
        _result("group_end", "That were all of them.", {ID: "0-7/end", CID: "2"}),
        _result("publish", "A message of a subscription.", {ID: "0-9/17|3|1042", SUB_ID: "dear", **_OF_MESSAGE},
                *_OF_MESSAGE, KEY, OMITTED, value=_ANY),
    ),
)  # fmt: skip
