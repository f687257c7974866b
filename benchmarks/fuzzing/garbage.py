"""Records that are almost right, from a seed: valid shapes with wrong types, texts, numbers and sizes anywhere in them.

Fast rather than clever: a million in minutes. The tests have the same idea for Hypothesis, which is a hundred times
slower and finds the smallest example.
"""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

NESTED: Any = None
for _ in range(150):
    NESTED = [NESTED]

WRONG: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 200, 404, 1.5, -0.0, 1e308, float("inf"), float("nan"),
    2**31, 2**53, 2**63, -(2**63) - 1, 2**64, 10**40,
    "", " ", "x", "True", "False", "true", "false", "null", "0", "-1", "1e5", "9" * 30, "10s", "5ms", "0s", "-10s",
    "99d", "[]", "{}", '["a-ack"]', '["', "live-response", "twin-persisted", "search-persisted", "a-ack", "b/ack", "*",
    "/", "//", "\x00", "\u202e", "\ud800", "é" * 300, "a" * 5_000, "org.acme:lamp", "application/json", "_/_",
    [], [None], [[]], ["a-ack", 1], ["a-ack", "a-ack"], ["b" * 300], [{}], NESTED, {}, {"": ""}, {"a": {"b": None}},
    {"correlation-id": 1}, {"type": "app_ack"}, {str(number): number for number in range(40)},
)  # fmt: skip
"""The replacements of a value."""

HEADERS = (
    "correlation-id", "response-required", "requested-acks", "declared-acks", "timeout", "channel", "content-type",
    "ditto-weak-ack", "live-channel-condition", "live-channel-timeout-strategy", "version", "dry-run", "if-match",
    "if-none-match", "condition", "put-metadata", "get-metadata", "delete-metadata", "reply-to", "traceparent",
    "entity-revision", "etag", "ditto-sudo", "ditto-auth-context", "ditto-reply-target", "ditto-metadata", "accept",
    "RESPONSE-REQUIRED", "Correlation-ID", "allow-policy-lockout", "ditto-entity-id", "",
)  # fmt: skip
LABELS = ("a-ack", "b-ack", "live-response", "twin-persisted", "search-persisted")
THINGS = tuple(f"org.acme/lamp-{number}" for number in range(50))
TOPICS = (
    *(f"things/twin/commands/{action}" for action in ("modify", "create", "merge", "retrieve", "delete", "migrate")),
    *(f"things/live/commands/{action}" for action in ("modify", "retrieve")),
    "things/live/messages/ask", "things/twin/errors", "things/twin/acks", "things/twin/acks/a-ack",
    "policies/commands/modify", "things/twin/events/modified", "things/twin/search/subscribe",
    "things/none/commands/modify", "things", "",
)  # fmt: skip
SIGNALS = (
    ("things/twin/commands/create", "/", "thing"), ("things/twin/commands/modify", "/", "thing"),
    ("things/twin/commands/modify", "/attributes/x", 1), ("things/twin/commands/modify", "/attributes/a/b", {"c": 1}),
    ("things/twin/commands/merge", "/", {"attributes": {"y": None}}), ("things/twin/commands/retrieve", "/", None),
    ("things/twin/commands/delete", "/attributes/x", None), ("things/twin/commands/delete", "/", None),
    ("things/twin/commands/modify", "/features/f/properties/p", [1, 2]), ("things/live/commands/retrieve", "/", None),
    ("things/live/commands/modify", "/attributes/x", 1), ("things/live/messages/ask", "/inbox/messages/ask", "hello"),
)  # fmt: skip
"""Actions, paths and values that fit."""
PATHS = (
    "/", "/attributes", "/attributes/x", "/attributes/a/b/c", "/features", "/features/f/properties/p", "/definition",
    "/policyId", "/inbox/messages/ask", "/features/f/inbox/messages/ask", "", "x", "//", "/attributes//x", "/_metadata",
)  # fmt: skip
FILTERS = (
    "/a", "/a/b", "=", "<>", "<", ">=", "1", "'x'", "'", '"y"', "(", ")", "AND", "OR", "NOT", "LIKE", "IN", "IS NULL",
    "BETWEEN", "null", "true", "-", "+", "*", "%", "1e400", "/", "é", "\x00", "BEGINS WITH", "INSTR", ",", "[", "0x",
)  # fmt: skip


class Garbage:
    """Gives records; the same seed gives the same ones."""

    def __init__(self, seed: int | str) -> None:
        self.chance = Random(seed)

    def one_in(self, count: int) -> bool:
        """Return whether something rare happens."""
        return self.chance.random() * count < 1

    def pick(self, values: Any) -> Any:
        return values[int(self.chance.random() * len(values))]

    def wrong(self) -> Any:
        if self.one_in(2_000):
            return "w" * self.chance.randrange(100_000, 2_000_000)
        value = self.pick(WRONG)
        # a copy is spoilt once more
        return copy.deepcopy(value) if isinstance(value, list | dict) else value

    def spoil(self, value: dict[str, Any]) -> dict[str, Any]:
        """Make one thing wrong, in place: replace, remove or add an entry, at any depth, most in headers and lists."""
        place: Any = value
        while True:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            if not keys:
                break
            deep = [key for key in keys if isinstance(place[key], dict | list) and place[key]]
            key = self.pick(deep if deep and self.one_in(2) else keys)
            inner = place[key]
            if isinstance(inner, dict | list) and inner and not self.one_in(4):
                place = inner
                continue
            if self.one_in(6):
                del place[key]
            elif isinstance(place, dict) and self.one_in(8):
                place[self.pick(HEADERS)] = self.wrong()
            else:
                place[key] = self.wrong()
            break
        return value

    def record(self, value: dict[str, Any]) -> bytes | None:
        """Write a record; most are spoilt once, some more often, some are no JSON any more."""
        dice = self.chance.random()
        if dice > 0.4:
            self.spoil(value)
            while self.one_in(3):
                self.spoil(value)
        data = json.dumps(value).encode()
        return data if dice < 0.97 else self._damaged(data)

    def _damaged(self, data: bytes) -> bytes | None:
        at = self.chance.randrange(len(data))
        return self.pick(
            (
                None, b"", data[:at], data + b"}", b"\xef\xbb\xbf" + data, data[:at] + b"\xff" + data[at + 1 :],
                data[:at] + bytes([self.chance.randrange(256)]) + data[at + 1 :], b"[" * 3_000, b"[" + data + b"]",
                data.replace(b'"headers"', b'"headers":{},"headers"', 1), data.replace(b":", b": \n", 2), b"null",
                b'"x"', data.replace(b"200", b"1e999", 1), data.replace(b"lamp", b"l\\u0000mp", 1),
            )
        )  # fmt: skip

    # -- envelopes -----------------------------------------------------------------------------------------------------

    def _headers(self, correlation_id: str) -> dict[str, Any]:
        headers: dict[str, Any] = {"correlation-id": correlation_id}
        if not self.one_in(4):
            headers["requested-acks"] = self.chance.sample(LABELS, self.chance.randrange(4))
        if not self.one_in(3):
            headers["timeout"] = self.pick(("10s", "1s", "500ms", "1m", 5))
        if self.one_in(2):
            headers["response-required"] = self.one_in(2)
        if self.one_in(4):
            headers[self.pick(HEADERS)] = self.wrong()
        return headers

    def signal(self, correlation_id: str) -> dict[str, Any]:
        """Return a command or message, three of four valid."""
        thing = self.pick(THINGS)
        topic, path, value = self.pick(SIGNALS)
        if value == "thing":
            value = {"thingId": thing.replace("/", ":"), "attributes": {"x": 1}}
        if self.one_in(8):
            topic = self.pick(TOPICS)
        if self.one_in(8):
            path = self.pick(PATHS)
        # a copy is spoilt
        value = copy.deepcopy(value) if isinstance(value, list | dict) else value
        headers = self._headers(correlation_id)
        envelope = {"topic": f"{thing}/{topic}", "headers": headers, "path": path, "value": value}
        if value is None and self.one_in(2):
            del envelope["value"]
        return envelope

    def answer(self, correlation_id: str) -> dict[str, Any]:
        """Return an acknowledgement, an aggregate, a response or an error."""
        headers: dict[str, Any] = {"correlation-id": correlation_id}
        if self.one_in(3):
            headers[self.pick(HEADERS)] = self.wrong()
        thing, dice = self.pick(THINGS), self.chance.random()
        status = self.pick((200, 204, 400, 404, 408, 500))
        if dice < 0.5:
            topic, value = f"things/twin/acks/{self.pick(LABELS)}", self.pick((None, 1, {"a": 1}))
            if correlation_id.endswith("7"):
                # several of these do not fit one reply
                value = "p" * self.chance.randrange(150_000, 190_000)
        elif dice < 0.65:
            topic, entry = "things/twin/acks", {"status": 200, "payload": 1}
            value = {label: entry | {"headers": dict(headers)} for label in self.chance.sample(LABELS, 2)}
        elif dice < 0.9:
            topic, value = self.pick(TOPICS[:9]), self.pick((None, 1, {"thingId": "org.acme:lamp-1"}))
        else:
            topic = f"things/{self.pick(('twin', 'live'))}/errors"
            value = {"status": status, "error": "command.timeout" if self.one_in(3) else "x:y", "message": "It failed."}
        path = self.pick(PATHS[:6])
        return {"topic": f"{thing}/{topic}", "headers": headers, "path": path, "value": value, "status": status}

    def kafka_headers(self) -> dict[str, bytes]:
        """Return record headers that choose the topic and the correlation of a reply, seldom right ones."""
        if not self.one_in(12):
            return {}
        name = self.pick(("reply-to", "kafka_replyTopic", "kafka_replyPartition", "kafka_correlationId", "x"))
        return {name: self.pick((b"", b"mine", b"\xff\xfe", b"replies", b"r" * 300, bytes(16), "é".encode()))}

    # -- reports -------------------------------------------------------------------------------------------------------

    def text(self) -> str | None:
        """Return the text of a record header."""
        value = self.wrong()
        return None if value is None or value == "\ud800" else value if isinstance(value, str) else str(value)

    def filter(self) -> str:
        """Return tokens of the filter language in any order."""
        return " ".join(self.pick(FILTERS) for _ in range(self.chance.randrange(1, 12)))

    def runs(self, reach: int) -> list[dict[str, Any]]:
        """Return intervals of sample numbers."""
        found = []
        for _ in range(self.chance.randrange(4)):
            first = self.chance.randrange(1, reach + 2)
            found.append({"first": first, "last": first + self.chance.randrange(5)})
        return found

    def report(self, reach: int, epoch: int) -> dict[str, Any]:
        """Return a record of a reader or a writer about samples up to about ``reach``; at times of an old epoch."""
        reader, writer = f"r{self.chance.randrange(5)}", f"w{self.chance.randrange(5)}"
        epoch = max(1, epoch - self.one_in(20))
        known = {"reader": reader, "epoch": epoch}
        ack = {**known, "writer": writer, "count": self.chance.randrange(1, 1_000), "intervals": self.runs(reach)}
        return self.pick(
            (
                {"type": "app_ack", **ack},
                {"type": "app_ack", **ack, "role": "Logger"},
                {"type": "protocol_ack", **known, "writer": writer, "up_to": self.chance.randrange(reach + 2)},
                {"type": "reader_start", **known, "role": "Logger", "durable": True, "writers": ["w*"]},
                {"type": "reader_start", **known},
                {"type": "reader_alive", **known},
                {"type": "reader_stop", **known},
                {"type": "writer_asks", "writer": writer},
                {"type": "writer_asks", "writer": writer, "required": self.pick(({}, {"Auditor": 1}))},
                {"type": "readers_asked", "name": reader},
            )
        )  # fmt: skip

    def stored(self, first: int, last: int) -> dict[str, Any]:
        """Return persist's report of a run."""
        return {"client": f"w{self.chance.randrange(5)}", "first": first, "last": last, "batch": 1, "refused": []}

    def consumer(self, messages: list[str]) -> dict[str, Any]:
        """Return a record of a queue's consumer."""
        known = {"queue": "q", "consumer": f"c{self.chance.randrange(4)}", "session": self.chance.randrange(1, 4)}
        settled = [self.pick(messages) for _ in range(self.chance.randrange(1, 4))] if messages else ["t-0-0"]
        outcome, backlog = self.pick(("accepted", "failed", "rejected")), self.chance.randrange(1, 50)
        return self.pick(
            (
                {"type": "queue_bind", **known, "backlog": backlog, "outcomes": ["failed", "rejected"]},
                {"type": "queue_alive", **known},
                {"type": "queue_unbind", **known},
                {"type": "queue_settle", **known, "messages": settled, "outcome": outcome},
                {"type": "queue_settle", **known, "messages": settled},
                {"type": "queue_drain", **known},
            )
        )  # fmt: skip
